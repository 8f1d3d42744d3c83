"""Spark's executors as remote readers: Spark gives each task a share of the plan to read, decode and write.

Plan, guard and the one commit stay on the driver. A failed or speculative task leaves files without a snapshot, in
the run's own folder, where `clean_up` deletes them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_lakestream.cdc.merge.hands import MergeThreads, MergeWork
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


# Read by the first round if no table is known: reading these offsets again costs little.
FIRST_OFFSETS = 20_000


def fan_out_of(job: LandingJob) -> FanOutSink | None:
    """Return the sink of a job whose records choose the table; None for any other sink."""
    inner = job.sink.inner if isinstance(job.sink, RejectingSink) else job.sink
    return inner if isinstance(inner, FanOutSink) else None


@dataclass
class RoundDecisions:
    """The driver's decisions between two rounds of reads by executors; the base class has nothing to decide."""

    job: LandingJob
    plan: Plan

    def decoders(self) -> RowDecoderFactory:
        """Return the decoders of the executors for the next round."""
        assert isinstance(self.job.decoders, RowDecoderFactory), "that is what build_job makes"
        return self.job.decoders

    def first(self, ranges: RangeSet) -> RangeSet:
        """Return the offset ranges for the first round."""
        return ranges

    def decide(self, brought: Sequence[Any], columns: RowSchema) -> None:
        """Decide the questions that executors met in records. The base class raises AssertionError.

        :param brought: the questions, in the order of the records.
        :param columns: the payload's columns, as executors knew them.
        """
        raise AssertionError(f"nothing is to be decided here, and executors ask for {brought[0]!r}")


@dataclass
class ColumnDecisions(RoundDecisions):
    """Adds a column to the table for each new field, of a type for the values of all executors."""

    # Whether no further column is possible.
    decided: bool = False

    def decoders(self) -> RowDecoderFactory:
        """Return the decoders of the executors for the next round."""
        decoders = super().decoders()
        return replace(decoders, payload=replace(decoders.payload, decided=self.decided))

    def decide(self, brought: Sequence[Any], columns: RowSchema) -> None:
        """Let the next commit add a column for each new field.

        An empty write gives the grown columns to the sink. If no further column is possible, executors count the
        remaining records as bad in the next round.
        """
        decoders, identity = super().decoders(), self.plan.state.identity
        grown = decoders.payload.grown(columns, brought)
        self.decided = grown.equals(columns)
        if not self.decided:
            self.job.sink.write(decoders.without_records(grown, identity.topic)[1], identity)


@dataclass
class RouteDecisions(RoundDecisions):
    """Admits or refuses tables for records, in the order in which records ask for them.

    :param fan_out: the sink of the job.
    :param known: routes of the landing before, which records are likely to ask for again.
    """

    fan_out: FanOutSink
    known: Sequence[str]

    def decoders(self) -> RowDecoderFactory:
        """Return the decoders of the executors for the next round."""
        decoders = super().decoders()
        assert decoders.router is not None, "records choose their tables"
        return replace(decoders, router=replace(decoders.router, refusals=self.fan_out.outline().refusals))

    def first(self, ranges: RangeSet) -> RangeSet:
        """Return all ranges if routes are known, else a few offsets to learn routes from.

        As a side effect, the sink looks up the tables of the known routes.
        """
        routes = self.known or self.fan_out.routes
        self.fan_out.expect(routes, self.plan.state.identity, ranges)
        return ranges if routes else at_most_offsets(ranges, FIRST_OFFSETS)

    def decide(self, brought: Sequence[Any], columns: RowSchema) -> None:
        """Admit or refuse the tables of routes.

        :param brought: the routes, in the order of the records.
        :param columns: unused: a route needs no columns.
        """
        self.fan_out.decide(brought)


# One task per core makes the fewest files and connections. With more offsets than this per task, a failed task loses
# much, and gives no sign of life for long.
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
    _used: set[str] = field(default_factory=set)
    # The routes of the last landing, by the name of its table.
    _routes: dict[str, Sequence[str]] = field(default_factory=dict)

    def can_read(self, job: LandingJob, plan: Plan) -> bool:
        """Return whether executors can read the plan.

        The driver itself reads an empty plan, a landing that is repeated row by row, and the rest of a landing that
        only a part of its tables has. Executors of an earlier try may have left files of such a rest: `clean_up`
        deletes them.
        """
        if not plan.ranges or job.careful:
            return False
        fan_out = fan_out_of(job)
        if fan_out is not None and fan_out.is_alone:
            # An earlier try may have left files.
            self._used.add(folder_of(job.run_id))
            return False
        return True

    def read(self, job: LandingJob, plan: Plan, done: RangeSet, most: int | None) -> Sequence[SharePiece]:
        """Read the plan except `done` by executors; see `core.landing.job.RemoteReaders`."""
        ranges = plan.ranges - done
        if most is not None:
            ranges = at_most_offsets(ranges, most)
        if not ranges:
            return []
        deciding = self._open_decisions(job, plan)

        def read(part: RangeSet) -> Sequence[RoundAnswer]:
            parts = split(part, self._tasks(part.width), LEAST_WIDTH)
            shares = [PlanShare.of(plan, one) for one in parts]
            return self._run(job, self._work(job, plan, deciding.decoders()), shares)

        def decide(brought: Sequence[Any]) -> None:
            deciding.decide(brought, self._work(job, plan, deciding.decoders()).columns())

        pieces = read_in_rounds(ranges, read, decide, deciding.first(ranges))
        if (fan_out := fan_out_of(job)) is not None:
            self._routes[job.table] = fan_out.routes
        return pieces

    def clean_up(self, job: LandingJob, *, repeated: bool) -> None:
        """Delete the leftovers of the tasks of a finished landing; never raises.

        Nothing is done if no task has written files.

        :param repeated: whether an earlier try landed rows, and so may have left files.
        """
        folder = folder_of(job.run_id)
        # If nothing was written, the table may not even exist.
        if folder not in self._used and not repeated:
            return
        self._used.discard(folder)
        job.sink.sweep(folder)

    def _open_decisions(self, job: LandingJob, plan: Plan) -> RoundDecisions:
        if (fan_out := fan_out_of(job)) is not None:
            return RouteDecisions(job, plan, fan_out, self._routes.get(job.table, ()))
        return ColumnDecisions(job, plan) if self.config.table_design.grows else RoundDecisions(job, plan)

    def _work(self, job: LandingJob, plan: Plan, decoders: RowDecoderFactory) -> ExecutorTask:
        identity, target = plan.state.identity, self.target(job)
        assert target is not None, "the caller has checked that executors can write"
        one = self.config.of_topic(identity.topic)
        design = one.design
        if not isinstance(one, MirrorConfig):
            # The outline already has the schema that the landing will give the table: executors have no change to make.
            design = replace(design, evolution=SchemaEvolution.NONE)
        return ExecutorTask(
            run_id=job.run_id,
            consumer_group=job.consumer_group,
            kafka=self.kafka,
            poll_timeout=one.poll_timeout,
            where=self.where,
            target=target,
            design=design,
            table=job.table,
            lake=one.lake,
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

    def _tasks(self, width: int) -> int:
        cores = self.spark.sparkContext.defaultParallelism
        # A task for each core; more rounds of tasks if a task would get more than MOST_WIDTH offsets.
        return cores * max(1, -(-width // (cores * MOST_WIDTH)))

    def _run(self, job: LandingJob, work: ExecutorTask, shares: Sequence[PlanShare]) -> list[RoundAnswer]:
        self._used.add(work.folder)
        context = self.spark.sparkContext
        # The session's environment includes the settings of spark.executorEnv.
        context.environment = executors.ENVIRONMENT | context.environment
        try:
            answers = context.parallelize(shares, len(shares)).map(work).collect()
        except Exception as e:  # noqa: BLE001  # any error of Spark and of its bridge to the JVM
            self._raise(job, union(share.ranges for share in shares), e)
        done = [answer for answer in answers if isinstance(answer, RoundAnswer)]
        for answer in done:
            # Taken over, the files are deleted with all that the landing does not commit.
            if answer.piece is not None:
                self.take(job, answer.piece)
        for failed in answers:
            if isinstance(failed, ChildFailure):
                raise failed.error
        return done

    def _raise(self, job: LandingJob, ranges: RangeSet, error: Exception) -> NoReturn:
        if job.stop.is_set():
            raise Stopped from error
        raise SparkReadFailed(job.table, ranges, cause_of(error)) from error


# The driver does smaller works itself: a job of Spark takes longer.
LEAST_BYTES = 4 * 2**20
# So that a core whose tasks are done can take over tasks of other cores.
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
        assert isinstance(job.shared, RejectingSink), "it has a table of rejected records"
        assert isinstance(job.shared.inner, Mirror), "that is what a mirror is landed by"
        job.shared.inner.table.hands = ExecutorMergePool(self.spark.sparkContext, job)
        # Leftovers of tasks without a commit are in this folder, which is deleted after the landing.
        job.shared.write_below(folder_of(job.run_id))
        return pieces


@dataclass(frozen=True)
class ExecutorMergePool:
    """Merge works on the executors of a Spark session, see `cdc.merge.hands.MergePool`."""

    context: SparkContext
    job: LandingJob

    def do(self, *works: MergeWork) -> Sequence[list[Any]]:
        """Do the works in tasks of a single Spark job; small works on the driver.

        Return each work's results, in the order of the items. Raises SparkMergeFailed, Stopped, and the error of a
        work.
        """
        if sum(work.size for work in works) < LEAST_BYTES:
            return MergeThreads().do(*works)
        context = self.context
        context.environment = executors.ENVIRONMENT | context.environment
        # Each task gets a share of each work. Spark pickles items of all works together, so large items are separated.
        places = sorted(
            ((place + 0.5) / len(work.items), number, place)
            for number, work in enumerate(works)
            for place in range(len(work.items))
        )
        items = [(number, works[number].items[place]) for _, number, place in places]
        parts = min(len(items), _TASKS_FOR_EACH_CORE * context.defaultParallelism)
        try:
            # Spark broadcasts the works to all tasks if they are large.
            answers = context.parallelize(items, parts).map(_MergeTask([work.do for work in works])).collect()
        except Exception as e:  # any error of Spark and of its bridge to the JVM
            if self.job.stop.is_set():
                raise Stopped from e
            raise SparkMergeFailed(self.job.table, cause_of(e)) from e
        results = [[None] * len(work.items) for work in works]
        for (_, number, place), answer in zip(places, answers, strict=True):
            if isinstance(answer, ChildFailure):
                raise answer.error
            results[number][place] = answer
        return results


@dataclass(frozen=True)
class _MergeTask:
    works: Sequence[Callable[[Any], Any]]

    def __call__(self, numbered: tuple[int, Any]) -> Any:
        executors.settle()
        number, item = numbered
        try:
            return self.works[number](item)
        except LakestreamError as e:
            # If raised here, Spark would retry the task and bring back only the error's text.
            return ChildFailure(e)
