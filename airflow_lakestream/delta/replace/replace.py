"""A landing that replaces: in one version the rows of its ranges go out, and those read again come in."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_lakestream.core.ledger import Landing, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ports import CannotReplace, RangesNotLanded, ReplacedMeanwhile, StaleFiles
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.commit.guard import Target, check_fit, landing_actions
from airflow_lakestream.delta.commit.log import Action
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.replace.takeout import Finder
from airflow_lakestream.delta.write.files import Add
from airflow_lakestream.tables.replacing import what_it_replaces


@dataclass
class Replacement:
    """The actions of a landing that replaces, for one head after the other.

    :param since: the version that this run first saw.
    :param own: the landings that this run made itself.
    """

    store: Any
    table: str
    consumer_group: str
    landing: Landing
    target: Target
    files: Sequence[Add]
    finder: Finder
    since: int
    own: Collection[str]
    notes: dict[str, str] = field(default_factory=dict)
    # As it was last made: with the counts of what was taken out.
    made: Landing | None = None
    kept: Sequence[Add] = ()

    def make(self, head: Head | None) -> list[Action]:
        """Return them. Raises Conflict, ReplacedMeanwhile, CannotReplace, UnfitTable."""
        identity, ranges = what_it_replaces(self.landing)
        if head is None:
            raise StaleFiles(self.table, "the table was dropped")
        self._check_not_replaced(head, ranges)
        check_fit(head, self.target, self.table)
        self._check_ledger(head, identity, ranges)
        now = time.time_ns() // 1_000_000
        takeout = self.finder.find(head, _rows_landed(head), now)
        self.made, self.kept = self._completed(head, identity, takeout.rows), takeout.remainders
        adds = [{"add": dict(add)} for add in (*takeout.remainders, *self.files)]
        actions = [*takeout.removes, *adds]
        return landing_actions(
            head, self.target, self.consumer_group, self.made, actions, ("WRITE", {"mode": "Overwrite"}), self.notes
        )

    def _check_not_replaced(self, head: Head, ranges: RangeSet) -> None:
        at = ledger_store.previous_version(head, self.consumer_group)
        while at is not None and at > self.since:
            item = ledger_store.landing_at(self.store, at, self.consumer_group)
            if item is None:
                raise CannotReplace(
                    f"{self.table}: its log no longer has version {at}, so it can't be told whether another run "
                    f"replaced {ranges} meanwhile. Nothing was changed. Run it again, or keep the log longer."
                )
            landing, at = item
            replaced = union(entry.replaced & ranges for entry in landing.topics.values())
            if replaced and landing.landing_id not in self.own:
                raise ReplacedMeanwhile(self.table, replaced)

    def _check_ledger(self, head: Head, identity: TopicIdentity, ranges: RangeSet) -> None:
        ledger = ledger_store.read_ledger(head, self.consumer_group)
        if missing := ranges - ledger.entry(identity).landed:
            raise RangesNotLanded(self.table, missing)
        if any(ledger.entry(other).landed for other in ledger.others_of(identity.topic, identity)):
            raise _indistinct(self.table, f"rows of an earlier topic of the name {identity.topic!r}", ranges)
        for group in ledger_store.groups(head):
            topics = ledger_store.read_ledger(head, group).topics
            if group != self.consumer_group and any(
                one.landed for other, one in topics.items() if other.topic == identity.topic
            ):
                raise _indistinct(self.table, f"rows of {identity.topic!r} that group {group!r} landed", ranges)

    def _completed(self, head: Head, identity: TopicIdentity, rows: int) -> Landing:
        before = ledger_store.read_ledger(head, self.consumer_group).entry(identity)
        return with_removed(self.landing, identity, rows, before)


def with_removed(landing: Landing, identity: TopicIdentity, rows: int, before: TopicEntry) -> Landing:
    """Return the landing with the counts of what was taken out; `before` are the topic's books in the ledger."""
    entry = landing.topics[identity].with_removed(rows, before)
    return replace(landing, topics={**landing.topics, identity: entry})


def _rows_landed(head: Head) -> int:
    ledgers = (ledger_store.read_ledger(head, group) for group in ledger_store.groups(head))
    return sum(entry.counts.written for ledger in ledgers for entry in ledger.topics.values())


def _indistinct(table: str, problem: str, ranges: RangeSet) -> CannotReplace:
    return CannotReplace(
        f"{table} holds {problem}, too: which rows belong to {ranges} can't be told by topic, partition and offset. "
        "Nothing was changed."
    )
