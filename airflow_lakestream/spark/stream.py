"""A streaming query that lands: Spark says when a batch is due and where it ends, the ledger says what is landed.

What a batch covers is everything that the ledger lacks below the batch's end: so one that is repeated lands what is
missing, or nothing, and a hole below its start is landed first. Spark's own start of the batch is not asked.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING

from airflow_lakestream.core.routing import is_pattern
from airflow_lakestream.fan_out import RunReport, topics_of
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.checkpoint import Checkpoint, read_checkpoint
from airflow_lakestream.spark.inputs import fingerprint, inputs_of
from airflow_lakestream.spark.lease import Lease
from airflow_lakestream.spark.micro_batch import WHERE, MicroBatches
from airflow_lakestream.spark.progress import BatchProgress, ProgressLog
from airflow_lakestream.spark.requirements import check_executors, modules_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

# How often the query is looked at, and how often the folder beside the checkpoint.
_LOOK = 0.1
_ASK = 1.0
_SIGN_OF_LIFE = 5.0


class _Ended(Exception):
    """Ends the query before a batch that is not to be landed any more."""


class Stream:
    """One query, under a lease."""

    def __init__(self, config: AppConfig, spark: SparkSession, lease: Lease) -> None:
        assert config.checkpoint_location is not None, "a query has one"
        self._config = config
        self._spark = spark
        self._lease = lease
        self._location = config.checkpoint_location
        self._batches = MicroBatches(config, spark)
        self._progress = ProgressLog(self._location, config.catalog_properties)
        # Reports of the query's own thread and signs of life of the one that watches it.
        self._telling = threading.Lock()
        self._ending = threading.Event()
        self._error: Exception | None = None
        self._done = 0
        self._seen: tuple[tuple[int, int], ...] = ()

    def run(self) -> None:
        """Land until the query ends: nothing more is there, enough batches are done, or somebody asked it to.

        Raises what a landing raises, and LeaseLost; nothing uncommitted stays behind.
        """
        checkpoint = self._look()
        if checkpoint is not None and checkpoint.committed:
            # What the table lacks of what this query has done already: it was rolled back, or landed without it.
            last = checkpoint.committed[-1]
            ends = checkpoint.ends(last)
            report = self._batches.land(f"{checkpoint.query_id}/before/{uuid.uuid4().hex}", ends)
            if not report.changed_nothing:
                log.info("Landed first what %s lacked below batch %s: %s", report.table, last + 1, report.counts)
        query = self._start(checkpoint)
        try:
            self._watch(query)
        finally:
            self._batches.stop.set()
            query.stop()
        if self._error is not None:
            raise self._error

    def _look(self) -> Checkpoint | None:
        checkpoint = read_checkpoint(self._location, self._config.catalog_properties)
        if checkpoint is not None and not is_pattern(self._batches.extract.topic):
            checkpoint.check_topics([self._batches.extract.topic])
        return checkpoint

    def _start(self, checkpoint: Checkpoint | None) -> StreamingQuery:
        config, topic = self._config, self._batches.extract.topic
        options = {
            **self._batches.options,
            # What is lost, the landing says: it knows what was landed before, and what is to become of it.
            "failOnDataLoss": "false",
            "subscribePattern" if is_pattern(topic) else "subscribe": topic,
        }
        if checkpoint is None or not checkpoint.planned:
            options["startingOffsets"] = self._batches.starting_offsets()
        if config.most_offsets is not None:
            options["maxOffsetsPerTrigger"] = str(config.most_offsets)
        writer = (
            self._spark.readStream.format("kafka")
            .options(**options)
            .load()
            .writeStream.foreachBatch(self._land)
            .option("checkpointLocation", self._location)
            .queryName(f"{topic} to {config.landing['table']}")
        )
        pause = config.seconds_between_batches
        if pause is None:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{int(pause * 1000)} milliseconds").start()

    def _land(self, frame: DataFrame, batch_id: int) -> None:
        """Land one batch. The frame is not read: its start is Spark's, and only the ledger knows what is lacking."""
        if self._ending.is_set():
            raise _Ended
        try:
            self._lease.check()
            started = time.monotonic()
            checkpoint = read_checkpoint(self._location, self._config.catalog_properties)
            assert checkpoint is not None, "Spark has written it before it begins a batch"
            report = self._batches.land(f"{checkpoint.query_id}/{batch_id}", checkpoint.ends(batch_id))
            self._tell(batch_id, report, time.monotonic() - started)
        except Exception as e:
            # Through the JVM only its text would come back.
            self._error = e
            raise
        self._done += 1
        if self._done == self._config.most_batches:
            self._ending.set()

    def _tell(self, batch_id: int, report: RunReport, duration: float) -> None:
        ranges = [r for one in report.reports.values() for r in one.entry.landed]
        counts = report.counts
        known = self._progress_of(batch_id, report, duration)
        with self._telling:
            self._progress.report(known)
        log.info("Batch %s: %s in %.1f s, %s ranges, %s behind.", batch_id, counts, duration, len(ranges), known.lag)

    def _progress_of(self, batch_id: int, report: RunReport, duration: float) -> BatchProgress:
        counts = report.counts
        rate = counts.read / max(duration, 1e-3)
        pause = self._config.seconds_between_batches
        return BatchProgress(
            batch_id=batch_id,
            rows_in=counts.read,
            rows_out=counts.written,
            rejected=counts.rejected,
            input_rate=rate if pause is None else counts.read / max(duration, pause, 1e-3),
            processing_rate=rate,
            duration=duration,
            ranges=tuple(
                (r.topic, r.partition, r.from_offset, r.until_offset)
                for one in report.reports.values()
                for r in one.entry.landed
            ),
            lag=report.remaining_lag,
            snapshot_ids=tuple(str(id_) for one in report.reports.values() for id_ in one.snapshot_ids),
        )

    def _watch(self, query: StreamingQuery) -> None:
        """Wait for the query's end; end it between two batches when that is asked for. Raises what it failed with."""
        from pyspark.errors import StreamingQueryException

        asked = told = 0.0
        try:
            while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]  # it takes parts of seconds, too
                now = time.monotonic()
                idle = not query.status["isTriggerActive"]
                if now - asked >= _ASK:
                    asked = now
                    self._lease.check()
                    if self._lease.stop_requested():
                        self._ending.set()
                if self._ending.is_set() and idle:
                    return
                if now - told >= _SIGN_OF_LIFE:
                    told = now
                    self._show_life(idle)
        except StreamingQueryException:
            if self._error is None and not self._ending.is_set():
                raise

    def _show_life(self, idle: bool) -> None:
        """Say that the query moves: it waits for records, or has done tasks of its batch since the last look."""
        steps, known = self._steps(), self._seen
        self._seen = steps
        if idle or steps != known:
            done = sum(count for _, count in steps)
            with self._telling:
                self._progress.alive() if idle else self._progress.alive(f"in a batch, {done} tasks of it are done")

    def _steps(self) -> tuple[tuple[int, int], ...]:
        tracker = self._spark.sparkContext.statusTracker()
        stages = ((stage, tracker.getStageInfo(stage)) for stage in tracker.getActiveStageIds())
        return tuple((stage, info.numCompletedTasks) for stage, info in stages if info is not None)


def stream(config: AppConfig, spark: SparkSession) -> None:
    """Take the checkpoint's lease, and run the query.

    Raises LeaseHeld, OtherInputs, ForeignCheckpoint, and what `Stream.run` raises.
    """
    assert config.checkpoint_location is not None, "a query has one"
    context = spark.sparkContext
    lease = Lease.take(
        config.checkpoint_location,
        fingerprint(config),
        config.owner or f"{config.app} of nobody's",
        inputs=inputs_of(config),
        application_id=context.applicationId,
        ui_url=context.uiWebUrl or "",
        properties=config.catalog_properties,
    )
    with lease:
        Stream(config, spark, lease).run()


def kafka_to_iceberg(config: AppConfig, spark: SparkSession) -> None:
    """Land what the configuration says: by a query, or an interval or ranges at once."""
    # Before the lease is taken: what can never work leaves no trace.
    topics_of(config.extract, config.kafka, WHERE)
    check_executors(spark, modules_for(config.extract))
    if config.is_query:
        stream(config, spark)
        return
    report = MicroBatches(config, spark).land(config.run_id or uuid.uuid4().hex)
    log.info("Landed %s of %s in %s.", report.counts, report.topic, report.table)
