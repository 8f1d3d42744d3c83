"""Where drivers run: how one is launched there, looked at and killed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from airflow_lakestream.driver.process_identity import ProcessIdentity
from airflow_lakestream.driver.supervisor import JobState

# Of a job's folder: what may hold secrets.
CONFIG_FILE = "app.json"
PROPERTIES_FILE = "spark.properties"


class BackendKind(StrEnum):
    """Detached: a process beside Airflow's worker, for local masters and all client modes. Else in the cluster."""

    DETACHED = "detached"
    YARN = "yarn"
    KUBERNETES = "kubernetes"


@dataclass(frozen=True)
class Handle:
    """How to find a driver again: `job_id` is the cluster's name for it, `process` and `log` are of a detached one."""

    kind: BackendKind
    job_id: str = ""
    log: str = ""
    process: ProcessIdentity | None = None

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Handle:
        """Read what `to_dict` gave. Raises KeyError, TypeError or ValueError for anything else."""
        process = value.get("process")
        return cls(
            BackendKind(value["kind"]),
            str(value.get("job_id", "")),
            str(value.get("log", "")),
            ProcessIdentity.parse(process) if process else None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; no secret is among them."""
        return asdict(self)

    @property
    def is_over(self) -> bool:
        """Whether the driver can be seen from here to have ended."""
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
    """Remove the files of a job's folder that may hold secrets: a driver that works has read them."""
    for name in (CONFIG_FILE, PROPERTIES_FILE):
        (folder / name).unlink(missing_ok=True)


class Backend(Protocol):
    """One place where drivers run. All waits are bounded."""

    def launch(self, job: Job) -> Handle:
        """Start a driver, and return as soon as there is a handle. Raises SubmitFailed."""

    def state(self, handle: Handle) -> JobState:
        """Look at a driver; never raises for a place that does not answer."""

    def kill(self, handle: Handle) -> None:
        """End a driver at once, and return when it is gone, or after a while."""

    def log_tail(self, handle: Handle) -> list[str]:
        """Return the last lines of a driver's log, where they can be had."""
