"""Spark's executors as remote readers: Spark gives each task a share of the plan to read, decode and write.

Plan, guard and the one commit stay on the driver. A failed or speculative task leaves files without a snapshot, in
the run's own folder, where `clean_up` deletes them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_lakestream.cdc.merge.pool import MergeThreads, MergeWork
from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.job import LandingJob, Stopped
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import RowSchema
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.parallel import LEAST_WIDTH, folder_of
from airflow_lakestream.core.sharing.pieces import PlanShare, SharePiece, at_most_offsets, split
from airflow_lakestream.core.sharing.rounds import RoundAnswer, read_in_rounds
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.iceberg.fan_out.sink import FanOutSink
from airflow_lakestream.runtime.processes import ChildFailure
from airflow_lakestream.spark import executors
from airflow_lakestream.spark.causes import cause_of
from airflow_lakestream.spark.executors import ExecutorTask
from airflow_lakestream.tables.rejects.sink import RejectingSink

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


# Number of offsets in a fan-out's first round if no table is known: reading these again costs little.
FIRST_OFFSETS = 20_000


def fan_out_of(job: LandingJob) -> FanOutSink | None:
    """Return the sink of a job whose records choose the table; None for any other sink."""
    inner = job.sink.inner if isinstance(job.sink, RejectingSink) else job.sink
    return inner if isinstance(inner, FanOutSink) else None


@dataclass
class RoundDecisions:
    """The driver's decisions between two rounds of reads by executors.

    Executors leave out records for which the driver has to decide first, such as a record with a new column; the next
    round reads these records. The base class is for landings without such records.
    """

    job: LandingJob
    plan: Plan

    def decoders(self) -> RowDecoderFactory:
        """Return the decoders of the executors for the next round."""
        assert isinstance(self.job.decoders, RowDecoderFactory), "build_job makes such decoders"
        return self.job.decoders

    def first(self, ranges: RangeSet) -> RangeSet:
        """Return the offset ranges for the first round."""
        return ranges

    def decide(self, questions: Sequence[Any], columns: RowSchema) -> None:
        """Decide the questions that executors met in records. The base class raises AssertionError.

        :param questions: the questions, in the order of the records.
        :param columns: the payload's columns, as executors knew them.
        """
        raise AssertionError(f"nothing is to be decided here, and executors ask for {questions[0]!r}")


@dataclass
class ColumnDecisions(RoundDecisions):
    """Decisions to add a column to the table for each new field, of a type for the values of all executors."""

    # Whether no further column is added: executors then count records with another new field as bad.
    decided: bool = False

    def decoders(self) -> RowDecoderFactory:
        """Return the decoders of the executors for the next round."""
        decoders = super().decoders()
        return replace(decoders, payload=replace(decoders.payload, decided=self.decided))

    def decide(self, questions: Sequence[Any], columns: RowSchema) -> None:
        """Let the next commit add a column for each new field.

        :param questions: the new fields, in the order of the records.
        :param columns: the payload's columns, as executors knew them.
        """
        decoders, identity = super().decoders(), self.plan.state.identity
        grown = decoders.payload.grown(columns, questions)
        self.decided = grown.equals(columns)
        if not self.decided:
            # Without rows: the write gives the grown columns to the sink.
            self.job.sink.write(decoders.without_records(grown, identity.topic)[1], identity)


@dataclass
class RouteDecisions(RoundDecisions):
    """Decisions to admit or refuse tables that records name, in the order of the records.

    :param fan_out: the sink of the job.
    :param last_routes: names of tables in the landing before, which records are likely to contain again.
    """

    fan_out: FanOutSink
    last_routes: Sequence[str]

    def decoders(self) -> RowDecoderFactory:
        """Return the decoders of the executors for the next round."""
        decoders = super().decoders()
        assert decoders.router is not None, "records choose their tables"
        return replace(decoders, router=replace(decoders.router, refusals=self.fan_out.outline().refusals))

    def first(self, ranges: RangeSet) -> RangeSet:
        """Return all ranges if routes are known, else a few offsets to learn routes from.

        As a side effect, the sink looks up the tables of the known routes.
        """
        routes = self.last_routes or self.fan_out.routes
        self.fan_out.expect(routes, self.plan.state.identity, ranges)
        return ranges if routes else at_most_offsets(ranges, FIRST_OFFSETS)

    def decide(self, questions: Sequence[Any], columns: RowSchema) -> None:
        """Admit or refuse tables.

        :param questions: the routes (names of tables in records), in the order of the records.
        :param columns: unused: a route needs no columns.
        """
        self.fan_out.decide(questions)


# Most offsets of a task. One task per core makes the fewest files and connections; but with more offsets, a failed task
# would lose much work, and give no sign of life for long.
MOST_WIDTH = 1_000_000


class SparkReadFailed(LakestreamError, Transient):
    """Error of tasks that Spark could not run, for an internal reason."""

    def __init__(self, table: str, ranges: RangeSet, cause: str) -> None:
        super().__init__(
            f"Spark could not read {ranges} for {table}: {cause} Nothing of it was landed; the next try reads it "
            "again. See Spark's own messages in the log above."
        )


@dataclass
class SparkReaders:
    """Remote readers on the executors of a Spark session, see `core.landing.job.RemoteReaders`.

    :param kafka: librdkafka configuration, without paths of this machine: see `spark.kafka_settings.for_executors`.
    :param where: name of the connection for errors.
    """

    spark: SparkSession
    config: ExtractConfig
    # repr=False: holds passwords.
    kafka: Mapping[str, Any] = field(repr=False)
    where: str
    # The folders that tasks may have written to.
    _used_folders: set[str] = field(default_factory=set)
    # The routes (names of tables in records) of the last landing, by the landing's own table.
    _routes: dict[str, Sequence[str]] = field(default_factory=dict)

    def can_read(self, job: LandingJob, plan: Plan) -> bool:
        """Return whether executors can read the plan.

        The driver itself reads an empty plan, a landing that is repeated row by row, and a fan-out's landing that an
        earlier try has committed to a part of the tables.
        """
        if not plan.ranges or job.careful:
            return False
        fan_out = fan_out_of(job)
        if fan_out is not None and fan_out.is_alone:
            # Executors of the earlier try may have left files, which `clean_up` deletes.
            self._used_folders.add(folder_of(job.run_id))
            return False
        return True

    def read(self, job: LandingJob, plan: Plan, done: RangeSet, most: int | None) -> Sequence[SharePiece]:
        """Read the plan except `done` by executors, at most `most` offsets; see `core.landing.job.RemoteReaders`."""
        ranges = plan.ranges - done
        if most is not None:
            ranges = at_most_offsets(ranges, most)
        if not ranges:
            return []
        decisions = self._open_decisions(job, plan)

        def read(round_ranges: RangeSet) -> Sequence[RoundAnswer]:
            task_ranges = split(round_ranges, self._task_count(round_ranges.width), LEAST_WIDTH)
            shares = [PlanShare.of(plan, share_ranges) for share_ranges in task_ranges]
            return self._run(job, self._task(job, plan, decisions.decoders()), shares)

        def decide(questions: Sequence[Any]) -> None:
            decisions.decide(questions, self._task(job, plan, decisions.decoders()).columns())

        pieces = read_in_rounds(ranges, read, decide, decisions.first(ranges))
        if (fan_out := fan_out_of(job)) is not None:
            self._routes[job.table] = fan_out.routes
        return pieces

    def clean_up(self, job: LandingJob, *, repeated: bool) -> None:
        """Delete the files that tasks of a finished landing have left without a commit; never raises.

        :param repeated: whether an earlier try landed rows, and so may have left files.
        """
        folder = folder_of(job.run_id)
        # Without written files the table may not even exist.
        if folder not in self._used_folders and not repeated:
            return
        self._used_folders.discard(folder)
        job.sink.sweep(folder)

    def _open_decisions(self, job: LandingJob, plan: Plan) -> RoundDecisions:
        if (fan_out := fan_out_of(job)) is not None:
            return RouteDecisions(job, plan, fan_out, self._routes.get(job.table, ()))
        return ColumnDecisions(job, plan) if self.config.table_design.grows else RoundDecisions(job, plan)

    def _task(self, job: LandingJob, plan: Plan, decoders: RowDecoderFactory) -> ExecutorTask:
        """Return the task of each executor."""
        target = self.target(job)
        assert target is not None, "the caller has checked that executors can write"
        config = self.config.of_topic(plan.state.identity.topic)
        design = config.design
        if not isinstance(config, MirrorConfig):
            # The outline already has the schema that the landing will give the table: executors have no change to make.
            design = replace(design, evolution=SchemaEvolution.NONE)
        return ExecutorTask(
            run_id=job.run_id,
            consumer_group=job.consumer_group,
            kafka=self.kafka,
            poll_timeout=config.poll_timeout,
            where=self.where,
            target=target,
            design=design,
            table=job.table,
            lake=config.lake,
            decoders=decoders,
            folder=folder_of(job.run_id),
            passes_over=job.replaces,
        )

    def target(self, job: LandingJob) -> Any:
        """Return the outline of the executors' table."""
        return job.sink.outline()

    def take(self, job: LandingJob, piece: SharePiece) -> None:
        """Take over an executor's files."""
        job.sink.take_over(piece.files)

    def _task_count(self, width: int) -> int:
        """Return the number of tasks for a number of offsets: a task per core, or as many times more as is needed."""
        cores = self.spark.sparkContext.defaultParallelism
        return cores * max(1, math.ceil(width / (cores * MOST_WIDTH)))

    def _run(self, job: LandingJob, work: ExecutorTask, shares: Sequence[PlanShare]) -> list[RoundAnswer]:
        """Run a task for each share; return the answers, with the files taken over. Raises the error of a task."""
        self._used_folders.add(work.folder)
        context = self.spark.sparkContext
        # The session's environment includes the settings of spark.executorEnv.
        context.environment = executors.ENVIRONMENT | context.environment
        try:
            answers = context.parallelize(shares, len(shares)).map(work).collect()
        except Exception as e:  # errors of Spark and Py4J have no common base; each is raised again by name
            if job.stop.is_set():
                raise Stopped from e
            raise SparkReadFailed(job.table, union(share.ranges for share in shares), cause_of(e)) from e
        read = [answer for answer in answers if isinstance(answer, RoundAnswer)]
        for round_answer in read:
            # Before an error is raised: the sink deletes the files with its own if the landing is not committed.
            if round_answer.piece is not None:
                self.take(job, round_answer.piece)
        for answer in answers:
            if isinstance(answer, ChildFailure):
                raise answer.error
        return read


# The driver does smaller works itself: a job of Spark takes longer.
LEAST_BYTES = 4 * 2**20
# More than one, so that a core whose tasks are done can take over tasks of other cores.
_TASKS_FOR_EACH_CORE = 4


class SparkMergeFailed(LakestreamError, Transient):
    """Error of a merge whose tasks Spark could not run, for an internal reason."""

    def __init__(self, table: str, cause: str) -> None:
        super().__init__(
            f"Spark could not merge into {table}: {cause} Nothing of it was landed; the next try merges it again. See "
            "Spark's own messages in the log above."
        )


class MirrorReaders(SparkReaders):
    """`SparkReaders` of a mirror."""

    def read(self, job: LandingJob, plan: Plan, done: RangeSet, most: int | None) -> Sequence[SharePiece]:
        """Read the plan except `done`, and let executors work on the files of the following merge."""
        pieces = super().read(job, plan, done, most)
        assert isinstance(job.shared, RejectingSink), "the landing has a reject table"
        assert isinstance(job.shared.inner, Mirror), "the landing is a mirror's"
        job.shared.inner.table.pool = ExecutorMergePool(self.spark.sparkContext, job)
        # Leftovers of tasks without a commit are in this folder, which is deleted after the landing.
        job.shared.write_below(folder_of(job.run_id))
        return pieces


@dataclass(frozen=True)
class ExecutorMergePool:
    """Merge works on the executors of a Spark session, see `cdc.merge.pool.MergePool`."""

    context: SparkContext
    job: LandingJob

    def do(self, *works: MergeWork) -> Sequence[list[Any]]:
        """Do the works in tasks of a single Spark job, or small works on the driver; return each work's results.

        The results of a work are in the order of its items. Raises SparkMergeFailed, Stopped, and the error of a work.
        """
        if sum(work.size for work in works) < LEAST_BYTES:
            return MergeThreads().do(*works)
        context = self.context
        context.environment = executors.ENVIRONMENT | context.environment
        # The items of all works, mixed by their relative place in a work: consecutive items become a task, so that each
        # task gets a share of each work, and large items of one work are in different tasks.
        order = sorted(
            ((index + 0.5) / len(work.items), number, index)
            for number, work in enumerate(works)
            for index in range(len(work.items))
        )
        items = [(number, works[number].items[index]) for _, number, index in order]
        tasks = min(len(items), _TASKS_FOR_EACH_CORE * context.defaultParallelism)
        try:
            # Spark broadcasts the works to all tasks if they are large.
            answers = context.parallelize(items, tasks).map(_MergeTask([work.do for work in works])).collect()
        except Exception as e:  # errors of Spark and Py4J have no common base; each is raised again by name
            if self.job.stop.is_set():
                raise Stopped from e
            raise SparkMergeFailed(self.job.table, cause_of(e)) from e
        results = [[None] * len(work.items) for work in works]
        for (_, number, index), answer in zip(order, answers, strict=True):
            if isinstance(answer, ChildFailure):
                raise answer.error
            results[number][index] = answer
        return results


@dataclass(frozen=True)
class _MergeTask:
    works: Sequence[Callable[[Any], Any]]

    def __call__(self, numbered_item: tuple[int, Any]) -> Any:
        """Do a work, by its number, for an item; return the result, or a ChildFailure with our own error."""
        number, item = numbered_item
        return executors.answer_of(lambda: self.works[number](item))
