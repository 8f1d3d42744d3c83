"""Selection of rows by the record's topic, partition and offset. Arrow only; for every table format.

A row is a hit if its three metadata columns have values in the ranges; NULL is not a hit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ranges import Interval, OffsetRange, PartitionKey, RangeSet, overlapping
from airflow_lakestream.tables.rising import distinct

TOPIC, PARTITION, OFFSET = COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset")

# Arrays of 64-bit offsets, by topic and partition.
Offsets = Mapping[PartitionKey, pa.Array]


def is_hit(rows: pa.Table, ranges: RangeSet) -> pa.ChunkedArray:
    """Return a mask: True for rows of records in `ranges`, False for all further rows, also for NULL."""
    hit = pa.chunked_array([pa.repeat(False, rows.num_rows)])
    partitions = set(pc.unique(rows[PARTITION]).to_pylist())
    for key in ranges.partitions:
        if key[1] in partitions:
            hit = pc.or_(hit, pc.and_(is_of(rows, key), is_within(rows[OFFSET], ranges.intervals(*key))))
    return hit


def is_of(rows: pa.Table, key: PartitionKey) -> pa.ChunkedArray:
    """Return a mask: True for rows of the (topic, partition) in `key`, False for all further rows, also for NULL."""
    return pc.fill_null(pc.and_(pc.equal(rows[TOPIC], key[0]), pc.equal(rows[PARTITION], key[1])), False)


def is_within(offsets: pa.ChunkedArray, intervals: Sequence[Interval]) -> pa.Array:
    """Return a mask of the offsets within sorted, disjoint intervals; False for NULL.

    Offsets and borders are sorted together once, for any number of intervals: an offset is inside if more intervals
    begin than end up to it. `search_sorted` is missing in the oldest version of Arrow that is allowed.
    """
    low, high = pc.min_max(offsets).as_py().values()
    intervals = () if low is None else overlapping(intervals, low, high)
    if not intervals:
        return pa.repeat(False, len(offsets))
    # No interval contains -1.
    values = pc.fill_null(offsets.cast(pa.int64()), -1).combine_chunks()
    starts, ends = (pa.array(border, pa.int64()) for border in zip(*intervals, strict=True))
    # The sort is stable, so a border comes before an offset of its own value.
    keys = [starts, ends, values]
    steps = [pa.repeat(pa.scalar(step, pa.int64()), len(part)) for step, part in zip((1, -1, 0), keys, strict=True)]
    order = pc.array_sort_indices(pa.concat_arrays(keys))
    inside = pc.greater(pc.cumulative_sum(pa.concat_arrays(steps).take(order)), 0)
    # The inverse of the sort moves each answer back to the place of its offset, behind the places of the borders.
    back = pc.array_sort_indices(order)
    return inside.take(back.slice(2 * len(starts)))


def missing_in(offsets: Offsets, present: Offsets) -> RangeSet:
    """Return the offsets of `offsets` without an equal offset in `present`, which may lack a partition."""
    missing: list[OffsetRange] = []
    for key, wanted in offsets.items():
        is_present = pc.is_in(wanted, value_set=present.get(key, pa.array([], pa.int64())))
        absent = wanted.filter(pc.invert(is_present)).to_pylist()
        missing += [OffsetRange(*key, offset, offset + 1) for offset in absent]
    return RangeSet(missing)


def ranges_of(key: PartitionKey, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]) -> RangeSet:
    """Return the set of these offsets of a partition; any order and duplicates are allowed."""
    if not len(offsets):
        return RangeSet()
    rising = distinct(offsets)
    breaks = np.flatnonzero(np.diff(rising) != 1)
    starts, lasts = rising[np.r_[0, breaks + 1]].tolist(), rising[np.r_[breaks, len(rising) - 1]].tolist()
    return RangeSet(OffsetRange(*key, start, last + 1) for start, last in zip(starts, lasts, strict=True))


def iso(at_ms: int, *, shortly: bool = True) -> str:
    """Return a time in milliseconds since the epoch as ISO 8601 in UTC; `shortly`: a whole second without ".000"."""
    unit: Literal["s", "ms"] = "s" if shortly and not at_ms % 1000 else "ms"
    return f"{np.datetime_as_string(np.datetime64(at_ms, 'ms'), unit=unit)}+00:00"
