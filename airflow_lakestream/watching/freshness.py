"""The look of a sensor for a table that has to be fresh, or complete up to a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from airflow_lakestream.config import arguments
from airflow_lakestream.config.settings import SettingField
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.policies import MissingPolicy, is_given
from airflow_lakestream.core.ports import BEGINNING_MS
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.source import CLOCK_SKEW_MS
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.lakes import LakeCapability, lake_of
from airflow_lakestream.tables.coordinates import iso
from airflow_lakestream.watching.asking import LookConnections, Looking, LookOutcome, LookQuestion, Verdict
from airflow_lakestream.watching.causes import StreamCause, StreamReason, format_ranges, join_reasons, span
from airflow_lakestream.watching.completeness import (
    CompletenessQuestions,
    EventTimes,
    Step,
    covered_part,
    measure_completeness,
)
from airflow_lakestream.watching.lag.waiting import TopicBacklog, topics_of
from airflow_lakestream.watching.source import ask_kafka, ask_table
from airflow_lakestream.watching.streams.landings import BranchHistory, look_back, read_ledgers

# Iceberg's operations of snapshots.
_OPERATIONS = ("append", "overwrite", "replace", "delete")


def _text(_: str, value: object) -> str | None:
    return str(value) if is_given(value) else None


def _branch(_: str, value: object) -> str:
    return str(value) if is_given(value) else MAIN_BRANCH


def _operations(argument: str, value: object) -> tuple[str, ...]:
    given = arguments.items(argument, value) or ()
    for operation in given:
        if operation not in _OPERATIONS:
            raise InvalidArgument(argument, f"{operation!r} is not one of {', '.join(_OPERATIONS)}.")
    return given


@dataclass(frozen=True)
class FreshnessConditions:
    """Conditions for a fresh table: arguments of `IcebergSnapshotFreshnessSensor`.

    Ages are seconds, `complete_through` is milliseconds since the epoch. A condition that is None always holds.
    """

    table: str
    consumer_group: SettingField[str | None] = SettingField(None, _text)
    branch: SettingField[str] = SettingField(None, _branch)
    operations: SettingField[tuple[str, ...]] = SettingField(None, _operations)
    max_age: SettingField[float | None] = SettingField(None)
    event_time_column: SettingField[str | None] = SettingField(None, _text)
    complete_through: SettingField[int | None] = SettingField(None)
    idle_is_fresh: SettingField[bool] = SettingField(True)
    idle_after: SettingField[float | None] = SettingField(None)


@dataclass(frozen=True, slots=True)
class FreshnessResult:
    """Result of a look: whether the table is fresh, and the reasons.

    `snapshot_id` and `rows` are of the newest landing that counts. `age` is the age of the newest landing or event, in
    seconds. `through_ms` is the time, in milliseconds since the epoch, up to which the table is known to be complete,
    or None if `complete_through` is not reached; with `max_age` alone the time of the newest landing or event.
    """

    fresh: bool
    table: str
    reasons: tuple[StreamReason, ...]
    snapshot_id: int | None = None
    age: float | None = None
    rows: int | None = None
    through_ms: int | None = None

    @property
    def message(self) -> str:
        """The result as a line of text."""
        return f"{self.table} is {'fresh' if self.fresh else 'not fresh'}" + (
            f": {join_reasons(self.reasons)}" if self.reasons else ""
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; the id as text, since browsers round 64-bit numbers."""
        return {
            "table": self.table,
            "fresh": self.fresh,
            "snapshot_id": None if self.snapshot_id is None else str(self.snapshot_id),
            "age": self.age,
            "rows": self.rows,
            "through": None if self.through_ms is None else iso(self.through_ms),
            "reasons": [one.to_dict() for one in self.reasons],
        }


@dataclass(frozen=True, slots=True)
class FreshnessFacts:
    """Facts about a table. A fact that does not matter is not looked up, and has the default.

    `event_ms` is the time of the newest event, or None without `event_time_column` or without events. `backlogs` are
    pairs of a group and its backlog in a topic; empty if Kafka was not asked. `incomplete` are the reasons for which
    `complete_through` is not reached: empty if it is reached, None if it is not given.
    """

    history: BranchHistory
    event_ms: int | None = None
    backlogs: tuple[tuple[str, TopicBacklog], ...] = ()
    incomplete: tuple[StreamReason, ...] | None = None


def measure_freshness(wanted: FreshnessConditions, facts: FreshnessFacts, now_ms: int) -> FreshnessResult:
    """Decide whether a table is fresh: whether `max_age` and `complete_through` hold, if given.

    A table past `max_age` also counts as fresh if its topics are idle; see `_judge_late`.

    :param now_ms: the time of the look, in milliseconds since the epoch.
    """
    fresh, reasons = True, list[StreamReason]()
    newest, reached = facts.history.newest, reached_ms(wanted, facts)
    age = None if reached is None else max(0, now_ms - reached) / 1000
    through = reached
    if wanted.max_age is not None and not is_young(wanted, facts, now_ms):
        fresh, reason = _judge_late(wanted, facts, age, now_ms)
        reasons.append(reason)
    if facts.incomplete is not None:
        fresh = fresh and not facts.incomplete
        reasons += facts.incomplete
        through = None if facts.incomplete else wanted.complete_through
    if not fresh:
        reasons += facts.history.reasons(now_ms)
    snapshot = {"snapshot_id": newest.snapshot_id, "rows": newest.rows} if newest is not None else {}
    return FreshnessResult(fresh, wanted.table, tuple(reasons), age=age, through_ms=through, **snapshot)


def reached_ms(wanted: FreshnessConditions, facts: FreshnessFacts) -> int | None:
    """Return the time of the newest landing, or of the newest event if `event_time_column` is given.

    The time is in milliseconds since the epoch; None without a landing or an event that counts.
    """
    if wanted.event_time_column is not None:
        return facts.event_ms
    return facts.history.landed_ms


def is_young(wanted: FreshnessConditions, facts: FreshnessFacts, now_ms: int) -> bool:
    """Return whether the newest landing or event is within `max_age`; True without `max_age`.

    Idle topics are not considered here: `_judge_late` considers them.
    """
    reached = reached_ms(wanted, facts)
    return wanted.max_age is None or (reached is not None and now_ms - reached <= wanted.max_age * 1000)


def no_landing_reason(wanted: FreshnessConditions, history: BranchHistory) -> StreamReason:
    """Return the reason for a table without a counting landing: never landed, or expired."""
    if history.expired:
        return StreamReason(
            StreamCause.EXPIRED_LANDING, "the snapshots of all landings have expired, so their age is unknown"
        )
    if wanted.operations:
        return StreamReason(StreamCause.NO_LANDING, f"there is no snapshot of operation {', '.join(wanted.operations)}")
    by = f" by group {wanted.consumer_group}" if wanted.consumer_group else ""
    return StreamReason(StreamCause.NO_LANDING, f"nothing was landed{by} yet")


def _judge_late(
    wanted: FreshnessConditions, facts: FreshnessFacts, age: float | None, now_ms: int
) -> tuple[bool, StreamReason]:
    """Return whether a table past `max_age` counts as fresh, and the reason for the age.

    The table counts as fresh only if Kafka was asked, all records of all topics are landed, and `idle_is_fresh` is set.
    """
    assert wanted.max_age is not None, "see the caller"
    behind = [(group, one) for group, one in facts.backlogs if one.lacking or one.lost]
    age_text = (
        f"the newest {wanted.event_time_column or 'landing'} is {'unknown' if age is None else f'{span(age)} old'}"
    )
    if facts.backlogs and not behind:
        topics = ", ".join(sorted({one.topic for _, one in facts.backlogs}))
        return wanted.idle_is_fresh, StreamReason(StreamCause.IDLE_TOPIC, f"all of {topics} is landed, {age_text}")
    if (landed_ms := facts.history.landed_ms) is None:
        return False, no_landing_reason(wanted, facts.history)
    lands = now_ms - landed_ms <= wanted.max_age * 1000
    lacks = [
        f"group {group} lacks {one.lacking.width:,} offsets: {format_ranges(one.lacking)}" for group, one in behind
    ]
    text = "; ".join([f"{age_text}, allowed are {span(wanted.max_age)}", *lacks])
    return False, StreamReason(StreamCause.LATE_EVENTS if lands else StreamCause.STOPPED_CONSUMER, text)


@dataclass(frozen=True, kw_only=True)
class FreshnessCheck(FreshnessConditions):
    """`watching.asking.LookCheck` of `IcebergSnapshotFreshnessSensor`, with the arguments of the sensor."""

    iceberg_conn_id: str
    kafka_conn_id: str | None = None
    fail_when_stale: SettingField[bool] = SettingField(False)
    missing: SettingField[MissingPolicy] = SettingField(MissingPolicy.FAIL)

    def __post_init__(self) -> None:
        lake = lake_of(str(self.table))
        lake.require(LakeCapability.FRESHNESS, "table", self.table)
        object.__setattr__(self, "table", lake.check_name(str(self.table)))
        if self.max_age is None and self.complete_through is None:
            raise InvalidArgument(
                "max_age", "is missing, and so is complete_through.", 'Give one: max_age="15m", for instance.'
            )
        if self.event_time_column is not None and self.max_age is None:
            raise InvalidArgument("event_time_column", "needs max_age: how old its newest value may be.")
        if self.idle_after is not None and self.complete_through is None:
            raise InvalidArgument("idle_after", "goes with complete_through.")
        if self.complete_through is not None and not is_given(self.kafka_conn_id):
            raise InvalidArgument("kafka_conn_id", "is missing.", "complete_through needs it to find offsets by time.")

    @property
    def subject(self) -> str:
        """The table."""
        return f"{self.iceberg_conn_id}/{self.table}"

    def look(self, connections: LookConnections, waited: float) -> Looking:
        """Look once; see `watching.asking.LookCheck`.

        Kafka is asked only for `complete_through`, or, with `kafka_conn_id`, whether the topics of a table past
        `max_age` are idle.
        """
        now_ms = int(time.time() * 1000)
        table: Table = yield from ask_table(connections, self.iceberg_conn_id, self.table)
        facts: FreshnessFacts = yield self._ask("landings", table, partial(self._landings, table, now_ms))
        if self._asks_kafka(facts, now_ms):
            facts = yield from self._of_kafka(connections, table, facts, now_ms)
        result = measure_freshness(self, facts, now_ms)
        late = LookOutcome.FAILED if self.fail_when_stale else LookOutcome.WAITING
        outcome = LookOutcome.DONE if result.fresh else late
        return Verdict(outcome, result.reasons, result.to_dict())

    def _asks_kafka(self, facts: FreshnessFacts, now_ms: int) -> bool:
        if self.complete_through is not None:
            return True
        return is_given(self.kafka_conn_id) and not is_young(self, facts, now_ms)

    def _landings(self, table: Table, now_ms: int) -> FreshnessFacts:
        since = None
        if self.event_time_column is not None and self.max_age is not None:
            # No event in an earlier landing is young enough.
            since = now_ms - int(self.max_age * 1000)
        history = look_back(table, self.consumer_group, self.branch, self.operations, since)
        return FreshnessFacts(history, self._event(table, history, now_ms))

    def _event(self, table: Table, history: BranchHistory, now_ms: int) -> int | None:
        if self.event_time_column is None:
            return None
        column = EventTimes.of(table, self.event_time_column)
        return column.newest([one.snapshot_id for one in history.recent], now_ms + CLOCK_SKEW_MS)

    def _of_kafka(self, connections: LookConnections, table: Table, facts: FreshnessFacts, now_ms: int) -> Step:
        """Return the facts with the groups' backlogs, and with the reasons for an incomplete time.

        Without a backlog the time is incomplete: nothing was landed. The reasons stay None without `complete_through`.
        """
        backlogs = []
        reasons: list[StreamReason] | None = [] if self.complete_through is not None else None
        watch: KafkaWatch = yield ask_kafka(connections, str(self.kafka_conn_id))
        completing = CompletenessQuestions(watch, str(self.kafka_conn_id), self.table)
        of = partial(read_ledgers, table, self.consumer_group, self.branch)
        ledgers: Mapping[str, Ledger] = yield self._ask("ledgers", table, of)
        for group, ledger in ledgers.items():
            for topic in topics_of(ledger):
                backlogs.append((group, (yield from completing.backlog(ledger, topic))))
                if reasons is not None:
                    reasons += yield from self._incomplete(completing, group, backlogs[-1][1], now_ms)
        if reasons is not None and not backlogs:
            reasons.append(no_landing_reason(self, facts.history))
        return replace(facts, backlogs=tuple(backlogs), incomplete=None if reasons is None else tuple(reasons))

    def _incomplete(self, completing: CompletenessQuestions, group: str, backlog: TopicBacklog, now_ms: int) -> Step:
        at_ms, after = self.complete_through, self.idle_after
        assert at_ms is not None, "see the caller"
        if at_ms <= BEGINNING_MS:
            return []
        highs = yield completing.boundaries(backlog, at_ms)
        part, lows = covered_part(backlog.entry, at_ms), None
        if part is not None:
            lows = yield completing.boundaries(backlog, part[0])
        is_idle = after is not None and now_ms - at_ms >= after * 1000
        ends = (yield completing.ends(backlog)) if is_idle else None
        result = measure_completeness(backlog, highs, lows, self.table, ends=ends)
        return result.reasons(group, iso(at_ms))

    def _ask(self, kind: str, table: Table, answer: Any) -> LookQuestion:
        same = tuple(getattr(self, one.name) for one in fields(FreshnessConditions) if one.name != "complete_through")
        return LookQuestion((kind, self.iceberg_conn_id, table.metadata_location, same), answer)
