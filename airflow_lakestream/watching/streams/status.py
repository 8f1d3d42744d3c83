"""State of a stream, decided from the facts of a look. Pure functions: no connection is opened.

A record is overdue if it is not landed, and older than the allowed age. So a healthy stream that lands each minute is
`landing`, though some record waits at any moment; and a stopped stream on a quiet topic is not late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_lakestream.core.column_use import silent_texts
from airflow_lakestream.core.landing.run_log import stale_text
from airflow_lakestream.core.ledger import LandingEngine, TopicEntry
from airflow_lakestream.core.printable import counted
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseRecord, LeaseState
from airflow_lakestream.driver.progress import DriverProgress
from airflow_lakestream.iceberg.upkeep.file_use import FileUse
from airflow_lakestream.watching.causes import StreamCause, StreamReason, format_ranges, partitions_text, span
from airflow_lakestream.watching.lag.waiting import TopicBacklog, reasons_unknown
from airflow_lakestream.watching.streams.landings import BranchHistory, SnapshotRecord


class StreamState(StrEnum):
    """Activity of a stream.

    LANDING: rows land, or records have just arrived, or nothing was landed yet. IDLE: all records are landed. BEHIND:
    rows land, but records are overdue. STALLED: records are overdue and no row lands, or a query has stopped before
    its first landing. FAILING: records are lost, a Spark query has failed, or the ledger or the topic can't be used.
    UNSEEN: the look failed.
    """

    LANDING = "landing"
    IDLE = "idle"
    BEHIND = "behind"
    STALLED = "stalled"
    FAILING = "failing"
    UNSEEN = "could not look"


HEALTHY = (StreamState.LANDING, StreamState.IDLE)  # states that need no action by a person


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """A Spark query, known by the files next to its checkpoint."""

    location: str
    lease: LeaseRecord
    progress: DriverProgress

    @property
    def inputs(self) -> Mapping[str, str]:
        """Inputs of the checkpoint: app, topic, table, group."""
        return self.lease.inputs

    def last_seen_ms(self, now_ms: int) -> int:
        """Return the time of the driver's last sign of life; `now_ms` if it runs. Milliseconds since the epoch."""
        return now_ms if self.lease.state(now_ms / 1000) is LeaseState.HELD else int(self.lease.beat_at * 1000)

    def reason(self, now_ms: int, max_age: float) -> StreamReason | None:
        """Return the reason for a query that lands no rows, or None if the query runs or has ended well.

        :param max_age: seconds without progress after which a running driver counts as stuck.
        """
        lease, now = self.lease, now_ms / 1000
        state, ago = lease.state(now), span(max(0.0, now - lease.beat_at))
        if state is LeaseState.VANISHED:
            return StreamReason(StreamCause.VANISHED_QUERY, f"its driver, {lease}, was last heard of {ago} ago")
        if lease.outcome is DriverOutcome.FAILED:
            return StreamReason(
                StreamCause.FAILED_QUERY, f"its driver failed {ago} ago: {lease.error or 'its log has the reason'}"
            )
        if lease.outcome is DriverOutcome.STOPPED:
            return StreamReason(
                StreamCause.STOPPED_QUERY, f"it was stopped {ago} ago{f': {lease.error}' if lease.error else ''}"
            )
        if lease.outcome is DriverOutcome.DONE:
            return None
        unmoved = now - max(self.progress.moved_at, lease.taken_at)
        if unmoved > max_age:
            doing = f", last: {self.progress.doing}" if self.progress.doing else ""
            return StreamReason(
                StreamCause.STUCK_QUERY, f"its driver is running, but has made no progress for {span(unmoved)}{doing}"
            )
        return None


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """Facts about a stream. `problem` is the error of a failed look.

    The query of an application that is not bundled has no table, group and lease. Its facts are from its `checkpoint`,
    and `newest_ms` is the time of its last progress in milliseconds since the epoch.
    """

    table: str
    consumer_group: str
    topic: str
    history: BranchHistory = BranchHistory()
    backlog: TopicBacklog | None = None
    query: SparkQuery | None = None
    problem: StreamReason | None = None
    entry: TopicEntry | None = None
    checkpoint: str | None = None
    newest_ms: int | None = None
    # Columns that were dropped in the source and added again, see `core.source_types`.
    stale: tuple[str, ...] = ()

    @property
    def reached_ms(self) -> int | None:
        """Time of the last progress, in milliseconds since the epoch."""
        landed = self.history.landed_ms
        return self.newest_ms if landed is None else landed


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """Status of a stream.

    `lag` and `overdue` are numbers of offsets, `age` is seconds since the newest landing. `overdue` is None if the ages
    of some unread records are unknown: the reasons then name the known overdue records.
    """

    table: str
    consumer_group: str
    topic: str
    engine: LandingEngine | None
    state: StreamState
    reasons: tuple[StreamReason, ...] = ()
    lag: int | None = None
    overdue: int | None = None
    age: float | None = None
    rejected: int = 0
    landings: tuple[SnapshotRecord, ...] = ()
    partitions: dict[int, dict[str, int | None]] = field(default_factory=dict)
    checkpoint: str | None = None
    driver: str | None = None
    silent: Mapping[str, str] = field(default_factory=dict)
    stale: tuple[str, ...] = ()
    files: FileUse | None = None

    def files_texts(self, now_ms: float) -> tuple[str, str, str]:
        """Return the numbers of small files and of delete files, and the age of the last compaction, as texts."""
        if (files := self.files) is None:
            return "-", "-", "-"
        at = files.compacted_at
        ago = "-" if at is None else f"{span(max(0, now_ms - at) / 1000)} ago"
        return f"{files.small:,}", "-" if files.delete_files is None else f"{files.delete_files:,}", ago

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; ids as text, since browsers round 64-bit numbers."""
        return {
            "table": self.table,
            "consumer_group": self.consumer_group,
            "topic": self.topic,
            "engine": self.engine and self.engine.value,
            "state": self.state.value,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "lag": self.lag,
            "overdue": self.overdue,
            "age": self.age,
            "rejected": self.rejected,
            "landings": [
                {
                    "snapshot_id": str(landing.snapshot_id),
                    "at_ms": landing.at_ms,
                    "rows": landing.rows,
                    "rejected": landing.rejected,
                    "engine": landing.engine and landing.engine.value,
                }
                for landing in self.landings
            ],
            "partitions": {str(p): numbers for p, numbers in self.partitions.items()},
            "checkpoint": self.checkpoint,
            "driver": self.driver,
            "silent_columns": silent_texts(self.silent),
            "stale_columns": list(self.stale),
            "files": None if self.files is None else self.files.to_dict(),
        }


def stream_status(facts: StreamFacts, now_ms: int, max_age: float) -> StreamStatus:
    """Decide about the state of a stream; see `StreamState`.

    :param max_age: seconds for which a record may wait, and for which no row may land while records wait.
    """
    age = None if facts.reached_ms is None else max(0, now_ms - facts.reached_ms) / 1000
    state, reasons = _decide_state(facts, now_ms, max_age, age)
    backlog = facts.backlog
    entry = backlog.entry if backlog is not None else facts.entry
    query = facts.query
    return StreamStatus(
        table=facts.table,
        consumer_group=facts.consumer_group,
        topic=facts.topic,
        engine=_engine(facts, now_ms),
        state=state,
        reasons=tuple(reasons),
        lag=None if backlog is None else backlog.lacking.width + backlog.lost.width,
        overdue=None if backlog is None or backlog.unknown else backlog.overdue.width,
        age=age,
        rejected=0 if entry is None else entry.counts.rejected,
        landings=facts.history.recent,
        partitions={} if backlog is None else _partitions(backlog),
        checkpoint=facts.checkpoint if query is None else query.location,
        driver=None if query is None else query.lease.state(now_ms / 1000).value,
        silent=facts.history.silent,
        stale=facts.stale,
        files=facts.history.files,
    )


def _decide_state(
    facts: StreamFacts, now_ms: int, max_age: float, age: float | None
) -> tuple[StreamState, list[StreamReason]]:
    """Return the state of a stream and all reasons, the reason for the state first."""
    stale = [StreamReason(StreamCause.STALE_COLUMNS, stale_text(facts.stale))] if facts.stale else []
    additional = [*stale, *facts.history.reasons(now_ms)]
    if facts.problem is not None:
        unseen = facts.problem.cause is StreamCause.COULD_NOT_LOOK
        return StreamState.UNSEEN if unseen else StreamState.FAILING, [facts.problem, *additional]
    backlog = facts.backlog
    query_reason = facts.query.reason(now_ms, max_age) if facts.query is not None else None
    of_query = [query_reason] if query_reason is not None else []
    if query_reason is not None and query_reason.cause is StreamCause.FAILED_QUERY:
        return StreamState.FAILING, [query_reason, *_late_reasons(backlog), *additional]
    if backlog is None:
        # A query that has landed nothing yet has no ledger to compare with the topic.
        no_landing = StreamReason(StreamCause.NO_LANDING, "nothing was landed yet")
        state = StreamState.STALLED if query_reason is not None else StreamState.LANDING
        return state, [*of_query, no_landing, *additional]
    if backlog.lost:
        lost = StreamReason(
            StreamCause.LOST_RECORDS, f"Kafka no longer has {format_ranges(backlog.lost)}, and the table never had it"
        )
        return StreamState.FAILING, [lost, *of_query, *additional]
    additional = [*reasons_unknown(backlog, max_age), *additional]
    if backlog.overdue:
        state, reason = _overdue_state(facts, backlog, max_age, age)
        if query_reason is not None:
            reason = StreamReason(query_reason.cause, f"{query_reason.text}; {reason.text}")
        return state, [reason, *_late_reasons(backlog), *additional]
    is_landing = age is not None and age <= max_age
    # No record is overdue: the lacking records have just arrived.
    if is_landing or backlog.lacking:
        return StreamState.LANDING, [*of_query, *additional]
    return StreamState.IDLE, [
        *of_query,
        StreamReason(StreamCause.IDLE_TOPIC, f"all of {facts.topic} is landed"),
        *additional,
    ]


def _overdue_state(
    facts: StreamFacts, backlog: TopicBacklog, max_age: float, age: float | None
) -> tuple[StreamState, StreamReason]:
    """Return the state of a stream with overdue records, and the reason."""
    width = backlog.overdue.width
    wait = f"{counted(width, 'offset')} {'waits' if width == 1 else 'wait'} for more than {span(max_age)}"
    text = f"{'at least ' if backlog.unknown else ''}{wait}: {format_ranges(backlog.overdue)}"
    if age is not None and age <= max_age:
        return StreamState.BEHIND, StreamReason(StreamCause.SLOW_CONSUMER, text)
    stopped = StreamCause.STOPPED_CONSUMER if facts.checkpoint is None else StreamCause.STOPPED_QUERY
    if age is not None:
        since = f"nothing was landed for {span(age)}"
    elif landed := backlog.entry.landed:
        since = f"the last landing's snapshot has expired, with {format_ranges(landed)} landed"
    else:
        since = "nothing was landed yet"
    return StreamState.STALLED, StreamReason(stopped, f"{since}, and {text}")


def _late_reasons(backlog: TopicBacklog | None) -> Iterator[StreamReason]:
    """Yield a reason if only some partitions have overdue records."""
    if backlog is None or not backlog.overdue:
        return
    late = [partition for _, partition in backlog.overdue.partitions]
    if len(late) < len(backlog.state.marks):
        where, have = partitions_text(backlog.topic, late), "has" if len(late) == 1 else "have"
        yield StreamReason(
            StreamCause.LATE_PARTITION, f"only {where} {have} overdue offsets: {format_ranges(backlog.overdue)}"
        )


def _engine(facts: StreamFacts, now_ms: int) -> LandingEngine | None:
    """Return the engine of the last landing, or Spark if a query's last sign of life is later than the landing."""
    newest = next((record for record in facts.history.recent if record.engine is not None), None)
    if newest is None:
        return None if facts.query is None and facts.checkpoint is None else LandingEngine.SPARK
    if facts.query is not None and facts.query.last_seen_ms(now_ms) >= newest.at_ms:
        return LandingEngine.SPARK
    return newest.engine


def _partitions(backlog: TopicBacklog) -> dict[int, dict[str, int | None]]:
    def width(ranges: RangeSet, partition: int) -> int:
        return ranges.of_partition(backlog.topic, partition).width

    return {
        p: {
            "end": marks.end,
            "lag": width(backlog.lacking, p) + width(backlog.lost, p),
            "overdue": None if p in backlog.unknown else width(backlog.overdue, p),
        }
        for p, marks in sorted(backlog.state.marks.items())
    }
