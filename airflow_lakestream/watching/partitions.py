"""The look before emitting a table's partitions: for complete partitions, and for late rows."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import DateType

from airflow_lakestream.audit.rows import UnreadableRows, check_positions
from airflow_lakestream.config import arguments
from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.landing.plan import DataLoss
from airflow_lakestream.core.ledger import Ledger, TopicEntry
from airflow_lakestream.core.names import check_group, check_table_name
from airflow_lakestream.core.policies import choose
from airflow_lakestream.core.ports import TimeBoundary
from airflow_lakestream.core.ranges import Interval, RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.ledger_store import name_of
from airflow_lakestream.iceberg.replace.takeout import live_files, may_hold, read_rows
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.tables.coordinates import COORDINATES, is_hit, iso
from airflow_lakestream.watching.asking import LookConnections, LookQuestion, NotThere
from airflow_lakestream.watching.causes import StreamCause, StreamReason, join_reasons
from airflow_lakestream.watching.completeness import (
    CompletenessQuestions,
    EventTimes,
    Step,
    begins_of,
    measure_completeness,
)
from airflow_lakestream.watching.lag.waiting import TopicBacklog, topics_of
from airflow_lakestream.watching.partition_emission import (
    EmittedPartitions,
    GroupBeginning,
    Incarnation,
    PartitionEmission,
    PartitionLength,
    emission_candidates,
    late_of,
    plan_emission,
)
from airflow_lakestream.watching.source import ask_kafka, ask_table
from airflow_lakestream.watching.streams.landings import read_ledgers


def check_columns(table: Table, column: str, every: PartitionLength) -> None:
    """Refuse a table without the times of rows or the positions of records.

    :param column: the column of times, at the top level of the schema; a date only for partitions of a day.

    Raises InvalidArgument, NoPositions.
    """
    event_times = EventTimes.of(table, column)
    if column not in {one.name for one in table.schema().fields}:
        raise InvalidArgument("event_time_column", f"{column!r} is within a struct.", "Give a column of the table.")
    if isinstance(event_times.type, DateType) and every is PartitionLength.HOUR:
        raise InvalidArgument("event_time_column", f"{column!r} is a date, without an hour.", 'Give every="day".')
    check_positions(table)


def late_rows(
    table: Table, column: str, every: PartitionLength, before: EmittedPartitions, unseen: RangeSet
) -> dict[int, int]:
    """Return the number of late rows by the start of the emitted partition.

    Late are rows with an offset in `unseen` and a time in a partition of `before`. Only files that may hold such
    offsets are read.

    :param column: the column of times, see `check_columns`.
    :param every: the length of the partitions.
    :param before: the partitions emitted up to now.
    :param unseen: offsets landed since the last emission.

    Raises UnreadableRows.
    """
    late: Counter[int] = Counter()
    if not unseen:
        return late
    try:
        for task in _files(table, unseen):
            for rows in read_rows(table.metadata, table.io, task, columns=(*COORDINATES, column)):
                late.update(_starts(rows.filter(is_hit(rows, unseen))[column], every))
    except (OSError, ValueError, pa.ArrowException) as e:
        # PyIceberg raises ValueError for delete files that it can't apply.
        raise UnreadableRows(name_of(table), e) from e
    width = every.width_ms
    return {start: rows for start, rows in late.items() if before.has((start, start + width))}


def _files(table: Table, unseen: RangeSet) -> Iterator[FileScanTask]:
    return (task for task in live_files(table) if may_hold(table.metadata, task.file, unseen))


def _starts(times: pa.ChunkedArray, every: PartitionLength) -> dict[int, int]:
    """Return the number of rows by the start of the partition with the row's time.

    :param times: the rows' times; nulls are left out.
    """
    times = times.drop_null()
    kind = times.type
    as_ms = pa.timestamp("ms", kind.tz if pa.types.is_timestamp(kind) else None)
    # Python's division rounds down, also before 1970; Arrow's cast to coarser units does not.
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ns"):
        per_ms = 1_000 if kind.unit == "us" else 1_000_000
        millis = times.cast(pa.int64()).to_numpy() // per_ms
    else:
        millis = times.cast(as_ms).cast(pa.int64()).to_numpy()
    starts, counts = np.unique(millis // every.width_ms * every.width_ms, return_counts=True)
    return dict(zip(starts.tolist(), counts.tolist(), strict=True))


# Asks questions, and returns whether a condition holds for a span.
Holds = Callable[[Interval], Generator[LookQuestion, Any, Any]]


@dataclass(frozen=True)
class PartitionsResult:
    """Result of a look: the partitions to emit, if any, and the reasons for an incomplete next partition."""

    emission: PartitionEmission | None
    reasons: tuple[StreamReason, ...] = ()

    @property
    def text(self) -> str:
        """The reasons as text."""
        return join_reasons(self.reasons) or "all of its partitions up to now are emitted"


@dataclass(frozen=True)
class PartitionsLook:
    """The table with the partitions to emit; see `AssetPartitionsOperator` for the fields. Raises InvalidArgument."""

    table: str
    consumer_group: str
    since: Any
    every: SettingField[PartitionLength] = SettingField(PartitionLength.HOUR, partial(choose, PartitionLength))
    event_time_column: str = "_kafka_timestamp"
    idle_after: SettingField[float | None] = SettingField(None)
    kafka_conn_id: str = "kafka_default"
    iceberg_conn_id: str = "iceberg_default"
    since_ms: int = field(init=False)

    def __post_init__(self) -> None:
        check_table_name(self.table)
        check_group(self.consumer_group)
        object.__setattr__(self, "since_ms", check_since("since", self.since))

    @property
    def name(self) -> str:
        """Name of these partitions, unique among all partitions emitted for an asset."""
        return f"{self.table}/{self.consumer_group}/{self.every}"

    def look(self, connections: LookConnections, before: EmittedPartitions, now_ms: int | None = None) -> Step:
        """Look once. Returns `PartitionsResult`.

        :param before: the partitions emitted up to now.
        :param now_ms: milliseconds since the epoch; None: the present time.

        Raises NotThere without the table or the ledger, DataLoss, UnreadableTable, NoPositions, InvalidArgument, and
        the errors of ledgers and Kafka.
        """
        now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        table: Table = yield from ask_table(connections, self.iceberg_conn_id, self.table)
        check_columns(table, self.event_time_column, self.every)
        # Before Kafka is asked: partitions are complete only by offsets that this table has.
        ledger = read_ledgers(table, self.consumer_group)[self.consumer_group]
        if not ledger.topics:
            raise NotThere(f"consumer_group: {self.table} has no ledger of {self.consumer_group!r}.")
        new_rows = late_rows(table, self.event_time_column, self.every, before, before.unseen(ledger))
        watch: KafkaWatch = yield ask_kafka(connections, self.kafka_conn_id)
        return (yield from self.decide(watch, ledger, before, new_rows, now_ms))

    def decide(
        self, watch: KafkaWatch, ledger: Ledger, before: EmittedPartitions, new_rows: Mapping[int, int], now_ms: int
    ) -> Step:
        """Decide about the partitions to emit. Returns `PartitionsResult`.

        Only partitions that are complete in all topics of the ledger are emitted.

        :param new_rows: late rows found now in emitted partitions, by the partition's start.

        Raises DataLoss if records are lost and no partition can be emitted; otherwise the result's reasons contain the
        loss.
        """
        late = late_of(before, new_rows)
        spans: Sequence[Interval] = emission_candidates(before, self.every, self.since_ms, now_ms, late)
        completing = CompletenessQuestions(watch, self.kafka_conn_id, self.table)
        reasons: list[StreamReason] = []
        losses: list[DataLoss] = []
        by_origin: dict[Incarnation, set[Interval]] = {}
        for topic in topics_of(ledger) if spans else ():
            backlog = yield from completing.backlog(ledger, topic)
            key = backlog.state.identity.topic, backlog.state.identity.topic_id
            one = _TopicSpans(
                completing, backlog, self.consumer_group, self.idle_after, now_ms, begun=before.begun.get(key)
            )
            # After the last topic only spans are left that are complete in all topics.
            spans = yield from one.complete(spans)
            reasons += one.reasons
            losses += one.losses
            by_origin[key] = one.by_origin
        emission = plan_emission(before, ledger, late, spans, by_origin)
        if losses and emission is None:
            raise losses[0]
        return PartitionsResult(
            emission, (*reasons, *(StreamReason(StreamCause.LOST_RECORDS, str(loss)) for loss in losses[:1]))
        )


class _TopicSpans:
    """Looks for the complete spans of a topic."""

    def __init__(
        self,
        completing: CompletenessQuestions,
        backlog: TopicBacklog,
        group: str,
        idle_seconds: float | None,
        now_ms: int,
        *,
        begun: GroupBeginning | None,
    ) -> None:
        self._completing = completing
        self._backlog = backlog
        self._group = group
        self._idle_seconds = idle_seconds
        self._now_ms = now_ms
        self._begun = begun
        self._bounds: dict[int, Mapping[int, TimeBoundary]] = {}
        self._ends: Mapping[int, int] | None = None
        self._reasons_by_span: dict[Interval, list[StreamReason]] = {}
        self.losses: list[DataLoss] = []
        self.by_origin: set[Interval] = set()
        self.reasons: list[StreamReason] = []

    def complete(self, spans: Sequence[Interval]) -> Step:
        """Return the complete spans among sorted spans; also set `reasons`, `losses` and `by_origin`.

        Among spans within the same covered time, or outside of any, each span is complete if a later span is complete.
        So a binary search asks Kafka about few spans. `by_origin` are the complete spans outside of any covered time.
        """
        complete_spans: list[Interval] = []
        for part, group in itertools.groupby(spans, partial(part_of, self._backlog.entry)):
            if part is None and not self._backlog.entry.origin:
                continue
            part_spans = list(group)
            lows = None if part is None else (yield from self._boundaries_at(part[0]))
            if lows is not None and (doubtful := self._doubtful_partitions(lows)):
                text = f"Kafka has removed records that may be of the covered time and are not landed: {doubtful}"
                self.reasons = self.reasons or [StreamReason(StreamCause.LOST_RECORDS, text)]
                continue
            first = 0 if part is not None else (yield from _first_index(part_spans, self._begins_by))
            last = yield from _first_index(part_spans[first:], partial(self._is_lacking, lows=lows))
            complete_spans += part_spans[first : first + last]
            if part is None:
                self.by_origin.update(part_spans[first : first + last])
            if first + last < len(part_spans) and not self.reasons:
                self.reasons = self._reasons_by_span.get(part_spans[first + last], [])
        return complete_spans

    def _doubtful_partitions(self, lows: Mapping[int, TimeBoundary]) -> str:
        """Return as text the partitions with possibly removed records at the beginning of a covered time.

        In such a partition the log now begins with the covered time, and the offset before is not in the ledger: Kafka
        may have removed records of the time.

        :param lows: by partition, the boundary at the start of the covered time.
        """
        state, held = self._backlog.state, self._backlog.entry.held
        topic = state.identity.topic
        starts = [(p, low.offset) for p, low in lows.items() if 0 < low.offset == state.marks[p].low]
        return ", ".join(
            f"{topic}[{p}] before {start}" for p, start in starts if not held & RangeSet.of(topic, p, start - 1, start)
        )

    def _begins_by(self, span: Interval) -> Step:
        """Return whether the group certainly begins at the span's start, or before.

        An earlier emission may have noted this. Otherwise the group's first offset is compared with the boundary of the
        span's start: records below the group's beginning were never landed. If the log itself begins with the span, the
        answer is False, since Kafka may have removed records of the span.
        """
        if self._begun is not None and self._begun.holds(span, self._backlog.entry):
            return True
        bounds, marks = (yield from self._boundaries_at(span[0])), self._backlog.state.marks
        begins = begins_of(self._backlog, bounds, None)
        return all(
            begins[p] == 0 or (begins[p] <= bound.offset and bound.offset > marks[p].low) for p, bound in bounds.items()
        )

    def _is_lacking(self, span: Interval, lows: Mapping[int, TimeBoundary] | None) -> Step:
        """Return whether records of the span are not landed, or may still come.

        A loss is added to `losses`, and counts as lacking. The reasons are noted for the span.
        """
        highs = yield from self._boundaries_at(span[1])
        idle = self._idle_seconds is not None and self._now_ms - span[1] >= self._idle_seconds * 1000
        if idle and self._ends is None:
            self._ends = yield self._completing.ends(self._backlog)
        try:
            result = measure_completeness(
                self._backlog, highs, lows, self._completing.table, ends=self._ends if idle else None
            )
        except DataLoss as e:
            self.losses.append(e)
            return True
        self._reasons_by_span[span] = result.reasons(self._group, iso(span[1]))
        return not result.is_complete

    def _boundaries_at(self, at_ms: int) -> Step:
        if at_ms not in self._bounds:
            self._bounds[at_ms] = yield self._completing.boundaries(self._backlog, at_ms)
        return self._bounds[at_ms]


def part_of(entry: TopicEntry, span: Interval) -> Interval | None:
    """Return the covered time around a span, or None."""
    return next((part for part in entry.covered if part[0] <= span[0] and span[1] <= part[1]), None)


def check_since(argument: str, value: object) -> int:
    """Return a time from 1970 on, in milliseconds since then. Raises InvalidArgument."""
    at_ms = arguments.milliseconds(argument, value)
    if at_ms < 0:
        raise InvalidArgument(argument, f"{value!r} is before 1970.", "Kafka has no such times.")
    return at_ms


def _first_index(spans: Sequence[Interval], holds: Holds) -> Step:
    """Return the index of the first span with `holds`, by binary search; or the number of spans.

    `holds` must be true for all spans after the first span with `holds`.
    """
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        if (yield from holds(spans[middle])):
            high = middle
        else:
            low = middle + 1
    return low
