"""A run whose records are read by child processes, in a process of its own: one with other threads forks no children.

What goes wrong in it is put into its children, by wrappers around what their jobs are made of.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.core.sharing import side_by_side
from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from airflow_lakestream.iceberg.write.handover import IcebergOutline
from airflow_lakestream.run import job as extract
from airflow_lakestream.run.processes import reader_processes
from airflow_lakestream.run.topics import land_run
from airflow_lakestream.runtime.processes import ChildFailure
from airflow_lakestream.tables import row_buffer
from tests.support.faults import InterposedReader, SmallChunks
from tests.support.lake import Lake
from tests.support.peak_memory import peak_bytes

CHUNK = 10


@dataclass
class ParallelRun:
    """One run with two reader processes; `fault` names what happens in each of them when some chunks are read."""

    lake: Lake
    topic: str
    config: dict[str, Any] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    fault: str = ""

    def land(self) -> dict[str, Any]:
        """Land, and return the report. Raises what the run raised."""
        here, there = multiprocessing.Pipe()
        process = self._start(there)
        try:
            assert here.poll(300), "the run has neither ended nor failed"
            answer = here.recv()
        finally:
            process.kill()
            process.join()
        if isinstance(answer, ChildFailure):
            raise answer.error
        report: dict[str, Any] = answer
        return report

    def land_until_killed(self) -> None:
        """Land in a process that dies of a SIGKILL while its children read; return when they have ended, too."""
        here, there = multiprocessing.Pipe()
        process = self._start(there)
        try:
            process.join(120)
            assert process.exitcode == -signal.SIGKILL
            # They hold the other end as well, as long as they live.
            assert here.poll(60), "the children live on"
            try:
                assert here.recv() is None
            except EOFError:
                return
        finally:
            process.kill()

    def _start(self, there: Connection) -> Any:
        # Forked from a server that has imported everything and has no threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        what = (self.lake, self.topic, self.config, self.run_id, self.fault)
        process = context.Process(target=_main, args=(there, *what))
        process.start()
        there.close()
        return process


def _main(
    connection: Connection,
    lake: Lake,
    topic: str,
    arguments: dict[str, Any],
    run_id: str,
    fault: str,
) -> None:
    side_by_side.LEAST_WIDTH = 1
    row_buffer.FILE_BYTES = 1
    stop = threading.Event()
    config = lake.settings(topic, **({"parallelism": 2} | arguments))
    _put_into_children(FAULTS[fault], os.getpid())
    try:
        with reader_processes(config, lake.kafka) as children:
            if fault == "stop":
                signal.signal(signal.SIGUSR1, lambda *_: stop.set())
            report = land_run(config, lake.kafka, lake.catalog(), run_id=run_id, stop=stop, children=children)
        processes = 0 if children is None else 2
        connection.send(report.to_dict() | {"processes": processes, "peak_mib": peak_bytes() >> 20})
    except Exception as e:  # noqa: BLE001  # raised in the test
        connection.send(ChildFailure(e))


def _put_into_children(fault: Callable[[int], None], parent: int) -> None:
    build_job = extract.build_job

    def build(config: ExtractConfig, kafka: Mapping[str, Any], catalog: Any, **others: Any) -> LandingJob:
        job = build_job(config, kafka, catalog, **others)
        if not isinstance(catalog, IcebergOutline):
            return replace(job, reader=_NoReader()) if fault is _let_the_parent_read_nothing else job
        if fault is _compile_nothing:
            protobuf_schema._run_protoc = _refuse_to_compile
        reader = InterposedReader(SmallChunks(job.reader, CHUNK), lambda: fault(parent), 5)
        return replace(job, reader=reader)

    extract.build_job = build


def _die(parent: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_parent(parent: int) -> None:
    os.kill(parent, signal.SIGKILL)


def _stop_parent(parent: int) -> None:
    os.kill(parent, signal.SIGUSR1)


def _break_oddly(parent: int) -> None:
    raise Odd(threading.Lock())


def _let_the_parent_read_nothing(parent: int) -> None:
    return


def _compile_nothing(parent: int) -> None:
    return


def _refuse_to_compile(folder: Path) -> bytes:
    raise AssertionError("a child compiles a schema")


class _NoReader:
    """`core.ports.Reader` that nobody is to ask."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        """Refuse."""
        raise AssertionError(f"the landing itself reads {plan.ranges}")


class Odd(Exception):
    """An error that can't be pickled."""


def _nothing(parent: int) -> None:
    return


FAULTS: dict[str, Callable[[int], None]] = {
    "": _nothing,
    "die": _die,
    "kill the parent": _kill_parent,
    "stop": _stop_parent,
    "break oddly": _break_oddly,
    "the parent reads nothing": _let_the_parent_read_nothing,
    "the children compile nothing": _compile_nothing,
}
