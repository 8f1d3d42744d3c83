"""Timestamps of all records in ranges, with a memory of earlier reads.

`offsets_for_times` finds the first record that is young enough, not an older record behind it: producers send
timestamps in any order. So finding the oldest of some records means reading them all.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ports import OffsetsGone
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.requests import REQUEST_TIMEOUT

# Remembered records in all: 16 bytes each.
_REMEMBERED = 1_000_000

_Numbers: TypeAlias = npt.NDArray[np.int64]
_Key: TypeAlias = tuple[str, int]


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
        at = int(self.millis.argmin())
        return int(self.offsets[at]), int(self.millis[at])

    def before(self, topic: str, partition: int, at_ms: int) -> RangeSet:
        """Return the offsets of the records from before a time."""
        old = self.offsets[self.millis < at_ms]
        # A range ends at an offset that the next one does not follow.
        ends = np.flatnonzero(np.diff(old) != 1)
        firsts = old[np.concatenate([[0], ends + 1])] if len(old) else old
        lasts = old[np.concatenate([ends, [len(old) - 1]])] if len(old) else old
        pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
        return RangeSet(OffsetRange(topic, partition, first, last + 1) for first, last in pairs)


@dataclass(frozen=True)
class _KnownTimestamps:
    covered: RangeSet
    stamps: RecordTimestamps


_NOTHING = _KnownTimestamps(RangeSet(), RecordTimestamps(np.empty(0, np.int64), np.empty(0, np.int64)))


class TimestampCache:
    """Timestamps read through a connection. Thread-safe.

    :param connection: librdkafka configuration.
    :param group: name in brokers' logs; nothing is committed for it.
    :param where: name of the connection for errors.
    """

    def __init__(self, connection: Mapping[str, Any], group: str, where: str) -> None:
        self._reader = KafkaReader(connection, group, poll_timeout=REQUEST_TIMEOUT, where=where)
        self._known: OrderedDict[_Key, _KnownTimestamps] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, state: TopicState, ranges: RangeSet) -> dict[int, RecordTimestamps]:
        """Return the timestamps of the ranges' records by partition, without partitions with lost records.

        Raises the errors of `KafkaReader.read`, except OffsetsGone.
        """
        topic = state.identity.topic
        with self._lock:
            known = {p: self._known.get(_key(state, p), _NOTHING) for _, p in ranges.partitions}
        missing = {p: ranges.of_partition(topic, p) - one.covered for p, one in known.items()}
        known |= self._read(state, known, {p: one for p, one in missing.items() if one})
        self._remember(state, known)
        return {p: _within(one.stamps, ranges.intervals(topic, p)) for p, one in known.items()}

    def forget(self, state: TopicState, partitions: Iterable[int]) -> None:
        """Forget the timestamps of partitions: the records may be gone."""
        with self._lock:
            for p in partitions:
                self._known.pop(_key(state, p), None)

    def _read(
        self, state: TopicState, known: dict[int, _KnownTimestamps], missing: Mapping[int, RangeSet]
    ) -> Mapping[int, _KnownTimestamps]:
        """Read missing ranges, return the partitions read, and remove partitions with lost records from `known`."""
        parts: dict[int, list[RecordTimestamps]] = {p: [known[p].stamps] for p in missing}
        left = RangeSet(r for ranges in missing.values() for r in ranges)
        try:
            with closing(self._reader.read(Plan(state, left), threading.Event())) as chunks:
                for chunk in chunks:
                    offsets, millis = (
                        np.asarray(one, np.int64) for one in (chunk.batch.offsets, chunk.batch.timestamps)
                    )
                    parts[chunk.covers.partition].append(RecordTimestamps(offsets, millis.copy()))
        except OffsetsGone as gone:
            known.pop(gone.partition)
            remaining = {p: ranges for p, ranges in missing.items() if p != gone.partition}
            return self._read(state, known, remaining) if remaining else {}
        return {p: _KnownTimestamps(known[p].covered | missing[p], _in_order(stamps)) for p, stamps in parts.items()}

    def _remember(self, state: TopicState, known: Mapping[int, _KnownTimestamps]) -> None:
        with self._lock:
            for p, one in known.items():
                self._known[_key(state, p)] = one
                self._known.move_to_end(_key(state, p))
            while sum(len(one.stamps.offsets) for one in self._known.values()) > _REMEMBERED:
                self._known.popitem(last=False)


def _key(state: TopicState, partition: int) -> _Key:
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
