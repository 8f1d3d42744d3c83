"""Drivers as processes of this machine, each in its own session: they outlive the task and the worker's process.

A driver survives when its task's process group is killed or a terminal closes; it ends with its machine or container.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_lakestream.driver.backend import DriverHandle, SubmitFailed
from airflow_lakestream.driver.driver_folder import CONFIG_FILE, delete_secrets
from airflow_lakestream.driver.lease import read_lease, request_stop
from airflow_lakestream.driver.lease_record import LeaseState, ProcessIdentity
from airflow_lakestream.driver.supervisor import BackendState, OnKill

log = logging.getLogger(__name__)

KIND = "detached"
LOG_NAME = "driver.log"
_TAIL_BYTES = 16_384
_TAIL_LINES = 30
_KILL_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class DetachedJob:
    """A job to launch: a command without secrets, and a folder readable only by its owner."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


class DetachedBackend:
    """The backend of drivers that are processes of this machine.

    :param secrets: the files of a driver's folder that may hold secrets.
    :param remedy: remedy if the command can't be started.
    """

    def __init__(self, secrets: Sequence[str] = (CONFIG_FILE,), remedy: str = "") -> None:
        self._secrets = secrets
        self._remedy = remedy
        # By pid; kept so that an ended child process is reaped at the next look and leaves no zombie.
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def planned(self, job: DetachedJob) -> DriverHandle | None:
        """Return None: a process has no name before it runs."""
        return None

    def launch(self, job: DetachedJob) -> DriverHandle:
        """Start a driver; its output goes to a file in the driver's folder. Raises SubmitFailed.

        The driver has a session of its own, so that the task's end does not end the driver.
        """
        file = job.folder / LOG_NAME
        try:
            with file.open("ab") as output:
                process = subprocess.Popen(  # noqa: S603  # no shell; the command is the engine's
                    list(job.command),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=job.folder,
                    env=dict(job.environment),
                    start_new_session=True,
                )
        except OSError as e:
            raise SubmitFailed(f"{job.command[0]} can't be started: {e.strerror}. {self._remedy}".rstrip()) from e
        self._children[process.pid] = process
        return DriverHandle(KIND, log=str(file), process=ProcessIdentity.of(process.pid))

    def state(self, handle: DriverHandle) -> BackendState:
        """Return the process's state; UNKNOWN for a process of another machine.

        Only a child of this very process has an exit code here. Any other process that has ended is VANISHED.
        """
        if handle.process is None:
            return BackendState.UNKNOWN
        if child := self._children.get(handle.process.pid):
            exit_code = child.poll()
            if exit_code is not None:
                return BackendState.FAILED if exit_code else BackendState.FINISHED
        alive = handle.process.alive
        if alive is None:
            return BackendState.UNKNOWN
        return BackendState.RUNNING if alive else BackendState.VANISHED

    def kill(self, handle: DriverHandle) -> None:
        """Kill the driver and its child processes at once; a driver of another machine is left alone."""
        if handle.process is not None:
            kill_process(handle.process)
            # Reaps the killed child.
            self.state(handle)

    def log_tail(self, handle: DriverHandle) -> list[str]:
        """Return the last lines of the driver's log; empty if the log can't be read."""
        try:
            with Path(handle.log).open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
                return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        except OSError:
            return []

    def works(self, handle: DriverHandle) -> None:
        """Delete the files of the driver's folder with possible secrets: a working driver has read them."""
        if handle.log:
            delete_secrets(Path(handle.log).parent, self._secrets)

    def ended(self, handle: DriverHandle) -> None:
        """Keep the folder, for the driver's log."""


def kill_process(process: ProcessIdentity) -> None:
    """Kill a driver's process of this machine, and wait up to 30 s for the end of the process.

    A process that has ended, or that is of another machine, is left alone. A session leader, as `launch` makes it, is
    killed with its whole group. Any other process is killed alone, since its session may be a user's shell.
    """
    if process.alive is not True:
        return
    try:
        if process.session == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while process.alive and time.monotonic() < deadline:
        time.sleep(0.05)  # Poll: only a parent can wait for a process's end.
    if process.alive:
        log.warning("Driver %s is still there %g s after SIGKILL.", process.pid, _KILL_TIMEOUT_S)


def stop_driver(
    location: str,
    action: OnKill,
    by: str,
    *,
    within: float | None = None,
    kill: Callable[[], None] | None = None,
    properties: Mapping[str, str] | None = None,
) -> str:
    """Carry out `action` on a checkpoint's driver; return the result in words.

    GRACEFUL asks the driver to end. A driver that has not begun to work has no batch to end, and is killed. KILL kills
    the driver; a driver of another machine, without `kill`, is asked to end instead. LEAVE does nothing.

    :param by: the person or task that stops the driver, in words.
    :param within: seconds after which a driver that was asked to end is killed; None: never.
    :param kill: ends the driver by its backend; without it, a driver of this machine is killed by its pid.
    """
    if action is OnKill.LEAVE:
        return f"on_kill_action is {OnKill.LEAVE.value!r}: the driver goes on"
    request = "asked to end after its current batch" + ("" if within is None else f", within {within:g} s")
    if action is OnKill.GRACEFUL and request_stop(location, by, properties, within):
        return f"the driver was {request}"
    if kill is not None:
        kill()
        return "the driver was killed"
    lease = read_lease(location, properties)
    if lease is not None and lease.state() is LeaseState.HELD and lease.process.is_local:
        kill_process(lease.process)
        return "the driver was killed"
    if request_stop(location, by, properties, within):
        return f"the driver can't be killed from here; it was {request}"
    return "there was no driver"
