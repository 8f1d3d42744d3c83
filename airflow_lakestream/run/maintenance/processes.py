"""Child processes of a maintenance, which rewrite files of Iceberg tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from airflow_lakestream.config.maintenance import MaintenanceSection, format_of
from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.iceberg.upkeep.rewrite_pool import serve
from airflow_lakestream.runtime.processes import ChildProcesses, can_fork


@contextmanager
def rewriter_processes(
    section: MaintenanceSection, dry_run: bool, idle_threads: Sequence[str] = ()
) -> Iterator[ChildProcesses | None]:
    """Yield processes that rewrite groups of files, or None if one process is enough or forking is unsafe.

    The processes end with the context. Enter the context before any client is made: see `runtime.processes`, for
    `idle_threads`, too.
    """
    count = 1 if dry_run or section.compact is None else section.compact.parallelism
    # delta-rs has threads of its own.
    if count < 2 or format_of(section.tables).format != TableFormat.ICEBERG or not can_fork(idle_threads):
        yield None
        return
    with ChildProcesses(count, serve) as children:
        yield children
