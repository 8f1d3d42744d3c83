"""The job of a stream: found again, submitted with the state of the job before, stopped with a savepoint.

`flink-job.json` in the driver's folder names the job. It is written before the job is submitted, under an id that we
choose, so that the next driver finds the job, even if the driver that submitted it has failed.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from airflow_lakestream.core.landing.plan import BEHIND_DAMAGE, DamagedBatch
from airflow_lakestream.driver.driver_folder import DriverFolder
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, Transient
from airflow_lakestream.flink import statements
from airflow_lakestream.flink.checkpoints import CheckpointFolder
from airflow_lakestream.flink.job_config import JobConfig
from airflow_lakestream.flink.rest import (
    FlinkAddress,
    FlinkJobState,
    FlinkRefused,
    FlinkUnreachable,
    JobManager,
    SqlSession,
)
from airflow_lakestream.spark.lake_settings import ICEBERG_VERSION

log = logging.getLogger(__name__)


_PAGE = "docs/flink.md has the jars."
# By the pattern of a message: the argument that needs the dependency, the problem, and the remedy.
_LACKING = (
    (
        r"Could not find a file system implementation for scheme '(s3a?)'",
        "checkpoint_location",
        "Flink has no file system for {0}://.",
        "Put flink-s3-fs-hadoop, of Flink's version, into a folder of its own below `plugins` of each of its "
        "processes, and the store's endpoint and keys into Flink's configuration.",
    ),
    (
        r"Could not find a file system implementation for scheme '(\w+)'",
        "checkpoint_location",
        "Flink has no file system for {0}://.",
        "Give Flink the plugin of that store, or choose a location that Flink supports.",
    ),
    (
        r"(?:NoClassDefFoundError|ClassNotFoundException): (software[./]amazon\S+)",
        "iceberg_conn_id",
        "its tables are in S3, and Flink lacks the S3 client ({0}).",
        f"Put iceberg-aws-bundle:{ICEBERG_VERSION} on the class path of each of Flink's processes.",
    ),
    (
        r"(?:NoClassDefFoundError|ClassNotFoundException): (org[./]apache[./](?:hadoop[./]hive|thrift)\S+)",
        "iceberg_conn_id",
        "its catalog is Hive's metastore, and Flink lacks the metastore's client ({0}).",
        f"Put the client on the class path of each of Flink's processes. {_PAGE}",
    ),
    (
        r"No suitable driver found for jdbc:(\w+):",
        "iceberg_conn_id",
        "its catalog is in a database, and Flink lacks the JDBC driver of {0}.",
        "Put the driver on the class path of each of Flink's processes.",
    ),
)


def find_missing_dependency(causes: Sequence[str]) -> InvalidArgument | None:
    """Return the error for a missing dependency; None if the causes name no missing dependency."""
    for pattern, argument, problem, remedy in _LACKING:
        for cause in causes:
            if match := re.search(pattern, cause):
                return InvalidArgument(argument, problem.format(match[1].rstrip("])}")), remedy)
    return None


_NOTE = "flink-job.json"
# Seconds to wait for a job's end, and between two looks meanwhile.
_ENDS_WITHIN = 120.0
_PAUSE = 0.5
# Flink's error while a job starts.
_NOT_YET = "Not all required tasks are currently running"
_ALIVE = (FlinkJobState.RUNNING, FlinkJobState.STARTING)


class JobEnded(LakestreamError, Transient):
    """Error of a job ended without a request."""

    def __init__(self, job: str, state: FlinkJobState, reason: str) -> None:
        end = {
            FlinkJobState.GONE: "is gone: the JobManager was restarted, and has no high availability",
            FlinkJobState.CANCELED: "was canceled by somebody else",
            FlinkJobState.FINISHED: "was stopped by somebody else",
        }.get(state, "failed")
        super().__init__(f"Flink's job {job} {end}{f': {reason}' if reason else '.'}")


class JobAtDamage(LakestreamError, Terminal):
    """Error of a job at a batch of records unreadable for both Flink and us."""

    def __init__(self, job: str, damaged: DamagedBatch) -> None:
        self.ranges = damaged.ranges
        super().__init__(f"Flink's job {job} makes no progress. {damaged.description}. {BEHIND_DAMAGE}")


class JobSpoilt(LakestreamError, Transient):
    """Error of a job whose rows can't be published; a new job reads the records again."""


@dataclass(frozen=True)
class JobNote:
    """The note about a stream's newest job.

    :param program: fingerprint of the job's work: only a job with the same fingerprint continues from its state.
    :param restored: the checkpoint or savepoint that the job began with; empty without a state.
    :param savepoint: the savepoint by which the job was stopped; empty if the job was not stopped.
    :param finished: equal to `savepoint` if the job has ended in order after it: the branch then has all records that
        the job read. "yes" for a script whose bounded sources have ended. Otherwise empty.
    :param moved: "yes" once a script's job has completed a checkpoint; always empty for a landing, which has a ledger.
    :param reads: the format of the records, as text of `JobFormat`; empty for a script.
    :param line: the earlier jobs whose state the job continues, as text of `JobLine`; empty without publications.
    """

    job: str
    program: str
    restored: str = ""
    savepoint: str = ""
    finished: str = ""
    moved: str = ""
    reads: str = ""
    line: str = ""


class JobSeries:
    """The successive jobs of a stream; the note about the newest job is in the driver's folder."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._folder = DriverFolder(config.checkpoint_location, config.store_properties)
        self.manager = JobManager(config.manager_address)
        location = _as_uri(config.checkpoint_location)
        self.checkpoints = CheckpointFolder(f"{location}/checkpoints", config.store_properties)
        self._savepoints = f"{location}/savepoints"

    def note(self) -> JobNote | None:
        """Return the note about the newest job; None without a note."""
        content: Mapping[str, Any] = self._folder.read(_NOTE) or {}
        known = {name: str(content[name]) for name in JobNote.__dataclass_fields__ if name in content}
        return JobNote(**known) if {"job", "program"} <= known.keys() else None

    @property
    def program(self) -> str:
        """The fingerprint of the next job's work: different for a job that can't continue from the old state."""
        return self._config.program

    @property
    def reads(self) -> str:
        """The next job's format of records, see `JobNote.reads`."""
        return ""

    def line(self, job: str, state: str) -> str:
        """Return the earlier jobs whose state the next job continues, see `JobNote.line`.

        :param job: id of the next job.
        :param state: the checkpoint or savepoint that the job begins with; empty without a state.
        """
        return ""

    def has_new_program(self) -> bool:
        """Return whether the next job differs in program from the newest job."""
        note = self.note()
        return note is not None and note.program != self.program

    def find_running(self) -> str | None:
        """Return the newest job if it runs the configured program, or None; cancel a job with another program.

        Raises FlinkUnreachable if the canceled job goes on: both jobs would write.
        """
        note = self.note()
        if note is None or note.savepoint or self.manager.state(note.job) not in _ALIVE:
            return None
        if note.program == self.program:
            return note.job
        log.info("Job %s runs a program that was changed since. It is canceled.", note.job)
        self.end(note.job)
        return None

    def end(self, job: str) -> None:
        """Cancel a job, and wait until the job has ended. Raises FlinkUnreachable if the job goes on."""
        self.cancel(job)
        if self._state_at_end(job) in _ALIVE:
            timeout = TimeoutError(f"job {job} goes on {_ENDS_WITHIN:g} s after it was canceled")
            raise FlinkUnreachable(self._config.manager_address.url, timeout)

    def submit_by(self, statements_of: Callable[[SqlSession], None], state: str) -> str:
        """Submit a job by SQL statements, run in a session with our settings; return the job's id.

        The note about the job is written before the submit. Raises InvalidArgument if the cluster lacks a dependency.

        :param statements_of: runs the statements in the session; one of them submits the job.
        :param state: the checkpoint or savepoint to begin with; empty to begin without a state.
        """
        note = self._write_note(state)
        settings = self._settings() | {"$internal.pipeline.job-id": note.job, "execution.runtime-mode": "STREAMING"}
        if state:
            settings["execution.state-recovery.path"] = state
        with _missing_dependencies_named(), SqlSession(self._config.gateway_address) as session:
            for statement in statements.set_settings(settings):
                session.run(statement)
            statements_of(session)
        return note.job

    def submit_program(self, name: str, jar: bytes, request: Mapping[str, Any], state: str) -> str:
        """Submit the single job of a program with our settings; return the job's id. See `submit_by`.

        :param name: file name of the jar.
        :param jar: content of the jar.
        :param request: further fields of the API's request: class and arguments.
        :param state: see `submit_by`.
        """
        note = self._write_note(state)
        body = {**request, "jobId": note.job, "flinkConfiguration": self._settings(), "allowNonRestoredState": False}
        if state:
            body["savepointPath"] = state
        if self._config.parallelism is not None:
            body["parallelism"] = self._config.parallelism
        with _missing_dependencies_named():
            self.manager.run_jar(name, jar, body)
        return note.job

    def _write_note(self, state: str) -> JobNote:
        """Write and return the note about the next job, with a new job id."""
        job = uuid.uuid4().hex
        note = JobNote(job, self.program, state, reads=self.reads, line=self.line(job, state))
        self.write(note)
        return note

    def write(self, note: JobNote) -> None:
        """Write the note about the newest job."""
        self._folder.write(_NOTE, asdict(note))

    def stop(self, job: str, within: float) -> str:
        """Stop a job with a savepoint, and note the savepoint; return the savepoint's location after the job's end.

        Raises FlinkRefused, and FlinkUnreachable if the savepoint is late. Raises JobEnded if the savepoint is
        complete, but the job did not end in order: the next job begins with the savepoint.

        :param within: seconds for the savepoint.
        """
        location = self._stop_with_savepoint(job, within)
        state = self._state_at_end(job)
        note = self.note()
        if note is not None and note.job == job:
            finished = location if state is FlinkJobState.FINISHED else ""
            self.write(replace(note, savepoint=location, finished=finished))
        if state is not FlinkJobState.FINISHED:
            # The savepoint's files may not be in the branch yet: the job that begins with the savepoint commits them.
            causes = self.manager.causes(job)
            raise JobEnded(job, state, causes[-1] if causes else "")
        return location

    def _stop_with_savepoint(self, job: str, within: float) -> str:
        """Stop a job with a savepoint, with retries for two minutes until all tasks run.

        Raises FlinkRefused, and FlinkUnreachable without a savepoint within the limit.
        """
        deadline = time.monotonic() + _ENDS_WITHIN
        while True:
            try:
                return self.manager.stop(job, self._savepoints, within)
            except FlinkRefused as e:
                if _NOT_YET not in str(e) or time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE)  # The API has no call that waits.

    def _state_at_end(self, job: str) -> FlinkJobState:
        """Wait up to two minutes for the end of a job; return the job's state, ended or not."""
        deadline = time.monotonic() + _ENDS_WITHIN
        while (state := self.manager.state(job)) in _ALIVE and time.monotonic() < deadline:
            time.sleep(_PAUSE)  # The API has no call that waits.
        return state

    def cancel(self, job: str) -> None:
        """Cancel a job; the checkpoints stay.

        A refusal is logged and not raised: the next driver adopts or cancels the job.
        """
        try:
            self.manager.cancel(job)
        except LakestreamError as e:
            log.warning("Job %s could not be canceled: %s", job, e)

    def _settings(self) -> dict[str, str]:
        """Return Flink's settings of a job."""
        config = self._config
        settings = {
            "pipeline.name": config.job_name,
            "execution.checkpointing.interval": f"{int(config.checkpoint_interval * 1000)} ms",
            "execution.checkpointing.dir": self.checkpoints.location,
            "execution.checkpointing.savepoint-dir": self._savepoints,
            "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
            "execution.checkpointing.data-inline-threshold": "1 mb",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "3",
            "restart-strategy.fixed-delay.delay": "2 s",
            # Times without a zone in records do not depend on the cluster's time zone.
            "table.local-time-zone": "UTC",
        }
        if config.parallelism is not None:
            settings["parallelism.default"] = str(config.parallelism)
        return settings


@contextmanager
def _missing_dependencies_named() -> Iterator[None]:
    """Turn a cluster's refusal into an error about the missing dependency. Raises InvalidArgument, or the refusal."""
    try:
        yield
    except FlinkRefused as e:
        error = find_missing_dependency(e.causes)
        if error is None:
            raise
        raise error from e


def _as_uri(location: str) -> str:
    """Return a location in Flink's form."""
    return (location if ":" in location.split("/")[0] else f"file://{location}").rstrip("/")


def cancel_noted(location: str, properties: Mapping[str, str], manager: FlinkAddress) -> None:
    """Cancel the noted job of a stream, unless a savepoint has stopped it. Raises no error; the checkpoints stay."""
    try:
        note = DriverFolder(location, properties).read(_NOTE) or {}
        if note.get("job") and not note.get("savepoint"):
            JobManager(manager).cancel(str(note["job"]))
    except (LakestreamError, OSError) as e:
        log.warning("The job of %s could not be canceled: %s", location, e)
