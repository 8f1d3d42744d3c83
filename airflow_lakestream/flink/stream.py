"""The driver of a landing by Flink: supervision of the job, and publication of the branch."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchTableError

from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.core.landing.plan import DamagedBatch, TopicState
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import LandingEngine, union
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.publishing.branch import EngineOutput, RowProof
from airflow_lakestream.core.publishing.publish import PublicationJob, RowlessMeaning, begin, begin_again, publish
from airflow_lakestream.core.publishing.refusals import (
    ColumnsMoved,
    PositionsUnknown,
    RecordDoubted,
    RowsDiffer,
    RowsOnMain,
)
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.lease import HeldLease
from airflow_lakestream.driver.progress import BatchProgress, read_progress
from airflow_lakestream.exceptions import BadRecord, InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.flink.checkpoints import FlinkPositions
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.formats.proof import proof_of
from airflow_lakestream.flink.job import JobAtDamage, JobEnded, JobSpoilt
from airflow_lakestream.flink.job_stream import JobStream
from airflow_lakestream.flink.landing_job import LandingJobSeries
from airflow_lakestream.flink.rest import FlinkJobState
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.fitness import load_table
from airflow_lakestream.iceberg.publishing.sink import PublishingSink
from airflow_lakestream.kafka.damage import JavaDamage, find_damage, first_offsets
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource
from airflow_lakestream.registry.client import RegistryClient
from airflow_lakestream.run.publication import KafkaLogView

log = logging.getLogger(__name__)

WHERE = "the Kafka connection"
_POLL_TIMEOUT = 60.0
# Number of intervals without a landing, though there are records to land, before a search for a damaged batch.
_IDLE_INTERVALS = 5
# "If": a registry that does not answer fails the job in the same way.
_UNREADABLE = (
    "If the record is bad, each try ends at it. Run KafkaExtractOperator once with the same group: it "
    "lands the good records and rejects this one. Then run this task again."
)
_UPSERT = "write.upsert.enabled"


class FlinkStream(JobStream):
    """A landing of a topic by Flink: the job writes a branch, and the driver publishes the branch on main."""

    jobs: LandingJobSeries

    def __init__(self, config: FlinkConfig, lease: HeldLease) -> None:
        super().__init__(config, LandingJobSeries(config), lease)
        self.config = config
        # The times of the last publication and of the last progress, by the monotonic clock.
        self._published_at = self._moved_at = time.monotonic()
        # Whether the last publication has succeeded.
        self._is_published = True
        self._catalog: Catalog = load_catalog(config.catalog_name, **config.catalog_properties)

    def start(self) -> str:
        """Publish the rows that earlier jobs left on the branch, and submit a new job; return the job's id.

        The job continues from the newest state if the ledger has not passed that state, the program is unchanged, and
        the branch has no rows unfit for main. Otherwise the branch is set back to main's head, and the job begins at
        the ledger's end without a state.
        """
        note = self.jobs.note()
        self.lease.check()
        savepoint = (note.finished or None) if note is not None else None
        publication = self.publication(savepoint)
        # This publishes the rows of the branch.
        can_continue = self._has_branch() and self.land_rest(publication)
        starts = begin(publication) if can_continue else {}
        state = self.jobs.state_for(starts) if starts else ""
        if not state:
            starts = begin_again(publication, self._begin_line)
        columns = load_table(self._catalog, self.config.table).schema().column_names
        return self.jobs.submit(starts, state, columns)

    def _begin_line(self, starts: Mapping[int, int]) -> None:
        table = load_table(self._catalog, self.config.table)
        self.jobs.begin_line(starts, ledger_store.newest_sequence(table.metadata))

    def land_rest(self, publication: PublicationJob) -> bool:
        """Publish the rest of earlier jobs; return False if the branch has rows unfit for main.

        Rows of records that were read in another format are unfit, too. ChecksFailed is raised, unless the program was
        changed. If the positions of the rows are unknown, nothing is published, and the result is True.
        """
        job_format = self.jobs.newest_job_format().format
        if job_format not in (self.config.read_as, ""):
            log.warning("The branch has records that were read as %s. They are read again.", job_format)
            return False
        try:
            self.land(publication)
        except PositionsUnknown as e:
            log.warning("%s", e)
        except ChecksFailed as e:
            if not self.jobs.has_new_program():
                raise
            log.warning("The program was changed, so the records are read again. %s", e)
        except (RecordDoubted, RowsDiffer, RowsOnMain, JobSpoilt) as e:
            log.warning("The records are read again. %s", e)
            return False
        return True

    def look(self) -> None:
        """Publish if a publication is due; search for a damaged batch after a while without a landing.

        Raises JobAtDamage if a damaged batch was found, and the errors of `_publish`.
        """
        config = self.config
        if time.monotonic() - self._published_at >= config.publish_interval:
            self._publish()
        longest_interval = max(config.publish_interval, config.checkpoint_interval)
        if time.monotonic() - self._moved_at >= _IDLE_INTERVALS * longest_interval:
            self._moved_at = time.monotonic()
            # Kafka's client asks again and again for a batch that a broker can't read, and reports it in its log only.
            if (damaged := self._find_damage(None)) is not None:
                raise self._at_damage(damaged)

    def note_checkpoint(self, job: str, checkpoint: int) -> bool:
        """Return whether a checkpoint is a sign of health: whether the last publication has succeeded.

        With a statement, first note the offsets below the checkpoint's that are still in Kafka, see `JobLine`.
        """
        if self.config.sql:
            self._note_passed(job, checkpoint)
        return self._is_published

    def _note_passed(self, job: str, checkpoint: int) -> None:
        """Note the offsets below a checkpoint's that are still in Kafka.

        A record that the statement leaves out has no row, and may be gone from Kafka at the publication. The note then
        proves that the job has read the record. No note is written if Kafka does not answer.
        """
        try:
            marks = self.publication().source.look().marks
        except LakestreamError as e:
            log.warning("The offsets of checkpoint %s are not noted: %s", checkpoint, e)
            return
        self.jobs.note_passed(job, checkpoint, {p: watermarks.low for p, watermarks in marks.items()})

    def handle_end(self, job: str, state: FlinkJobState) -> None:
        """Land the job's committed rows, and raise the error of the ended job.

        Raises JobAtDamage at a damaged batch, JobEnded with the bad record if the job could not decode a record, and
        otherwise the error of `error_of`.
        """
        self._publish()
        causes = self.jobs.manager.causes(job)
        damage = JavaDamage.of("\n".join(causes))
        if damage is not None and (damaged := self._find_damage(damage)) is not None:
            raise self._at_damage(damaged)
        if any("deserialize" in cause for cause in causes):
            raise JobEnded(job, state, f"{self._bad_record() or causes[-1]}. {_UNREADABLE}")
        raise self.error_of(job, state)

    def _at_damage(self, damaged: DamagedBatch) -> JobAtDamage:
        note = self.jobs.note()
        return JobAtDamage("" if note is None else note.job, damaged)

    def _find_damage(self, damage: JavaDamage | None) -> DamagedBatch | None:
        """Return a damaged batch of the records that main lacks; None without a damaged batch, or if the search fails.

        :param damage: the damage that Flink reports, whose partition bounds the search; None: search the first records
            of each partition.
        """
        publication = self.publication()
        try:
            state = publication.source.look()
            lacking = self._ranges_lacking_on_main(publication, state)
            ranges = first_offsets(lacking) if damage is None else damage.within(lacking)
            return find_damage(self._reader(), state, ranges)
        except LakestreamError as e:
            log.warning("The search for a damaged batch failed: %s", e)
        return None

    def _ranges_lacking_on_main(self, publication: PublicationJob, state: TopicState) -> RangeSet:
        """Return the offsets from the first that the ledger lacks to the topic's end."""
        topic = self.config.topic
        return union(RangeSet.of(topic, p, first, state.marks[p].end) for p, first in begin(publication).items())

    def _bad_record(self) -> BadRecord | None:
        """Return the first undecodable record that main lacks, since Flink itself does not name the record.

        Return None if all records are decodable, if the search fails, or without a proof.
        """
        publication, proof = self.publication(), self._proof(1.0)
        if proof is None:
            return None
        try:
            table, state = publication.sink.load(publication.run_id), publication.source.look()
            # Without rows of Flink to compare with, the records are only decoded.
            no_rows = EngineOutput(lambda: iter(()), table.schema)
            proof.check(self._ranges_lacking_on_main(publication, state), no_rows, state, publication.stop)
        except BadRecord as bad:
            return bad
        except LakestreamError as e:
            log.warning("The search for the bad record failed: %s", e)
        return None

    def handle_stop(self, savepoint: str) -> None:
        """Land all records read by the job.

        :param savepoint: location of the savepoint by which the job was stopped.
        """
        self.land(self.publication(savepoint))

    def _publish(self) -> None:
        """Publish; log an error that a later publication may mend. Raises Terminal errors, JobSpoilt, and LeaseLost."""
        self.lease.check()
        try:
            self.land(self.publication())
        except LakestreamError as e:
            if isinstance(e, Terminal | JobSpoilt):
                raise
            self._is_published = False
            log.warning("Not published: %s", e)
        else:
            self._is_published = True
        finally:
            self._published_at = time.monotonic()

    def land(self, publication: PublicationJob) -> None:
        """Publish, and report the landing. Raises the errors of `publish`, and JobSpoilt if columns have moved."""
        started = time.monotonic()
        try:
            report = publish(publication)
        except ColumnsMoved as e:
            again = "None of these rows is published; a new job begins at the ledger's end and reads the records again."
            raise JobSpoilt(f"{self.config.table}: {e.problem} {again}") from e
        if report.snapshot_ids or not report.remaining_lag:
            self._moved_at = time.monotonic()
        self._report(report, time.monotonic() - started)

    def _report(self, report: LandingReport, duration: float) -> None:
        """Report a landing as a batch, unless nothing was committed; `duration` is in seconds."""
        if not report.snapshot_ids:
            return
        config = self.config
        number = read_progress(config.checkpoint_location, config.store_properties).batches
        batch = BatchProgress.of(
            *(number, report.counts, report.rows, report.entry.landed, duration),
            input_rate=report.counts.read / max(config.publish_interval, 1e-3),
            lag=report.remaining_lag,
            snapshot_ids=tuple(map(str, report.snapshot_ids)),
            tables={config.table: report.rows},
        )
        self.progress.report(batch)
        log.info("%s", batch)

    def publication(self, savepoint: str | None = None) -> PublicationJob:
        """Return the publication of the branch.

        With a statement, an offset without a row is a filtered record; otherwise the record is missing.

        :param savepoint: location of the savepoint by which the job was stopped.
        """
        config, group = self.config, self.config.consumer_group
        return PublicationJob(
            run_id=f"flink/{uuid.uuid4().hex}",
            table=config.table,
            consumer_group=group,
            branch=config.on_branch,
            engine=LandingEngine.FLINK,
            source=KafkaSource(config.kafka, config.topic, group, config.start, WHERE),
            log=KafkaLogView(self._reader()),
            sink=PublishingSink(self._catalog, config.table, group, config.design, config.auditor),
            positions=self._positions(savepoint),
            rowless=RowlessMeaning.FILTERED if config.sql else RowlessMeaning.MISSING,
            on_data_loss=config.on_data_loss,
            proof=self.row_proof(),
        )

    def row_proof(self) -> RowProof | None:
        """Return the proof of a publication's rows, or None for no proof."""
        return self._proof(self.config.prove)

    def _positions(self, savepoint: str | None) -> FlinkPositions:
        checkpoints, topic = self.jobs.checkpoints, self.config.topic
        if (job_line := self.jobs.newest_line()) is None:
            return FlinkPositions(checkpoints, topic, savepoint)
        line = job_line.line(topic, self.jobs.newest_job_format().begins)
        return FlinkPositions(checkpoints, topic, savepoint, line, job_line.jobs)

    def _proof(self, share: float) -> RowProof | None:
        """Return the proof of the newest job's rows.

        Return None if the share is 0, or if the job's format is unknown or not the configured format.

        :param share: the share of the records to check, from 0 to 1.
        """
        config = self.config
        reads = self.jobs.newest_job_format()
        if not share or reads.format != config.read_as:
            return None
        registry = RegistryClient(config.registry_config) if config.format == "avro" else None
        compares = config.sql is None
        return proof_of(config.source_columns, reads, self._reader, registry, compares=compares, share=share)

    def _reader(self, *parts: RecordPart) -> KafkaReader:
        config = self.config
        return KafkaReader(
            *(config.kafka, config.consumer_group),
            poll_timeout=_POLL_TIMEOUT,
            where=WHERE,
            parts=frozenset(parts),
        )

    def _has_branch(self) -> bool:
        """Return whether the table exists, and has the branch of Flink's rows.

        Raises InvalidArgument for a table in which Flink would replace rows by key.
        """
        try:
            metadata = load_table(self._catalog, self.config.table).metadata
        except NoSuchTableError:
            return False
        if metadata.properties.get(_UPSERT, "").lower() == "true":
            raise InvalidArgument(
                "table",
                f"{self.config.table} has {_UPSERT}: Flink would delete rows by their keys, and only appends can be "
                "published.",
                "Land into another table; for mirrors of databases there is kafka_mirror, and cdc_to_iceberg.",
            )
        return self.config.on_branch in metadata.refs
