"""Completeness of a table up to a time.

The rule is the ledger's: B(t) is a partition's first offset with a timestamp at or after t; without such a record the
boundary is open. The time is complete if the ledger holds all offsets below B(t), and no boundary is open. Then no
record from before it can come, except late ones.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from airflow_lakestream.watching.asking import LookQuestion
from airflow_lakestream.watching.causes import StreamCause, StreamReason, format_ranges
from airflow_lakestream.watching.lag.waiting import TopicBacklog, backlog_of

# A step of a look: asks questions, and returns a result.
Step = Generator[LookQuestion, Any, Any]


@dataclass(frozen=True, slots=True)
class TimeCompleteness:
    """Reasons for an incomplete time. The time is complete if all sets are empty and `covered` is True.

    `missing` are offsets below the boundaries that are not landed. `open` are the partitions with an open boundary,
    `before` the partitions in which the group begins after the time. `unsettled` is the part of `open` that would be
    closed without a transaction under way. `covered` is False if the ledger does not know the first offset of the time:
    the other fields are then empty. `partitions` is the number of all partitions.
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
        """Whether everything is landed and no more can come."""
        return self.covered and not (self.missing or self.open or self.before)

    def reasons(self, group: str, at: str) -> list[StreamReason]:
        """Return the reasons for which the time is not complete.

        :param at: the time, as text.
        """
        reasons = []
        if not self.covered:
            text = f"group {group} has neither resumed on {self.topic} nor landed an interval that reaches {at}"
            return [StreamReason(StreamCause.NOT_COVERED, text)]
        if self.before:
            where = _names(self.topic, self.before)
            reasons.append(StreamReason(StreamCause.NOT_COVERED, f"group {group} begins after {at} in {where}"))
        if self.missing:
            text = f"group {group} lacks {self.missing.width:,} offsets from before {at}: {format_ranges(self.missing)}"
            reasons.append(StreamReason(StreamCause.SLOW_CONSUMER, text))
        if self.unsettled:
            text = f"a transaction is open in {_names(self.topic, self.unsettled)}: its records may be from before {at}"
            reasons.append(StreamReason(StreamCause.OPEN_INTERVAL, text))
        elif self.open and len(self.open) < self.partitions:
            where = _names(self.topic, self.open)
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
    """Return the covered time that begins before `at_ms` and reaches to `at_ms` or further.

    Returns None if no covered time does. Times are milliseconds since the epoch.
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
    """Decide whether all of a topic is landed up to a time.

    For a group that never resumed, without a covered time, the result has `covered=False`.

    :param highs: the boundary of the time, by partition.
    :param lows: by partition, the boundary at the start of the covered time that contains the time; None without a
        covered time.
    :param table: the table's name, for the error.
    :param ends: by partition, the log's end, records of open transactions included: a partition without a record at or
        after the time counts as closed once all up to that end is landed. None: such a partition never counts as
        closed.

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
    """Return, by partition, the group's first offset of a time.

    A group that has resumed begins at its origin; a group that has landed an interval begins at the interval's start.
    If both are known, the lower offset counts; if neither is known, 0.

    :param partitions: the partitions, as keys; the values are not used.
    :param lows: by partition, the boundary at the start of the covered time; None without a covered time.
    """
    return {p: _begin(backlog, lows or {}, p) for p in partitions}


def _begin(backlog: TopicBacklog, lows: Mapping[int, TimeBoundary], partition: int) -> int:
    """Return the group's first offset in a partition; see `begins_of`."""
    origin = backlog.entry.origin
    # A partition added after the origin was fixed begins at 0.
    begins = [origin.get(partition, 0)] if origin else []
    begins += [lows[partition].offset] if partition in lows else []
    return min(begins, default=0)


def _names(topic: str, partitions: tuple[int, ...]) -> str:
    return f"{topic}[{', '.join(map(str, partitions))}]"


@dataclass(frozen=True)
class CompletenessQuestions:
    """Questions to Kafka about the completeness of a table.

    `conn_id` identifies the watch in the keys of questions; `table` is for errors.
    """

    watch: KafkaWatch
    conn_id: str
    table: str

    def backlog(self, ledger: Ledger, topic: str) -> Step:
        """Return the backlog of a topic by a ledger, as a `TopicBacklog`.

        Raises TopicReplaced, LogTruncated.
        """
        key, answer = ("topic", self.conn_id, topic), partial(self.watch.topic, topic)
        state = yield LookQuestion((*key, True), answer)
        try:
            return backlog_of(ledger, state, self.table)
        except LogTruncated:
            # The shared answer may be older than the ledger: ask Kafka once more.
            return backlog_of(ledger, (yield LookQuestion((*key, False), answer, share_seconds=0.0)), self.table)

    def ends(self, backlog: TopicBacklog) -> LookQuestion:
        """Ask for the log's ends of a backlog's partitions, records of open transactions included."""
        state = backlog.state
        # An older answer would not have a transaction that began after it.
        key = ("high watermarks", self.conn_id, state.identity)
        return LookQuestion(key, partial(self.watch.high_watermarks, state), share_seconds=0.0)

    def boundaries(self, backlog: TopicBacklog, at_ms: int) -> LookQuestion:
        """Ask for the boundary of a time, in milliseconds since the epoch, by partition."""
        # Use the ends of the same look: a boundary at or past them is open.
        ends = tuple(sorted((p, marks.end) for p, marks in backlog.state.marks.items()))
        key = ("boundaries", self.conn_id, backlog.state.identity, ends, at_ms)
        return LookQuestion(key, partial(self.watch.boundaries, backlog.state, at_ms))


_ARGUMENT = "event_time_column"
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class EventTimes:
    """A column of a table, read by bounds. Times are milliseconds since the epoch; times without zone are UTC."""

    table: Table
    column: str
    field_id: int
    type: PrimitiveType

    @classmethod
    def of(cls, table: Table, column: str) -> EventTimes:
        """Find the column. Raises InvalidArgument if the column does not exist or has no time."""
        try:
            field = table.schema().find_field(column)
        except ValueError as e:
            names = ", ".join(one.name for one in table.schema().fields)
            raise InvalidArgument(_ARGUMENT, f"{column!r} is not a column of {_name(table)}; it has {names}.") from e
        if not isinstance(field.field_type, PrimitiveType) or _milliseconds(field.field_type, 0) is None:
            raise InvalidArgument(_ARGUMENT, f"{column!r} is of type {field.field_type}, not a timestamp or a date.")
        return cls(table, column, field.field_id, field.field_type)

    def newest(self, snapshot_ids: Iterable[int], until_ms: int) -> int | None:
        """Return the newest event in the files added by the given snapshots.

        Returns None without an event up to `until_ms`. Times are milliseconds since the epoch. A file with an event
        dated after `until_ms` is skipped: its bound does not show the newest past event. Raises InvalidArgument if the
        manifests keep no bounds of the column.
        """
        newest: int | None = None
        for file in self._files(set(snapshot_ids)):
            bound = (file.upper_bounds or {}).get(self.field_id)
            if bound is None:
                self._check_empty(file)
                continue
            at = _milliseconds(self.type, int(from_bytes(self.type, bound)))
            if at is not None and at > until_ms - _DAY_MS and isinstance(self.type, DateType):
                # A date column's day reaches to its end, which for today is in the future.
                at = min(at, until_ms) if at - _DAY_MS < until_ms else at
            if at is not None and at <= until_ms and (newest is None or at > newest):
                newest = at
        return newest

    def _files(self, snapshot_ids: set[int]) -> Iterator[DataFile]:
        for snapshot in self.table.metadata.snapshots:
            if snapshot.snapshot_id in snapshot_ids:
                yield from added_files(self.table, snapshot)

    def _check_empty(self, file: DataFile) -> None:
        nulls = (file.null_value_counts or {}).get(self.field_id)
        # A file without rows, or with only nulls, has no bounds for a good reason.
        if file.record_count and nulls != file.record_count:
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
    # A date means events up to the day's end.
    return (value + 1) * _DAY_MS - 1 if isinstance(kind, DateType) else None


def _name(table: Table) -> str:
    return ".".join(table.name())
