"""Damage of a partition's log: recognized among errors, our own or of Kafka's Java client, and measured by offset.

The texts of the Java client are of Kafka 3.9 to 4.x, with the classes' packages as they are or as shaded by a jar.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from airflow_lakestream.core.landing.plan import DamagedBatch, Plan, TopicState
from airflow_lakestream.core.ports import RecordReader
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.kafka.client import ClientErrors, consumer_config, open_client
from airflow_lakestream.kafka.errors import ReadFailed
from airflow_lakestream.kafka.partition import misplaced

log = logging.getLogger(__name__)


# By librdkafka: a wrong checksum, or bytes that do not decompress. It names the batch's first offset.
_DAMAGED = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION})
# By the broker, which fails over the batch's header.
_REFUSED = frozenset({KafkaError.INVALID_MSG, KafkaError.UNKNOWN})
# This many answers must be too short for their own lengths. A single answer may be cut by its limit.
_SHORT_ANSWERS = 5
# A wider step could pass over good records between two damaged batches.
_WIDEST = 1000
DISORDER = "its own offset is wrong, so that its records have offsets of other records or beyond the log's end"
_MANY = 10_000
# A batch is in one answer, however large it is.
_WHOLE_BATCHES = {"max.partition.fetch.bytes": 2**26, "queued.min.messages": 1}


@dataclass(frozen=True)
class LogFault:
    """The damage of the log at an offset.

    :param first: the first offset of the damaged batch; None if unknown.
    :param is_unreadable_by_broker: the broker itself can't read the batch.
    """

    problem: str
    first: int | None = None
    is_unreadable_by_broker: bool = False

    @classmethod
    def of(cls, error: KafkaError, offset: int) -> LogFault | None:
        """Return the fault that an error reports at this offset, or None for an error without damage."""
        if error.code() in _DAMAGED or "MagicByte" in error.str():
            return cls(error.str(), first=offset)
        if error.code() in _REFUSED:
            return cls(error.str(), is_unreadable_by_broker=True)
        return None


# Neither readable, nor known to be damaged.
SILENCE = LogFault("nothing comes from there")


def read_error(topic: str, partition: int, offset: int, error: KafkaError) -> LakestreamError:
    """Return the error for a failed read: DamagedBatch for damage seen by the client, else ReadFailed.

    The extent of the damage is not measured: the error names a single offset.
    """
    fault = LogFault.of(error, offset)
    if fault is None or fault.is_unreadable_by_broker:
        return ReadFailed(topic, partition, offset, error.str())
    return DamagedBatch(topic, partition, offset, offset + 1, error.str())


class _UnparsedAnswers(ClientErrors):
    """Counter of answers unparsable by librdkafka, as found in the client's log."""

    def __init__(self) -> None:
        super().__init__()
        self.short = 0

    def log(self, level: int, template: str, facility: str, client: str, text: str) -> None:
        """Count a line, without passing on the long debug log."""
        self.short += facility == "PROTOUFLOW" and " for Fetch " in text


class LogProbe:
    """Probe of single offsets of a topic.

    :param connection: librdkafka configuration.
    :param where: name of the connection for errors.
    :param patience: seconds to wait for a sign of a readable offset.
    """

    def __init__(self, connection: Mapping[str, Any], group: str, where: str, patience: float) -> None:
        self._connection = connection
        self._group = group
        self._where = where
        self._patience = patience

    def fault(self, topic: str, partition: int, offset: int) -> LogFault | None:
        """Return the fault at an offset, or None for a readable offset.

        An end of the log, and a position behind the offset, count as readable. SILENCE if nothing comes within
        `patience` seconds.
        """
        errors = _UnparsedAnswers()
        config = {**consumer_config(self._connection, self._group, errors), **_WHOLE_BATCHES, "debug": "protocol"}
        consumer = open_client(Consumer, config, self._where)
        deadline = time.monotonic() + self._patience
        try:
            consumer.assign([TopicPartition(topic, partition, offset)])
            while time.monotonic() < deadline:
                message = consumer.poll(0.1)
                error = None if message is None else message.error()
                if message is not None and (error is None or error.code() == KafkaError._PARTITION_EOF):
                    return None
                if message is not None and error is not None:
                    if (fault := LogFault.of(error, int(message.offset() or 0))) is not None:
                        return fault
                elif consumer.position([TopicPartition(topic, partition)])[0].offset > offset:
                    return None
                if errors.short >= _SHORT_ANSWERS:
                    return LogFault("the lengths in it contradict each other")
        finally:
            consumer.close()
        return SILENCE

    def damage(self, topic: str, partition: int, position: int, end: int, fault: LogFault) -> DamagedBatch | None:
        """Return the error for a fault met at a position, with the unreadable offsets.

        The end of the damage is found by probes of single offsets. None if the faults change meanwhile: a broker may be
        coming or going.

        :param end: the end of the offsets known to be in the log.
        """
        first = position if fault.first is None or not 0 <= fault.first < end else fault.first
        good = self._end(topic, partition, max(first, position), end, fault)
        last = self.fault(topic, partition, good - 1)
        behind = self.fault(topic, partition, good)
        if not _is_same(last, fault) or _is_same(behind, fault):
            return None
        return DamagedBatch(
            topic, partition, first, good, fault.problem, is_unreadable_by_broker=fault.is_unreadable_by_broker
        )

    def disorder(self, topic: str, partition: int, position: int, end: int) -> DamagedBatch | None:
        """Return the error for a batch whose records have wrong offsets, delivered after a position.

        None if the batch's true offsets are not in the range from `position` to `end`, or if a second read finds all
        offsets in order.

        :param end: the end of the range to read; the error names no offset beyond.
        """
        start = max(0, position - 1)
        misplaced_range = misplaced(self._in_order(topic, partition, start, end), start)
        first, until = misplaced_range or (0, 0)
        if max(first, position) >= min(until, end):
            return None
        return DamagedBatch(topic, partition, first, min(until, end), DISORDER)

    def _in_order(self, topic: str, partition: int, start: int, end: int) -> list[int]:
        """Return the offsets from `start` to `end`, in the log's order, from a single answer of the broker.

        Returns the offsets so far at an error, or after `patience` seconds.
        """
        config = {**consumer_config(self._connection, self._group, ClientErrors()), **_WHOLE_BATCHES}
        consumer = open_client(Consumer, config, self._where)
        offsets: list[int] = []
        deadline = time.monotonic() + self._patience
        try:
            consumer.assign([TopicPartition(topic, partition, start)])
            while time.monotonic() < deadline and not (offsets and offsets[-1] == end - 1):
                for message in consumer.consume(_MANY, 0.1):
                    if message.error() is not None:
                        return offsets
                    offsets.append(int(message.offset() or 0))
        finally:
            consumer.close()
        return offsets

    def _end(self, topic: str, partition: int, bad: int, end: int, fault: LogFault) -> int:
        # Wider and wider steps to a readable offset, then bisection between the last bad and the first good
        # offset.
        good, step = end, 1
        while bad + step < good:
            if _is_same(self.fault(topic, partition, bad + step), fault):
                bad, step = bad + step, min(2 * step, _WIDEST)
            else:
                good = bad + step
        while good - bad > 1:
            middle = (bad + good) // 2
            if _is_same(self.fault(topic, partition, middle), fault):
                bad = middle
            else:
                good = middle
        return good


def _is_same(found: LogFault | None, fault: LogFault) -> bool:
    """Return whether a fault found at an offset may result from an earlier fault."""
    return found is not None and (found is SILENCE or found.first == fault.first)


_WHERE = r"(?P<topic>[\w.-]+)-(?P<partition>\d+)"
# With the batch's first offset, the offset of the request, or none.
_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"Record(?: batch)? for partition {_WHERE} at offset (?P<offset>\d+) is invalid",
        rf"Encountered corrupt message when fetching offset (?P<offset>\d+) for topic-partition {_WHERE}",
        rf"Failed to make progress reading messages at {_WHERE}=(?P<offset>\d+)",
        rf"Received exception when fetching the next record from {_WHERE}\. If needed",
    )
)
# Without a place: of a batch whose head makes no sense.
_DAMAGED_FOR_JAVA = re.compile(
    r"CorruptRecordException|InvalidRecordException|Record is corrupt|Record size .* is less than the minimum"
    r"|Invalid magic found in record|Failed to decompress record stream"
)


# A client has read no more than some thousand records beyond its last known position.
MOST_LOOKED_AT = 100_000
_ENDLESS = 2**63 - 1


@dataclass(frozen=True)
class JavaDamage:
    """A damaged batch by an error's text: the place, as far as known, and the error's line."""

    line: str
    topic: str = ""
    partition: int = -1
    offset: int = -1

    @classmethod
    def of(cls, error: str) -> JavaDamage | None:
        """Return the damage that an error's text or a trace reports; None for an error without damage.

        The place is only known if the text names it.
        """
        for place in _PLACES:
            if match := place.search(error):
                groups = match.groupdict()
                line, offset = _line(error, match.start()), int(groups.get("offset", -1))
                return cls(line, groups["topic"], int(groups["partition"]), offset)
        match = _DAMAGED_FOR_JAVA.search(error)
        return None if match is None else cls(_line(error, match.start()))

    def within(self, ranges: RangeSet) -> RangeSet:
        """Return the part of the ranges with the damage, as far as the place is known."""
        if not self.topic:
            return ranges
        return ranges & RangeSet.of(self.topic, self.partition, max(self.offset, 0), _ENDLESS)


def first_offsets(ranges: RangeSet) -> RangeSet:
    """Return the first MOST_LOOKED_AT offsets of each range."""
    return RangeSet(replace(r, until_offset=min(r.until_offset, r.from_offset + MOST_LOOKED_AT)) for r in ranges)


def find_damage(reader: RecordReader, state: TopicState, ranges: RangeSet) -> DamagedBatch | None:
    """Read ranges of a topic up to the first damaged batch, and return it; None if no damage was found.

    Another error ends the search with a warning, and None.
    """
    try:
        with closing(reader.read(Plan(state, ranges), threading.Event())) as chunks:
            for _ in chunks:
                pass
    except DamagedBatch as damaged:
        return damaged
    except LakestreamError as e:
        log.warning("The damaged batch was not looked for to the end: %s", e)
    return None


def _line(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0].removeprefix("Caused by: ").strip()[:300]
