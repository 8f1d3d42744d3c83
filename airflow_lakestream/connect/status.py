"""Status of a connector and of tasks, from Kafka Connect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ConnectorState(StrEnum):
    """A state of a connector or a task. OTHER: a state of a later version."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"
    OTHER = "OTHER"

    @classmethod
    def of(cls, text: str) -> ConnectorState:
        """Return the state of this name; OTHER for an unknown name."""
        return cls(text) if text in cls.__members__ else cls.OTHER


@dataclass(frozen=True)
class TaskStatus:
    """A task; `trace` has the reason of a failure."""

    task: int
    state: ConnectorState
    worker: str = ""
    trace: str = ""


@dataclass(frozen=True)
class ConnectorStatus:
    """A connector with tasks."""

    state: ConnectorState
    tasks: tuple[TaskStatus, ...] = ()
    trace: str = ""

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> ConnectorStatus:
        """Read Connect's answer to a request for a status. Raises KeyError, TypeError, AttributeError or ValueError."""
        tasks = tuple(
            TaskStatus(
                int(one["id"]),
                ConnectorState.of(one["state"]),
                str(one.get("worker_id", "")),
                str(one.get("trace", "")),
            )
            for one in value["tasks"]
        )
        connector = value["connector"]
        return cls(ConnectorState.of(connector["state"]), tasks, str(connector.get("trace", "")))

    @property
    def failed(self) -> tuple[TaskStatus, ...]:
        """The failed tasks."""
        return tuple(task for task in self.tasks if task.state is ConnectorState.FAILED)

    @property
    def all_run(self) -> bool:
        """Whether the connector and all tasks run, with at least a single task."""
        return (
            self.state is ConnectorState.RUNNING
            and bool(self.tasks)
            and all(one.state is ConnectorState.RUNNING for one in self.tasks)
        )

    def __str__(self) -> str:
        counts = {state: sum(task.state is state for task in self.tasks) for state in ConnectorState}
        tasks = ", ".join(f"{count} {state.lower()}" for state, count in counts.items() if count)
        return f"{self.state.lower()}, tasks: {tasks or 'none'}"
