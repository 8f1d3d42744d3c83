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
from airflow_lakestream.watching.asking import LookConnections, Looking, LookOutcome, LookQuestion, Step, Verdict
from airflow_lakestream.watching.causes import StreamCause, StreamReason, format_ranges, join_reasons, span
from airflow_lakestream.watching.completeness import (
    CompletenessQuestions,
    EventTimes,
    covered_part,
    measure_completeness,
)
from airflow_lakestream.watching.lag.waiting import TopicBacklog, topics_of
from airflow_lakestream.watching.source import ask_kafka, ask_table
from airflow_lakestream.watching.streams.landings import BranchHistory, look_back, read_ledgers

_OPERATIONS = ("append", "overwrite", "replace", "delete")  # Iceberg's operations of snapshots


# Parsers of settings: from the argument's name and its value to the value of the field.
def _text(_: str, value: object) -> str | None:
    return str(value) if is_given(value) else None


def _branch(_: str, value: object) -> str:
    return str(value) if is_given(value) else MAIN_BRANCH


def _operations(argument: str, value: object) -> tuple[str, ...]:
    operations = arguments.items(argument, value) or ()
    for operation in operations:
        if operation not in _OPERATIONS:
            raise InvalidArgument(argument, f"{operation!r} is not one of {', '.join(_OPERATIONS)}.")
    return operations


@dataclass(frozen=True)
class FreshnessConditions:
    """Conditions for a fresh table: arguments of `IcebergSnapshotFreshnessSensor`.

    `max_age` and `idle_after` are seconds, `complete_through` is milliseconds since the epoch. A condition that is None
    always holds. `idle_is_fresh`: a table past `max_age` counts as fresh if all records of its topics are landed.
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
    seconds. `through_ms`, in milliseconds since the epoch, is the time up to which the table is complete, or None if
    `complete_through` is not reached. Without `complete_through` it is the time of the newest landing or event.
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
            "reasons": [reason.to_dict() for reason in self.reasons],
        }


@dataclass(frozen=True, slots=True)
class FreshnessFacts:
    """Facts about a table. A fact that no condition needs is not looked up: its field has the default.

    `event_ms` is the time of the newest event, in milliseconds since the epoch, or None without `event_time_column` or
    without events. `backlogs` are pairs of a group and its backlog in a topic; empty if Kafka was not asked.
    `incomplete` are the reasons for which the table is not complete up to `complete_through`: empty for a complete
    table, None without `complete_through`.
    """

    history: BranchHistory
    event_ms: int | None = None
    backlogs: tuple[tuple[str, TopicBacklog], ...] = ()
    incomplete: tuple[StreamReason, ...] | None = None


def measure_freshness(wanted: FreshnessConditions, facts: FreshnessFacts, now_ms: int) -> FreshnessResult:
    """Decide whether a table is fresh: whether the conditions `max_age` and `complete_through` hold.

    A table past `max_age` also counts as fresh if its topics are idle; see `_judge_late`.

    :param wanted: the conditions.
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
    """Return the reason for a table without a landing that counts: nothing was landed, or its snapshot has expired."""
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
    """Return whether a table past `max_age` counts as fresh, and the reason for its age.

    The table counts as fresh only if Kafka was asked, all records of all topics are landed, and `idle_is_fresh` is set.

    :param age: seconds since the newest landing or event, or None if unknown.
    """
    assert wanted.max_age is not None, "the caller checks the age only with max_age"
    behind = [(group, backlog) for group, backlog in facts.backlogs if backlog.lacking or backlog.lost]
    age_text = (
        f"the newest {wanted.event_time_column or 'landing'} is {'unknown' if age is None else f'{span(age)} old'}"
    )
    if facts.backlogs and not behind:
        topics = ", ".join(sorted({backlog.topic for _, backlog in facts.backlogs}))
        return wanted.idle_is_fresh, StreamReason(StreamCause.IDLE_TOPIC, f"all of {topics} is landed, {age_text}")
    if (landed_ms := facts.history.landed_ms) is None:
        return False, no_landing_reason(wanted, facts.history)
    is_landing = now_ms - landed_ms <= wanted.max_age * 1000
    lacks = [
        f"group {group} lacks {backlog.lacking.width:,} offsets: {format_ranges(backlog.lacking)}"
        for group, backlog in behind
    ]
    text = "; ".join([f"{age_text}, allowed are {span(wanted.max_age)}", *lacks])
    return False, StreamReason(StreamCause.LATE_EVENTS if is_landing else StreamCause.STOPPED_CONSUMER, text)


@dataclass(frozen=True, kw_only=True)
class FreshnessCheck(FreshnessConditions):
    """`watching.asking.LookCheck` of `IcebergSnapshotFreshnessSensor`: the fields are the sensor's arguments."""

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

        Kafka is asked in two cases: for `complete_through`, and for a table past `max_age`, if `kafka_conn_id` is set,
        whether its topics are idle.
        """
        now_ms = int(time.time() * 1000)
        table: Table = yield from ask_table(connections, self.iceberg_conn_id, self.table)
        facts: FreshnessFacts = yield self._ask("landings", table, partial(self._facts_of_table, table, now_ms))
        if self._asks_kafka(facts, now_ms):
            facts = yield from self._with_kafka(connections, table, facts, now_ms)
        result = measure_freshness(self, facts, now_ms)
        outcome_if_stale = LookOutcome.FAILED if self.fail_when_stale else LookOutcome.WAITING
        outcome = LookOutcome.DONE if result.fresh else outcome_if_stale
        return Verdict(outcome, result.reasons, result.to_dict())

    def _asks_kafka(self, facts: FreshnessFacts, now_ms: int) -> bool:
        if self.complete_through is not None:
            return True
        return is_given(self.kafka_conn_id) and not is_young(self, facts, now_ms)

    def _facts_of_table(self, table: Table, now_ms: int) -> FreshnessFacts:
        """Return the facts that the table alone shows: its history, and the time of the newest event."""
        since_ms = None
        if self.event_time_column is not None and self.max_age is not None:
            # Events of earlier landings are too old in any case.
            since_ms = now_ms - int(self.max_age * 1000)
        history = look_back(table, self.consumer_group, self.branch, self.operations, since_ms)
        return FreshnessFacts(history, self._newest_event_ms(table, history, now_ms))

    def _newest_event_ms(self, table: Table, history: BranchHistory, now_ms: int) -> int | None:
        if self.event_time_column is None:
            return None
        event_times = EventTimes.of(table, self.event_time_column)
        return event_times.newest([record.snapshot_id for record in history.recent], now_ms + CLOCK_SKEW_MS)

    def _with_kafka(self, connections: LookConnections, table: Table, facts: FreshnessFacts, now_ms: int) -> Step:
        """Return the facts with the groups' backlogs, and with the reasons against `complete_through`.

        Without `complete_through` the reasons stay None. Without a backlog nothing was landed, which is the reason.
        """
        backlogs = []
        reasons: list[StreamReason] | None = [] if self.complete_through is not None else None
        watch: KafkaWatch = yield ask_kafka(connections, str(self.kafka_conn_id))
        completing = CompletenessQuestions(watch, str(self.kafka_conn_id), self.table)
        read = partial(read_ledgers, table, self.consumer_group, self.branch)
        ledgers: Mapping[str, Ledger] = yield self._ask("ledgers", table, read)
        for group, ledger in ledgers.items():
            for topic in topics_of(ledger):
                backlog = yield from completing.backlog(ledger, topic)
                backlogs.append((group, backlog))
                if reasons is not None:
                    reasons += yield from self._incomplete(completing, group, backlog, now_ms)
        if reasons is not None and not backlogs:
            reasons.append(no_landing_reason(self, facts.history))
        return replace(facts, backlogs=tuple(backlogs), incomplete=None if reasons is None else tuple(reasons))

    def _incomplete(self, completing: CompletenessQuestions, group: str, backlog: TopicBacklog, now_ms: int) -> Step:
        """Return the reasons for which a group's topic is not complete up to `complete_through`."""
        at_ms, idle_after = self.complete_through, self.idle_after
        assert at_ms is not None, "the caller asks only with complete_through"
        if at_ms <= BEGINNING_MS:
            return []
        highs = yield completing.boundaries(backlog, at_ms)
        part, lows = covered_part(backlog.entry, at_ms), None
        if part is not None:
            lows = yield completing.boundaries(backlog, part[0])
        is_idle = idle_after is not None and now_ms - at_ms >= idle_after * 1000
        ends = (yield completing.ends(backlog)) if is_idle else None
        result = measure_completeness(backlog, highs, lows, self.table, ends=ends)
        return result.reasons(group, iso(at_ms))

    def _ask(self, kind: str, table: Table, answer: Any) -> LookQuestion:
        """Return a question about a state of the table; `kind` is the part of its key that names the question."""
        # These answers do not depend on `complete_through`, so that sensors of different times share them.
        conditions = tuple(
            getattr(self, condition.name)
            for condition in fields(FreshnessConditions)
            if condition.name != "complete_through"
        )
        return LookQuestion((kind, self.iceberg_conn_id, table.metadata_location, conditions), answer)
