"""Spark's executors as the crew of a landing: Spark reads exactly the plan, our code on the executors does the rest.

The landing stays what it is in one process: its plan, its guard, its one commit on the driver. A failed or speculative
task leaves files behind that no snapshot has; they lie in the run's own folder, and `clean_up` deletes them.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_lakestream.core.job import Job, Stopped
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.parallel import LEAST_WIDTH, folder_of
from airflow_lakestream.core.pieces import Piece, at_most_offsets
from airflow_lakestream.core.plan import Plan
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import OffsetsGone
from airflow_lakestream.core.processes import Failed
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.decode.rows import RowDecoders
from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.extract_config import ExtractConfig
from airflow_lakestream.iceberg.files import data_folder
from airflow_lakestream.iceberg.orphans import list_files
from airflow_lakestream.spark import executors
from airflow_lakestream.spark.executors import Told, Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

# Ranges of one partition that one query reads side by side; more of them make a plan that Spark takes long over.
LAYERS = 16
# For each core, so that partitions of unequal width even out, and yet no file for each of many partitions.
TASKS_PER_CORE = 4
# A batch of Arrow is bounded by records only: how large they are, is known when some were read.
ARROW_BYTES = 16 * 2**20
ARROW_RECORDS = 50_000
_FIRST_RECORDS = 10_000
_ARROW_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"


class SparkReadFailed(LakestreamError, Transient):
    """Spark could not read the plan, for a reason that is not one of ours."""

    def __init__(self, topic: str, ranges: RangeSet, cause: str) -> None:
        super().__init__(
            f"Spark could not read {ranges} of {topic}: {cause}. Nothing of it was landed. The log above has Spark's "
            "own account; what is missing is read again by the next try."
        )


@dataclass
class SparkCrew:
    """`core.job.Crew` on the executors of a Spark session.

    :param options: of Spark's Kafka source; see `kafka_options`.
    """

    spark: SparkSession
    config: ExtractConfig
    options: Mapping[str, str]
    _records: int = _FIRST_RECORDS
    # The folders that tasks may have written into.
    _used: set[str] = field(default_factory=set)

    def takes(self, job: Job, plan: Plan) -> bool:
        """Tell whether executors read: not for tables that records choose, or that grow with each record."""
        return bool(plan.ranges) and self.config.fan_out is None and not self.config.design.grows

    def read(self, job: Job, plan: Plan, done: RangeSet, most: int | None) -> Sequence[Piece]:
        """Read the plan but for what is done; see `core.job.Crew`."""
        ranges = plan.ranges - done
        if most is not None:
            ranges = at_most_offsets(ranges, most)
        work = self._work(job, plan)
        counts: dict[int, Counts] = {}
        for part in _readable(ranges):
            for told in self._run(job, work, part):
                _check_spans(told, part)
                if told.files is not None:
                    job.sink.take_over(told.files)
                for partition, more in told.counts.items():
                    counts[partition] = counts.get(partition, Counts()) + more
        return [Piece(plan.state.identity, ranges, counts, plan.epochs, {})] if ranges else []

    def clean_up(self, job: Job, *, repeated: bool) -> None:
        """Delete what the tasks of a landing that is done left behind; never raises.

        :param repeated: an earlier try of it had landed something, and may have left more.
        """
        folder = folder_of(job.run_id)
        # Where nothing was written, there may not even be a table.
        if folder not in self._used and not repeated:
            return
        self._used.discard(folder)
        if self.config.is_delta:
            job.sink.sweep(folder)
            return
        if (target := job.sink.outline()) is None:
            return
        try:
            left = next(list_files(target.io, data_folder(target.metadata, folder)), None)
        except Exception as e:  # noqa: BLE001  # the landing is done; files left over harm nobody
            log.info("%s of %s can't be listed, and may hold files of no snapshot: %r", folder, job.table, e)
            return
        if left is not None:
            job.sink.sweep(folder)

    def _work(self, job: Job, plan: Plan) -> Work:
        identity, decoders, target = plan.state.identity, job.decoders, job.sink.outline()
        assert isinstance(decoders, RowDecoders), "that is what build_job makes"
        assert target is not None, "it was asked whether executors can write"
        # The table that they are told of has the schema that the landing will give it: nothing is left to change.
        one = replace(self.config.of_topic(identity.topic), schema_evolution=SchemaEvolution.NONE)
        return Work(
            run_id=job.run_id,
            identity=identity,
            consumer_group=job.consumer_group,
            target=target,
            design=one.design,
            decoders=executors.for_executors(decoders),
            folder=folder_of(job.run_id),
            passes_over=job.replaces,
        )

    def _run(self, job: Job, work: Work, ranges: RangeSet) -> list[Told]:
        def task(batches: Iterable[Any]) -> Iterator[Any]:
            return work(iter(batches))

        self._used.add(work.folder)
        self.spark.conf.set(_ARROW_SETTING, str(self._records))
        frame = self._frame(work, ranges)
        try:
            rows = frame.mapInArrow(task, "told binary").collect()
        except Exception as e:  # noqa: BLE001  # whatever Spark and its bridge to the JVM raise
            self._raise(job, ranges, e)
        answers = [pickle.loads(row.told) for row in rows]  # noqa: S301  # written by our own tasks
        told = [answer for answer in answers if isinstance(answer, Told)]
        failed = [answer for answer in answers if isinstance(answer, Failed)]
        if failed:
            for one in told:
                if one.files is not None:
                    # Taken over, they are deleted with all that the landing does not commit.
                    job.sink.take_over(one.files)
            raise failed[0].error
        self._learn(told)
        return told

    def _learn(self, told: Sequence[Told]) -> None:
        count = sum(counts.read for one in told for counts in one.counts.values())
        if count:
            each = max(1, sum(one.size for one in told) // count)
            self._records = max(1, min(ARROW_RECORDS, ARROW_BYTES // each))

    def _frame(self, work: Work, ranges: RangeSet) -> DataFrame:
        """Return the records of the ranges; each layer is one range of each partition."""
        cores = self.spark.sparkContext.defaultParallelism
        tasks = max(1, min(TASKS_PER_CORE * cores, ranges.width // LEAST_WIDTH))
        layers = list(_layers(ranges))
        frames = [self._layer(work, layer, tasks) for layer in layers]
        frame = reduce(lambda a, b: a.unionAll(b), frames)
        partitions = sum(max(len(layer), min(tasks, cores)) for layer in layers)
        return frame.coalesce(tasks) if partitions > tasks else frame

    def _layer(self, work: Work, layer: Mapping[int, tuple[int, int]], tasks: int) -> DataFrame:
        topic = work.identity.topic
        options = {
            **self.options,
            "assign": json.dumps({topic: sorted(layer)}),
            "startingOffsets": json.dumps({topic: {str(p): start for p, (start, _) in layer.items()}}),
            "endingOffsets": json.dumps({topic: {str(p): end for p, (_, end) in layer.items()}}),
            "failOnDataLoss": "true",
            "includeHeaders": str(work.decoders.needs_headers).lower(),
        }
        cores = self.spark.sparkContext.defaultParallelism
        if len(layer) < min(tasks, cores):
            options["minPartitions"] = str(min(tasks, cores))
        columns = ["partition", "offset", f"unix_millis(timestamp) as {executors.MILLIS}", "value"]
        columns += ["key"] if work.decoders.needs_keys else []
        columns += ["headers"] if work.decoders.needs_headers else []
        return self.spark.read.format("kafka").options(**options).load().selectExpr(*columns)

    def _raise(self, job: Job, ranges: RangeSet, error: Exception) -> NoReturn:
        if job.stop.is_set():
            raise Stopped from error
        marks = job.source.look().marks
        for r in ranges:
            if r.partition in marks and marks[r.partition].low > r.from_offset:
                raise OffsetsGone(r.topic, r.partition, r.from_offset) from error
        raise SparkReadFailed(job.table, ranges, _cause(error)) from error


def _layers(ranges: RangeSet) -> Iterator[dict[int, tuple[int, int]]]:
    """Yield the first range of each partition, then the second of those that have one, and so on."""
    left = {p: list(ranges.intervals(topic, p)) for topic, p in ranges.partitions}
    while left:
        yield {p: intervals.pop(0) for p, intervals in left.items()}
        left = {p: intervals for p, intervals in left.items() if intervals}


def _readable(ranges: RangeSet) -> Iterator[RangeSet]:
    """Yield the ranges in parts of so many layers that one query of Spark can read."""
    layers = list(_layers(ranges))
    topic = next((r.topic for r in ranges), "")
    for at in range(0, len(layers), LAYERS):
        part = layers[at : at + LAYERS]
        yield RangeSet(OffsetRange(topic, p, *interval) for layer in part for p, interval in layer.items())


def _check_spans(told: Told, ranges: RangeSet) -> None:
    for partition, (first, last) in told.spans.items():
        inside = [r for r in ranges if r.partition == partition]
        if not inside or first < inside[0].from_offset or last >= inside[-1].until_offset:
            raise AssertionError(f"Spark read [{first},{last + 1}) of partition {partition}, beyond {ranges}")


def _cause(error: Exception) -> str:
    """Return the line that says most of an error that has come through the JVM."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if line.startswith("Caused by: ")] or [
        line for line in lines if "Error: " in line or "Exception: " in line
    ]
    return (told[-1] if told else lines[0] if lines else type(error).__name__).removeprefix("Caused by: ")[:500]
