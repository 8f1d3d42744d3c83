"""A publication put together: Kafka as it looks at single offsets, and at all that an engine has decoded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

import numpy as np
import pyarrow.compute as pc

from airflow_lakestream.core.landing.job import Stopped
from airflow_lakestream.core.landing.plan import DamagedBatch, Plan, TopicState
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ports import Reader
from airflow_lakestream.core.publishing.branch import Shown
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet, coalesce
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.values.outcome import Decoded, pick
from airflow_lakestream.tables.coordinates import ranges_of

# A reader takes up one stretch after the other; it is faster to read over so many offsets that nobody asked for.
NEAR = 10_000


class LookIntoLog:
    """`core.publishing.branch.Log` by a reader of the topic."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def shown(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> Shown:
        """Return what Kafka shows at these offsets. Raises Stopped, and Conflict where the log loses some meanwhile."""
        gone = ranges & _below(state)
        there = ranges - gone
        try:
            return self._read(ranges, Plan(state, RangeSet(_stretches(there))), gone, stop)
        except DamagedBatch as damaged:
            if damaged.ranges & there:
                raise
            # Of a stretch between the offsets that were asked for.
            return self._read(ranges, Plan(state, there), gone, stop)

    def _read(self, ranges: RangeSet, plan: Plan, gone: RangeSet, stop: threading.Event) -> Shown:
        values: dict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        empty: dict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        with closing(self._reader.read(plan, stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                key, offsets = (batch.topic, batch.partition), np.asarray(batch.offsets, np.int64)
                without = pc.is_null(batch.values).to_numpy(zero_copy_only=False)
                values.setdefault(key, []).append(offsets[~without])
                empty.setdefault(key, []).append(offsets[without])
        if stop.is_set():
            raise Stopped
        found, bare = (
            union(ranges_of(key, np.concatenate(some)) for key, some in by.items()) for by in (values, empty)
        )
        return Shown(found & ranges, bare & ranges, gone)


class DecodedAgain:
    """`core.publishing.branch.Proof` by our own decoder.

    :param begins: by partition, where the engine began; what is below it has not read.
    :param tombstones: records without a value are rows, too.
    """

    def __init__(
        self,
        reader: Reader,
        decode: Callable[[RawBatch], Decoded],
        begins: Mapping[int, int],
        *,
        tombstones: bool,
    ) -> None:
        self._reader = reader
        self._decode = decode
        self._begins = begins
        self._tombstones = tombstones

    def check(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> RangeSet:
        """Return at which of these offsets Kafka shows what has to be a row. Raises BadRecord, and as `shown` does."""
        found: dict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        wanted = (
            ranges - _below(state) - union(RangeSet.of(state.identity.topic, p, 0, o) for p, o in self._begins.items())
        )
        with closing(self._reader.read(Plan(state, wanted), stop)) as chunks:
            for chunk in chunks:
                batch = chunk.batch
                if batch.values.null_count and not self._tombstones:
                    batch = pick(batch, np.flatnonzero(batch.values.is_valid().to_numpy(zero_copy_only=False)))
                self._decode(batch).whole(batch)
                found.setdefault((batch.topic, batch.partition), []).append(np.asarray(batch.offsets, np.int64))
        if stop.is_set():
            raise Stopped
        return union(ranges_of(key, np.concatenate(some)) for key, some in found.items())


def _below(state: TopicState) -> RangeSet:
    """Return what has left the log."""
    return union(RangeSet.of(state.identity.topic, p, 0, marks.low) for p, marks in state.marks.items())


def _stretches(ranges: RangeSet) -> Iterator[OffsetRange]:
    """Yield the ranges, those near each other as one."""
    for key in ranges.partitions:
        for start, end in coalesce((start, end + NEAR) for start, end in ranges.intervals(*key)):
            yield OffsetRange(*key, start, end - NEAR)
