"""One partition judged: what the ledgers say, what Kafka shows, what the table holds. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow.compute as pc

from airflow_lakestream.audit.tally import Segments, Tally
from airflow_lakestream.core.ranges import Interval, OffsetRange, RangeSet


@dataclass(frozen=True, slots=True)
class Doubled:
    """Offsets that have more rows than landings: `times` rows each."""

    from_offset: int
    until_offset: int
    times: int


@dataclass
class PartitionFacts:
    """What is known of one partition.

    `landed` is what the audited group's ledger holds, `required` how many landings of the topic's current incarnation
    hold an offset, over all groups, `allowed` how many of any incarnation. `readable` are the offsets at which Kafka
    showed a record, `shown` the ranges that it was read in; `rows` counts the table's rows.
    """

    topic: str
    partition: int
    landed: RangeSet = RangeSet()
    lost: RangeSet = RangeSet()
    forgotten: RangeSet = RangeSet()
    required: Tally = field(default_factory=Tally)
    allowed: Tally = field(default_factory=Tally)
    shown: RangeSet = RangeSet()
    readable: Tally = field(default_factory=Tally)
    rows: Tally = field(default_factory=Tally)


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """The verdict on one partition.

    `missing`: readable in Kafka, in the ledger, and fewer rows than landings. `doubled`: more rows than landings.
    `unexpected`: rows that no group's ledger knows. `not_verifiable`: landed, but Kafka shows that part of the log no
    more, or was not asked. `lost` and `forgotten` are the ledger's receipts, no damage.
    """

    topic: str
    partition: int
    missing: RangeSet = RangeSet()
    doubled: tuple[Doubled, ...] = ()
    unexpected: RangeSet = RangeSet()
    lost: RangeSet = RangeSet()
    forgotten: RangeSet = RangeSet()
    not_verifiable: RangeSet = RangeSet()
    present: RangeSet = RangeSet()
    rows: int = 0
    readable: int = 0
    rows_missing: int = 0
    rows_too_many: int = 0

    @property
    def is_damaged(self) -> bool:
        """Whether rows are missing, doubled or of unknown origin."""
        return bool(self.missing or self.doubled or self.unexpected)


def compare(facts: PartitionFacts) -> PartitionAudit:
    """Judge one partition."""
    topic, partition = facts.topic, facts.partition

    def tally(ranges: RangeSet) -> Tally:
        return Tally(ranges.intervals(topic, partition))

    def ranges(intervals: Iterable[Interval]) -> RangeSet:
        return RangeSet(OffsetRange(topic, partition, start, end) for start, end in intervals)

    segments = Segments(
        {
            "landed": tally(facts.landed),
            "forgotten": tally(facts.forgotten),
            "required": facts.required,
            "allowed": facts.allowed,
            "readable": facts.readable,
            "rows": facts.rows,
        }
    )
    n = segments.counts
    due = pc.and_(pc.greater(n["landed"], 0), pc.greater(n["readable"], 0))
    kept = pc.and_(due, pc.equal(n["forgotten"], 0))
    known = pc.greater(n["allowed"], 0)
    too_many = pc.and_(known, pc.greater(n["rows"], n["allowed"]))
    missing = pc.and_(kept, pc.less(n["rows"], n["required"]))
    unexpected = pc.and_(pc.invert(known), pc.greater(n["rows"], 0))
    return PartitionAudit(
        topic=topic,
        partition=partition,
        missing=ranges(segments.where(missing)),
        doubled=tuple(Doubled(*d) for d in segments.with_count(too_many, n["rows"])),
        unexpected=ranges(segments.where(unexpected)),
        lost=facts.lost,
        forgotten=facts.forgotten,
        not_verifiable=facts.landed - facts.shown,
        present=ranges(facts.rows.intervals()),
        rows=len(facts.rows),
        readable=segments.width(due),
        rows_missing=segments.total(missing, pc.subtract(n["required"], n["rows"])),
        rows_too_many=segments.total(pc.or_(too_many, unexpected), pc.subtract(n["rows"], n["allowed"])),
    )
