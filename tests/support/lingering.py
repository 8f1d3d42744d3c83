"""Landings that hang in the middle: part of the rows is written to disk, none is committed, and no more comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ports import RecordChunk, RecordReader
from airflow_lakestream.run import job as extract
from airflow_lakestream.tables import row_buffer


class LingeringReader:
    """Yields what it reads, and then waits until somebody gives up."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader

    def read(self, plan: Plan, cancelled: threading.Event) -> Iterator[RecordChunk]:
        yield from self._reader.read(plan, cancelled)
        cancelled.wait()


def install() -> None:
    """Let the operator's jobs linger, in this process: for a DAG file, which is all that a task process runs of us."""
    real = extract.build_job

    def build_job(*args: Any, **options: Any) -> Any:
        job = real(*args, **options)
        return replace(job, reader=LingeringReader(job.reader))

    extract.build_job = build_job
    row_buffer.FILE_BYTES = 1
