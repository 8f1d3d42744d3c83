"""What a group still lacks of its topic: how much waits, how much of it is overdue, and what is gone for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_lakestream.core.ledger import Ledger, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.plan import TopicState, check_identity, check_log
from airflow_lakestream.core.ports import Boundary
from airflow_lakestream.core.ranges import RangeSet


@dataclass(frozen=True, slots=True)
class Backlog:
    """One topic of one ledger, against the topic as it is now.

    `lacking` are offsets that are not landed yet and can be read, holes in the log included; `overdue` those of them
    that are below every record of the last so many seconds; `lost` what Kafka has no more.
    """

    state: TopicState
    entry: TopicEntry
    lacking: RangeSet
    lost: RangeSet
    overdue: RangeSet = RangeSet()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.state.identity.topic


def backlog_of(ledger: Ledger, state: TopicState, table: str, bounds: Mapping[int, Boundary] | None = None) -> Backlog:
    """Return what a ledger lacks of a topic.

    :param bounds: by partition, where that begins which is not overdue yet.

    Raises TopicReplaced, LogTruncated.
    """
    topic = state.identity.topic
    check_identity(ledger, state.identity, table)
    entry = ledger.entry(state.identity)
    check_log(entry, state, table)
    missing = _wanted(entry, state) - entry.held
    lost = missing & union(RangeSet.of(topic, p, 0, m.low) for p, m in state.marks.items())
    return Backlog(state, entry, missing - lost, lost, (missing - lost) & overdue(topic, bounds or {}))


def overdue(topic: str, bounds: Mapping[int, Boundary]) -> RangeSet:
    """Return all offsets of a topic that are older than a time, which stands at these boundaries."""
    return union(RangeSet.of(topic, p, 0, bound.offset) for p, bound in bounds.items())


def topics_of(ledger: Ledger) -> tuple[str, ...]:
    """Return the topics that a ledger has landed, sorted."""
    return tuple(sorted({identity.topic for identity in ledger.topics}))


def _wanted(entry: TopicEntry, state: TopicState) -> RangeSet:
    marks = state.marks.items()
    return union(RangeSet.of(state.identity.topic, p, _begin(entry, state.identity, p, m.low), m.end) for p, m in marks)


def _begin(entry: TopicEntry, identity: TopicIdentity, partition: int, low: int) -> int:
    if entry.origin:
        # A partition that came after the origin was fixed begins at 0.
        return entry.origin.get(partition, 0)
    # A group that never resumed promises nothing of what lies between its ranges.
    held = entry.held.intervals(identity.topic, partition)
    return held[-1][1] if held else low
