"""The port of an engine for the supervision of its drivers. `driver/` knows no engine by name.

| part | provider |
|---|---|
| start, state, kill, log | a `DriverBackend`, in the process that supervises |
| find again | the `DriverHandle` of `planned` or `launch`, in the driver's folder; or the lease, from any machine |
| graceful stop | the app: it looks at `Lease.stop_requested` between two batches |
| outcome | the app: the lease's outcome, its reason, and whether the reason is final |
| progress | the app: `ProgressLog`; progress means health |
| name, links, arguments | the engine's operator, a `SupervisedOperator` |

The app is the program in the driver. It takes the lease of its location before it works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from airflow_lakestream.driver.lease_record import ProcessIdentity
from airflow_lakestream.driver.supervisor import BackendState
from airflow_lakestream.exceptions import LakestreamError, Transient


class SubmitFailed(LakestreamError, Transient):
    """Error of a driver that could not be started."""


@dataclass(frozen=True)
class DriverHandle:
    """The address of a driver, for later supervision.

    :param kind: name of the backend.
    :param job_id: the cluster's id of the driver.
    :param log: path of the log of a driver on a worker.
    :param process: the process of a driver on a worker.
    :param is_planned: whether the cluster has not yet confirmed the launch, and may not know the driver yet.
    """

    kind: str
    job_id: str = ""
    log: str = ""
    process: ProcessIdentity | None = None
    is_planned: bool = False

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> DriverHandle:
        """Read the result of `to_dict`. Raises KeyError, TypeError or ValueError."""
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
        """Whether a driver of this machine has ended; False for a driver elsewhere, whose process can't be seen."""
        return self.process is not None and self.process.alive is False

    def __str__(self) -> str:
        return self.job_id or (f"pid {self.process.pid} on {self.process.host}" if self.process else self.kind)


class DriverBackend(Protocol):
    """A manager of drivers on a machine or a cluster. All waits are bounded."""

    def planned(self, job: Any) -> DriverHandle | None:
        """Return the handle that `launch` will return; None if unknown before the launch."""

    def launch(self, job: Any) -> DriverHandle:
        """Start a driver; return as soon as a handle is known. Raises SubmitFailed.

        :param job: the job to launch, in the terms of this backend.
        """

    def state(self, handle: DriverHandle) -> BackendState:
        """Return a driver's state; UNKNOWN, never an error, without an answer from the machine or cluster."""

    def kill(self, handle: DriverHandle) -> None:
        """Kill a driver; return after the driver's end, or after a bounded wait."""

    def log_tail(self, handle: DriverHandle) -> list[str]:
        """Return the last lines of a driver's log, if readable."""

    def works(self, handle: DriverHandle) -> None:
        """Delete the files that only a driver's start needed; called at each look at a working driver."""

    def ended(self, handle: DriverHandle) -> None:
        """Delete the leftovers of a driver that ended without an error. Raises no error."""
