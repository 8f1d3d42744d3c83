"""Reading exactly the planned ranges: assigned, never subscribed; ended by position, never by an empty poll."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from airflow_lakestream.core.plan import LogTruncated, Plan
from airflow_lakestream.core.ports import Chunk, OffsetsGone
from airflow_lakestream.core.ranges import OffsetRange
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.kafka.client import ClientErrors, consumer_config
from airflow_lakestream.kafka.errors import AUTHENTICATION, AUTHORIZATION, KafkaRefused, StalledPartition

# consume() waits its whole time-out unless so many arrive. Few are also faster: their memory stays in the cache.
CONSUME = 500
POLL = 0.1
# A chunk is handed on when its values are this large, or this many: large enough for Arrow, small enough for memory.
CHUNK_BYTES = 8 * 2**20
CHUNK_RECORDS = 50_000
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

    def read(self, plan: Plan, cancelled: threading.Event) -> Iterator[Chunk]:
        """Yield the plan's records, by partition in offset order; see `core.ports.Reader`."""
        topic = plan.state.identity.topic
        parts = {p: _Partition(topic, p, plan.ranges.intervals(topic, p)) for _, p in plan.ranges.partitions}
        errors = ClientErrors()
        consumer = Consumer(consumer_config(self._connection, self._group, errors))
        polled = 0.0
        try:
            consumer.assign([_assignment(part, plan.known_epochs.get(p)) for p, part in parts.items()])
            while parts and not cancelled.is_set():
                started = time.monotonic()
                messages = consumer.consume(CONSUME, POLL)
                # Only the time spent waiting for Kafka counts towards a stall, not that of whoever takes the chunks.
                polled += time.monotonic() - started
                if errors.fatal is not None:
                    raise KafkaRefused(self._where, f"reading {topic}", errors.fatal.str())
                for part in self._sort_in(messages, parts):
                    part.heard_at = polled
                    part.take_messages(self._with_keys, self._with_headers)
                    yield from self._advance(consumer, parts, part)
                if len(messages) < CONSUME:
                    yield from self._look_at_quiet(consumer, parts, polled, errors)
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
                yield from self._advance(consumer, parts, part)
        stalled = [part for part in parts.values() if polled - part.heard_at >= self._poll_timeout]
        if stalled:
            missing = {part.partition: (max(part.next_offset, part.seen), part.end) for part in stalled}
            raise StalledPartition(stalled[0].topic, missing, self._poll_timeout, errors.last)

    def _sort_in(self, messages: Sequence[Any], parts: Mapping[int, _Partition]) -> list[_Partition]:
        """Give each message to its partition; return the partitions that heard something."""
        heard: dict[int, _Partition] = {}
        for message in messages:
            error = message.error()
            number = message.partition()
            part = parts.get(number)
            if part is None:
                if error is not None and error.code() in AUTHENTICATION | AUTHORIZATION:
                    raise KafkaRefused(self._where, "reading", error.str())
                continue
            if error is None:
                part.messages.append(message)
            else:
                self._sort_in_error(error, message, part)
            heard[number] = part
        return list(heard.values())

    def _sort_in_error(self, error: KafkaError, message: Any, part: _Partition) -> None:
        code = error.code()
        if code == KafkaError._PARTITION_EOF:
            part.seen = max(part.seen, message.offset())
        elif code == KafkaError._LOG_TRUNCATION or "truncat" in error.str().lower():
            raise LogTruncated(part.topic, part.partition, part.position, None, "the table")
        elif code in _GONE:
            raise OffsetsGone(part.topic, part.partition, part.position)
        elif code in AUTHENTICATION | AUTHORIZATION:
            raise KafkaRefused(self._where, f"reading {part.topic}[{part.partition}]", error.str())
        elif error.fatal() or not error.retriable():
            raise KafkaException(error)

    def _advance(self, consumer: Consumer, parts: dict[int, _Partition], part: _Partition) -> Iterator[Chunk]:
        """Hand on what has come, when it is enough or when the current range is at its end."""
        if part.seen < part.end:
            if part.is_full:
                yield part.chunk(part.next_offset)
            return
        yield part.chunk(part.end)
        if part.begin_next_range():
            consumer.seek(TopicPartition(part.topic, part.partition, part.position))
        else:
            del parts[part.partition]
            consumer.incremental_unassign([TopicPartition(part.topic, part.partition)])


class _Partition:
    """One partition's way through its planned ranges.

    `position` is where the next chunk begins, `next_offset` is behind the last record taken, `seen` is the greatest
    offset known to be passed: a delivered record's, an end-of-partition's, or the consumer's position.
    """

    def __init__(self, topic: str, partition: int, intervals: Sequence[tuple[int, int]]) -> None:
        self.topic, self.partition = topic, partition
        self._intervals = list(intervals)
        self.messages: list[Any] = []
        self.heard_at = 0.0
        self.begin_next_range()

    def begin_next_range(self) -> bool:
        """Go to the next planned range; False when there is none."""
        if not self._intervals:
            return False
        self.position, self.end = self._intervals.pop(0)
        self.next_offset = self.seen = self.position
        self._clear()
        return True

    def _clear(self) -> None:
        self._offsets: list[int] = []
        self._timestamps: list[int] = []
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._headers: list[Any] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size >= CHUNK_BYTES or len(self._values) >= CHUNK_RECORDS

    def take_messages(self, with_keys: bool, with_headers: bool) -> None:
        """Move the delivered messages into columns, leaving out what lies outside the current range."""
        messages, self.messages = self.messages, []
        if not messages:
            return
        if messages[-1].offset() >= self.end or messages[0].offset() < self.next_offset:
            self.seen = max(self.seen, messages[-1].offset())
            messages = [m for m in messages if self.next_offset <= m.offset() < self.end]
            if not messages:
                return
        values = [m.value() for m in messages]
        self._values += values
        self._offsets += [m.offset() for m in messages]
        self._timestamps += [m.timestamp()[1] for m in messages]
        self._size += sum(map(len, filter(None, values)))
        if with_keys:
            keys = [m.key() for m in messages]
            self._keys += keys
            self._size += sum(map(len, filter(None, keys)))
        if with_headers:
            self._headers += [m.headers() for m in messages]
        self.next_offset = self._offsets[-1] + 1
        self.seen = max(self.seen, self.next_offset)

    def chunk(self, until: int) -> Chunk:
        """Return what was taken as a chunk that covers up to `until`, and begin the next one there."""
        count = len(self._offsets)
        offsets: Sequence[int] = self._offsets
        if count and offsets[-1] - offsets[0] + 1 == count:
            offsets = range(offsets[0], offsets[-1] + 1)
        batch = RawBatch(
            self.topic,
            self.partition,
            offsets,
            self._timestamps,
            self._values,
            self._keys or None,
            self._headers or None,
        )
        covers = OffsetRange(self.topic, self.partition, self.position, until)
        chunk = Chunk(covers, batch, self._size)
        self.position = until
        self._clear()
        return chunk


def _assignment(part: _Partition, epoch: int | None) -> TopicPartition:
    if epoch is None:
        return TopicPartition(part.topic, part.partition, part.position)
    return TopicPartition(part.topic, part.partition, part.position, leader_epoch=epoch)
