"""When enough waits, and when to say so again: through random arrivals, runs, and runs that fail."""

from __future__ import annotations

import random

import pytest

from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.triggers.kafka_lag_event import KafkaLagEventTrigger
from airflow_lakestream.watching.lag.check import LevelAlarm, UnreadLevel

TABLE = {"table": "lake.t", "consumer_group": "g"}


def waiting(start: int, end: int, least: int = 10) -> UnreadLevel:
    ranges = RangeSet.of("orders", 0, start, end)
    return UnreadLevel(end - start >= least, ranges, end - start, None, {})


def test_it_fires_once_for_what_waits() -> None:
    alarm = LevelAlarm(again_after=600)
    seen = [waiting(0, 5), waiting(0, 12), waiting(0, 30), waiting(5, 40), waiting(20, 40), waiting(20, 41)]
    # At [20,40) all that it fired for is read, and enough came meanwhile.
    assert [alarm.fires(one, at) for at, one in enumerate(seen)] == [False, True, False, False, True, False]


def test_it_fires_again_for_what_nobody_reads() -> None:
    alarm = LevelAlarm(again_after=600)
    assert [alarm.fires(waiting(0, 12), at) for at in (0, 599, 600, 1199, 1200)] == [True, False, True, False, True]


def test_what_is_read_arms_it_although_too_little_waits_then() -> None:
    alarm = LevelAlarm(again_after=600)
    seen = [waiting(0, 12), waiting(12, 13), waiting(12, 30)]
    assert [alarm.fires(one, at) for at, one in enumerate(seen)] == [True, False, True]


@pytest.mark.parametrize("seed", range(50))
def test_no_records_wait_for_ever_and_a_run_is_not_started_twice_for_the_same(seed: int) -> None:
    rng, alarm, again_after = random.Random(seed), LevelAlarm(again_after=20), 20
    read = end = 0
    fired_at, fires_in_run, run_until = -100, 0, None
    enough_since = None
    for at in range(300):
        end += rng.choice([0, 0, 1, 5])
        if run_until is not None and at >= run_until[0]:
            # A run reads what was there when it began, or it fails.
            read = run_until[1] if rng.random() < 0.8 else read
            run_until = None
        now = waiting(read, end)
        enough_since = (enough_since if enough_since is not None else at) if now.reached else None
        if alarm.fires(now, at):
            fires_in_run = fires_in_run + 1 if run_until is not None else 0
            fired_at = at
            run_until = run_until or (at + rng.randint(1, 8), end)
        assert fires_in_run == 0
        if enough_since is not None and at - enough_since > again_after:
            assert at - fired_at <= again_after


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "exactly one of checkpoint_location, table and group_id"),
        ({"table": "lake.t"}, "consumer_group: is missing"),
        ({**TABLE, "group_id": "g"}, "exactly one of"),
        ({**TABLE, "min_records": 0}, "min_records"),
        ({**TABLE, "min_wait": "soon"}, "min_wait"),
        ({**TABLE, "topic": "{{ params.topic }}"}, "is a template"),
        ({**TABLE, "topic": "no topic"}, "topic"),
        ({"table": "t", "consumer_group": "g"}, "not of the form namespace.table"),
        ({**TABLE, "poll_interval": 0}, "above 0"),
    ],
)
def test_what_can_not_work_is_refused_where_the_dag_is_parsed(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        KafkaLagEventTrigger(**given)


def test_it_is_made_again_from_what_airflow_keeps() -> None:
    path, given = KafkaLagEventTrigger(**TABLE, min_wait="5m", topic=["a", "b"]).serialize()
    assert path == f"{KafkaLagEventTrigger.__module__}.KafkaLagEventTrigger"
    assert (given["min_records"], given["min_wait"]) == (None, 300)
    assert KafkaLagEventTrigger(**given).serialize() == (path, given)
