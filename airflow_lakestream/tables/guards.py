"""What the ledgers at a table's head forbid, whatever its format: landings, and replaces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_lakestream.core.ledger import Landing, Ledger, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import CannotReplace, LedgerConflict, RangesNotLanded, StreamConflict, TypesConflict
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.source_types import other_meaning
from airflow_lakestream.tables.coordinates import COORDINATES


def check_landing(table: str, landing: Landing, own: Ledger, others: Iterable[Ledger]) -> None:
    """Refuse offsets that are landed already, by the group or by others. Raises LedgerConflict.

    Also a streaming query's batch that does not follow the one that the group has: StreamConflict; and a column of the
    source that is another one now: TypesConflict.

    :param others: the ledgers of the other groups; none where they may have the same offsets.
    """
    for identity, change in landing.topics.items():
        check_follows(table, change, own.entry(identity))
    if taken := own.overlap(landing):
        raise LedgerConflict(table, taken)
    if not landing.types_anew and (column := other_meaning(landing.types, own.types)) is not None:
        raise TypesConflict(table, column)
    changes = landing.topics.items()
    if taken := union(one.entry(identity).landed & change.landed for one in others for identity, change in changes):
        raise LedgerConflict(table, taken)


def check_follows(table: str, change: TopicEntry, before: TopicEntry) -> None:
    """Refuse a batch that does not follow what the group has, and records beside its query. Raises StreamConflict."""
    streamed, last = change.streamed, before.streamed
    if streamed is None:
        follows = last is None or not (change.held or change.replaced)
    elif last is None:
        follows = streamed.batch_id == 0 and not before.held
    else:
        follows = (last.query_id, last.batch_id + 1) == (streamed.query_id, streamed.batch_id)
    if not follows:
        raise StreamConflict(table, str(streamed or "a landing by another way"), last)


def what_it_replaces(landing: Landing) -> tuple[TopicIdentity, RangeSet]:
    """Return the one topic that a landing replaces ranges of, and the ranges."""
    changes = [(identity, entry) for identity, entry in landing.topics.items() if entry.replaced or entry.held]
    if len(changes) != 1 or changes[0][1].held or not changes[0][1].replaced:
        raise AssertionError(f"landing {landing.landing_id} is not one that replaces ranges of one topic only")
    return changes[0][0], changes[0][1].replaced


def check_replace(table: str, landing: Landing, consumer_group: str, ledgers: Mapping[str, Ledger]) -> None:
    """Refuse ranges that the group has not landed, and rows that could be somebody else's.

    Raises RangesNotLanded, CannotReplace.
    """
    identity, ranges = what_it_replaces(landing)
    topic, ledger = identity.topic, ledgers[consumer_group]
    if missing := ranges - ledger.entry(identity).landed:
        raise RangesNotLanded(table, missing)
    problems = [
        f"rows of {topic!r} that consumer group {group!r} landed"
        for group, other in ledgers.items()
        if group != consumer_group and any(e.landed for of, e in other.topics.items() if of.topic == topic)
    ]
    if any(ledger.entry(other).landed for other in ledger.others_of(topic, identity)):
        problems.insert(0, f"rows of an earlier topic of the name {topic!r}")
    if ledger.entry(identity).adopted & ranges:
        problems.append(f"rows of {topic!r} that were adopted from another tool and say nothing of their records")
    for problem in problems:
        raise CannotReplace(
            f"{table} holds {problem}, too: which rows belong to {ranges} can't be told by topic, partition and "
            "offset. Nothing was changed."
        )


def replaced_by_others(landings: Iterable[Landing], ranges: RangeSet, own: Collection[str]) -> RangeSet:
    """Return what landings of other runs replaced of the ranges; `own` are the ids of this run's landings."""
    others = [landing for landing in landings if landing.landing_id not in own]
    return union(entry.replaced & ranges for landing in others for entry in landing.topics.values())


def rows_landed(ledgers: Iterable[Ledger]) -> int:
    """Return how many rows a table got by its ledgers."""
    return sum(entry.counts.written for ledger in ledgers for entry in ledger.topics.values())


def completed(landing: Landing, rows: int, ledger: Ledger) -> Landing:
    """Return a landing that replaces with the counts of what it takes out: so many rows, and what else it replaces."""
    identity, _ = what_it_replaces(landing)
    entry = landing.topics[identity].with_removed(rows, ledger.entry(identity), landing.rejects_gone)
    return replace(landing, topics={**landing.topics, identity: entry})


def check_columns(columns: Sequence[str], table: str) -> None:
    """Raise CannotReplace where rows keep no topic, partition or offset."""
    if missing := [name for name in COORDINATES if name not in columns]:
        raise CannotReplace(
            f"{table} keeps no {', '.join(missing)}: which rows come from which records can't be told, so none can be "
            "replaced. Nothing was changed. Only tables landed with metadata_columns topic, partition and offset can."
        )
