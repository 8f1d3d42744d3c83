"""The driver of a landing by Flink together with an extract for doubtful records."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema

from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.publishing.publish import PublicationJob, RowlessMeaning
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer, RowsOnMain
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.lease import HeldLease
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.job import JobEnded, JobSpoilt
from airflow_lakestream.flink.landing_job import LandingJobSeries
from airflow_lakestream.flink.leftovers import LeftoverExtract, LeftoverLog, left_out_ranges
from airflow_lakestream.flink.rest import FlinkJobState
from airflow_lakestream.flink.stream import WHERE, FlinkStream, PublicationParts
from airflow_lakestream.run.publication import KafkaLogView
from airflow_lakestream.tables.schema.columns import METADATA_PREFIX
from airflow_lakestream.tables.schema.types import schema_text


def columns_of(catalog: Catalog, table: str) -> str:
    """Return a table's columns as DDL, except Kafka's metadata columns; empty without a table, or without columns."""
    try:
        schema = catalog.load_table(table).schema()
    except NoSuchTableError:
        return ""
    return schema_text(Schema(*(one for one in schema.fields if not one.name.startswith(METADATA_PREFIX))))


log = logging.getLogger(__name__)

# Number of first records from which the extract makes the columns.
_FIRST = 10_000


class RestartAfterExtract(JobSpoilt):
    """Error of a job after which the extract lands the records, and a new job begins behind these."""


class ExtractStream(FlinkStream):
    """A landing by Flink, with an extract for the records that Flink leaves out or may have misread."""

    def __init__(self, config: FlinkConfig, lease: HeldLease) -> None:
        super().__init__(config, lease)
        self._extract = LeftoverExtract(config, self._catalog, WHERE)
        # The branch has nothing left to land: the extract has landed its records, or will.
        self._is_behind = False

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

    def publication_parts(self) -> PublicationParts:
        """Return the parts of a publication: the proof compares rows with the extract's rows."""
        proof = self._extract.proof(self.jobs.newest_reads().begins)
        return PublicationParts(
            LeftoverLog(KafkaLogView(self._reader())), self._extract.sink(), proof, RowlessMeaning.MISSING
        )

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

    def _land_rest(self, publication: PublicationJob) -> bool:
        if self._is_behind:
            # The branch has nothing that main lacks.
            self._is_behind = False
            return False
        try:
            landed = super()._land_rest(publication)
        except RowsOnMain as e:
            # A driver was killed after the extract's landing.
            log.warning("The branch begins again at main's head. %s", e)
            return False
        # `_land` has found doubtful rows, and the call above has logged the error.
        if self._is_behind:
            self._land_all()
            self._is_behind = False
        return landed

    def _land(self, publication: PublicationJob) -> None:
        try:
            super()._land(publication)
        except (RecordDoubted, RowsDiffer) as e:
            self._is_behind = True
            raise RestartAfterExtract(str(e)) from e
        self._fill_holes(published=True)

    def _fill_holes(self, *, published: bool = False) -> None:
        """Let the extract land the offsets left out by Flink, and offsets gone from main again.

        An earlier driver's job may have left out offsets, too.

        :param published: see `left_out_ranges`.
        """
        identity = self._publication(None).source.identity()
        entry = self._extract.sink().load("holes").ledger.entry(identity)
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
        self._checkpoint, self._is_behind = 0, True

    def _land_leftovers(self, ranges: RangeSet | None = None, most: int | None = None) -> LandingReport:
        self.lease.check()
        started = time.monotonic()
        report = self._extract.land(ranges, most)
        self._report(report, max(time.monotonic() - started, 1e-3))
        self._moved_at = time.monotonic()
        return report

    def _find_columns(self) -> bool:
        """Set the columns from the table, once created by the extract; return False on a request to end.

        The extract lands the first records, again and again until the topic has any. This landing creates the table.
        """
        while not (columns := columns_of(self._catalog, self.config.table)):
            self._land_leftovers(most=_FIRST)
            if self.lease.stop_requested():
                return False
            time.sleep(self._look_every)  # Kafka reports no first record.
        self.config = replace(self.config, columns=columns)
        self.jobs = LandingJobSeries(self.config)
        self._extract = LeftoverExtract(self.config, self._catalog, WHERE)
        return True
