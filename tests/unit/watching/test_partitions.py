"""Which hours are told: only complete ones, each once, and again with its mark when rows land late in it.

Through random histories of a model: a log with late and idle partitions, landings by resume and by intervals,
rollbacks, and runs that are killed before Airflow has stored what they tell.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any, cast

import pytest

from airflow_lakestream.core.landing.plan import DataLoss, PartitionWatermarks, TopicState
from airflow_lakestream.core.ledger import Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.ports import TimeBoundary
from airflow_lakestream.core.ranges import Interval, OffsetRange, RangeSet, coalesce
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.kafka.watch import KafkaWatch
from airflow_lakestream.watching.asking import run_now
from airflow_lakestream.watching.partition_emission import (
    EmittedPartitions,
    GroupBeginning,
    PartitionLength,
    plan_emission,
)
from airflow_lakestream.watching.partitions import PartitionsLook, PartitionsResult

HOUR = PartitionLength.HOUR.width_ms
TOPIC = TopicIdentity("clicks", "id", "cluster")
# The hour in which the model begins.
BEGIN = 491_000 * HOUR


class Log:
    """A topic: the timestamp of each record, by partition. Stands in for `KafkaWatch`."""

    def __init__(self, partitions: int) -> None:
        self.stamps: list[list[int]] = [[] for _ in range(partitions)]
        self.lows = [0] * partitions
        self.asked = 0
        # What stands behind, from a transaction on that is under way.
        self.behind: list[list[int]] = [[] for _ in range(partitions)]

    def topic(self, topic: str) -> TopicState:
        marks = {p: PartitionWatermarks(self.lows[p], len(stamps)) for p, stamps in enumerate(self.stamps)}
        return TopicState(TOPIC, marks)

    def high_watermarks(self, state: TopicState) -> dict[int, int]:
        return {p: len(self.stamps[p]) + len(behind) for p, behind in enumerate(self.behind)}

    def boundaries(self, state: TopicState, at_ms: int) -> dict[int, TimeBoundary]:
        self.asked += 1
        return {p: TimeBoundary(*self.boundary(p, at_ms)) for p in state.marks}

    def boundary(self, p: int, at_ms: int, *, whole: bool = False) -> tuple[int, bool]:
        """Return the first offset from a time on, and whether there is none yet; in the whole log, or what is left."""
        low = 0 if whole else self.lows[p]
        later = (offset for offset, at in enumerate(self.stamps[p]) if at >= at_ms and offset >= low)
        found = next(later, None)
        return (len(self.stamps[p]), True) if found is None else (found, False)


class World:
    """A log, its table, and the one who tells of it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = Log(self.rng.randint(1, 3))
        self.by_intervals = self.rng.random() < 0.4
        self.keeps_all = self.rng.random() < 0.5
        self.has_late = self.rng.random() < 0.7
        self.idle_after = self.rng.choice([None, HOUR // 2000, 2 * HOUR // 1000])
        self.entry = TopicEntry()
        self.history = [self.entry]
        self.now = BEGIN
        self.since = BEGIN + self.rng.choice([0, HOUR, -HOUR // 2, 5 * HOUR])
        self.told = EmittedPartitions()
        # By hour, the rows that the table had in it when it was told last.
        self.seen: dict[int, set[tuple[int, int]]] = {}
        self.again = 0

    def produce(self) -> None:
        p = self.rng.randrange(len(self.log.stamps))
        for _ in range(self.rng.randint(1, 4)):
            late = self.has_late and self.rng.random() < 0.2
            at = self.now - (self.rng.randint(0, 6 * HOUR) if late else self.rng.randint(0, HOUR // 20))
            (self.log.behind[p] or self.log.stamps[p]).append(max(0, at))

    def transact(self) -> None:
        """Begin a transaction in a partition, or end it."""
        p = self.rng.randrange(len(self.log.stamps))
        behind, self.log.behind[p] = self.log.behind[p], []
        if behind:
            self.log.stamps[p] += behind
        else:
            self.log.behind[p] = [self.now]

    def land(self) -> None:
        if self.by_intervals and self.rng.random() < 0.9:
            self._land_interval()
        else:
            self._resume()
        self.history.append(self.entry)

    def _resume(self, most: int | None = None) -> None:
        begins = self.entry.origin
        if not begins:
            # Where Kafka has lost records from before the beginning, late ones behind hide when those were.
            from_end = self.rng.random() < 0.3 and (self.keeps_all or not self.has_late)
            begins = {p: len(stamps) if from_end else 0 for p, stamps in enumerate(self.log.stamps)}
        missing = self._ranges((p, begins[p], len(stamps)) for p, stamps in enumerate(self.log.stamps))
        missing -= self.entry.held
        taken: list[OffsetRange] = []
        for _, p in missing.partitions:
            left = self.rng.randint(0, 8) if most is None else most
            for start, end in missing.intervals(TOPIC.topic, p):
                if left > 0:
                    taken.append(OffsetRange(TOPIC.topic, p, start, min(end, start + left)))
                left -= end - start
        self.entry += self._change(RangeSet(taken), origin=begins)

    def _land_interval(self) -> None:
        """Land as `core.landing.modes.ByInterval` does: all of the covered time around an interval."""
        start = BEGIN + self.rng.randint(-4, 2 * (self.now - BEGIN) // HOUR) * HOUR // 2
        span = (start, start + HOUR * self.rng.randint(1, 5) // 2)
        while True:
            whole = next(part for part in coalesce([*self.entry.covered, span]) if part[0] <= span[0] < part[1])
            bounds = [[self.log.boundary(p, at, whole=True)[0] for at in whole] for p in range(len(self.log.stamps))]
            need = self._ranges((p, *both) for p, both in enumerate(bounds)) - self.entry.held
            was_covered = coalesce([*self.entry.covered, span]) == self.entry.covered
            self.entry += self._change(need, covered=(span,))
            if was_covered:
                return

    def _change(self, need: RangeSet, **more: Any) -> TopicEntry:
        """Land what Kafka still has, with `on_data_loss="record"`."""
        lost = need & self._ranges((p, 0, low) for p, low in enumerate(self.log.lows))
        return TopicEntry(landed=need - lost, lost=lost, **more)

    def roll_back(self) -> None:
        self.history = self.history[: self.rng.randint(1, len(self.history))]
        self.entry = self.history[-1]

    def retain(self) -> None:
        """Let Kafka remove what is landed, and what was never to be landed."""
        for p, low in enumerate(self.log.lows if not self.keeps_all else ()):
            begin = max(low, self.entry.origin.get(p, 0)) if self.entry.origin else low
            first = self.entry.held.first_missing(TOPIC.topic, p, begin)
            self.log.lows[p] = self.rng.randint(low, min(first, len(self.log.stamps[p])))

    def rows(self) -> dict[int, set[tuple[int, int]]]:
        """Return the rows that the table holds, by their hour."""
        found: dict[int, set[tuple[int, int]]] = {}
        for one in self.entry.landed:
            for offset in range(one.from_offset, one.until_offset):
                at = self.log.stamps[one.partition][offset]
                found.setdefault(at // HOUR * HOUR, set()).add((one.partition, offset))
        return found

    def look(self, *, killed: bool = False) -> PartitionsResult:
        arguments = {"since": self.since, "idle_after": self.idle_after}
        look = PartitionsLook("lake.clicks", "g", **arguments)
        before = EmittedPartitions.parse(json.loads(json.dumps(self.told.to_json())))
        assert before == self.told
        ledger, rows = Ledger("g", {TOPIC: self.entry}), self.rows()
        unseen = before.unseen(ledger)
        late = {
            start: len(new)
            for start, positions in rows.items()
            if before.has((start, start + HOUR))
            and (new := {one for one in positions if unseen & RangeSet.of(TOPIC.topic, one[0], one[1], one[1] + 1)})
        }
        watch = cast(KafkaWatch, self.log)
        try:
            found: PartitionsResult = run_now(look.decide(watch, ledger, before, late, self.now))
        except DataLoss:
            # A rollback has taken rows whose records Kafka has no more.
            assert not self.keeps_all
            return PartitionsResult(None)
        if found.emission is not None:
            new, again = set(found.emission.new), set(found.emission.reopened)
            assert not new & set(self.seen), "told twice without a mark"
            assert again <= set(self.seen), "marked, and never told"
            assert all(start >= self.since for start in new)
            assert [one for one in found.emission.starts if not self.is_complete((one, one + HOUR))] == []
            if not killed:
                self.again += len(again)
                self.told = found.emission.after
                self.seen |= {start: rows.get(start, set()) for start in (*new, *again)}
        return found

    def is_complete(self, span: Interval) -> bool:
        """Tell whether an hour is complete, offset by offset."""
        covered = [part for part in self.entry.covered if part[0] <= span[0] and span[1] <= part[1]]
        for p, stamps in enumerate(self.log.stamps):
            begins = [self.entry.origin[p]] if self.entry.origin else []
            begins += [self.log.boundary(p, part[0], whole=True)[0] for part in covered]
            (first, _), (end, is_open) = (self.log.boundary(p, at, whole=True) for at in span)
            held = {offset for a, b in self.entry.held.intervals(TOPIC.topic, p) for offset in range(a, b)}
            idle = self.idle_after is not None and self.now - span[1] >= self.idle_after * 1000
            if not begins or min(begins) > first or not set(range(min(begins), end)) <= held:
                return False
            if is_open and (self.log.behind[p] or not (idle and set(range(min(begins), len(stamps))) <= held)):
                return False
        return True

    def settle(self) -> None:
        """Let each partition go on, land everything, and tell until nothing is left."""
        self.now += HOUR
        for p, stamps in enumerate(self.log.stamps):
            stamps += [*self.log.behind[p], self.now]
            self.log.behind[p] = []
        for start in range(BEGIN - 8 * HOUR, self.now, HOUR) if self.by_intervals else ():
            self.entry += TopicEntry(covered=((start, start + HOUR),))
        begins = dict.fromkeys(range(len(self.log.stamps)), 0)
        self.entry = TopicEntry(
            landed=self._ranges((p, 0, len(stamps)) for p, stamps in enumerate(self.log.stamps)),
            origin=self.entry.origin or begins,
            covered=self.entry.covered,
        )
        while self.look().emission is not None:
            pass

    @staticmethod
    def _ranges(parts: Iterable[tuple[int, ...]]) -> RangeSet:
        return RangeSet(OffsetRange(TOPIC.topic, p, start, end) for p, start, end in parts if start < end)


STEPS = ("produce", "produce", "produce", "transact", "land", "land", "look", "killed", "wait", "roll_back", "retain")


def play(seed: int) -> World:
    world = World(seed)
    for _ in range(60):
        step = world.rng.choices(STEPS, weights=(1, 1, 1, 0.2, 1, 1, 2, 0.5, 1.5, 0.3, 0.4))[0]
        if step == "wait":
            world.now += world.rng.randint(HOUR // 10, HOUR)
        elif step in ("look", "killed"):
            world.look(killed=step == "killed")
        else:
            getattr(world, step)()
    world.settle()
    return world


@pytest.mark.parametrize("seed", range(80))
def test_each_complete_hour_is_told_and_told_again_when_rows_land_late(seed: int) -> None:
    world = play(seed)
    first = -(-world.since // HOUR) * HOUR
    hours = [(at, at + HOUR) for at in range(first, world.now - HOUR + 1, HOUR)]
    if world.keeps_all:
        # Of the others, some can't be told for certain: see the next test.
        assert [one for one in hours if world.is_complete(one) and one[0] not in world.seen] == []
    rows = world.rows()
    # A rollback to before its first landing may let the group begin anew, behind what was told.
    complete = [start for start in world.seen if world.is_complete((start, start + HOUR))]
    assert {start: rows.get(start, set()) for start in complete} == {start: world.seen[start] for start in complete}
    assert not set(complete) & set(world.told.waiting)


def test_the_histories_have_all_that_matters() -> None:
    worlds = [play(seed) for seed in range(60)]
    assert sum(world.again for world in worlds) > 20
    assert sum(len(world.seen) for world in worlds) > 100
    assert len({world.by_intervals for world in worlds}) == 2
    assert sum(any(world.log.lows) for world in worlds) > 10
    again = [world.is_complete((start, start + HOUR)) for world in worlds for start in world.seen]
    assert sum(again) > 0.9 * len(again)


def test_a_year_of_hours_is_found_with_few_questions_and_told_in_portions() -> None:
    world = World(0)
    world.log, world.since, world.idle_after = Log(1), BEGIN, None
    world.log.stamps[0] = [BEGIN, BEGIN + 365 * 24 * HOUR]
    world.entry = TopicEntry(landed=RangeSet.of(TOPIC.topic, 0, 0, 2), origin={0: 0})
    world.now = BEGIN + 366 * 24 * HOUR
    first = world.look().emission
    assert first is not None
    assert len(first.new) == 240
    assert world.log.asked < 40
    second = world.look().emission
    assert second is not None
    assert second.new[0] == BEGIN + 240 * HOUR


def test_a_lost_offset_is_an_error_once_nothing_else_is_to_be_told() -> None:
    world = World(0)
    world.log, world.since, world.idle_after = Log(1), BEGIN, None
    world.log.stamps[0] = [BEGIN + n * HOUR // 2 for n in range(9)]
    world.entry = TopicEntry(landed=RangeSet.of(TOPIC.topic, 0, 0, 4), origin={0: 0})
    world.log.lows, world.now = [6], BEGIN + 5 * HOUR
    # From offset 6 on Kafka has records; what an hour before them began with can't be seen any more.
    look = PartitionsLook("lake.clicks", "g", BEGIN)
    with pytest.raises(DataLoss, match=r"clicks\[0\] \[4,6\)"):
        run_now(
            look.decide(
                cast(KafkaWatch, world.log), Ledger("g", {TOPIC: world.entry}), EmittedPartitions(), {}, world.now
            )
        )
    world.entry += TopicEntry(lost=RangeSet.of(TOPIC.topic, 0, 4, 6), landed=RangeSet.of(TOPIC.topic, 0, 6, 9))
    assert world.look().emission is not None


def test_an_hour_whose_beginning_was_never_landed_is_not_told_when_kafka_forgets_it_either() -> None:
    world = World(0)
    world.log, world.since, world.idle_after = Log(1), BEGIN, None
    # By `start_offset="latest"` the group began at half past.
    world.log.stamps[0] = [BEGIN + n * HOUR // 4 for n in range(16)]
    world.entry = TopicEntry(landed=RangeSet.of(TOPIC.topic, 0, 2, 16), origin={0: 2})
    world.now = BEGIN + 3 * HOUR
    hours = (BEGIN + HOUR, BEGIN + 2 * HOUR)

    def told() -> tuple[int, ...]:
        found = world.look()
        return () if found.emission is None else found.emission.new

    world.log.lows = [3]
    # It begins with the hour of the log's start, which Kafka may have had more of; later hours are certain.
    assert told() == hours
    world.log.lows, world.now = [14], BEGIN + 4 * HOUR
    assert told() == ()
    world.log.stamps[0].append(BEGIN + 4 * HOUR)
    world.entry += TopicEntry(landed=RangeSet.of(TOPIC.topic, 0, 16, 17))
    # Kafka no longer shows where this hour begins, but the group had begun long before.
    assert told() == (BEGIN + 3 * HOUR,)


def test_a_covered_time_whose_beginning_kafka_and_the_table_have_lost_is_not_complete() -> None:
    world = World(0)
    world.log, world.since, world.idle_after, world.now = Log(1), BEGIN, None, BEGIN + 3 * HOUR
    world.log.stamps[0], world.log.lows = [BEGIN + n * HOUR // 4 for n in range(13)], [6]
    # The landing of offsets 2 to 5 was rolled back after Kafka had removed them.
    world.entry = TopicEntry(landed=world._ranges([(0, 0, 2), (0, 6, 13)]), covered=((BEGIN, BEGIN + 3 * HOUR),))
    found = world.look()
    assert (found.emission, "clicks[0] before 6" in found.text) == (None, True)
    world.entry += TopicEntry(lost=RangeSet.of(TOPIC.topic, 0, 2, 6))
    assert world.look().emission is not None


def test_a_group_that_begins_anew_has_not_begun_by_what_was_seen_before() -> None:
    entry = TopicEntry(origin={0: 5, 1: 0})
    begun = GroupBeginning.first_of([(2 * HOUR, 3 * HOUR), (HOUR, 2 * HOUR)], entry)
    assert begun == (HOUR, "0:5,1:0")
    assert begun.holds((HOUR, 2 * HOUR), entry)
    assert not begun.holds((0, HOUR), entry)
    assert not begun.holds((HOUR, 2 * HOUR), TopicEntry(origin={0: 9, 1: 0}))
    assert GroupBeginning.first_of([], entry) is None


def test_an_hour_is_not_told_while_a_transaction_may_bring_records_of_it() -> None:
    world = World(0)
    world.log, world.since, world.idle_after = Log(1), BEGIN, 60
    world.log.stamps, world.log.behind = [[BEGIN]], [[BEGIN + 1]]
    world.entry = TopicEntry(landed=world._ranges([(0, 0, 1)]), origin={0: 0})
    world.now = BEGIN + 2 * HOUR
    found = world.look()
    assert (found.emission, "a transaction is open in clicks[0]" in found.text) == (None, True)
    world.transact()
    world.entry += TopicEntry(landed=world._ranges([(0, 1, 2)]))
    told = world.look().emission
    assert told is not None
    assert told.new == (BEGIN,)


def test_why_nothing_is_told_is_said() -> None:
    world = World(0)
    world.log, world.since, world.idle_after = Log(2), BEGIN, None
    world.log.stamps = [[BEGIN, BEGIN + HOUR], [BEGIN]]
    world.entry = TopicEntry(landed=world._ranges([(0, 0, 2), (1, 0, 1)]), origin={0: 0, 1: 0})
    world.now = BEGIN + 2 * HOUR
    assert "clicks[1] have no record at or after" in world.look().text
    world.now = BEGIN
    assert "all of its partitions up to now are emitted" in world.look().text


def test_late_rows_of_an_hour_that_is_not_complete_wait_for_the_next_telling() -> None:
    ledger = Ledger("g", {TOPIC: TopicEntry(landed=RangeSet.of(TOPIC.topic, 0, 0, 9))})
    before = EmittedPartitions(3, ((0, 2 * HOUR),), {}, {0: 2})
    emission = plan_emission(before, ledger, {0: 5, HOUR: 1}, [(HOUR, 2 * HOUR), (2 * HOUR, 3 * HOUR)])
    assert emission is not None
    assert (emission.new, emission.reopened) == ((2 * HOUR,), {HOUR: 1})
    assert (emission.after.number, emission.after.spans, emission.after.waiting) == (4, ((0, 3 * HOUR),), {0: 5})
    assert plan_emission(before, ledger, {0: 5}, []) is None


def test_rows_that_a_rollback_took_and_that_land_again_count_as_new() -> None:
    before = EmittedPartitions(1, ((0, HOUR),), {("clicks", "id"): RangeSet.of(TOPIC.topic, 0, 0, 9)})
    without = Ledger("g", {TOPIC: TopicEntry(landed=RangeSet.of(TOPIC.topic, 0, 0, 5))})
    emission = plan_emission(before, without, {}, [(HOUR, 2 * HOUR)])
    assert emission is not None
    again = Ledger("g", {TOPIC: TopicEntry(landed=RangeSet.of(TOPIC.topic, 0, 0, 10))})
    assert emission.after.unseen(again) == RangeSet.of(TOPIC.topic, 0, 5, 10)
    # A topic that was made anew has all of its records for the first time.
    anew = Ledger("g", {TopicIdentity("clicks", "other", "cluster"): TopicEntry(landed=RangeSet.of("clicks", 0, 0, 2))})
    assert emission.after.unseen(anew) == RangeSet.of("clicks", 0, 0, 2)
    assert EmittedPartitions().unseen(anew) == RangeSet()


@pytest.mark.parametrize(
    ("every", "key"),
    [(PartitionLength.HOUR, "2025-11-20T13:00:00"), (PartitionLength.DAY, "2025-11-20")],
    ids=["hour", "day"],
)
def test_keys_are_those_that_airflows_mappers_of_time_read(every: PartitionLength, key: str) -> None:
    at = 1_763_643_600_000 // every.width_ms * every.width_ms
    assert every.key(at) == key
    assert every.between(at - 1, at + every.width_ms) == [(at, at + every.width_ms)]
    assert every.between(at + 1, at + 2 * every.width_ms - 1) == []


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"since": "soon"}, "since"),
        ({"since": "1969-12-31T00:00:00Z"}, "since"),
        ({"every": "week"}, "every"),
        ({"table": "nowhere"}, "table"),
        ({"consumer_group": ""}, "consumer_group"),
        ({"idle_after": "long"}, "idle_after"),
    ],
    ids=str,
)
def test_what_can_not_work_is_refused(wrong: dict[str, Any], argument: str) -> None:
    given: dict[str, Any] = {"table": "lake.t", "consumer_group": "g", "since": "2026-01-01T00:00:00Z", **wrong}
    with pytest.raises(InvalidArgument, match=f"^{argument}"):
        PartitionsLook(**given)
