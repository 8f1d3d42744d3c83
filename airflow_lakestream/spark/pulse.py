"""Signs of life of a landing on Spark: given for progress, never just because time passes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from types import TracebackType
from typing import TYPE_CHECKING

from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ports import RecordChunk, RecordReader
from airflow_lakestream.driver.progress import ProgressLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

INTERVAL_S = 5.0


class ProgressReporter:
    """Regular looks at the driver, with a report if the driver has done something since the last look.

    Progress is: a Spark task ended, a stage began, or the driver itself read a batch of records. Only progress is a
    sign of life; so a hanging batch is distinguished from a long batch.

    :param is_idle: whether a query waits for records, which counts as a sign of life.
    """

    def __init__(
        self, spark: SparkSession, progress: ProgressLog, is_idle: Callable[[], bool], interval: float = INTERVAL_S
    ) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._progress = progress
        self._is_idle = is_idle
        self._interval = interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report_regularly, name="lakestream-pulse", daemon=True)
        self._what = "starting"
        self._chunks = 0
        self._seen: tuple[object, ...] = ()

    def __enter__(self) -> ProgressReporter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def begin(self, work: str) -> None:
        """Report the start of a step, for example "batch 7"."""
        self._what = work
        self._progress.alive(f"{work} has begun")

    def count(self, reader: RecordReader) -> RecordReader:
        """Return a reader with a count of batches of records, for reads by the driver itself, without Spark tasks."""
        return _CountingReader(reader, self)

    def read_one(self) -> None:
        """Count a batch of records."""
        self._chunks += 1

    def look(self) -> None:
        """Look once; report if the driver has done something, or waits for records."""
        if self._is_idle():
            self._progress.alive()
            return
        stages = [(s, info) for s in self._tracker.getActiveStageIds() if (info := self._tracker.getStageInfo(s))]
        progress = (self._chunks, *((stage, info.numCompletedTasks) for stage, info in stages))
        if progress == self._seen:
            return
        self._seen = progress
        activities = [
            f"{info.numCompletedTasks} of {info.numTasks} tasks of stage {stage} are done" for stage, info in stages
        ]
        if self._chunks:
            activities.append(f"the driver has read {self._chunks} chunks")
        self._progress.alive(f"{self._what}: {', '.join(activities) or 'between two stages'}")

    def _report_regularly(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self.look()
            except Exception as e:  # noqa: BLE001  # a store away for a moment; the landing reports Spark's errors
                log.warning("No sign of life could be given: %s: %s", type(e).__name__, e)


class _CountingReader:
    def __init__(self, reader: RecordReader, pulse: ProgressReporter) -> None:
        self._reader = reader
        self._pulse = pulse

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        with closing(self._reader.read(plan, cancelled)) as chunks:
            for chunk in chunks:
                self._pulse.read_one()
                yield chunk
