"""Offset ranges and sets of ranges: pure arithmetic, no I/O.

Plans, the ledger, receipts and audits specify records with these two types.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

Interval = tuple[int, int]
PartitionKey = tuple[str, int]


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The half-open range [from_offset, until_offset) of a partition; never empty, never negative."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int

    def __post_init__(self) -> None:
        if self.partition < 0 or self.from_offset < 0 or self.until_offset <= self.from_offset:
            raise ValueError(f"not an offset range: {self}")

    def __len__(self) -> int:
        return self.until_offset - self.from_offset

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}] [{self.from_offset},{self.until_offset})"


class RangeSet:
    """An immutable set of offsets, kept as disjoint, sorted, coalesced ranges per partition.

    `|`, `-`, `&` are union, difference and intersection; iteration yields `OffsetRange`s in order of topic,
    partition and offset. Two sets are equal when they hold the same offsets.
    """

    __slots__ = ("_by_partition",)

    def __init__(self, ranges: Iterable[OffsetRange] = ()) -> None:
        loose: dict[PartitionKey, list[Interval]] = {}
        for r in ranges:
            loose.setdefault((r.topic, r.partition), []).append((r.from_offset, r.until_offset))
        self._by_partition: dict[PartitionKey, tuple[Interval, ...]] = {
            key: coalesce(intervals) for key, intervals in sorted(loose.items())
        }

    @classmethod
    def _of(cls, by_partition: Mapping[PartitionKey, Iterable[Interval]]) -> RangeSet:
        """Build from disjoint, sorted and coalesced intervals."""
        new = cls.__new__(cls)
        new._by_partition = {key: kept for key in sorted(by_partition) if (kept := tuple(by_partition[key]))}
        return new

    @classmethod
    def of(cls, topic: str, partition: int, from_offset: int, until_offset: int) -> RangeSet:
        """Build the set of a single range; empty unless `until_offset` is above `from_offset`."""
        if until_offset <= from_offset:
            return cls()
        return cls([OffsetRange(topic, partition, from_offset, until_offset)])

    def __iter__(self) -> Iterator[OffsetRange]:
        for (topic, partition), intervals in self._by_partition.items():
            for start, end in intervals:
                yield OffsetRange(topic, partition, start, end)

    def __or__(self, other: RangeSet) -> RangeSet:
        merged: dict[PartitionKey, Iterable[Interval]] = dict(self._by_partition)
        for key, intervals in other._by_partition.items():
            own = self._by_partition.get(key)
            merged[key] = coalesce([*own, *intervals]) if own else intervals
        return RangeSet._of(merged)

    def __sub__(self, other: RangeSet) -> RangeSet:
        return RangeSet._of(
            {key: _subtract(own, other._by_partition.get(key, ())) for key, own in self._by_partition.items()}
        )

    def __and__(self, other: RangeSet) -> RangeSet:
        return self - (self - other)

    def __bool__(self) -> bool:
        return bool(self._by_partition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and self._by_partition == other._by_partition

    def __hash__(self) -> int:
        return hash(tuple(self._by_partition.items()))

    def __repr__(self) -> str:
        return f"RangeSet({', '.join(map(str, self))})"

    def __str__(self) -> str:
        return ", ".join(map(str, self)) or "(nothing)"

    @property
    def width(self) -> int:
        """The number of offsets in the set, including holes in the log."""
        return sum(end - start for intervals in self._by_partition.values() for start, end in intervals)

    @property
    def partitions(self) -> tuple[PartitionKey, ...]:
        """The (topic, partition) pairs with offsets in the set, sorted."""
        return tuple(self._by_partition)

    def intervals(self, topic: str, partition: int) -> tuple[Interval, ...]:
        """Return the (from, until) pairs of a partition, sorted."""
        return self._by_partition.get((topic, partition), ())

    def of_partition(self, topic: str, partition: int) -> RangeSet:
        """Return the part of the set in a partition."""
        return RangeSet._of({(topic, partition): self.intervals(topic, partition)})

    def gaps(self) -> RangeSet:
        """Return the holes between the first and the last offset of each partition."""
        holes = {
            key: [(end, start) for (_, end), (start, _) in itertools.pairwise(intervals)]
            for key, intervals in self._by_partition.items()
        }
        return RangeSet._of(holes)

    def first_missing(self, topic: str, partition: int, from_offset: int) -> int:
        """Return the least missing offset at or above `from_offset`."""
        for start, end in self.intervals(topic, partition):
            if start <= from_offset < end:
                return end
        return from_offset


def coalesce(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return the same points as disjoint, sorted, half-open intervals, neighbours joined."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return tuple(merged)


def shown(texts: Sequence[str], most: int, noun: str = "ranges") -> str:
    """Return the first texts joined, with the number of further texts."""
    further = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {further} {noun} more" if further > 0 else "")


def overlapping(intervals: Sequence[Interval], low: int | None, high: int | None) -> Sequence[Interval]:
    """Return the intervals, sorted and disjoint, with an overlap of [low, high]; None means no bound."""
    first = 0 if low is None else bisect_right(intervals, low, key=lambda interval: interval[1])
    end = len(intervals) if high is None else bisect_right(intervals, high, key=lambda interval: interval[0])
    return intervals[first:end]


def _subtract(intervals: Iterable[Interval], subtracted: Iterable[Interval]) -> Iterator[Interval]:
    """Yield the parts of sorted intervals outside of further sorted intervals."""
    holes = list(subtracted)
    first = 0
    for start, end in intervals:
        # Both are sorted: an interval that ends below this one ends below all that follow.
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        number = first
        while number < len(holes) and holes[number][0] < end:
            if holes[number][0] > start:
                yield start, holes[number][0]
            start = holes[number][1]
            number += 1
        if start < end:
            yield start, end
