"""How the supervision of a connector ends badly."""

from __future__ import annotations

from airflow_lakestream.core.landing.plan import ANOTHER_REPLICA, BEHIND_DAMAGE, DamagedBatch
from airflow_lakestream.exceptions import LakestreamError, Terminal, Transient

_LEFT = "What it has committed is published, or is by the next run."


class ConnectorFailed(LakestreamError, Terminal):
    """The connector's tasks fail with an error that comes again."""

    def __init__(self, connector: str, reason: str) -> None:
        super().__init__(f"connector {connector}: it {reason}. {_LEFT}")


class ConnectorGaveUp(LakestreamError, Transient):
    """The connector's tasks failed more often than `max_restarts` allows, without a healthy period in between."""

    def __init__(self, connector: str, reason: str, restarts: int) -> None:
        super().__init__(f"connector {connector}: its tasks were restarted {restarts} times and it {reason}. {_LEFT}")


class ConnectorAtDamage(LakestreamError, Terminal):
    """The connector's tasks can't read a batch of records, and neither can we.

    :param has_ledger: the connector is Iceberg's sink, which begins where the ledger ends.
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
        super().__init__(f"connector {connector}: its tasks don't get on. {damaged.what}. {remedy}")
