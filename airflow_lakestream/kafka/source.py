"""One topic looked at from outside: identity, watermarks, where to begin, and the mirror of progress.

Never subscribes: everything here is an admin request with a deadline.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs miss OffsetSpec
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)

from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.plan import Plan, TopicState, Watermarks
from airflow_lakestream.core.policies import StartOffset
from airflow_lakestream.core.ports import Boundary
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.client import ClientErrors, admin_config, isolation_level, open_client
from airflow_lakestream.kafka.errors import (
    AUTHENTICATION,
    AUTHORIZATION,
    MISSING_TOPIC,
    KafkaRefused,
    KafkaUnavailable,
    TopicMissing,
)
from airflow_lakestream.kafka.reader import KafkaReader

log = logging.getLogger(__name__)

REQUEST_TIMEOUT = 20.0
MIRROR_TIMEOUT = 5.0
# Clocks of producers go ahead of ours by so much, and no more.
CLOCK_SKEW_MS = 10 * 60 * 1000
_RETRY_PAUSE = 0.2
_POLL_INTERVAL = 0.05

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class StartAt:
    """Where a group without an origin begins; `timestamp_ms` goes with `timestamp`."""

    offset: StartOffset = StartOffset.EARLIEST
    timestamp_ms: int | None = None


class KafkaSource:
    """`core.ports.Source` on a real cluster.

    :param connection: librdkafka configuration (bootstrap.servers, security, ...).
    :param where: what to call the connection in errors.
    """

    def __init__(
        self, connection: Mapping[str, Any], topic: str, consumer_group: str, start: StartAt, where: str
    ) -> None:
        self._connection = dict(connection)
        self._topic = topic
        self._group = consumer_group
        self._start = start
        self._where = where
        self._errors = ClientErrors()
        self._admin: AdminClient | None = None
        self._cluster_id: str | None = None
        self._isolation = isolation_level(connection)

    def look(self) -> TopicState:
        """Return the topic's identity and watermarks. The end is read first: what comes later is not planned."""
        identity, partitions = self._describe()
        ends = self._list_offsets(partitions, OffsetSpec.latest)
        lows = self._list_offsets(partitions, OffsetSpec.earliest)
        marks = {p: Watermarks(lows[p].offset, ends[p].offset, _epoch(ends[p].leader_epoch)) for p in partitions}
        return TopicState(identity, marks)

    def identity(self) -> TopicIdentity:
        """Return which incarnation of the topic is there."""
        return self._describe()[0]

    def starts(self, state: TopicState) -> Mapping[int, int]:
        """Return where a group without an origin begins, by partition."""
        marks = state.marks
        if self._start.offset is StartOffset.EARLIEST:
            return {p: m.low for p, m in marks.items()}
        if self._start.offset is StartOffset.LATEST:
            return {p: m.end for p, m in marks.items()}
        if self._start.offset is StartOffset.TIMESTAMP:
            return self._starts_at_timestamp(marks)
        return self._starts_at_committed(marks)

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, Boundary]:
        """Return, by partition, its first offset with a timestamp at or after `at_ms`; see `core.ports.Source`.

        A record dated beyond now is no boundary: it would be that of every later time, and all that comes after it
        would wait until then. The log is then read on to the first one that is.
        """
        marks = state.marks
        latest_ms = int(time.time() * 1000) + CLOCK_SKEW_MS
        if at_ms > latest_ms:
            return {p: Boundary(m.end, is_open=True) for p, m in marks.items()}
        found = self._list_offsets(marks, lambda: OffsetSpec.for_timestamp(at_ms))
        boundaries = {}
        for p, m in marks.items():
            offset: int | None = found[p].offset
            if offset is not None and 0 <= offset < m.end and found[p].timestamp > latest_ms:
                offset = self._scan_on(state, p, offset, at_ms, latest_ms)
            # "No such record" is -1, and means the end: never the earliest.
            is_open = offset is None or offset < 0 or offset >= m.end
            boundaries[p] = Boundary(m.end if is_open or offset is None else offset, is_open)
        return boundaries

    def _scan_on(self, state: TopicState, partition: int, start: int, at_ms: int, latest_ms: int) -> int | None:
        log.warning(
            "%s[%s] offset %s is dated beyond now: it is not taken as the boundary of %s ms, the log is read on.",
            self._topic,
            partition,
            start,
            at_ms,
        )
        reader = KafkaReader(self._connection, self._group, poll_timeout=REQUEST_TIMEOUT, where=self._where)
        plan = Plan(state, RangeSet.of(self._topic, partition, start, state.marks[partition].end))
        with closing(reader.read(plan, threading.Event())) as chunks:
            for chunk in chunks:
                for offset, timestamp in zip(chunk.batch.offsets, chunk.batch.timestamps, strict=True):
                    if at_ms <= timestamp <= latest_ms:
                        return offset
        return None

    def mirror(self, offsets: Mapping[int, int]) -> None:
        """Write the group's committed offsets. They are only a mirror: a failure is logged, the table is right."""
        if not offsets:
            return
        targets = [TopicPartition(self._topic, p, offset) for p, offset in offsets.items()]
        request = ConsumerGroupTopicPartitions(self._group, targets)
        try:
            futures = self._client().alter_consumer_group_offsets([request], request_timeout=MIRROR_TIMEOUT)
            for partition in futures[self._group].result(MIRROR_TIMEOUT + 1).topic_partitions:
                if partition.error is not None:
                    raise KafkaException(partition.error)
        except (KafkaException, TimeoutError) as e:
            log.warning(
                "The committed offsets of group %r on %s were not written (%s). Nothing is lost: progress stands in "
                "the table; lag tools that read the group show an older state.",
                self._group,
                self._topic,
                e,
            )

    def _starts_at_timestamp(self, marks: Mapping[int, Watermarks]) -> Mapping[int, int]:
        at = self._start.timestamp_ms
        if at is None:
            raise InvalidArgument("start_timestamp", 'is missing; start_offset="timestamp" needs it.')
        found = self._list_offsets(marks, lambda: OffsetSpec.for_timestamp(at))
        # "No such record" is -1, and means the end: never the earliest.
        return {p: found[p].offset if found[p].offset >= 0 else m.end for p, m in marks.items()}

    def _starts_at_committed(self, marks: Mapping[int, Watermarks]) -> Mapping[int, int]:
        request = ConsumerGroupTopicPartitions(self._group, [TopicPartition(self._topic, p) for p in marks])

        def ask() -> Future[Any]:
            futures = self._client().list_consumer_group_offsets([request], request_timeout=REQUEST_TIMEOUT)
            future: Future[Any] = futures[self._group]
            return future

        answer = self._ask(f"reading the committed offsets of group {self._group!r}", ask)
        committed = {tp.partition: tp.offset for tp in answer.topic_partitions if tp.offset >= 0}
        if not committed:
            raise InvalidArgument(
                "start_offset",
                f'"committed" was asked for, but group {self._group!r} has no committed offset on {self._topic}.',
                'Correct consumer_group, or begin with "earliest", "latest" or "timestamp".',
            )
        if uncommitted := sorted(set(marks) - set(committed)):
            log.info(
                "%s%s: group %r committed no offset; begins at the log's start.", self._topic, uncommitted, self._group
            )
        return {p: committed.get(p, m.low) for p, m in marks.items()}

    def _describe(self) -> tuple[TopicIdentity, tuple[int, ...]]:
        def ask() -> Future[Any]:
            topics = TopicCollection([self._topic])
            future: Future[Any] = self._client().describe_topics(topics, request_timeout=REQUEST_TIMEOUT)[self._topic]
            return future

        description = self._ask(f"describing topic {self._topic!r}", ask)
        if self._cluster_id is None:
            cluster = self._ask(
                "describing the cluster", lambda: self._client().describe_cluster(request_timeout=REQUEST_TIMEOUT)
            )
            self._cluster_id = str(cluster.cluster_id)
        topic_id = str(description.topic_id) if description.topic_id is not None else ""
        partitions = tuple(sorted(p.id for p in description.partitions))
        return TopicIdentity(self._topic, topic_id, self._cluster_id), partitions

    def _list_offsets(
        self, partitions: Iterable[int], spec: Callable[[], OffsetSpec]
    ) -> dict[int, ListOffsetsResultInfo]:
        """Return what the broker says by partition, in one request for all of them."""
        wanted = list(partitions)

        def ask() -> Future[Any]:
            request = {TopicPartition(self._topic, p): spec() for p in wanted}
            futures = self._client().list_offsets(
                request, isolation_level=self._isolation, request_timeout=REQUEST_TIMEOUT
            )
            return _gather(futures)

        answers = self._ask(f"reading the offsets of topic {self._topic!r}", ask)
        return {tp.partition: info for tp, info in answers.items()}

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = open_client(AdminClient, admin_config(self._connection, self._errors), self._where)
        return self._admin

    def _ask(self, doing: str, request: Callable[[], Future[Answer]]) -> Answer:
        """Wait for an answer, asking again on retriable errors, failing at once on what no retry mends."""
        deadline = time.monotonic() + REQUEST_TIMEOUT
        while True:
            try:
                return self._wait(doing, request(), deadline)
            except KafkaException as e:
                error = e.args[0]
                if error.code() in MISSING_TOPIC:
                    raise TopicMissing(self._topic, self._where) from e
                if error.code() in AUTHENTICATION | AUTHORIZATION:
                    raise KafkaRefused(self._where, doing, error.str()) from e
                if time.monotonic() >= deadline:
                    raise self._unavailable(doing, error.str()) from e
                self._errors.last = f"{error.name()}: {error.str()}"
                time.sleep(_RETRY_PAUSE)

    def _wait(self, doing: str, future: Future[Answer], deadline: float) -> Answer:
        client = self._client()
        while not future.done():
            # Serves error_cb: a refused password is never an answer to the request, only an error of the client.
            client.poll(0)
            if self._errors.fatal is not None:
                raise KafkaRefused(self._where, doing, self._errors.fatal.str())
            if time.monotonic() > deadline:
                raise self._unavailable(doing, "")
            # Not in poll(): the answer comes on another thread, and would lie there until poll's time is over.
            wait([future], _POLL_INTERVAL)
        return future.result()

    def _unavailable(self, doing: str, last: str) -> KafkaUnavailable:
        return KafkaUnavailable(self._where, doing, REQUEST_TIMEOUT, self._errors.last or last)


def _gather(futures: Mapping[TopicPartition, Future[Any]]) -> Future[Any]:
    """Return one future of all results; it fails with the first failure."""
    gathered: Future[Any] = Future()
    results: dict[TopicPartition, Any] = {}

    def collect(tp: TopicPartition, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            if not gathered.done():
                gathered.set_exception(error)
            return
        results[tp] = future.result()
        if len(results) == len(futures) and not gathered.done():
            gathered.set_result(results)

    for tp, future in futures.items():
        future.add_done_callback(functools.partial(collect, tp))
    if not futures:
        gathered.set_result(results)
    return gathered


def _epoch(value: int | None) -> int | None:
    return value if value is not None and value >= 0 else None
