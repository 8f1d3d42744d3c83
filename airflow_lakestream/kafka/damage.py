"""Damaged batches in a partition's log: recognized by errors of librdkafka or Kafka's Java client, measured by probes.

The patterns for the Java client's errors fit Kafka 3.9 to 4.x, also if a shaded jar has moved the classes.
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


# Errors of librdkafka, with the batch's first offset: a wrong checksum, or bytes that do not decompress.
_DAMAGED_FOR_CLIENT = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION})
# Errors of a broker that can't read the batch's header.
_DAMAGED_FOR_BROKER = frozenset({KafkaError.INVALID_MSG, KafkaError.UNKNOWN})
# Damage is assumed after this number of answers that end before the length in their own header: a single answer may
# have been cut by the limit of its size.
_SHORT_ANSWERS = 5
# The widest step of a search, in offsets: a wider step could pass over good records between two damaged batches.
_WIDEST_STEP = 1000
DISORDER = "its own offset is wrong, so that its records have offsets of other records or beyond the log's end"
_MESSAGES_AT_ONCE = 10_000
# A limit of 64 MiB for an answer, so that a whole batch is in a single answer.
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
        if error.code() in _DAMAGED_FOR_CLIENT or "MagicByte" in error.str():
            return cls(error.str(), first=offset)
        if error.code() in _DAMAGED_FOR_BROKER:
            return cls(error.str(), is_unreadable_by_broker=True)
        return None


# The result of a probe without an answer: the offset is neither readable, nor known to be damaged.
SILENCE = LogFault("nothing comes from there")


def read_error(topic: str, partition: int, offset: int, error: KafkaError) -> LakestreamError:
    """Return the error for a failed read: DamagedBatch, of one offset, if the client found damage, else ReadFailed."""
    fault = LogFault.of(error, offset)
    if fault is None or fault.is_unreadable_by_broker:
        return ReadFailed(topic, partition, offset, error.str())
    return DamagedBatch(topic, partition, offset, offset + 1, error.str())


class _ShortAnswers(ClientErrors):
    """Counter of fetched answers that are too short for librdkafka's parser, which only logs them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def log(self, level: int, template: str, facility: str, client: str, text: str) -> None:
        """Count a line about a short answer; the long debug log is not passed on."""
        self.count += facility == "PROTOUFLOW" and " for Fetch " in text


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

        The end of the log, and an offset that the consumer passes without a record, count as readable. SILENCE if
        nothing comes within `patience` seconds.
        """
        errors = _ShortAnswers()
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
                if errors.count >= _SHORT_ANSWERS:
                    return LogFault("the lengths in it contradict each other")
        finally:
            consumer.close()
        return SILENCE

    def damage(self, topic: str, partition: int, position: int, end: int, fault: LogFault) -> DamagedBatch | None:
        """Return the error with the unreadable offsets around a fault, whose end is found by probes of single offsets.

        None if a second look shows other faults: a broker may be starting or stopping.

        :param position: the offset at which the read met the fault.
        :param end: the end of the offsets known to be in the log.
        """
        first = position if fault.first is None or not 0 <= fault.first < end else fault.first
        first_good = self._first_good(topic, partition, max(first, position), end, fault)
        last_fault = self.fault(topic, partition, first_good - 1)
        next_fault = self.fault(topic, partition, first_good)
        if not _is_same(last_fault, fault) or _is_same(next_fault, fault):
            return None
        return DamagedBatch(
            topic, partition, first, first_good, fault.problem, is_unreadable_by_broker=fault.is_unreadable_by_broker
        )

    def disorder(self, topic: str, partition: int, position: int, end: int) -> DamagedBatch | None:
        """Return the error for a batch whose records have wrong offsets, delivered after a position.

        None if the batch's true offsets are not in the range from `position` to `end`, or if a second read delivers
        all offsets in order.

        :param end: the end of the range to read; the error names no higher offset.
        """
        start = max(0, position - 1)
        misplaced_range = misplaced(self._delivered_offsets(topic, partition, start, end), start)
        first, until = misplaced_range or (0, 0)
        if max(first, position) >= min(until, end):
            return None
        return DamagedBatch(topic, partition, first, min(until, end), DISORDER)

    def _delivered_offsets(self, topic: str, partition: int, start: int, end: int) -> list[int]:
        """Return the offsets of the records from `start` to `end`, in the order of delivery.

        Whole batches are in a single answer. An error, or the end of `patience` seconds, ends the list early.
        """
        config = {**consumer_config(self._connection, self._group, ClientErrors()), **_WHOLE_BATCHES}
        consumer = open_client(Consumer, config, self._where)
        offsets: list[int] = []
        deadline = time.monotonic() + self._patience
        try:
            consumer.assign([TopicPartition(topic, partition, start)])
            while time.monotonic() < deadline and not (offsets and offsets[-1] == end - 1):
                for message in consumer.consume(_MESSAGES_AT_ONCE, 0.1):
                    if message.error() is not None:
                        return offsets
                    offsets.append(int(message.offset() or 0))
        finally:
            consumer.close()
        return offsets

    def _first_good(self, topic: str, partition: int, bad: int, end: int, fault: LogFault) -> int:
        """Return the first offset above `bad` without the fault, or `end`: by growing steps, then by bisection."""
        good, step = end, 1
        while bad + step < good:
            if _is_same(self.fault(topic, partition, bad + step), fault):
                bad, step = bad + step, min(2 * step, _WIDEST_STEP)
            else:
                good = bad + step
        while good - bad > 1:
            middle = (bad + good) // 2
            if _is_same(self.fault(topic, partition, middle), fault):
                bad = middle
            else:
                good = middle
        return good


def _is_same(probed: LogFault | None, fault: LogFault) -> bool:
    """Return whether a probe's result may be the given fault: the same damaged batch, or no answer."""
    return probed is not None and (probed is SILENCE or probed.first == fault.first)


_TOPIC_PARTITION = r"(?P<topic>[\w.-]+)-(?P<partition>\d+)"
# Errors of the Java client that name the partition, and perhaps the batch's first offset or the request's offset.
_PLACES = tuple(
    re.compile(pattern)
    for pattern in (
        rf"Record(?: batch)? for partition {_TOPIC_PARTITION} at offset (?P<offset>\d+) is invalid",
        rf"Encountered corrupt message when fetching offset (?P<offset>\d+) for topic-partition {_TOPIC_PARTITION}",
        rf"Failed to make progress reading messages at {_TOPIC_PARTITION}=(?P<offset>\d+)",
        rf"Received exception when fetching the next record from {_TOPIC_PARTITION}\. If needed",
    )
)
# Errors of the Java client that name no partition, for a batch with a damaged header.
_DAMAGED_FOR_JAVA = re.compile(
    r"CorruptRecordException|InvalidRecordException|Record is corrupt|Record size .* is less than the minimum"
    r"|Invalid magic found in record|Failed to decompress record stream"
)


# The offsets of a range in which damage is searched: a client reads only some thousand records ahead of its position.
MOST_LOOKED_AT = 100_000
_ENDLESS = 2**63 - 1


@dataclass(frozen=True)
class JavaDamage:
    """A damaged batch that an error of Kafka's Java client reports.

    :param line: the error's line.
    :param topic: "" if the error names no partition.
    :param offset: the batch's first offset, or of the failed request; -1 if unknown.
    """

    line: str
    topic: str = ""
    partition: int = -1
    offset: int = -1

    @classmethod
    def of(cls, error: str) -> JavaDamage | None:
        """Return the damage that the text of an error or a stack trace reports, or None for an error without damage."""
        for place in _PLACES:
            if match := place.search(error):
                groups = match.groupdict()
                line, offset = _line(error, match.start()), int(groups.get("offset", -1))
                return cls(line, groups["topic"], int(groups["partition"]), offset)
        match = _DAMAGED_FOR_JAVA.search(error)
        return None if match is None else cls(_line(error, match.start()))

    def within(self, ranges: RangeSet) -> RangeSet:
        """Return the part of the ranges that can have the damage: all ranges if the partition is unknown."""
        if not self.topic:
            return ranges
        return ranges & RangeSet.of(self.topic, self.partition, max(self.offset, 0), _ENDLESS)


def first_offsets(ranges: RangeSet) -> RangeSet:
    """Return the first MOST_LOOKED_AT offsets of each range."""
    return RangeSet(replace(r, until_offset=min(r.until_offset, r.from_offset + MOST_LOOKED_AT)) for r in ranges)


def find_damage(reader: RecordReader, state: TopicState, ranges: RangeSet) -> DamagedBatch | None:
    """Read ranges of a topic, and return the first damaged batch, or None if all is readable.

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


def _line(text: str, index: int) -> str:
    """Return the line of a text around an index, of 300 characters at most, without the "Caused by" of a trace."""
    start = text.rfind("\n", 0, index) + 1
    return text[start:].partition("\n")[0].removeprefix("Caused by: ").strip()[:300]
