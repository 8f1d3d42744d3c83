"""A landing by Spark: the offsets lacking in the ledger up to a batch's end, or an interval or ranges at once.

Both use `run.topics.land_run`, with the executors as remote readers.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from pyiceberg.catalog import load_catalog

from airflow_lakestream.cdc.merge.values import ValueMissing
from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.config.frames import FrameConfig
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.core.landing.job import LandingJob, entry_of
from airflow_lakestream.core.landing.modes import RunMode
from airflow_lakestream.core.landing.plan import Plan, TopicState, first_hole
from airflow_lakestream.core.ledger import LandingEngine, TopicEntry, union
from airflow_lakestream.core.ports import RecordChunk, RecordReader
from airflow_lakestream.core.ranges import PartitionKey, RangeSet
from airflow_lakestream.core.routing import is_pattern
from airflow_lakestream.driver.progress import ProgressLog
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.kafka.source import KafkaSource
from airflow_lakestream.lakes import LakeCapability
from airflow_lakestream.run.topics import RunReport, job_of, land_run, topics_of
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.checkpoint import QueryCheckpoint
from airflow_lakestream.spark.frames.function import FrameFunction, load_function
from airflow_lakestream.spark.frames.readers import FrameReaders
from airflow_lakestream.spark.kafka_settings import for_executors, kafka_options
from airflow_lakestream.spark.readers import MirrorReaders, SparkReaders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from airflow_lakestream.run.job import Lake

log = logging.getLogger(__name__)


# Seconds between two looks at the driver.
INTERVAL_S = 5.0


class ProgressReporter:
    """A thread that looks at the driver regularly, and reports progress as a sign of life.

    Progress is: a Spark task ended, a stage began, or the driver itself read a batch of records. A hanging batch makes
    no progress, so that supervision can distinguish it from a long batch.

    :param is_idle: returns whether the query waits for records, which is a sign of life, too.
    :param interval: seconds between two looks.
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
        self._work = "starting"
        self._chunks = 0
        self._last_progress: tuple[object, ...] = ()

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
        self._work = work
        self._progress.alive(f"{work} has begun")

    def count(self, reader: RecordReader) -> RecordReader:
        """Return a reader whose batches count as progress, for reads by the driver itself, without Spark tasks."""
        return _CountedReader(reader, self)

    def count_chunk(self) -> None:
        """Count a batch of records that the driver has read."""
        self._chunks += 1

    def look(self) -> None:
        """Report a sign of life if the driver has made progress since the last look, or waits for records."""
        if self._is_idle():
            self._progress.alive()
            return
        infos = ((stage, self._tracker.getStageInfo(stage)) for stage in self._tracker.getActiveStageIds())
        stages = [(stage, info) for stage, info in infos if info]
        progress = (self._chunks, *((stage, info.numCompletedTasks) for stage, info in stages))
        if progress == self._last_progress:
            return
        self._last_progress = progress
        activities = [
            f"{info.numCompletedTasks} of {info.numTasks} tasks of stage {stage} are done" for stage, info in stages
        ]
        if self._chunks:
            activities.append(f"the driver has read {self._chunks} chunks")
        self._progress.alive(f"{self._work}: {', '.join(activities) or 'between two stages'}")

    def _report_regularly(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                self.look()
            except Exception as e:  # noqa: BLE001  # a store away for a moment; the landing reports Spark's errors
                log.warning("No sign of life could be given: %s: %s", type(e).__name__, e)


class _CountedReader:
    def __init__(self, reader: RecordReader, reporter: ProgressReporter) -> None:
        self._reader = reader
        self._reporter = reporter

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        with closing(self._reader.read(plan, cancelled)) as chunks:
            for chunk in chunks:
                self._reporter.count_chunk()
                yield chunk


# The place of the Kafka settings, for errors.
WHERE = "the app's kafka settings"


@dataclass
class MicroBatches:
    """Landings of the batches of a query, or of an interval or ranges at once.

    :param stop: ends a landing between two steps, without uncommitted rows.
    :param reporter: counts the batches of records that the driver itself reads.
    """

    config: AppConfig
    spark: SparkSession
    stop: threading.Event = field(default_factory=threading.Event)
    reporter: ProgressReporter | None = None

    @cached_property
    def extract(self) -> ExtractConfig:
        """Configuration of the landing."""
        return self.config.extract

    @cached_property
    def catalog(self) -> Lake:
        """The lake of the tables: a catalog, or for Delta a store."""
        if LakeCapability.CATALOG in self.extract.lake.can:
            return load_catalog(self.config.catalog_name, **self.config.catalog_properties)
        # Imported here, since not every installation has it.
        from airflow_lakestream.delta.storage import DeltaStorage

        return DeltaStorage(self.config.storage)

    @cached_property
    def options(self) -> Mapping[str, str]:
        """The options of Spark's Kafka client, by which Spark determines when a batch begins, and where it ends."""
        return kafka_options(self.config.kafka)

    @cached_property
    def readers(self) -> SparkReaders:
        """The remote readers for a mirror, for a function of DataFrames, or for neither."""
        common = self.spark, self.extract, for_executors(self.config.kafka), WHERE
        if isinstance(self.extract, MirrorConfig):
            return MirrorReaders(*common)
        if (function := function_of(self.extract)) is not None:
            return FrameReaders(*common, function=function)
        return SparkReaders(*common)

    @cached_property
    def source_options(self) -> Mapping[str, str]:
        """The options of Spark's source for a query.

        The source ignores data loss: the landing reports losses, since only the landing knows the landed offsets.
        """
        return {**self.options, "failOnDataLoss": "false"}

    def catch_up(self, checkpoint: QueryCheckpoint | None) -> bool:
        """Land the offsets of finished batches that the table lacks; return whether the checkpoint was changed.

        The table lacks offsets if it was rolled back, or if the query ran for another table. The checkpoint is never
        changed here, so the result is False. Raises the errors of a landing.
        """
        if checkpoint is not None and checkpoint.committed:
            last = checkpoint.committed[-1]
            if self.reporter is not None:
                self.reporter.begin(f"what is lacking below batch {last + 1}")
            report = self.land(f"{checkpoint.query_id}/before/{uuid.uuid4().hex}", checkpoint.ends(last))
            if not report.changed_nothing:
                log.info("Landed first what %s lacked below batch %s: %s", report.table, last + 1, report.counts)
        return False

    def rows(self, records: DataFrame) -> DataFrame:
        """Return the frame for the query: the records, which `land_batch` does not read."""
        return records

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start the query."""
        return writer.start()

    def land_batch(self, checkpoint: QueryCheckpoint, batch_id: int, frame: DataFrame) -> RunReport:
        """Land the offsets below the end of a batch that the ledger lacks. Raises the errors of a landing.

        If a mirror's batch fails for an event that a later event may repair, all events that are in the topic by now
        are landed.

        :param checkpoint: the query's checkpoint, which has the end of the batch.
        :param frame: unused: its records begin where Spark's batch begins, and the ledger may lack earlier offsets.
        """
        run_id = f"{checkpoint.query_id}/{batch_id}"
        try:
            return self.land(run_id, checkpoint.ends(batch_id))
        except (ChecksFailed, MirrorStopped, ValueMissing) as e:
            if not isinstance(self.extract, MirrorConfig):
                raise
            # Spark would repeat exactly this batch at each start.
            log.info("Batch %s is tried with all events that came after it, since one may mend this: %s", batch_id, e)
            return self.land(run_id)

    def land(
        self, run_id: str, ends: Mapping[PartitionKey, int] | None = None, mode: RunMode | None = None
    ) -> RunReport:
        """Land the offsets of a mode, and delete the leftovers of executors. Raises the errors of a landing.

        :param run_id: the same in each try of one batch.
        :param ends: only offsets below these ends are landed, by topic and partition; partitions without an end are
            left out. None: no bounds.
        :param mode: plans the offsets; None for the mode of the configuration.
        """
        bounds = None if ends is None else union(RangeSet.of(*key, 0, end) for key, end in ends.items())
        jobs: list[LandingJob] = []

        def prepare(job: LandingJob) -> LandingJob:
            """Return the job of a topic with Spark's readers, and keep the job for the clean-up."""
            reader = job.reader if self.reporter is None else self.reporter.count(job.reader)
            changed = replace(job, readers=self.readers, engine=LandingEngine.SPARK, within=bounds, reader=reader)
            jobs.append(replace(changed, mode=mode or job.mode))
            return jobs[-1]

        report = land_run(
            self.extract,
            self.config.kafka,
            self.catalog,
            run_id=run_id,
            where=WHERE,
            stop=self.stop,
            prepare=prepare,
        )
        for job in jobs:
            # With a regex each topic has the run id `run_id/topic`: see `land_run`. A skipped topic has no report.
            topic = job.run_id.removeprefix(f"{run_id}/") if is_pattern(self.extract.topic) else self.extract.topic
            topic_report = report.reports.get(topic)
            self.readers.clean_up(job, repeated=topic_report is not None and topic_report.recovered > 0)
        return report

    def starting_offsets(self) -> str:
        """Return the start of a new query: each partition's first offset that the ledger lacks, as JSON for Spark.

        With a topic pattern, a topic that can't be landed is logged, and begins at the log's start: only its batches
        fail. Without a pattern the error is raised.
        """
        offsets: dict[str, dict[str, int]] = {}
        config, kafka = self.extract, self.config.kafka
        topics = topics_of(config, kafka, WHERE)
        for topic in topics:
            state = KafkaSource(kafka, topic, config.consumer_group, config.start, WHERE).look()
            try:
                job, entry = self._job_and_entry(topic, topics, state)
                starts = _starts(job, entry, state)
            except LakestreamError as e:
                if not is_pattern(config.topic):
                    raise
                # The batches of this topic will fail with this error; other topics are landed.
                log.error("%s: %s", topic, e)
                starts = {}
            # Within the watermarks: Spark fails on an offset that the topic does not have.
            offsets[topic] = {
                str(partition): min(max(starts.get(partition, 0), marks.low), marks.end)
                for partition, marks in state.marks.items()
            }
        return json.dumps(offsets)

    def _job_and_entry(self, topic: str, topics: Sequence[str], state: TopicState) -> tuple[LandingJob, TopicEntry]:
        """Return a job of a topic, and the topic's entry in the table's ledger."""
        job = job_of(self.extract, topic, topics, self.config.kafka, self.catalog, "start", WHERE)
        return job, entry_of(job, job.sink.load("start"), state)


def function_of(config: ExtractConfig) -> FrameFunction | None:
    """Load the function of DataFrames of a landing; return None without a function. Raises InvalidArgument."""
    if not isinstance(config, FrameConfig) or config.function is None:
        return None
    return load_function(config.function, config.argument)


def _starts(job: LandingJob, entry: TopicEntry, state: TopicState) -> Mapping[int, int]:
    """Return by partition the first offset that the ledger lacks, or the configured start for an empty ledger."""
    if not entry.origin:
        return job.source.starts(state)
    return {partition: first_hole(entry, state.identity, partition) for partition in state.marks}
