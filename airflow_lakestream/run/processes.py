"""Child processes of an extract: the number, and the work of each. No Airflow in here."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.sharing.side_by_side import ReaderProcess, ReadOrder
from airflow_lakestream.run import job as extract
from airflow_lakestream.runtime.processes import (
    ARENA_MAX,
    MMAP_THRESHOLD,
    TRIM_THRESHOLD,
    ChildPipe,
    ChildProcesses,
    can_fork,
    processors,
    tune_allocation,
)

# Kilobytes that librdkafka may read ahead, in all processes together.
QUEUED_KBYTES = 16 * 1024
# Greatest number of processes by default: more would wait for the same broker or disk.
DEFAULT_MOST = 4


@contextmanager
def reader_processes(
    config: ExtractConfig,
    kafka: Mapping[str, Any],
    where: str = "the Kafka connection",
    idle_threads: Sequence[str] = (),
) -> Iterator[ChildProcesses | None]:
    """Yield reader processes for landings, or None if a single process is enough or forking is unsafe.

    The processes end with the context. Enter the context before any client is made: see `runtime.processes`, also
    for `idle_threads`. Memory settings of this process are changed for good: see `_bound_allocation`.

    :param where: name of the Kafka connection for errors.
    """
    # A single process that reads, decodes and writes in threads waits for the interpreter a third of the time. On two
    # processors, two processes landed 706,000 JSON records/s with 680 MiB; a single one 575,000 with 560 MiB.
    count = config.processes or min(DEFAULT_MOST, processors())
    _bound_allocation()
    # Replacements, fan-outs, and tables whose columns grow with their records are written by a single process.
    if count < 2 or config.replace or config.fan_out is not None or config.design.grows or not can_fork(idle_threads):
        yield None
        return

    config.payload.prepare(config.topic)
    # The connection's own settings win.
    connection = {"queued.max.messages.kbytes": QUEUED_KBYTES // count, **kafka}

    def main(child: ChildPipe) -> None:
        ReaderProcess(child, make_job).serve()

    def make_job(order: ReadOrder, stop: threading.Event) -> LandingJob:
        # The outline of the table already has the schema that the landing will give the table.
        topic_config = replace(config.of_topic(order.share.identity.topic), schema_evolution=SchemaEvolution.NONE)
        # `parts`: with the whole memory for rows each, two processes and their parent took 1,011 MiB instead of 659.
        target, run_id = order.target, order.run_id
        return extract.build_job(topic_config, connection, target, run_id=run_id, where=where, stop=stop, parts=count)

    with ChildProcesses(count, main) as children:
        yield children


def _bound_allocation() -> None:
    """Let all threads of this process and of children allocate from two arenas, and map very large blocks.

    With an arena per thread of librdkafka, memory that one thread frees is not used by another: landing 1,000
    records of 1 MiB took 450 MiB, with two arenas 360. Records of 10 MiB leave holes of the same size: 760 MiB, or
    710 if such blocks go back to the system when freed, for a fifth more time. Smaller blocks stay in the arenas.
    """
    tune_allocation({ARENA_MAX: 2, MMAP_THRESHOLD: 8 * 2**20, TRIM_THRESHOLD: 16 * 2**20})
