"""The look of a sensor for a table that has to be fresh, or complete up to a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyiceberg.table import Table

from airflow_lakestream.config import arguments
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.policies import MissingPolicy, choose, is_given
from airflow_lakestream.core.ports import BEGINNING_MS
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.source import CLOCK_SKEW_MS
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.tables.instants import iso
from airflow_lakestream.watching.asking import LookConnections, Looking, LookOutcome, LookQuestion, Verdict
from airflow_lakestream.watching.causes import StreamReason
from airflow_lakestream.watching.freshness.completeness import CompletenessQuestions, Step, completeness, covered_part
from airflow_lakestream.watching.freshness.event_time import EventTimes
from airflow_lakestream.watching.freshness.freshness import (
    FreshnessConditions,
    FreshnessFacts,
    freshness,
    is_young,
    nothing,
)
from airflow_lakestream.watching.lag.waiting import TopicBacklog, topics_of
from airflow_lakestream.watching.source import ask_kafka, ask_table
from airflow_lakestream.watching.streams.landings import BranchHistory, ledgers, look_back


@dataclass(frozen=True)
class FreshnessCheck:
    """`watching.asking.Check` of `IcebergSnapshotFreshnessSensor`, with the arguments of the sensor."""

    table: str
    iceberg_conn_id: str
    kafka_conn_id: str | None = None
    consumer_group: str | None = None
    branch: str | None = None
    operations: Any = None
    max_age: Any = None
    event_time_column: str | None = None
    complete_through: Any = None
    idle_is_fresh: Any = True
    idle_after: Any = None
    fail_when_stale: Any = False
    missing: Any = MissingPolicy.FAIL
    wanted: FreshnessConditions = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", FreshnessConditions.of(vars(self)))
        object.__setattr__(self, "missing", choose(MissingPolicy, "missing", self.missing))
        if self.wanted.complete_through is not None and not is_given(self.kafka_conn_id):
            raise InvalidArgument("kafka_conn_id", "is missing.", "complete_through needs it to find offsets by time.")

    @property
    def subject(self) -> str:
        """The table."""
        return f"{self.iceberg_conn_id}/{self.wanted.table}"

    def look(self, places: LookConnections, waited: float) -> Looking:
        """Look once; see `watching.asking.Check`."""
        now_ms = int(time.time() * 1000)
        table: Table = yield from ask_table(places, self.iceberg_conn_id, self.wanted.table)
        facts: FreshnessFacts = yield self._ask("landings", table, partial(self._landings, table, now_ms))
        if self._asks_kafka(facts, now_ms):
            facts = yield from self._of_kafka(places, table, facts, now_ms)
        found = freshness(self.wanted, facts, now_ms)
        late = LookOutcome.FAILED if arguments.flag("fail_when_stale", self.fail_when_stale) else LookOutcome.WAITING
        outcome = LookOutcome.DONE if found.fresh else late
        return Verdict(outcome, found.reasons, found.to_dict())

    def _asks_kafka(self, facts: FreshnessFacts, now_ms: int) -> bool:
        if self.wanted.complete_through is not None:
            return True
        return is_given(self.kafka_conn_id) and not is_young(self.wanted, facts, now_ms)

    def _landings(self, table: Table, now_ms: int) -> FreshnessFacts:
        wanted, since = self.wanted, None
        if wanted.event_time_column is not None and wanted.max_age is not None:
            # No event in an earlier landing is young enough.
            since = now_ms - int(wanted.max_age * 1000)
        history = look_back(table, wanted.consumer_group, wanted.branch, wanted.operations, since)
        return FreshnessFacts(history, self._event(table, history, now_ms))

    def _event(self, table: Table, history: BranchHistory, now_ms: int) -> int | None:
        if self.wanted.event_time_column is None:
            return None
        column = EventTimes.of(table, self.wanted.event_time_column)
        return column.newest([one.snapshot_id for one in history.recent], now_ms + CLOCK_SKEW_MS)

    def _of_kafka(self, places: LookConnections, table: Table, facts: FreshnessFacts, now_ms: int) -> Step:
        """Add to the facts the groups' backlogs, and the reasons for which the time is not complete."""
        wanted, found = self.wanted, []
        reasons: list[StreamReason] | None = [] if wanted.complete_through is not None else None
        watch: KafkaWatch = yield ask_kafka(places, str(self.kafka_conn_id))
        completing = CompletenessQuestions(watch, str(self.kafka_conn_id), wanted.table)
        of = partial(ledgers, table, wanted.consumer_group, wanted.branch)
        known: Mapping[str, Ledger] = yield self._ask("ledgers", table, of)
        for group, ledger in known.items():
            for topic in topics_of(ledger):
                found.append((group, (yield from completing.backlog(ledger, topic))))
                if reasons is not None:
                    reasons += yield from self._incomplete(completing, group, found[-1][1], now_ms)
        if reasons is not None and not found:
            reasons.append(nothing(wanted, facts.history))
        return replace(facts, backlogs=tuple(found), incomplete=None if reasons is None else tuple(reasons))

    def _incomplete(self, completing: CompletenessQuestions, group: str, backlog: TopicBacklog, now_ms: int) -> Step:
        at_ms, after = self.wanted.complete_through, self.wanted.idle_after
        assert at_ms is not None, "see the caller"
        if at_ms <= BEGINNING_MS:
            return []
        highs = yield completing.boundaries(backlog, at_ms)
        part, lows = covered_part(backlog.entry, at_ms), None
        if part is not None:
            lows = yield completing.boundaries(backlog, part[0])
        is_idle = after is not None and now_ms - at_ms >= after * 1000
        ends = (yield completing.ends(backlog)) if is_idle else None
        found = completeness(backlog, highs, lows, self.wanted.table, ends=ends)
        return found.reasons(group, iso(at_ms))

    def _ask(self, what: str, table: Table, answer: Any) -> LookQuestion:
        key = (what, self.iceberg_conn_id, table.metadata_location, replace(self.wanted, complete_through=None))
        return LookQuestion(key, answer)
