"""Reading exactly the planned ranges: assigned, never subscribed; ended by position, never by an empty poll."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from airflow_lakestream.core.landing.plan import LogTruncated, Plan
from airflow_lakestream.core.ports import Chunk, OffsetsGone
from airflow_lakestream.kafka.client import ClientErrors, consumer_config, open_client
from airflow_lakestream.kafka.errors import (
    AUTHENTICATION,
    AUTHORIZATION,
    MISSING_TOPIC,
    BatchTooLarge,
    KafkaRefused,
    ReadFailed,
    StalledPartition,
    TopicMissing,
)
from airflow_lakestream.kafka.messages import Positions, runs, timestamps
from airflow_lakestream.kafka.partition import CHUNK_BYTES, Partition
from airflow_lakestream.runtime.collector import calm_collector

# consume() waits its whole time-out unless so many arrive. More were no faster: their memory leaves the cache.
CONSUME = 1_000
# Of large records fewer, of about so many bytes: they are held twice until they are in columns.
CONSUME_BYTES = 4 * 2**20
POLL = 0.1
# What all partitions together may hold before the fullest is handed on: with many, none would ever be full.
HELD_BYTES = 4 * CHUNK_BYTES
_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class KafkaReader:
    """`core.ports.Reader` on a real cluster. One consumer reads all partitions of the plan at once.

    :param connection: librdkafka configuration.
    :param poll_timeout: seconds after which a partition that yields nothing is a stall.
    :param where: what to call the connection in errors.
    """

    def __init__(
        self,
        connection: Mapping[str, Any],
        consumer_group: str,
        *,
        poll_timeout: float,
        where: str,
        with_keys: bool = False,
        with_headers: bool = False,
    ) -> None:
        self._connection = dict(connection)
        self._group = consumer_group
        self._poll_timeout = poll_timeout
        self._where = where
        self._with_keys = with_keys
        self._with_headers = with_headers

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[Chunk, None, None]:
        """Yield the plan's records, by partition in offset order; see `core.ports.Reader`."""
        with calm_collector():
            for layer in _layers(plan):
                yield from self._read_layer(layer, plan, cancelled)

    def _read_layer(self, parts: dict[int, Partition], plan: Plan, cancelled: threading.Event) -> Iterator[Chunk]:
        """Read at most one range of each partition, by a consumer of its own.

        Of its own, because a consumer that is sent elsewhere may still report the position of where it was, and a
        position is what tells here that a range is at its end.
        """
        errors = ClientErrors()
        consumer = open_client(Consumer, consumer_config(self._connection, self._group, errors), self._where)
        positions = Positions(consumer, plan.state.identity.topic, parts)
        polled, most = 0.0, CONSUME
        try:
            consumer.assign([_assignment(part, plan.known_epochs.get(p)) for p, part in parts.items()])
            while parts and not cancelled.is_set():
                started = time.monotonic()
                # No more than are left: the last ones would wait for some that nobody wants.
                left = sum(part.end - part.next_offset for part in parts.values())
                wanted = max(1, min(most, left))
                messages = consumer.consume(wanted, POLL)
                # Only the time spent waiting for Kafka counts towards a stall, not that of whoever takes the chunks.
                polled += time.monotonic() - started
                if errors.fatal is not None:
                    raise KafkaRefused(self._where, f"reading {plan.state.identity.topic}", errors.fatal.str())
                if errors.too_large:
                    # It would come again and again, and all that is behind it never.
                    stuck = {p: max(part.next_offset, part.seen) for p, part in parts.items()}
                    raise BatchTooLarge(plan.state.identity.topic, stuck, self._where, errors.too_large)
                count, size = len(messages), 0
                heard = self._sort_in(messages, parts, positions)
                # In columns soon, and whoever takes these may be long in coming.
                del messages
                for part in heard:
                    part.heard_at = polled
                    size += part.take_messages(self._with_keys, self._with_headers)
                    yield from _advance(consumer, parts, part)
                yield from _relieve(parts)
                if count < wanted:
                    yield from self._look_at_quiet(consumer, parts, polled, errors)
                if count:
                    most = max(1, min(CONSUME, CONSUME_BYTES * count // max(1, size)))
        finally:
            consumer.close()

    def _look_at_quiet(
        self, consumer: Consumer, parts: dict[int, Partition], polled: float, errors: ClientErrors
    ) -> Iterator[Chunk]:
        """Advance the partitions whose position moved without a record: over markers, aborts and compacted holes."""
        for tp in consumer.position([TopicPartition(part.topic, p) for p, part in parts.items()]):
            part = parts[tp.partition]
            if tp.offset > part.seen:
                part.seen, part.heard_at = tp.offset, polled
                yield from _advance(consumer, parts, part)
        stalled = [part for part in parts.values() if polled - part.heard_at >= self._poll_timeout]
        if stalled:
            missing = {part.partition: (max(part.next_offset, part.seen), part.end) for part in stalled}
            raise StalledPartition(stalled[0].topic, missing, self._poll_timeout, errors.last)

    def _sort_in(
        self, messages: list[Any], parts: Mapping[int, Partition], positions: Positions
    ) -> Sequence[Partition]:
        """Give each message to its partition; return the partitions that heard something."""
        stamps = timestamps(messages)
        if len(messages) and stamps.min() < 0 and any(map(Message.error, messages)):
            messages = self._without_errors(messages, parts)
            stamps = timestamps(messages)
        heard: dict[int, Partition] = {}
        for number, at, until in runs(messages, positions):
            part = parts.get(number)
            if part is not None:
                part.add(messages[at:until], stamps[at:until])
                heard[number] = part
        return [*heard.values(), *(part for p, part in parts.items() if part.at_end and p not in heard)]

    def _without_errors(self, messages: Sequence[Any], parts: Mapping[int, Partition]) -> list[Any]:
        good = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif (part := parts.get(message.partition())) is not None:
                self._sort_in_error(error, message, part)
            elif error.code() in AUTHENTICATION | AUTHORIZATION - {KafkaError.GROUP_AUTHORIZATION_FAILED}:
                raise KafkaRefused(self._where, "reading", error.str())
        return good

    def _sort_in_error(self, error: KafkaError, message: Any, part: Partition) -> None:
        code = error.code()
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            # The group is only a mirror of progress: reading assigned ranges needs none.
            return
        if code == KafkaError._PARTITION_EOF:
            part.seen = max(part.seen, message.offset())
        elif code == KafkaError._LOG_TRUNCATION or "truncat" in error.str().lower():
            raise LogTruncated(part.topic, part.partition, part.position, None, "the table")
        elif code in _GONE:
            raise OffsetsGone(part.topic, part.partition, part.position)
        elif code in AUTHENTICATION | AUTHORIZATION:
            raise KafkaRefused(self._where, f"reading {part.topic}[{part.partition}]", error.str())
        elif code in MISSING_TOPIC:
            raise TopicMissing(part.topic, self._where)
        elif error.fatal() or not error.retriable():
            raise ReadFailed(part.topic, part.partition, part.next_offset, error.str())


def _layers(plan: Plan) -> Iterator[dict[int, Partition]]:
    """Yield the first range of each partition, then the second of those that have one, and so on."""
    topic = plan.state.identity.topic
    left = {p: list(plan.ranges.intervals(topic, p)) for _, p in plan.ranges.partitions}
    while left:
        yield {p: Partition(topic, p, *intervals.pop(0)) for p, intervals in left.items()}
        left = {p: intervals for p, intervals in left.items() if intervals}


def _advance(consumer: Consumer, parts: dict[int, Partition], part: Partition) -> Iterator[Chunk]:
    """Hand on what has come, when it is enough or when the range is at its end."""
    if part.at_end:
        del parts[part.partition]
        consumer.incremental_unassign([TopicPartition(part.topic, part.partition)])
        yield part.chunk(part.end)
    elif part.is_full:
        yield part.chunk(part.next_offset)


def _relieve(parts: Mapping[int, Partition]) -> Iterator[Chunk]:
    """Hand on what the fullest partitions hold while all together hold too much."""
    while sum(part.size for part in parts.values()) > HELD_BYTES:
        fullest = max(parts.values(), key=lambda part: part.size)
        yield fullest.chunk(fullest.next_offset)


def _assignment(part: Partition, epoch: int | None) -> TopicPartition:
    if epoch is None:
        return TopicPartition(part.topic, part.partition, part.position)
    return TopicPartition(part.topic, part.partition, part.position, leader_epoch=epoch)
