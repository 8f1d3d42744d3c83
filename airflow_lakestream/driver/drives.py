"""What a supervising operator works with, whatever does the work: a driver under a lease, or a service's own job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from airflow_lakestream.driver.progress import Progress
from airflow_lakestream.driver.supervisor import Decision, History, Limits
from airflow_lakestream.driver.watch import Look


class Place(Protocol):
    """What a stream is, as far as its operator asks."""

    @property
    def location(self) -> str:
        """Its name for people, and in reports."""

    @property
    def limits(self) -> Limits:
        """How much is borne."""


class Drives(Protocol):
    """Finds or starts what works on a stream, looks after it, and ends it; see `driver.driving.Driving`."""

    @property
    def spec(self) -> Place:
        """What the stream is."""

    @property
    def generation(self) -> int:
        """The lowest lease generation that the driver can have; 0 where there is no lease."""

    def before(self) -> dict[str, Any]:
        """Return the sums before this run's first try began."""

    def progress(self) -> Progress:
        """Return the sums as they are now."""

    def told(self) -> dict[str, Any]:
        """Return the sums that the run's earlier tries have told to others; as `before`, where they told nothing."""

    def has_told(self, sums: Mapping[str, Any]) -> None:
        """Note that these sums are told, so that the run's next try does not tell them again."""

    def begin(self, history: History | None = None) -> None:
        """Adopt or start."""

    def resume(self, history: History) -> None:
        """Take over from another process, with what it knew."""

    def follow(self, tell: Callable[[Look], None], until_started: bool = False) -> Decision:
        """Look, and report each look, until something is to be done or, with `until_started`, it works."""

    def pause(self, until: float) -> None:
        """Wait until the given time, in seconds since 1970."""

    def clear_away(self) -> None:
        """Clear away what is replaced or given up."""

    def finish(self) -> Progress:
        """Return the last sums and end the run."""

    def stop(self, action: Any) -> str:
        """Carry out `on_kill_action`; return in words what was done."""

    def log_tail(self) -> list[str]:
        """Return what it said last, if that can be read."""
