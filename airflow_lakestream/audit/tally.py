"""Counts of the offsets of a partition, in Arrow, without a Python object per row.

A tally is a step function, stored as the offsets at which it rises or falls. Consecutive offsets cost nothing: ten
million rows without holes are two entries. The worst case, no two rows next to each other, is 32 bytes per row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ranges import Interval

# Entries are settled when there are more loose entries than this number and than settled entries.
_MOST_LOOSE = 1_000_000
_EMPTY = pa.table({"at": pa.array([], pa.int64()), "step": pa.array([], pa.int64())})


class OffsetTally:
    """Counts offsets of a partition; an offset added twice counts twice.

    Added offsets are kept as loose entries, and settled (merged by offset) when there are many, or when a count is
    read.

    :param intervals: intervals [start, end) of offsets to count first.
    """

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self._settled: pa.Table = _EMPTY
        self._loose: list[pa.Table] = []
        self._loose_count = 0
        pairs = list(intervals)
        if pairs:
            self._add(pa.array([start for start, _ in pairs], pa.int64()), pa.array([end for _, end in pairs]))

    def add_interval(self, start: int, end: int) -> None:
        """Count each offset of [start, end)."""
        self._add(pa.array([start], pa.int64()), pa.array([end], pa.int64()))

    def add_offsets(self, offsets: pa.Array | Sequence[int]) -> None:
        """Count each of these offsets, in any order, without nulls; repetitions count. A `range` must have step 1."""
        if isinstance(offsets, range):
            if len(offsets):
                self.add_interval(offsets.start, offsets.stop)
            return
        array = offsets if isinstance(offsets, pa.Array) else pa.array(offsets, pa.int64())
        if not len(array):
            return
        starts, ends = _runs(array)
        # The rows may be sorted by something else: sorting by offset makes runs of them.
        if len(starts) > 16 and len(starts) * 4 > len(array):
            starts, ends = _runs(array.take(pc.array_sort_indices(array)))
        self._add(starts, ends)

    def edges(self) -> pa.Table:
        """Return the columns `at` and `step`, a row for each offset at which the count changes; unsorted.

        A step is the change of the count at this offset, negative if the count falls. Loose entries are settled first.
        """
        if self._loose:
            self._settled = _settle(pa.concat_tables([self._settled, *self._loose]))
            self._loose, self._loose_count = [], 0
        return self._settled

    def cuts(self, most_edges: int) -> list[int]:
        """Return the offsets that cut the tally into windows of about `most_edges` edges.

        The result is empty if the tally has at most `most_edges` edges.
        """
        offsets = self.edges()["at"]
        if len(offsets) <= most_edges:
            return []
        ordered = offsets.take(pc.sort_indices(offsets))
        return [ordered[number].as_py() for number in range(most_edges, len(ordered), most_edges)]

    def window(self, start: int | None, end: int | None) -> OffsetTally:
        """Return the counts of the offsets in [start, end); None means no limit."""
        edges, window = self.edges(), OffsetTally()
        within = edges if start is None else edges.filter(pc.greater_equal(edges["at"], start))
        within = within if end is None else within.filter(pc.less(within["at"], end))
        before = 0 if start is None else pc.sum(edges["step"].filter(pc.less(edges["at"], start))).as_py() or 0
        after = before + (pc.sum(within["step"]).as_py() or 0)
        # A count that is above 0 at a border gets an edge there: up at the start, down at the end.
        borders = [(at, step) for at, step in ((start, before), (end, -after)) if at is not None and step]
        edge_offsets, steps = zip(*borders, strict=True) if borders else ((), ())
        border_edges = pa.table({"at": pa.array(edge_offsets, pa.int64()), "step": pa.array(steps, pa.int64())})
        window._settled = _settle(pa.concat_tables([within, border_edges]))
        return window

    def intervals(self) -> tuple[Interval, ...]:
        """Return the intervals of offsets counted at least once, neighbours joined."""
        segments = TallySegments({"n": self})
        return segments.where(pc.greater(segments.counts["n"], 0))

    def __add__(self, other: OffsetTally) -> OffsetTally:
        """Return a tally with the sum of both counts of each offset."""
        tally = OffsetTally()
        tally._settled = _settle(pa.concat_tables([self.edges(), other.edges()]))
        return tally

    def __len__(self) -> int:
        """Return the total count, repetitions included."""
        edges = self.edges()
        # The area under the steps: each step counts from its offset on, so the sum is -step * at.
        return -(pc.sum(pc.multiply(edges["at"], edges["step"])).as_py() or 0)

    def _add(self, starts: pa.Array, ends: pa.Array) -> None:
        """Count each range [start, end) once, as a step up at its start and a step down at its end."""
        steps_up = pa.repeat(pa.scalar(1, pa.int64()), len(starts))
        offsets = pa.concat_arrays([starts.cast(pa.int64()), ends.cast(pa.int64())])
        self._loose.append(pa.table({"at": offsets, "step": pa.concat_arrays([steps_up, pc.negate(steps_up)])}))
        self._loose_count += len(offsets)
        if self._loose_count > max(_MOST_LOOSE, len(self._settled)):
            self.edges()


class TallySegments:
    """Several tallies on the same segments: intervals of offsets in which no tally's count changes.

    Segment n is [`starts`[n], `ends`[n]); `counts` has, by the tally's name, its count in each segment. A mask is a
    boolean for each segment.
    """

    def __init__(self, tallies: Mapping[str, OffsetTally]) -> None:
        parts = [
            tally.edges().append_column("of", pa.repeat(pa.scalar(number, pa.int8()), len(tally.edges())))
            for number, tally in enumerate(tallies.values())
        ]
        edges = pa.concat_tables(parts)
        # A column of steps for each tally, 0 in the rows of other tallies: the running sum over all edges is its count.
        for number, name in enumerate(tallies):
            steps = pc.if_else(pc.equal(edges["of"], number), edges["step"], 0)
            edges = edges.append_column(name, steps)
        sums = edges.group_by("at").aggregate([(name, "sum") for name in tallies]).sort_by("at")
        offsets = sums["at"].combine_chunks()
        self.starts, self.ends = offsets.slice(0, max(0, len(offsets) - 1)), offsets.slice(1)
        self.counts: dict[str, pa.Array] = {
            name: pc.cumulative_sum(sums[f"{name}_sum"].combine_chunks()).slice(0, max(0, len(offsets) - 1))
            for name in tallies
        }

    def where(self, mask: pa.Array) -> tuple[Interval, ...]:
        """Return the intervals of the segments selected by the mask, neighbours joined."""
        return tuple((start, end) for start, end, _ in self.with_count(mask, pa.repeat(0, len(mask))))

    def width(self, mask: pa.Array) -> int:
        """Return the number of offsets in the segments selected by the mask."""
        widths = pc.subtract(self.ends, self.starts).filter(mask)
        return pc.sum(widths).as_py() or 0

    def total(self, mask: pa.Array, counts: pa.Array) -> int:
        """Return the sum of `counts` (one for each segment) over all offsets of the selected segments."""
        areas = pc.multiply(pc.subtract(self.ends, self.starts), counts).filter(mask)
        return pc.sum(areas).as_py() or 0

    def with_count(self, mask: pa.Array, counts: pa.Array) -> tuple[tuple[int, int, int], ...]:
        """Return (from, until, count) of the selected segments; neighbours of equal count are joined."""
        selected = (column.filter(mask).to_pylist() for column in (self.starts, self.ends, counts))
        ranges: list[tuple[int, int, int]] = []
        for start, end, count in zip(*selected, strict=True):
            if ranges and ranges[-1][1] == start and ranges[-1][2] == count:
                ranges[-1] = (ranges[-1][0], end, count)
            else:
                ranges.append((start, end, count))
        return tuple(ranges)


def _runs(offsets: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return starts and ends (exclusive) of the stretches in which each offset is its predecessor plus one."""
    before, after = offsets.slice(0, len(offsets) - 1), offsets.slice(1)
    breaks = pc.not_equal(pc.subtract(after, before), 1)
    starts = pa.concat_arrays([offsets.slice(0, 1), after.filter(breaks)])
    lasts = pa.concat_arrays([before.filter(breaks), offsets.slice(len(offsets) - 1)])
    return starts, pc.add(lasts, 1)


def _settle(edges: pa.Table) -> pa.Table:
    """Return edges with one step for each offset, the sum of its steps, without offsets whose sum is 0."""
    sums = edges.group_by("at").aggregate([("step", "sum")]).rename_columns({"at": "at", "step_sum": "step"})
    return sums.filter(pc.not_equal(sums["step"], 0)).select(["at", "step"])
