"""Reading exactly the planned ranges: assigned, never subscribed; ended by position, never by an empty poll."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Generator, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from airflow_lakestream.core.collector import calm_collector
from airflow_lakestream.core.plan import LogTruncated, Plan
from airflow_lakestream.core.ports import Chunk, OffsetsGone
from airflow_lakestream.core.ranges import OffsetRange
from airflow_lakestream.core.records import RawBatch
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

# consume() waits its whole time-out unless so many arrive. More were no faster: their memory leaves the cache.
CONSUME = 1_000
# Of large records fewer, of about so many bytes: they are held twice until they are in columns.
CONSUME_BYTES = 4 * 2**20
POLL = 0.1
# A chunk is handed on when its values are this large, or this many: large enough for Arrow, small enough for memory and
# for the processor's cache. Of 8 MiB it took 5% longer and 50 MiB more: what is that large jemalloc does not keep.
CHUNK_BYTES = 4 * 2**20
CHUNK_RECORDS = 50_000
# What all partitions together may hold before the fullest is handed on: with many, none would ever be full.
HELD_BYTES = 4 * CHUNK_BYTES
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
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

    def _read_layer(self, parts: dict[int, _Partition], plan: Plan, cancelled: threading.Event) -> Iterator[Chunk]:
        """Read at most one range of each partition, by a consumer of its own.

        Of its own, because a consumer that is sent elsewhere may still report the position of where it was, and a
        position is what tells here that a range is at its end.
        """
        errors = ClientErrors()
        consumer = open_client(Consumer, consumer_config(self._connection, self._group, errors), self._where)
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
                    positions = {p: max(part.next_offset, part.seen) for p, part in parts.items()}
                    raise BatchTooLarge(plan.state.identity.topic, positions, self._where, errors.too_large)
                count, size = len(messages), 0
                heard = self._sort_in(messages, parts)
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
        self, consumer: Consumer, parts: dict[int, _Partition], polled: float, errors: ClientErrors
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

    def _sort_in(self, messages: list[Any], parts: Mapping[int, _Partition]) -> Sequence[_Partition]:
        """Give each message to its partition; return the partitions that heard something."""
        # Written with map(): half the time of reading goes into attributes of messages, one Python call for each.
        if any(map(Message.error, messages)):
            messages = self._without_errors(messages, parts)
        numbers: list[Any] = list(map(Message.partition, messages))
        heard: dict[int, _Partition] = {}
        at = 0
        while at < len(numbers):
            number = numbers[at]
            until = len(numbers) if numbers == [number] * len(numbers) else _end_of_run(numbers, at)
            part = parts.get(number)
            if part is not None:
                part.messages += messages[at:until]
                heard[number] = part
            at = until
        return [*heard.values(), *(part for p, part in parts.items() if part.at_end and p not in heard)]

    def _without_errors(self, messages: Sequence[Any], parts: Mapping[int, _Partition]) -> list[Any]:
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

    def _sort_in_error(self, error: KafkaError, message: Any, part: _Partition) -> None:
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


def _layers(plan: Plan) -> Iterator[dict[int, _Partition]]:
    """Yield the first range of each partition, then the second of those that have one, and so on."""
    topic = plan.state.identity.topic
    left = {p: list(plan.ranges.intervals(topic, p)) for _, p in plan.ranges.partitions}
    while left:
        yield {p: _Partition(topic, p, *intervals.pop(0)) for p, intervals in left.items()}
        left = {p: intervals for p, intervals in left.items() if intervals}


def _advance(consumer: Consumer, parts: dict[int, _Partition], part: _Partition) -> Iterator[Chunk]:
    """Hand on what has come, when it is enough or when the range is at its end."""
    if part.at_end:
        del parts[part.partition]
        consumer.incremental_unassign([TopicPartition(part.topic, part.partition)])
        yield part.chunk(part.end)
    elif part.is_full:
        yield part.chunk(part.next_offset)


def _relieve(parts: Mapping[int, _Partition]) -> Iterator[Chunk]:
    """Hand on what the fullest partitions hold while all together hold too much."""
    while sum(part.size for part in parts.values()) > HELD_BYTES:
        fullest = max(parts.values(), key=lambda part: part.size)
        yield fullest.chunk(fullest.next_offset)


def _end_of_run(numbers: Sequence[int], start: int) -> int:
    """Return the first index behind `start` that has another number."""
    number = numbers[start]
    return next((i for i in range(start, len(numbers)) if numbers[i] != number), len(numbers))


class _Partition:
    """One partition's way through its planned range [position, end).

    `position` is where the next chunk begins, `next_offset` is behind the last record taken, `seen` is the greatest
    offset known to be passed: a delivered record's, an end-of-partition's, or the consumer's position.
    """

    def __init__(self, topic: str, partition: int, position: int, end: int) -> None:
        self.topic, self.partition = topic, partition
        self.position, self.end = position, end
        self.next_offset = self.seen = position
        self.messages: list[Any] = []
        self.heard_at = 0.0
        self._clear()

    def _clear(self) -> None:
        self._offsets: list[Sequence[int]] = []
        self._timestamps = array("q")
        self._values: list[pa.Array] = []
        self._count = 0
        self._keys: list[pa.Array] = []
        self._headers: list[pa.Array] = []
        self.size = 0

    @property
    def at_end(self) -> bool:
        """Whether nothing of the range can come any more."""
        return self.seen >= self.end

    @property
    def is_full(self) -> bool:
        return self.size >= CHUNK_BYTES or self._count >= CHUNK_RECORDS

    def take_messages(self, with_keys: bool, with_headers: bool) -> int:
        """Move the delivered messages into columns, leaving out what is not of the range; return their bytes."""
        messages, self.messages = self.messages, []
        if not messages:
            return 0
        if messages[-1].offset() >= self.end or messages[0].offset() < self.next_offset:
            self.seen = max(self.seen, messages[-1].offset())
            messages = [m for m in messages if self.next_offset <= m.offset() < self.end]
            if not messages:
                return 0
        before = self.size
        # At once, while the values are warm: as an Arrow array they cost little to hold, and nothing to hand on.
        values = pa.array(list(map(Message.value, messages)), pa.binary())
        self._values.append(values)
        self._count += len(values)
        self.size += values.total_values_length
        self._offsets.append(_offsets(messages))
        at = map(itemgetter(1), map(Message.timestamp, messages))
        self._timestamps.frombytes(np.fromiter(at, np.int64, len(messages)).tobytes())
        if with_keys:
            self._keys.append(pa.array(list(map(Message.key, messages)), pa.binary()))
            self.size += self._keys[-1].total_values_length
        if with_headers:
            headers = _headers(messages)
            self._headers.append(headers)
            self.size += headers.nbytes if headers.null_count < len(headers) else 0
        self.next_offset = self._offsets[-1][-1] + 1
        self.seen = max(self.seen, self.next_offset)
        return self.size - before

    def chunk(self, until: int) -> Chunk:
        """Return what was taken as a chunk that covers up to `until`, and begin the next one there."""
        batch = RawBatch(
            self.topic,
            self.partition,
            _joined(self._offsets, self._count),
            self._timestamps,
            _whole(self._values) if self._values else pa.array([], pa.binary()),
            _whole(self._keys) if self._keys else None,
            _whole(self._headers) if self._headers else None,
        )
        covers = OffsetRange(self.topic, self.partition, self.position, until)
        chunk = Chunk(covers, batch, self.size)
        self.position = until
        self._clear()
        return chunk


def _offsets(messages: Sequence[Any]) -> Sequence[int]:
    """Return the offsets of messages in order; where first and last say that none is missing, no other is asked."""
    first, last = messages[0].offset(), messages[-1].offset()
    if last - first + 1 == len(messages):
        return range(first, last + 1)
    offsets: list[Any] = list(map(Message.offset, messages))
    return offsets


def _headers(messages: Sequence[Any]) -> pa.Array:
    if not any(map(Message.headers, messages)):
        return pa.nulls(len(messages), HEADERS)
    return pa.array(list(map(Message.headers, messages)), HEADERS)


def _whole(pieces: Sequence[pa.Array]) -> pa.Array:
    # Arrow copies a single one, too.
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def _joined(pieces: Sequence[Sequence[int]], count: int) -> Sequence[int]:
    if count and pieces[-1][-1] - pieces[0][0] + 1 == count:
        return range(pieces[0][0], pieces[-1][-1] + 1)
    return [offset for piece in pieces for offset in piece]


def _assignment(part: _Partition, epoch: int | None) -> TopicPartition:
    if epoch is None:
        return TopicPartition(part.topic, part.partition, part.position)
    return TopicPartition(part.topic, part.partition, part.position, leader_epoch=epoch)
