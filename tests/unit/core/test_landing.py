"""The landing loop against fakes of its ports: what it does when others get in first, and what it never does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.batch import RunLimits
from airflow_lakestream.core.landing.job import GIVE_WAY, MAX_CONFLICTS, Contention, LandingJob, Stopped
from airflow_lakestream.core.landing.modes import IntervalMode, ResumeMode
from airflow_lakestream.core.landing.plan import (
    LandedByAnotherGroup,
    LogTruncated,
    PartitionWatermarks,
    Plan,
    TopicReplaced,
    TopicState,
)
from airflow_lakestream.core.ledger import Counts, Landing, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.ports import LedgerConflict, OffsetsGone, RecordChunk, TableState, TimeBoundary
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.core.records import DecodedBatch, RawBatch
from airflow_lakestream.exceptions import InvalidArgument

TOPIC, TABLE, GROUP = "orders", "lake.orders", "g"
IDENTITY = TopicIdentity(TOPIC, "topic-id", "cluster-id")
Rows = list[tuple[int, int]]


@dataclass
class FakeTopic:
    """A topic: by partition the log's start and end. Source and reader at once; grows or loses when told."""

    logs: dict[int, tuple[int, int]]
    holes: RangeSet = field(default_factory=RangeSet)
    chunk_size: int = 4
    found: TopicIdentity = IDENTITY
    mirrored: dict[int, int] = field(default_factory=dict)

    def look(self) -> TopicState:
        return TopicState(self.found, {p: PartitionWatermarks(low, end) for p, (low, end) in self.logs.items()})

    def identity(self) -> TopicIdentity:
        return self.found

    def starts(self, state: TopicState) -> Mapping[int, int]:
        return {}

    def commit_offsets(self, offsets: Mapping[int, int]) -> None:
        self.mirrored = dict(offsets)

    def read(self, plan: Plan, cancelled: threading.Event) -> Iterator[RecordChunk]:
        for r in plan.ranges:
            for start in range(r.from_offset, r.until_offset, self.chunk_size):
                covers = OffsetRange(TOPIC, r.partition, start, min(start + self.chunk_size, r.until_offset))
                if start < self.logs[r.partition][0]:
                    raise OffsetsGone(TOPIC, r.partition, start)
                yield self._chunk(covers)

    def _chunk(self, covers: OffsetRange) -> RecordChunk:
        holes = self.holes.intervals(TOPIC, covers.partition)
        there = range(covers.from_offset, covers.until_offset)
        offsets = [o for o in there if not any(start <= o < end for start, end in holes)]
        batch = RawBatch(TOPIC, covers.partition, offsets, [0] * len(offsets), [b"{}"] * len(offsets))
        return RecordChunk(covers, batch, 2 * len(offsets))


class FakeTable:
    """A table: its rows and ledgers. A sink for one group; `before_commit` is what others do just then."""

    def __init__(self, exists: bool = True) -> None:
        self.exists = exists
        self.rows: Rows = []
        self.ledgers: dict[str, Ledger] = {GROUP: Ledger(GROUP)}
        self.landings: list[Landing] = []
        self.before_commit: list[Callable[[], object]] = []
        self.discards = 0
        self.changes: dict[int, list[str]] = {}
        self._uncommitted: Rows = []

    def load(self, run_id: str) -> TableState:
        mine = [(n, landing) for n, landing in enumerate(self.landings, 1) if landing.run_id == run_id]
        others = {group: ledger for group, ledger in self.ledgers.items() if group != GROUP}
        return TableState(self.ledgers[GROUP], others, mine, "schema" if self.exists else None, self.exists)

    def write(self, rows: Rows, identity: TopicIdentity) -> None:
        self._uncommitted += rows

    def commit(self, landing: Landing) -> int:
        if self.before_commit:
            self.before_commit.pop(0)()
        if taken := self.ledgers[GROUP].overlap(landing):
            raise LedgerConflict(TABLE, taken)
        self.ledgers[GROUP] = self.ledgers[GROUP].add(landing)
        self.landings.append(landing)
        self.rows += self._uncommitted
        self._uncommitted = []
        self.exists = True
        return len(self.landings)

    def schema_changes(self, snapshot_id: int) -> list[str]:
        return self.changes.get(snapshot_id, [])

    def discard(self) -> None:
        self.discards += 1
        self._uncommitted = []

    def others_land(self, run_id: str, *ranges: tuple[int, int, int], group: str = GROUP) -> None:
        """Let another run land ranges, rows and ledger together."""
        landed = RangeSet(OffsetRange(TOPIC, *r) for r in ranges)
        rows = [(r.partition, o) for r in landed for o in range(r.from_offset, r.until_offset)]
        entry = TopicEntry(landed=landed, counts=Counts(len(rows), len(rows)), origin={0: 0})
        landing = Landing(f"{run_id}-{len(self.landings)}", run_id, {IDENTITY: entry})
        self.ledgers[group] = self.ledgers.get(group, Ledger(group)).add(landing)
        self.landings.append(landing)
        self.rows += rows

    @property
    def landed(self) -> RangeSet:
        return self.ledgers[GROUP].entry(IDENTITY).landed


@dataclass
class FakeDecoder:
    """Makes (partition, offset) of each record; `drops` loses one, as a defect would."""

    drops: bool = False

    def decode(self, batch: RawBatch) -> DecodedBatch:
        rows = [(batch.partition, offset) for offset in batch.offsets]
        return DecodedBatch(rows[1:] if self.drops else rows, Counts(len(rows), len(rows)))


@dataclass
class FakeDecoders:
    """Decoders of columns that the records from offset `tells` on tell; what comes before waits, or is skipped."""

    tells: float = 0
    has_waiting: bool = False

    def __call__(self, schema: object, first: RawBatch | None) -> FakeDecoder | None:
        knows = first is not None and first.offsets[-1] >= self.tells
        return FakeDecoder() if schema is not None or knows else None

    def keeps_for_later(self, first: RawBatch) -> bool:
        return self.has_waiting


def job(topic: FakeTopic, table: FakeTable, **more: object) -> LandingJob:
    made = LandingJob("this-run", TABLE, GROUP, topic, topic, FakeDecoders(), table)
    return replace(made, **more)  # type: ignore[arg-type]  # a keyword each, of fields of several types


def all_of(topic: FakeTopic) -> Rows:
    readable = [(p, o) for p, (low, end) in topic.logs.items() for o in range(low, end)]
    gone = {(r.partition, o) for r in topic.holes for o in range(r.from_offset, r.until_offset)}
    return sorted(set(readable) - gone)


def span(start: int, end: int, partition: int = 0) -> RangeSet:
    return RangeSet.of(TOPIC, partition, start, end)


@given(
    st.dictionaries(st.integers(0, 2), st.tuples(st.integers(0, 9), st.integers(0, 12)), min_size=1),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 4)), max_size=3),
    st.integers(1, 5),
    st.sampled_from([1, 10, 10**6]),
    st.none() | st.integers(1, 8),
)
def test_runs_until_nothing_is_left_land_each_record_once_and_cover_every_offset(
    logs: dict[int, tuple[int, int]],
    holes: list[tuple[int, int, int]],
    chunk_size: int,
    batch_bytes: int,
    max_records: int | None,
) -> None:
    logs = {p: (low, low + width) for p, (low, width) in logs.items()}
    topic = FakeTopic(logs, RangeSet(OffsetRange(TOPIC, p, o, o + w) for p, o, w in holes), chunk_size)
    table = FakeTable()
    limits = RunLimits(max_records=max_records, max_batch_bytes=batch_bytes)
    for number in range(60):
        report = land(job(topic, table, run_id=f"run-{number}", limits=limits))
        assert report.counts.read == report.counts.written
        assert max_records is None or report.counts.read <= max_records
        if not report.snapshot_ids:
            break
    assert sorted(table.rows) == all_of(topic)
    assert table.landed == RangeSet(OffsetRange(TOPIC, p, *log) for p, log in logs.items() if log[0] < log[1])
    assert topic.mirrored == {p: max(log) for p, log in logs.items()}


def test_max_records_cuts_behind_the_last_record_and_the_rest_comes_next() -> None:
    topic, table = FakeTopic({0: (0, 10)}, holes=span(2, 4), chunk_size=10), FakeTable()

    first = land(job(topic, table, limits=RunLimits(max_records=3)))

    # Offsets 2 and 3 hold no record: the third record is at 4.
    assert (first.counts.read, table.landed, first.remaining_lag) == (3, span(0, 5), 5)
    land(job(topic, table, run_id="next"))
    assert sorted(table.rows) == all_of(topic)


@pytest.mark.parametrize("max_records", [None, 1, 3])
@pytest.mark.parametrize("has_waiting", [False, True])
def test_first_records_that_tell_no_columns_wait_for_one_that_does(max_records: int | None, has_waiting: bool) -> None:
    topic, table = FakeTopic({0: (0, 6)}, chunk_size=4), FakeTable(exists=False)
    telling = FakeDecoders(6, has_waiting)
    limits = RunLimits(max_records=max_records, max_batch_bytes=1)
    waiting = land(job(topic, table, decoders=telling, limits=limits))
    assert (waiting.snapshot_ids, waiting.lacks_columns, waiting.remaining_lag) == ([], True, 6)
    assert not table.exists

    topic.logs[0] = (0, 12)
    reports = [land(job(topic, table, decoders=telling, run_id=f"run-{n}", limits=limits)) for n in range(12)]

    assert table.landed == span(0, 12)
    # The second chunk shows the columns from its third record on. A run skips one record less than its limit, so that
    # one record that shows the columns lands; the next run lands the records that were not skipped.
    first = 0 if has_waiting else {None: 4, 1: 0, 3: 2}[max_records]
    assert sorted(table.rows) == [(0, offset) for offset in range(first, 12)]
    assert sum((report.counts for report in reports), Counts()) == Counts(read=12, written=12 - first, skipped=first)
    assert all(report.counts.read <= (max_records or 12) for report in reports)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.integers(0, 25),
    st.integers(1, 5),
    st.integers(1, 7),
    st.booleans(),
)
def test_no_run_takes_more_than_max_records_while_columns_are_looked_for(
    ends: list[int], first_with_columns: int, chunk_size: int, most: int, has_waiting: bool
) -> None:
    # In each partition, records from this offset on show the columns.
    topic = FakeTopic({p: (0, end) for p, end in enumerate(ends)}, chunk_size=chunk_size)
    table, decoders, read = FakeTable(exists=False), FakeDecoders(first_with_columns, has_waiting), 0
    for number in range(60):
        run_id, limits = f"run-{number}", RunLimits(max_records=most, max_batch_bytes=1)
        report = land(job(topic, table, decoders=decoders, run_id=run_id, limits=limits))
        read += report.counts.read
        assert report.counts.read <= most
        if not report.snapshot_ids:
            break
    assert read == (sum(ends) if max(ends) > first_with_columns else 0)
    assert table.exists is (max(ends) > first_with_columns)


def test_what_a_run_must_write_down_is_refused_while_nothing_tells_the_columns() -> None:
    topic, table, telling = FakeTopic({0: (2, 6)}), FakeTable(exists=False), FakeDecoders(float("inf"))
    with pytest.raises(InvalidArgument, match="no record shows its columns"):
        land(job(topic, table, decoders=telling, mode=ResumeMode(start_moves=True)))


def test_a_conflict_discards_and_plans_anew() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()
    table.before_commit = [lambda: table.others_land("other", (0, 0, 6))]

    report = land(job(topic, table))

    assert sorted(table.rows) == all_of(topic)
    assert report.counts.read == 4
    assert table.discards == 1


def test_a_conflict_over_everything_ends_with_nothing_landed_by_this_run() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()
    table.before_commit = [lambda: table.others_land("other", (0, 0, 10))]

    report = land(job(topic, table))

    assert report.snapshot_ids == []
    assert sorted(table.rows) == all_of(topic)


def test_another_run_that_looked_later_and_landed_past_our_ends_is_no_truncated_log() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()

    def grow_and_land() -> None:
        topic.logs[0] = (0, 15)
        table.others_land("other", (0, 0, 15))

    table.before_commit = [grow_and_land]

    assert land(job(topic, table)).snapshot_ids == []
    assert sorted(table.rows) == all_of(topic)


def test_a_plan_made_anew_keeps_the_ends_of_the_first_look() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()

    def grow_and_land_some() -> None:
        topic.logs[0] = (0, 15)
        table.others_land("other", (0, 0, 6))

    table.before_commit = [grow_and_land_some]
    report = land(job(topic, table))

    assert table.landed == span(0, 10)
    assert report.remaining_lag == 5


class TimedTopic(FakeTopic):
    """A topic whose records are all of one time, and none is later: every boundary after it is open."""

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        return {
            p: TimeBoundary(marks.end, is_open=True) if at_ms > 0 else TimeBoundary(marks.low)
            for p, marks in state.marks.items()
        }


def test_an_interval_that_a_rollback_took_from_the_covered_time_is_looked_at_to_its_new_end() -> None:
    topic, table = TimedTopic({0: (0, 4)}), FakeTable()
    covered = Landing("l", "another-run", {IDENTITY: TopicEntry(covered=((0, 10),))})
    table.ledgers[GROUP] = Ledger(GROUP).add(covered)

    def roll_back_and_grow() -> None:
        table.ledgers[GROUP] = Ledger(GROUP)
        topic.logs[0] = (0, 9)

    table.before_commit.append(roll_back_and_grow)
    land(job(topic, table, mode=IntervalMode(0, 10)))
    assert sorted(table.rows) == all_of(topic)
    assert table.ledgers[GROUP].entry(IDENTITY).covered == ((0, 10),)


class Waits(threading.Event):
    """A stop that never comes, and for which nobody really waits."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return False


def test_conflicts_without_end_are_given_up_and_leave_nothing() -> None:
    topic, table = FakeTopic({0: (0, MAX_CONFLICTS + 5)}, chunk_size=100), FakeTable()
    table.before_commit = [lambda n=n: table.others_land("other", (0, n, n + 1)) for n in range(MAX_CONFLICTS + 5)]

    stop = Waits()
    with pytest.raises(Contention, match="max_active_runs=1"):
        land(job(topic, table, stop=stop))

    # It gave way longer and longer, but not at once: most conflicts are over with the next look.
    assert len(stop.seconds) == MAX_CONFLICTS - 3
    assert all(0 <= waited <= GIVE_WAY * number for number, waited in enumerate(stop.seconds, 3))
    assert all(landing.run_id == "other" for landing in table.landings)
    assert table.discards == MAX_CONFLICTS


def test_conflicts_with_a_commit_of_ours_in_between_are_not_counted_together() -> None:
    topic, table = FakeTopic({0: (0, 200)}, chunk_size=1), FakeTable()
    # Every second commit of ours meets an offset that somebody has landed just before.
    for _ in range(MAX_CONFLICTS + 5):
        table.before_commit += [lambda: None, lambda: table.others_land("other", _next(table))]

    report = land(job(topic, table, limits=RunLimits(max_batch_bytes=1)))

    assert sorted(table.rows) == all_of(topic)
    assert report.counts.read == 200 - (MAX_CONFLICTS + 5)


def _next(table: FakeTable) -> tuple[int, int, int]:
    first = table.landed.first_missing(TOPIC, 0, 0)
    return 0, first, first + 1


def test_offsets_that_went_while_reading_are_looked_at_again() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()
    table.others_land("earlier", (0, 0, 2))

    class Losing(FakeTopic):
        def read(self, plan: Plan, cancelled: threading.Event) -> Iterator[RecordChunk]:
            self.logs[0] = (5, 10)
            return super().read(plan, cancelled)

    losing = Losing({0: (0, 10)})
    with pytest.raises(Exception, match=r"orders\[0\] \[2,5\)"):
        land(job(losing, table))
    assert table.landed == span(0, 2)
    assert topic.look().marks[0].low == 0


def test_a_retry_of_a_landed_run_returns_its_report() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()
    first = land(job(topic, table))
    again = land(job(topic, table))
    assert again.to_dict() == first.to_dict()
    assert again.recovered == 1
    assert len(table.landings) == 1


def test_the_report_says_what_became_of_the_schema_in_all_tries() -> None:
    topic, table = FakeTopic({0: (0, 4)}, chunk_size=1), FakeTable()
    table.changes = {1: ["add column x string"], 3: ["widen column y from int to bigint"]}
    limits = RunLimits(max_batch_bytes=1, max_records=2)

    first = land(job(topic, table, limits=limits))
    assert first.schema_changes == ["add column x string"]
    again = land(job(topic, table, limits=RunLimits(max_batch_bytes=1)))

    assert again.to_dict()["schema_changes"] == ["add column x string", "widen column y from int to bigint"]


def test_max_records_counts_what_earlier_tries_of_the_run_landed() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()
    table.others_land("this-run", (0, 0, 4))
    report = land(job(topic, table, limits=RunLimits(max_records=6)))
    assert report.counts.read == 6
    assert table.landed == span(0, 6)


def test_a_decoder_that_loses_a_row_commits_nothing() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()
    with pytest.raises(AssertionError, match=r"4 records of .* became 3 rows"):
        land(job(topic, table, decoders=lambda schema, first: FakeDecoder(drops=True)))
    assert (table.rows, table.landings, table.discards) == ([], [], 1)


def test_a_topic_replaced_between_plan_and_commit_commits_nothing() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()

    class Replaced(FakeTopic):
        def read(self, plan: Plan, cancelled: threading.Event) -> Iterator[RecordChunk]:
            yield from super().read(plan, cancelled)
            self.found = replace(IDENTITY, topic_id="another-id")

    with pytest.raises(TopicReplaced):
        land(job(Replaced({0: (0, 10)}), table))
    assert (table.rows, table.landings, table.discards) == ([], [], 1)
    assert topic.mirrored == {}


def test_a_truncated_log_is_refused() -> None:
    table = FakeTable()
    table.others_land("earlier", (0, 0, 8))
    with pytest.raises(LogTruncated):
        land(job(FakeTopic({0: (0, 5)}), table))


def test_another_groups_records_are_refused_without_the_explicit_word() -> None:
    topic, table = FakeTopic({0: (0, 10)}), FakeTable()
    table.others_land("earlier", (0, 3, 8), group="other")
    with pytest.raises(LandedByAnotherGroup, match=r"'other' has already landed orders\[0\] \[3,8\)"):
        land(job(topic, table))
    assert not table.landed

    land(job(topic, table, allow_group_overlap=True))
    assert table.landed == span(0, 10)


def test_a_stop_between_two_batches_keeps_what_is_committed_and_nothing_else() -> None:
    topic, table = FakeTopic({0: (0, 100)}, chunk_size=5), FakeTable()
    stop = threading.Event()
    table.before_commit = [lambda: None, stop.set]

    with pytest.raises(Stopped):
        land(job(topic, table, stop=stop, limits=RunLimits(max_batch_bytes=1)))

    assert sorted(table.rows) == [(0, o) for o in range(10)]
    assert table.landed == span(0, 10)
    assert table.discards == 1


def test_a_moving_start_without_a_place_for_it_is_refused() -> None:
    topic, table = FakeTopic({0: (0, 0)}), FakeTable(exists=False)
    assert land(job(topic, table)).snapshot_ids == []
    with pytest.raises(InvalidArgument, match="schema"):
        land(job(topic, table, mode=ResumeMode(start_moves=True)))


def test_a_start_above_the_logs_start_without_a_place_for_it_is_refused() -> None:
    class FromTheEnd(FakeTopic):
        def starts(self, state: TopicState) -> Mapping[int, int]:
            return {p: marks.end for p, marks in state.marks.items()}

    with pytest.raises(InvalidArgument, match="schema"):
        land(job(FromTheEnd({0: (0, 5)}), FakeTable(exists=False)))


def test_an_idle_timeout_follows_what_comes_and_a_later_stop_ends_it() -> None:
    topic, table = FakeTopic({0: (0, 4)}), FakeTable()
    stop = threading.Event()

    def grow() -> None:
        topic.logs[0] = (0, 8)

    table.before_commit = [grow, stop.set]
    report = land(job(topic, table, stop=stop, limits=RunLimits(idle_timeout=30)))

    assert sorted(table.rows) == all_of(topic)
    assert len(report.snapshot_ids) == 2
