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
from airflow_lakestream.watching.freshness.completeness import (
    CompletenessQuestions,
    Step,
    covered_part,
    measure_completeness,
)
from airflow_lakestream.watching.freshness.event_time import EventTimes
from airflow_lakestream.watching.freshness.freshness import (
    FreshnessConditions,
    FreshnessFacts,
    is_young,
    measure_freshness,
    no_landing_reason,
)
from airflow_lakestream.watching.lag.waiting import TopicBacklog, topics_of
from airflow_lakestream.watching.source import ask_kafka, ask_table
from airflow_lakestream.watching.streams.landings import BranchHistory, look_back, read_ledgers


@dataclass(frozen=True)
class FreshnessCheck:
    """`watching.asking.LookCheck` of `IcebergSnapshotFreshnessSensor`, with the arguments of the sensor."""

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

    def look(self, connections: LookConnections, waited: float) -> Looking:
        """Look once; see `watching.asking.LookCheck`."""
        now_ms = int(time.time() * 1000)
        table: Table = yield from ask_table(connections, self.iceberg_conn_id, self.wanted.table)
        facts: FreshnessFacts = yield self._ask("landings", table, partial(self._landings, table, now_ms))
        if self._asks_kafka(facts, now_ms):
            facts = yield from self._of_kafka(connections, table, facts, now_ms)
        result = measure_freshness(self.wanted, facts, now_ms)
        late = LookOutcome.FAILED if arguments.flag("fail_when_stale", self.fail_when_stale) else LookOutcome.WAITING
        outcome = LookOutcome.DONE if result.fresh else late
        return Verdict(outcome, result.reasons, result.to_dict())

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

    def _of_kafka(self, connections: LookConnections, table: Table, facts: FreshnessFacts, now_ms: int) -> Step:
        """Add to the facts the groups' backlogs, and the reasons for which the time is not complete."""
        wanted, backlogs = self.wanted, []
        reasons: list[StreamReason] | None = [] if wanted.complete_through is not None else None
        watch: KafkaWatch = yield ask_kafka(connections, str(self.kafka_conn_id))
        completing = CompletenessQuestions(watch, str(self.kafka_conn_id), wanted.table)
        of = partial(read_ledgers, table, wanted.consumer_group, wanted.branch)
        ledgers: Mapping[str, Ledger] = yield self._ask("ledgers", table, of)
        for group, ledger in ledgers.items():
            for topic in topics_of(ledger):
                backlogs.append((group, (yield from completing.backlog(ledger, topic))))
                if reasons is not None:
                    reasons += yield from self._incomplete(completing, group, backlogs[-1][1], now_ms)
        if reasons is not None and not backlogs:
            reasons.append(no_landing_reason(wanted, facts.history))
        return replace(facts, backlogs=tuple(backlogs), incomplete=None if reasons is None else tuple(reasons))

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
        result = measure_completeness(backlog, highs, lows, self.wanted.table, ends=ends)
        return result.reasons(group, iso(at_ms))

    def _ask(self, kind: str, table: Table, answer: Any) -> LookQuestion:
        key = (kind, self.iceberg_conn_id, table.metadata_location, replace(self.wanted, complete_through=None))
        return LookQuestion(key, answer)
