"""The look before a table's partitions (hours or days) are emitted: for complete partitions and for late rows."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
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
from airflow_lakestream.watching.asking import LookConnections, NotThere, Step
from airflow_lakestream.watching.causes import StreamCause, StreamReason, join_reasons
from airflow_lakestream.watching.completeness import (
    CompletenessQuestions,
    EventTimes,
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
    """Refuse a table whose rows have no times, or no positions of their records. Raises InvalidArgument, NoPositions.

    :param column: the column of times, at the top level of the schema; a date only for partitions of a day.
    """
    event_times = EventTimes.of(table, column)
    if column not in {field.name for field in table.schema().fields}:
        raise InvalidArgument("event_time_column", f"{column!r} is within a struct.", "Give a column of the table.")
    if isinstance(event_times.type, DateType) and every is PartitionLength.HOUR:
        raise InvalidArgument("event_time_column", f"{column!r} is a date, without an hour.", 'Give every="day".')
    check_positions(table)


def late_rows(
    table: Table, column: str, every: PartitionLength, before: EmittedPartitions, unseen: RangeSet
) -> dict[int, int]:
    """Return by the start of an emitted partition the number of late rows.

    A late row has an offset in `unseen`, and a time in a partition of `before`. Only files that may contain such
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
        tasks = (task for task in live_files(table) if may_hold(table.metadata, task.file, unseen))
        for task in tasks:
            for rows in read_rows(table.metadata, table.io, task, columns=(*COORDINATES, column)):
                new_rows = rows.filter(is_hit(rows, unseen))
                late.update(_rows_by_start(new_rows[column], every))
    except (OSError, ValueError, pa.ArrowException) as e:
        # PyIceberg raises ValueError for delete files that it can't apply.
        raise UnreadableRows(name_of(table), e) from e
    width = every.width_ms
    return {start: rows for start, rows in late.items() if before.has((start, start + width))}


def _rows_by_start(times: pa.ChunkedArray, every: PartitionLength) -> dict[int, int]:
    """Return by the start of a partition the number of rows with a time in the partition.

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


# A condition of a span: yields questions, receives the answers, returns a bool.
SpanCondition = Callable[[Interval], Step]


@dataclass(frozen=True)
class PartitionsResult:
    """Result of a look: the partitions to emit, or None, and the reasons why the next partition is not complete."""

    emission: PartitionEmission | None
    reasons: tuple[StreamReason, ...] = ()

    @property
    def text(self) -> str:
        """The reasons as text."""
        return join_reasons(self.reasons) or "all of its partitions up to now are emitted"


@dataclass(frozen=True)
class PartitionsLook:
    """A table with partitions to emit. The fields are `AssetPartitionsOperator`'s arguments. Raises InvalidArgument."""

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
        # Before Kafka is asked: only offsets in this state of the table can complete a partition.
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

        :param new_rows: by the start of an emitted partition, the number of late rows that this look has found.

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
            topic_spans = _TopicSpans(
                completing, backlog, self.consumer_group, self.idle_after, now_ms, begun=before.begun.get(key)
            )
            # Each topic leaves out its incomplete spans: those left at the end are complete in all topics.
            spans = yield from topic_spans.complete(spans)
            reasons += topic_spans.reasons
            losses += topic_spans.losses
            by_origin[key] = topic_spans.by_origin
        emission = plan_emission(before, ledger, late, spans, by_origin)
        if losses and emission is None:
            raise losses[0]
        if losses:
            reasons.append(StreamReason(StreamCause.LOST_RECORDS, str(losses[0])))
        return PartitionsResult(emission, tuple(reasons))


class _TopicSpans:
    """Search for the complete spans of a topic.

    :param idle_seconds: time without a record after which an open boundary may count as closed; None: it never does.
    :param begun: a known time by which the group had begun, or None.
    """

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

        Among spans within one covered time, or outside of any, a span is complete if a later span is. So a binary
        search asks Kafka about few spans. `by_origin` gets the complete spans outside of any covered time.
        """
        complete_spans: list[Interval] = []
        for part, spans_of_part in itertools.groupby(spans, partial(part_of, self._backlog.entry)):
            # Outside of covered times only a group that resumes promises complete spans.
            if part is None and not self._backlog.entry.origin:
                continue
            part_spans = list(spans_of_part)
            lows = None if part is None else (yield from self._boundaries_at(part[0]))
            if lows is not None and (doubtful := self._doubtful_partitions(lows)):
                text = f"Kafka has removed records that may be of the covered time and are not landed: {doubtful}"
                self.reasons = self.reasons or [StreamReason(StreamCause.LOST_RECORDS, text)]
                continue
            first = 0 if part is not None else (yield from _first_index(part_spans, self._begins_by))
            count = yield from _first_index(part_spans[first:], partial(self._is_lacking, lows=lows))
            end = first + count
            complete_spans += part_spans[first:end]
            if part is None:
                self.by_origin.update(part_spans[first:end])
            if end < len(part_spans) and not self.reasons:
                self.reasons = self._reasons_by_span.get(part_spans[end], [])
        return complete_spans

    def _doubtful_partitions(self, lows: Mapping[int, TimeBoundary]) -> str:
        """Return, as text, the partitions from which Kafka may have removed records of a covered time.

        In such a partition the log now begins at the covered time, and the ledger does not have the offset before.

        :param lows: by partition, the boundary at the start of the covered time.
        """
        state, held = self._backlog.state, self._backlog.entry.held
        topic = state.identity.topic
        starts = [(p, low.offset) for p, low in lows.items() if 0 < low.offset == state.marks[p].low]
        return ", ".join(
            f"{topic}[{p}] before {start}" for p, start in starts if not held & RangeSet.of(topic, p, start - 1, start)
        )

    def _begins_by(self, span: Interval) -> Step:
        """Return whether the group has certainly begun by the span's start.

        An earlier emission may have proved this. Otherwise the group's first offset is compared with the boundary of
        the span's start. The answer is False if the log itself begins at the boundary: Kafka may have removed records
        of the span.
        """
        if self._begun is not None and self._begun.holds(span, self._backlog.entry):
            return True
        bounds = yield from self._boundaries_at(span[0])
        marks = self._backlog.state.marks
        begins = begins_of(self._backlog, bounds, None)
        return all(
            begins[p] == 0 or (begins[p] <= bound.offset and bound.offset > marks[p].low) for p, bound in bounds.items()
        )

    def _is_lacking(self, span: Interval, lows: Mapping[int, TimeBoundary] | None) -> Step:
        """Return whether records of the span are not landed, or may still come.

        A loss of records is added to `losses`, and counts as lacking. The reasons are kept by span.
        """
        highs = yield from self._boundaries_at(span[1])
        is_idle = self._idle_seconds is not None and self._now_ms - span[1] >= self._idle_seconds * 1000
        if is_idle and self._ends is None:
            self._ends = yield self._completing.ends(self._backlog)
        try:
            result = measure_completeness(
                self._backlog, highs, lows, self._completing.table, ends=self._ends if is_idle else None
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
    """Return the covered time that contains a span, or None."""
    return next((part for part in entry.covered if part[0] <= span[0] and span[1] <= part[1]), None)


def check_since(argument: str, value: object) -> int:
    """Return a time in milliseconds since 1970. Raises InvalidArgument for an earlier or invalid time."""
    at_ms = arguments.milliseconds(argument, value)
    if at_ms < 0:
        raise InvalidArgument(argument, f"{value!r} is before 1970.", "Kafka has no such times.")
    return at_ms


def _first_index(spans: Sequence[Interval], holds: SpanCondition) -> Step:
    """Return the index of the first span for which a condition holds, by binary search; or the number of spans.

    :param holds: the condition; if it holds for a span, it must hold for all later spans.
    """
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        if (yield from holds(spans[middle])):
            high = middle
        else:
            low = middle + 1
    return low
