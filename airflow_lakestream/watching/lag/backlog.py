"""What a group still lacks of its topic: how much is unread, how much of it is overdue, and what is lost."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_lakestream.core.landing.plan import TopicState, check_identity, check_log
from airflow_lakestream.core.ledger import Ledger, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ranges import RangeSet


@dataclass(frozen=True, slots=True)
class Backlog:
    """One topic of a ledger, compared with the topic now.

    `lacking` are offsets that are not landed yet and can be read, holes in the log included; `lost` are offsets that
    Kafka no longer has; `overdue` and `crowded` are as in `waiting.Unread`.
    """

    state: TopicState
    entry: TopicEntry
    lacking: RangeSet
    lost: RangeSet
    overdue: RangeSet = RangeSet()
    crowded: frozenset[int] = frozenset()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.state.identity.topic


def backlog_of(ledger: Ledger, state: TopicState, table: str) -> Backlog:
    """Return what a ledger lacks of a topic. Raises TopicReplaced, LogTruncated."""
    topic = state.identity.topic
    check_identity(ledger, state.identity, table)
    entry = ledger.entry(state.identity)
    check_log(entry, state, table)
    missing = _wanted(entry, state) - entry.held
    lost = missing & union(RangeSet.of(topic, p, 0, m.low) for p, m in state.marks.items())
    return Backlog(state, entry, missing - lost, lost)


def topics_of(ledger: Ledger) -> tuple[str, ...]:
    """Return the topics that a ledger has landed, sorted."""
    return tuple(sorted({identity.topic for identity in ledger.topics}))


def _wanted(entry: TopicEntry, state: TopicState) -> RangeSet:
    marks = state.marks.items()
    return union(RangeSet.of(state.identity.topic, p, _begin(entry, state.identity, p, m.low), m.end) for p, m in marks)


def _begin(entry: TopicEntry, identity: TopicIdentity, partition: int, low: int) -> int:
    if entry.origin:
        # A partition added after the origin was fixed begins at 0.
        return entry.origin.get(partition, 0)
    # A group that never resumed promises nothing about the offsets between its ranges.
    held = entry.held.intervals(identity.topic, partition)
    return held[-1][1] if held else low
