"""Spark's executors for a mirror: writers of change events, and workers on data files in the merge."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lakestream.cdc.merge.hands import MergeThreads, MergeWork
from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.core.landing.job import LandingJob, Stopped
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.parallel import folder_of
from airflow_lakestream.core.sharing.pieces import SharePiece
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.runtime.processes import ChildFailure
from airflow_lakestream.spark.causes import cause_of
from airflow_lakestream.spark.crew import executors
from airflow_lakestream.spark.crew.crew import SparkReaders
from airflow_lakestream.tables.sink import WrappedSharedSink

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger(__name__)

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
        assert isinstance(job.shared, WrappedSharedSink), "it has a table of rejected records"
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
