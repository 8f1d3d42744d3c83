"""Findings of an audit by topic: damage for a repair to fix, and damage to leave. Pure, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from airflow_lakestream.audit.books import TableLedgers
from airflow_lakestream.audit.compare import PartitionAudit
from airflow_lakestream.audit.result import AuditResult
from airflow_lakestream.audit.statistics import LostFile
from airflow_lakestream.core.ledger import TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ranges import OffsetRange, RangeSet


@dataclass(frozen=True, slots=True)
class TopicDamage:
    """The repairable damage of a topic.

    `missing`, `doubled` and `unexpected` are the audit's ranges without the ranges that are left alone. `beside` has a
    row and a rejected record, or several rejected ones. `gone` are landed offsets that Kafka no longer shows and that
    have neither; by the counts, `rows_gone` of them had a row. `rejected` are the damaged offsets with a rejected
    record; `rejects_lacking` is how many more the ledger counts than there are (negative: fewer). `odd` describes rows
    of the topic whose position no record can have.
    """

    identity: TopicIdentity
    entry: TopicEntry
    missing: RangeSet
    doubled: RangeSet
    unexpected: RangeSet
    gone: RangeSet
    rows_gone: int
    beside: RangeSet = RangeSet()
    rejected: RangeSet = RangeSet()
    rejects_lacking: int = 0
    odd: tuple[str, ...] = ()

    @property
    def ranges(self) -> RangeSet:
        """All offsets to read again."""
        return self.missing | self.doubled | self.beside | self.unexpected


@dataclass
class TableDamage:
    """The damage by topic, and descriptions of damage to leave alone.

    `lost` are the lost data files that go out of the table's metadata, since all their records are landed again or
    written off.
    """

    topics: list[TopicDamage] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    lost: list[LostFile] = field(default_factory=list)
    spares_files: bool = False


def damage_of(result: AuditResult, books: TableLedgers) -> TableDamage:
    """Sort the findings of a full audit into repairable damage and damage to leave alone."""
    damage = TableDamage()
    for topic in sorted({one.topic for one in result.partitions} & set(books.topics)):
        audits = [one for one in result.partitions if one.topic == topic]
        found = _of_topic(result, books, topic, audits, damage)
        if found is not None and (found.ranges or found.rows_gone or found.odd):
            damage.topics.append(found)
    strange = [one for one in result.odd if one.topic not in books.topics]
    damage.left += [f"{one.text}: of a topic that this group has not landed." for one in strange]
    if damage.spares_files or result.blind:
        damage.left += [f"{one.text}; not all can be landed again. Put the file back." for one in result.lost_files]
    else:
        damage.lost += result.lost_files
    return damage


def _of_topic(
    result: AuditResult, books: TableLedgers, topic: str, audits: list[PartitionAudit], whole: TableDamage
) -> TopicDamage | None:
    left = whole.left
    odd = tuple(one.text for one in result.odd if one.topic == topic)
    beside = union(one.both | one.rejected_twice for one in audits)
    missing, doubled = union(one.missing for one in audits), _doubled(audits) - beside
    unexpected = union(one.unexpected for one in audits)
    beyond = sum(max(0, c.expected - c.found) for c in result.counts if c.topic == topic)
    if not (missing or doubled or beside or unexpected or beyond or odd):
        return None
    identities = books.identities(topic)
    if len(identities) != 1:
        left.append(f"{topic}: several incarnations of it were landed, and no row says which one it is of.")
        whole.spares_files = True
        return None
    entry = books.own_entry(topic)
    theirs = books.landed_by_others(topic)
    for ranges, why in (
        ((missing | doubled | beside) & theirs, "another consumer group landed them, too, and no row says whose it is"),
        (
            (doubled | beside) & entry.forgotten,
            "there is a receipt that their rows were deleted on purpose: delete them",
        ),
        (doubled - entry.landed - theirs, "this group has not landed them"),
        ((missing | doubled | beside) & entry.adopted, "they were adopted, and a repair can't tell the tool's rows"),
    ):
        left += _left(ranges, why)
    counts = books.counts(topic)
    whole.spares_files |= bool(missing & theirs)
    if counts.skipped or counts.filtered:
        # A file that held each offset between its bounds once had a row for each.
        held = missing & union(one.ranges for one in result.lost_files)
        left += _left(missing - held, "which of them were skipped or filtered, the ledger does not tell")
        whole.spares_files |= any(not one.ranges for one in result.lost_files)
        missing, beyond = held, 0
    # Nothing distinguishes the rows of adopted offsets from other rows, so no adopted offset is known to lack a row.
    gone = (_without_rows(audits) & entry.landed) - theirs - entry.forgotten - entry.lost - entry.adopted
    if beyond and not gone:
        left.append(f"{topic}: {beyond} more rows are missing, of records that compaction has removed since.")
    damage = TopicDamage(
        identity=identities[0],
        entry=entry,
        missing=missing - theirs - entry.adopted,
        doubled=(doubled & entry.landed) - theirs - entry.forgotten - entry.adopted,
        unexpected=unexpected - entry.lost,
        gone=gone,
        rows_gone=min(beyond, gone.width),
        beside=(beside & entry.landed) - theirs - entry.forgotten - entry.adopted,
        odd=odd,
    )
    there = sum(one.with_rejects(entry.landed.of_partition(one.topic, one.partition)).width for one in audits)
    return replace(
        damage,
        rejected=union(one.with_rejects(damage.ranges) for one in audits),
        rejects_lacking=counts.rejected - there,
    )


def _doubled(audits: Iterable[PartitionAudit]) -> RangeSet:
    return RangeSet(
        OffsetRange(one.topic, one.partition, d.from_offset, d.until_offset) for one in audits for d in one.doubled
    )


def _without_rows(audits: Iterable[PartitionAudit]) -> RangeSet:
    """Return landed offsets gone from Kafka, with neither a row nor a rejected record."""
    asked = ((one, one.not_verifiable) for one in audits)
    return union(ranges - one.with_rows(ranges) - one.with_rejects(ranges) for one, ranges in asked)


def _left(ranges: RangeSet, why: str) -> Iterator[str]:
    if ranges:
        yield f"{ranges}: {why}."
