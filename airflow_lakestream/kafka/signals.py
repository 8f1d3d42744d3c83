"""Debezium's signal topic: orders to a connector, as records with the connector's topic.prefix as key."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.kafka.client import ClientErrors, admin_config, consumer_config, open_client

# The least time between two signals: two signals at once halt the streaming of Debezium 3.2 for good, and the connector
# looks for signals every five seconds.
PAUSE_SECONDS = 30
# The number of records at the topic's end that are read.
_TAIL = 100
# Seconds for a read of the topic's end, and for the delivery of a signal.
_TIMEOUT = 15.0
# The header with the ends of the table's topic before the signal, as JSON.
_FROM_HEADER = "lakestream-from"


class NotSignalled(LakestreamError, Transient):
    """The signal could not be written."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(
            f"signal topic {topic}: {reason}. Nothing was changed. If the topic is missing, create it with one "
            "partition, name it in the connector (signal.kafka.topic, signal.kafka.bootstrap.servers, and kafka in "
            "signal.enabled.channels), or name another with --signal-topic."
        )


@dataclass(frozen=True)
class SnapshotSignal:
    """A signal for a snapshot of the table `collection`.

    :param starts: the ends of the table's topic before the signal, by partition: the snapshot's rows follow them.
    :param age: seconds since the signal.
    """

    collection: str
    starts: Mapping[int, int]
    age: float


@dataclass(frozen=True)
class SignalTopic:
    """Signal topic of a connector; `where` is the connection's name for errors, `key` the connector's topic.prefix."""

    connection: Mapping[str, Any]
    where: str
    topic: str
    key: str

    def last(self, collection: str) -> SnapshotSignal | None:
        """Return the last signal for a table that this package sent, or None. Raises NotSignalled.

        Only the topic's last _TAIL records are searched.
        """
        newest = None
        for message in self._tail():
            starts = dict(message.headers() or ()).get(_FROM_HEADER)
            if starts is None or _collection_of(message) != collection:
                continue
            ends = {int(partition): offset for partition, offset in json.loads(starts).items()}
            newest = SnapshotSignal(collection, ends, time.time() - message.timestamp()[1] / 1000)
        return newest

    def ask(self, collection: str, starts: Mapping[int, int], wait: Callable[[float], object]) -> SnapshotSignal:
        """Order a snapshot of a table, after the pause since the last signal. Raises NotSignalled.

        :param collection: the table's name in a signal.
        :param starts: the present ends of the table's topic, which the signal keeps for a later run.
        :param wait: called with the seconds to wait.
        """
        ages = [time.time() - message.timestamp()[1] / 1000 for message in self._tail()]
        if ages and min(ages) < PAUSE_SECONDS:
            wait(PAUSE_SECONDS - max(0.0, min(ages)))
        value = {
            "id": uuid.uuid4().hex,
            "type": "execute-snapshot",
            "data": {"data-collections": [collection], "type": "blocking"},
        }
        errors, failures = ClientErrors(), list[str]()
        producer = open_client(Producer, admin_config(self.connection, errors), self.where)
        try:
            producer.produce(
                self.topic,
                json.dumps(value).encode(),
                self.key.encode(),
                headers={_FROM_HEADER: json.dumps(starts).encode()},
                on_delivery=lambda error, _: failures.append(error.str()) if error is not None else None,
            )
            undelivered = producer.flush(_TIMEOUT)
        except KafkaException as e:
            raise NotSignalled(self.topic, e.args[0].str()) from e
        if failures or undelivered:
            raise NotSignalled(self.topic, failures[0] if failures else errors.last or "the broker does not answer")
        return SnapshotSignal(collection, dict(starts), 0.0)

    def _tail(self) -> Iterator[Message]:
        """Yield the connector's signals among the topic's last _TAIL records. Raises NotSignalled."""
        consumer = open_client(
            Consumer, consumer_config(self.connection, "lakestream-signals", ClientErrors()), self.where
        )
        try:
            # A connector reads only partition 0.
            low, end = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=_TIMEOUT)
            offset = max(low, end - _TAIL)
            consumer.assign([TopicPartition(self.topic, 0, offset)])
            deadline = time.monotonic() + _TIMEOUT
            while offset < end and time.monotonic() < deadline:
                for message in consumer.consume(max(1, end - offset), 1.0):
                    if message.error() is None and message.key() == self.key.encode():
                        yield message
                (position,) = consumer.position([TopicPartition(self.topic, 0)])
                offset = max(offset, position.offset)
        except KafkaException as e:
            raise NotSignalled(self.topic, e.args[0].str()) from e
        finally:
            consumer.close()


def _collection_of(message: Message) -> str | None:
    """Return the first table that a signal orders a snapshot of, or None for another record."""
    try:
        collection = json.loads(message.value() or b"null")["data"]["data-collections"][0]
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    return str(collection)
