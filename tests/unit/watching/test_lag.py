"""How far is too far: the limits, the partitions, and the names of what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_lakestream.core.landing.plan import LogTruncated, PartitionWatermarks, TopicState
from airflow_lakestream.core.ledger import TopicIdentity
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.watching.asking import LookOutcome, MissingPolicy, Verdict, verdict_of
from airflow_lakestream.watching.causes import StreamCause, StreamReason
from airflow_lakestream.watching.lag.check import ConsumerLag, LagCheck, LagLimits
from airflow_lakestream.watching.lag.waiting import UnreadOffsets
from airflow_lakestream.watching.source import ConsumerProgress

NOW = 1_800_000_000.0


def lag(records: dict[int, int], ages: dict[int, float] | None = None, **books: Any) -> ConsumerLag:
    """Return a consumer that lacks so many records of partitions that end at 100, the oldest so many seconds old."""
    state = TopicState(TopicIdentity("orders", "id", "c"), {p: PartitionWatermarks(0, 100) for p in records})
    unread = RangeSet()
    for p, count in records.items():
        unread |= RangeSet.of("orders", p, 100 - count, 100)
    oldest = {p: int((NOW - age) * 1000) for p, age in (ages or {}).items()}
    positions = {"orders": {p: 100 - count for p, count in records.items()}}
    return ConsumerLag(
        ConsumerProgress("c", ("orders",), positions, **books),
        [UnreadOffsets(state, unread, RangeSet(), oldest=oldest)],
        NOW,
    )


@pytest.mark.parametrize(
    ("records", "ages", "limits", "is_near"),
    [
        ({0: 0, 1: 0}, {}, LagLimits(records=0), True),
        ({0: 1, 1: 0}, {0: 1}, LagLimits(records=0), False),
        ({0: 6, 1: 6}, {}, LagLimits(records=10), True),
        ({0: 6, 1: 6}, {}, LagLimits(records=10, per_partition=False), False),
        ({0: 50, 1: 0}, {0: 59}, LagLimits(age=60), True),
        ({0: 50, 1: 1}, {0: 10, 1: 61}, LagLimits(age=60), False),
        ({0: 50, 1: 0}, {0: 61}, LagLimits(records=50, age=60), False),
        ({0: 51, 1: 0}, {0: 1}, LagLimits(records=50, age=60), False),
    ],
)
def test_each_limit_holds(records: dict[int, int], ages: dict[int, float], limits: LagLimits, is_near: bool) -> None:
    waiting = lag(records, ages).judge(limits, fail=False)
    checked = lag(records, ages).judge(limits, fail=True)
    assert waiting.outcome is (LookOutcome.DONE if is_near else LookOutcome.WAITING)
    assert checked.outcome is (LookOutcome.DONE if is_near else LookOutcome.FAILED)
    assert not checked.terminal
    assert waiting.value is not None
    assert waiting.value["lag"] == sum(records.values())


@pytest.mark.parametrize(("newest", "is_near"), [(NOW - 59, True), (NOW - 61, False), (None, False)])
def test_a_batch_may_be_so_old_while_something_is_unread(newest: float | None, is_near: bool) -> None:
    verdict = lag({0: 1}, newest_at=newest).judge(LagLimits(batch_age=60), fail=False)
    assert (verdict.outcome is LookOutcome.DONE) is is_near


def test_an_old_batch_is_right_where_nothing_came_since() -> None:
    verdict = lag({0: 0}, newest_at=NOW - 7200).judge(LagLimits(batch_age=60), fail=True)
    assert (verdict.outcome, verdict.reasons[0].cause) == (LookOutcome.DONE, StreamCause.IDLE_TOPIC)
    assert "nothing came to orders since" in verdict.text


def test_the_worst_partition_and_the_numbers_are_told() -> None:
    verdict = lag({0: 0, 1: 5, 2: 70}, {1: 30, 2: 600}, newest_at=NOW - 900).judge(LagLimits(records=10), fail=False)
    assert verdict.value == {
        "lag": 75,
        "partitions": {"orders": {"0": 0, "1": 5, "2": 70}},
        "worst": {"topic": "orders", "partition": 2, "lag": 70},
        "seconds": 600.0,
        "batch_age": 900.0,
        "lost": 0,
    }
    for text in ("75 records behind in 2 of 3 partitions", "orders[2] with 70 unread", "10 min old", "15 min ago"):
        assert text in verdict.text


@pytest.mark.parametrize(
    ("records", "limits", "books", "cause"),
    [
        ({0: 9, 1: 9}, LagLimits(records=0), {}, StreamCause.SLOW_CONSUMER),
        ({0: 0, 1: 9}, LagLimits(records=0), {}, StreamCause.LATE_PARTITION),
        ({0: 9}, LagLimits(batch_age=60), {"newest_at": NOW - 600}, StreamCause.STOPPED_QUERY),
        (
            {0: 9},
            LagLimits(records=0),
            {"reasons": (StreamReason(StreamCause.ROLLBACK, "landings"),)},
            StreamCause.ROLLBACK,
        ),
        (
            {0: 9},
            LagLimits(records=0),
            {"reasons": (StreamReason(StreamCause.FAILED_QUERY, "x"),)},
            StreamCause.FAILED_QUERY,
        ),
    ],
)
def test_each_thing_that_is_wrong_has_its_name(
    records: dict[int, int], limits: LagLimits, books: dict[str, Any], cause: StreamCause
) -> None:
    verdict = lag(records, **books).judge(limits, fail=False)
    assert verdict.reasons[0].cause is cause
    assert verdict.text.startswith(f"{cause}: ")


def test_a_position_beyond_the_log_is_of_another_log() -> None:
    books = ConsumerProgress("checkpoint c", ("orders",), {"orders": {0: 101}})
    with pytest.raises(LogTruncated, match="checkpoint c"):
        books.unread(TopicState(TopicIdentity("orders", "id", "c"), {0: PartitionWatermarks(0, 100)}))


def test_what_the_log_lost_is_told_apart_from_what_can_be_read() -> None:
    books = ConsumerProgress("g", ("orders",), {"orders": {0: 5}})
    state = TopicState(
        TopicIdentity("orders", "id", "c"), {0: PartitionWatermarks(20, 100), 1: PartitionWatermarks(7, 9)}
    )
    unread, lost = books.unread(state)
    assert (unread, lost) == (
        RangeSet.of("orders", 0, 20, 100) | RangeSet.of("orders", 1, 7, 9),
        RangeSet.of("orders", 0, 5, 20),
    )


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({}, "checkpoint_location"),
        ({"table": "a.b", "consumer_group": "g", "group_id": "g"}, "group_id"),
        ({"table": "b", "consumer_group": "g"}, "table"),
        ({"table": "a.b"}, "consumer_group"),
        ({"group_id": "g", "topic": "a b"}, "topic"),
        ({"group_id": "g", "max_lag_records": -1}, "max_lag_records"),
        ({"group_id": "g", "max_lag_seconds": "soon"}, "max_lag_seconds"),
        ({"group_id": "g", "max_batch_age": "5m"}, "max_batch_age"),
        ({"group_id": "g", "per_partition": "perhaps"}, "per_partition"),
        ({"group_id": "g", "missing": "ignore"}, "missing"),
    ],
)
def test_arguments_that_can_not_work_are_named(arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        LagCheck(**arguments)
    assert error.value.argument == argument


def test_arguments_may_be_text_as_templates_leave_it() -> None:
    check = LagCheck(group_id="g", max_lag_records="7", max_lag_seconds="5m", per_partition="False", topic="None")
    assert check.limits == LagLimits(records=7, age=300, per_partition=False)
    assert check.topic == ()


def test_a_bad_argument_fails_even_where_missing_things_are_awaited() -> None:
    assert verdict_of(InvalidArgument("max_lag_records", "is bad"), MissingPolicy.WAIT).outcome is LookOutcome.FAILED
    assert (
        verdict_of(InvalidArgument("kafka_conn_id", "is not there"), MissingPolicy.WAIT).outcome is LookOutcome.WAITING
    )
    assert verdict_of(InvalidArgument("kafka_conn_id", "is not there"), MissingPolicy.FAIL).terminal
    assert verdict_of(OSError("reset"), MissingPolicy.WAIT).outcome is LookOutcome.WAITING
    assert not verdict_of(OSError("reset"), MissingPolicy.FAIL).terminal


def test_a_verdict_survives_its_way_through_the_database() -> None:
    verdict = Verdict(
        LookOutcome.TIMED_OUT, (StreamReason(StreamCause.ROLLBACK, "two landings"),), {"lag": 3}, terminal=True
    )
    assert Verdict.parse(verdict.to_dict()) == verdict
