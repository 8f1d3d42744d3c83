"""Supervision of a driver: decisions from a look, as pure functions; the watch that looks; the ports of an operator.

Progress means health. A driver that fails, vanishes, stalls or never begins to work is restarted, with growing pauses.
After a healthy period the count of restarts begins again at 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Protocol

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseRecord, LeaseState
from airflow_lakestream.driver.progress import BatchProgress, DriverProgress, read_progress
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient


class BackendState(StrEnum):
    """The state of a driver as the backend reports it."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    VANISHED = "vanished"
    UNKNOWN = "unknown"


# States of a driver that does not run any more.
ENDED = (BackendState.FINISHED, BackendState.FAILED, BackendState.VANISHED)


class DriverState(StrEnum):
    """The state of a driver, from lease and backend together."""

    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    VANISHED = "vanished"
    UNKNOWN = "unknown"


class SupervisorAction(StrEnum):
    """The next action."""

    WAIT = "wait"
    FINISH = "finish"
    RESTART = "restart"
    GIVE_UP = "give up"


class OnKill(StrEnum):
    """Action on the driver when a user clears or marks the task: end after the batch, end at once, or go on."""

    GRACEFUL = "graceful"
    KILL = "kill"
    LEAVE = "leave"


class GaveUp(LakestreamError, Transient):
    """Error of a driver that failed more often than `max_restarts` allows, without a healthy period in between."""

    def __init__(self, location: str, reason: str, restarts: int) -> None:
        super().__init__(
            f"checkpoint {location}: the driver was restarted {restarts} times and {reason}. See its log. "
            "Its commits are landed; a retry goes on from there."
        )


class DriverFailed(LakestreamError, Terminal):
    """Error of a driver whose failure would repeat after a restart."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"checkpoint {location}: the driver {reason}")


@dataclass(frozen=True)
class SupervisionLimits:
    """The limits of supervision; all except `max_restarts` in seconds.

    :param max_restarts: most restarts without a healthy period in between.
    :param backoff: pause before the first restart; the pause doubles with each restart.
    :param max_backoff: longest pause.
    :param healthy_after: time of work with progress after which earlier restarts no longer count.
    :param stall_timeout: time without progress after which a driver fails; None: progress is not watched.
    :param start_timeout: time within which a driver has to take its lease.
    :param unknown_timeout: time after which a driver with an unknown state fails.
    :param stop_timeout: time that a batch may take after the driver was asked to end; None: no limit.
    """

    max_restarts: int = 5
    backoff: float = 10.0
    max_backoff: float = 300.0
    healthy_after: float = 600.0
    stall_timeout: float | None = None
    start_timeout: float = 300.0
    unknown_timeout: float = 300.0
    stop_timeout: float | None = 600.0


@dataclass(frozen=True)
class DriverSight:
    """The facts about a driver from a look.

    :param moves: the driver's count of progress.
    :param error: reason of a failure.
    :param terminal: whether the error repeats until a user changes the cause.
    :param doing: the driver's last step.
    """

    driver: DriverState
    moves: int = 0
    error: str = ""
    terminal: bool = False
    doing: str = ""


@dataclass(frozen=True)
class SupervisionHistory:
    """History from earlier looks, for the next look. Plain numbers, so that another process can continue.

    Times are seconds since 1970.

    :param restarts: number of restarts since the last healthy period.
    :param moves: the driver's count of progress at the last look with progress; -1 before the first progress.
    :param moved_at: time of that look.
    :param unknown_since: time since which the driver's state is unknown; 0 while the state is known.
    """

    submitted_at: float
    restarts: int = 0
    moves: int = -1
    moved_at: float = 0.0
    unknown_since: float = 0.0

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> SupervisionHistory:
        """Read the result of `to_dict`; unknown keys of a later version are ignored."""
        return cls(**{name: value[name] for name in cls.__dataclass_fields__ if name in value})

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return asdict(self)

    def restarted(self, now: float) -> SupervisionHistory:
        """Return the history after the submit of a new driver."""
        return SupervisionHistory(submitted_at=now, restarts=self.restarts + 1)


@dataclass(frozen=True)
class SupervisionDecision:
    """An action with its reason.

    :param history: history for the next look.
    :param at: time of a restart, in seconds since 1970.
    :param terminal: whether the failure would repeat after a restart.
    """

    action: SupervisorAction
    history: SupervisionHistory
    reason: str = ""
    at: float = 0.0
    terminal: bool = False


def sight_of(lease: LeaseRecord | None, generation: int, job: BackendState, moves: int, now: float) -> DriverSight:
    """Return the facts about a driver from its lease and from the backend's state.

    :param lease: the newest lease; None without a lease.
    :param generation: our driver's lowest possible generation; older leases belong to earlier drivers.
    :param job: the state of the driver as the backend reports it.
    :param moves: the driver's count of progress.
    """
    if lease is None or lease.generation < generation:
        # The driver has not taken its lease yet.
        if job in ENDED:
            return DriverSight(DriverState.FAILED, moves, "ended before it took the checkpoint's lease")
        return DriverSight(DriverState.STARTING, moves)
    state = lease.state(now)
    if state is LeaseState.RELEASED:
        has_failed = lease.outcome is DriverOutcome.FAILED
        return DriverSight(DriverState.FAILED if has_failed else DriverState.DONE, moves, lease.error, lease.terminal)
    if job in (BackendState.FAILED, BackendState.VANISHED):
        return DriverSight(DriverState.VANISHED, moves)
    if state is LeaseState.VANISHED:
        # Without heartbeats the driver may still run; `decide` waits for `unknown_timeout`.
        may_run = job is BackendState.RUNNING or (job is BackendState.UNKNOWN and lease.process.alive is None)
        return DriverSight(DriverState.UNKNOWN if may_run else DriverState.VANISHED, moves)
    return DriverSight(DriverState.RUNNING, moves)


def decide(
    history: SupervisionHistory, limits: SupervisionLimits, sight: DriverSight, now: float
) -> SupervisionDecision:
    """Return the decision after a look at the driver, with the history for the next look.

    A failure leads to a restart after a pause. A terminal failure, or a failure after `max_restarts` restarts, leads to
    giving up.
    """
    if sight.driver is DriverState.DONE:
        return SupervisionDecision(SupervisorAction.FINISH, history)
    history = _updated_history(history, limits, sight, now)
    reason = _failure(history, limits, sight, now)
    if not reason:
        return SupervisionDecision(SupervisorAction.WAIT, history)
    if sight.terminal or history.restarts >= limits.max_restarts:
        return SupervisionDecision(SupervisorAction.GIVE_UP, history, reason, terminal=sight.terminal)
    pause = min(limits.max_backoff, limits.backoff * 2**history.restarts)
    return SupervisionDecision(SupervisorAction.RESTART, history, reason, now + pause)


def _updated_history(
    history: SupervisionHistory, limits: SupervisionLimits, sight: DriverSight, now: float
) -> SupervisionHistory:
    """Return the history with the times and counts that follow from a look at `now`, in seconds since 1970."""
    if sight.driver is not DriverState.UNKNOWN:
        history = replace(history, unknown_since=0.0)
    elif not history.unknown_since:
        history = replace(history, unknown_since=now)
    if sight.driver is not DriverState.RUNNING:
        return history
    if sight.moves != history.moves:
        history = replace(history, moves=sight.moves, moved_at=now)
    # The driver has made progress long after its start: earlier restarts do not count any more.
    if history.restarts and history.moved_at - history.submitted_at >= limits.healthy_after:
        history = replace(history, restarts=0)
    return history


def _failure(history: SupervisionHistory, limits: SupervisionLimits, sight: DriverSight, now: float) -> str:
    """Return the failure as a text that continues "the driver ..."; empty without a failure."""
    if sight.driver is DriverState.FAILED:
        return f"failed: {sight.error}" if sight.error else "failed"
    if sight.driver is DriverState.VANISHED:
        return "vanished without a word"
    if sight.driver is DriverState.STARTING and now - history.submitted_at >= limits.start_timeout:
        return f"did not begin to work within {limits.start_timeout:g} s"
    if sight.driver is DriverState.UNKNOWN and now - history.unknown_since >= limits.unknown_timeout:
        return f"was not heard of for {limits.unknown_timeout:g} s"
    # Before the first progress, the time since the submit counts.
    stalled_for = now - (history.moved_at or history.submitted_at)
    if sight.driver is DriverState.RUNNING and limits.stall_timeout and stalled_for >= limits.stall_timeout:
        last_step = f" (last: {sight.doing})" if sight.doing else ""
        return f"made no progress for {stalled_for:.0f} s{last_step}"
    return ""


class SupervisedStream(Protocol):
    """Name and limits of a stream, for the operator."""

    @property
    def location(self) -> str:
        """The stream's name for people, and in reports."""

    @property
    def limits(self) -> SupervisionLimits:
        """The supervision limits."""


class StreamSupervisor(Protocol):
    """Supervision of a stream's work: found or started, followed, and ended; see `driver.driving.DriverSupervision`."""

    @property
    def spec(self) -> SupervisedStream:
        """The stream."""

    @property
    def generation(self) -> int:
        """The lowest possible lease generation of the driver; 0 without a lease."""

    def before(self) -> dict[str, Any]:
        """Return the sums before this run's first try began."""

    def progress(self) -> DriverProgress:
        """Return the current sums."""

    def reported_sums(self) -> dict[str, Any]:
        """Return the sums already reported by earlier tries of the run, or else the sums of `before`."""

    def mark_reported(self, sums: Mapping[str, Any]) -> None:
        """Note these sums as reported, for the run's next try."""

    def begin(self, history: SupervisionHistory | None = None) -> None:
        """Adopt or start the driver or job."""

    def resume(self, history: SupervisionHistory) -> None:
        """Continue the supervision of another process, with its history; `begin` may follow for a restart."""

    def follow(self, report: Callable[[DriverLook], None], until_started: bool = False) -> SupervisionDecision:
        """Look regularly until an action is due; return the decision of the last look.

        :param report: called with each look.
        :param until_started: whether to return already when the driver has started to work.
        """

    def pause(self, until: float) -> None:
        """Wait until the given time, in seconds since 1970."""

    def clear_away(self) -> None:
        """Remove the leftovers of a driver to be replaced or given up."""

    def finish(self) -> DriverProgress:
        """Return the last sums and end the run."""

    def stop(self, action: Any) -> str:
        """Carry out `on_kill_action`; return the result in words."""

    def log_tail(self) -> list[str]:
        """Return the last lines of the log, if readable."""


@dataclass(frozen=True)
class DriverLook:
    """The facts of a look and the decision; `batches` are the batches that ended since the last look."""

    decision: SupervisionDecision
    sight: DriverSight
    lease: LeaseRecord | None
    progress: DriverProgress
    batches: tuple[BatchProgress, ...]


class DriverWatch:
    """The watch over the driver of a checkpoint.

    :param generation: the lowest possible lease generation of the driver.
    :param history: history of earlier looks, perhaps of another process.
    :param job: asks the backend for the driver's state.
    :param reported: number of the checkpoint's batches that were reported already; None: all batches before the first
        look count as reported.
    :param properties: properties of the checkpoint's object store.
    """

    def __init__(
        self,
        location: str,
        generation: int,
        limits: SupervisionLimits,
        history: SupervisionHistory,
        job: Callable[[], BackendState],
        reported: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._location = location
        self._generation = generation
        self._limits = limits
        self._job = job
        self._properties = properties
        self.reported = reported
        self.history = history

    def look(self) -> DriverLook:
        """Look at lease, progress and backend; return the look with its decision.

        Without an answer of the store the state is unknown, which is tolerated for `unknown_timeout`. The history and
        the number of reported batches are updated.
        """
        now = time.time()
        lease, progress = None, DriverProgress()
        try:
            lease = read_lease(self._location, self._properties)
            progress = read_progress(self._location, self._properties)
            sight = sight_of(lease, self._generation, self._job(), progress.moves, now)
            sight = replace(sight, doing=progress.doing)
        except OSError as e:
            sight = DriverSight(DriverState.UNKNOWN, self.history.moves, type(e).__name__)
        decision = decide(self.history, self._limits, sight, now)
        self.history = decision.history
        return DriverLook(decision, sight, lease, progress, self._new(progress))

    def _new(self, progress: DriverProgress) -> tuple[BatchProgress, ...]:
        """Return the batches that were not reported yet, and count these as reported."""
        before = self.reported
        # The greater number: after damage, a progress file begins to count at 0, and no batch may be reported twice.
        self.reported = max(progress.batches, before or 0)
        if before is None or progress.batches <= before:
            return ()
        return progress.last[before - progress.batches :]
