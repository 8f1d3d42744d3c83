"""A connector as configured by a task, and the errors at the end of its supervision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from airflow_lakestream.connect.configuration import IcebergConnector
from airflow_lakestream.core.landing.plan import ANOTHER_REPLICA, BEHIND_DAMAGE, DamagedBatch, DataLoss
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.supervisor import SupervisionLimits
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient


class ConnectorKind(StrEnum):
    """Kind of a connector: Iceberg's sink with a ledger, any other sink, or a source such as Debezium's."""

    ICEBERG_SINK = "iceberg_sink"
    SINK = "sink"
    SOURCE = "source"


class OnKillConnector(StrEnum):
    """Action on the connector when a user clears or marks the task: stop, pause, or no action."""

    STOP = "stop"
    PAUSE = "pause"
    LEAVE = "leave"


@dataclass(frozen=True)
class ConnectorSpec:
    """A connector's configuration, before any request to Connect. Times are in seconds.

    :param sink: the sink with a ledger; None for another connector, and in the triggerer.
    :param coordinator_group: see `IcebergConnector`; empty for a connector without a ledger.
    """

    name: str
    kind: ConnectorKind
    config: Mapping[str, str]
    limits: SupervisionLimits
    poll_interval: float
    publish_interval: float
    sink: IcebergConnector | None = None
    coordinator_group: str = ""

    @property
    def location(self) -> str:
        """The connector's name for people, and in reports."""
        return self.name

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of a sink; empty for a source, and for a sink without a list of topics."""
        if self.kind is ConnectorKind.SOURCE:
            return ()
        names = (name.strip() for name in self.config.get("topics", "").split(","))
        return tuple(name for name in names if name)

    @property
    def group(self) -> str:
        """The consumer group of a sink's tasks."""
        return self.config.get("consumer.override.group.id", f"connect-{self.name}")


class HeadUnknown(LakestreamError, Transient):
    """Error of a catalog that did not answer a request for the head of the sink's branch."""


_LEFT = "Its commits are published by this run or the next."


class ConnectorFailed(LakestreamError, Terminal):
    """Error of tasks that fail again and again with the same error."""

    def __init__(self, connector: str, reason: str) -> None:
        super().__init__(f"connector {connector}: it {reason}. {_LEFT}")


class ConnectorGaveUp(LakestreamError, Transient):
    """Error of tasks that failed more often than `max_restarts` allows, without a healthy period in between."""

    def __init__(self, connector: str, reason: str, restarts: int) -> None:
        super().__init__(f"connector {connector}: its tasks were restarted {restarts} times and it {reason}. {_LEFT}")


class SinkLacksRecords(DataLoss):
    """Error of records lost in Kafka before the sink's read: only the extract writes the ledger's receipt."""

    def __init__(self, ranges: RangeSet, table: str, group: str) -> None:
        super().__init__(ranges, table)
        self.args = (
            f"offsets that {table} does not hold yet are no longer in Kafka: {ranges}. Nothing was landed past them. "
            f"If they are gone for good, run KafkaExtractOperator once with the group {group!r} and "
            'on_data_loss="record": it lands what is left, and the ledger keeps the lost ranges as a receipt. Then run '
            "this task again: it begins where the ledger ends.",
        )


class ConnectorAtDamage(LakestreamError, Terminal):
    """Error of tasks at a batch of records that neither Connect nor we can read.

    :param has_ledger: whether the connector is Iceberg's sink, which begins at the ledger's end.
    """

    def __init__(self, connector: str, damaged: DamagedBatch, *, has_ledger: bool) -> None:
        self.ranges = damaged.ranges
        (lost,) = damaged.ranges
        remedy = (
            BEHIND_DAMAGE
            if has_ledger
            else (
                f"{ANOTHER_REPLICA} Else give these offsets up: stop the connector, and set its offset of "
                f"{lost.topic}[{lost.partition}] to {lost.until_offset} (PATCH /connectors/{connector}/offsets)."
            )
        )
        super().__init__(f"connector {connector}: its tasks make no progress. {damaged.description}. {remedy}")
