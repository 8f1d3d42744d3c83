"""Consumer groups and topics of another program: reads, and changes of empty groups."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # its stubs miss it

from airflow_lakestream.exceptions import LakestreamError, Transient
from airflow_lakestream.kafka.client import ClientErrors, consumer_config, open_client
from airflow_lakestream.kafka.damage import read_error
from airflow_lakestream.kafka.errors import KafkaRefused, KafkaUnavailable
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.requests import REQUEST_TIMEOUT, KafkaRequests
from airflow_lakestream.kafka.watch import KafkaWatch

# The group's name in brokers' logs; nothing is ever committed for it.
_GROUP = "lakestream-groups"
# Seconds between two looks.
_PAUSE = 0.5
# Errors while a broker becomes a group's coordinator.
_COORDINATOR_BUSY = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
_EMPTY_WITHIN_S = 60.0


class GroupInUse(LakestreamError, Transient):
    """A group's offsets can't be set while the group has members."""

    def __init__(self, group: str, where: str) -> None:
        super().__init__(
            f"{where}: the offsets of group {group!r} can't be set: it still has a member. A retry looks again."
        )


class KafkaGroups(KafkaRequests):
    """Consumer groups and topics of a connection's cluster.

    All methods raise KafkaRefused, KafkaUnavailable, KafkaMisconfigured and TopicMissing.
    """

    def __init__(self, connection: Mapping[str, Any], where: str) -> None:
        super().__init__(connection, where)
        self.watch = KafkaWatch(connection, where)

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return a group's committed offsets of a topic, by partition."""
        return dict(self.watch.group(group).offsets.get(topic, {}))

    def set_committed(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Set a group's committed offsets, after the group is empty.

        Raises GroupInUse if the group stays in use, or if its coordinator refuses the offsets.
        """
        targets = [TopicPartition(topic, p, offset) for p, offset in sorted(offsets.items())]
        request = ConsumerGroupTopicPartitions(group, targets)

        def ask() -> Future[Any]:
            futures = self._client().alter_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT)
            future: Future[Any] = futures[group]
            return future

        self.await_empty(group)
        deadline = time.monotonic() + REQUEST_TIMEOUT
        while True:
            answer = self._ask(f"setting the offsets of group {group!r}", ask)
            errors = [tp.error for tp in answer.topic_partitions if tp.error is not None]
            if not errors:
                return
            if errors[0].code() not in _COORDINATOR_BUSY or time.monotonic() > deadline:
                raise GroupInUse(group, self._where) from KafkaException(errors[0])
            time.sleep(_PAUSE)  # No event shows when the coordinator is ready.

    def await_empty(self, group: str) -> None:
        """Wait until a group is empty, for a minute at most. Raises GroupInUse."""
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        while self.watch.group(group).members:
            # Members of a killed worker stay until their session is over.
            if time.monotonic() > deadline:
                raise GroupInUse(group, self._where)
            time.sleep(_PAUSE)  # No event shows the end of a session.

    def make_topic(self, topic: str) -> bool:
        """Create a topic of one partition, and wait until the brokers list the topic; return False if it exists."""

        def ask() -> Future[Any]:
            new = NewTopic(topic, num_partitions=1, replication_factor=-1)
            future: Future[Any] = self._client().create_topics([new], request_timeout=REQUEST_TIMEOUT)[topic]
            return _with_exists(future)

        try:
            self._ask(f"making topic {topic!r}", ask)
        except _Exists:
            return False
        deadline = time.monotonic() + REQUEST_TIMEOUT
        # The brokers learn of a new topic one after the other.
        while topic not in self._client().list_topics(timeout=REQUEST_TIMEOUT).topics:
            if time.monotonic() > deadline:
                raise self._unavailable(f"waiting for topic {topic!r}", "it does not show")
            time.sleep(_PAUSE)  # No event shows when the last broker knows.
        return True

    def reader(self) -> KafkaReader:
        """Return a reader of the connection's topics."""
        return KafkaReader(self._connection, _GROUP, poll_timeout=REQUEST_TIMEOUT, where=self._where)

    def records(self, topic: str, starts: Mapping[int, int] | None = None) -> Generator[Message, None, None]:
        """Yield a topic's records of committed transactions, up to each partition's end.

        Records that arrive during the read may be among them. Raises the errors of all methods, and ReadFailed and
        DamagedBatch.

        :param starts: the first offsets by partition; default: the log's start.
        """
        marks = self.watch.topic(topic).marks
        first_offsets = {p: max(mark.low, (starts or {}).get(p, 0)) for p, mark in marks.items()}
        first_offsets = {p: offset for p, offset in first_offsets.items() if offset < marks[p].end}
        if not first_offsets:
            return
        errors = ClientErrors()
        config = {**consumer_config(self._connection, _GROUP, errors), "isolation.level": "read_committed"}
        consumer = open_client(Consumer, config, self._where)
        doing = f"reading topic {topic!r}"
        try:
            consumer.assign([TopicPartition(topic, p, offset) for p, offset in first_offsets.items()])
            left, deadline = set(first_offsets), time.monotonic() + REQUEST_TIMEOUT
            while left:
                message = consumer.poll(0.2)
                if message is None:
                    if errors.fatal is not None:
                        raise KafkaRefused(self._where, doing, errors.fatal.str())
                    if time.monotonic() > deadline or errors.are_all_down:
                        raise KafkaUnavailable(self._where, doing, REQUEST_TIMEOUT, errors.last)
                    continue
                deadline = time.monotonic() + REQUEST_TIMEOUT
                if (error := message.error()) is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(int(message.partition() or 0))
                else:
                    raise read_error(topic, int(message.partition() or 0), int(message.offset() or 0), error)
        finally:
            consumer.close()


class _Exists(Exception):
    """The topic exists already."""


def _with_exists(future: Future[Any]) -> Future[Any]:
    """Return a future with the same result, which fails by _Exists instead of Kafka's TOPIC_ALREADY_EXISTS.

    `_ask` would repeat a request that fails by an error of Kafka.
    """
    outcome: Future[Any] = Future()

    def pass_result(done: Future[Any]) -> None:
        error = done.exception()
        if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            outcome.set_exception(_Exists())
        elif error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(done.result())

    future.add_done_callback(pass_result)
    return outcome
