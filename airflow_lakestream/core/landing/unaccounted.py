"""Rows that no ledger accounts for, at positions that a group is about to land for the first time.

Another tool wrote them, or their ledger was reset. To land their records would put each of them in the table twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from airflow_lakestream.core.policies import TableFormat
from airflow_lakestream.core.ranges import Interval, RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal

# Kafka's offsets are signed 64-bit numbers; the greatest one is no record's.
OFFSETS_END = 2**63 - 1
# A file whose bounds span more partitions is read.
_MOST_PARTITIONS = 1_000
_BOXES_NAMED = 10


class Fate(Enum):
    """What a position is to a first landing."""

    ACCOUNTED = auto()
    BESIDE = auto()
    IN_THE_WAY = auto()


@dataclass(frozen=True, slots=True)
class Box:
    """So many rows in the partitions from a first to a last, at offsets from a lowest to a highest."""

    partitions: Interval
    offsets: Interval
    rows: int

    def __add__(self, other: Box) -> Box:
        offsets = min(self.offsets[0], other.offsets[0]), max(self.offsets[1], other.offsets[1])
        return Box(self.partitions, offsets, self.rows + other.rows)

    def text(self, topic: str) -> str:
        """Return what it says to people."""
        first, last = self.partitions
        where = f"[{first}]" if first == last else f"[{first}..{last}]"
        return f"{topic}{where} offsets {self.offsets[0]} to {self.offsets[1]} ({self.rows} rows)"


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rows of a topic are asked for.

    `known` are the positions that ledgers account for. In the way are rows at positions of `ranges`; without ranges,
    those at or above where the group begins: `begins` says that by partition, any other begins at 0.
    """

    topic: str
    known: RangeSet = RangeSet()
    begins: Mapping[int, int] = field(default_factory=dict)
    ranges: RangeSet | None = None

    def in_the_way(self, partition: int) -> tuple[Interval, ...]:
        """Return the offsets of a partition at which a row would be doubled, those accounted for included."""
        if self.ranges is not None:
            return self.ranges.intervals(self.topic, partition)
        return ((self.begins.get(partition, 0), OFFSETS_END),)

    def accounted(self, partition: int) -> tuple[Interval, ...]:
        """Return the offsets of a partition that a ledger accounts for."""
        return self.known.intervals(self.topic, partition)

    def fate(self, partitions: Interval, offsets: Interval) -> Fate | None:
        """Return what all rows within these bounds, ends included, are; None where only the rows can tell."""
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
    """Rows that no ledger accounts for: those in the way, and those beside what is to be landed."""

    in_the_way: tuple[Box, ...] = ()
    beside: tuple[Box, ...] = ()

    @classmethod
    def of(cls, boxes: Iterable[tuple[Fate, Box]]) -> Found:
        """Put together what several files hold."""
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
        """How many rows are beside."""
        return sum(box.rows for box in self.beside)


# Looks into a table as it was when its ledger was read.
LookForRows = Callable[[Asked], Found]


def no_rows(asked: Asked) -> Found:
    """Find nothing: there is no table, or its rows keep no positions."""
    return Found()


class RowsUnaccounted(LakestreamError, Terminal):
    """A first landing would double rows that another tool wrote; `boxes` says where they are."""

    def __init__(self, table: str, consumer_group: str, topic: str, boxes: Sequence[Box]) -> None:
        self.table, self.topic, self.boxes = table, topic, tuple(boxes)
        self.rows = sum(box.rows for box in boxes)
        super().__init__(
            f"{table} holds {self.rows} rows of {topic} that no consumer group's ledger accounts for, at offsets that "
            f"{consumer_group!r} would land: {texts(boxes, topic)}. Another tool wrote them, or their ledger was "
            "reset; to land these records would put each of them in the table twice. Nothing was read. "
            + _way_out(table, consumer_group, topic)
        )


def texts(boxes: Sequence[Box], topic: str) -> str:
    """Return where rows are, in words, the first places of many."""
    more = f" and {len(boxes) - _BOXES_NAMED} places more" if len(boxes) > _BOXES_NAMED else ""
    return ", ".join(box.text(topic) for box in boxes[:_BOXES_NAMED]) + more


def _way_out(table: str, consumer_group: str, topic: str) -> str:
    if TableFormat.of(table) is TableFormat.DELTA:
        return (
            "Stop the other tool. Where its rows hold all below certain offsets and none above, commit these offsets "
            f'for the group {consumer_group!r} in Kafka and begin with start_offset="committed"; else land into '
            "another table, or delete these rows. (`lakestream ledger rebuild` is for Iceberg tables.)"
        )
    return (
        "Stop the other tool, then make a ledger from its rows: `lakestream ledger rebuild --table "
        f"{table} --group {consumer_group} --topic {topic}` (with --kafka-conn and --iceberg-conn where they are not "
        "the defaults); the next run lands what the rows lack. Or land into another table."
    )
