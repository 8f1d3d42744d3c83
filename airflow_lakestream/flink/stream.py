"""The driver of a landing by Flink: a process beside the worker that looks after the job, and publishes its branch.

It has the lease of the stream. Where it ends without a word, the job goes on; the next driver adopts it.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import Engine
from airflow_lakestream.core.policies import OnDataLoss, choose
from airflow_lakestream.core.publishing.publish import Publication, Rowless, begin, begin_anew, publish
from airflow_lakestream.core.publishing.refusals import PositionsUnknown
from airflow_lakestream.driver.lease import Lease
from airflow_lakestream.driver.progress import BatchProgress, ProgressLog, read_progress
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.flink.checkpoints import FlinkPositions
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.job import JobEnded, Jobs
from airflow_lakestream.flink.rest import FlinkUnreachable, JobState
from airflow_lakestream.iceberg.publishing.sink import PublishingSink
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource
from airflow_lakestream.run.publication import LookIntoLog

log = logging.getLogger(__name__)

WHERE = "the Kafka connection"
_LOOK = 2.0
_POLL_TIMEOUT = 60.0
# A savepoint may take as long as a checkpoint; the lease ends a driver that takes longer than it may.
_STOPS_WITHIN = 600.0
_UPSERT = "write.upsert.enabled"


@dataclass
class FlinkStream:
    """One stream, under a lease."""

    config: FlinkConfig
    lease: Lease
    look_every: float = _LOOK
    _published_at: float = field(default=0.0, init=False)
    _is_published: bool = field(default=True, init=False)
    _checkpoint: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        config = self.config
        self.jobs = Jobs(config)
        self.progress = ProgressLog(config.checkpoint_location, config.store_properties)
        self._catalog: Catalog = load_catalog(config.catalog_name, **config.catalog_properties)

    def run(self) -> None:
        """Look after the stream until it is asked to end.

        Raises JobEnded for a job that has ended otherwise, LeaseLost, and what a publication raises.
        """
        note = self.jobs.note()
        job = self.jobs.running()
        if job is None:
            job = self._start(note.finished if note is not None and note.finished else None)
        else:
            log.info("Found job %s running.", job)
        try:
            self._follow(job)
        except LakestreamError as e:
            if isinstance(e, Terminal):
                # What it would write from here on can't be published either.
                self.jobs.cancel(job)
            raise

    def _start(self, savepoint: str | None) -> str:
        """Publish what is left of earlier jobs, and submit a new one."""
        self.lease.check()
        publication = self._publication(savepoint)
        self._check_table()
        has_branch = self._has_branch()
        if has_branch:
            try:
                self._land(publication)
            except PositionsUnknown as e:
                log.warning("%s", e)
            except ChecksFailed as e:
                if not self.jobs.are_changed():
                    raise
                log.warning("The program was changed, so the records are read anew. %s", e)
        starts = begin(publication)
        state = self.jobs.state_for(starts) if has_branch else ""
        if not state:
            starts = begin_anew(publication)
        columns = self._catalog.load_table(self.config.table).schema().column_names
        return self.jobs.submit(starts, state, lambda: list(columns))

    def _follow(self, job: str) -> None:
        self._published_at = time.monotonic()
        while True:
            self.lease.check()
            if self.lease.stop_requested():
                self._stop(job)
                return
            state = self._state(job)
            if state is not None and state not in (JobState.RUNNING, JobState.STARTING):
                # What it has committed is landed before the next one begins.
                self._publish()
                raise JobEnded(job, state, self.jobs.manager.why_failed(job))
            if state is not None:
                self._tell_moves(job)
            if time.monotonic() - self._published_at >= self.config.publish_interval:
                self._publish()
            time.sleep(self.look_every)  # Nothing tells of a checkpoint.

    def _state(self, job: str) -> JobState | None:
        """Return the job's state; None while the JobManager does not answer, which only the stall's limit ends."""
        try:
            return self.jobs.manager.state(job)
        except FlinkUnreachable as e:
            log.warning("%s", e)
            return None

    def _tell_moves(self, job: str) -> None:
        """Tell of a checkpoint. It is no sign of health while what is in the branch can't be published."""
        try:
            newest = self.jobs.manager.completed(job)
        except LakestreamError as e:
            log.warning("%s", e)
            return
        if newest > self._checkpoint and self._is_published:
            self._checkpoint = newest
            self.progress.alive(f"checkpoint {newest} of job {job}")

    def _stop(self, job: str) -> None:
        log.info("Stopping job %s with a savepoint.", job)
        place = self.jobs.stop(job, _STOPS_WITHIN)
        log.info("Job %s has ended; its savepoint: %s", job, place)
        self._land(self._publication(place))

    def _publish(self) -> None:
        """Publish; what a later publication may do better is only told. Raises Terminal errors, and LeaseLost."""
        self.lease.check()
        try:
            self._land(self._publication(None))
        except LakestreamError as e:
            if isinstance(e, Terminal):
                raise
            self._is_published = False
            log.warning("Not published: %s", e)
        else:
            self._is_published = True
        finally:
            self._published_at = time.monotonic()

    def _land(self, publication: Publication) -> None:
        started = time.monotonic()
        report = publish(publication)
        self._tell(report, time.monotonic() - started)

    def _tell(self, report: LandingReport, duration: float) -> None:
        if not report.snapshot_ids:
            return
        config = self.config
        done = read_progress(config.checkpoint_location, config.store_properties).batches
        counts = report.counts
        batch = BatchProgress(
            batch_id=done,
            rows_in=counts.read,
            rows_out=report.rows,
            skipped=counts.skipped,
            filtered=counts.filtered,
            input_rate=counts.read / max(config.publish_interval, 1e-3),
            processing_rate=counts.read / max(duration, 1e-3),
            duration=duration,
            ranges=tuple((r.topic, r.partition, r.from_offset, r.until_offset) for r in report.entry.landed),
            lag=report.remaining_lag,
            snapshot_ids=tuple(map(str, report.snapshot_ids)),
            tables={config.table: report.rows},
        )
        self.progress.report(batch)
        log.info("%s", batch)

    def _publication(self, savepoint: str | None) -> Publication:
        config = self.config
        reader = KafkaReader(config.kafka, config.consumer_group, poll_timeout=_POLL_TIMEOUT, where=WHERE)
        return Publication(
            run_id=f"flink/{uuid.uuid4().hex}",
            table=config.table,
            consumer_group=config.consumer_group,
            branch=config.on_branch,
            engine=Engine.FLINK,
            source=KafkaSource(config.kafka, config.topic, config.consumer_group, config.start, WHERE),
            log=LookIntoLog(reader),
            sink=PublishingSink(self._catalog, config.table, config.consumer_group, config.design, config.auditor),
            positions=FlinkPositions(self.jobs.checkpoints, config.topic, savepoint),
            # A statement may leave records out; without one each record with a value has a row.
            rowless=Rowless.FILTERED if config.sql else Rowless.MISSING,
            on_data_loss=choose(OnDataLoss, "on_data_loss", config.on_data_loss),
        )

    def _has_branch(self) -> bool:
        try:
            return self.config.on_branch in self._catalog.load_table(self.config.table).metadata.refs
        except NoSuchTableError:
            return False

    def _check_table(self) -> None:
        """Refuse a table whose rows Flink would replace by their keys. Raises InvalidArgument."""
        try:
            properties = self._catalog.load_table(self.config.table).metadata.properties
        except NoSuchTableError:
            return
        if properties.get(_UPSERT, "").lower() == "true":
            raise InvalidArgument(
                "table",
                f"{self.config.table} has {_UPSERT}: Flink would delete rows by their keys, and only appends can be "
                "published.",
                "Land into another table; for mirrors of databases there is kafka_mirror, and cdc_to_iceberg.",
            )


def run(config: FlinkConfig) -> None:
    """Take the stream's lease, and look after it. Raises LeaseHeld, OtherInputs, and what `FlinkStream.run` raises."""
    with Lease.take(
        config.checkpoint_location,
        config.fingerprint,
        config.owner or "nobody",
        inputs=config.inputs,
        ui_url=config.manager_address.url,
        properties=config.store_properties,
    ) as lease:
        FlinkStream(config, lease).run()
