"""A publication put together: the table's sink, and Kafka as it looks at single offsets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow.compute as pc

from airflow_lakestream.core.landing.job import Stopped
from airflow_lakestream.core.landing.plan import Plan, TopicState
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ports import Reader
from airflow_lakestream.core.publishing.branch import Shown
from airflow_lakestream.core.ranges import OffsetRange, PartitionKey, RangeSet, coalesce
from airflow_lakestream.tables.coordinates import ranges_of

# A reader takes up one stretch after the other; it is faster to read over so many offsets that nobody asked for.
NEAR = 10_000


class LookIntoLog:
    """`core.publishing.branch.Log` by a reader of the topic."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def shown(self, ranges: RangeSet, state: TopicState, stop: threading.Event) -> Shown:
        """Return what Kafka shows at these offsets. Raises Stopped, and Conflict where the log loses some meanwhile."""
        topic = state.identity.topic
        gone = ranges & union(RangeSet.of(topic, p, 0, marks.low) for p, marks in state.marks.items())
        there = ranges - gone
        values: dict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        empty: dict[PartitionKey, list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = {}
        with closing(self._reader.read(Plan(state, RangeSet(_stretches(there))), stop)) as chunks:
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


def _stretches(ranges: RangeSet) -> Iterator[OffsetRange]:
    """Yield the ranges, those near each other as one."""
    for key in ranges.partitions:
        for start, end in coalesce((start, end + NEAR) for start, end in ranges.intervals(*key)):
            yield OffsetRange(*key, start, end - NEAR)
