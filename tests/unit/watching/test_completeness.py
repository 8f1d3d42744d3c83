"""When a time is complete: all below B(t) landed, and no partition open there."""

from __future__ import annotations

import pytest

from airflow_lakestream.core.landing.plan import DataLoss, PartitionWatermarks, TopicState
from airflow_lakestream.core.ledger import Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.ports import TimeBoundary
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.watching.causes import StreamCause
from airflow_lakestream.watching.completeness import TimeCompleteness, covered_part, measure_completeness
from airflow_lakestream.watching.lag.waiting import backlog_of

TOPIC = TopicIdentity("t", "id", "c")


def found(
    entry: TopicEntry,
    highs: dict[int, TimeBoundary],
    *,
    low: int = 0,
    lows: dict[int, TimeBoundary] | None = None,
    ends: dict[int, int] | None = None,
) -> TimeCompleteness:
    state = TopicState(TOPIC, {p: PartitionWatermarks(low, 100) for p in highs})
    backlog = backlog_of(Ledger("g", {TOPIC: entry}), state, "lake.t")
    return measure_completeness(backlog, highs, lows, "lake.t", ends=ends)


def landed(*ranges: tuple[int, int, int], **more: object) -> TopicEntry:
    return TopicEntry(landed=RangeSet(OffsetRange("t", *one) for one in ranges), **more)  # type: ignore[arg-type]  # a keyword each, of fields of several types


def causes(one: TimeCompleteness) -> list[StreamCause]:
    return [reason.cause for reason in one.reasons("g", "noon")]


RESUMED = {0: 0, 1: 0}


def test_all_below_the_boundaries_is_landed() -> None:
    entry = landed((0, 0, 40), (1, 0, 60), origin=RESUMED)
    assert found(entry, {0: TimeBoundary(40), 1: TimeBoundary(60)}).is_complete
    assert not found(entry, {0: TimeBoundary(41), 1: TimeBoundary(60)}).is_complete


def test_what_is_missing_is_named() -> None:
    one = found(landed((0, 0, 40), (0, 50, 60), origin={0: 0}), {0: TimeBoundary(60)})
    assert one.missing == RangeSet.of("t", 0, 40, 50)
    [reason] = one.reasons("g", "noon")
    assert (reason.cause, "t[0] [40,50)" in reason.text) == (StreamCause.SLOW_CONSUMER, True)


def test_a_partition_without_a_later_record_is_late_and_named() -> None:
    entry = landed((0, 0, 100), (1, 0, 100), origin=RESUMED)
    one = found(entry, {0: TimeBoundary(80), 1: TimeBoundary(100, is_open=True)})
    assert (one.is_complete, causes(one)) == (False, [StreamCause.LATE_PARTITION])
    assert "t[1]" in one.reasons("g", "noon")[0].text


def test_a_time_that_no_partition_has_passed_is_open() -> None:
    highs = {p: TimeBoundary(100, is_open=True) for p in RESUMED}
    one = found(landed((0, 0, 100), (1, 0, 100), origin=RESUMED), highs)
    assert (one.is_complete, causes(one)) == (False, [StreamCause.OPEN_INTERVAL])


def test_an_idle_partition_closes_only_when_all_of_it_is_landed() -> None:
    highs = {p: TimeBoundary(100, is_open=True) for p in RESUMED}
    entry = landed((0, 0, 100), (1, 0, 100), origin=RESUMED)
    ends = {0: 100, 1: 100}
    assert found(entry, highs, ends=ends).is_complete
    one = found(landed((0, 0, 100), (1, 0, 99), origin=RESUMED), highs, ends=ends)
    assert one.open == (1,)
    assert one.missing == RangeSet.of("t", 1, 99, 100)


def test_an_idle_partition_with_an_open_transaction_stays_open() -> None:
    highs = {0: TimeBoundary(100, is_open=True), 1: TimeBoundary(100, is_open=True)}
    one = found(landed((0, 0, 100), (1, 0, 100), origin=RESUMED), highs, ends={0: 100, 1: 103})
    assert (one.is_complete, one.open, causes(one)) == (False, (1,), [StreamCause.OPEN_INTERVAL])
    assert "a transaction is open in t[1]" in one.reasons("g", "noon")[0].text


def test_a_partition_that_came_later_begins_at_0() -> None:
    one = found(landed((0, 0, 40), origin={0: 0}), {0: TimeBoundary(40), 1: TimeBoundary(5)})
    assert one.missing == RangeSet.of("t", 1, 0, 5)


def test_a_group_that_began_after_the_time_does_not_hold_it() -> None:
    one = found(landed((0, 70, 100), origin={0: 70}), {0: TimeBoundary(40)})
    assert (one.is_complete, causes(one)) == (False, [StreamCause.NOT_COVERED])
    # Unless its time was landed by an interval.
    entry = landed((0, 20, 40), (0, 70, 100), origin={0: 70}, covered=((1000, 2000),))
    assert found(entry, {0: TimeBoundary(40)}, lows={0: TimeBoundary(20)}).is_complete
    assert not found(entry, {0: TimeBoundary(41)}, lows={0: TimeBoundary(20)}).is_complete


def test_a_group_of_intervals_holds_what_it_has_covered() -> None:
    entry = landed((0, 20, 40), covered=((1000, 2000),))
    assert covered_part(entry, 2000) == (1000, 2000)
    assert covered_part(entry, 1500) == (1000, 2000)
    assert covered_part(entry, 1000) is None
    assert found(entry, {0: TimeBoundary(40)}, lows={0: TimeBoundary(20)}).is_complete
    one = found(entry, {0: TimeBoundary(40)})
    assert (one.is_complete, causes(one)) == (False, [StreamCause.NOT_COVERED])


def test_what_kafka_has_no_more_is_an_error_that_names_it() -> None:
    with pytest.raises(DataLoss, match=r"t\[0\] \[10,20\)"):
        found(landed((0, 0, 10), (0, 20, 50), origin={0: 0}), {0: TimeBoundary(50)}, low=20)
    entry = landed((0, 0, 10), (0, 20, 50), origin={0: 0}, lost=RangeSet.of("t", 0, 10, 20))
    assert found(entry, {0: TimeBoundary(50)}, low=20).is_complete
