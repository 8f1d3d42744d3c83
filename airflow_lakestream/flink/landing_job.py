"""The job for landing a topic in a branch: start, allowed statements, submit."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from airflow_lakestream.core.codec import decode_ranges, encode_ranges
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.publishing.branch import EngineJobLine
from airflow_lakestream.core.ranges import RangeSet, shown
from airflow_lakestream.decode.values.outcome import SchemaRefused
from airflow_lakestream.driver.lease_record import fingerprint_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink import statements
from airflow_lakestream.flink.config import FlinkConfig
from airflow_lakestream.flink.formats.avro import AvroEncodings, WayRefused, avro_reading, ways_of
from airflow_lakestream.flink.formats.proof import JobFormat
from airflow_lakestream.flink.formats.reading import FormatReading, json_reading, raw_reading, text_reading
from airflow_lakestream.flink.job import JobSeries
from airflow_lakestream.flink.rest import FlinkRefused, SqlSession
from airflow_lakestream.registry.client import RegistryClient, SchemaNotFound


@dataclass(frozen=True)
class JobLine:
    """A line of jobs: the first began without a state, each later job with the state of the job before.

    :param since: the sequence number of the table's newest snapshot when the first job began.
    :param jobs: the jobs' ids.
    :param passed: text of `encode_ranges` with the offsets that were below a checkpoint's offsets while Kafka still had
        the records: a proof that the jobs have read these records.
    """

    since: int = 0
    jobs: tuple[str, ...] = ()
    passed: str = ""

    @classmethod
    def parse(cls, text: str, job: str) -> JobLine:
        """Return the line written by `str`; for a job noted before lines existed, a line of this job alone."""
        if not text:
            return cls(jobs=(job,))
        since, jobs, passed = json.loads(text)
        return cls(since, tuple(jobs), passed)

    def __str__(self) -> str:
        return json.dumps([self.since, list(self.jobs), self.passed])

    def line(self, topic: str, begins: Mapping[int, int]) -> EngineJobLine:
        """Return the line for a publication.

        :param begins: by partition, the first job's start.
        """
        return EngineJobLine(self.since, begins, decode_ranges(self.passed, topic))

    def restored(self, job: str, topic: str, ends: Mapping[int, int]) -> JobLine:
        """Return the line with a further job that continues from a state.

        Passed offsets behind the state's offsets are dropped, since the job reads these again.

        :param ends: by partition, the next offset in the state.
        """
        below_ends = union(RangeSet.of(topic, p, 0, end) for p, end in ends.items())
        return replace(self._passed(topic, decode_ranges(self.passed, topic) & below_ends), jobs=(*self.jobs, job))

    def with_passed(self, topic: str, ends: Mapping[int, int], lows: Mapping[int, int]) -> JobLine:
        """Return the line after a checkpoint.

        :param ends: by partition, the checkpoint's next offset.
        :param lows: by partition, the log's start, looked up after the checkpoint was complete.
        """
        in_kafka = union(RangeSet.of(topic, p, lows[p], end) for p, end in ends.items() if lows.get(p, end) < end)
        return self._passed(topic, decode_ranges(self.passed, topic) | in_kafka)

    def _passed(self, topic: str, ranges: RangeSet) -> JobLine:
        return replace(self, passed=encode_ranges(ranges, topic))


log = logging.getLogger(__name__)

# Number of checkpoints that the cluster has to keep. An idle stream commits only each tenth checkpoint: with fewer, the
# committed checkpoint would be gone before the publication reads it.
LEAST_KEPT = 20
_FLINK_PACKAGES = ("org.apache.flink.", "org.apache.calcite.")
_NOT_BY_ROW = (
    "its plan has {}: such a statement makes several rows of one record (UNNEST, LATERAL, joins), or one row of "
    "several records (windows, aggregates), or holds records back. The ledger needs each row to be of a single record, "
    "read before the checkpoint."
)
_BY_ROW = (
    "Select columns and leave records out by WHERE; FlinkScriptOperator runs any other statement, without a ledger."
)
_OTHER_TYPE = "Take another type for the column, or leave it out; or let the extract or Spark land the topic."


class LandingJobSeries(JobSeries):
    """The successive jobs of a landing."""

    def __init__(self, config: FlinkConfig) -> None:
        super().__init__(config)
        self._landing = config
        self._begins: Mapping[int, int] = {}
        self._line = JobLine()

    @property
    def program(self) -> str:
        """The fingerprint of the next job's work and Avro encodings. Raises the errors of `ways`."""
        return f"{super().program}/{fingerprint_of(asdict(self.ways))}" if self.ways else super().program

    @property
    def reads(self) -> str:
        """The format of the records, as text of `JobFormat`. Raises the errors of `ways`."""
        return str(JobFormat(self._landing.read_as, self.ways.places if self.ways else {}, self._begins))

    @cached_property
    def ways(self) -> AvroEncodings | None:
        """The encoding that Flink reads for each column, by all schemas of the topic; None for formats other than Avro.

        Raises InvalidArgument for columns that Flink would fill otherwise, and the registry's errors.
        """
        config = self._landing
        if config.format != "avro" or config.reads_texts:
            return None
        subject = f"{config.topic}-value"
        try:
            return ways_of(config.source_columns, RegistryClient(config.registry_config).versions(subject))
        except SchemaNotFound as e:
            problem = f"has no subject {subject}: a job can't begin before the fields' types are known."
            raise InvalidArgument("schema_registry", problem, "Register the writers' schemas there.") from e
        except (WayRefused, SchemaRefused) as e:
            raise InvalidArgument("columns", f"{e}.", _OTHER_TYPE) from e

    def newest_job_format(self) -> JobFormat:
        """Return the format in which the newest job reads records."""
        note = self.note()
        return JobFormat.parse("" if note is None else note.reads)

    def line(self, job: str, state: str) -> str:
        """Return the line of the next job, as text of `JobLine`.

        With a state, the job continues the newest line; otherwise the job begins a new line.

        :param job: id of the next job.
        :param state: the checkpoint or savepoint to begin with; empty without a state.
        """
        topic, newest = self._landing.topic, self.newest_line()
        if not state or newest is None:
            return str(replace(self._line, jobs=(job,)))
        return str(newest.restored(job, topic, self.checkpoints.offsets_at(state, topic) or {}))

    def newest_line(self) -> JobLine | None:
        """Return the line of the newest job; None without a job."""
        note = self.note()
        return None if note is None else JobLine.parse(note.line, note.job)

    def begin_line(self, starts: Mapping[int, int], since: int) -> None:
        """Note the beginning of another line, before its first job exists: the note's job id belongs to no job yet.

        :param starts: by partition, the job's start.
        :param since: see `JobLine`.
        """
        self._begins, self._line = starts, JobLine(since)
        self._write_note("")

    def note_passed(self, job: str, checkpoint: int, lows: Mapping[int, int]) -> None:
        """Note the offsets behind a complete checkpoint; see `JobLine.with_passed`.

        No note is written for a job other than the newest, or for a checkpoint that is gone.

        :param lows: by partition, the log's start, looked up after the checkpoint was complete.
        """
        topic, note = self._landing.topic, self.note()
        offsets = self.checkpoints.offsets(job, checkpoint, topic)
        if note is not None and note.job == job and offsets is not None:
            line = JobLine.parse(note.line, job).with_passed(topic, offsets, lows)
            self.write(replace(note, line=str(line)))

    def _reading(self) -> FormatReading:
        """Return how Flink reads the records' format. Raises InvalidArgument for a column that Flink can't read."""
        config = self._landing
        if config.reads_texts:
            return text_reading()
        if config.format == "raw":
            return raw_reading(config.source_columns)
        if self.ways is None:
            return json_reading(config.source_columns, skips_bad_records=config.leaves_to_extract)
        try:
            return avro_reading(config.source_columns, self.ways, config.registry_config)
        except WayRefused as e:
            raise InvalidArgument("columns", f"{e}.", _OTHER_TYPE) from e

    def state_for(self, holes: Mapping[int, int]) -> str:
        """Return the checkpoint or savepoint for the next job to begin with; empty to begin without a state.

        A checkpoint behind the ledger is not used: its job would again land records that another engine has landed.

        :param holes: by partition, the first offset that the ledger lacks.
        """
        note = self.note()
        if note is None:
            return ""
        if self.has_new_program():
            log.info("The program was changed: the new job begins where the ledger ends, without the old job's state.")
            return ""
        location = note.savepoint or self.checkpoints.newest(note.job) or note.restored
        offsets = self.checkpoints.offsets_at(location, self._landing.topic) if location else None
        if offsets is None:
            log.info("There is no complete checkpoint: the job begins where the ledger ends.")
            return ""
        behind = [
            f"[{p}] {offsets.get(p, 'nothing')} < {hole}" for p, hole in holes.items() if offsets.get(p, -1) < hole
        ]
        if behind:
            log.info("%s is behind the ledger (%s): the job begins there.", location, shown(behind, 5, "partitions"))
            return ""
        return location

    def submit(self, starts: Mapping[int, int], state: str, columns: Sequence[str]) -> str:
        """Submit a job; return the job's id. Raises InvalidArgument for limits of Flink's cluster or of the statement.

        :param starts: by partition, the job's start without a state.
        :param state: the checkpoint or savepoint to begin with; empty to begin without a state.
        :param columns: the table's columns.
        """
        config = self._landing
        if (kept := self.manager.kept_checkpoints()) < LEAST_KEPT:
            raise InvalidArgument(
                "flink_conn_id",
                f"the cluster keeps {kept} checkpoints of a job; an idle stream commits each tenth, and {LEAST_KEPT} "
                "are needed to publish it.",
                f"Set execution.checkpointing.num-retained: {LEAST_KEPT} in the JobManager's own configuration.",
            )

        reading = self._reading()
        self._begins = self.newest_job_format().begins if state else starts

        def run(session: SqlSession) -> None:
            """Run all statements; the last statement submits the job."""
            session.run(statements.create_catalog(config.catalog_name, config.catalog_properties, config.table))
            source = statements.create_source(config.topic, reading, config.kafka, config.consumer_group, starts)
            for statement in source:
                session.run(statement)
            row_columns = self._create_rows(session)
            self._check(row_columns, columns)
            self._insert(session, row_columns)

        job = self.submit_by(run, state)
        log.info("Submitted job %s%s.", job, f", from {state}" if state else f", at {dict(sorted(starts.items()))}")
        return job

    def _create_rows(self, session: SqlSession) -> list[str]:
        """Create a view with the rows to land in the session; return the view's columns.

        Raises InvalidArgument for a statement that Flink refuses, and for a statement that does more than to make or
        leave out a row for each record.
        """
        try:
            session.run(statements.create_view(self._landing.select))
            described, _ = session.run(f"DESCRIBE {statements.LANDED}")
            plan, _ = session.run(statements.PLAN) if self._landing.sql is not None else ([], None)
        except FlinkRefused as e:
            if self._landing.sql is None:
                raise
            cause = e.causes[-1] if e.causes else str(e)
            raise InvalidArgument("sql", f"Flink refuses it: {cause}", "It is a SELECT from `source`.") from e
        if steps := statements.find_steps_beyond_rows("\n".join(str(row[0]) for row in plan)):
            raise InvalidArgument("sql", _NOT_BY_ROW.format(", ".join(steps)), _BY_ROW)
        return [str(row[0]) for row in described]

    def _insert(self, session: SqlSession, columns: list[str]) -> None:
        """Submit the job that inserts the rows. Raises InvalidArgument if the rows do not fit the table's types."""
        config = self._landing
        try:
            session.run(statements.insert_rows(config.catalog_name, config.table, config.on_branch, columns))
        except FlinkRefused as e:
            cause = next((cause for cause in e.causes if "ValidationException" in cause), None)
            # Only for Flink's own error: an error of a store or a catalog may be temporary.
            if cause and e.causes[-1].startswith(_FLINK_PACKAGES):
                raise InvalidArgument("sql" if config.sql else "columns", f"Flink refuses the rows: {cause}") from e
            raise

    def _check(self, columns: list[str], table_columns: Sequence[str]) -> None:
        """Raise InvalidArgument for rows without positions, or with a column that the table lacks."""
        if missing := [name for name in statements.COLUMNS[:3] if name not in columns]:
            raise InvalidArgument(
                "sql",
                f"its rows lack {', '.join(missing)}: the record of a row is unknown, so the rows can't be published.",
                "Select these columns, too; a row of several records, such as a window's, has none of them.",
            )
        if unknown := [name for name in columns if name not in table_columns]:
            raise InvalidArgument(
                "sql" if self._landing.sql else "columns",
                f"{self._landing.table} has no column {', '.join(unknown)}.",
                "Add it to the table, or leave it out.",
            )
