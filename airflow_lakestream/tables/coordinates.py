"""Rows by the Kafka records that they come from: by topic, partition and offset. Arrow only; for every table format.

A row is a hit when its three metadata columns have values that lie in the ranges; NULL is no hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ranges import Interval, OffsetRange, PartitionKey, RangeSet, overlapping
from airflow_lakestream.tables.rising import distinct

TOPIC, PARTITION, OFFSET = COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset")

Offsets = Mapping[PartitionKey, pa.Array]


def is_hit(rows: pa.Table, ranges: RangeSet) -> pa.ChunkedArray:
    """Tell for each row whether it is one of the ranges' records; never NULL."""
    hit = pa.chunked_array([pa.repeat(False, rows.num_rows)])
    there = set(pc.unique(rows[PARTITION]).to_pylist())
    for key in ranges.partitions:
        if key[1] in there:
            hit = pc.or_(hit, pc.and_(is_of(rows, key), lies_in(rows[OFFSET], ranges.intervals(*key))))
    return hit


def is_of(rows: pa.Table, key: PartitionKey) -> pa.ChunkedArray:
    """Tell for each row whether it is of a partition; never NULL."""
    return pc.fill_null(pc.and_(pc.equal(rows[TOPIC], key[0]), pc.equal(rows[PARTITION], key[1])), False)


def lies_in(offsets: pa.ChunkedArray, intervals: Sequence[Interval]) -> pa.Array:
    """Tell for each offset whether it lies in one of sorted, disjoint intervals; NULL does not.

    All in one sort of offsets and borders, however many intervals there are: an offset is inside where more of them
    begin than end up to it. Not by `search_sorted`, which came to Arrow long after the oldest version that we allow.
    """
    low, high = pc.min_max(offsets).as_py().values()
    intervals = () if low is None else overlapping(intervals, low, high)
    if not intervals:
        return pa.repeat(False, len(offsets))
    values = pc.fill_null(offsets.cast(pa.int64()), -1).combine_chunks()
    starts, ends = (pa.array(border, pa.int64()) for border in zip(*intervals, strict=True))
    # The sort is stable, so a border comes before an offset of its own value.
    keys = [starts, ends, values]
    steps = [pa.repeat(pa.scalar(step, pa.int64()), len(part)) for step, part in zip((1, -1, 0), keys, strict=True)]
    order = pc.array_sort_indices(pa.concat_arrays(keys))
    inside = pc.greater(pc.cumulative_sum(pa.concat_arrays(steps).take(order)), 0)
    back = pc.array_sort_indices(order)
    return inside.take(back.slice(2 * len(starts)))


def not_among(offsets: Offsets, among: Offsets) -> RangeSet:
    """Return the offsets that are not among the others."""
    missing: list[OffsetRange] = []
    for key, some in offsets.items():
        known = pc.is_in(some, value_set=among.get(key, pa.array([], pa.int64())))
        strange = some.filter(pc.invert(known)).to_pylist()
        missing += [OffsetRange(*key, offset, offset + 1) for offset in strange]
    return RangeSet(missing)


def ranges_of(key: PartitionKey, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> RangeSet:
    """Return the set of these offsets of a partition; in any order, each as often as it likes."""
    if not len(offsets):
        return RangeSet()
    rising = distinct(offsets)
    breaks = np.flatnonzero(np.diff(rising) != 1)
    starts, lasts = rising[np.r_[0, breaks + 1]].tolist(), rising[np.r_[breaks, len(rising) - 1]].tolist()
    return RangeSet(OffsetRange(*key, start, last + 1) for start, last in zip(starts, lasts, strict=True))
