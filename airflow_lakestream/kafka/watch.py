"""State of a cluster for sensors, by a single admin client: ends, committed offsets, retention, unread records."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]  # its stubs miss OffsetSpec

from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ports import OffsetsGone, TimeBoundary
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.kafka.client import ClientErrors, admin_config, consumer_config, open_client
from airflow_lakestream.kafka.damage import read_error
from airflow_lakestream.kafka.errors import AUTHORIZATION, KafkaRefused, KafkaUnavailable
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.requests import REQUEST_TIMEOUT
from airflow_lakestream.kafka.source import KafkaSource, StartAt

# The most records whose timestamps are remembered: 16 bytes each.
_REMEMBERED = 1_000_000

_Numbers: TypeAlias = npt.NDArray[np.int64]
# The topic's id, or its name on brokers without ids, and the partition.
_PartitionKey: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class RecordTimestamps:
    """Timestamps of a partition's records in offset order; `millis` are milliseconds since the epoch."""

    offsets: _Numbers
    millis: _Numbers

    @property
    def oldest(self) -> tuple[int, int] | None:
        """Offset and timestamp of the oldest record, or None without records."""
        if not len(self.millis):
            return None
        index = int(self.millis.argmin())
        return int(self.offsets[index]), int(self.millis[index])

    def before(self, topic: str, partition: int, at_ms: int) -> RangeSet:
        """Return the offsets of the records from before a time."""
        old = self.offsets[self.millis < at_ms]
        # Each range ends before a gap in the offsets.
        ends = np.flatnonzero(np.diff(old) != 1)
        firsts = old[np.concatenate([[0], ends + 1])] if len(old) else old
        lasts = old[np.concatenate([ends, [len(old) - 1]])] if len(old) else old
        pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
        return RangeSet(OffsetRange(topic, partition, first, last + 1) for first, last in pairs)


@dataclass(frozen=True)
class _KnownTimestamps:
    """The timestamps of a partition's records in the ranges `covered`."""

    covered: RangeSet
    stamps: RecordTimestamps


_NOTHING = _KnownTimestamps(RangeSet(), RecordTimestamps(np.empty(0, np.int64), np.empty(0, np.int64)))


class TimestampCache:
    """Cache of the records' timestamps read through a connection. Thread-safe.

    :param connection: librdkafka configuration.
    :param group: name in brokers' logs; nothing is committed for it.
    :param where: name of the connection for errors.
    """

    def __init__(self, connection: Mapping[str, Any], group: str, where: str) -> None:
        self._reader = KafkaReader(connection, group, poll_timeout=REQUEST_TIMEOUT, where=where)
        self._known: OrderedDict[_PartitionKey, _KnownTimestamps] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, state: TopicState, ranges: RangeSet) -> dict[int, RecordTimestamps]:
        """Return the timestamps of the ranges' records by partition, without partitions whose records left the log.

        Reads only records that are not remembered, and remembers them. Raises the errors of `KafkaReader.read`, except
        OffsetsGone.
        """
        topic = state.identity.topic
        with self._lock:
            known = {p: self._known.get(_key(state, p), _NOTHING) for _, p in ranges.partitions}
        missing = {p: ranges.of_partition(topic, p) - timestamps.covered for p, timestamps in known.items()}
        known |= self._read(state, known, {p: unread for p, unread in missing.items() if unread})
        self._remember(state, known)
        return {p: _within(timestamps.stamps, ranges.intervals(topic, p)) for p, timestamps in known.items()}

    def forget(self, state: TopicState, partitions: Iterable[int]) -> None:
        """Forget the timestamps of partitions: the records may be gone."""
        with self._lock:
            for p in partitions:
                self._known.pop(_key(state, p), None)

    def _read(
        self, state: TopicState, known: dict[int, _KnownTimestamps], missing: Mapping[int, RangeSet]
    ) -> Mapping[int, _KnownTimestamps]:
        """Read missing ranges, and return the timestamps of these partitions, read now or before.

        Partitions whose records left the log meanwhile are left out, and removed from `known`.
        """
        parts: dict[int, list[RecordTimestamps]] = {p: [known[p].stamps] for p in missing}
        left = RangeSet(r for ranges in missing.values() for r in ranges)
        try:
            with closing(self._reader.read(Plan(state, left), threading.Event())) as chunks:
                for chunk in chunks:
                    offsets = np.asarray(chunk.batch.offsets, np.int64)
                    millis = np.array(chunk.batch.timestamps, np.int64)
                    parts[chunk.covers.partition].append(RecordTimestamps(offsets, millis))
        except OffsetsGone as gone:
            # Read again without the partition: its records left the log meanwhile.
            known.pop(gone.partition)
            remaining = {p: ranges for p, ranges in missing.items() if p != gone.partition}
            return self._read(state, known, remaining) if remaining else {}
        return {p: _KnownTimestamps(known[p].covered | missing[p], _in_order(stamps)) for p, stamps in parts.items()}

    def _remember(self, state: TopicState, known: Mapping[int, _KnownTimestamps]) -> None:
        with self._lock:
            for p, timestamps in known.items():
                self._known[_key(state, p)] = timestamps
                self._known.move_to_end(_key(state, p))
            while sum(len(timestamps.stamps.offsets) for timestamps in self._known.values()) > _REMEMBERED:
                self._known.popitem(last=False)


def _key(state: TopicState, partition: int) -> _PartitionKey:
    return state.identity.topic_id or state.identity.topic, partition


def _in_order(parts: list[RecordTimestamps]) -> RecordTimestamps:
    offsets = np.concatenate([part.offsets for part in parts])
    order = np.argsort(offsets, kind="stable")
    return RecordTimestamps(offsets[order], np.concatenate([part.millis for part in parts])[order])


def _within(stamps: RecordTimestamps, intervals: Iterable[tuple[int, int]]) -> RecordTimestamps:
    cuts = [slice(*np.searchsorted(stamps.offsets, interval)) for interval in intervals]
    if not cuts:
        return _NOTHING.stamps
    return RecordTimestamps(
        np.concatenate([stamps.offsets[cut] for cut in cuts]), np.concatenate([stamps.millis[cut] for cut in cuts])
    )


# The group's name in brokers' logs; nothing is ever committed for it.
_GROUP = "lakestream-watch"
# Settings for a read of one record per partition: fetches are small, and a larger batch comes in an answer of its own.
# Without the last setting the client would wait a second between such answers.
_ONE_RECORD = {
    "queued.min.messages": 1,
    "max.partition.fetch.bytes": 128 * 2**10,
    "fetch.wait.max.ms": 20,
    "fetch.queue.backoff.ms": 5,
}
# Partitions read at once: each request names all of them, which takes the broker time.
_AT_ONCE = 50
# The most first records that are remembered.
_MOST_FIRSTS = 10_000


@dataclass(frozen=True, slots=True)
class FirstRecord:
    """The first record at or above an offset: offset, timestamp in milliseconds since the epoch, and bytes.

    `size` counts the bytes of key and value, uncompressed. `is_append_time`: the broker set the timestamp, so no record
    behind this one is older.
    """

    offset: int
    timestamp_ms: int
    size: int = 0
    is_append_time: bool = False


@dataclass(frozen=True, slots=True)
class TopicRetention:
    """Limits of a topic's retention; None means no limit. A topic that is only compacted has no limits.

    `size` is in bytes per partition; Kafka removes whole segments of `segment_size` bytes.
    """

    milliseconds: int | None
    size: int | None
    segment_size: int = 0


@dataclass(frozen=True, slots=True)
class GroupState:
    """Coordinator's view of a consumer group: offsets by topic and partition, and the number of members."""

    offsets: Mapping[str, Mapping[int, int]]
    members: int


class KafkaWatch:
    """State of a connection's cluster, shared by many sensors.

    :param connection: librdkafka configuration.
    :param where: name of the connection for errors.

    All calls block, and raise KafkaRefused, KafkaUnavailable, KafkaMisconfigured.
    """

    def __init__(self, connection: Mapping[str, Any], where: str) -> None:
        self._connection = dict(connection)
        self._where = where
        self._errors = ClientErrors()
        # A stopped consumer stays at the same offset for days: read its first unread record only once.
        self._firsts: OrderedDict[tuple[str, int, int], FirstRecord] = OrderedDict()
        self._stamps = TimestampCache(self._connection, _GROUP, self._where)

    @cached_property
    def _client(self) -> AdminClient:
        return open_client(AdminClient, admin_config(self._connection, self._errors), self._where)

    def topic(self, topic: str) -> TopicState:
        """Return a topic's identity and watermarks. Raises TopicMissing too."""
        return self._of(topic).look()

    def group(self, group: str) -> GroupState:
        """Return the state of a consumer group, empty for an unknown group."""
        return self._of("").group_state(group)

    def retention(self, topic: str) -> TopicRetention:
        """Return a topic's retention."""
        return self._of(topic).retention()

    def offsets_at(self, state: TopicState, at_ms: int) -> dict[int, int]:
        """Return, by partition, the first offset with a timestamp at or after a time, or the end."""
        return self._of(state.identity.topic).offsets_at(state, at_ms)

    def high_watermarks(self, state: TopicState) -> dict[int, int]:
        """Return, by partition, the end of the log, records of open transactions included."""
        return self._of(state.identity.topic).high_watermarks(state)

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        """Return, by partition, the first offset at or after a time; see `core.ports.TopicSource`."""
        return self._of(state.identity.topic).boundaries(state, at_ms)

    def firsts(
        self, state: TopicState, positions: Mapping[int, int], *, reread: bool = False
    ) -> dict[int, FirstRecord | None]:
        """Return, by partition, the first readable record from a position on, or None at the end.

        Markers of transactions and aborted records do not count. A partition whose position has just left the log is
        left out. Records of earlier calls are remembered, and not read again.

        :param positions: the offset to begin at, by partition.
        :param reread: whether remembered records are read again: compaction may have removed them since.
        """
        topic_id = state.identity.topic_id or state.identity.topic
        first_records: dict[int, FirstRecord | None] = {}
        for p, offset in positions.items() if not reread else ():
            if (known := self._firsts.get((topic_id, p, offset))) is not None:
                first_records[p] = known
        unknown = {p: offset for p, offset in positions.items() if p not in first_records}
        if unknown:
            read = self._read_firsts(state.identity.topic, unknown)
            first_records |= read
            self._firsts.update({(topic_id, p, unknown[p]): first for p, first in read.items() if first is not None})
            while len(self._firsts) > _MOST_FIRSTS:
                self._firsts.popitem(last=False)
        return first_records

    def stamps(self, state: TopicState, ranges: RangeSet, before_ms: int | None) -> dict[int, RecordTimestamps]:
        """Return, by partition, the timestamps of all readable records of the ranges.

        Records of an earlier look are not read again, except a partition's oldest record from before the time
        `before_ms`: compaction may have removed it. A partition whose ranges have just left the log is left out.

        :param before_ms: None to read no record again.
        """
        topic = state.identity.topic
        stamps = self._stamps.of(state, ranges)
        oldest = {p: partition.oldest for p, partition in stamps.items() if partition.oldest is not None}
        old = {p: offset for p, (offset, millis) in oldest.items() if before_ms is not None and millis < before_ms}
        present = self.firsts(state, old, reread=True) if old else {}
        compacted = [p for p, offset in old.items() if (first := present.get(p)) is None or first.offset != offset]
        if not compacted:
            return stamps
        self._stamps.forget(state, compacted)
        ranges_to_reread = RangeSet(r for p in compacted for r in ranges.of_partition(topic, p))
        kept = {p: partition for p, partition in stamps.items() if p not in compacted}
        return kept | self._stamps.of(state, ranges_to_reread)

    def _read_firsts(self, topic: str, positions: Mapping[int, int]) -> dict[int, FirstRecord | None]:
        errors = ClientErrors()
        config = {**consumer_config(self._connection, _GROUP, errors), **_ONE_RECORD}
        consumer = open_client(Consumer, config, self._where)
        doing = f"reading the first unread records of {topic}"
        starts = [TopicPartition(topic, p, offset) for p, offset in positions.items()]
        assigned = {start.partition for start in starts[:_AT_ONCE]}
        later_starts = iter(starts[_AT_ONCE:])
        last_message_at = time.monotonic()
        first_records: dict[int, FirstRecord | None] = {}
        try:
            consumer.assign(starts[:_AT_ONCE])
            while assigned:
                message = consumer.poll(0.2)
                if errors.fatal is not None:
                    raise KafkaRefused(self._where, doing, errors.fatal.str())
                if message is not None and message.partition() in assigned:
                    last_message_at = time.monotonic()
                    assigned.discard(p := int(message.partition() or 0))
                    # Otherwise this partition's next batches would come before the batches of other partitions.
                    consumer.incremental_unassign([TopicPartition(topic, p)])
                    first_records |= _first(message, p, self._where, doing)
                    if (start := next(later_starts, None)) is not None:
                        assigned.add(start.partition)
                        consumer.incremental_assign([start])
                elif (waited := time.monotonic() - last_message_at) > REQUEST_TIMEOUT or errors.are_all_down:
                    raise KafkaUnavailable(self._where, doing, waited, errors.last)
        finally:
            consumer.close()
        return first_records

    def _of(self, topic: str) -> _TopicRequests:
        return _TopicRequests(self._connection, topic, self._where, self._client, self._errors)


def _first(message: Message, p: int, where: str, doing: str) -> dict[int, FirstRecord | None]:
    """Return a partition with its first record; with None at the log's end; empty if the offset has left the log."""
    error = message.error()
    if error is None:
        size = len(message.key() or b"") + len(message.value() or b"")
        kind, timestamp_ms = message.timestamp()
        is_append_time = kind == TIMESTAMP_LOG_APPEND_TIME
        return {p: FirstRecord(int(message.offset() or 0), int(timestamp_ms), size, is_append_time)}
    if error.code() == KafkaError._PARTITION_EOF:
        return {p: None}
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        return {}
    if error.code() in AUTHORIZATION:
        raise KafkaRefused(where, doing, error.str())
    raise read_error(str(message.topic()), p, int(message.offset() or 0), error)


class _TopicRequests(KafkaSource):
    """Requests about a topic, through a shared client."""

    def __init__(
        self, connection: Mapping[str, Any], topic: str, where: str, client: AdminClient, errors: ClientErrors
    ) -> None:
        super().__init__(connection, topic, _GROUP, StartAt(), where)
        self._admin = client
        self._errors = errors

    def high_watermarks(self, state: TopicState) -> dict[int, int]:
        ends = self._list_offsets(state.marks, OffsetSpec.latest, IsolationLevel.READ_UNCOMMITTED)
        return {p: end.offset for p, end in ends.items()}

    def group_state(self, group: str) -> GroupState:
        request = ConsumerGroupTopicPartitions(group)

        def ask_offsets() -> Future[Any]:
            futures = self._client().list_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT)
            future: Future[Any] = futures[group]
            return future

        def ask_description() -> Future[Any]:
            futures = self._client().describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT)
            future: Future[Any] = futures[group]
            return future

        doing = f"reading the committed offsets of group {group!r}"
        committed = _by_topic(self._ask(doing, ask_offsets).topic_partitions)
        return GroupState(committed, len(self._ask(f"describing group {group!r}", ask_description).members))

    def retention(self) -> TopicRetention:
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._topic)

        def ask() -> Future[Any]:
            futures = self._client().describe_configs([resource], request_timeout=REQUEST_TIMEOUT)
            future: Future[Any] = futures[resource]
            return future

        answer = self._ask(f"reading the settings of topic {self._topic!r}", ask)
        values = {name: entry.value for name, entry in answer.items()}
        if "delete" not in str(values.get("cleanup.policy", "delete")):
            return TopicRetention(None, None)
        segment = _limit(values.get("segment.bytes")) or 0
        return TopicRetention(_limit(values.get("retention.ms")), _limit(values.get("retention.bytes")), segment)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, dict[int, int]]:
    offsets: dict[str, dict[int, int]] = {}
    for tp in partitions:
        if tp.offset >= 0:
            offsets.setdefault(tp.topic, {})[tp.partition] = tp.offset
    return offsets


def _limit(value: str | None) -> int | None:
    """Return a limit of a topic's settings, or None for Kafka's -1: no limit."""
    number = int(value) if value else -1
    return number if number >= 0 else None
