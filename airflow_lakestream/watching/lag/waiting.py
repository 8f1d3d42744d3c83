"""Backlog of a group in a topic, and the overdue part. Sensors, `status` and metrics use this.

An unread record is overdue if its timestamp is before a time, at any offset: timestamps are in no order. If the first
unread record is overdue, this is proof enough. Otherwise all unread records are read: Kafka can't be asked whether an
older record follows a younger one. If they are too many or too large, only the record in the middle and the last record
are read. A record dated in the future counts as just arrived. A record without a timestamp counts as overdue.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from airflow_lakestream.core.landing.plan import TopicState, check_identity, check_log
from airflow_lakestream.core.ledger import Ledger, TopicEntry, TopicIdentity, union
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.sharing.pieces import at_most_offsets
from airflow_lakestream.kafka.source import CLOCK_SKEW_MS
from airflow_lakestream.kafka.watch import FirstRecord, KafkaWatch
from airflow_lakestream.watching.asking import LookQuestion, Step
from airflow_lakestream.watching.causes import StreamCause, StreamReason, format_ranges, partitions_text, span


@dataclass(frozen=True, slots=True)
class TopicBacklog:
    """A topic of a ledger, compared with the topic's present state.

    `lacking` are the offsets that are not landed yet and can be read, holes in the log included. `lost` are the offsets
    that were not landed, and that Kafka no longer has. `overdue` and `unknown` are as in `UnreadOffsets`.
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
    missing = _offsets_to_land(entry, state) - entry.held
    lost = missing & union(RangeSet.of(topic, p, 0, m.low) for p, m in state.marks.items())
    return TopicBacklog(state, entry, missing - lost, lost)


def topics_of(ledger: Ledger) -> tuple[str, ...]:
    """Return the topics in a ledger, sorted."""
    return tuple(sorted({identity.topic for identity in ledger.topics}))


def _offsets_to_land(entry: TopicEntry, state: TopicState) -> RangeSet:
    """Return all offsets from the group's beginning to the end of each partition, landed or not."""
    identity = state.identity
    return union(
        RangeSet.of(identity.topic, p, _begin(entry, identity, p, marks.low), marks.end)
        for p, marks in state.marks.items()
    )


def _begin(entry: TopicEntry, identity: TopicIdentity, partition: int, low: int) -> int:
    """Return the first offset that the group has to land in a partition, whose log begins at `low`."""
    if entry.origin:
        # A partition added after the origin was fixed begins at 0.
        return entry.origin.get(partition, 0)
    # A group that never resumed lands only its own intervals: gaps between them are no backlog.
    held = entry.held.intervals(identity.topic, partition)
    return held[-1][1] if held else low


# Most timestamps that a look reads from a partition; also from all partitions with more unread records together.
MOST_READ = 100_000
# Most bytes that a look reads for timestamps from all partitions, estimated by the size of the first unread records.
MOST_BYTES = 256 * 2**20
_MOST_HOLES = 5  # most holes in a row that are skipped at the beginning of the unread offsets


@dataclass(frozen=True)
class UnreadOffsets:
    """Unread offsets of a topic.

    :param ranges: the unread offsets that can be read.
    :param lost: the unread offsets that Kafka no longer has.
    :param firsts: by partition, the first unread record.
    :param oldest: by partition, the least timestamp that was read, in milliseconds since the epoch.
    :param overdue: the offsets of records that wait for longer than allowed.
    :param unknown: the partitions with more unread records than a look reads, whose first unread record does not prove
        the age of the records behind it. Only samples of these partitions were read.
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
    lost_texts = [format_ranges(topic.lost) for topic in unread if topic.lost]
    if not lost_texts:
        return []
    return [StreamReason(StreamCause.LOST_RECORDS, f"Kafka removed before they were read: {', '.join(lost_texts)}")]


def reasons_unknown(unread: UnreadOffsets | TopicBacklog, max_age: float) -> list[StreamReason]:
    """Return a list with the reason for `unknown` partitions without a known overdue record, or an empty list.

    :param max_age: seconds for which a record may wait.
    """
    partitions = unread.unknown - {p for _, p in unread.overdue.partitions}
    if not partitions:
        return []
    where = partitions_text(unread.state.identity.topic, partitions)
    text = (
        f"whether records wait for more than {span(max_age)} in {where} is not known: the first unread ones do "
        "not, and those behind them are too many or too large to be read one by one"
    )
    return [StreamReason(StreamCause.UNKNOWN_AGE, text)]


@dataclass(frozen=True)
class TopicLook:
    """A topic to look at. `conn_id` names the connection of the watch in the keys of questions."""

    conn_id: str
    watch: KafkaWatch
    state: TopicState

    def behind_holes(self, ranges: RangeSet, lost: RangeSet, *, reread: bool = False) -> Step:
        """Find the first unread records. Returns `UnreadOffsets` with the timestamps of these records as `oldest`.

        Holes in the log (markers and aborted records) do not count as lag. Holes in front of a partition's first unread
        record are removed from the unread offsets, and all holes of a partition without an unread record.

        :param ranges: the unread offsets.
        :param lost: the unread offsets that Kafka no longer has; returned unchanged.
        :param reread: whether to read records again that an earlier look has read; compaction may have removed them.
        """
        topic = self.state.identity.topic
        firsts: dict[int, FirstRecord] = {}
        for _ in range(_MOST_HOLES):
            begins = {p: ranges.intervals(topic, p)[0][0] for _, p in ranges.partitions}
            asked = {p: begin for p, begin in begins.items() if p not in firsts or firsts[p].offset < begin}
            if not asked:
                break
            records = yield self._ask_firsts(asked, reread)
            for p in asked:
                first = records.get(p)
                if first is None:
                    # No record follows if the answer is None. Without an answer the position has just left the log.
                    if p in records:
                        ranges -= ranges.of_partition(topic, p)
                    firsts.pop(p, None)
                    continue
                ranges -= RangeSet.of(topic, p, 0, first.offset)
                firsts[p] = first
            if not any(p in records and records[p] for p in asked):
                break
        # If holes remain after the last try, a first record may not be unread: it is left out.
        begins = {p: ranges.intervals(topic, p)[0][0] for _, p in ranges.partitions}
        firsts = {p: first for p, first in firsts.items() if first.offset == begins.get(p)}
        return UnreadOffsets(self.state, ranges, lost, firsts, {p: first.timestamp_ms for p, first in firsts.items()})

    def waiting(self, ranges: RangeSet, lost: RangeSet, before_ms: int | None) -> Step:
        """Find the unread and the overdue offsets. Returns `UnreadOffsets`.

        A partition with too many records or bytes to read is `unknown`, unless its first unread records prove that
        there is an overdue record, or that there is none.

        :param ranges: the unread offsets; holes at their beginning are removed, see `behind_holes`.
        :param lost: the unread offsets that Kafka no longer has; returned unchanged.
        :param before_ms: records from before this time, in milliseconds since the epoch, are overdue. None: no record
            is overdue. Timestamps are then read only for `oldest`: MOST_READ of all partitions together, and not of
            each partition.
        """
        unread = yield from self.behind_holes(ranges, lost, reread=before_ms is not None)
        topic = self.state.identity.topic
        partitions = [p for _, p in unread.ranges.partitions]
        # The first unread record of these partitions is overdue: no more has to be read, if it stands for the others.
        proven = [p for p in partitions if before_ms is not None and unread.oldest.get(p, before_ms) < before_ms]
        overdue, only_first = yield from self._overdue_below(unread, proven, before_ms)
        proven = [p for p in proven if p not in only_first]
        # Small partitions are read record by record; of crowded partitions only the beginning is read, and samples.
        most = MOST_READ if before_ms is not None else MOST_READ // max(1, len(partitions))
        small = _readable(unread, [p for p in partitions if p not in proven and unread.records(p) <= most])
        crowded = [p for p in partitions if before_ms is not None and p not in proven and p not in small]
        to_read = union(unread.ranges.of_partition(topic, p) for p in small) | _beginnings(unread, crowded)
        stamps = (yield self._ask_stamps(to_read, before_ms)) if to_read else {}
        oldest = dict(unread.oldest)
        for p, stamp in stamps.items():
            if stamp.oldest is not None:
                oldest[p] = stamp.oldest[1]
            if before_ms is not None:
                overdue |= stamp.before(topic, p, before_ms)
        # Timestamps that the broker sets are in order: the first unread record is the oldest.
        in_order = {p for p, first in unread.firsts.items() if first.is_append_time}
        decided = {p for _, p in overdue.partitions} | in_order
        unknown = frozenset(crowded) - (decided - only_first)
        for p, sample in (yield from self._samples(unread, unknown)) if before_ms is not None else ():
            oldest[p] = min(sample.timestamp_ms, oldest.get(p, sample.timestamp_ms))
            if sample.timestamp_ms < before_ms:
                overdue |= unread.ranges & RangeSet.of(topic, p, sample.offset, sample.offset + 1)
        return replace(unread, oldest=oldest, overdue=overdue, unknown=unknown)

    def _samples(self, unread: UnreadOffsets, partitions: Collection[int]) -> Step:
        """Find the records in the middle and at the end of the unread offsets. Returns pairs: partition, record."""
        topic = self.state.identity.topic
        intervals = {p: unread.ranges.intervals(topic, p) for p in partitions}
        middles = {p: (parts[0][0] + parts[-1][1]) // 2 for p, parts in intervals.items()}
        last_offsets = {p: parts[-1][1] - 1 for p, parts in intervals.items()}
        samples: list[tuple[int, FirstRecord]] = []
        for positions in (middles, last_offsets):
            records = (yield self._ask_firsts(positions, reread=True)) if positions else {}
            samples += [(p, record) for p, record in records.items() if record is not None]
        return samples

    def _overdue_below(self, unread: UnreadOffsets, partitions: list[int], before_ms: int | None) -> Step:
        """Find the overdue offsets of partitions whose first unread record is overdue.

        Unread offsets below the log's first record with a timestamp at or after `before_ms` are overdue. If this record
        is already landed, only the first unread record is proven to be overdue. Returns a pair: the overdue offsets,
        and the partitions of the second case with more unread offsets.

        :param partitions: the partitions.
        """
        if not partitions or before_ms is None:
            return RangeSet(), frozenset()
        # Rounded to the second: sensors that look at the same moment share the answer.
        key = ("offsets at", self.conn_id, self.state.identity, before_ms // 1000)
        bounds = yield LookQuestion(key, lambda: self.watch.offsets_at(self.state, before_ms))
        topic = self.state.identity.topic
        ends = {p: max(bounds.get(p, 0), unread.firsts[p].offset + 1) for p in partitions}
        only_first = frozenset(p for p in partitions if bounds.get(p, 0) < ends[p] and unread.records(p) > 1)
        return unread.ranges & union(RangeSet.of(topic, p, 0, end) for p, end in ends.items()), only_first

    def _ask_firsts(self, positions: Mapping[int, int], reread: bool) -> LookQuestion:
        """Return the question for the first record of each partition at its position, or behind the position."""
        ends = tuple((p, self.state.marks[p].end) for p in sorted(positions))
        key = ("firsts", self.conn_id, self.state.identity, tuple(sorted(positions.items())), ends, reread)
        return LookQuestion(key, lambda: self.watch.firsts(self.state, positions, reread=reread))

    def _ask_stamps(self, ranges: RangeSet, before_ms: int | None) -> LookQuestion:
        """Return the question for the timestamps of all records in the ranges."""
        # Rounded to the second: sensors that look at the same moment share the answer.
        before_second = None if before_ms is None else before_ms // 1000
        key = ("stamps", self.conn_id, self.state.identity, ranges, before_second)
        return LookQuestion(key, lambda: self.watch.stamps(self.state, ranges, before_ms))


def _readable(unread: UnreadOffsets, partitions: Iterable[int]) -> list[int]:
    """Return the partitions, small partitions first, whose unread records fit into MOST_BYTES together.

    A bound for the number of records is not enough: each may have a megabyte.
    """
    sizes = {p: unread.records(p) * (unread.firsts[p].size if p in unread.firsts else 1) for p in partitions}
    readable, bytes_left = [], MOST_BYTES
    for p, size in sorted(sizes.items(), key=lambda pair: pair[1]):
        bytes_left -= size
        if bytes_left < 0:
            break
        readable.append(p)
    return sorted(readable)


def _beginnings(unread: UnreadOffsets, partitions: Iterable[int]) -> RangeSet:
    """Return the first unread offsets of those crowded partitions whose first unread record is dated in the future.

    Such a record, or a missing first record, would hide a stopped consumer for ever. A record dated in the past becomes
    overdue itself. At most MOST_READ offsets and MOST_BYTES are returned for all partitions together.

    :param partitions: the crowded partitions.
    """
    latest = int(time.time() * 1000) + CLOCK_SKEW_MS
    ageless = [p for p in partitions if p not in unread.firsts or unread.firsts[p].timestamp_ms > latest]
    size = max((unread.firsts[p].size for p in ageless if p in unread.firsts), default=1)
    ranges = union(unread.ranges.of_partition(unread.state.identity.topic, p) for p in ageless)
    return at_most_offsets(ranges, min(MOST_READ, MOST_BYTES // max(1, size)))
