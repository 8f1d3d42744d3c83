"""The look of a sensor that waits until a table is fresh, and whether a table is complete up to a time.

The rule is the ledger's: B(t) is a partition's first offset with a timestamp at or after t; without such a record the
boundary is open. The time is complete if the ledger holds all offsets below B(t), and no boundary is open. Then no
record from before it can come.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyiceberg.table import Table

from airflow_lakestream.config import arguments
from airflow_lakestream.core.landing.plan import DataLoss, LogTruncated
from airflow_lakestream.core.ledger import Ledger, TopicEntry, union
from airflow_lakestream.core.policies import Missing, choose, is_given
from airflow_lakestream.core.ports import BEGINNING_MS, Boundary
from airflow_lakestream.core.ranges import Interval, RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.source import CLOCK_SKEW_MS
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.tables.instants import iso
from airflow_lakestream.watching.asking import Ask, Looking, LookOutcome, Places, Verdict
from airflow_lakestream.watching.causes import Cause, Reason, some
from airflow_lakestream.watching.freshness.event_time import EventTimes
from airflow_lakestream.watching.freshness.freshness import Facts, Wanted, freshness, is_young, nothing
from airflow_lakestream.watching.lag.waiting import Backlog, backlog_of, topics_of
from airflow_lakestream.watching.source import ask_kafka, ask_table
from airflow_lakestream.watching.streams.landings import History, ledgers, look_back


@dataclass(frozen=True, slots=True)
class Completeness:
    """What keeps a time from being complete; nothing if it is complete.

    `missing` are offsets below the boundaries that are not landed. `open` are the partitions whose boundary is open,
    `before` those in which the group begins after the time. `covered`: the ledger says where the time's offsets begin.
    """

    topic: str
    partitions: int
    missing: RangeSet
    open: tuple[int, ...]
    before: tuple[int, ...]
    covered: bool = True

    @property
    def is_complete(self) -> bool:
        """Whether everything is landed and no more can come."""
        return self.covered and not (self.missing or self.open or self.before)

    def reasons(self, group: str, at: str) -> list[Reason]:
        """Return what keeps the time from being complete.

        :param at: the time, as text.
        """
        found = []
        if not self.covered:
            text = f"group {group} has neither resumed on {self.topic} nor landed an interval that reaches {at}"
            return [Reason(Cause.NOT_COVERED, text)]
        if self.before:
            where = _names(self.topic, self.before)
            found.append(Reason(Cause.NOT_COVERED, f"group {group} begins after {at} in {where}"))
        if self.missing:
            text = f"group {group} lacks {self.missing.width} offsets from before {at}: {some(self.missing)}"
            found.append(Reason(Cause.SLOW_CONSUMER, text))
        if self.open and len(self.open) < self.partitions:
            where = _names(self.topic, self.open)
            found.append(Reason(Cause.LATE_PARTITION, f"{where} have no record at or after {at} yet; the others have"))
        elif self.open:
            text = f"no partition of {self.topic} has a record at or after {at} yet: more may come from before it"
            found.append(Reason(Cause.OPEN_INTERVAL, text))
        return found


def covered_part(entry: TopicEntry, at_ms: int) -> Interval | None:
    """Return the covered time that reaches up to `at_ms`, in milliseconds since the epoch, or None."""
    return next((part for part in entry.covered if part[0] < at_ms <= part[1]), None)


def completeness(
    backlog: Backlog,
    highs: Mapping[int, Boundary],
    lows: Mapping[int, Boundary] | None,
    table: str,
    *,
    idle_closes: bool,
) -> Completeness:
    """Decide whether all of a topic is landed up to a time.

    :param highs: the boundary of the time, by partition.
    :param lows: where the covered time that reaches up to it begins; None without one.
    :param idle_closes: a partition without a record at or after the time counts as closed once all of it is landed.

    Raises DataLoss for offsets that Kafka no longer has.
    """
    state, entry, topic = backlog.state, backlog.entry, backlog.topic
    if not entry.origin and lows is None:
        return Completeness(topic, len(highs), RangeSet(), (), (), covered=False)
    begins = {p: _begin(backlog, lows or {}, p) for p in highs}
    missing = union(RangeSet.of(topic, p, begins[p], high.offset) for p, high in highs.items()) - entry.held
    below_low = union(RangeSet.of(topic, p, 0, marks.low) for p, marks in state.marks.items())
    if lost := missing & below_low:
        raise DataLoss(lost, table)
    is_open = [p for p, high in highs.items() if high.is_open]
    if idle_closes:
        is_open = [p for p in is_open if missing.intervals(topic, p)]
    before = tuple(sorted(p for p, high in highs.items() if begins[p] > high.offset))
    return Completeness(topic, len(highs), missing, tuple(sorted(is_open)), before)


def _begin(backlog: Backlog, lows: Mapping[int, Boundary], partition: int) -> int:
    """Return the partition's first offset that belongs to the group, for this time."""
    origin = backlog.entry.origin
    # A partition added after the origin was fixed begins at 0.
    begins = [origin.get(partition, 0)] if origin else []
    begins += [lows[partition].offset] if partition in lows else []
    return min(begins, default=0)


def _names(topic: str, partitions: tuple[int, ...]) -> str:
    return f"{topic}[{', '.join(map(str, partitions))}]"


# A step of a look: asks questions, and returns a result.
Step = Generator[Ask, Any, Any]


@dataclass(frozen=True)
class FreshnessCheck:
    """`watching.asking.Check` of `IcebergSnapshotFreshnessSensor`; see it for the arguments."""

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
    missing: Any = Missing.FAIL
    wanted: Wanted = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", Wanted.of(vars(self)))
        object.__setattr__(self, "missing", choose(Missing, "missing", self.missing))
        if self.wanted.complete_through is not None and not is_given(self.kafka_conn_id):
            raise InvalidArgument("kafka_conn_id", "is missing.", "complete_through needs it to find offsets by time.")

    @property
    def subject(self) -> str:
        """The table."""
        return f"{self.iceberg_conn_id}/{self.wanted.table}"

    def look(self, places: Places, waited: float) -> Looking:
        """Look once; see `watching.asking.Check`."""
        now_ms = int(time.time() * 1000)
        table: Table = yield from ask_table(places, self.iceberg_conn_id, self.wanted.table)
        facts: Facts = yield self._ask("landings", table, partial(self._landings, table, now_ms))
        if self._asks_kafka(facts, now_ms):
            facts = yield from self._of_kafka(places, table, facts, now_ms)
        found = freshness(self.wanted, facts, now_ms)
        late = LookOutcome.FAILED if arguments.flag("fail_when_stale", self.fail_when_stale) else LookOutcome.WAITING
        outcome = LookOutcome.DONE if found.fresh else late
        return Verdict(outcome, found.reasons, found.to_dict())

    def _asks_kafka(self, facts: Facts, now_ms: int) -> bool:
        if self.wanted.complete_through is not None:
            return True
        return is_given(self.kafka_conn_id) and not is_young(self.wanted, facts, now_ms)

    def _landings(self, table: Table, now_ms: int) -> Facts:
        wanted, since = self.wanted, None
        if wanted.event_time_column is not None and wanted.max_age is not None:
            # Earlier landings can hold no event that is young enough.
            since = now_ms - int(wanted.max_age * 1000)
        history = look_back(table, wanted.consumer_group, wanted.branch, wanted.operations, since)
        return Facts(history, self._event(table, history, now_ms))

    def _event(self, table: Table, history: History, now_ms: int) -> int | None:
        if self.wanted.event_time_column is None:
            return None
        column = EventTimes.of(table, self.wanted.event_time_column)
        return column.newest([one.snapshot_id for one in history.recent], now_ms + CLOCK_SKEW_MS)

    def _of_kafka(self, places: Places, table: Table, facts: Facts, now_ms: int) -> Step:
        """Ask what the groups lack of their topics, and whether the time is complete."""
        wanted, found = self.wanted, []
        reasons: list[Reason] | None = [] if wanted.complete_through is not None else None
        watch: KafkaWatch = yield ask_kafka(places, str(self.kafka_conn_id))
        of = partial(ledgers, table, wanted.consumer_group, wanted.branch)
        known: Mapping[str, Ledger] = yield self._ask("ledgers", table, of)
        for group, ledger in known.items():
            for topic in topics_of(ledger):
                found.append((group, (yield from self._backlog(watch, ledger, topic))))
                if reasons is not None:
                    reasons += yield from self._incomplete(watch, group, found[-1][1], now_ms)
        if reasons is not None and not found:
            reasons.append(nothing(wanted, facts.history))
        return replace(facts, backlogs=tuple(found), incomplete=None if reasons is None else tuple(reasons))

    def _backlog(self, watch: KafkaWatch, ledger: Ledger, topic: str) -> Step:
        key, answer = ("topic", self.kafka_conn_id, topic), partial(watch.topic, topic)
        state = yield Ask((*key, True), answer)
        try:
            return backlog_of(ledger, state, self.wanted.table)
        except LogTruncated:
            # The shared answer may be older than the ledger: ask Kafka once more.
            return backlog_of(ledger, (yield Ask((*key, False), answer, keep=0.0)), self.wanted.table)

    def _incomplete(self, watch: KafkaWatch, group: str, backlog: Backlog, now_ms: int) -> Step:
        at_ms, after = self.wanted.complete_through, self.wanted.idle_after
        assert at_ms is not None, "see the caller"
        if at_ms <= BEGINNING_MS:
            return []
        highs = yield self._ask_boundaries(watch, backlog, at_ms)
        part, lows = covered_part(backlog.entry, at_ms), None
        if part is not None:
            lows = yield self._ask_boundaries(watch, backlog, part[0])
        idle_closes = after is not None and now_ms - at_ms >= after * 1000
        found = completeness(backlog, highs, lows, self.wanted.table, idle_closes=idle_closes)
        return found.reasons(group, iso(at_ms))

    def _ask_boundaries(self, watch: KafkaWatch, backlog: Backlog, at_ms: int) -> Ask:
        # Use the ends of the same look: a boundary at or past them is open.
        ends = tuple(sorted((p, marks.end) for p, marks in backlog.state.marks.items()))
        key = ("boundaries", self.kafka_conn_id, backlog.state.identity, ends, at_ms)
        return Ask(key, partial(watch.boundaries, backlog.state, at_ms))

    def _ask(self, what: str, table: Table, answer: Any) -> Ask:
        key = (what, self.iceberg_conn_id, table.metadata_location, replace(self.wanted, complete_through=None))
        return Ask(key, answer)
