"""Records of a topic, read without joining a group and without committing an offset."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import RawBatch, RecordPart
from airflow_lakestream.decode.header_ids import VALUE, bare
from airflow_lakestream.decode.values.outcome import pick
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.kafka.source import KafkaSource, StartAt

# The client needs the name of a group. No consumer joins the group, and no offset is committed.
_GROUP = "lakestream-preview"
_POLL_TIMEOUT = 20.0
# Records may have megabytes, and a topic hundreds of partitions.
MOST_BYTES = 64 * 2**20
# If compaction or transactions left few records, the next attempt reads this many times as many offsets.
_WIDER = 8
_HOUR_MS = 3_600_000


@dataclass(frozen=True)
class TopicSample:
    """Records of a topic, in offset order within each batch. `is_cut`: reading ended early, at MOST_BYTES."""

    batches: tuple[RawBatch, ...]
    is_cut: bool = False

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    @property
    def values(self) -> list[bytes | None]:
        """The values of all records."""
        return [value for batch in self.batches for value in batch.values.to_pylist()]

    @property
    def bare(self) -> list[int]:
        """Positions (in `values`) of the values whose schema ids are in headers."""
        starts = itertools.accumulate(map(len, self.batches), initial=0)
        return [start + at for start, batch in zip(starts, self.batches, strict=False) for at in bare(batch, VALUE)]

    @property
    def newest_ms(self) -> int | None:
        """The greatest timestamp, in milliseconds, or None without any."""
        return max((at for batch in self.batches for at in batch.timestamps if at >= 0), default=None)

    def trimmed(self, count: int, *, newest: bool) -> TopicSample:
        """Return only the `count` newest records by timestamp, or the `count` oldest if `newest` is False."""
        places = sorted(
            (at, batch.partition, offset, n, place)
            for n, batch in enumerate(self.batches)
            for place, (at, offset) in enumerate(zip(batch.timestamps, batch.offsets, strict=True))
        )
        places_by_batch: dict[int, list[int]] = {}
        for *_, n, place in places[-count:] if newest else places[:count]:
            places_by_batch.setdefault(n, []).append(place)
        batches = [pick(self.batches[n], sorted(places_by_batch[n])) for n in sorted(places_by_batch)]
        return TopicSample(tuple(batches), self.is_cut)

    def __add__(self, other: TopicSample) -> TopicSample:
        """Return the records of both samples without duplicates."""
        known = {(batch.partition, offset) for batch in self.batches for offset in batch.offsets}
        new = [
            pick(batch, [n for n, offset in enumerate(batch.offsets) if (batch.partition, offset) not in known])
            for batch in other.batches
        ]
        return TopicSample((*self.batches, *(batch for batch in new if len(batch))), self.is_cut or other.is_cut)


class SampledTopic:
    """A topic to read records from, without joining a consumer group or committing offsets.

    Each method takes the state that `look` returned.

    :param connection: librdkafka configuration.
    :param where: name of the connection for errors.
    """

    def __init__(self, connection: Mapping[str, Any], topic: str, where: str) -> None:
        self.name = topic
        self._source = KafkaSource(connection, topic, _GROUP, StartAt(), where)
        parts = frozenset(RecordPart)
        self._reader = KafkaReader(connection, _GROUP, poll_timeout=_POLL_TIMEOUT, where=where, parts=parts)

    def look(self) -> TopicState:
        """Return identity and watermarks. Raises TopicMissing, KafkaRefused, KafkaUnavailable, KafkaMisconfigured."""
        return self._source.look()

    def last(self, state: TopicState, count: int) -> TopicSample:
        """Return the last `count` records of each partition. Raises the errors of the reader."""
        return self._read(state, {p: marks.end for p, marks in state.marks.items()}, count, backwards=True)

    def first(self, state: TopicState, count: int) -> TopicSample:
        """Return the first `count` records of each partition. Raises the errors of the reader."""
        return self._read(state, {p: marks.low for p, marks in state.marks.items()}, count)

    def since(self, state: TopicState, offsets: Mapping[int, int], count: int) -> TopicSample:
        """Return `count` records of each partition in `offsets`, from the given offset on.

        :param offsets: offsets by partition; records of partitions without one are not read.

        Raises InvalidArgument for a missing partition or an offset outside the log, and the errors of the reader.
        """
        for p, offset in offsets.items():
            marks = state.marks.get(p)
            if marks is None:
                problem = f"{self.name} has no partition {p}; it has {len(state.marks)}, from 0 on."
                raise InvalidArgument("--from-offset", problem)
            if not marks.low <= offset <= marks.end:
                problem = f"{self.name}[{p}] {offset} is not in the log, which is [{marks.low},{marks.end}) now."
                raise InvalidArgument("--from-offset", problem)
        return self._read(state, offsets, count)

    def since_time(self, state: TopicState, at_ms: int, count: int) -> TopicSample:
        """Return `count` records of each partition, from a time (milliseconds since 1970) on.

        Raises the errors of source and reader.
        """
        return self._read(state, self._source.offsets_at(state, at_ms), count)

    def rate(self, state: TopicState, first: TopicSample, last: TopicSample) -> float | None:
        """Return the number of records a minute, in the last hour before the newest record.

        Offsets are counted, so that markers of transactions count as well. None if the timestamps span less than a
        second.

        :param first: the first records of each partition.
        :param last: the last records of each partition.
        """
        newest = last.newest_ms
        oldest = min((at for batch in first.batches for at in batch.timestamps if at >= 0), default=None)
        if newest is None or oldest is None or newest - oldest < 1000:
            return None
        span = min(_HOUR_MS, newest - oldest)
        since = self._source.offsets_at(state, newest - span)
        return sum(state.marks[p].end - offset for p, offset in since.items()) * 60_000 / span

    def _read(
        self, state: TopicState, begins: Mapping[int, int], count: int, *, backwards: bool = False
    ) -> TopicSample:
        """Read `count` records of each partition, forwards or backwards from an offset.

        If an attempt finds fewer records, since the log has holes, the next reads farther, until the partition's end,
        or until MOST_BYTES are read.

        :param begins: offsets by partition; backwards, the record at this offset is not included.
        """
        places, found, batches, size, span = dict(begins), Counter[int](), list[RawBatch](), 0, count
        while places and size < MOST_BYTES:
            ranges = []
            for p, here in sorted(places.items()):
                marks = state.marks[p]
                low, end = (max(marks.low, here - span), here) if backwards else (here, min(marks.end, here + span))
                if low < end:
                    ranges.append(OffsetRange(self.name, p, low, end))
            places = {r.partition: r.from_offset if backwards else r.until_offset for r in ranges}
            size += self._read_ranges(Plan(state, RangeSet(ranges)), batches, found, MOST_BYTES - size)
            places = {p: here for p, here in places.items() if found[p] < count}
            span *= _WIDER
        ordered = sorted(batches, key=lambda batch: (batch.partition, batch.offsets[0]))
        return TopicSample(tuple(_of_each(ordered, count, backwards=backwards)), size >= MOST_BYTES)

    def _read_ranges(self, plan: Plan, batches: list[RawBatch], found: Counter[int], most: int) -> int:
        """Read the ranges of a plan; return the number of bytes read.

        :param batches: the records are appended to this list.
        :param found: the numbers of records by partition are added to this counter.
        :param most: number of bytes after which reading ends.
        """
        size = 0
        with closing(self._reader.read(plan, threading.Event())) as chunks:
            for chunk in chunks:
                size += chunk.size
                if len(chunk.batch):
                    batches.append(chunk.batch)
                    found[chunk.batch.partition] += len(chunk.batch)
                if size >= most:
                    break
        return size


def _of_each(batches: Sequence[RawBatch], count: int, *, backwards: bool) -> list[RawBatch]:
    """Return the first `count` records of each partition, or the last `count` if `backwards`."""
    left: dict[int, int] = {}
    selected = []
    for batch in reversed(batches) if backwards else batches:
        take = min(len(batch), left.setdefault(batch.partition, count))
        left[batch.partition] -= take
        if take:
            selected.append(pick(batch, range(len(batch))[-take:] if backwards else range(take)))
    return selected[::-1] if backwards else selected
