"""The driver of a script's or a program's job. The job's rows are between Flink and its sinks."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_lakestream.core.landing.plan import ANOTHER_REPLICA
from airflow_lakestream.driver.lease import HeldLease
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.flink import statements
from airflow_lakestream.flink.job import JobSeries
from airflow_lakestream.flink.job_stream import JobStream
from airflow_lakestream.flink.rest import FlinkJobState, FlinkRefused, SqlSession
from airflow_lakestream.flink.script.config import JarReplaced, ScriptConfig, digest_of, read_jar
from airflow_lakestream.kafka.damage import JavaDamage

log = logging.getLogger(__name__)


class StateLost(LakestreamError, Terminal):
    """Error of a job whose checkpoints are all gone."""


class ScriptAtDamage(LakestreamError, Terminal):
    """Error of a job at an unreadable batch of records, after Flink's own retries."""

    def __init__(self, job: str, damage: JavaDamage) -> None:
        super().__init__(
            f"Flink's job {job} failed: a batch of records of {damage.topic}[{damage.partition}] is damaged in Kafka: "
            f"{damage.line}. {ANOTHER_REPLICA} Else let the job begin behind the batch, whose end kafka-dump-log.sh "
            "shows: give another checkpoint_location, and the script's source scan.startup.mode = 'specific-offsets'."
        )


class ScriptFinished(LakestreamError, Terminal):
    """Error of a checkpoint whose job has finished in an earlier run."""


class ScriptStream(JobStream):
    """A script's job. Only Flink's state has the job's progress: once a state exists, no job begins without it."""

    def __init__(self, config: ScriptConfig, lease: HeldLease) -> None:
        super().__init__(config, JobSeries(config), lease)
        self._script = config

    def start(self) -> str:
        """Submit a job with the state of the job before; return the job's id.

        Raises ScriptFinished if an earlier job has read bounded sources to their end, and StateLost if a job had
        checkpoints, and all are gone.
        """
        self.lease.check()
        state = self._state_to_begin_with()
        job = self._submit_program(state) if self._script.jar else self.jobs.submit_by(self._run, state)
        log.info("Submitted job %s%s. It has no ledger.", job, f", from {state}" if state else "")
        return job

    def run(self) -> None:
        """Refuse a changed script before the old script's job is touched, then supervise the stream."""
        self._check_script()
        super().run()

    def note_checkpoint(self, job: str, checkpoint: int) -> bool:
        """Set `moved` in the job's note at the first completed checkpoint; return True.

        Once `moved` is set, `start` raises StateLost if all checkpoints are gone: a job without a state would write the
        committed rows again. The result is always True, since each checkpoint of a script is a sign of health.

        :param job: unused: the note is about the running job.
        :param checkpoint: unused: any completed checkpoint counts.
        """
        note = self.jobs.note()
        if note is not None and not note.moved:
            self.jobs.write(replace(note, moved="yes"))
        return True

    def handle_end(self, job: str, state: FlinkJobState) -> None:
        """Note a job as finished at the end of bounded sources. Raises the error of `error_of` for any other end."""
        if state is not FlinkJobState.FINISHED:
            raise self.error_of(job, state)
        note = self.jobs.note()
        if note is not None:
            self.jobs.write(replace(note, finished="yes"))
        log.info("Job %s has finished.", job)

    def error_of(self, job: str, state: FlinkJobState) -> LakestreamError:
        """Return the error of an ended job; at a damaged batch a terminal error."""
        damage = JavaDamage.of("\n".join(self.jobs.manager.causes(job)))
        # Without a topic the error may be of a record that a broker has refused.
        return ScriptAtDamage(job, damage) if damage is not None and damage.topic else super().error_of(job, state)

    def _check_script(self) -> None:
        """Raise InvalidArgument if the checkpoint has the state of another program."""
        note = self.jobs.note()
        # Only the text before the first slash: the settings after it may change without loss of the state.
        if note is None or note.program.split("/")[0] == self._script.state_of:
            return
        if self._script.jar:
            raise InvalidArgument(
                "entry_class",
                "was changed, or the catalog was, and the checkpoint has the state of another program.",
                "Give another checkpoint_location, where the new one begins without a state.",
            )
        raise InvalidArgument(
            "script",
            "was changed, or its Kafka, database or catalog was, and the checkpoint has the state of the old one.",
            "Give another checkpoint_location, where the new script begins without a state; or put the old one back.",
        )

    def _state_to_begin_with(self) -> str:
        """Return the savepoint or checkpoint for the next job; empty for the first job. Raises as `start` does."""
        note = self.jobs.note()
        if note is None:
            return ""
        location = self._script.checkpoint_location
        # A job that was stopped on request has a savepoint, and continues.
        if note.finished and not note.savepoint:
            raise ScriptFinished(
                f"The job at {location} has finished in an earlier run. Give another checkpoint_location, such as one "
                "with {{ run_id }} in it, to run it again."
            )
        location = note.savepoint or self.jobs.checkpoints.newest(note.job) or note.restored
        if not location and note.moved:
            raise StateLost(
                f"Job {note.job} had completed checkpoints, and there is none in {self.jobs.checkpoints.location}. "
                "Without a checkpoint the job would write its rows again. Restore the checkpoints; or give another "
                "checkpoint_location, and set the first offsets in the script's sources."
            )
        return location

    def _submit_program(self, state: str) -> str:
        config = self._script
        content = read_jar(config.jar)
        if digest_of(content) != config.jar_digest:
            raise JarReplaced(config.jar)
        request: dict[str, Any] = {"programArgsList": list(config.program_arguments)}
        if config.entry_class:
            request["entryClass"] = config.entry_class
        return self.jobs.submit_program(Path(config.jar).name, content, request, state)

    def _run(self, session: SqlSession) -> None:
        """Run the script's statements. Raises InvalidArgument for a statement that Flink refuses."""
        config = self._script
        if config.catalog_properties:
            session.run(statements.create_catalog(config.catalog_name, config.catalog_properties))
        for number, statement in enumerate(config.parsed.statements(config.kafka, config.database), 1):
            try:
                session.run(statement)
            except FlinkRefused as e:
                causes = [cause for cause in e.causes if "ValidationException" in cause or "Parse" in cause]
                if not causes:
                    raise
                # Without the statement, which may hold the connection's secrets.
                raise InvalidArgument("script", f"Flink refuses statement {number}: {causes[0]}") from None
