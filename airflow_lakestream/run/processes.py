"""The child processes of an extract: how many there are, and what each of them is made of.

No Airflow in here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow_lakestream.core.landing.job import Job
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.sharing.side_by_side import Order, ReaderProcess
from airflow_lakestream.decode.rows import RowDecoders
from airflow_lakestream.run import job as extract
from airflow_lakestream.run.job import ExtractConfig
from airflow_lakestream.runtime.allocation import ARENA_MAX, MMAP_THRESHOLD, TRIM_THRESHOLD, tune_allocation
from airflow_lakestream.runtime.processes import Child, Children, can_fork, processors

# What librdkafka may hold ahead, in all processes together.
QUEUED_KBYTES = 16 * 1024
# More of them than these wait for the one broker or the one disk.
DEFAULT_MOST = 4


@contextmanager
def reader_processes(
    config: ExtractConfig,
    kafka: Mapping[str, Any],
    where: str = "the Kafka connection",
    idle_threads: Sequence[str] = (),
) -> Iterator[Children | None]:
    """Have the processes that read for the landings within; None where one is enough or no other can be had.

    To be entered before any client is made: see `runtime.processes`, also on `idle_threads`.
    """
    # One process that reads, decodes and writes in threads waits for the interpreter for a third of the time. On two
    # processors, two processes landed 706,000 JSON records/s and held 680 MiB, one 575,000 and 560.
    count = config.processes or min(DEFAULT_MOST, processors())
    _bound_allocation()
    # A replacement, tables that records choose, and a table that grows with its records are written by one process.
    if count < 2 or config.replaces or config.fan_out is not None or config.design.grows or not can_fork(idle_threads):
        yield None
        return

    config.payload.prepare(config.topic)
    # A connection that says otherwise is right.
    connection = {"queued.max.messages.kbytes": QUEUED_KBYTES // count, **kafka}

    def main(child: Child) -> None:
        ReaderProcess(child, make_job).serve()

    def make_job(order: Order, stop: threading.Event) -> Job:
        # The table that it is told of has the schema that the landing will give it: nothing is left to change.
        one = replace(config.of_topic(order.share.identity.topic), schema_evolution=SchemaEvolution.NONE)
        # Two processes that took the memory of one each had a peak PSS of 1,011 MiB with their parent, one alone 659.
        target, run_id = order.target, order.run_id
        job = extract.build_job(one, connection, target, run_id=run_id, where=where, stop=stop, parts=count)
        decoders = job.decoders
        assert isinstance(decoders, RowDecoders), "that is what build_job makes"
        return replace(job, decoders=replace(decoders, payload=replace(decoders.payload, alone=True)))

    with Children(count, main) as children:
        yield children


def _bound_allocation() -> None:
    """Have all threads of this process, and of those it forks, allocate from two arenas, and very large blocks alone.

    librdkafka's threads would have an arena each, and what one of them takes another gives back: 1,000 records of 1 MiB
    took 450 MiB to land, 360 with two arenas. Records of 10 MiB leave holes in them of as much again: 760 MiB, and 710
    where such a block goes back to the system when it is freed, for a fifth more time. Smaller ones stay.
    """
    tune_allocation({ARENA_MAX: 2, MMAP_THRESHOLD: 8 * 2**20, TRIM_THRESHOLD: 16 * 2**20})
