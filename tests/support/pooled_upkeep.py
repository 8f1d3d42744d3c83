"""Maintenance whose files are rewritten by child processes, in a process of its own: one with other threads forks none.

What goes wrong is put into the children, by a wrapper around their writer of data files.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_lakestream.config.maintenance import MaintenanceSection
from airflow_lakestream.iceberg.upkeep import compaction, rewrite_pool
from airflow_lakestream.iceberg.write.parquet import ParquetDataFile
from airflow_lakestream.run.maintenance.processes import rewriter_processes
from airflow_lakestream.run.maintenance.upkeep import IcebergUpkeep
from airflow_lakestream.runtime.processes import ChildFailure
from tests.support.given_records import GivenLake
from tests.support.peak_memory import own_peak_bytes

# Set in a child as soon as the parent asks it to stop.
_STOPPED = threading.Event()


@dataclass
class PooledUpkeep:
    """One maintenance with two processes; `fault` names what happens in each of them when they write.

    :param row_group_bytes: see `compaction.ROW_GROUP_BYTES`.
    :param seen: a folder in which each child leaves a file named by its process, with its peak of bytes.
    """

    folder: Path
    tables: tuple[str, ...]
    seen: Path
    compact: dict[str, Any] = field(default_factory=dict)
    fault: str = ""
    row_group_bytes: int = compaction.ROW_GROUP_BYTES

    def run(self) -> list[dict[str, Any]]:
        """Maintain, and return the reports. Raises what the maintenance raised."""
        here, process = self._start()
        try:
            assert here.poll(120), "the maintenance has neither ended nor failed"
            answer = here.recv()
        finally:
            process.kill()
            process.join()
        if isinstance(answer, ChildFailure):
            raise answer.error
        found: list[dict[str, Any]] = answer
        return found

    def run_until_killed(self) -> None:
        """Maintain in a process that dies of a SIGKILL while its children write; return when they have ended, too."""
        here, process = self._start()
        try:
            process.join(120)
            assert process.exitcode == -signal.SIGKILL
            # They hold the other end as well, as long as they live.
            assert here.poll(60), "the children live on"
            with suppress(EOFError):
                raise AssertionError(f"a report: {here.recv()}")
        finally:
            process.kill()

    def _start(self) -> tuple[Connection, Any]:
        # Forked from a server that has imported everything and has no threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        here, there = multiprocessing.Pipe()
        process = context.Process(target=_main, args=(there, self))
        process.start()
        there.close()
        return here, process


def _main(connection: Connection, wanted: PooledUpkeep) -> None:
    compaction.ROW_GROUP_BYTES = wanted.row_group_bytes
    stop = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: stop.set())
    _put_into_children(FAULTS[wanted.fault], os.getpid(), wanted.seen)
    options = {"min-input-files": 2, **wanted.compact.get("options", {})}
    compact = {"parallelism": 2, **wanted.compact, "options": options}
    section = MaintenanceSection.parse({"tables": list(wanted.tables), "compact": compact})
    try:
        with rewriter_processes(section, dry_run=False) as children:
            catalog = GivenLake(wanted.folder).catalog()
            reports = IcebergUpkeep(catalog, section, stop=stop, children=children).run()
        connection.send([one.to_dict() for one in reports])
    except Exception as e:  # noqa: BLE001  # raised in the test
        connection.send(ChildFailure(e))


def _put_into_children(fault: Callable[[int], None], parent: int, seen: Path) -> None:
    write, hear = ParquetDataFile.write, rewrite_pool.RewriterProcess._hear

    def written(file: ParquetDataFile, rows: pa.Table) -> None:
        if os.getpid() != parent:
            fault(parent)
        write(file, rows)
        seen.mkdir(exist_ok=True)
        (seen / str(os.getpid())).write_text(str(own_peak_bytes()))

    def heard(process: rewrite_pool.RewriterProcess, message: object) -> bool:
        found = hear(process, message)
        if found:
            _STOPPED.set()
        return found

    ParquetDataFile.write = written  # type: ignore[method-assign]  # in a process of its own
    rewrite_pool.RewriterProcess._hear = heard  # type: ignore[method-assign]  # likewise


def _nothing(parent: int) -> None:
    return


def _die(parent: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_parent(parent: int) -> None:
    os.kill(parent, signal.SIGKILL)
    _STOPPED.wait(60)


def _stop_parent(parent: int) -> None:
    os.kill(parent, signal.SIGUSR1)
    _STOPPED.wait(60)


def _break(parent: int) -> None:
    raise OSError(28, "No space left on device")


FAULTS: dict[str, Callable[[int], None]] = {
    "": _nothing,
    "die": _die,
    "kill the parent": _kill_parent,
    "stop": _stop_parent,
    "break": _break,
}
