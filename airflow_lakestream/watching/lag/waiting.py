"""What waits to be read of a topic, and what of it for too long. Sensors, `status` and metrics answer from here.

Overdue is any unread record from before a time, wherever it stands: producers give timestamps in any order. Where the
first unread record is older, that is proven. Else all of them are read, since no request to Kafka can tell that there
is none. A record dated beyond now has just come, and hides no other. One without a timestamp is older than any time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_lakestream.core.landing.plan import TopicState
from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.kafka.watch import First, KafkaWatch
from airflow_lakestream.watching.asking import Ask

# Offsets of a partition whose timestamps are read; where more are unread, they count as overdue.
MOST_READ = 100_000
# Holes at the beginning of what is unread that are looked behind, one after the other.
_HOLES = 5

Asking = Generator[Ask, Any, Any]


@dataclass(frozen=True)
class Unread:
    """What a consumer has not read of one topic.

    `firsts` are the first records of it, by partition, and `oldest` the least timestamps that were seen, in
    milliseconds since the epoch. `overdue` are those offsets of it that are proven to be from before the time that was
    asked for; `crowded` the partitions with more than could be looked at, all of which counts as overdue.
    """

    state: TopicState
    ranges: RangeSet
    lost: RangeSet
    firsts: Mapping[int, First] = field(default_factory=dict)
    oldest: Mapping[int, int] = field(default_factory=dict)
    overdue: RangeSet = RangeSet()
    crowded: frozenset[int] = frozenset()

    def records(self, partition: int) -> int:
        """Return how many offsets of a partition are unread: records, or holes between them."""
        return self._of(partition).width

    def _of(self, partition: int) -> RangeSet:
        return self.ranges.of_partition(self.state.identity.topic, partition)


@dataclass(frozen=True)
class Looking:
    """Looks at one topic through a watch; `conn_id` names the watch in questions."""

    conn_id: str
    watch: KafkaWatch
    state: TopicState

    def behind_holes(self, ranges: RangeSet, lost: RangeSet, *, anew: bool = False) -> Asking:
        """Find the first unread records: markers and aborted records in front of them, or alone, are no lag.

        Returns `Unread`, whose `oldest` are the first ones.
        """
        topic = self.state.identity.topic
        firsts: dict[int, First] = {}
        for _ in range(_HOLES):
            begins = {p: ranges.intervals(topic, p)[0][0] for _, p in ranges.partitions}
            asked = {p: begin for p, begin in begins.items() if p not in firsts or firsts[p].offset < begin}
            if not asked:
                break
            found = yield self._ask_firsts(asked, anew)
            for p in asked:
                first = found.get(p)
                if first is None:
                    if p in found:
                        ranges -= ranges.of_partition(topic, p)
                    firsts.pop(p, None)
                    continue
                ranges -= RangeSet.of(topic, p, 0, first.offset)
                firsts[p] = first
            if not any(p in found and found[p] for p in asked):
                break
        # With more holes than were looked behind, what was found last may be one that is read.
        firsts = {p: one for p, one in firsts.items() if [one.offset] == [a for a, _ in ranges.intervals(topic, p)[:1]]}
        return Unread(self.state, ranges, lost, firsts, {p: first.timestamp_ms for p, first in firsts.items()})

    def waiting(self, ranges: RangeSet, lost: RangeSet, before_ms: int | None) -> Asking:
        """Find what is unread, and what of it is from before a time.

        Without a time so many timestamps are read in all as of one partition with one. Returns `Unread`.
        """
        unread = yield from self.behind_holes(ranges, lost, anew=before_ms is not None)
        topic = self.state.identity.topic
        there = [p for _, p in unread.ranges.partitions]
        proven = [p for p in there if before_ms is not None and unread.oldest.get(p, before_ms) < before_ms]
        most = MOST_READ if before_ms is not None else MOST_READ // max(1, len(there))
        small = [p for p in there if p not in proven and unread.records(p) <= most]
        overdue = yield from self._below(unread, proven, before_ms)
        read = union(unread.ranges.of_partition(topic, p) for p in small)
        stamps = (yield self._ask_stamps(read, before_ms)) if read else {}
        oldest = dict(unread.oldest)
        for p, one in stamps.items():
            if one.oldest is not None:
                oldest[p] = one.oldest[1]
            if before_ms is not None:
                overdue |= one.before(topic, p, before_ms)
        crowded = frozenset(there).difference(proven, small) if before_ms is not None else frozenset[int]()
        overdue |= union(unread.ranges.of_partition(topic, p) for p in crowded)
        return replace(unread, oldest=oldest, overdue=overdue, crowded=crowded)

    def _below(self, unread: Unread, proven: list[int], before_ms: int | None) -> Asking:
        """Find the unread offsets below the first record that is young enough: all of them are overdue.

        That record may stand ahead of what is unread: then the first unread one is the only one that is proven.
        """
        if not proven or before_ms is None:
            return RangeSet()
        # To the second: sensors that look in the same moment ask the same.
        key = ("offsets at", self.conn_id, self.state.identity, before_ms // 1000)
        bounds = yield Ask(key, lambda: self.watch.offsets_at(self.state, before_ms))
        topic = self.state.identity.topic
        ends = {p: max(bounds.get(p, 0), unread.firsts[p].offset + 1) for p in proven}
        return unread.ranges & union(RangeSet.of(topic, p, 0, end) for p, end in ends.items())

    def _ask_firsts(self, positions: Mapping[int, int], anew: bool) -> Ask:
        ends = tuple((p, self.state.marks[p].end) for p in sorted(positions))
        key = ("firsts", self.conn_id, self.state.identity, tuple(sorted(positions.items())), ends, anew)
        return Ask(key, lambda: self.watch.firsts(self.state, positions, anew=anew))

    def _ask_stamps(self, ranges: RangeSet, before_ms: int | None) -> Ask:
        second = None if before_ms is None else before_ms // 1000
        key = ("stamps", self.conn_id, self.state.identity, ranges, second)
        return Ask(key, lambda: self.watch.stamps(self.state, ranges, before_ms))
