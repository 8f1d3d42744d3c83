"""Executors for a batch of a stream: they run Spark's plan of the batch, and write the resulting rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import FunctionRows
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.pieces import SharePiece
from airflow_lakestream.spark.frames.crew import FrameReaders
from airflow_lakestream.spark.frames.function import TransformFailed
from airflow_lakestream.spark.stateful.decoding import TaskReports, reports_after, sums_of

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


@dataclass
class StreamReaders(FrameReaders):
    """`SparkCrew` of a streaming query with a function.

    :param reports: the tasks' reports about the records that they decode.
    """

    reports: Accumulator[TaskReports] = field(kw_only=True)
    # The current batch, as Spark has planned it, and whether it was run.
    _batch: DataFrame | None = None
    _ran: bool = False

    def begin(self, batch: DataFrame) -> None:
        """Set the next batch."""
        self._batch, self._ran = batch, False

    def finish(self, ranges: RangeSet) -> None:
        """Run a batch already in the table: Spark needs the batch's state and watermark.

        Raises the errors of Spark and of a decoder: a state that lacks records must not stay.
        """
        if not self._ran and self._batch is not None:
            log.info("The table has this batch already: it is run for its state, and its rows are dropped")
            self._batch.write.format("noop").mode("overwrite").save()
            sums_of(self.reports.value, ranges)
        self._batch, self.reports.value = None, reports_after(self.reports.value, ranges)

    def read(self, job: LandingJob, plan: Plan, done: RangeSet, most: int | None) -> Sequence[SharePiece]:
        """Run the batch, and write the rows. Raises TransformFailed, and the errors of a decoder."""
        assert self._batch is not None, "a batch has begun"
        metadata, keeps = self._hold(job, self._batch, plan.ranges)
        self._ran = True
        try:
            written = self._write(job, plan, self._batch, metadata, plan.ranges, keeps_positions=keeps)
        except TransformFailed:
            # Perhaps for lack of the rows that a decoder refused to make: the decoder's error explains more.
            sums_of(self.reports.value, plan.ranges)
            raise
        sums, rows = sums_of(self.reports.value, plan.ranges), sum(one.rows for one in written)
        for rejected in sums.rejected:
            assert job.rejects is not None, "every table has a reject table"
            job.rejects.reject(rejected)
        log.info("%s made %s rows in %s", self.function.name, rows, plan.streamed)
        made = FunctionRows(self.function.name, rows)
        return [SharePiece(plan.state.identity, plan.ranges, sums.counts, plan.epochs, {}, sums.bad, made, sums.use)]

    def _keeps(self, metadata: pa.Schema) -> bool:
        # A row made by a state is not a record's row, even if it looks so.
        return False
