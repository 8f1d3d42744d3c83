"""A task's driver: found or submitted, followed, restarted, stopped. A stream has one driver at a time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from airflow_lakestream.driver.backend import DriverBackend, DriverHandle
from airflow_lakestream.driver.detached import kill_process, stop_driver
from airflow_lakestream.driver.driver_folder import DriverFolder
from airflow_lakestream.driver.lease import OtherInputs, check_inputs, is_stop_requested, read_lease
from airflow_lakestream.driver.lease_record import TTL_SECONDS, LeaseRecord, LeaseState, fingerprint_of
from airflow_lakestream.driver.progress import DriverProgress, read_progress
from airflow_lakestream.driver.supervisor import (
    ENDED,
    BackendState,
    DriverLook,
    DriverState,
    DriverWatch,
    OnKill,
    SupervisionDecision,
    SupervisionHistory,
    SupervisionLimits,
    SupervisorAction,
)
from airflow_lakestream.exceptions import LakestreamError, Transient

_FILE_PREFIX = "submit-"


class SubmitAction(StrEnum):
    """Action of a submitter: adopt the running driver, wait for a stopping driver, or submit."""

    ADOPT = "adopt"
    WAIT = "wait"
    SUBMIT = "submit"


@dataclass(frozen=True)
class FoundDriver:
    """The result of a search for a stream's driver, with the submitter's action.

    :param generation: the lowest possible lease generation of the driver.
    :param attempt: number of the submits for this generation.
    :param handle: the driver's handle, if its submitter has noted the handle.
    :param lease: the driver's lease, if the driver has taken its lease.
    """

    action: SubmitAction
    generation: int
    attempt: int = 0
    handle: DriverHandle | None = None
    lease: LeaseRecord | None = None


class Overtaken(LakestreamError, Transient):
    """Error of a driver just being submitted by another task."""

    def __init__(self, location: str) -> None:
        super().__init__(
            f"checkpoint {location}: another task is submitting its driver right now. A retry adopts that driver."
        )


@dataclass(frozen=True)
class StreamSpec:
    """Identity and limits of a stream.

    :param location: the checkpoint's location.
    :param fingerprint: fingerprint of the configuration.
    :param inputs: the inputs that the checkpoint keeps for ever.
    :param poll_interval: seconds between two looks.
    :param by: the submitter, in words.
    :param properties: properties of the checkpoint's object store; may hold secrets.
    """

    location: str
    fingerprint: str
    inputs: Mapping[str, str]
    limits: SupervisionLimits
    poll_interval: float
    by: str
    properties: Mapping[str, str] | None = None


class DriverSubmissions:
    """The submits of drivers for a checkpoint.

    Each submit has a file `submit-<generation>-<attempt>.json` in the driver's folder. Only one process can create a
    file of that name, and this process may launch a driver.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self._folder = DriverFolder(spec.location, spec.properties)

    def lease(self) -> LeaseRecord | None:
        """Return the newest lease; None without a lease."""
        return read_lease(self._spec.location, self._spec.properties)

    def find(self) -> FoundDriver:
        """Find the stream's driver, or the generation to submit.

        A driver that holds the lease is adopted, or awaited if it was asked to end. Without such a driver, a submit
        younger than `start_timeout` is adopted, since its driver may still take the lease. Otherwise the action is
        SUBMIT.

        Raises OtherInputs if the checkpoint belongs to a stream with other inputs, or if the driver to adopt has
        another configuration.
        """
        lease = self.lease()
        check_inputs(self._spec.location, lease, self._spec.inputs)
        if lease and lease.state() is LeaseState.HELD:
            attempt, record = self._newest_submit(lease.generation)
            if is_stop_requested(self._spec.location, lease, self._spec.properties):
                return FoundDriver(SubmitAction.WAIT, lease.generation, attempt, _handle(record), lease)
            self._check_same(lease.fingerprint, str(lease))
            return FoundDriver(SubmitAction.ADOPT, lease.generation, attempt, _handle(record), lease)
        generation = lease.generation + 1 if lease else 1
        attempt, record = self._newest_submit(generation)
        handle = _handle(record)
        if record is None or not self._may_still_start(record, handle):
            return FoundDriver(SubmitAction.SUBMIT, generation, attempt)
        self._check_same(str(record.get("fingerprint")), str(record.get("by")))
        return FoundDriver(SubmitAction.ADOPT, generation, attempt, handle)

    def current(self) -> FoundDriver:
        """Return the last driver with a submit or a lease, even if it has ended; the action has no meaning."""
        lease = self.lease()
        generation = lease.generation if lease else 0
        attempt, record = self._newest_submit(generation + 1)
        if record is not None:
            return FoundDriver(SubmitAction.ADOPT, generation + 1, attempt, _handle(record))
        attempt, record = self._newest_submit(generation)
        return FoundDriver(SubmitAction.ADOPT, generation, attempt, _handle(record), lease)

    def claim(self, driver: FoundDriver) -> FoundDriver:
        """Claim the right to launch, and delete the files of earlier submits; return the claimed driver.

        Raises Overtaken if another submitter has the right.
        """
        claimed = replace(driver, attempt=driver.attempt + 1)
        if not self._folder.create(self._file(claimed), self._record(None)):
            raise Overtaken(self._spec.location)
        for name in self._folder.names():
            if name.startswith(_FILE_PREFIX) and name < self._file(claimed):
                self._folder.remove(name)
        return claimed

    def launched(self, claimed: FoundDriver, handle: DriverHandle) -> FoundDriver:
        """Write the handle of a launched driver into the claimed file; return the driver with the handle."""
        self._folder.write(self._file(claimed), self._record(handle))
        return replace(claimed, handle=handle)

    def failed(self, claimed: FoundDriver) -> None:
        """Give the right to launch back after a failed launch, so that the next try need not wait."""
        self._folder.remove(self._file(claimed))

    def _may_still_start(self, record: Mapping[str, Any], handle: DriverHandle | None) -> bool:
        """Return whether a submitted driver may still take its lease."""
        if handle is not None and handle.is_over:
            return False
        return time.time() - float(record.get("at", 0)) < self._spec.limits.start_timeout

    def _check_same(self, fingerprint: str, driver: str) -> None:
        """Raise OtherInputs if a driver's fingerprint is not the stream's."""
        if fingerprint != self._spec.fingerprint:
            raise OtherInputs(
                self._spec.location,
                f"its driver, {driver}, runs with another configuration",
                "Let it end, or stop it (mark its task failed); a retry then goes on where it stopped.",
            )

    def _record(self, handle: DriverHandle | None) -> dict[str, Any]:
        entry = {"fingerprint": self._spec.fingerprint, "by": self._spec.by, "at": time.time()}
        return {**entry, "handle": handle.to_dict() if handle else None}

    def _newest_submit(self, generation: int) -> tuple[int, dict[str, Any] | None]:
        """Return the newest attempt of a generation, with the content of its file; (0, None) without a submit."""
        prefix = f"{_FILE_PREFIX}{generation:08d}-"
        # The names are sorted, so the last name has the newest attempt.
        names = [name for name in self._folder.names() if name.startswith(prefix)]
        if not names:
            return 0, None
        attempt = names[-1].removeprefix(prefix).removesuffix(".json")
        return int(attempt), self._folder.read(names[-1])

    def _file(self, driver: FoundDriver) -> str:
        return f"{_FILE_PREFIX}{driver.generation:08d}-{driver.attempt:04d}.json"


def _handle(record: Mapping[str, Any] | None) -> DriverHandle | None:
    try:
        return DriverHandle.parse(record["handle"]) if record and record.get("handle") else None
    except (KeyError, TypeError, ValueError):
        return None


log = logging.getLogger(__name__)

# Seconds between two looks at a process of this machine, which cost next to nothing.
_PROCESS_LOOK_S = 0.5


class DriverSupervision:
    """Supervision of a stream's driver in one process.

    :param spec: the stream.
    :param backend: the manager of the drivers.
    :param prepare: builds the backend's job; called once per launch.
    :param wait: waits the given seconds; raises when the task is to end.
    """

    def __init__(
        self, spec: StreamSpec, backend: DriverBackend, prepare: Callable[[], Any], wait: Callable[[float], None]
    ) -> None:
        self.spec = spec
        self._backend = backend
        self._prepare = prepare
        self._wait = wait
        self._submissions = DriverSubmissions(spec)
        self._folder = DriverFolder(spec.location, spec.properties)
        # `by` is the same in each try of a task run, so the tries share these files. Files of older versions have these
        # names: keep them.
        run = fingerprint_of({"run": spec.by})
        self._begun_file, self._reported_file = f"begun-{run}.json", f"told-{run}.json"
        self._driver: FoundDriver | None = None
        # The last heartbeat of a driver that the backend reports as gone, by the lease's generation.
        self._last_beats: dict[int, float] = {}
        self._batches_before: int | None = None
        self._watch: DriverWatch | None = None

    @property
    def generation(self) -> int:
        """The lowest possible lease generation of this driver; 0 before `begin`."""
        return self._driver.generation if self._driver else 0

    @property
    def handle(self) -> DriverHandle | None:
        """The handle of the driver, if a task submitted the driver."""
        return self._driver.handle if self._driver else None

    def before(self) -> dict[str, Any]:
        """Return the sums of the checkpoint's drivers before this run's first try began.

        The first try writes the sums into the driver's folder, and later tries read them there.
        """
        progress = read_progress(self.spec.location, self.spec.properties)
        self._batches_before = progress.batches
        sums = progress.sums()
        is_first_try = self._folder.create(self._begun_file, sums)
        return sums if is_first_try else self._folder.read(self._begun_file) or sums

    def progress(self) -> DriverProgress:
        """Return the current sums."""
        return read_progress(self.spec.location, self.spec.properties)

    def reported_sums(self) -> dict[str, Any]:
        """Return the sums already reported by earlier tries of the run, or else the sums of `before`."""
        return self._folder.read(self._reported_file) or self._folder.read(self._begun_file) or DriverProgress().sums()

    def mark_reported(self, sums: Mapping[str, Any]) -> None:
        """Note these sums as reported, for the run's next try."""
        self._folder.write(self._reported_file, sums)

    def finish(self) -> DriverProgress:
        """Return the last sums, and delete the run's files and the driver's leftovers.

        Without the files with the run's sums, a cleared task counts from its own beginning.
        """
        self._folder.remove(self._begun_file)
        self._folder.remove(self._reported_file)
        if self.handle is not None:
            self._backend.ended(self.handle)
        return self.progress()

    def begin(self, history: SupervisionHistory | None = None) -> None:
        """Adopt the stream's driver, or submit a driver.

        A driver that was asked to end is awaited first, and killed if it is overdue. Raises OtherInputs, see
        `DriverSubmissions.find`, SubmitFailed, and the errors of `prepare`.

        :param history: history of this driver or of earlier drivers, for a restart; None at the start of a supervision.
        """
        self._driver = self._find_or_submit()
        now = time.time()
        # The limits count from now, without the wait for the end of a replaced driver.
        history = replace(history, submitted_at=now) if history else SupervisionHistory(submitted_at=now)
        spec = self.spec
        reported = self._watch.reported if self._watch else self._batches_before
        self._watch = DriverWatch(
            spec.location, self.generation, spec.limits, history, self._backend_state, reported, spec.properties
        )

    def resume(self, history: SupervisionHistory) -> None:
        """Take over the driver of another process, for a restart or an end.

        :param history: unused, since a restart gives the history to `begin`.
        """
        self._driver = self._submissions.current()

    def follow(self, report: Callable[[DriverLook], None], until_started: bool = False) -> SupervisionDecision:
        """Look regularly until an action is due; return the decision of the last look.

        :param report: called with each look.
        :param until_started: whether to return already when the driver has started to work.
        """
        assert self._watch is not None, "begin comes first"
        while True:
            look = self._watch.look()
            report(look)
            is_starting = look.sight.driver is DriverState.STARTING
            if look.lease is not None and not is_starting and self.handle is not None:
                self._backend.works(self.handle)
            if look.decision.action is not SupervisorAction.WAIT or (until_started and not is_starting):
                return look.decision
            self._wait_for_look()

    def pause(self, until: float) -> None:
        """Wait until the given time, in seconds since 1970."""
        self._wait(max(0.0, until - time.time()))

    def clear_away(self) -> None:
        """Kill a driver to be replaced or given up.

        The backend kills a driver with a handle. A driver of this machine is killed by the pid in its lease, too,
        unless the lease has an outcome.
        """
        if self._driver is None:
            return
        if self._driver.handle is not None:
            self._backend.kill(self._driver.handle)
        lease = self._submissions.lease()
        if lease is not None and lease.generation >= self.generation and lease.outcome is None:
            kill_process(lease.process)

    def stop(self, action: OnKill) -> str:
        """Carry out `on_kill_action`; return the result in words.

        The file with the run's first sums is deleted: a next run counts from its own beginning.
        """
        self._folder.remove(self._begun_file)
        if self._driver is None:
            return "there was no driver yet"
        kill = self.clear_away if self._driver.handle is not None else None
        spec = self.spec
        timeout = spec.limits.stop_timeout
        return stop_driver(spec.location, action, spec.by, within=timeout, kill=kill, properties=spec.properties)

    def log_tail(self) -> list[str]:
        """Return the last lines of the driver's log, if readable."""
        return self._backend.log_tail(self.handle) if self.handle else []

    def _wait_for_look(self) -> None:
        """Wait until the next look is due, or until a driver of this machine has ended."""
        end, was_over = time.monotonic() + self.spec.poll_interval, self._is_over
        while (seconds_left := end - time.monotonic()) > 0 and self._is_over == was_over:
            self._wait(min(seconds_left, _PROCESS_LOOK_S))

    @property
    def _is_over(self) -> bool:
        return self.handle is not None and self.handle.is_over

    def _backend_state(self) -> BackendState:
        return self._backend.state(self.handle) if self.handle else BackendState.UNKNOWN

    def _find_or_submit(self) -> FoundDriver:
        """Adopt or submit a driver; wait while another driver ends, and kill a driver that does not end in time."""
        # An overdue driver kills itself; only later it is killed from here.
        timeout = self.spec.limits.stop_timeout
        deadline = time.monotonic() + (math.inf if timeout is None else timeout + TTL_SECONDS)
        while True:
            driver = self._action_by_backend(self._submissions.find())
            if driver.action is SubmitAction.ADOPT:
                description = driver.lease or driver.handle or "new"
                log.info("Found the driver of %s running: %s", self.spec.location, description)
                return driver
            if driver.action is SubmitAction.SUBMIT:
                try:
                    return self._submit(self._submissions.claim(driver))
                except Overtaken as e:
                    log.info("%s", e)
            elif time.monotonic() > deadline:
                log.warning("The driver did not give its lease back. It is killed: %s", driver.lease)
                self._driver = driver
                self.clear_away()
            else:
                log.info("Waiting for a driver that was asked to end, or is gone: %s", driver.lease)
            self._wait(min(self.spec.poll_interval, 2.0))

    def _action_by_backend(self, driver: FoundDriver) -> FoundDriver:
        """Return a driver with another action than ADOPT if the backend reports that the driver has ended.

        Without a lease the next driver is submitted. With a lease, the end of the lease is awaited; but if heartbeats
        still arrive, the lease belongs to a later driver, which is adopted without a handle.
        """
        if driver.action is not SubmitAction.ADOPT or driver.handle is None:
            return driver
        if self._backend.state(driver.handle) not in ENDED:
            return driver
        if driver.lease is None:
            return replace(driver, action=SubmitAction.SUBMIT)
        if driver.lease.beat_at > self._last_beats.setdefault(driver.lease.generation, driver.lease.beat_at):
            return replace(driver, handle=None)
        return replace(driver, action=SubmitAction.WAIT)

    def _submit(self, claimed: FoundDriver) -> FoundDriver:
        """Launch a driver; return the driver with its handle. Raises SubmitFailed, and the errors of `prepare`."""
        try:
            job = self._prepare()
            if (planned := self._backend.planned(job)) is not None:
                # Before the launch: if this worker dies before the backend answers, the next worker has the handle.
                self._submissions.launched(claimed, planned)
            handle = self._backend.launch(job)
        # Also on a signal: a claim without a launch would make the next try wait for a driver until `start_timeout`.
        except BaseException:
            self._submissions.failed(claimed)
            raise
        log.info("Submitted a driver for %s: %s", self.spec.location, handle)
        if handle.log:
            log.info("Its log: %s", handle.log)
        return self._submissions.launched(claimed, handle)
