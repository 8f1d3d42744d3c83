"""Reader of exactly the planned ranges: assigned, never subscribed. A range ends by position, not by an empty poll."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from airflow_lakestream.core.landing.plan import DamagedBatch, LogTruncated, Plan
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.ports import OffsetsGone, RecordChunk
from airflow_lakestream.kafka.client import ClientErrors, consumer_config, open_client
from airflow_lakestream.kafka.damage import DISORDER, SILENCE, LogFault, LogProbe
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
from airflow_lakestream.kafka.partition import CHUNK_BYTES, PartitionBuffer
from airflow_lakestream.runtime.interpreter import calm_collector

# From this number of messages per partition on, one request for all positions is faster than a look at each message.
_WORTH_ASKING = 32


class ConsumerPositions:
    """Positions of a consumer, to find the partition of the last messages."""

    def __init__(self, consumer: Consumer, topic: str, partitions: Iterable[int]) -> None:
        self._consumer = consumer
        self._partitions = [TopicPartition(topic, p) for p in partitions]
        self._last_positions = {tp.partition: OFFSET_INVALID for tp in self._partitions}

    def only_moved_partition(self, count: int) -> int | None:
        """Return the only partition of the last `count` messages; None for several partitions, or for few messages.

        For few messages a request for the positions is slower than a look at each message. A position moves with each
        message that consume() returns, and otherwise only over skipped offsets: `rd_kafka_q_serve_rkmessages` in
        librdkafka's rdkafka_queue.c. Mostly a thousand messages are of one fetch.
        """
        if count < _WORTH_ASKING * len(self._partitions):
            # The positions stay unread: the next request finds these partitions moved, too.
            return None
        positions = {tp.partition: tp.offset for tp in self._consumer.position(self._partitions)}
        moved = [partition for partition, offset in positions.items() if offset != self._last_positions[partition]]
        self._last_positions = positions
        return moved[0] if len(moved) == 1 else None


def runs(messages: Sequence[Any], positions: ConsumerPositions) -> Iterator[tuple[int, int, int]]:
    """Yield runs of neighbouring messages of a partition, as (partition, first index, index behind the last).

    Mostly all messages are of a single partition, which the positions show without a look at each message.
    """
    count = len(messages)
    if (only := positions.only_moved_partition(count)) is not None:
        yield only, 0, count
        return
    partitions: list[Any] = list(map(Message.partition, messages))
    start = 0
    while start < count:
        partition = partitions[start]
        until = next((i for i in range(start, count) if partitions[i] != partition), count)
        yield partition, start, until
        start = until


def timestamps(messages: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Return the messages' times in milliseconds; -1 for an error or a record without a time."""
    return np.fromiter(map(itemgetter(1), map(Message.timestamp, messages)), np.int64, len(messages))


# The most messages that one consume() waits for. More messages were no faster: they leave the processor's cache.
CONSUME = 1_000
# The most bytes of one consume(), which asks for fewer large records: until records are in columns, memory has two
# copies of them.
CONSUME_BYTES = 4 * 2**20
# Seconds that consume() waits.
POLL = 0.1
# The most seconds for a probe of a single offset.
PROBE = 10.0
# With more bytes in all partitions together, the fullest yield chunks: of many partitions, none gets full in time.
HELD_BYTES = 4 * CHUNK_BYTES
_ENDLESS = 2**63 - 1
_GONE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class ReadingPace:
    """Limit of the bytes that a reader takes in a second, on average: the reader waits after each piece of records.

    :param bytes_per_second: above 0.
    """

    def __init__(self, bytes_per_second: int) -> None:
        self.bytes_per_second = bytes_per_second
        # The monotonic time at which the next piece may be read.
        self._due = 0.0

    @property
    def queued_kbytes(self) -> int:
        """Kilobytes that librdkafka may read ahead: the bytes of a second."""
        return max(1, min(16 * 1024, self.bytes_per_second // 1024))

    def wait(self, size: int, cancelled: threading.Event) -> None:
        """Wait until records of `size` bytes are within the limit, or until the read is cancelled."""
        now = time.monotonic()
        self._due = max(self._due, now) + size / self.bytes_per_second
        cancelled.wait(self._due - now)


class KafkaReader:
    """`core.ports.RecordReader` on a real cluster. A single consumer reads all partitions of the plan at once.

    :param connection: librdkafka configuration.
    :param poll_timeout: seconds without data after which a partition has stalled.
    :param where: name of the connection for errors.
    :param parts: the parts of records to read, in addition to positions, times and values.
    :param bytes_per_second: most bytes of records to read in a second, on average; None without a limit.
    """

    def __init__(
        self,
        connection: Mapping[str, Any],
        consumer_group: str,
        *,
        poll_timeout: float,
        where: str,
        parts: frozenset[RecordPart] = frozenset(),
        bytes_per_second: int | None = None,
    ) -> None:
        self._connection = dict(connection)
        self._group = consumer_group
        self._poll_timeout = poll_timeout
        self._where = where
        self._parts = parts
        self._pace = None if bytes_per_second is None else ReadingPace(bytes_per_second)
        if self._pace is not None:
            # The bytes that librdkafka reads ahead are part of the limit. The connection's own setting wins.
            self._connection.setdefault("queued.max.messages.kbytes", self._pace.queued_kbytes)
        self._probe = LogProbe(connection, consumer_group, where, min(poll_timeout, PROBE))

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        """Yield the plan's records, each partition in offset order; see `core.ports.RecordReader`.

        Raises OffsetsGone, LogTruncated, DamagedBatch, StalledPartition, and the errors of `kafka.errors`.
        """
        with calm_collector():
            for layer in _layers(plan):
                yield from self._read_layer(layer, plan, cancelled)

    def _read_layer(
        self, parts: dict[int, PartitionBuffer], plan: Plan, cancelled: threading.Event
    ) -> Iterator[RecordChunk]:
        """Read at most a single range of each partition, with a new consumer; yield the chunks.

        A finished partition is removed from `parts`. Each layer needs a new consumer: a consumer that seeks may still
        report its earlier position, and the position decides here whether a range is at its end.
        """
        errors = ClientErrors()
        consumer = open_client(Consumer, consumer_config(self._connection, self._group, errors), self._where)
        positions = ConsumerPositions(consumer, plan.state.identity.topic, parts)
        # The size of the records is not known yet, so a reader with a limit begins with a single record.
        polled, most = 0.0, CONSUME if self._pace is None else 1
        try:
            consumer.assign([_assignment(part, plan.known_epoch(p, part.position)) for p, part in parts.items()])
            while parts and not cancelled.is_set():
                started = time.monotonic()
                # Ask for no more records than are left: consume() would wait for records behind the ranges.
                left = sum(part.end - part.next_offset for part in parts.values())
                wanted = max(1, min(most, left))
                messages = consumer.consume(wanted, POLL)
                # Only waiting for Kafka counts towards a stall, not the time of the caller that gets the chunks.
                polled += time.monotonic() - started
                if errors.fatal is not None:
                    raise KafkaRefused(self._where, f"reading {plan.state.identity.topic}", errors.fatal.str())
                if errors.too_large:
                    # The batch would fail again and again, and no record behind it would ever come.
                    reached = {p: part.reached for p, part in parts.items()}
                    raise BatchTooLarge(plan.state.identity.topic, reached, self._where, errors.too_large)
                count, size = len(messages), 0
                heard = self._sort_in(messages, parts, positions)
                # Free the messages: they are in columns soon, and the caller that gets the chunks may be slow.
                del messages
                for part in heard:
                    part.heard_at = polled
                    self._check_order(consumer, part)
                    size += part.take_messages(self._parts)
                    yield from _advance(consumer, parts, part)
                # A reader with a limit would fill a chunk in minutes: it yields small chunks, so that commits are in
                # time.
                yield from _relieve(parts, HELD_BYTES if self._pace is None else 0)
                if count < wanted:
                    yield from self._look_at_quiet(consumer, parts, polled, errors)
                if count:
                    at_once = CONSUME_BYTES if self._pace is None else min(CONSUME_BYTES, self._pace.bytes_per_second)
                    most = max(1, min(CONSUME, at_once * count // max(1, size)))
                if self._pace is not None:
                    self._pace.wait(size, cancelled)
        finally:
            consumer.close()

    def _check_order(self, consumer: Consumer, part: PartitionBuffer) -> None:
        """Check that a partition's delivered records have no wrong offsets, as records of a damaged batch have.

        Records with wrong offsets are dropped if their true offsets are not in the range. Raises DamagedBatch
        otherwise.
        """
        if part.is_in_order(partial(_log_end, consumer, part)):
            return
        if damaged := self._probe.disorder(part.topic, part.partition, part.next_offset, part.end):
            raise damaged
        # The true offsets of the damaged batch are not in the range, and the records after the batch are in order.
        log_end = _log_end(consumer, part, ask_leader=True)
        part.drop_disordered(log_end)
        if not part.is_in_order(lambda: log_end):
            raise DamagedBatch(part.topic, part.partition, part.next_offset, part.next_offset + 1, DISORDER)

    def _look_at_quiet(
        self, consumer: Consumer, parts: dict[int, PartitionBuffer], polled: float, errors: ClientErrors
    ) -> Iterator[RecordChunk]:
        """Advance partitions whose position moved without a record, over markers, aborted records and holes.

        Yields the chunks of finished partitions. Raises StalledPartition for a partition without data for
        `poll_timeout` seconds, or DamagedBatch if a probe finds damage there.

        :param polled: seconds that the reader has waited for Kafka in all.
        """
        for tp in consumer.position([TopicPartition(part.topic, p) for p, part in parts.items()]):
            part = parts[tp.partition]
            log_ends = (_log_end(consumer, part, ask_leader=ask) for ask in (False, True))
            if tp.offset > part.end and all(tp.offset > log_end for log_end in log_ends):
                # Beyond the end of the log: a damaged batch without records, such as a transaction's marker, has wrong
                # offsets.
                raise DamagedBatch(part.topic, part.partition, part.reached, part.reached + 1, DISORDER)
            if tp.offset > part.seen:
                part.seen, part.heard_at = tp.offset, polled
                yield from _advance(consumer, parts, part)
        stalled = [part for part in parts.values() if polled - part.heard_at >= self._poll_timeout]
        if stalled:
            for part in stalled:
                # librdkafka does not report a batch that it can't parse, and fetches it again and again.
                fault = self._probe.fault(part.topic, part.partition, part.reached)
                if fault is not None and fault is not SILENCE:
                    self._raise_damaged(fault, part, part.reached)
            missing = {part.partition: (part.reached, part.end) for part in stalled}
            raise StalledPartition(stalled[0].topic, missing, self._poll_timeout, errors.last)

    def _sort_in(
        self, messages: list[Any], parts: Mapping[int, PartitionBuffer], positions: ConsumerPositions
    ) -> Sequence[PartitionBuffer]:
        """Sort messages into partitions; return the partitions with new messages or a reached end.

        Errors among the messages are raised or noted first. Messages of a finished partition are dropped.
        """
        stamps = timestamps(messages)
        # A message with an error has no timestamp: look at each message only if a timestamp is missing.
        if len(messages) and stamps.min() < 0 and any(map(Message.error, messages)):
            messages = self._without_errors(messages, parts)
            stamps = timestamps(messages)
        heard: dict[int, PartitionBuffer] = {}
        for partition, start, until in runs(messages, positions):
            part = parts.get(partition)
            if part is not None:
                part.add(messages[start:until], stamps[start:until])
                heard[partition] = part
        return [*heard.values(), *(part for p, part in parts.items() if part.at_end and p not in heard)]

    def _without_errors(self, messages: Sequence[Any], parts: Mapping[int, PartitionBuffer]) -> list[Any]:
        """Return the messages without an error. Raises DamagedBatch, KafkaRefused, and further errors of partitions."""
        good: list[Any] = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif (part := parts.get(message.partition())) is not None:
                delivered = next((m.offset() + 1 for m in reversed(good) if m.partition() == part.partition), 0)
                self._sort_in_damage(error, message, part, max(part.reached, delivered))
            elif error.code() in AUTHENTICATION | AUTHORIZATION - {KafkaError.GROUP_AUTHORIZATION_FAILED}:
                raise KafkaRefused(self._where, "reading", error.str())
        return good

    def _sort_in_damage(self, error: KafkaError, message: Any, part: PartitionBuffer, position: int) -> None:
        """Raise DamagedBatch for an error of a damaged batch in the range; leave other errors to `_sort_in_error`.

        :param position: the first offset that is not read yet.
        """
        fault = LogFault.of(error, message.offset())
        if position >= part.end:
            # An error behind the range does not matter.
            return
        if fault is not None and fault.first == part.end:
            # The damaged batch begins behind the range, whose records are all read.
            part.seen = part.end
            return
        if fault is not None:
            self._raise_damaged(fault, part, position)
        self._sort_in_error(error, message, part)

    def _raise_damaged(self, fault: LogFault, part: PartitionBuffer, position: int) -> None:
        """Raise DamagedBatch if probes confirm the fault."""
        if damaged := self._probe.damage(part.topic, part.partition, position, part.end, fault):
            raise damaged

    def _sort_in_error(self, error: KafkaError, message: Any, part: PartitionBuffer) -> None:
        """Note a partition's end, ignore errors that librdkafka retries, and raise other errors as our own."""
        code = error.code()
        if code == KafkaError.GROUP_AUTHORIZATION_FAILED:
            # Reading assigned ranges needs no group: its committed offsets only serve lag tools.
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


def _log_end(consumer: Consumer, part: PartitionBuffer, *, ask_leader: bool = False) -> int:
    """Return the end of a partition's log, or a number above all offsets if the end is unknown.

    :param ask_leader: ask the partition's leader. Otherwise the newest answer to a fetch is used, whose end may be too
        low if a follower answered.
    """
    tp = TopicPartition(part.topic, part.partition)
    try:
        marks = consumer.get_watermark_offsets(tp, timeout=PROBE, cached=not ask_leader)
    except KafkaException:
        return _ENDLESS
    return int(marks[1]) if marks is not None and marks[1] >= 0 else _ENDLESS


def _layers(plan: Plan) -> Iterator[dict[int, PartitionBuffer]]:
    """Yield the first range of each partition, then each second range, and further, as buffers by partition."""
    topic = plan.state.identity.topic
    left = {p: list(plan.ranges.intervals(topic, p)) for _, p in plan.ranges.partitions}
    while left:
        yield {p: PartitionBuffer(topic, p, *intervals.pop(0)) for p, intervals in left.items()}
        left = {p: intervals for p, intervals in left.items() if intervals}


def _advance(consumer: Consumer, parts: dict[int, PartitionBuffer], part: PartitionBuffer) -> Iterator[RecordChunk]:
    """Yield the partition's chunk if the chunk is full, or if the range is at its end.

    A partition at its end is removed from `parts` and from the consumer.
    """
    if part.at_end:
        del parts[part.partition]
        consumer.incremental_unassign([TopicPartition(part.topic, part.partition)])
        yield part.chunk(part.end)
    elif part.is_full:
        yield part.chunk(part.next_offset)


def _relieve(parts: Mapping[int, PartitionBuffer], most: int) -> Iterator[RecordChunk]:
    """Yield chunks of the fullest partitions, until all partitions together have no more than `most` bytes."""
    while sum(part.size for part in parts.values()) > most:
        fullest = max(parts.values(), key=lambda part: part.size)
        yield fullest.chunk(fullest.next_offset)


def _assignment(part: PartitionBuffer, epoch: int | None) -> TopicPartition:
    if epoch is None:
        return TopicPartition(part.topic, part.partition, part.position)
    return TopicPartition(part.topic, part.partition, part.position, leader_epoch=epoch)
