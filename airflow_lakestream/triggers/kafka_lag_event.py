"""KafkaLagEventTrigger: an asset event when enough records wait, as the schedule of a DAG."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_lakestream.config import arguments
from airflow_lakestream.config.literals import check_literals
from airflow_lakestream.core.policies import is_given, is_template
from airflow_lakestream.exceptions import InvalidArgument

_SOURCE_ARGUMENTS = (
    *("topic", "checkpoint_location", "table", "consumer_group", "group_id"),
    *("table_format", "kafka_conn_id", "iceberg_conn_id", "storage_conn_id"),
)


class KafkaLagEventTrigger(BaseEventTrigger):
    """Fires when records wait for a consumer: for an `AssetWatcher`.

    The trigger fires again once all records of the last event are read, or after `again_after`. It keeps no state: a
    restarted triggerer may fire again for the same records, and the DAG run then finds no new record.

    .. seealso:: docs/events.md

    :param table: `namespace.table` with a ledger; with `table_format="delta"` its path or URI
    :param consumer_group: name of the table's ledger
    :param checkpoint_location: instead of a table: checkpoint of a Spark query
    :param group_id: instead of a table: a consumer group, by its committed offsets
    :param topic: a topic or a list; default: all topics that the consumer has read. With a topic, all its records wait
        before the consumer's first run
    :param min_records: number of records that have to wait; without `min_wait` the default is 1
    :param min_wait: fire also once a record has waited this long, such as `"5m"`
    :param again_after: time after which to fire again although records of the last event still wait
    :param poll_interval: seconds between two looks
    :param table_format: `"iceberg"` or `"delta"`
    :param kafka_conn_id: connection of type `kafka`
    :param iceberg_conn_id: connection of type `iceberg`
    :param storage_conn_id: connection of a Delta table's or checkpoint's store: type `aws`, `generic` or `iceberg`
    """

    def __init__(
        self,
        *,
        table: str | None = None,
        consumer_group: str | None = None,
        checkpoint_location: str | None = None,
        group_id: str | None = None,
        topic: str | Sequence[str] | None = None,
        min_records: int | str | None = None,
        min_wait: float | str | None = None,
        again_after: float | str = 600.0,
        poll_interval: float | str = 30.0,
        table_format: str = "iceberg",
        kafka_conn_id: str = "kafka_default",
        iceberg_conn_id: str = "iceberg_default",
        storage_conn_id: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no types here
        self.table, self.consumer_group, self.table_format = table, consumer_group, table_format
        self.checkpoint_location, self.group_id, self.topic = checkpoint_location, group_id, topic
        self.kafka_conn_id, self.iceberg_conn_id, self.storage_conn_id = kafka_conn_id, iceberg_conn_id, storage_conn_id
        self._check()
        self.min_wait = arguments.positive_seconds("min_wait", min_wait) if is_given(min_wait) else None
        self.min_records = arguments.count("min_records", min_records)
        if self.min_records is None and self.min_wait is None:
            self.min_records = 1
        self.again_after = arguments.positive_seconds("again_after", again_after)
        self.poll_interval = arguments.positive_seconds("poll_interval", poll_interval)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of the class, and the arguments to rebuild this trigger, without secrets."""
        names = (*_SOURCE_ARGUMENTS, "min_records", "min_wait", "again_after", "poll_interval")
        kwargs = {name: getattr(self, name) for name in names}
        return "airflow_lakestream.triggers.kafka_lag_event.KafkaLagEventTrigger", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look every `poll_interval` seconds for ever, also after an error, and fire each time `LevelAlarm` fires."""
        watch, alarm, connections, looks = await asyncio.to_thread(self._open)
        while True:
            waiting = await looks.look(watch.look(connections))
            if waiting is not None and alarm.fires(waiting, time.time()):
                yield TriggerEvent(self._event(waiting))  # type: ignore[no-untyped-call]  # Airflow has no types here
            await asyncio.sleep(looks.pause(watch.subject))

    def _open(self) -> tuple[Any, Any, Any, Any]:
        """Return (LevelWatch, LevelAlarm, connections for the looks, WatcherLooks)."""
        # These import PyIceberg and librdkafka, which take long: not while a DAG is parsed, nor in the event loop.
        from airflow_lakestream.hooks.places import AirflowPlaces
        from airflow_lakestream.triggers.shared_looks import WatcherLooks
        from airflow_lakestream.watching.lag.check import LevelAlarm, LevelWatch

        source = {name: getattr(self, name) for name in _SOURCE_ARGUMENTS}
        watch = LevelWatch(**source, min_records=self.min_records, min_wait=self.min_wait)
        looks = WatcherLooks(f"The records that wait for {watch.subject} can't be counted", self.poll_interval)
        return watch, LevelAlarm(self.again_after), AirflowPlaces(), looks

    def _event(self, waiting: Any) -> dict[str, Any]:
        """Return the event's values: the consumer, and the number, age and partitions of the waiting records."""
        consumer = {
            name: getattr(self, name) for name in ("table", "consumer_group", "checkpoint_location", "group_id")
        }
        return {
            **{name: value for name, value in consumer.items() if value is not None},
            "records": waiting.records,
            "seconds": waiting.seconds,
            "partitions": waiting.partitions,
        }

    def _check(self) -> None:
        """Refuse impossible arguments when the DAG is parsed: templates, no source or several sources.

        Airflow renders no argument of a watcher. Raises InvalidArgument.
        """
        given = {name: getattr(self, name) for name in _SOURCE_ARGUMENTS if is_given(getattr(self, name))}
        for name, value in given.items():
            texts = [value] if isinstance(value, str) else list(value)
            if any(is_template(str(text)) for text in texts):
                raise InvalidArgument(name, f"{value!r} is a template: Airflow renders no argument of a watcher.")
        arguments.check_one_source(self.checkpoint_location, self.table, self.group_id)
        if self.table is not None and not is_given(self.consumer_group):
            raise InvalidArgument("consumer_group", "is missing: each ledger belongs to a consumer group.")
        check_literals(given)
