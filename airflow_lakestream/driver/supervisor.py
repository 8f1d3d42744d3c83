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
    """Error of a driver with a failure that a restart repeats."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(f"checkpoint {location}: the driver {reason}")


@dataclass(frozen=True)
class SupervisionLimits:
    """The limits of supervision, in seconds.

    `max_restarts` restarts are done without a healthy period of `healthy_after` in between. The pause before a restart
    begins with `backoff`, and doubles up to `max_backoff`. A driver fails if it takes no lease within `start_timeout`,
    if its state is unknown for `unknown_timeout`, or if it makes no progress for `stall_timeout`; None: progress is not
    watched. `stop_timeout`: seconds that a batch may take after the driver was asked to end; None: no limit.
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
    """A look at a driver: `moves` counts its progress, `doing` is the last step, `error` the failure's reason.

    `terminal`: the error repeats until a user changes the cause.
    """

    driver: DriverState
    moves: int = 0
    error: str = ""
    terminal: bool = False
    doing: str = ""


@dataclass(frozen=True)
class SupervisionHistory:
    """History from earlier looks for the next look; plain numbers, to be handed to another process.

    `restarts` counts since the last healthy period. `moves` is the count of progress at the last look with progress,
    and `moved_at` the time of that look. `unknown_since` is 0 while the state is known.
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
    """An action with its reason and, for a restart, its time. `history` is for the next look."""

    action: SupervisorAction
    history: SupervisionHistory
    reason: str = ""
    at: float = 0.0
    terminal: bool = False


def sight_of(lease: LeaseRecord | None, generation: int, job: BackendState, moves: int, now: float) -> DriverSight:
    """Return the sight of a driver from its lease and from the backend's state.

    :param lease: the newest lease; None without a lease.
    :param generation: our driver's lowest possible generation; older leases belong to earlier drivers.
    :param job: the state of the driver as the backend reports it.
    :param moves: the driver's count of progress.
    """
    if lease is None or lease.generation < generation:
        # The driver has not taken its lease yet, and never will if it has ended.
        ended = job in ENDED
        error = "ended before it took the checkpoint's lease" if ended else ""
        return DriverSight(DriverState.FAILED if ended else DriverState.STARTING, moves, error)
    state = lease.state(now)
    if state is LeaseState.RELEASED:
        failed = lease.outcome is DriverOutcome.FAILED
        return DriverSight(DriverState.FAILED if failed else DriverState.DONE, moves, lease.error, lease.terminal)
    if job in (BackendState.FAILED, BackendState.VANISHED):
        return DriverSight(DriverState.VANISHED, moves)
    if state is LeaseState.VANISHED:
        # No heartbeat, but the driver may still run: wait `unknown_timeout`.
        unclear = job is BackendState.RUNNING or (job is BackendState.UNKNOWN and lease.process.alive is None)
        return DriverSight(DriverState.UNKNOWN if unclear else DriverState.VANISHED, moves)
    return DriverSight(DriverState.RUNNING, moves)


def decide(
    history: SupervisionHistory, limits: SupervisionLimits, sight: DriverSight, now: float
) -> SupervisionDecision:
    """Return the decision after a look at the driver.

    A failure leads to a restart after a pause. A terminal failure, or a failure after `max_restarts` restarts, leads to
    giving up. The decision has the history for the next look.
    """
    if sight.driver is DriverState.DONE:
        return SupervisionDecision(SupervisorAction.FINISH, history)
    history = _updated_history(history, limits, sight, now)
    if reason := _failure(history, limits, sight, now):
        if sight.terminal:
            return SupervisionDecision(SupervisorAction.GIVE_UP, history, reason, terminal=True)
        return _after_failure(history, limits, reason, now)
    return SupervisionDecision(SupervisorAction.WAIT, history)


def _updated_history(
    history: SupervisionHistory, limits: SupervisionLimits, sight: DriverSight, now: float
) -> SupervisionHistory:
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
    """Return the failure, to follow "the driver"; empty without a failure."""
    if sight.driver is DriverState.FAILED:
        return f"failed: {sight.error}" if sight.error else "failed"
    if sight.driver is DriverState.VANISHED:
        return "vanished without a word"
    if sight.driver is DriverState.STARTING and now - history.submitted_at >= limits.start_timeout:
        return f"did not begin to work within {limits.start_timeout:g} s"
    if sight.driver is DriverState.UNKNOWN and now - history.unknown_since >= limits.unknown_timeout:
        return f"was not heard of for {limits.unknown_timeout:g} s"
    # Before the first progress, the time since the submit counts.
    still_for = now - (history.moved_at or history.submitted_at)
    if sight.driver is DriverState.RUNNING and limits.stall_timeout and still_for >= limits.stall_timeout:
        last = f" (last: {sight.doing})" if sight.doing else ""
        return f"made no progress for {still_for:.0f} s{last}"
    return ""


def _after_failure(
    history: SupervisionHistory, limits: SupervisionLimits, reason: str, now: float
) -> SupervisionDecision:
    if history.restarts >= limits.max_restarts:
        return SupervisionDecision(SupervisorAction.GIVE_UP, history, reason)
    pause = min(limits.max_backoff, limits.backoff * 2**history.restarts)
    return SupervisionDecision(SupervisorAction.RESTART, history, reason, now + pause)


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
        """Look, and report each look, until an action is due or, with `until_started`, until the work has started.

        :param report: called with each look.
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
    """The decision and the state of a look; `batches` ended since the last look."""

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
    :param properties: the catalog's, for a checkpoint in its object store.
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
        # The greater number: a damaged progress file begins to count at 0 again, and no batch is reported twice.
        known, self.reported = self.reported, max(progress.batches, self.reported or 0)
        if known is None:
            return ()
        return progress.last[-new:] if (new := progress.batches - known) > 0 else ()
