"""LandingEventTrigger: an asset event for each landing of a table, in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_3_PLUS
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_lakestream.config import arguments
from airflow_lakestream.core.names import check_group, state_key
from airflow_lakestream.core.policies import choose, is_given, is_template
from airflow_lakestream.exceptions import AirflowTooOld, InvalidArgument, LakestreamError
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.triggers.landing_cursor import AssetCursors, CursorStart, StreamSubscription

if AIRFLOW_V_3_3_PLUS:
    from airflow_lakestream.triggers.landing_stream import LandingProducer


# Arguments of each trigger that Airflow's database stores.
_ARGUMENTS = (
    *("table", "consumer_group", "since"),
    *("iceberg_conn_id", "storage_conn_id", "kafka_conn_id", "poll_interval"),
)


class LandingEventTrigger(BaseEventTrigger):
    """Emits each landing of a table as an event: for an `AssetWatcher`, on Airflow 3.3 and newer.

    The cursor moves when the event is in Airflow's database. So no landing is lost if the triggerer is killed; an event
    may come twice, and `once_per_landing` drops the second. Other commits, such as compactions, have no event.

    .. seealso:: docs/events.md

    :param table: `namespace.table`, or the path or URI of a Delta table
    :param consumer_group: group whose landings are emitted; default: every group
    :param since: first cursor: `"now"`, or `"earliest"` for all landings in the history. A missing table begins with
        its first landing
    :param iceberg_conn_id: connection of type `iceberg`
    :param storage_conn_id: connection of a Delta table's store: type `aws`, `generic` or `iceberg`
    :param kafka_conn_id: connection of type `kafka`: events of landings by intervals then have the time up to which the
        table is complete
    :param poll_interval: seconds between two looks at the table
    """

    # By key of a stream, the state shared with the stream's producer, which runs in the same event loop.
    subscriptions: ClassVar[dict[tuple[Any, ...], StreamSubscription]] = {}

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
        self.table, self.consumer_group, self.since = table, consumer_group, since
        self.iceberg_conn_id, self.storage_conn_id, self.kafka_conn_id = iceberg_conn_id, storage_conn_id, kafka_conn_id
        self.poll_interval = arguments.positive_seconds("poll_interval", poll_interval)
        self._check()

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, and the arguments to rebuild this trigger, without secrets."""
        kwargs = {name: getattr(self, name) for name in _ARGUMENTS}
        return "airflow_lakestream.triggers.landing_event.LandingEventTrigger", kwargs

    def shared_stream_key(self) -> tuple[Any, ...] | None:
        """Return a key for this trigger alone, with a cursor of its own, or None without an asset."""
        if self.asset_state_store is None:
            return None
        path, kwargs = self.serialize()
        return (path, *kwargs.values())

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> LandingProducer:
        """Return the producer, which reads the table and moves the cursor over stored events."""
        trigger = cls(**kwargs)
        path, arguments = trigger.serialize()
        return LandingProducer(arguments, cls.subscriptions[(path, *arguments.values())])

    def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Register the subscription for the producer, which Airflow creates after this call; return the events."""
        key = self.shared_stream_key()
        assert key is not None, "Airflow calls this method only for a trigger with a key"
        subscription = self.subscriptions[key] = StreamSubscription(
            AssetCursors(self.asset_state_store, self.cursor_key)
        )
        return self._events(shared_stream, key, subscription)

    async def _events(
        self, stream: AsyncIterator[Any], key: Any, subscription: StreamSubscription
    ) -> AsyncIterator[TriggerEvent]:
        """Yield the events, and write the number of each taken event into the subscription.

        At the end the subscription is removed, unless a newer subscription has replaced it.
        """
        try:
            async for number, event in stream:
                yield TriggerEvent(dict(event))  # type: ignore[no-untyped-call]  # Airflow has no types here
                # Reached when Airflow asks for the next event, and so has taken this event.
                subscription.last_taken = number
        finally:
            if self.subscriptions.get(key) is subscription:
                del self.subscriptions[key]

    @property
    def cursor_key(self) -> str:
        """Name of the cursor in the asset's state."""
        parts = (self.storage_conn_id or self.iceberg_conn_id, self.table, self.consumer_group or "")
        # The text must stay as it is: stored cursors have this name.
        return state_key("/".join(("lakestream.told", *parts)))

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Raise LakestreamError: Airflow runs this method only for a trigger without an asset."""
        raise LakestreamError(
            f"LandingEventTrigger of {self.table} has no asset to keep its cursor: give it to an "
            "AssetWatcher. In a task, wait with IcebergSnapshotFreshnessSensor."
        )
        yield  # makes this method a generator, as Airflow expects

    def _check(self) -> None:
        """Refuse impossible arguments when the DAG is parsed. Raises InvalidArgument."""
        for argument in ("table", "consumer_group", "iceberg_conn_id", "storage_conn_id", "kafka_conn_id"):
            value = getattr(self, argument)
            if is_given(value) and is_template(str(value)):
                raise InvalidArgument(argument, f"{value!r} is a template: Airflow renders no argument of a watcher.")
        choose(CursorStart, "since", self.since)
        lake = lake_of(self.table)
        lake.check_name(self.table)
        if self.consumer_group is not None:
            check_group(self.consumer_group)
        if self.kafka_conn_id is not None:
            lake.require(LakeCapability.COMPLETENESS, "kafka_conn_id", self.table)
