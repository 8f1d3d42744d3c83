"""Interval and ranges: which offsets a run covers; and that tiles leave no seam, whatever the schedule does."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from airflow_lakestream.core.landing.modes import (
    IntervalMode,
    LandedBesideStream,
    PlanningLook,
    RangesMode,
    RunMode,
    StreamBatchMode,
    StreamReplaced,
    StreamRolledBack,
)
from airflow_lakestream.core.landing.plan import BeginningLost, DataLoss, PartitionWatermarks, Plan, TopicState
from airflow_lakestream.core.ledger import Counts, Landing, Ledger, StreamBatch, TopicEntry, TopicIdentity
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ports import StreamConflict, TimeBoundary
from airflow_lakestream.core.ranges import RangeSet, coalesce
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.guards import check_follows

TOPIC, TABLE = "orders", "lake.orders"
IDENTITY = TopicIdentity(TOPIC, "topic-id", "cluster-id")
SCHEDULES = int(os.environ.get("LAKESTREAM_SCHEDULES", "600"))


@dataclass
class Log:
    """A topic as the timestamps of its records, by partition; a source of boundaries."""

    stamps: list[list[int]]
    lows: dict[int, int] = field(default_factory=dict)

    def state(self) -> TopicState:
        return TopicState(
            IDENTITY, {p: PartitionWatermarks(self.lows.get(p, 0), len(at)) for p, at in enumerate(self.stamps)}
        )

    def boundaries(self, state: TopicState, at_ms: int) -> Mapping[int, TimeBoundary]:
        return {p: self._boundary(p, marks, at_ms) for p, marks in state.marks.items()}

    def _boundary(self, partition: int, marks: PartitionWatermarks, at_ms: int) -> TimeBoundary:
        if at_ms <= 0:
            return TimeBoundary(marks.low)
        for offset in range(marks.low, marks.end):
            if self.stamps[partition][offset] >= at_ms:
                return TimeBoundary(offset)
        return TimeBoundary(marks.end, is_open=True)

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"a mode has no business with {name}")


def look(log: Log, entry: TopicEntry | None = None, on_data_loss: OnDataLoss = OnDataLoss.FAIL) -> PlanningLook:
    return PlanningLook(TABLE, entry or TopicEntry(), log.state(), log, on_data_loss)  # type: ignore[arg-type]  # only boundaries() of a source


def span(start: int, end: int, partition: int = 0) -> RangeSet:
    return RangeSet.of(TOPIC, partition, start, end)


# One look


def test_an_interval_takes_the_offsets_between_its_boundaries() -> None:
    plan = IntervalMode(10, 20).plan(look(Log([[5, 10, 12, 9, 25, 11], [10, 20]])))
    # The 9 is late, and belongs to the tile that its offset is in; so does the 11, which comes after the 25.
    assert plan.ranges == span(1, 4) | span(0, 1, 1)
    assert plan.covered == (10, 20)
    assert not plan.completes


def test_an_interval_whose_records_are_all_there_is_complete() -> None:
    entry = TopicEntry(span(1, 3), covered=((10, 20),))
    plan = IntervalMode(10, 20).plan(look(Log([[5, 10, 12, 25]]), entry))
    assert not plan.changes_the_ledger
    assert plan.completes


def test_an_interval_with_an_open_end_lands_what_is_there_and_is_not_complete() -> None:
    log = Log([[5, 10, 12]])
    plan = IntervalMode(10, 20).plan(look(log))
    assert plan.ranges == span(1, 3)
    after = TopicEntry(plan.ranges, covered=((10, 20),))
    again = IntervalMode(10, 20).plan(look(log, after))
    assert not again.changes_the_ledger
    assert not again.completes


def test_an_empty_interval_with_an_open_end_is_written_down_all_the_same() -> None:
    plan = IntervalMode(10, 20).plan(look(Log([[5]])))
    assert not plan.ranges
    assert plan.covered == (10, 20)
    assert plan.changes_the_ledger


def test_the_seam_of_an_earlier_interval_is_closed() -> None:
    # [0, 10) was covered when the log ended at 2; the two that came then are late, and before the first of [10, 20).
    entry = TopicEntry(span(0, 2), covered=((0, 10),))
    plan = IntervalMode(10, 20).plan(look(Log([[1, 2, 3, 4, 12, 30]]), entry))
    assert plan.ranges == span(2, 5)


def test_an_interval_that_begins_at_the_start_of_a_log_that_lost_records() -> None:
    log = Log([[0, 1, 2, 3, 30]], lows={0: 2})
    with pytest.raises(BeginningLost, match=r"orders\[0\] \[0,2\)") as caught:
        IntervalMode(0, 10).plan(look(log))
    assert isinstance(caught.value, DataLoss)
    assert caught.value.ranges == span(0, 2)
    plan = IntervalMode(0, 10).plan(look(log, on_data_loss=OnDataLoss.RECORD))
    assert (plan.lost, plan.ranges) == (span(0, 2), span(2, 4))
    # What the ledger holds is not lost, and an interval that begins later has nothing to do with it.
    assert IntervalMode(0, 10).plan(look(log, TopicEntry(span(0, 2)))).ranges == span(2, 4)
    assert IntervalMode(3, 10).plan(look(log)).ranges == span(3, 4)


def test_an_interval_that_ends_before_1970_is_empty_whatever_the_log_has_lost() -> None:
    log = Log([[-5, -1, 3, 4]], lows={0: 2})
    for start, end in ((-10, -5), (-10, 0), (-1, 0)):
        plan = IntervalMode(start, end).plan(look(log))
        assert (plan.changes_the_ledger, plan.completes) == (False, True)
        assert not IntervalMode(start, end).own(look(log, TopicEntry(span(0, 2))))
    with pytest.raises(BeginningLost, match=r"orders\[0\] \[0,2\)"):
        IntervalMode(-10, 1).plan(look(log))


def test_ranges_by_hand() -> None:
    log = Log([[0] * 10, [0] * 4], lows={1: 2})
    mode = RangesMode(((0, 2, 8), (0, 9, 10)))
    assert mode.plan(look(log, TopicEntry(span(0, 4)))).ranges == span(4, 8) | span(9, 10)
    assert not mode.plan(look(log, TopicEntry(span(0, 10)))).changes_the_ledger
    with pytest.raises(InvalidArgument, match=r"^ranges: orders has no partition 7; it has 0, 1"):
        RangesMode(((7, 0, 1),)).plan(look(log))
    with pytest.raises(InvalidArgument, match=r"^ranges: orders\[1\] ends at 4, before 5"):
        RangesMode(((1, 2, 5),)).plan(look(log))
    below = RangesMode(((1, 1, 4),))
    with pytest.raises(DataLoss, match=r"orders\[1\] \[1,2\)"):
        below.plan(look(log))
    plan = below.plan(look(log, on_data_loss=OnDataLoss.RECORD))
    assert (plan.lost, plan.ranges) == (span(1, 2, 1), span(2, 4, 1))


# Schedules


@dataclass
class Run:
    """One run of an interval, a step at a time: it plans from what it sees, and commits later."""

    mode: RunMode
    plan: Plan | None = None
    ends: TopicState | None = None
    done: bool = False


class Schedule:
    """Runs of all tiles, some twice, interleaved with each other, with crashes and with records that keep coming."""

    WIDTH, TILES = 10, 4

    def __init__(self, seed: int, kind: type[IntervalMode] = IntervalMode) -> None:
        self.random = random.Random(seed)
        self.log = Log([[], []])
        self.ledger = Ledger("g")
        self.rows: list[tuple[int, int]] = []
        # The first one begins before 1970, or at it.
        first = self.random.choice([-self.WIDTH - 1, -1, 0])
        starts = [first, *(n * self.WIDTH for n in range(1, self.TILES + 1))]
        tiles = [kind(start, end) for start, end in pairwise(starts)]
        # One tile is only begun when the last record has come. The claim is about the covered time around it, as its
        # last look finds it: what comes to other covered time after the last look there waits for the next run of it.
        self.last = self.random.choice(tiles)
        self.runs = [Run(tile) for tile in tiles if tile is not self.last]
        self.runs += [Run(tile) for tile in tiles if tile is not self.last and self.random.random() < 0.3]

    def play(self) -> None:
        for _ in range(self.random.randint(5, 40)):
            self._append() if self.random.random() < 0.4 else self._step()
        self.runs.append(Run(self.last))
        for _ in range(1000):
            self._step()
        assert all(run.done for run in self.runs), "a run does not come to its end"

    def _append(self) -> None:
        stamps = self.random.choice(self.log.stamps)
        now = len(stamps) * 2
        # Some are from before 1970 by mistake, or have no time, which is -1.
        stamps.append(self.random.choice([now + self.random.choice([0, 0, 0, -7, -15, 9, 25]), now, now, -1]))

    def _step(self) -> None:
        waiting = [run for run in self.runs if not run.done]
        if not waiting:
            return
        run = self.random.choice(waiting)
        if self.random.random() < 0.1:
            # Killed, and tried again.
            run.plan, run.ends = None, None
        elif run.plan is None:
            self._look(run)
        else:
            self._land(run, run.plan)

    def _look(self, run: Run) -> None:
        entry, now = self.ledger.entry(IDENTITY), self.log.state()
        if run.mode.ends_are_fixed(entry):
            run.ends = run.ends or now
        if run.ends is not None:
            now = replace(now, marks={p: replace(m, end=run.ends.marks[p].end) for p, m in now.marks.items()})
        run.plan = run.mode.plan(replace(look(self.log, entry), state=now))
        run.done = not run.plan.changes_the_ledger

    def _land(self, run: Run, plan: Plan) -> None:
        run.plan = None
        count = plan.ranges.width
        change = TopicEntry(plan.ranges, counts=Counts(count, count), covered=(plan.covered,) if plan.covered else ())
        landing = Landing(f"l{len(self.rows)}", "r", {IDENTITY: change})
        if self.ledger.overlap(landing):
            return
        self.ledger = self.ledger.add(landing)
        self.rows += [(r.partition, o) for r in plan.ranges for o in range(r.from_offset, r.until_offset)]

    def missing(self) -> list[tuple[int, int]]:
        state, tile = self.log.state(), self.last.interval
        covered = coalesce([*self.ledger.entry(IDENTITY).covered, tile])
        start, end = next(part for part in covered if part[0] <= tile[0] < part[1])
        lows, highs = self.log.boundaries(state, start), self.log.boundaries(state, end)
        wanted = {(p, o) for p in state.marks for o in range(lows[p].offset, highs[p].offset)}
        return sorted(wanted - set(self.rows))

    def doubled(self) -> int:
        return len(self.rows) - len(set(self.rows))


@pytest.mark.parametrize("block", range(4))
def test_no_schedule_leaves_a_seam_or_lands_anything_twice(block: int) -> None:
    for seed in range(block, SCHEDULES, 4):
        schedule = Schedule(seed)
        schedule.play()
        assert schedule.missing() == [], f"LAKESTREAM_SCHEDULES: seed {seed}"
        assert schedule.doubled() == 0, f"LAKESTREAM_SCHEDULES: seed {seed}"


class TileAlone(IntervalMode):
    """A bug put in on purpose: a tile looks only at itself, and leaves the seams open."""

    def plan(self, look: PlanningLook) -> Plan:
        mine = replace(look.entry, covered=(self.interval,) if self.ends_are_fixed(look.entry) else ())
        return super().plan(replace(look, entry=mine))


class NoSecondLook(IntervalMode):
    """Another one: a run does not look again after its coverage is written down."""

    def plan(self, look: PlanningLook) -> Plan:
        if self.ends_are_fixed(look.entry):
            return Plan(look.state, RangeSet())
        return super().plan(look)


@pytest.mark.parametrize("mutant", [TileAlone, NoSecondLook])
def test_the_simulation_sees_seams_that_are_left_open(mutant: type[IntervalMode]) -> None:
    def leaves_a_seam(seed: int) -> bool:
        schedule = Schedule(seed, mutant)
        schedule.play()
        return bool(schedule.missing())

    assert any(map(leaves_a_seam, range(SCHEDULES)))


# A batch of a streaming query


def streamed(batch: int, query: str = "q") -> StreamBatch:
    return StreamBatch(query, batch, 0)


def entry_at(batch: int, ranges: RangeSet, query: str = "q") -> TopicEntry:
    return TopicEntry(ranges, origin={0: 0}, streamed=streamed(batch, query))


def one_batch(number: int, ranges: RangeSet) -> StreamBatchMode:
    return StreamBatchMode(streamed(number), {0: 2}, ranges, "g")


LOG = Log([[1] * 9])


def test_the_first_batch_fixes_where_the_group_begins() -> None:
    plan = one_batch(0, span(2, 5)).plan(look(LOG))
    assert (plan.ranges, plan.origin, plan.streamed) == (span(2, 5), {0: 2}, streamed(0))


def test_a_batch_without_records_is_written_down_and_one_that_is_there_is_not() -> None:
    plan = one_batch(4, RangeSet()).plan(look(LOG, entry_at(3, span(0, 5))))
    assert (plan.streamed, plan.origin, plan.changes_the_ledger) == (streamed(4), {}, True)
    assert not one_batch(4, span(3, 5)).plan(look(LOG, entry_at(4, span(0, 5)))).changes_the_ledger


@pytest.mark.parametrize(
    ("batch", "entry", "error", "words"),
    [
        (one_batch(4, span(5, 9)), entry_at(2, span(0, 5)), StreamRolledBack, "holds batch 2 of query q, and next"),
        (one_batch(4, span(5, 9)), TopicEntry(), StreamRolledBack, "it holds no batch"),
        (one_batch(4, span(5, 9)), entry_at(3, span(0, 5), "other"), StreamReplaced, "batch 3 of query other"),
        (one_batch(4, span(5, 9)), entry_at(6, span(0, 9)), StreamReplaced, "the checkpoint is at batch 4"),
        # Planned anew, with other ends than those that have landed.
        (one_batch(4, span(5, 9)), entry_at(4, span(0, 7)), StreamReplaced, "the checkpoint is at batch 4"),
        (one_batch(0, span(0, 9)), TopicEntry(span(0, 2)), LandedBesideStream, "landed by another way"),
        (one_batch(4, span(5, 9)), entry_at(3, span(0, 6)), LandedBesideStream, "landed by another way"),
    ],
)
def test_a_batch_that_does_not_follow_what_the_table_holds_is_refused(
    batch: StreamBatchMode, entry: TopicEntry, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        batch.plan(look(LOG, entry))


def test_the_guard_lets_only_the_next_batch_in_and_nothing_beside_the_query() -> None:
    before = entry_at(3, span(0, 5))
    check_follows(TABLE, TopicEntry(streamed=streamed(4)), before)
    check_follows(TABLE, TopicEntry(streamed=streamed(0)), TopicEntry())
    check_follows(TABLE, TopicEntry(epochs={0: 1}), before)
    beside = [TopicEntry(span(5, 6)), TopicEntry(lost=span(5, 6)), TopicEntry(replaced=span(0, 2))]
    others = [TopicEntry(streamed=one) for one in (streamed(3), streamed(5), streamed(4, "other"))]
    for change in (*beside, *others):
        with pytest.raises(StreamConflict, match="does not follow what its group landed last: batch 3 of query q"):
            check_follows(TABLE, change, before)
    with pytest.raises(StreamConflict, match="no landing of a stream"):
        check_follows(TABLE, TopicEntry(streamed=streamed(1)), TopicEntry())
    with pytest.raises(StreamConflict, match="no landing of a stream"):
        check_follows(TABLE, TopicEntry(streamed=streamed(0)), TopicEntry(span(0, 1)))
