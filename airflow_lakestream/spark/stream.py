"""A streaming query that lands: Spark decides the time and end of a batch, the ledger the landed offsets.

A batch covers everything that the ledger lacks below the batch's end. So a repeated batch lands only missing offsets,
and a hole below its start is landed first. Spark's own start of the batch is ignored.

A function of the stream is an exception: Spark has its state, and a batch is as Spark plans it; see `stateful`.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import airflow_lakestream
from airflow_lakestream.config.frames import FrameConfig
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.policies import is_given
from airflow_lakestream.core.routing import is_pattern
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.driver.progress import BatchProgress, ProgressLog
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.run.summary import batch_progress, last_line
from airflow_lakestream.run.topics import RunReport, topics_of
from airflow_lakestream.runtime.interpreter import calm_collector
from airflow_lakestream.spark import lake_settings
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.causes import query_failed
from airflow_lakestream.spark.checkpoint import QueryCheckpoint, read_checkpoint
from airflow_lakestream.spark.configuration import AppSettings
from airflow_lakestream.spark.frames.stateful import StatefulBatches
from airflow_lakestream.spark.lease import Lease, take_lease
from airflow_lakestream.spark.micro_batch import WHERE, MicroBatches, ProgressReporter, function_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AppSupervision:
    """Progress log, signs of life and lease of a working app; without supervision all fields are None."""

    progress: ProgressLog | None = None
    reporter: ProgressReporter | None = None
    lease: Lease | None = None

    def report(self, done: BatchProgress) -> None:
        """Report a finished piece of work."""
        if self.progress is not None:
            self.progress.report(done)

    def begin(self, work: str) -> None:
        """Report the start of a step."""
        if self.reporter is not None:
            self.reporter.begin(work)

    def is_over(self) -> bool:
        """Return whether the app was asked to end after the current step; False without a lease. Raises LeaseLost."""
        if self.lease is None:
            return False
        self.lease.check()
        return self.lease.stop_requested()


@contextmanager
def supervised(config: AppSettings, spark: SparkSession, work: str) -> Iterator[AppSupervision]:
    """Hold a lease and give signs of life while an app works; without a `lease_location`, do neither.

    :param work: the work, in words.

    Raises LeaseHeld, OtherInputs.
    """
    if config.lease_location is None:
        yield AppSupervision()
        return
    with take_lease(config, spark, config.lease_location) as lease:
        progress = ProgressLog(config.lease_location, config.store_properties)
        with ProgressReporter(spark, progress, is_idle=lambda: False) as reporter:
            reporter.begin(work)
            yield AppSupervision(progress, reporter, lease)


def land_at_once(config: AppConfig, spark: SparkSession) -> None:
    """Land an interval or ranges, in a single snapshot.

    A lease is held if the configuration has a `lease_location`. Raises the errors of a landing, LeaseHeld, OtherInputs.
    """
    with supervised(config, spark, f"landing {config.landing['mode']}") as supervision:
        started = time.monotonic()
        report = MicroBatches(config, spark, reporter=supervision.reporter).land(config.run_id or uuid.uuid4().hex)
        supervision.report(batch_progress(0, report, time.monotonic() - started))
    log.info("%s", last_line(report, config.extract))


PACKAGE = "airflow_lakestream"
# Modules, each with the name of its distribution.
_MODULES = {
    PACKAGE: "airflow-lakestream",
    "pyarrow": "pyarrow",
    "pyiceberg": "pyiceberg",
    "confluent_kafka": "confluent-kafka",
    "numpy": "numpy",
    "duckdb": "duckdb",
}

# By host, the versions of modules by name; None for a missing module.
HostVersions = Mapping[str, Mapping[str, str | None]]


class ExecutorsLack(LakestreamError, Terminal):
    """Error of packages that are missing on executors, or have the wrong version."""

    def __init__(self, host: str, problem: str) -> None:
        super().__init__(
            f"executors on {host}: {problem}. Install it there (PYSPARK_PYTHON names the Python they run), or send the "
            "package by --py-files: docs/spark.md."
        )


def modules_for(config: ExtractConfig) -> dict[str, str]:
    """Return the modules imported by executors for a landing, each with the name of the distribution."""
    modules = _MODULES | dict(config.lake.modules)
    for name in (config.format, config.key_format):
        if is_given(name):
            modules |= FORMATS[str(name)].modules
    return modules


def check_executors(spark: SparkSession, modules: Mapping[str, str]) -> None:
    """Raise ExecutorsLack for the first host without a module, or with another version of our package.

    With a local master the driver's own modules are checked, else one task for each core of the cluster looks.
    """
    context = spark.sparkContext
    if str(context.master).startswith("local"):
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        _check_versions({"this machine": dict.fromkeys(missing)}, modules)
        return
    cores = context.defaultParallelism
    hosts = context.parallelize(range(cores), cores).map(_versions_function(list(modules))).collect()
    _check_versions(dict(hosts), modules)


def _versions_function(names: Sequence[str]) -> Callable[[Any], tuple[str, dict[str, str | None]]]:
    """Return a function for executors that returns the host's name and the versions of modules."""

    # A nested function is sent as code: a function of our package could not be loaded if the package is missing.
    def look(_: Any) -> tuple[str, dict[str, str | None]]:
        import importlib
        import socket

        versions: dict[str, str | None] = {}
        for name in names:
            try:
                versions[name] = str(getattr(importlib.import_module(name), "__version__", ""))
            except ImportError:
                versions[name] = None
        return socket.gethostname(), versions

    return look


def _check_versions(hosts: HostVersions, modules: Mapping[str, str]) -> None:
    """Raise ExecutorsLack for the first host without a module, or with another version of our package."""
    own_version = airflow_lakestream.__version__
    for host, versions in hosts.items():
        if missing := [modules[name] for name, version in versions.items() if version is None]:
            raise ExecutorsLack(host, f"{', '.join(missing)} is missing")
        version_there = versions.get(PACKAGE, own_version)
        if version_there != own_version:
            raise ExecutorsLack(host, f"airflow-lakestream is {version_there} there, and {own_version} on the driver")


# Seconds between two looks at a query that is to end, and at other times. A look takes a millisecond of Python's time,
# and a millisecond of the JVM's.
_ENDING_LOOK_S = 0.1
_LOOK_S = 1.0


class _QueryEnd(Exception):
    """Exception for ending the query before the next batch is landed."""


class LandingQuery:
    """A streaming query of a driver that holds the checkpoint's lease."""

    def __init__(self, config: AppConfig, spark: SparkSession, lease: Lease) -> None:
        assert config.checkpoint_location is not None, "a query has a checkpoint"
        self._config = config
        self._spark = spark
        self._lease = lease
        self._location = config.checkpoint_location
        self._progress = ProgressLog(self._location, config.store_properties)
        self._query: StreamingQuery | None = None
        self._reporter = ProgressReporter(spark, self._progress, self._is_idle)
        extract = config.extract
        is_stateful = isinstance(extract, FrameConfig) and extract.is_stateful
        self._batches = (StatefulBatches if is_stateful else MicroBatches)(config, spark, reporter=self._reporter)
        # Set once the query is to end before the next batch.
        self._ending = threading.Event()
        # The error of a batch, for `run` to raise.
        self._error: Exception | None = None
        self._landed_batches = 0

    def run(self) -> None:
        """Land until the query ends: no offsets are left, `max_batches` are done, or an end was requested.

        Raises the errors of a landing, and LeaseLost; nothing uncommitted is left.
        """
        with self._reporter:
            checkpoint = self._read_own_checkpoint()
            if self._batches.catch_up(checkpoint):
                checkpoint = self._read_own_checkpoint()
            self._query = query = self._start(checkpoint)
            try:
                self._watch(query)
            finally:
                self._batches.stop.set()
                query.stop()
            if self._error is not None:
                raise self._error

    def _read_own_checkpoint(self) -> QueryCheckpoint | None:
        """Return the checked checkpoint; None before the first start. Raises CheckpointDamaged, ForeignCheckpoint."""
        checkpoint = read_checkpoint(self._location, self._config.store_properties)
        if checkpoint is not None:
            checkpoint.check_complete()
        if checkpoint is not None and not is_pattern(self._batches.extract.topic):
            checkpoint.check_topics([self._batches.extract.topic])
        return checkpoint

    def _start(self, checkpoint: QueryCheckpoint | None) -> StreamingQuery:
        """Start the query; without a planned batch, from the first offsets that the ledger lacks."""
        config, topic = self._config, self._batches.extract.topic
        options = {
            **self._batches.source_options,
            "subscribePattern" if is_pattern(topic) else "subscribe": topic,
        }
        if checkpoint is None or not checkpoint.planned:
            options["startingOffsets"] = self._batches.starting_offsets()
        if config.most_offsets is not None:
            options["maxOffsetsPerTrigger"] = str(config.most_offsets)
        records = self._spark.readStream.format("kafka").options(**options).load()
        writer = (
            self._batches.rows(records)
            .writeStream.foreachBatch(self._land)
            .option("checkpointLocation", self._location)
            .queryName(f"{topic} to {config.landing['table']}")
        )
        pause = config.seconds_between_batches
        if pause is None:
            return self._batches.start(writer.trigger(availableNow=True))
        return self._batches.start(writer.trigger(processingTime=f"{int(pause * 1000)} milliseconds"))

    def _land(self, frame: DataFrame, batch_id: int) -> None:
        """Land a batch; called by Spark for each batch. Raises _QueryEnd if the query is to end."""
        if self._ending.is_set():
            raise _QueryEnd
        try:
            self._lease.check()
            self._reporter.begin(f"batch {batch_id}")
            started = time.monotonic()
            checkpoint = read_checkpoint(self._location, self._config.store_properties)
            assert checkpoint is not None, "Spark writes a checkpoint before a batch"
            with calm_collector():
                report = self._batches.land_batch(checkpoint, batch_id, frame)
            self._report(batch_id, report, time.monotonic() - started)
        except Exception as e:
            # Kept here, since only the error's text would return through the JVM.
            self._error = e
            raise
        self._landed_batches += 1
        if self._landed_batches == self._config.most_batches:
            self._ending.set()

    def _report(self, batch_id: int, report: RunReport, duration: float) -> None:
        """Write a batch to the progress log and to the log; `duration` is in seconds."""
        range_count = sum(len(list(topic_report.entry.landed)) for topic_report in report.reports.values())
        progress = batch_progress(batch_id, report, duration, self._config.seconds_between_batches)
        self._progress.report_once(progress)
        text = "Batch %s: %s in %.1f s, %s ranges, %s behind."
        log.info(text, batch_id, report.counts, duration, range_count, progress.lag)

    def _watch(self, query: StreamingQuery) -> None:
        """Wait for the query's end, or return if the query is to end and waits between two batches.

        Raises LeaseLost, and the error of a query that Spark has ended by itself.
        """
        from pyspark.errors import StreamingQueryException

        last_look = 0.0
        try:
            while not query.awaitTermination(self._seconds_to_wait):  # type: ignore[arg-type]  # takes parts of seconds, too
                now = time.monotonic()
                if now - last_look >= _LOOK_S:
                    last_look = now
                    self._lease.check()
                    if self._lease.stop_requested():
                        self._ending.set()
                if self._ending.is_set() and self._is_idle():
                    return
        except StreamingQueryException as e:
            # `run` raises the kept error of a batch. After a request to end, Spark reports our `_QueryEnd` here.
            if self._error is None and not self._ending.is_set():
                raise query_failed(self._location, e) from e

    @property
    def _seconds_to_wait(self) -> float:
        return _ENDING_LOOK_S if self._ending.is_set() else _LOOK_S

    def _is_idle(self) -> bool:
        """Return whether the query waits for records."""
        return self._query is not None and not self._query.status["isTriggerActive"]


def stream(config: AppConfig, spark: SparkSession) -> None:
    """Take the checkpoint's lease, and run the query.

    Raises LeaseHeld, OtherInputs, ForeignCheckpoint, and the errors of `LandingQuery.run`.
    """
    assert config.checkpoint_location is not None, "a query has a checkpoint"
    lake_settings.configure_s3a(spark, config.checkpoint_location, config.store_properties)
    with take_lease(config, spark, config.checkpoint_location) as lease:
        LandingQuery(config, spark, lease).run()


def kafka_to_iceberg(config: AppConfig, spark: SparkSession) -> None:
    """Do the work of an app that lands records: run a query, or land an interval or ranges at once."""
    # Checks before the lease is taken, so that a configuration that can't work leaves no trace.
    topics_of(config.extract, config.kafka, WHERE)
    function_of(config.extract)
    check_executors(spark, modules_for(config.extract))
    if config.is_query:
        stream(config, spark)
    else:
        land_at_once(config, spark)
