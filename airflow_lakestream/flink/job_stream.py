"""A stream's job, under a lease: found or started, followed, stopped with a savepoint.

The driver is a process next to the worker. If the driver is killed, the job goes on; the next driver adopts it.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod

from airflow_lakestream.driver.lease import HeldLease
from airflow_lakestream.driver.progress import ProgressLog
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.flink.job import JobEnded, JobSeries, JobSpoilt, find_missing_dependency
from airflow_lakestream.flink.job_config import JobConfig
from airflow_lakestream.flink.rest import FlinkJobState, FlinkUnreachable

log = logging.getLogger(__name__)

# Seconds between two looks.
_LOOK = 2.0
# Seconds for a savepoint, which may take as long as a checkpoint.
_STOPS_WITHIN = 600.0


class JobStream(ABC):
    """A driver's supervision of the job of a stream.

    :param look_every: seconds between two looks.
    """

    def __init__(self, config: JobConfig, jobs: JobSeries, lease: HeldLease, look_every: float = _LOOK) -> None:
        self.jobs = jobs
        self.lease = lease
        self.progress = ProgressLog(config.checkpoint_location, config.store_properties)
        self._look_every = look_every
        # The number of the newest checkpoint that was reported as progress.
        self._checkpoint = 0

    @abstractmethod
    def start(self) -> str:
        """Submit a job, and return the job's id."""

    def look(self) -> None:  # noqa: B027  # a script has nothing to do here
        """Do the work that is due at a look at the running job."""

    def note_checkpoint(self, job: str, checkpoint: int) -> bool:
        """Note a job's completed checkpoint; return whether the checkpoint is a sign of health.

        Without signs of health the stall limit ends the driver. By default each checkpoint is a sign, and no note is
        written.
        """
        return True

    @abstractmethod
    def handle_end(self, job: str, state: FlinkJobState) -> None:
        """Handle the unrequested end of a job; after a return the driver ends without an error.

        Raises the error of `error_of` for a failure.
        """

    def handle_stop(self, savepoint: str) -> None:  # noqa: B027  # a script has nothing left to do then
        """Do the remaining work after a requested stop of the job."""

    def run(self) -> None:
        """Supervise the stream until an end is requested.

        Raises JobEnded for a job that has ended otherwise, LeaseLost, and the errors of a stream's own steps.
        """
        job = self.jobs.find_running()
        if job is None:
            job = self.start()
        else:
            log.info("Found job %s running.", job)
        try:
            self._follow(job)
        except LakestreamError as e:
            if isinstance(e, Terminal | JobSpoilt):
                # The rows that the job would still write can't be published either.
                self.jobs.cancel(job)
            raise

    def error_of(self, job: str, state: FlinkJobState) -> LakestreamError:
        """Return the error for an ended job; a terminal error if the cluster lacks a dependency."""
        causes = self.jobs.manager.causes(job)
        return find_missing_dependency(causes) or JobEnded(job, state, causes[-1] if causes else "")

    def _follow(self, job: str) -> None:
        """Watch a job until its end, or until a stop request, and look at its results in between."""
        while True:
            self.lease.check()
            if self.lease.stop_requested():
                log.info("Stopping job %s with a savepoint.", job)
                location = self.jobs.stop(job, _STOPS_WITHIN)
                log.info("Job %s has ended; its savepoint: %s", job, location)
                self.handle_stop(location)
                return
            state = self._state(job)
            if state is not None and state not in (FlinkJobState.RUNNING, FlinkJobState.STARTING):
                self.handle_end(job, state)
                return
            if state is not None:
                self._report_checkpoint(job)
            self.look()
            time.sleep(self._look_every)  # Flink does not report a completed checkpoint by itself.

    def _state(self, job: str) -> FlinkJobState | None:
        """Return the job's state, or None without an answer of the JobManager.

        Without an answer no progress is reported either, so the stall limit ends the driver after a while.
        """
        try:
            return self.jobs.manager.state(job)
        except FlinkUnreachable as e:
            log.warning("%s", e)
            return None

    def _report_checkpoint(self, job: str) -> None:
        """Report the job's newest completed checkpoint as progress, if it is new and a sign of health."""
        try:
            newest = self.jobs.manager.completed(job)
        except LakestreamError as e:
            log.warning("%s", e)
            return
        if newest > self._checkpoint and self.note_checkpoint(job, newest):
            self._checkpoint = newest
            self.progress.alive(f"checkpoint {newest} of job {job}")
