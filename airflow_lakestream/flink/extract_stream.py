"""The driver of a landing by Flink that lets the extract land what Flink can't make the same of."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.core.publishing.publish import Publication, Rowless
from airflow_lakestream.core.publishing.refusals import RecordDoubted, RowsDiffer, RowsOnMain
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.lease import Lease
from airflow_lakestream.flink.columns import columns_of
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.job import JobEnded, JobSpoilt
from airflow_lakestream.flink.landing_job import LandingJobs
from airflow_lakestream.flink.leftovers import Extract, LeftOut, holes
from airflow_lakestream.flink.rest import JobState
from airflow_lakestream.flink.stream import WHERE, FlinkStream, Parts
from airflow_lakestream.run.publication import LookIntoLog

log = logging.getLogger(__name__)

# How many records tell the columns.
_FIRST = 10_000


class BeginAnew(JobSpoilt):
    """The extract has to land what the job has read, and the next job begins behind that."""


class ExtractStream(FlinkStream):
    """One landing, whose table, rejects and counts are the extract's."""

    def __init__(self, config: FlinkConfig, lease: Lease) -> None:
        super().__init__(config, lease)
        self._extract = Extract(config, self._catalog, WHERE)
        # The extract has landed what the branch has, or has to.
        self._is_behind = False

    def run(self) -> None:
        """Look after the stream until it is asked to end; see `JobStream.run`."""
        if self.config.finds_columns and not self._find_columns():
            return None
        self._fill_holes()
        while True:
            try:
                return super().run()
            except BeginAnew as e:
                log.warning("%s", e)
                self._land_all()

    def parts(self) -> Parts:
        """Return what a publication looks with: the proof compares rows with the extract's."""
        proof = self._extract.proof(self.jobs.newest_reads().begins)
        return Parts(LeftOut(LookIntoLog(self._reader())), self._extract.sink(), proof, Rowless.MISSING)

    def ended(self, job: str, state: JobState) -> None:
        """Land what the job has committed. Raises JobEnded; BeginAnew where the job can't read a record."""
        try:
            super().ended(job, state)
        except JobEnded as e:
            if any("deserialize" in cause for cause in self.jobs.manager.causes(job)):
                raise BeginAnew(f"{e} The extract lands what main lacks, and a new job begins behind it.") from e
            raise

    def stopped(self, savepoint: str) -> None:
        """Land all that the job has read."""
        try:
            super().stopped(savepoint)
        except BeginAnew as e:
            log.warning("%s", e)
            self._land_all()

    def _land_rest(self, publication: Publication) -> bool:
        if self._is_behind:
            # The branch has nothing that main lacks.
            self._is_behind = False
            return False
        try:
            landed = super()._land_rest(publication)
        except RowsOnMain as e:
            # A driver was killed behind the extract's landing.
            log.warning("The branch begins anew. %s", e)
            return False
        if self._is_behind:
            self._land_all()
            self._is_behind = False
        return landed

    def _land(self, publication: Publication) -> None:
        try:
            super()._land(publication)
        except (RecordDoubted, RowsDiffer) as e:
            self._is_behind = True
            raise BeginAnew(str(e)) from e
        self._fill_holes(published=True)

    def _fill_holes(self, *, published: bool = False) -> None:
        """Land what Flink has left out: also what an earlier driver had no time for, and what left main again."""
        identity = self._publication(None).source.identity()
        entry = self._extract.sink().load("holes").ledger.entry(identity)
        if found := holes(entry, identity.topic, self.config.on_branch, published=published):
            self._tell_landing(found)

    def _land_all(self) -> None:
        """Let the extract land all that main lacks; the next job begins where the ledger ends then."""
        if (note := self.jobs.note()) is not None and not note.savepoint:
            self.jobs.end(note.job)
        self._tell_landing()
        # The next job counts its checkpoints from 1.
        self._checkpoint, self._is_behind = 0, True

    def _tell_landing(self, ranges: RangeSet | None = None, most: int | None = None) -> LandingReport:
        self.lease.check()
        started = time.monotonic()
        report = self._extract.land(ranges, most)
        self._tell(report, max(time.monotonic() - started, 1e-3))
        self._moved_at = time.monotonic()
        return report

    def _find_columns(self) -> bool:
        """Let the table tell the columns, once the extract has made it; return False where the stream is to end."""
        while not (columns := columns_of(self._catalog, self.config.table)):
            self._tell_landing(most=_FIRST)
            if self.lease.stop_requested():
                return False
            time.sleep(self._look_every)  # Kafka reports no first record.
        self.config = replace(self.config, columns=columns)
        self.jobs = LandingJobs(self.config)
        self._extract = Extract(self.config, self._catalog, WHERE)
        return True
