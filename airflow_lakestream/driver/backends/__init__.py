"""Where drivers run: how a driver is launched, looked at and killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from airflow_lakestream.driver.process_identity import ProcessIdentity
from airflow_lakestream.driver.supervisor import JobState

# Files of a job's folder that may hold secrets.
CONFIG_FILE = "app.json"
PROPERTIES_FILE = "spark.properties"


class BackendKind(StrEnum):
    """DETACHED: a process on Airflow's worker, for local masters and all client modes. Others run in the cluster."""

    DETACHED = "detached"
    YARN = "yarn"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class Handle:
    """How to find a driver again: `job_id` is the cluster's; `process` and `log` are those of a detached driver."""

    kind: BackendKind
    job_id: str = ""
    log: str = ""
    process: ProcessIdentity | None = None

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Handle:
        """Read what `to_dict` gave. Raises KeyError, TypeError or ValueError."""
        process = value.get("process")
        return cls(
            BackendKind(value["kind"]),
            str(value.get("job_id", "")),
            str(value.get("log", "")),
            ProcessIdentity.parse(process) if process else None,
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


@dataclass(frozen=True)
class Job:
    """What to launch: a `spark-submit` command without secrets, and a folder that only its owner can read."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path


def forget_secrets(folder: Path) -> None:
    """Delete the files of a job's folder that may hold secrets: a working driver has read them."""
    for name in (CONFIG_FILE, PROPERTIES_FILE):
        (folder / name).unlink(missing_ok=True)


class Backend(Protocol):
    """One place where drivers run. All waits are bounded."""

    def launch(self, job: Job) -> Handle:
        """Start a driver; return as soon as there is a handle. Raises SubmitFailed."""

    def state(self, handle: Handle) -> JobState:
        """Return a driver's state; UNKNOWN, never an error, if the place does not answer."""

    def kill(self, handle: Handle) -> None:
        """Kill a driver; return when it is gone, or after a bounded wait."""

    def log_tail(self, handle: Handle) -> list[str]:
        """Return the last lines of a driver's log, if they can be read."""
