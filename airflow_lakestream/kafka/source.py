"""State of a topic: identity, watermarks, offsets by time, and the group's committed offsets.

All are admin requests with a deadline; nothing subscribes to the topic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec  # type: ignore[attr-defined]  # its stubs miss OffsetSpec

from airflow_lakestream.core.landing.plan import PartitionWatermarks, Plan, TopicState
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.policies import StartOffset
from airflow_lakestream.core.ports import BEGINNING_MS, TimeBoundary, TopicSource
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.client import isolation_level
from airflow_lakestream.kafka.errors import TopicMissing
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.requests import REQUEST_TIMEOUT, KafkaRequests, gather, no_answer

log = logging.getLogger(__name__)


# Seconds for writing the group's committed offsets, which only serve other tools.
MIRROR_TIMEOUT = 5.0
# The metadata of a refused committed offset, followed by the log's end. A new commit of the offset overwrites it.
_REFUSED = "refused by airflow-lakestream: beyond the log's end at "


class GroupOffsets(KafkaRequests):
    """Committed offsets of a group and a topic.

    :param notes_refusals: whether the metadata of a refused offset gets a note; False for a look that changes nothing.
    """

    def __init__(
        self, connection: Mapping[str, Any], topic: str, consumer_group: str, where: str, *, notes_refusals: bool = True
    ) -> None:
        super().__init__(connection, where)
        self._topic = topic
        self._group = consumer_group
        self._notes_refusals = notes_refusals

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        """Write the group's committed offsets, for lag tools; a failure is only logged, as a warning."""
        if problem := self._write(TopicPartition(self._topic, p, offset) for p, offset in offsets.items()):
            log.warning(
                "The committed offsets of group %r on %s were not written (%s). Nothing is lost: progress is kept in "
                "the table. Lag tools that read the group show an older state.",
                self._group,
                self._topic,
                problem,
            )

    def _committed(self, partitions: Iterable[int]) -> dict[int, TopicPartition]:
        """Return the group's committed offsets by partition, without partitions that have none.

        Raises KafkaUnavailable if the answer has an error for a partition, and the errors of `_ask`.
        """
        request = ConsumerGroupTopicPartitions(self._group, [TopicPartition(self._topic, p) for p in partitions])

        def ask() -> Future[Any]:
            futures = self._client().list_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT)
            future: Future[Any] = futures[self._group]
            return future

        doing = f"reading the committed offsets of group {self._group!r}"
        answer = self._ask(doing, ask)
        if failed := [tp.error for tp in answer.topic_partitions if tp.error is not None]:
            # If a partition's error counted as "no offset", the group would begin at the log's start.
            raise self._unavailable(doing, failed[0].str())
        return {tp.partition: tp for tp in answer.topic_partitions if tp.offset >= 0}

    def _refuse_beyond(self, committed: Mapping[int, TopicPartition], ends: Mapping[int, int]) -> None:
        """Refuse to begin at committed offsets beyond the log's end. Raises InvalidArgument.

        The records up to such an offset would be skipped. The log may grow past the offset, which does not make the
        offset right. So the first refusal is noted in the offset's metadata, and later runs refuse by the note, until
        the offset is committed again.

        :param ends: the end of the log, open transactions included, of the partitions whose offset may be beyond it.
        """
        noted = {p: end for p, tp in committed.items() if (end := _noted_end(tp)) is not None}
        new = {p: end for p, end in ends.items() if p not in noted and committed[p].offset > end}
        if not (refused := noted | new):
            return
        where = ", ".join(
            f"{self._topic}[{p}] {committed[p].offset} (its log ended at {end})" for p, end in sorted(refused.items())
        )
        notes = (TopicPartition(self._topic, p, committed[p].offset, f"{_REFUSED}{end}") for p, end in new.items())
        problem = self._write(notes) if self._notes_refusals else None
        raise InvalidArgument(
            "start_offset",
            f'"committed" was asked for, but group {self._group!r} has committed offsets that were not in the log yet '
            f"when a run first saw them: {where}. They are of another topic or cluster, or the log was cut short "
            "since. The records up to these offsets would never be landed, so nothing was landed.",
            "Correct consumer_group or kafka_conn_id, set the group's offsets (kafka-consumer-groups.sh "
            '--reset-offsets; they stay refused until they are set again), or begin with "earliest" or "timestamp".'
            + (
                f" The refusal could not be noted in the group ({problem}): do not run again before its offsets are "
                "right, since a log that has grown past them would be taken for theirs."
                if problem
                else ""
            ),
        )

    def _write(self, offsets: Iterable[TopicPartition]) -> str | None:
        """Write committed offsets of the group; return the reason of a failure, or None. Raises no error of Kafka."""
        if not (targets := list(offsets)):
            return None
        request = ConsumerGroupTopicPartitions(self._group, targets)
        try:
            futures = self._client().alter_consumer_group_offsets([request], request_timeout=MIRROR_TIMEOUT)
            for partition in futures[self._group].result(MIRROR_TIMEOUT + 1).topic_partitions:
                if partition.error is not None:
                    raise KafkaException(partition.error)
        except (KafkaException, TimeoutError) as e:
            return str(e) or type(e).__name__
        return None


def _noted_end(tp: TopicPartition) -> int | None:
    """Return the log's end that the metadata of a refused offset has, or None for an offset never refused."""
    end = str(tp.metadata or "").removeprefix(_REFUSED)
    return int(end) if end != tp.metadata and end.isdigit() else None


# Producers' clocks may be ahead of ours by this time.
CLOCK_SKEW_MS = 10 * 60 * 1000
# Seconds for the list of topics in the error for a missing topic.
_NAMES_TIMEOUT = 5.0
# The greatest timestamp that a record can have.
_LAST_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StartAt:
    """Offset or time where a new group's first run begins; `timestamp_ms` is for StartOffset.TIMESTAMP."""

    offset: StartOffset = StartOffset.EARLIEST
    timestamp_ms: int | None = None


class KafkaSource(GroupOffsets):
    """`core.ports.TopicSource` on a real cluster.

    :param connection: librdkafka configuration (bootstrap.servers, security, ...).
    :param where: name of the connection for errors.
    :param notes_refusals: see `GroupOffsets`.
    """

    def __init__(
        self,
        connection: Mapping[str, Any],
        topic: str,
        consumer_group: str,
        start: StartAt,
        where: str,
        *,
        notes_refusals: bool = True,
    ) -> None:
        super().__init__(connection, topic, consumer_group, where, notes_refusals=notes_refusals)
        self._start = start
        self._cluster_id: str | None = None
        self._isolation = isolation_level(connection)

    def look(self) -> TopicState:
        """Return the topic's identity and watermarks.

        The ends are read before the low watermarks, so that no record later than this look is planned.
        """
        identity, partitions = self._describe()
        ends = self._list_offsets(partitions, OffsetSpec.latest)
        lows = self._list_offsets(partitions, OffsetSpec.earliest)
        marks = {
            p: PartitionWatermarks(lows[p].offset, ends[p].offset, _epoch(ends[p].leader_epoch)) for p in partitions
        }
        return TopicState(identity, marks)

    def identity(self) -> TopicIdentity:
        """Return the topic's current identity."""
        return self._describe()[0]

    def starts(self, state: TopicState) -> Mapping[int, int]:
        """Return the offsets where a group's first run begins, by partition; see `core.ports.TopicSource`.

        Raises InvalidArgument for a missing timestamp, a group without committed offsets, and offsets beyond the log's
        end.
        """
        marks = state.marks
        if self._start.offset is StartOffset.EARLIEST:
            return {}
        if self._start.offset is StartOffset.LATEST:
            return {p: m.end for p, m in marks.items()}
        if self._start.offset is StartOffset.TIMESTAMP:
            if self._start.timestamp_ms is None:
                raise InvalidArgument("start_timestamp", 'is missing; start_offset="timestamp" needs it.')
            starts = self.offsets_at(state, self._start.timestamp_ms)
            # Records lost below the log's first record may be from after the time, too.
            return {p: offset for p, offset in starts.items() if offset > marks[p].low}
        return self._starts_at_committed(marks)

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        """Return the first offset at or after the time `at_ms`, by partition; see `core.ports.TopicSource`.

        A record dated in the future is not a boundary: it would be the boundary of every later time, and would hold
        back all records behind it. Instead the log is read from there to the first record with a credible time.
        """
        latest_ms = int(time.time() * 1000) + CLOCK_SKEW_MS
        if at_ms > latest_ms:
            return {p: TimeBoundary(m.end, is_open=True) for p, m in state.marks.items()}
        boundaries = {}
        for p, (offset, timestamp) in self._first_at(state, at_ms).items():
            end = state.marks[p].end
            if offset < end and timestamp > latest_ms:
                log.warning(
                    "%s[%s] offset %s is dated in the future: it is not the boundary of %s ms, the log is read on.",
                    self._topic,
                    p,
                    offset,
                    at_ms,
                )
                offset, _ = self._scan_on(state, p, offset, at_ms, latest_ms)
            is_open = offset >= end and at_ms > BEGINNING_MS
            boundaries[p] = TimeBoundary(min(offset, end), is_open)
        return boundaries

    def offsets_at(self, state: TopicState, at_ms: int) -> dict[int, int]:
        """Return the first offset with a timestamp at or after a time, or the end, by partition."""
        return {p: offset for p, (offset, _) in self._first_at(state, at_ms).items()}

    def _first_at(self, state: TopicState, at_ms: int) -> dict[int, tuple[int, int]]:
        """Return offset and timestamp of each partition's first record at or after a time.

        Without such a record the entry has the partition's end and `at_ms`. For a time up to BEGINNING_MS, which all
        records follow, the entry has the low watermark and BEGINNING_MS, and Kafka is not asked. All requests for a
        time go through here: Kafka takes negative times as commands, such as -1 for the log's end.
        """
        marks = state.marks
        if at_ms <= BEGINNING_MS:
            return {p: (m.low, BEGINNING_MS) for p, m in marks.items()}
        if at_ms > _LAST_MS:
            return {p: (m.end, at_ms) for p, m in marks.items()}
        offsets = self._list_offsets(marks, lambda: OffsetSpec.for_timestamp(at_ms))
        # Kafka answers -1 if there is no such record: that means the end, never the earliest offset.
        without_record = [p for p in marks if offsets[p].offset < 0]
        firsts = {p: (offsets[p].offset, offsets[p].timestamp) for p in marks}
        firsts |= {p: (marks[p].end, at_ms) for p in without_record}
        for p in self._unproven(marks, without_record, at_ms):
            log.info(
                "%s[%s]: Kafka finds no record at or after %s ms, but may miss one since records were deleted; "
                "the log is read from offset %s.",
                self._topic,
                p,
                at_ms,
                marks[p].low,
            )
            firsts[p] = self._scan_on(state, p, marks[p].low, at_ms, _LAST_MS)
        return firsts

    def _unproven(
        self, marks: Mapping[int, PartitionWatermarks], without_record: Iterable[int], at_ms: int
    ) -> list[int]:
        """Return the partitions that may have a record at or after a time, although Kafka answered that none has.

        Kafka looks into one segment only: the first whose newest timestamp is young enough. After DeleteRecords, that
        timestamp may be of a record below the log's start, and Kafka does not look into later segments. The answer is
        proven by an older newest timestamp of the partition (KIP-734), or by a first uncommitted record at or behind
        the end, in a transaction that is still open.
        """
        unproven = [p for p in without_record if marks[p].low < marks[p].end]
        newest = self._list_offsets(unproven, OffsetSpec.max_timestamp, IsolationLevel.READ_UNCOMMITTED)
        # An answer without a newest timestamp, for a partition with records, proves nothing.
        unproven = [p for p in unproven if newest[p].offset < 0 or newest[p].timestamp >= at_ms]
        firsts = self._list_offsets(unproven, lambda: OffsetSpec.for_timestamp(at_ms), IsolationLevel.READ_UNCOMMITTED)
        return [p for p in unproven if firsts[p].offset < marks[p].end]

    def _scan_on(self, state: TopicState, partition: int, start: int, at_ms: int, latest_ms: int) -> tuple[int, int]:
        """Read from `start` to the first record with a timestamp from `at_ms` to `latest_ms`.

        Returns the record's offset and timestamp, or the partition's end and `at_ms` if there is no such record.
        """
        reader = KafkaReader(self._connection, self._group, poll_timeout=REQUEST_TIMEOUT, where=self._where)
        end = state.marks[partition].end
        plan = Plan(state, RangeSet.of(self._topic, partition, start, end))
        with closing(reader.read(plan, threading.Event())) as chunks:
            for chunk in chunks:
                for offset, timestamp in zip(chunk.batch.offsets, chunk.batch.timestamps, strict=True):
                    if at_ms <= timestamp <= latest_ms:
                        return offset, timestamp
        return end, at_ms

    def _starts_at_committed(self, marks: Mapping[int, PartitionWatermarks]) -> Mapping[int, int]:
        committed = self._committed(marks)
        if not committed:
            raise InvalidArgument(
                "start_offset",
                f'"committed" was asked for, but group {self._group!r} has no committed offset on {self._topic}.',
                'Correct consumer_group, or begin with "earliest", "latest" or "timestamp".',
            )
        above = [p for p, tp in committed.items() if tp.offset > marks[p].end]
        # A group that does not wait for transactions may be at the high watermark.
        ends = self._list_offsets(above, OffsetSpec.latest, IsolationLevel.READ_UNCOMMITTED)
        self._refuse_beyond(committed, {p: end.offset for p, end in ends.items()})
        if uncommitted := sorted(set(marks) - set(committed)):
            log.info(
                "%s%s: group %r committed no offset; begins at the log's start.", self._topic, uncommitted, self._group
            )
        return {p: tp.offset for p, tp in committed.items()}

    def _describe(self) -> tuple[TopicIdentity, tuple[int, ...]]:
        def ask() -> Future[Any]:
            topics = TopicCollection([self._topic])
            future: Future[Any] = self._client().describe_topics(topics, request_timeout=REQUEST_TIMEOUT)[self._topic]
            return future

        try:
            description = self._ask(f"describing topic {self._topic!r}", ask)
        except TopicMissing as e:
            raise TopicMissing(self._topic, self._where, self._names()) from e
        if self._cluster_id is None:
            cluster = self._ask(
                "describing the cluster", lambda: self._client().describe_cluster(request_timeout=REQUEST_TIMEOUT)
            )
            self._cluster_id = str(cluster.cluster_id)
        topic_id = str(description.topic_id) if description.topic_id is not None else ""
        partitions = tuple(sorted(p.id for p in description.partitions))
        return TopicIdentity(self._topic, topic_id, self._cluster_id), partitions

    def _names(self) -> list[str]:
        """Return the cluster's topics for an error, or an empty list if the cluster does not answer."""
        try:
            return list(self._client().list_topics(timeout=_NAMES_TIMEOUT).topics)
        except KafkaException:
            return []

    def _list_offsets(
        self, partitions: Iterable[int], spec: Callable[[], OffsetSpec], isolation: IsolationLevel | None = None
    ) -> dict[int, ListOffsetsResultInfo]:
        """Return the broker's offsets by partition, from a single request; empty without partitions.

        :param spec: returns the requested offset of a partition: the low, the end, or the first at a time.
        :param isolation: default: the connection's level.
        """
        wanted = list(partitions)
        if not wanted:
            return {}

        def ask() -> Future[Any]:
            request = {TopicPartition(self._topic, p): spec() for p in wanted}
            level = self._isolation if isolation is None else isolation
            futures = self._client().list_offsets(request, isolation_level=level, request_timeout=REQUEST_TIMEOUT)
            # Each log has a low and an end, but may have no record at a time.
            return gather(futures, no_answer) if spec in (OffsetSpec.latest, OffsetSpec.earliest) else gather(futures)

        answers = self._ask(f"reading the offsets of topic {self._topic!r}", ask)
        return {tp.partition: info for tp, info in answers.items()}


def _epoch(value: int | None) -> int | None:
    """Return a leader's epoch, or None for librdkafka's -1."""
    return value if value is not None and value >= 0 else None


@dataclass(frozen=True)
class SourceFromOffsets:
    """A topic whose first run begins at given offsets, without commits of group offsets."""

    inner: TopicSource
    begin: Mapping[int, int]

    def look(self) -> TopicState:
        """Return the topic's identity and watermarks."""
        return self.inner.look()

    def identity(self) -> TopicIdentity:
        """Return the topic's current identity."""
        return self.inner.identity()

    def starts(self, state: TopicState) -> Mapping[int, int]:
        """Return the given offsets, or the log's start if higher."""
        return {p: max(marks.low, self.begin.get(p, 0)) for p, marks in state.marks.items()}

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        """Return the first offset at or after a time, by partition."""
        return self.inner.boundaries(state, at_ms)

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        """Commit no offsets."""
