"""What a run reads: the rules of the plan, against sets of offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.landing.plan import (
    DataLoss,
    LogTruncated,
    PartitionWatermarks,
    TopicReplaced,
    TopicState,
    check_identity,
    check_log,
    first_hole,
    resume_plan,
)
from airflow_lakestream.core.ledger import Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.ranges import RangeSet
from tests.support.core_strategies import IDENTITY, PARTITIONS, TOPIC, by_partition, offsets, range_sets

TABLE = "lake.orders"


def state(marks: dict[int, tuple[int, int]]) -> TopicState:
    return TopicState(
        IDENTITY, {p: PartitionWatermarks(low, end, leader_epoch=p + 7) for p, (low, end) in marks.items()}
    )


def span(start: int, end: int, partition: int = 0) -> RangeSet:
    return RangeSet.of(TOPIC, partition, start, end)


@st.composite
def states(draw: st.DrawFn) -> TopicState:
    marks = {}
    for partition in draw(st.sets(st.sampled_from(PARTITIONS), min_size=1)):
        low = draw(st.integers(0, 30))
        marks[partition] = (low, low + draw(st.integers(0, 20)))
    return state(marks)


@given(states(), range_sets(), range_sets(), by_partition(), by_partition())
def test_need_is_what_was_wanted_without_what_is_held_or_gone(
    now: TopicState, landed: RangeSet, lost: RangeSet, origin: dict[int, int], starts: dict[int, int]
) -> None:
    entry = TopicEntry(landed=landed, lost=lost - landed, origin=origin)
    plan = resume_plan(entry, now, starts, OnDataLoss.RECORD, TABLE)

    begins = origin or plan.origin
    wanted = {(p, o) for p, marks in now.marks.items() for o in range(begins.get(p, 0), marks.end)}
    need = wanted - offsets(landed) - offsets(lost)
    gone = {(p, o) for p, o in need if o < now.marks[p].low}
    assert offsets(plan.lost) == gone
    assert offsets(plan.ranges) == need - gone
    assert set(plan.origin) == (set() if origin else set(now.marks))


@given(states(), range_sets(), range_sets(), by_partition())
def test_the_first_resume_accounts_for_all_from_the_first_offset_that_the_group_has(
    now: TopicState, landed: RangeSet, lost: RangeSet, starts: dict[int, int]
) -> None:
    entry = TopicEntry(landed=landed, lost=lost - landed)
    plan = resume_plan(entry, now, starts, OnDataLoss.RECORD, TABLE)

    accounted = offsets(landed) | offsets(lost) | offsets(plan.lost) | offsets(plan.ranges)
    for p, marks in now.marks.items():
        held = [o for of, o in offsets(landed) | offsets(lost) if of == p]
        begin = starts.get(p, min([marks.low, *held]))
        assert plan.origin[p] == begin
        assert {(p, o) for o in range(begin, marks.end)} <= accounted


@given(states(), range_sets(), by_partition())
def test_after_the_plan_is_landed_nothing_is_left(now: TopicState, landed: RangeSet, first: dict[int, int]) -> None:
    entry = TopicEntry(landed=landed)
    plan = resume_plan(entry, now, first or {0: 0}, OnDataLoss.RECORD, TABLE)
    after = entry + TopicEntry(landed=plan.ranges, lost=plan.lost, origin=plan.origin)

    again = resume_plan(after, now, {}, OnDataLoss.FAIL, TABLE)

    assert not again.changes_the_ledger


@given(states(), range_sets(), by_partition())
def test_a_loss_fails_exactly_when_something_is_lost(now: TopicState, landed: RangeSet, first: dict[int, int]) -> None:
    entry = TopicEntry(landed=landed)
    lost = resume_plan(entry, now, first, OnDataLoss.RECORD, TABLE).lost
    if lost:
        with pytest.raises(DataLoss) as caught:
            resume_plan(entry, now, first, OnDataLoss.FAIL, TABLE)
        assert caught.value.ranges == lost
        assert str(lost) in str(caught.value)
    else:
        assert resume_plan(entry, now, first, OnDataLoss.FAIL, TABLE).lost == RangeSet()


def test_a_partition_that_came_later_begins_at_0() -> None:
    entry = TopicEntry(landed=span(5, 8), origin={0: 5})
    plan = resume_plan(entry, state({0: (0, 10), 1: (0, 3)}), {}, OnDataLoss.FAIL, TABLE)
    assert plan.ranges == span(8, 10) | span(0, 3, partition=1)


def test_what_lies_below_the_origin_is_neither_read_nor_lost() -> None:
    plan = resume_plan(TopicEntry(origin={0: 5}), state({0: (3, 10)}), {}, OnDataLoss.FAIL, TABLE)
    assert (plan.ranges, plan.lost) == (span(5, 10), RangeSet())


def test_a_first_run_with_nothing_to_read_still_writes_down_its_origin() -> None:
    plan = resume_plan(TopicEntry(), state({0: (7, 7)}), {0: 7}, OnDataLoss.FAIL, TABLE)
    assert not plan.ranges
    assert plan.changes_the_ledger
    assert plan.origin == {0: 7}


def test_a_log_that_went_below_what_was_landed_is_refused() -> None:
    entry = TopicEntry(landed=span(0, 10), origin={0: 0})
    check_log(entry, state({0: (0, 10)}), TABLE)
    with pytest.raises(LogTruncated, match=r"orders\[0\].*up to 10.*ends at 9"):
        check_log(entry, state({0: (0, 9)}), TABLE)
    with pytest.raises(LogTruncated, match="gone"):
        check_log(entry, state({1: (0, 10)}), TABLE)


@pytest.mark.parametrize(
    ("found", "what"),
    [
        (TopicIdentity(TOPIC, "another-id", "cluster-id"), "deleted and created again"),
        (TopicIdentity(TOPIC, "topic-id", "another-cluster"), "another Kafka cluster"),
    ],
)
def test_a_name_that_stands_for_something_else_is_refused(found: TopicIdentity, what: str) -> None:
    ledger = Ledger("g", {IDENTITY: TopicEntry(landed=span(0, 10))})
    check_identity(ledger, IDENTITY, TABLE)
    check_identity(ledger, TopicIdentity("another", "another-id", "cluster-id"), TABLE)
    with pytest.raises(TopicReplaced, match=what) as caught:
        check_identity(ledger, found, TABLE)
    assert (caught.value.known, caught.value.found) == (IDENTITY, found)


def test_leader_epochs_go_into_the_plan_and_those_known_to_the_reader() -> None:
    plan = resume_plan(TopicEntry(origin={0: 0}, epochs={0: 3}), state({0: (0, 1)}), {}, OnDataLoss.FAIL, TABLE)
    assert (plan.epochs, plan.known_epochs) == ({0: 7}, {0: 3})


def test_an_epoch_is_known_as_far_as_the_ledger_reaches() -> None:
    entry = TopicEntry(origin={0: 5, 1: 2}, landed=span(5, 20) | span(30, 40), epochs={0: 3, 1: 3})
    plan = resume_plan(entry, state({0: (0, 100), 1: (0, 100)}), {}, OnDataLoss.FAIL, TABLE)
    # Behind what is landed another leader may have written: its records are not of that epoch.
    assert [plan.known_epoch(0, offset) for offset in (20, 40, 41, 70)] == [3, 3, None, None]
    assert [plan.known_epoch(1, offset) for offset in (2, 3)] == [3, None]
    assert plan.known_epoch(2, 0) is None


@given(range_sets(), by_partition())
def test_the_first_hole_is_the_least_offset_still_lacking(landed: RangeSet, origin: dict[int, int]) -> None:
    entry = TopicEntry(landed=landed, origin=origin)
    for partition in PARTITIONS:
        begin = origin.get(partition, 0)
        expected = next(o for o in range(begin, 100) if (partition, o) not in offsets(landed))
        assert first_hole(entry, IDENTITY, partition) == expected
