"""Rows without a ledger, at positions that a group is about to land for the first time.

Another tool wrote them, or their ledger was reset. Landing these records would put each of them in the table twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.core.ranges import Interval, RangeSet, shown
from airflow_lakestream.exceptions import LakestreamError, Terminal

# Kafka's offsets are signed 64-bit numbers; no record has the greatest one.
OFFSETS_END = 2**63 - 1
# A file whose bounds span more partitions is read instead.
_MOST_PARTITIONS = 1_000
_BOXES_NAMED = 10


class Fate(Enum):
    """What a row at a position means to a first landing."""

    ACCOUNTED = auto()
    BESIDE = auto()
    IN_THE_WAY = auto()


@dataclass(frozen=True, slots=True)
class Box:
    """A number of rows within bounds of partitions and of offsets, ends included."""

    partitions: Interval
    offsets: Interval
    rows: int

    def __add__(self, other: Box) -> Box:
        offsets = min(self.offsets[0], other.offsets[0]), max(self.offsets[1], other.offsets[1])
        return Box(self.partitions, offsets, self.rows + other.rows)

    def text(self, topic: str) -> str:
        """Return the place as text."""
        first, last = self.partitions
        where = f"[{first}]" if first == last else f"[{first}..{last}]"
        return f"{topic}{where} offsets {self.offsets[0]} to {self.offsets[1]} ({self.rows} rows)"


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rows of a topic to look for.

    `known` are the positions that ledgers account for. In the way are rows at positions of `ranges`. Without ranges,
    rows at or above the group's beginning are in the way: `begins` has it by partition, 0 for any other.
    """

    topic: str
    known: RangeSet = RangeSet()
    begins: Mapping[int, int] = field(default_factory=dict)
    ranges: RangeSet | None = None

    def in_the_way(self, partition: int) -> tuple[Interval, ...]:
        """Return the offsets of a partition at which a row would be doubled, including those accounted for."""
        if self.ranges is not None:
            return self.ranges.intervals(self.topic, partition)
        return ((self.begins.get(partition, 0), OFFSETS_END),)

    def accounted(self, partition: int) -> tuple[Interval, ...]:
        """Return the offsets of a partition that a ledger accounts for."""
        return self.known.intervals(self.topic, partition)

    def fate(self, partitions: Interval, offsets: Interval) -> Fate | None:
        """Return the fate of all rows within these bounds, ends included; None if only reading the rows can tell."""
        first, last = partitions
        low, high = offsets
        if first < 0 or low < 0 or high >= OFFSETS_END or last - first >= _MOST_PARTITIONS:
            return None
        fates = {self._fate(partition, low, high) for partition in range(first, last + 1)}
        return fates.pop() if len(fates) == 1 else None

    def _fate(self, partition: int, low: int, high: int) -> Fate | None:
        known, wanted = self.accounted(partition), self.in_the_way(partition)
        if any(start <= low and high < end for start, end in known):
            return Fate.ACCOUNTED
        if any(start <= high and low < end for start, end in known):
            return None
        if any(start <= low and high < end for start, end in wanted):
            return Fate.IN_THE_WAY
        return None if any(start <= high and low < end for start, end in wanted) else Fate.BESIDE


@dataclass(frozen=True, slots=True)
class Found:
    """Rows without a ledger: those in the way, and those beside what is to be landed."""

    in_the_way: tuple[Box, ...] = ()
    beside: tuple[Box, ...] = ()

    @classmethod
    def of(cls, boxes: Iterable[tuple[Fate, Box]]) -> Found:
        """Combine what several files hold."""
        joined: dict[tuple[Fate, Interval], Box] = {}
        for fate, box in boxes:
            key = fate, box.partitions
            joined[key] = joined[key] + box if key in joined else box
        kinds = {
            kind: tuple(joined[key] for key in sorted(joined, key=lambda key: key[1]) if key[0] is kind)
            for kind in (Fate.IN_THE_WAY, Fate.BESIDE)
        }
        return cls(kinds[Fate.IN_THE_WAY], kinds[Fate.BESIDE])

    @property
    def rows_beside(self) -> int:
        """The number of rows beside."""
        return sum(box.rows for box in self.beside)


# Looks into the table as it was when its ledger was read.
LookForRows = Callable[[Asked], Found]


def no_rows(asked: Asked) -> Found:
    """Return nothing: there is no table, or its rows keep no positions."""
    return Found()


class RowsUnaccounted(LakestreamError, Terminal):
    """A first landing would double rows that another tool wrote; `boxes` says where they are."""

    def __init__(self, table: str, consumer_group: str, topic: str, boxes: Sequence[Box]) -> None:
        self.table, self.topic, self.boxes = table, topic, tuple(boxes)
        self.rows = sum(box.rows for box in boxes)
        super().__init__(
            f"{table} holds {self.rows} rows of {topic} that no consumer group's ledger accounts for, at offsets that "
            f"{consumer_group!r} would land: {texts(boxes, topic)}. Another tool wrote them, or their ledger was "
            "reset; landing these records would put each of them in the table twice. Nothing was read. "
            + _way_out(table, consumer_group, topic)
        )


def texts(boxes: Sequence[Box], topic: str) -> str:
    """Return where rows are, in words; of many places the first."""
    return shown([box.text(topic) for box in boxes], _BOXES_NAMED, "places")


def _way_out(table: str, consumer_group: str, topic: str) -> str:
    conn = "--storage-conn" if TableFormat.of(table) is TableFormat.DELTA else "--iceberg-conn"
    return (
        f"Stop the other tool, then give its rows a ledger: `lakestream adopt --table {table} --group {consumer_group} "
        f"--topic {topic} --from rows` (with --kafka-conn and {conn} where they differ from the defaults) says what it "
        "would write, and with --yes does; the next run lands what the rows lack. Or land into another table."
    )
