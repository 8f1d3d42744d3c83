"""Rows without a ledger, at offsets of a group's first landing.

Another tool wrote these rows, or their ledger was reset. Landing their records would put each into the table twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from airflow_lakestream.core.ranges import Interval, RangeSet, shown
from airflow_lakestream.exceptions import LakestreamError, Terminal

# Kafka's offsets are signed 64-bit numbers; no record has the greatest one.
OFFSETS_END = 2**63 - 1
# A file whose bounds span more partitions is read instead.
_MOST_PARTITIONS = 1_000
# Places of rows that an error names, at most.
_BOXES_NAMED = 10


class RowFate(Enum):
    """Meaning of a row's position for a first landing.

    `ACCOUNTED`: a ledger has the position. `IN_THE_WAY`: the landing would double the row. Else the row is outside.
    """

    ACCOUNTED = auto()
    OUTSIDE = auto()
    IN_THE_WAY = auto()


@dataclass(frozen=True, slots=True)
class RowBounds:
    """A number of rows within bounds of partitions and of offsets, ends included."""

    partitions: Interval
    offsets: Interval
    rows: int

    def __add__(self, other: RowBounds) -> RowBounds:
        offsets = min(self.offsets[0], other.offsets[0]), max(self.offsets[1], other.offsets[1])
        return RowBounds(self.partitions, offsets, self.rows + other.rows)

    def text(self, topic: str) -> str:
        """Return the place as text."""
        first, last = self.partitions
        where = f"[{first}]" if first == last else f"[{first}..{last}]"
        return f"{topic}{where} offsets {self.offsets[0]} to {self.offsets[1]} ({self.rows} rows)"


@dataclass(frozen=True, slots=True)
class ForeignRowQuery:
    """Query for a topic's rows without a ledger, before a first landing.

    `known` are the positions that ledgers account for. Rows at positions of `ranges` are in the way. Without ranges,
    rows at or above the group's beginning are in the way: `begins` has it by partition, 0 for the rest.
    """

    topic: str
    known: RangeSet = RangeSet()
    begins: Mapping[int, int] = field(default_factory=dict)
    ranges: RangeSet | None = None

    def in_the_way(self, partition: int) -> tuple[Interval, ...]:
        """Return a partition's intervals to land: the ranges, or all offsets from the beginning on.

        They include offsets in a ledger: `accounted` has these.
        """
        if self.ranges is not None:
            return self.ranges.intervals(self.topic, partition)
        return ((self.begins.get(partition, 0), OFFSETS_END),)

    def accounted(self, partition: int) -> tuple[Interval, ...]:
        """Return a partition's offsets in ledgers."""
        return self.known.intervals(self.topic, partition)

    def fate(self, partitions: Interval, offsets: Interval) -> RowFate | None:
        """Return the common fate of all rows within these bounds, ends included.

        None if the rows have to be read: positions within the bounds differ in fate, the bounds have too many
        partitions, or some positions are impossible.
        """
        first, last = partitions
        low, high = offsets
        if first < 0 or low < 0 or high >= OFFSETS_END or last - first >= _MOST_PARTITIONS:
            return None
        fates = {self._fate(partition, low, high) for partition in range(first, last + 1)}
        return fates.pop() if len(fates) == 1 else None

    def _fate(self, partition: int, low: int, high: int) -> RowFate | None:
        """Return the common fate of rows at a partition's offsets from `low` to `high`, or None if they differ."""
        in_ledgers, to_land = self.accounted(partition), self.in_the_way(partition)
        if any(start <= low and high < end for start, end in in_ledgers):
            return RowFate.ACCOUNTED
        if any(start <= high and low < end for start, end in in_ledgers):
            return None
        if any(start <= low and high < end for start, end in to_land):
            return RowFate.IN_THE_WAY
        return None if any(start <= high and low < end for start, end in to_land) else RowFate.OUTSIDE


@dataclass(frozen=True, slots=True)
class UnaccountedRows:
    """Rows without a ledger: at offsets to land (in the way), and at different offsets."""

    in_the_way: tuple[RowBounds, ...] = ()
    outside: tuple[RowBounds, ...] = ()

    @classmethod
    def of(cls, boxes: Iterable[tuple[RowFate, RowBounds]]) -> UnaccountedRows:
        """Combine the rows of several files: bounds of the same fate and partitions are joined."""
        joined: dict[tuple[RowFate, Interval], RowBounds] = {}
        for fate, box in boxes:
            key = fate, box.partitions
            joined[key] = joined[key] + box if key in joined else box
        kinds = {
            kind: tuple(joined[key] for key in sorted(joined, key=lambda key: key[1]) if key[0] is kind)
            for kind in (RowFate.IN_THE_WAY, RowFate.OUTSIDE)
        }
        return cls(kinds[RowFate.IN_THE_WAY], kinds[RowFate.OUTSIDE])

    @property
    def foreign_rows(self) -> int:
        """The number of rows at offsets outside the landing."""
        return sum(box.rows for box in self.outside)


# Queries the table in the state in which its ledger was read.
LookForRows = Callable[[ForeignRowQuery], UnaccountedRows]


def no_rows(query: ForeignRowQuery) -> UnaccountedRows:
    """Return an empty result for any query: for a missing table, or for rows without positions."""
    return UnaccountedRows()


class RowsUnaccounted(LakestreamError, Terminal):
    """A first landing would double rows of another tool; `boxes` has the rows' positions."""

    def __init__(self, table: str, consumer_group: str, topic: str, boxes: Sequence[RowBounds]) -> None:
        self.table, self.topic, self.boxes = table, topic, tuple(boxes)
        self.rows = sum(box.rows for box in boxes)
        super().__init__(
            f"{table} holds {self.rows} rows of {topic} that no consumer group's ledger accounts for, at offsets that "
            f"{consumer_group!r} would land: {texts(boxes, topic)}. Another tool wrote them, or their ledger was "
            "reset; landing these records would put each of them in the table twice. Nothing was read. "
            + _way_out(table, consumer_group, topic)
        )


def texts(boxes: Sequence[RowBounds], topic: str) -> str:
    """Return the positions of rows as text, limited to the first places."""
    return shown([box.text(topic) for box in boxes], _BOXES_NAMED, "places")


def _way_out(table: str, consumer_group: str, topic: str) -> str:
    return (
        f"Stop the other tool, then give its rows a ledger: `lakestream adopt --table {table} --group {consumer_group} "
        f"--topic {topic} --from rows` (with options of connections other than the defaults) shows what it would "
        "write, and writes it with --yes; the next run lands what the rows lack. Or land into another table."
    )
