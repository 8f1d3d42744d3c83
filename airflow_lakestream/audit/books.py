"""All ledgers of a table: the offset ranges of the audited consumer group, and those of any group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyiceberg.table import Table

from airflow_lakestream.audit.compare import PartitionFacts
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Counts, Ledger, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ranges import PartitionKey, RangeSet
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.iceberg import ledger_store


class NoLedger(LakestreamError, Terminal):
    """The group has no ledger on the table, or the ledger does not have the topic."""

    def __init__(self, table: str, consumer_group: str, known: tuple[str, ...], topic: str | None = None) -> None:
        lack = "no ledger" if topic is None else f"no offsets of topic {topic!r} in its ledger"
        groups = f"Groups with a ledger there: {', '.join(known)}." if known else "No group has a ledger there."
        super().__init__(f"consumer group {consumer_group!r} has {lack} on {table}. {groups}")


@dataclass(frozen=True)
class TableLedgers:
    """Ledgers of all groups at a snapshot; `group` is the audited group."""

    group: str
    ledgers: dict[str, Ledger]

    @classmethod
    def of(cls, table: Table, group: str, topic: str | None) -> TableLedgers:
        """Read the ledgers at the table's head. Raises NoLedger, UndecidedLedger and UnreadableLedger."""
        names = sorted({*groups_of(table), group})
        ledgers = {name: ledger_store.read_ledger(table, name) for name in names}
        return cls.made(".".join(table.name()), group, ledgers, topic)

    @classmethod
    def made(cls, table: str, group: str, ledgers: dict[str, Ledger], topic: str | None) -> TableLedgers:
        """Return the ledgers of all groups. Raises NoLedger if the audited group has no ledger, or not of the topic.

        :param topic: the audited topic, or None for all topics.
        """
        table_ledgers = cls(group, ledgers)
        known = tuple(name for name, ledger in ledgers.items() if ledger.topics)
        if not table_ledgers.own.topics:
            raise NoLedger(table, group, known)
        if topic is not None and topic not in table_ledgers.topics:
            raise NoLedger(table, group, known, topic)
        return table_ledgers

    @property
    def own(self) -> Ledger:
        """The audited group's ledger."""
        return self.ledgers[self.group]

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the audited group, sorted."""
        return tuple(sorted({identity.topic for identity in self.own.topics}))

    @property
    def known_topics(self) -> frozenset[str]:
        """The topics of all groups."""
        return frozenset(identity.topic for _, identity, _ in self.entries())

    def identities(self, topic: str) -> tuple[TopicIdentity, ...]:
        """Return the incarnations of a topic in the audited group's ledger."""
        return tuple(identity for identity in self.own.topics if identity.topic == topic)

    def own_entry(self, topic: str) -> TopicEntry:
        """Return the audited group's ledger entry of a topic, all incarnations together."""
        return sum((self.own.entry(identity) for identity in self.identities(topic)), TopicEntry())

    def landed(self, identity: TopicIdentity) -> RangeSet:
        """Return the ranges of an incarnation landed by the audited group."""
        return self.own.entry(identity).landed

    def allowed(self, key: PartitionKey, identity: TopicIdentity | None = None) -> OffsetTally:
        """Count, for each offset of a partition, the landings of all groups that include it.

        :param identity: count only landings of this incarnation; None for all incarnations.
        """
        tally = OffsetTally()
        for _, landed_identity, entry in self.entries():
            if identity in (None, landed_identity):
                for start, end in entry.landed.intervals(*key):
                    tally.add_interval(start, end)
        return tally

    def counts(self, topic: str | None = None) -> Counts:
        """Return the counts of all groups together, for a topic, or for all topics if `topic` is None."""
        return sum((entry.counts for _, identity, entry in self.entries() if topic in (None, identity.topic)), Counts())

    def partitions(self, topics: Iterable[str]) -> set[PartitionKey]:
        """Return the topics' partitions with landed or lost offsets, or a beginning, in the audited group's ledger."""
        partitions: set[PartitionKey] = set()
        for topic in topics:
            entry = self.own_entry(topic)
            partitions |= {
                *entry.landed.partitions,
                *entry.lost.partitions,
                *((topic, partition) for partition in entry.origin),
            }
        return partitions

    def complete(self, facts: PartitionFacts) -> PartitionFacts:
        """Return the facts of a partition, with the audited group's ledger ranges filled in."""
        entry = self.own_entry(facts.topic)
        key = facts.topic, facts.partition
        return replace(
            facts,
            landed=entry.landed.of_partition(*key),
            lost=entry.lost.of_partition(*key),
            forgotten=entry.forgotten.of_partition(*key),
            adopted=entry.adopted.of_partition(*key),
            before=self.before(facts.topic).of_partition(*key),
        )

    def before(self, topic: str) -> RangeSet:
        """Return a topic's offsets below the origin, where the audited group began; rows there are another tool's."""
        return union(
            RangeSet.of(topic, partition, 0, offset) for partition, offset in self.own_entry(topic).origin.items()
        )

    def passed_over(self, topic: str) -> RangeSet:
        """Return the offsets between the audited group's first landed offset and its origin, neither landed nor lost.

        A group has such offsets if a landing of explicit ranges or intervals came before the first resuming run.
        """
        entry = self.own_entry(topic)
        partitions = [partition for name, partition in entry.held.partitions if name == topic]
        firsts = {partition: entry.held.intervals(topic, partition)[0][0] for partition in partitions}
        below = (RangeSet.of(topic, p, start, entry.origin.get(p, 0)) for p, start in firsts.items())
        return union(below) - entry.held

    def landed_by_anyone(self, topic: str) -> RangeSet:
        """Return all offsets of a topic's name landed by any group, of any incarnation."""
        return union(entry.landed for _, identity, entry in self.entries() if identity.topic == topic)

    def landed_by_others(self, topic: str) -> RangeSet:
        """Return all offsets of a topic's name landed by groups except the audited group, of any incarnation."""
        return union(
            entry.landed for group, identity, entry in self.entries() if group != self.group and identity.topic == topic
        )

    def entries(self) -> Iterator[tuple[str, TopicIdentity, TopicEntry]]:
        """Yield group, topic incarnation and ledger entry of each entry in any ledger."""
        for group, ledger in self.ledgers.items():
            for identity, entry in ledger.topics.items():
                yield group, identity, entry


def check_group(table: Table, group: str) -> None:
    """Raise NoLedger if the table has no trace of a group."""
    if group not in (known := groups_of(table)):
        raise NoLedger(".".join(table.name()), group, known)


def groups_of(table: Table) -> tuple[str, ...]:
    """Return the groups with a ledger property or with landings in snapshots, sorted."""
    in_summaries = {
        group
        for snapshot in table.metadata.snapshots
        if snapshot.summary and (group := snapshot.summary.additional_properties.get(codec.SUMMARY_GROUP))
    }
    return tuple(sorted({*ledger_store.groups(table), *in_summaries}))
