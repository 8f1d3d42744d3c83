"""Backlog of a group in a topic, and the overdue part. Sensors, `status` and metrics use this.

Overdue is any unread record with a timestamp before a given time, at any offset: producers send timestamps in any
order. If the first unread record is older, no more proof is needed. Otherwise all are read, since no request to Kafka
answers whether an older record exists behind a younger one. If they are too many or too large for that, only the one in
the middle and the last are read, and others do not count as overdue. A record dated in the future counts as just
arrived, and does not hide others. A record without a timestamp is older than any time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_lakestream.core.landing.plan import TopicState, check_identity, check_log
from airflow_lakestream.core.ledger import Ledger, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.pieces import at_most_offsets
from airflow_lakestream.kafka.source import CLOCK_SKEW_MS
from airflow_lakestream.kafka.watch import FirstRecord, KafkaWatch
from airflow_lakestream.watching.asking import LookQuestion
from airflow_lakestream.watching.causes import StreamCause, StreamReason, format_ranges, partitions_text, span


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """A topic of a ledger, compared with the topic now.

    `lacking` are offsets that are not landed yet and can be read, holes in the log included; `lost` are offsets that
    Kafka no longer has; `overdue` and `unknown` are as in `UnreadOffsets`.
    """

    state: TopicState
    entry: TopicEntry
    lacking: RangeSet
    lost: RangeSet
    overdue: RangeSet = RangeSet()
    unknown: frozenset[int] = frozenset()

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.state.identity.topic


def backlog_of(ledger: Ledger, state: TopicState, table: str) -> TopicBacklog:
    """Return the backlog of a topic by a ledger.

    :param table: the table's name, for the errors.

    Raises TopicReplaced if the ledger has the topic with another id, LogTruncated if the log ends below landed offsets.
    """
    topic = state.identity.topic
    check_identity(ledger, state.identity, table)
    entry = ledger.entry(state.identity)
    check_log(entry, state, table)
    missing = _wanted(entry, state) - entry.held
    lost = missing & union(RangeSet.of(topic, p, 0, m.low) for p, m in state.marks.items())
    return TopicBacklog(state, entry, missing - lost, lost)


def topics_of(ledger: Ledger) -> tuple[str, ...]:
    """Return the topics in a ledger, sorted."""
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


# At most this many timestamps are read per partition, and of all partitions with more unread records together.
MOST_READ = 100_000
# At most this many bytes of all partitions are read for timestamps, estimated by the size of the first unread records.
MOST_BYTES = 256 * 2**20
# At most this many holes in a row, at the beginning of the unread offsets, are skipped.
_HOLES = 5

Asking = Generator[LookQuestion, Any, Any]


@dataclass(frozen=True)
class UnreadOffsets:
    """Unread offsets of a topic.

    `firsts` are the first unread records, by partition. `oldest` are the least timestamps seen, in milliseconds since
    the epoch. `overdue` are offsets from before the given time. `unknown` are the partitions that have more records
    than a look reads, and a first one that is not overdue, or is older than records before it: of those behind it only
    samples are known.
    """

    state: TopicState
    ranges: RangeSet
    lost: RangeSet
    firsts: Mapping[int, FirstRecord] = field(default_factory=dict)
    oldest: Mapping[int, int] = field(default_factory=dict)
    overdue: RangeSet = RangeSet()
    unknown: frozenset[int] = frozenset()

    def records(self, partition: int) -> int:
        """Return the number of unread offsets of a partition: records or holes."""
        return self.ranges.of_partition(self.state.identity.topic, partition).width


def reasons_lost(unread: Iterable[UnreadOffsets]) -> list[StreamReason]:
    """Return a list with the reason for lost records, or an empty list if no record is lost."""
    lost_texts = [format_ranges(one.lost) for one in unread if one.lost]
    return (
        [StreamReason(StreamCause.LOST_RECORDS, f"Kafka removed before they were read: {', '.join(lost_texts)}")]
        if lost_texts
        else []
    )


def reasons_unknown(unread: UnreadOffsets | TopicBacklog, max_age: float) -> list[StreamReason]:
    """Return a list with the reason for `unknown` partitions without a known overdue record, or an empty list.

    :param max_age: seconds for which a record may wait.
    """
    topic = unread.state.identity.topic
    partitions = unread.unknown - {p for _, p in unread.overdue.partitions}
    where = partitions_text(topic, partitions)
    return (
        [
            StreamReason(
                StreamCause.UNKNOWN_AGE,
                f"whether records wait for more than {span(max_age)} in {where} is not known: the first unread ones do "
                "not, and those behind them are too many or too large to be read one by one",
            )
        ]
        if partitions
        else []
    )


@dataclass(frozen=True)
class TopicLook:
    """Looks at a topic through a watch. `conn_id` identifies the watch in the keys of questions."""

    conn_id: str
    watch: KafkaWatch
    state: TopicState

    def behind_holes(self, ranges: RangeSet, lost: RangeSet, *, reread: bool = False) -> Asking:
        """Find the first unread records. Returns `UnreadOffsets` with these records' timestamps as `oldest`.

        Markers and aborted records do not count as lag: they are removed from the unread offsets if they are in front
        of the first unread record, or if no record follows.

        :param ranges: the unread offsets.
        :param lost: the unread offsets that Kafka no longer has; returned unchanged.
        :param reread: read records again that an earlier look has read: compaction may have removed them.
        """
        topic = self.state.identity.topic
        firsts: dict[int, FirstRecord] = {}
        for _ in range(_HOLES):
            begins = {p: ranges.intervals(topic, p)[0][0] for _, p in ranges.partitions}
            asked = {p: begin for p, begin in begins.items() if p not in firsts or firsts[p].offset < begin}
            if not asked:
                break
            records = yield self._ask_firsts(asked, reread)
            for p in asked:
                first = records.get(p)
                if first is None:
                    if p in records:
                        ranges -= ranges.of_partition(topic, p)
                    firsts.pop(p, None)
                    continue
                ranges -= RangeSet.of(topic, p, 0, first.offset)
                firsts[p] = first
            if not any(p in records and records[p] for p in asked):
                break
        # If holes remain after the last try, the record found may be read already: leave it out.
        firsts = {p: one for p, one in firsts.items() if [one.offset] == [a for a, _ in ranges.intervals(topic, p)[:1]]}
        return UnreadOffsets(self.state, ranges, lost, firsts, {p: first.timestamp_ms for p, first in firsts.items()})

    def waiting(self, ranges: RangeSet, lost: RangeSet, before_ms: int | None) -> Asking:
        """Find the unread and the overdue offsets. Returns `UnreadOffsets`.

        A partition with too many records or bytes to read is `unknown`, unless it is proven to have none that is
        overdue, or one that is: by the first unread record; and by the next ones, if the first one proves nothing.

        :param ranges: the unread offsets; holes at their beginning are removed, see `behind_holes`.
        :param lost: the unread offsets that Kafka no longer has; returned unchanged.
        :param before_ms: records from before this time are overdue. None: no record is overdue, timestamps are read
            only for `oldest`, and all partitions together share the number of timestamps that is otherwise read for
            each partition.
        """
        unread = yield from self.behind_holes(ranges, lost, reread=before_ms is not None)
        topic = self.state.identity.topic
        partitions = [p for _, p in unread.ranges.partitions]
        proven = [p for p in partitions if before_ms is not None and unread.oldest.get(p, before_ms) < before_ms]
        most = MOST_READ if before_ms is not None else MOST_READ // max(1, len(partitions))
        overdue, odd = yield from self._overdue_below(unread, proven, before_ms)
        proven = [p for p in proven if p not in odd]
        small = _readable(unread, [p for p in partitions if p not in proven and unread.records(p) <= most])
        crowded = [p for p in partitions if before_ms is not None and p not in proven and p not in small]
        read = union(unread.ranges.of_partition(topic, p) for p in small) | _beginnings(unread, crowded)
        stamps = (yield self._ask_stamps(read, before_ms)) if read else {}
        oldest = dict(unread.oldest)
        for p, one in stamps.items():
            if one.oldest is not None:
                oldest[p] = one.oldest[1]
            if before_ms is not None:
                overdue |= one.before(topic, p, before_ms)
        known = {p for _, p in overdue.partitions} | {p for p, first in unread.firsts.items() if first.is_append_time}
        unknown = frozenset(crowded) - (known - odd)
        for p, sample in (yield from self._samples(unread, unknown)) if before_ms is not None else ():
            oldest[p] = min(sample.timestamp_ms, oldest.get(p, sample.timestamp_ms))
            if sample.timestamp_ms < before_ms:
                overdue |= unread.ranges & RangeSet.of(topic, p, sample.offset, sample.offset + 1)
        return replace(unread, oldest=oldest, overdue=overdue, unknown=unknown)

    def _samples(self, unread: UnreadOffsets, partitions: Collection[int]) -> Asking:
        """Find the records in the middle and at the end of the unread offsets. Returns pairs: partition, record."""
        topic = self.state.identity.topic
        bounds = {
            p: (unread.ranges.intervals(topic, p)[0][0], unread.ranges.intervals(topic, p)[-1][1]) for p in partitions
        }
        samples: list[tuple[int, FirstRecord]] = []
        for positions in (
            {p: sum(ends) // 2 for p, ends in bounds.items()},
            {p: end - 1 for p, (_, end) in bounds.items()},
        ):
            records = (yield self._ask_firsts(positions, reread=True)) if positions else {}
            samples += [(p, record) for p, record in records.items() if record is not None]
        return samples

    def _overdue_below(self, unread: UnreadOffsets, proven: list[int], before_ms: int | None) -> Asking:
        """Find the overdue offsets of partitions with an overdue first unread record.

        All unread offsets are overdue that come before the log's first record with a timestamp at or after `before_ms`.
        If that record is in front of the unread offsets, only the first unread record is proven to be overdue.
        Returns the offsets, and such partitions with more unread offsets.

        :param proven: these partitions.
        """
        if not proven or before_ms is None:
            return RangeSet(), frozenset()
        # Rounded to the second: sensors that look at the same moment share the answer.
        key = ("offsets at", self.conn_id, self.state.identity, before_ms // 1000)
        bounds = yield LookQuestion(key, lambda: self.watch.offsets_at(self.state, before_ms))
        topic = self.state.identity.topic
        ends = {p: max(bounds.get(p, 0), unread.firsts[p].offset + 1) for p in proven}
        odd = frozenset(p for p in proven if bounds.get(p, 0) < ends[p] and unread.records(p) > 1)
        return unread.ranges & union(RangeSet.of(topic, p, 0, end) for p, end in ends.items()), odd

    def _ask_firsts(self, positions: Mapping[int, int], reread: bool) -> LookQuestion:
        """Return the question for the first unread records at the positions; equal questions share an answer."""
        ends = tuple((p, self.state.marks[p].end) for p in sorted(positions))
        key = ("firsts", self.conn_id, self.state.identity, tuple(sorted(positions.items())), ends, reread)
        return LookQuestion(key, lambda: self.watch.firsts(self.state, positions, reread=reread))

    def _ask_stamps(self, ranges: RangeSet, before_ms: int | None) -> LookQuestion:
        second = None if before_ms is None else before_ms // 1000
        key = ("stamps", self.conn_id, self.state.identity, ranges, second)
        return LookQuestion(key, lambda: self.watch.stamps(self.state, ranges, before_ms))


def _readable(unread: UnreadOffsets, partitions: Iterable[int]) -> list[int]:
    """Return the partitions with few enough bytes to fit into `MOST_BYTES` together, small partitions first.

    A partition may have 100,000 records of a megabyte.
    """
    sizes = {p: unread.records(p) * (unread.firsts[p].size if p in unread.firsts else 1) for p in partitions}
    readable, left = [], MOST_BYTES
    for p, size in sorted(sizes.items(), key=lambda pair: pair[1]):
        left -= size
        if left < 0:
            break
        readable.append(p)
    return sorted(readable)


def _beginnings(unread: UnreadOffsets, partitions: Iterable[int]) -> RangeSet:
    """Return the first unread offsets of partitions with too many of them, where the first record shows no age.

    A record dated in the future would hide a stopped consumer for ever; a record in the past becomes overdue itself.
    At most MOST_READ offsets and MOST_BYTES are returned, of all these partitions together.
    """
    latest = int(time.time() * 1000) + CLOCK_SKEW_MS
    odd = [p for p in partitions if p not in unread.firsts or unread.firsts[p].timestamp_ms > latest]
    size = max((unread.firsts[p].size for p in odd if p in unread.firsts), default=1)
    ranges = union(unread.ranges.of_partition(unread.state.identity.topic, p) for p in odd)
    return at_most_offsets(ranges, min(MOST_READ, MOST_BYTES // max(1, size)))
