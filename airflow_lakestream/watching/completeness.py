"""Completeness of a table up to a time t.

The boundary of t in a partition is the offset of the first record with a timestamp at or after t. Without such a record
the boundary is open: records from before t may still come. The table is complete up to t if no boundary is open, and
the ledger has all offsets below the boundaries. A record that is written later with an earlier timestamp is late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import (
    DateType,
    IcebergType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from airflow_lakestream.core.landing.plan import DataLoss, LogTruncated
from airflow_lakestream.core.ledger import Ledger, TopicEntry, union
from airflow_lakestream.core.ports import TimeBoundary
from airflow_lakestream.core.ranges import Interval, RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.replace.takeout import added_files
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.watching.asking import LookQuestion, Step
from airflow_lakestream.watching.causes import StreamCause, StreamReason, format_ranges
from airflow_lakestream.watching.lag.waiting import TopicBacklog, backlog_of


@dataclass(frozen=True, slots=True)
class TimeCompleteness:
    """Obstacles to the completeness of a topic up to a time.

    :param partitions: the number of all partitions of the topic.
    :param missing: the offsets below the boundaries that are not landed.
    :param open: the partitions with an open boundary.
    :param before: the partitions in which the group begins after the time.
    :param unsettled: the partitions of `open` that are open only because a transaction is under way.
    :param covered: False if the ledger does not know where the time begins: all other fields are then empty.
    """

    topic: str
    partitions: int
    missing: RangeSet
    open: tuple[int, ...]
    before: tuple[int, ...]
    unsettled: tuple[int, ...] = ()
    covered: bool = True

    @property
    def is_complete(self) -> bool:
        """Whether all records from before the time are landed, and no more can come."""
        return self.covered and not (self.missing or self.open or self.before)

    def reasons(self, group: str, at: str) -> list[StreamReason]:
        """Return the reasons for which the topic is not complete up to the time.

        :param group: the consumer group, for the texts.
        :param at: the time, for the texts.
        """
        reasons = []
        if not self.covered:
            text = f"group {group} has neither resumed on {self.topic} nor landed an interval that reaches {at}"
            return [StreamReason(StreamCause.NOT_COVERED, text)]
        if self.before:
            where = _partitions_text(self.topic, self.before)
            reasons.append(StreamReason(StreamCause.NOT_COVERED, f"group {group} begins after {at} in {where}"))
        if self.missing:
            text = f"group {group} lacks {self.missing.width:,} offsets from before {at}: {format_ranges(self.missing)}"
            reasons.append(StreamReason(StreamCause.SLOW_CONSUMER, text))
        if self.unsettled:
            where = _partitions_text(self.topic, self.unsettled)
            text = f"a transaction is open in {where}: its records may be from before {at}"
            reasons.append(StreamReason(StreamCause.OPEN_INTERVAL, text))
        elif self.open and len(self.open) < self.partitions:
            where = _partitions_text(self.topic, self.open)
            reasons.append(
                StreamReason(
                    StreamCause.LATE_PARTITION,
                    f"{where} have no record at or after {at} yet; the other partitions have",
                )
            )
        elif self.open:
            text = f"no partition of {self.topic} has a record at or after {at} yet: more may come from before it"
            reasons.append(StreamReason(StreamCause.OPEN_INTERVAL, text))
        return reasons


def covered_part(entry: TopicEntry, at_ms: int) -> Interval | None:
    """Return the covered time that begins before `at_ms` and reaches to `at_ms` or further, or None.

    Times are milliseconds since the epoch.
    """
    return next((part for part in entry.covered if part[0] < at_ms <= part[1]), None)


def measure_completeness(
    backlog: TopicBacklog,
    highs: Mapping[int, TimeBoundary],
    lows: Mapping[int, TimeBoundary] | None,
    table: str,
    *,
    ends: Mapping[int, int] | None,
) -> TimeCompleteness:
    """Decide whether all records of a topic from before a time are landed.

    The result has `covered=False` if the group never resumed and no covered time contains the time.

    :param highs: by partition, the boundary of the time.
    :param lows: by partition, the boundary at the start of the covered time that contains the time; None without a
        covered time.
    :param table: the table's name, for the error.
    :param ends: by partition, the log's end, with the records of open transactions. A partition with an open boundary
        then counts as closed if all offsets up to this end are landed. None: it never counts as closed.

    Raises DataLoss for missing offsets that Kafka no longer has.
    """
    state, entry, topic = backlog.state, backlog.entry, backlog.topic
    if not entry.origin and lows is None:
        return TimeCompleteness(topic, len(highs), RangeSet(), (), (), covered=False)
    begins = begins_of(backlog, highs, lows)
    missing = union(RangeSet.of(topic, p, begins[p], high.offset) for p, high in highs.items()) - entry.held
    below_low = union(RangeSet.of(topic, p, 0, marks.low) for p, marks in state.marks.items())
    if lost := missing & below_low:
        raise DataLoss(lost, table)
    is_open = [p for p, high in highs.items() if high.is_open]
    unsettled: tuple[int, ...] = ()
    if ends is not None:
        unsettled = tuple(sorted(p for p in is_open if ends[p] > state.marks[p].end))
        is_open = [p for p in is_open if missing.intervals(topic, p) or p in unsettled]
    before = tuple(sorted(p for p, high in highs.items() if begins[p] > high.offset))
    return TimeCompleteness(topic, len(highs), missing, tuple(sorted(is_open)), before, unsettled)


def begins_of(
    backlog: TopicBacklog, partitions: Mapping[int, object], lows: Mapping[int, TimeBoundary] | None
) -> dict[int, int]:
    """Return by partition the first offset that the group has to land for a time.

    The offset is the group's origin, if the group has resumed, or the start of the covered time; the lower of both
    counts, and 0 if neither is known.

    :param partitions: a mapping whose keys are the partitions; the values are not used.
    :param lows: by partition, the boundary at the start of the covered time; None without a covered time.
    """
    origin, begins = backlog.entry.origin, {}
    for p in partitions:
        # A partition added after the origin was fixed begins at 0.
        known = [origin.get(p, 0)] if origin else []
        known += [lows[p].offset] if lows and p in lows else []
        begins[p] = min(known, default=0)
    return begins


def _partitions_text(topic: str, partitions: tuple[int, ...]) -> str:
    return f"{topic}[{', '.join(map(str, partitions))}]"


@dataclass(frozen=True)
class CompletenessQuestions:
    """Questions to Kafka about the completeness of a table.

    :param watch: gets the answers from Kafka.
    :param conn_id: the watch's connection, for the keys of questions.
    :param table: the table's name, for errors.
    """

    watch: KafkaWatch
    conn_id: str
    table: str

    def backlog(self, ledger: Ledger, topic: str) -> Step:
        """Return the `TopicBacklog` of a topic by a ledger. Raises TopicReplaced, LogTruncated."""
        key, answer = ("topic", self.conn_id, topic), partial(self.watch.topic, topic)
        state = yield LookQuestion((*key, True), answer)
        try:
            return backlog_of(ledger, state, self.table)
        except LogTruncated:
            # The shared answer may be older than the ledger: ask Kafka once more.
            return backlog_of(ledger, (yield LookQuestion((*key, False), answer, share_seconds=0.0)), self.table)

    def ends(self, backlog: TopicBacklog) -> LookQuestion:
        """Return the question for the log's ends by partition, with the records of open transactions."""
        state = backlog.state
        # No shared answer: a transaction may have begun since.
        key = ("high watermarks", self.conn_id, state.identity)
        return LookQuestion(key, partial(self.watch.high_watermarks, state), share_seconds=0.0)

    def boundaries(self, backlog: TopicBacklog, at_ms: int) -> LookQuestion:
        """Return the question for the boundary of a time by partition.

        :param at_ms: the time, in milliseconds since the epoch.
        """
        # With the ends that this look has seen: a boundary at or above its end is open.
        ends = tuple(sorted((p, marks.end) for p, marks in backlog.state.marks.items()))
        key = ("boundaries", self.conn_id, backlog.state.identity, ends, at_ms)
        return LookQuestion(key, partial(self.watch.boundaries, backlog.state, at_ms))


_ARGUMENT = "event_time_column"
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Times in a column of a table, known by the column's bounds in the manifests. Times without a zone are UTC."""

    table: Table
    column: str
    field_id: int
    type: PrimitiveType

    @classmethod
    def of(cls, table: Table, column: str) -> EventTimes:
        """Find the column. Raises InvalidArgument if the column does not exist, or has neither timestamps nor dates."""
        try:
            field = table.schema().find_field(column)
        except ValueError as e:
            names = ", ".join(known_field.name for known_field in table.schema().fields)
            raise InvalidArgument(_ARGUMENT, f"{column!r} is not a column of {_name(table)}; it has {names}.") from e
        if not isinstance(field.field_type, PrimitiveType) or _milliseconds(field.field_type, 0) is None:
            raise InvalidArgument(_ARGUMENT, f"{column!r} is of type {field.field_type}, not a timestamp or a date.")
        return cls(table, column, field.field_id, field.field_type)

    def newest(self, snapshot_ids: Iterable[int], until_ms: int) -> int | None:
        """Return the newest time up to `until_ms` in the files that the snapshots added, or None without any.

        Times are milliseconds since the epoch. A file whose greatest time is after `until_ms` is left out: its bound
        does not show the newest time before. Raises InvalidArgument if the manifests keep no bounds of the column.
        """
        newest: int | None = None
        for file in self._files(set(snapshot_ids)):
            bound = (file.upper_bounds or {}).get(self.field_id)
            if bound is None:
                self._check_empty(file)
                continue
            time_ms = _milliseconds(self.type, int(from_bytes(self.type, bound)))
            if time_ms is None:
                continue
            if isinstance(self.type, DateType) and time_ms - _DAY_MS < until_ms:
                # A date stands for the end of its day, which is in the future for today.
                time_ms = min(time_ms, until_ms)
            if time_ms <= until_ms:
                newest = time_ms if newest is None else max(newest, time_ms)
        return newest

    def _files(self, snapshot_ids: set[int]) -> Iterator[DataFile]:
        for snapshot in self.table.metadata.snapshots:
            if snapshot.snapshot_id in snapshot_ids:
                yield from added_files(self.table, snapshot)

    def _check_empty(self, file: DataFile) -> None:
        """Raise InvalidArgument for a file with values of the column, but without its bounds in the manifest."""
        null_count = (file.null_value_counts or {}).get(self.field_id)
        # A file without rows, or with only nulls, has no bounds for a good reason.
        if file.record_count and null_count != file.record_count:
            raise InvalidArgument(
                _ARGUMENT,
                f"the manifests of {_name(self.table)} keep no bounds of {self.column!r}.",
                f"Set the table property write.metadata.metrics.column.{self.column} to full; files that land from "
                "then on have them.",
            )


def _milliseconds(kind: IcebergType, value: int) -> int | None:
    """Return a bound as milliseconds since the epoch, or None for a type without time."""
    if isinstance(kind, TimestampType | TimestamptzType):
        return value // 1000
    if isinstance(kind, TimestampNanoType | TimestamptzNanoType):
        return value // 1_000_000
    # A date stands for the last millisecond of its day.
    return (value + 1) * _DAY_MS - 1 if isinstance(kind, DateType) else None


def _name(table: Table) -> str:
    return ".".join(table.name())
