"""Verdict on a partition, from the ledgers, Kafka's records and the table's rows. Pure, no I/O.

Rows with a position that no record can have are reported separately: another writer made them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from airflow_lakestream.audit.tally import OffsetTally, TallySegments
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import OffsetRange, RangeSet


@dataclass(frozen=True, slots=True)
class ImpossibleRows:
    """Rows of a topic and partition (NULL as None) with impossible positions, at offsets `low` to `high`.

    An impossible position has a negative partition or offset, the greatest 64-bit number as offset, or only a part of
    topic, partition and offset. `low` and `high` are None if no row has an offset.
    """

    topic: str | None
    partition: int | None
    low: int | None
    high: int | None
    rows: int

    def __add__(self, other: ImpossibleRows) -> ImpossibleRows:
        bounds = [bound for bound in (self.low, self.high, other.low, other.high) if bound is not None]
        low, high = (min(bounds), max(bounds)) if bounds else (None, None)
        return ImpossibleRows(self.topic, self.partition, low, high, self.rows + other.rows)

    @property
    def key(self) -> tuple[str | None, int | None]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def offsets(self) -> str:
        """The offsets in words."""
        if self.low is None:
            return "offset NULL"
        return f"offset {self.low}" if self.low == self.high else f"offsets {self.low} to {self.high}"

    @property
    def text(self) -> str:
        """The finding as text."""
        place = f"{_or_null(self.topic)}[{_or_null(self.partition)}]"
        return f"{place} {self.offsets} ({self.rows} rows), which no record has"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; None for NULL."""
        names = ("topic", "partition", "low", "high", "rows")
        return {name: getattr(self, name) for name in names}


def sorted_impossible(rows: dict[tuple[str | None, int | None], ImpossibleRows]) -> list[ImpossibleRows]:
    """Return the rows with impossible positions, sorted by topic and partition, NULL first."""
    return [rows[key] for key in sorted(rows, key=lambda key: tuple((value is not None, value) for value in key))]


def _or_null(value: object) -> object:
    return "NULL" if value is None else value


# The number of edges of the longest tally that are compared at a time.
_WINDOW = 200_000


@dataclass(frozen=True, slots=True)
class DoubledRange:
    """Offsets with more rows than landings: each has `times` rows."""

    from_offset: int
    until_offset: int
    times: int


@dataclass
class PartitionFacts:
    """Facts about a partition: ledger ranges, Kafka's records and the table's rows.

    `landed`, `lost` and `forgotten` are the ranges in the audited group's ledger, `adopted` the part of `landed` whose
    rows do not name their records. `before` are the offsets below the audited group's beginning. `required` counts, for
    each offset, the landings of the topic's current incarnation by all groups: at least that many rows must exist.
    `allowed` counts the landings of any incarnation: more rows must not exist. `readable` are the offsets at which
    Kafka showed a record, `shown` the ranges that were read. `rows` counts the table's rows, `rejected` the counting
    records of its reject table.
    """

    topic: str
    partition: int
    landed: RangeSet = RangeSet()
    lost: RangeSet = RangeSet()
    forgotten: RangeSet = RangeSet()
    adopted: RangeSet = RangeSet()
    before: RangeSet = RangeSet()
    required: OffsetTally = field(default_factory=OffsetTally)
    allowed: OffsetTally = field(default_factory=OffsetTally)
    shown: RangeSet = RangeSet()
    readable: OffsetTally = field(default_factory=OffsetTally)
    rows: OffsetTally = field(default_factory=OffsetTally)
    rejected: OffsetTally = field(default_factory=OffsetTally)


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """Verdict on a partition.

    `missing`: readable in Kafka and in the ledger, but with fewer rows and rejected records than landings. `doubled`:
    more rows than landings. `both`: a row and a rejected record, together more than landings. `rejected_twice`: no row,
    and more rejected records than landings. `unexpected`: rows that no group's ledger knows; `impossible`: rows whose
    position no record can have. `before`: rows without a ledger, below the group's beginning; another tool wrote them,
    and they do not count as damage; `rows_before` is their number. `not_verifiable`: landed, but Kafka no longer shows
    that part of the log, or was not asked; or without a row while the ledger counts skipped and filtered records, which
    have no row; or adopted. `lost` and `forgotten` are the ledger's receipts, and do not count as damage.

    `rows_missing` is the number of rows that `missing` lacks; `rows_too_many` the surplus rows in `doubled`, and all in
    `unexpected`. `readable` counts the landed offsets with a record in Kafka; `rejected` the rejected records;
    `rejected_too_many` the surplus in `both` and `rejected_twice`. `tally` and `rejects` count rows and rejected
    records by offset.

    Only of a table by key: `different` are the records whose row has other values, and `rows_unseen` is the number of
    rows whose records have left Kafka, so that they were not compared.
    """

    topic: str
    partition: int
    missing: RangeSet = RangeSet()
    different: RangeSet = RangeSet()
    rows_unseen: int = 0
    doubled: tuple[DoubledRange, ...] = ()
    both: RangeSet = RangeSet()
    rejected_twice: RangeSet = RangeSet()
    unexpected: RangeSet = RangeSet()
    impossible: ImpossibleRows | None = None
    before: RangeSet = RangeSet()
    lost: RangeSet = RangeSet()
    forgotten: RangeSet = RangeSet()
    not_verifiable: RangeSet = RangeSet()
    rows: int = 0
    readable: int = 0
    rows_missing: int = 0
    rows_too_many: int = 0
    rows_before: int = 0
    rejected: int = 0
    rejected_too_many: int = 0
    tally: OffsetTally = field(default_factory=OffsetTally, repr=False, compare=False)
    rejects: OffsetTally = field(default_factory=OffsetTally, repr=False, compare=False)

    @property
    def is_damaged(self) -> bool:
        """Whether rows are missing, doubled or of unknown origin, or rejected records are stored too often."""
        damage = self.missing or self.different or self.doubled or self.both or self.rejected_twice or self.unexpected
        return bool(damage) or self.impossible is not None

    def with_rows(self, ranges: RangeSet) -> RangeSet:
        """Return those of the given offsets that have rows."""
        return self._with_count(ranges, self.tally)

    def with_rejects(self, ranges: RangeSet) -> RangeSet:
        """Return those of the given offsets that have rejected records."""
        return self._with_count(ranges, self.rejects)

    def _with_count(self, ranges: RangeSet, counts: OffsetTally) -> RangeSet:
        """Return those of the given offsets whose count is not 0."""
        key = self.topic, self.partition
        segments = TallySegments({"ranges": OffsetTally(ranges.intervals(*key)), "counts": counts})
        has_count = pc.and_(pc.greater(segments.counts["ranges"], 0), pc.greater(segments.counts["counts"], 0))
        return RangeSet(OffsetRange(*key, start, end) for start, end in segments.where(has_count))


def judge_partition(facts: PartitionFacts) -> PartitionAudit:
    """Compare a partition's ledgers, Kafka records and rows; return the verdict.

    Offsets are compared in windows, for bounded memory.
    """
    topic, partition = facts.topic, facts.partition
    tallies = {
        "landed": OffsetTally(facts.landed.intervals(topic, partition)),
        "forgotten": OffsetTally(facts.forgotten.intervals(topic, partition)),
        "adopted": OffsetTally(facts.adopted.intervals(topic, partition)),
        "before": OffsetTally(facts.before.intervals(topic, partition)),
        "required": facts.required,
        "allowed": facts.allowed,
        "readable": facts.readable,
        "rows": facts.rows,
        "rejected": facts.rejected,
    }
    cuts = max((tally.cuts(_WINDOW) for tally in tallies.values()), key=len)
    borders = [None, *cuts, None]
    parts = [
        _compare(topic, partition, {name: tally.window(start, end) for name, tally in tallies.items()})
        for start, end in itertools.pairwise(borders)
    ]
    ranges: dict[str, Any] = {name: union(getattr(part, name) for part in parts) for name in _RANGES}
    counts = {name: sum(getattr(part, name) for part in parts) for name in _COUNTS}
    return PartitionAudit(
        topic=topic,
        partition=partition,
        doubled=_joined(doubled for part in parts for doubled in part.doubled),
        lost=facts.lost,
        forgotten=facts.forgotten,
        not_verifiable=(facts.landed - facts.shown) | facts.adopted,
        rows=len(facts.rows),
        rejected=len(facts.rejected),
        tally=facts.rows,
        rejects=facts.rejected,
        **ranges,
        **counts,
    )


# Results of the windows of a partition: ranges are joined, counts are added.
_RANGES = ("missing", "both", "rejected_twice", "unexpected", "before")
_COUNTS = ("readable", "rows_missing", "rows_too_many", "rows_before", "rejected_too_many")


def _compare(topic: str, partition: int, tallies: Mapping[str, OffsetTally]) -> PartitionAudit:
    """Return the verdict for a window of offsets.

    :param tallies: the counts of `judge_partition` by name, cut to the window.
    """
    segments = TallySegments(tallies)
    n = segments.counts
    # Offsets that the audited group has landed and that have a record in Kafka. A row is expected at each, unless the
    # ledger has a receipt for deleted rows, or another tool's rows do not name their records.
    is_due = pc.and_(pc.greater(n["landed"], 0), pc.greater(n["readable"], 0))
    is_expected = pc.and_(is_due, pc.and_(pc.equal(n["forgotten"], 0), pc.equal(n["adopted"], 0)))
    present = pc.add(n["rows"], n["rejected"])
    is_missing = pc.and_(is_expected, pc.less(present, n["required"]))
    is_landed = pc.greater(n["allowed"], 0)
    is_doubled = pc.and_(is_landed, pc.greater(n["rows"], n["allowed"]))
    is_unknown = pc.and_(pc.invert(is_landed), pc.greater(n["rows"], 0))
    is_before = pc.greater(n["before"], 0)
    is_others, is_unexpected = pc.and_(is_unknown, is_before), pc.and_(is_unknown, pc.invert(is_before))
    # A row and a rejected record of the same landing are one too many, although neither kind is doubled by itself.
    is_rejected_too_often = pc.and_(pc.greater(n["rejected"], 0), pc.greater(present, n["allowed"]))
    has_row = pc.greater(n["rows"], 0)

    def ranges(mask: object) -> RangeSet:
        return RangeSet(OffsetRange(topic, partition, start, end) for start, end in segments.where(mask))

    return PartitionAudit(
        topic=topic,
        partition=partition,
        missing=ranges(is_missing),
        doubled=tuple(DoubledRange(*d) for d in segments.with_count(is_doubled, n["rows"])),
        both=ranges(pc.and_(is_rejected_too_often, has_row)),
        rejected_twice=ranges(pc.and_(is_rejected_too_often, pc.invert(has_row))),
        unexpected=ranges(is_unexpected),
        before=ranges(is_others),
        readable=segments.width(is_due),
        rows_missing=segments.total(is_missing, pc.subtract(n["required"], present)),
        rows_too_many=segments.total(pc.or_(is_doubled, is_unexpected), pc.subtract(n["rows"], n["allowed"])),
        rows_before=segments.total(is_others, n["rows"]),
        rejected_too_many=segments.total(
            is_rejected_too_often, pc.min_element_wise(n["rejected"], pc.subtract(present, n["allowed"]))
        ),
    )


def _joined(doubled: Iterable[DoubledRange]) -> tuple[DoubledRange, ...]:
    """Return doubled ranges, joined if only a border between two windows separates them."""
    joined: list[DoubledRange] = []
    for current in doubled:
        last = joined[-1] if joined else None
        if last is not None and (last.until_offset, last.times) == (current.from_offset, current.times):
            joined[-1] = DoubledRange(last.from_offset, current.until_offset, current.times)
        else:
            joined.append(current)
    return tuple(joined)
