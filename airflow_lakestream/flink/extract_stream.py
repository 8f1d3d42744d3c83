"""The driver of a landing by Flink together with an extract for doubtful records."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema

from airflow_lakestream.config.settings import copied
from airflow_lakestream.core.bad_records import BadRecords, RejectLimit
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob, Stopped
from airflow_lakestream.core.landing.modes import RangesMode
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.ledger import LandingEngine, TopicEntry, union
from airflow_lakestream.core.publishing.branch import (
    EngineOutput,
    LogContents,
    ProofResult,
    RowProof,
    TopicLogView,
    ValueDifference,
)
from airflow_lakestream.core.publishing.publish import PublicationJob, RowlessMeaning
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer, RowsOnMain
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.lease import HeldLease
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.job import JobEnded, JobSpoilt
from airflow_lakestream.flink.landing_job import LandingJobSeries
from airflow_lakestream.flink.rest import FlinkJobState
from airflow_lakestream.flink.stream import WHERE, FlinkStream
from airflow_lakestream.iceberg.fitness import load_table
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.run.comparing import EngineRows
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.storage import storage_errors_named
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, ranges_of
from airflow_lakestream.tables.schema.columns import METADATA_PREFIX
from airflow_lakestream.tables.schema.types import schema_text

log = logging.getLogger(__name__)


# For records that Flink has left out: a publication has checked the share of bad records, and these may all be bad.
_NO_REJECT_LIMIT = RejectLimit(share=1.0)


def left_out_ranges(entry: TopicEntry, topic: str, branch: str, *, published: bool = False) -> RangeSet:
    """Return the offsets that Flink has left out: below published or landed offsets, and missing in the ledger.

    The result is empty for a group without an origin.

    :param entry: the ledger entry of the topic.
    :param branch: the branch of Flink's publications.
    :param published: whether only offsets below published offsets count, since a running job may still make rows of
        later offsets.
    """
    if not entry.origin:
        return RangeSet()
    marker = entry.published.get(branch)
    ends = {} if marker is None else dict(marker.ends)
    if not published:
        for _, partition in entry.held.partitions:
            landed_ends = (end for _, end in entry.held.intervals(topic, partition))
            ends[partition] = max(ends.get(partition, 0), *landed_ends)
    covered = union(
        RangeSet.of(topic, partition, entry.origin.get(partition, 0), end) for partition, end in ends.items()
    )
    return covered - entry.held


@dataclass(frozen=True)
class LeftoverLog:
    """A view of a topic in which tombstones count as values, so that a tombstone without a row counts as missing.

    The extract lands missing records, and decides which of them are rows. See `core.publishing.branch.TopicLogView`.
    """

    inner: TopicLogView

    def shown(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> LogContents:
        """Return the contents of Kafka at these offsets, tombstones among the values. Raises the errors of `inner`."""
        contents = self.inner.shown(ranges, state, stop)
        return LogContents(values=contents.values | contents.tombstones, gone=contents.gone)


@dataclass(frozen=True)
class ExtractProof:
    """Proof of a publication by the extract's own rows of the same records.

    See `core.publishing.branch.RowProof`.

    :param job: makes the extract's rows.
    :param begins: by partition, Flink's start.
    :param columns: returns the table's columns.
    """

    job: LandingJob
    begins: Mapping[int, int]
    columns: Callable[[], Schema]

    def check(self, ranges: RangeSet, written: EngineOutput, state: TopicState, stop: threading.Event) -> ProofResult:
        """Compare Flink's rows at these offsets with the extract's rows of the same records.

        The check reads the offsets that Kafka still has, from Flink's start on. A row of Flink without a row of the
        extract counts as different. Raises BadRecord if `on_error` is "fail", TooManyRejected, and Stopped.

        :param ranges: the offsets to publish.
        :param written: Flink's rows, and their columns.
        """
        topic, job, columns = state.identity.topic, self.job, self.columns()
        engine_rows = EngineRows(
            written.rows, topic, [name for name in columns.column_names if name not in COORDINATES]
        )
        lows = {p: max(marks.low, self.begins.get(p, 0)) for p, marks in state.marks.items()}
        wanted = ranges - union(RangeSet.of(topic, p, 0, low) for p, low in lows.items())
        read_ranges, row_ranges, decoder = RangeSet(), RangeSet(), None
        read, bad = 0, BadRecords()
        with closing(job.reader.read(Plan(state, wanted), stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                key, offsets = (batch.topic, batch.partition), np.asarray(batch.offsets, np.int64)
                decoder = decoder or job.decoders(written.columns, batch)
                read_ranges |= union([ranges_of(key, offsets)])
                if decoder is None:
                    continue
                decoded = decoder.decode(batch)
                read, bad = read + decoded.counts.read, bad + decoded.bad
                row_offsets = decoded.rows[OFFSET].to_numpy()
                row_ranges |= union([ranges_of(key, row_offsets)])
                table_columns = [name for name in decoded.rows.column_names if name in columns.column_names]
                extract_rows = conform(decoded.rows.select(table_columns), columns)
                engine_rows.compare(batch.partition, row_offsets, extract_rows)
        if stop.is_set():
            raise Stopped
        job.limits.max_rejected.check(job.table, read, bad, 0, at_commit=True)
        only_engine = (engine_rows.positions & wanted) - row_ranges
        # For the error: the first of these offsets in each partition.
        firsts = [ValueDifference(topic, p, only_engine.intervals(topic, p)[0][0]) for _, p in only_engine.partitions]
        return ProofResult(
            read_ranges, engine_rows.equal, engine_rows.different | only_engine, [*engine_rows.named(), *firsts]
        )


class LeftoverExtract:
    """Landing by the extract's code of the records left out by Flink, and proof of Flink's rows."""

    def __init__(self, config: FlinkConfig, catalog: Catalog, where: str) -> None:
        self._config = config
        self._catalog = catalog
        self._where = where

    def proof(self, begins: Mapping[int, int]) -> ExtractProof:
        """Return the proof of the rows of a job begun at these offsets."""
        return ExtractProof(self._job(), begins, lambda: load_table(self._catalog, self._config.table).schema())

    def land(self, ranges: RangeSet | None = None, most: int | None = None) -> LandingReport:
        """Land offsets by the extract's code. Raises the errors of a landing.

        :param ranges: the offsets to land, of which any share may be rejected; None: all that the ledger lacks.
        :param most: greatest number of records; None: no limit.
        """
        job = self._job(is_part=ranges is not None)
        job = replace(job, limits=replace(job.limits, max_records=most))
        if ranges is not None:
            parts = ((p, *interval) for topic, p in ranges.partitions for interval in ranges.intervals(topic, p))
            job = replace(job, mode=RangesMode(tuple(parts)), limits=replace(job.limits, max_rejected=_NO_REJECT_LIMIT))
        with storage_errors_named(job.table, self._catalog):
            report = land(replace(job, engine=LandingEngine.FLINK))
        counts = report.counts
        if not counts.read:
            return report
        log.info(
            "The extract landed records that Flink left out: %s, with %s rows, %s filtered, %s rejected, %s skipped.",
            *(counts.read, counts.written, counts.filtered, counts.rejected, counts.skipped),
        )
        return report

    def _job(self, *, is_part: bool = False) -> LandingJob:
        """Return the extract's job; for a part of a commit's records, without checks of the number and age of rows."""
        config, run_id = self._config, f"flink/{uuid.uuid4().hex}"
        extract = config.extract
        if is_part and config.checks is not None:
            extract = replace(extract, checks=replace(config.checks, row_count=None, freshness=None))
        return build_job(extract, config.kafka, self._catalog, run_id=run_id, where=self._where)


def columns_of(catalog: Catalog, table: str) -> str:
    """Return a table's columns as DDL, except Kafka's metadata columns; empty without a table, or without columns."""
    try:
        schema = catalog.load_table(table).schema()
    except NoSuchTableError:
        return ""
    return schema_text(Schema(*(field for field in schema.fields if not field.name.startswith(METADATA_PREFIX))))


# Number of first records from which the extract makes the columns.
_FIRST_RECORDS = 10_000


class RestartAfterExtract(JobSpoilt):
    """Error after which the extract lands all records that main lacks, and a new job begins behind these records."""


class ExtractStream(FlinkStream):
    """A landing by Flink, with an extract for the records that Flink leaves out or may have misread."""

    def __init__(self, config: FlinkConfig, lease: HeldLease) -> None:
        super().__init__(config, lease)
        self._extract = LeftoverExtract(config, self._catalog, WHERE)
        # Whether no row of the branch is to be published: the extract has landed the branch's records, or will.
        self._is_branch_spent = False

    def run(self) -> None:
        """Supervise the stream until an end is requested; see `JobStream.run`.

        First the columns are set, if the extract finds them, and the offsets that earlier jobs left out are landed.
        After RestartAfterExtract the extract lands all records lacking on main, and a new job begins behind them.
        """
        if self.config.finds_columns and not self._find_columns():
            return None
        self._fill_holes()
        while True:
            try:
                return super().run()
            except RestartAfterExtract as e:
                log.warning("%s", e)
                self._land_all()

    def publication(self, savepoint: str | None = None) -> PublicationJob:
        """Return the publication of the branch; each offset without a row is a missing record."""
        job = super().publication(savepoint)
        return replace(job, log=LeftoverLog(job.log), rowless=RowlessMeaning.MISSING)

    def row_proof(self) -> RowProof | None:
        """Return the proof of a publication's rows: they are compared with the extract's rows of the same records."""
        return self._extract.proof(self.jobs.newest_job_format().begins)

    def handle_end(self, job: str, state: FlinkJobState) -> None:
        """Land the job's committed rows, and raise the error of the ended job.

        Raises RestartAfterExtract if the job failed at a record that Flink can't decode: the extract then lands or
        rejects the record. Otherwise raises as `FlinkStream.handle_end` does.
        """
        try:
            super().handle_end(job, state)
        except JobEnded as e:
            if any("deserialize" in cause for cause in self.jobs.manager.causes(job)):
                raise RestartAfterExtract(
                    f"{e} The extract lands the records lacking on main, and a new job begins after them."
                ) from e
            raise

    def handle_stop(self, savepoint: str) -> None:
        """Land all records read by the job; the extract lands the records if Flink's rows are doubtful."""
        try:
            super().handle_stop(savepoint)
        except RestartAfterExtract as e:
            log.warning("%s", e)
            self._land_all()

    def land_rest(self, publication: PublicationJob) -> bool:
        """Publish the rest of earlier jobs; the extract lands doubtful rows. See `FlinkStream.land_rest`."""
        if self._is_branch_spent:
            self._is_branch_spent = False
            return False
        try:
            landed = super().land_rest(publication)
        except RowsOnMain as e:
            # A driver was killed after the extract's landing.
            log.warning("The branch begins again at main's head. %s", e)
            return False
        # `land` has found doubtful rows, and the call above has logged the error.
        if self._is_branch_spent:
            self._land_all()
            self._is_branch_spent = False
        return landed

    def land(self, publication: PublicationJob) -> None:
        """Publish, and let the extract fill the holes. Raises RestartAfterExtract if Flink's rows are doubtful."""
        try:
            super().land(publication)
        except (RecordDoubted, RowsDiffer) as e:
            self._is_branch_spent = True
            raise RestartAfterExtract(str(e)) from e
        self._fill_holes(published=True)

    def _fill_holes(self, *, published: bool = False) -> None:
        """Let the extract land the offsets that this or an earlier job has left out, see `left_out_ranges`."""
        publication = self.publication()
        identity = publication.source.identity()
        entry = publication.sink.load("holes").ledger.entry(identity)
        if ranges := left_out_ranges(entry, identity.topic, self.config.on_branch, published=published):
            self._land_leftovers(ranges)

    def _land_all(self) -> None:
        """Cancel the job if it runs, and let the extract land everything lacking on main.

        The next job begins at the ledger's new end.
        """
        if (note := self.jobs.note()) is not None and not note.savepoint:
            self.jobs.end(note.job)
        self._land_leftovers()
        # The next job counts its checkpoints from 1.
        self._checkpoint, self._is_branch_spent = 0, True

    def _land_leftovers(self, ranges: RangeSet | None = None, most: int | None = None) -> LandingReport:
        self.lease.check()
        started = time.monotonic()
        report = self._extract.land(ranges, most)
        self._report(report, max(time.monotonic() - started, 1e-3))
        self._moved_at = time.monotonic()
        return report

    def _find_columns(self) -> bool:
        """Set the columns from the table; return False if an end was requested before the table had columns.

        The extract lands the first records, again and again until the topic has any. This landing creates the table.
        """
        while not (columns := columns_of(self._catalog, self.config.table)):
            self._land_leftovers(most=_FIRST_RECORDS)
            if self.lease.stop_requested():
                return False
            time.sleep(self._look_every)  # Kafka reports no first record.
        self.config = copied(self.config, columns=columns)
        self.jobs = LandingJobSeries(self.config)
        self._extract = LeftoverExtract(self.config, self._catalog, WHERE)
        return True
