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

    `missing`, `doubled` and `unexpected` are the audit's ranges without the ranges that a repair leaves alone.
    `with_row_and_reject` are offsets with a row and a rejected record, or with several rejected records. `vanished` are
    landed offsets that Kafka no longer shows, with neither a row nor a rejected record; by the counts, `rows_vanished`
    of them had a row. `rejected` are the damaged offsets with a rejected record. `rejects_lacking` is the ledger's
    count of rejected records minus the records found. `impossible` describes rows of the topic whose position no record
    can have.
    """

    identity: TopicIdentity
    entry: TopicEntry
    missing: RangeSet
    doubled: RangeSet
    unexpected: RangeSet
    vanished: RangeSet
    rows_vanished: int
    with_row_and_reject: RangeSet = RangeSet()
    rejected: RangeSet = RangeSet()
    rejects_lacking: int = 0
    impossible: tuple[str, ...] = ()

    @property
    def ranges(self) -> RangeSet:
        """All offsets whose records a repair reads again."""
        return self.missing | self.doubled | self.with_row_and_reject | self.unexpected


@dataclass
class TableDamage:
    """The damage by topic, and descriptions of damage to leave alone.

    `lost` are the lost data files that a repair removes from the table's metadata, since all their records are landed
    again or get a receipt. `spares_files` is True if that is not sure for a record: then no lost file is removed.
    """

    topics: list[TopicDamage] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    lost: list[LostFile] = field(default_factory=list)
    spares_files: bool = False


def damage_of(result: AuditResult, ledgers: TableLedgers) -> TableDamage:
    """Sort the findings of a full audit into repairable damage and damage to leave alone.

    The lost files are all repaired, or all left alone: if one of their records may not be landed again, or if the audit
    could not read everything.
    """
    damage = TableDamage()
    for topic in sorted({audit.topic for audit in result.partitions} & set(ledgers.topics)):
        audits = [audit for audit in result.partitions if audit.topic == topic]
        topic_damage = _of_topic(result, ledgers, topic, audits, damage)
        if topic_damage is not None and (topic_damage.ranges or topic_damage.rows_vanished or topic_damage.impossible):
            damage.topics.append(topic_damage)
    of_unknown_topics = [rows for rows in result.impossible if rows.topic not in ledgers.topics]
    damage.left += [f"{rows.text}: of a topic that this group has not landed." for rows in of_unknown_topics]
    if damage.spares_files or result.blind:
        damage.left += [f"{file.text}; not all can be landed again. Put the file back." for file in result.lost_files]
    else:
        damage.lost += result.lost_files
    return damage


def _of_topic(
    result: AuditResult, ledgers: TableLedgers, topic: str, audits: list[PartitionAudit], table_damage: TableDamage
) -> TopicDamage | None:
    """Return the repairable damage of a topic, or None without any.

    :param table_damage: its `left` and `spares_files` are added to.
    """
    left = table_damage.left
    impossible = tuple(rows.text for rows in result.impossible if rows.topic == topic)
    with_row_and_reject = union(audit.both | audit.rejected_twice for audit in audits)
    # An offset with a row and rejected records is repaired as such, and not as doubled.
    missing, doubled = union(audit.missing for audit in audits), _doubled(audits) - with_row_and_reject
    unexpected = union(audit.unexpected for audit in audits)
    # The number of rows that the ledger counts, the table lacks, and no missing range explains.
    beyond = sum(max(0, count.expected - count.found) for count in result.counts if count.topic == topic)
    if not (missing or doubled or with_row_and_reject or unexpected or beyond or impossible):
        return None
    identities = ledgers.identities(topic)
    if len(identities) != 1:
        left.append(f"{topic}: several incarnations of it were landed, and the rows do not show which.")
        table_damage.spares_files = True
        return None
    entry = ledgers.own_entry(topic)
    landed_by_others = ledgers.landed_by_others(topic)
    # Damage to leave alone, with the reason. `TopicDamage` gets the ranges without it.
    for ranges, reason in (
        (
            (missing | doubled | with_row_and_reject) & landed_by_others,
            "another consumer group landed them, too, and the rows do not show their group",
        ),
        (
            (doubled | with_row_and_reject) & entry.forgotten,
            "there is a receipt that their rows were deleted on purpose: delete them",
        ),
        (doubled - entry.landed - landed_by_others, "this group has not landed them"),
        (
            (missing | doubled | with_row_and_reject) & entry.adopted,
            "they were adopted, and a repair can't identify the tool's rows",
        ),
    ):
        left += _left(ranges, reason)
    counts = ledgers.counts(topic)
    table_damage.spares_files |= bool(missing & landed_by_others)
    if counts.skipped or counts.filtered:
        # A lost file with known ranges had a row for each offset, so no record there was skipped or filtered.
        in_lost_files = missing & union(file.ranges for file in result.lost_files)
        left += _left(missing - in_lost_files, "the ledger does not record which of them were skipped or filtered")
        table_damage.spares_files |= any(not file.ranges for file in result.lost_files)
        missing, beyond = in_lost_files, 0
    # Nothing distinguishes the rows of adopted offsets from other rows, so no adopted offset is known to lack a row.
    vanished = (_without_rows(audits) & entry.landed) - landed_by_others - entry.forgotten - entry.lost - entry.adopted
    if beyond and not vanished:
        left.append(f"{topic}: {beyond} more rows are missing, of records that compaction has removed since.")
    damage = TopicDamage(
        identity=identities[0],
        entry=entry,
        missing=missing - landed_by_others - entry.adopted,
        doubled=(doubled & entry.landed) - landed_by_others - entry.forgotten - entry.adopted,
        unexpected=unexpected - entry.lost,
        vanished=vanished,
        rows_vanished=min(beyond, vanished.width),
        with_row_and_reject=(with_row_and_reject & entry.landed) - landed_by_others - entry.forgotten - entry.adopted,
        impossible=impossible,
    )
    rejects_found = sum(
        audit.with_rejects(entry.landed.of_partition(audit.topic, audit.partition)).width for audit in audits
    )
    return replace(
        damage,
        rejected=union(audit.with_rejects(damage.ranges) for audit in audits),
        rejects_lacking=counts.rejected - rejects_found,
    )


def _doubled(audits: Iterable[PartitionAudit]) -> RangeSet:
    return RangeSet(
        OffsetRange(audit.topic, audit.partition, doubled.from_offset, doubled.until_offset)
        for audit in audits
        for doubled in audit.doubled
    )


def _without_rows(audits: Iterable[PartitionAudit]) -> RangeSet:
    """Return landed offsets that Kafka no longer shows, with neither a row nor a rejected record."""
    unseen = ((audit, audit.not_verifiable) for audit in audits)
    return union(ranges - audit.with_rows(ranges) - audit.with_rejects(ranges) for audit, ranges in unseen)


def _left(ranges: RangeSet, reason: str) -> Iterator[str]:
    """Yield a sentence about damage to leave alone, or none without ranges."""
    if ranges:
        yield f"{ranges}: {reason}."
