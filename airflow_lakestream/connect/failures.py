"""Errors at the end of a connector's supervision."""

from __future__ import annotations

from airflow_lakestream.core.landing.plan import ANOTHER_REPLICA, BEHIND_DAMAGE, DamagedBatch, DataLoss
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

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
