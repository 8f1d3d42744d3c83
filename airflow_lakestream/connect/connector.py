"""A connector as a task wants it, and the parts that its supervision is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from airflow_lakestream.connect.iceberg_sink import IcebergSink
from airflow_lakestream.driver.supervisor import Limits
from airflow_lakestream.exceptions import LakestreamError, Transient

if TYPE_CHECKING:
    from airflow_lakestream.driver.progress import BatchProgress, Progress


class ConnectorKind(StrEnum):
    """What a connector is: Iceberg's sink with a ledger, any other sink, or a source such as Debezium's."""

    ICEBERG_SINK = "iceberg_sink"
    SINK = "sink"
    SOURCE = "source"


class OnKillConnector(StrEnum):
    """What happens to the connector when somebody clears or marks the task: it is stopped, paused, or goes on."""

    STOP = "stop"
    PAUSE = "pause"
    LEAVE = "leave"


@dataclass(frozen=True)
class ConnectorSpec:
    """A connector, before anything is asked of Connect. Times are in seconds. `sink` is that with a ledger, if any.

    `coordinator_group`: see `IcebergSink`; the triggerer knows no more of a sink.
    """

    name: str
    kind: ConnectorKind
    config: Mapping[str, str]
    limits: Limits
    poll_interval: float
    publish_interval: float
    sink: IcebergSink | None = None
    coordinator_group: str = ""

    @property
    def location(self) -> str:
        """Its name for people, and in reports."""
        return self.name

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that a sink reads, where they are listed."""
        if self.kind is ConnectorKind.SOURCE:
            return ()
        return tuple(name for one in self.config.get("topics", "").split(",") if (name := one.strip()))

    @property
    def group(self) -> str:
        """The consumer group of a sink's tasks."""
        return self.config.get("consumer.override.group.id", f"connect-{self.name}")


class HeadUnknown(LakestreamError, Transient):
    """The catalog did not say where the sink's branch is."""


class Publisher(Protocol):
    """Puts on main what a sink has committed to its branch."""

    def begin(self) -> Mapping[int, int]:
        """Make table and branch ready; return, by partition, the first offset that the ledger lacks."""

    def begin_anew(self) -> Mapping[int, int]:
        """Let the branch begin anew at main's head; return, by partition, where the sink is to begin.

        Raises LandedAhead where the ledger has offsets above the first one that it lacks.
        """

    def publish(self, told: Progress, is_stopped: bool) -> BatchProgress | None:
        """Publish what is new; return what that was, or None for nothing.

        :param told: what this run is known to have published.
        :param is_stopped: the sink is stopped: what its coordinator has committed is the whole truth.
        """

    def head(self) -> str:
        """Return what changes with each commit of the sink to its branch; empty without one. Raises HeadUnknown."""
