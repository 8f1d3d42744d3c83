"""Checks of landings and replaces against the ledgers at a table's head, for every table format."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_lakestream.core.ledger import Landing, Ledger, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import (
    CannotReplace,
    LedgerConflict,
    RangesNotLanded,
    RemovedMeanwhile,
    StreamConflict,
    TypesConflict,
)
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.source_types import other_meaning
from airflow_lakestream.tables.coordinates import COORDINATES


def check_landing(table: str, landing: Landing, own: Ledger, others: Iterable[Ledger]) -> None:
    """Refuse offsets already landed by this group or by another group. Raises LedgerConflict.

    Also refuse a streaming query's batch that does not follow the group's last batch (StreamConflict), and a source's
    column whose type has another meaning now (TypesConflict).

    :param own: the ledger of the landing's own group at the table's head.
    :param others: the ledgers of the other groups; empty if other groups may land the same offsets.
    """
    for identity, change in landing.topics.items():
        check_follows(table, change, own.entry(identity))
    if landed := own.overlap(landing):
        raise LedgerConflict(table, landed)
    if not landing.replaces_types and (column := other_meaning(landing.types, own.types)) is not None:
        raise TypesConflict(table, column)
    # Offsets that another group gave up have no rows in the table, so only landed offsets are in the way.
    changes = landing.topics.items()
    overlaps = (ledger.entry(identity).landed & change.landed for ledger in others for identity, change in changes)
    if landed := union(overlaps):
        raise LedgerConflict(table, landed)


def check_follows(table: str, change: TopicEntry, before: TopicEntry) -> None:
    """Refuse a landing out of sequence with a group's streaming batches. Raises StreamConflict.

    A streaming batch must be the next batch of the same query, or batch 0 of a group that holds no offsets of the
    topic. Any other landing must not add or replace offsets of a group whose rows a streaming query makes.

    :param change: the landing's entry of a topic.
    :param before: the group's ledger entry of the topic at the table's head.
    """
    streamed, last = change.streamed, before.streamed
    if streamed is None:
        follows = last is None or not (change.held or change.replaced)
    elif last is None:
        follows = streamed.batch_id == 0 and not before.held
    else:
        follows = (last.query_id, last.batch_id + 1) == (streamed.query_id, streamed.batch_id)
    if not follows:
        raise StreamConflict(table, str(streamed or "a landing by another way"), last)


def replaced_ranges(landing: Landing) -> tuple[TopicIdentity, RangeSet]:
    """Return the topic and the replaced ranges of a landing.

    The landing must replace ranges of a single topic, and add no offsets. Else an AssertionError is raised.
    """
    changes = [(identity, entry) for identity, entry in landing.topics.items() if entry.replaced or entry.held]
    if len(changes) != 1 or changes[0][1].held or not changes[0][1].replaced:
        raise AssertionError(f"landing {landing.landing_id} is not one that replaces ranges of one topic only")
    return changes[0][0], changes[0][1].replaced


def check_replace(
    table: str, landing: Landing, consumer_group: str, ledgers: Mapping[str, Ledger], *, keeps_removed: bool = False
) -> None:
    """Refuse a replace of ranges not landed by the group, and of ranges with unidentifiable rows.

    A row can't be identified by its position if another group landed records of the topic, if this group landed records
    of an earlier topic of the name, or if a row in the ranges was adopted without a position.

    Raises RangesNotLanded, RemovedMeanwhile, and CannotReplace for unidentifiable rows.

    :param ledgers: the ledgers of all groups of the table; `consumer_group` must have an entry, maybe empty.
    :param keeps_removed: refuse ranges with receipts of removed rows.
    """
    identity, ranges = replaced_ranges(landing)
    topic, ledger = identity.topic, ledgers[consumer_group]
    if missing := ranges - ledger.entry(identity).landed:
        raise RangesNotLanded(table, missing)
    if keeps_removed and (removed := ranges & ledger.entry(identity).forgotten):
        raise RemovedMeanwhile(table, removed)
    problems = [
        f"rows of {topic!r} that consumer group {group!r} landed"
        for group, other in ledgers.items()
        if group != consumer_group and any(e.landed for key, e in other.topics.items() if key.topic == topic)
    ]
    if any(ledger.entry(other).landed for other in ledger.other_incarnations(topic, identity)):
        problems.insert(0, f"rows of an earlier topic of the name {topic!r}")
    if ledger.entry(identity).adopted & ranges:
        problems.append(f"rows of {topic!r} that were adopted from another tool and do not name their records")
    for problem in problems:
        raise CannotReplace(
            f"{table} holds {problem}, too: the rows of {ranges} can't be identified by topic, partition and "
            "offset. Nothing was changed."
        )


def replaced_by_others(landings: Iterable[Landing], ranges: RangeSet, own: Collection[str]) -> RangeSet:
    """Return the part of `ranges` replaced by landings outside of this run.

    :param landings: the group's landings since this run first looked at the table.
    :param own: the ids of this run's landings, which do not count.
    """
    others = [landing for landing in landings if landing.landing_id not in own]
    return union(entry.replaced & ranges for landing in others for entry in landing.topics.values())


def rows_landed(ledgers: Iterable[Ledger]) -> int:
    """Return the number of rows in a table according to the ledgers."""
    return sum(entry.counts.written for ledger in ledgers for entry in ledger.topics.values())


def completed(landing: Landing, rows: int, ledger: Ledger) -> Landing:
    """Return a replacing landing, completed by the counts of removed rows and of replaced records without rows.

    :param rows: the number of rows taken out of the table.
    :param ledger: the group's ledger before the replace.
    """
    identity, _ = replaced_ranges(landing)
    entry = landing.topics[identity].with_removed(rows, ledger.entry(identity), landing.rejects_gone)
    return replace(landing, topics={**landing.topics, identity: entry})


def check_columns(columns: Sequence[str], table: str) -> None:
    """Raise CannotReplace if the table lacks the column of the topic, partition or offset."""
    if missing := [name for name in COORDINATES if name not in columns]:
        raise CannotReplace(
            f"{table} keeps no {', '.join(missing)}: the record of each row is unknown, so no row can be "
            "replaced. Nothing was changed. Only tables landed with metadata_columns topic, partition and offset can."
        )
