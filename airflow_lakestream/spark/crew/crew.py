"""Spark's executors as the crew of a landing: Spark gives them shares of the plan, and they read, decode and write.

Plan, guard and the one commit stay on the driver. A failed or speculative task leaves files that no snapshot has; they
are in the run's own folder, where `clean_up` deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.landing.job import Job, Stopped
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.parallel import LEAST_WIDTH, folder_of
from airflow_lakestream.core.sharing.pieces import Piece, Share, at_most_offsets, split
from airflow_lakestream.decode.rows import RowDecoders
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.runtime.processes import Failed
from airflow_lakestream.spark.causes import cause_of
from airflow_lakestream.spark.crew import executors
from airflow_lakestream.spark.crew.executors import Work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

# One task per core makes the fewest files and connections. With more offsets than this per task, a failed task loses
# much, and gives no sign of life for long.
MOST_WIDTH = 1_000_000


class SparkReadFailed(LakestreamError, Transient):
    """Spark could not run the tasks, for a reason of its own."""

    def __init__(self, table: str, ranges: RangeSet, cause: str) -> None:
        super().__init__(
            f"Spark could not read {ranges} for {table}: {cause} Nothing of it was landed; the next try reads it "
            "again. See Spark's own messages in the log above."
        )


@dataclass
class SparkCrew:
    """`core.landing.job.Crew` on the executors of a Spark session.

    :param kafka: librdkafka configuration, without paths of this machine: see `spark.settings.kafka.for_executors`.
    :param where: name of the connection for errors.
    """

    spark: SparkSession
    config: ExtractConfig
    # repr=False: holds passwords.
    kafka: Mapping[str, Any] = field(repr=False)
    where: str
    # The folders that tasks may have written to.
    _used: set[str] = field(default_factory=set)

    def takes(self, job: Job, plan: Plan) -> bool:
        """Tell whether executors read: not for tables that records choose or that grow with each record."""
        return bool(plan.ranges) and not job.careful and self.config.fan_out is None and not self.config.design.grows

    def read(self, job: Job, plan: Plan, done: RangeSet, most: int | None) -> Sequence[Piece]:
        """Read the plan except `done`; see `core.landing.job.Crew`."""
        ranges = plan.ranges - done
        if most is not None:
            ranges = at_most_offsets(ranges, most)
        shares = [
            Share(plan.state.identity, part, plan.epochs, plan.known_epochs)
            for part in split(ranges, self._tasks(ranges.width), LEAST_WIDTH)
        ]
        pieces = self._run(job, self._work(job, plan), shares) if shares else []
        if (read := union(piece.ranges for piece in pieces)) != ranges:
            raise AssertionError(f"the executors read {read} instead of {ranges}")
        return pieces

    def clean_up(self, job: Job, *, repeated: bool) -> None:
        """Delete what the tasks of a finished landing left behind; never raises.

        :param repeated: an earlier try landed something, and may have left more.
        """
        folder = folder_of(job.run_id)
        # If nothing was written, the table may not even exist.
        if folder not in self._used and not repeated:
            return
        self._used.discard(folder)
        job.shared.sweep(folder)

    def _work(self, job: Job, plan: Plan) -> Work:
        identity, decoders, target = plan.state.identity, job.decoders, self._target(job)
        assert isinstance(decoders, RowDecoders), "that is what build_job makes"
        assert target is not None, "it was asked whether executors can write"
        # The table that they are told of has the schema that the landing will give it: nothing is left to change.
        one = replace(self.config.of_topic(identity.topic), schema_evolution=SchemaEvolution.NONE)
        return Work(
            run_id=job.run_id,
            consumer_group=job.consumer_group,
            kafka=self.kafka,
            poll_timeout=one.poll_seconds,
            where=self.where,
            target=target,
            design=one.design,
            table=job.table,
            lake=one.lake,
            decoders=executors.for_executors(decoders),
            folder=folder_of(job.run_id),
            passes_over=job.replaces,
        )

    def _target(self, job: Job) -> Any:
        """Return the outline of the table that executors write for."""
        return job.shared.outline()

    def _take(self, job: Job, piece: Piece) -> None:
        """Take what an executor wrote."""
        job.shared.take_over(piece.files)

    def _tasks(self, width: int) -> int:
        cores = self.spark.sparkContext.defaultParallelism
        return cores * max(1, -(-width // (cores * MOST_WIDTH)))

    def _run(self, job: Job, work: Work, shares: Sequence[Share]) -> list[Piece]:
        self._used.add(work.folder)
        context = self.spark.sparkContext
        # These already include what was set as spark.executorEnv.
        context.environment = executors.ENVIRONMENT | context.environment
        try:
            answers = context.parallelize(shares, len(shares)).map(work).collect()
        except Exception as e:  # noqa: BLE001  # whatever Spark and its bridge to the JVM raise
            self._raise(job, union(share.ranges for share in shares), e)
        pieces = [answer for answer in answers if isinstance(answer, Piece)]
        for piece in pieces:
            # Taken over, they are deleted with all that the landing does not commit.
            self._take(job, piece)
        for answer in answers:
            if isinstance(answer, Failed):
                raise answer.error
        return pieces

    def _raise(self, job: Job, ranges: RangeSet, error: Exception) -> NoReturn:
        if job.stop.is_set():
            raise Stopped from error
        raise SparkReadFailed(job.table, ranges, cause_of(error)) from error
