"""The port of an engine: what it gives so that its drivers are supervised. `driver/` knows none by name.

| what | who gives it |
|---|---|
| start, state, kill, log | a `Backend`, in the process that supervises |
| find again | the `Handle` of `planned` or `launch`, kept in the driver's folder; or the lease, from any machine |
| graceful stop | the app: it looks at `Lease.stop_requested` between two batches |
| how it ended | the app: the lease's outcome, its reason, and whether that comes again |
| progress | the app: `ProgressLog`; progress means health |
| its name, links, arguments | its operator, a `SupervisedOperator` |

The app is what runs in the driver. It takes the lease of its location before it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from airflow_lakestream.driver.process_identity import ProcessIdentity
from airflow_lakestream.driver.supervisor import JobState
from airflow_lakestream.exceptions import LakestreamError, Transient


class SubmitFailed(LakestreamError, Transient):
    """A driver could not be started."""


@dataclass(frozen=True)
class Handle:
    """How to find a driver again.

    `kind` names the backend. `job_id` is the cluster's; `process` and `log` are those of a driver on a worker.
    `is_planned`: the launch was not answered yet; the cluster may know such a driver later than its submitter does.
    """

    kind: str
    job_id: str = ""
    log: str = ""
    process: ProcessIdentity | None = None
    is_planned: bool = False

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Handle:
        """Read what `to_dict` gave. Raises KeyError, TypeError or ValueError."""
        process = value.get("process")
        return cls(
            str(value["kind"]),
            str(value.get("job_id", "")),
            str(value.get("log", "")),
            ProcessIdentity.parse(process) if process else None,
            bool(value.get("is_planned", False)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values, without secrets."""
        return asdict(self)

    @property
    def is_over(self) -> bool:
        """Whether the driver is known to have ended."""
        return self.process is not None and self.process.alive is False

    def __str__(self) -> str:
        return self.job_id or (f"pid {self.process.pid} on {self.process.host}" if self.process else self.kind)


class Backend(Protocol):
    """One place where drivers run. All waits are bounded."""

    def planned(self, job: Any) -> Handle | None:
        """Return the handle that `launch` will return; None if only the launch can give it."""

    def launch(self, job: Any) -> Handle:
        """Start a driver; return as soon as there is a handle. Raises SubmitFailed.

        :param job: what to launch, in the terms of this backend.
        """

    def state(self, handle: Handle) -> JobState:
        """Return a driver's state; UNKNOWN, never an error, if the place does not answer."""

    def kill(self, handle: Handle) -> None:
        """Kill a driver; return when it is gone, or after a bounded wait."""

    def log_tail(self, handle: Handle) -> list[str]:
        """Return the last lines of a driver's log, if they can be read."""

    def works(self, handle: Handle) -> None:
        """Take note that a driver has begun to work: what it was given to start with may go."""

    def ended(self, handle: Handle) -> None:
        """Take note that a driver has ended well: what its place keeps of it may go. It raises nothing."""
