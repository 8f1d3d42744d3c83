"""The ports of a supervising operator: a stream, and the supervision of a driver or of a service's own job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from airflow_lakestream.driver.progress import DriverProgress
from airflow_lakestream.driver.supervisor import SupervisionDecision, SupervisionHistory, SupervisionLimits
from airflow_lakestream.driver.watch import DriverLook


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
