"""LandingEventTrigger: an asset event for each landing of a table, with its proof, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_lakestream.config import arguments
from airflow_lakestream.core.names import check_group, check_location, check_table_name
from airflow_lakestream.core.policies import TableFormat, choose, is_given, is_template
from airflow_lakestream.exceptions import AirflowTooOld, InvalidArgument, LakestreamError
from airflow_lakestream.triggers.landing_cursor import Cursors, Since, Subscription

if AIRFLOW_V_3_3_PLUS:
    from airflow_lakestream.triggers.landing_stream import LandingProducer


class LandingEventTrigger(BaseEventTrigger):
    """Tells of each landing of a table: for an `AssetWatcher`, on Airflow 3.3 and newer.

    The cursor moves when the event stands in Airflow's database. So no landing is lost if the triggerer is killed; one
    may be told twice, and `once_per_landing` drops it. Other commits, such as compactions, are not told.

    .. seealso:: docs/events.md

    :param table: `namespace.table`, or the path or URI of a Delta table
    :param consumer_group: whose landings are told; default: every group's
    :param since: where it begins at first: `"now"`, or `"earliest"` for all landings that the history has
    :param iceberg_conn_id: connection of type `iceberg`
    :param storage_conn_id: connection of a Delta table's store: type `aws`, `generic` or `iceberg`
    :param kafka_conn_id: connection of type `kafka`: events of landings by intervals then say up to when the table is
        complete
    :param poll_interval: seconds between two looks at the table
    """

    # By its key, the subscription that a stream's producer serves. All run in one event loop.
    subscriptions: ClassVar[dict[tuple[Any, ...], Subscription]] = {}

    def __init__(
        self,
        *,
        table: str,
        consumer_group: str | None = None,
        since: str = "now",
        iceberg_conn_id: str = "iceberg_default",
        storage_conn_id: str | None = None,
        kafka_conn_id: str | None = None,
        poll_interval: float | str = 10.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no types here
        if not AIRFLOW_V_3_3_PLUS:
            raise AirflowTooOld(
                "LandingEventTrigger needs Airflow 3.3 or newer: before that, a trigger can't know whether its event "
                "was stored, and a killed triggerer would lose landings. Schedule on the outlets of the landing task "
                "instead; KafkaLagEventTrigger works here."
            )
        self.table = table
        self.consumer_group = consumer_group
        self.since = since
        self.iceberg_conn_id = iceberg_conn_id
        self.storage_conn_id = storage_conn_id
        self.kafka_conn_id = kafka_conn_id
        self.poll_interval = arguments.positive_seconds("poll_interval", poll_interval)
        self._check()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what rebuilds this trigger, without secrets."""
        return "airflow_lakestream.triggers.landing_event.LandingEventTrigger", {
            "table": self.table,
            "consumer_group": self.consumer_group,
            "since": self.since,
            "iceberg_conn_id": self.iceberg_conn_id,
            "storage_conn_id": self.storage_conn_id,
            "kafka_conn_id": self.kafka_conn_id,
            "poll_interval": self.poll_interval,
        }

    def shared_stream_key(self) -> tuple[Any, ...] | None:
        """Return a key of this trigger alone: its cursor is its own; None where it watches no asset."""
        if self.asset_state_store is None:
            return None
        path, given = self.serialize()
        return (path, *given.values())

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> LandingProducer:
        """Return what reads the table, and moves the cursor; Airflow then tells it what was stored."""
        trigger = cls(**kwargs)
        path, given = trigger.serialize()
        return LandingProducer(given, cls.subscriptions[(path, *given.values())])

    def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Return the events, whose producer begins after that."""
        key = self.shared_stream_key()
        assert key is not None, "Airflow asked for it"
        mine = self.subscriptions[key] = Subscription(Cursors(self.asset_state_store, self.cursor_key))
        return self._events(shared_stream, key, mine)

    async def _events(self, stream: AsyncIterator[Any], key: Any, mine: Subscription) -> AsyncIterator[TriggerEvent]:
        """Yield the events, and note which of them Airflow has taken."""
        try:
            async for number, event in stream:
                yield TriggerEvent(dict(event))  # type: ignore[no-untyped-call]  # Airflow has no types here
                # Airflow has bound the event to its answer before it comes back for the next one.
                mine.taken = number
        finally:
            if self.subscriptions.get(key) is mine:
                del self.subscriptions[key]

    @property
    def cursor_key(self) -> str:
        """The name of the cursor in the asset's state."""
        named = (self.storage_conn_id or self.iceberg_conn_id, self.table, self.consumer_group or "")
        return "/".join(("lakestream.told", *named))[:512]

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Refuse to run alone."""
        raise LakestreamError(
            f"LandingEventTrigger of {self.table} watches no asset, which would keep its cursor: give it to an "
            "AssetWatcher. In a task, wait with IcebergSnapshotFreshnessSensor."
        )
        yield  # an iterator

    def _check(self) -> None:
        """Refuse what can't work where the DAG is parsed. Raises InvalidArgument."""
        for argument in ("table", "consumer_group", "iceberg_conn_id", "storage_conn_id", "kafka_conn_id"):
            value = getattr(self, argument)
            if is_given(value) and is_template(str(value)):
                raise InvalidArgument(argument, f"{value!r} is a template: Airflow renders none of a watcher.")
        choose(Since, "since", self.since)
        delta = TableFormat.of(self.table) is TableFormat.DELTA
        (check_location if delta else check_table_name)(self.table)
        if self.consumer_group is not None:
            check_group(self.consumer_group)
        if delta and self.kafka_conn_id is not None:
            raise InvalidArgument("kafka_conn_id", "is for Iceberg tables.", "Leave it out.")
