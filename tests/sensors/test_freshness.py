"""Whether a table is fresh, on a real broker and a real catalog: each parameter, and each cause by its name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.hooks.places import AirflowPlaces
from airflow_lakestream.run.replay import RejectReplay
from airflow_lakestream.tables.coordinates import iso
from airflow_lakestream.watching.asking import LookOutcome, Verdict, look_now, look_safely, make_check
from airflow_lakestream.watching.causes import StreamCause
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, Topics
from tests.support.lake import TABLE, Lake, events

pytestmark = pytest.mark.integration

# Whole hours of a day that lies behind, in topics that keep it.
DAY = 1_763_596_800_000
HOUR = 3_600_000
KEPT = {"retention_ms": -1, "message_timestamp_after_max_ms": 9_000_000_000_000}
# Younger than this is nothing that took a commit.
AT_ONCE = "1ms"

Look = Callable[..., Verdict]


@pytest.fixture
def look(connections: Connections) -> Look:
    """Give `look(**arguments)`: what the sensor's look comes to, in the test's lake."""

    def go(**arguments: Any) -> Verdict:
        given = {"table": TABLE, "iceberg_conn_id": "iceberg_default", **arguments}
        return look_now(look_safely(make_check("freshness", given), AirflowPlaces(), 0.0))

    return go


def causes(verdict: Verdict) -> list[StreamCause]:
    return [reason.cause for reason in verdict.reasons]


@pytest.fixture
def name(topic: Topics) -> str:
    """Give a topic of two partitions that keeps old records."""
    return topic(2, **KEPT)


# Age


def test_a_replay_of_rejected_records_makes_a_table_no_fresher(
    lake: Lake, name: str, produce: Producing, look: Look
) -> None:
    produce(name, 0, ['{"id":0}', '{"id":1,"more":1}'])
    lake.land(name, schema="id bigint", unknown_fields="fail")
    [landed] = lake.snapshots()
    at_ms = lake.table().metadata.snapshots[0].timestamp_ms
    assert RejectReplay(table=TABLE, consumer_group="g").run(lake.catalog()).counts.written == 1
    verdict = look(max_age="1h")
    assert verdict.value is not None
    assert (verdict.value["snapshot_id"], verdict.value["rows"]) == (str(landed), 1)
    assert verdict.value["through"] == iso(at_ms)


def test_a_young_landing_is_fresh_and_told(lake: Lake, name: str, produce: Producing, look: Look) -> None:
    produce(name, 0, events(0, 0, 7))
    lake.land(name)
    verdict = look(max_age="10m")
    [newest] = lake.table().snapshots()
    assert (verdict.outcome, verdict.reasons) == (LookOutcome.DONE, ())
    assert verdict.value is not None
    assert (verdict.value["snapshot_id"], verdict.value["rows"]) == (str(newest.snapshot_id), 7)
    assert 0 <= verdict.value["age"] < 600
    assert verdict.value["through"].startswith("20")
    assert look(max_age=AT_ONCE).outcome is LookOutcome.WAITING
    assert look(max_age=AT_ONCE, fail_when_stale=True).outcome is LookOutcome.FAILED


def test_an_idle_topic_is_not_a_stale_table_and_a_stopped_consumer_is(
    lake: Lake, name: str, produce: Producing, look: Look
) -> None:
    produce(name, 0, events(0, 0, 7))
    lake.land(name)
    arguments = {"max_age": AT_ONCE, "kafka_conn_id": "kafka_default"}
    idle = look(**arguments)
    assert (idle.outcome, causes(idle)) == (LookOutcome.DONE, [StreamCause.IDLE_TOPIC])
    told = look(**arguments, idle_is_fresh=False)
    assert (told.outcome, causes(told)) == (LookOutcome.WAITING, [StreamCause.IDLE_TOPIC])

    produce(name, 0, events(0, 7, 3))
    stopped = look(**arguments)
    assert (stopped.outcome, causes(stopped)) == (LookOutcome.WAITING, [StreamCause.STOPPED_CONSUMER])
    assert f"{name}[0] [7,10)" in stopped.text
    lake.land(name)
    assert look(**arguments).outcome is LookOutcome.DONE


def test_a_compaction_is_no_landing(lake: Lake, name: str, produce: Producing, look: Look) -> None:
    for first in (0, 5):
        produce(name, 0, events(0, first, 5))
        lake.land(name)
    landing = lake.table().current_snapshot().snapshot_id
    lake.compact()
    verdict = look(max_age=AT_ONCE)
    assert causes(verdict) == [StreamCause.STOPPED_CONSUMER, StreamCause.COMPACTION]
    assert str(lake.table().current_snapshot().snapshot_id) in verdict.text
    assert verdict.value is not None
    assert verdict.value["snapshot_id"] == str(landing)
    assert look(max_age="10m").value["snapshot_id"] == str(landing)  # type: ignore[index]  # it is fresh


def test_other_writers_count_where_operations_are_asked_for(
    lake: Lake, name: str, produce: Producing, look: Look
) -> None:
    produce(name, 0, events(0, 0, 5))
    lake.land(name)
    landing = lake.table().current_snapshot().snapshot_id
    lake.append_foreign()
    foreign = lake.table().current_snapshot().snapshot_id

    assert causes(look(max_age=AT_ONCE)) == [StreamCause.STOPPED_CONSUMER, StreamCause.OTHER_WRITER]

    def newest(**arguments: Any) -> Any:
        return look(max_age="10m", **arguments).value["snapshot_id"]  # type: ignore[index]  # it is fresh

    assert newest() == str(landing)
    assert newest(operations=["append"]) == str(foreign)
    assert newest(operations="append", consumer_group="g") == str(landing)
    none = look(max_age="10m", operations=["delete"])
    assert (none.outcome, causes(none)) == (LookOutcome.WAITING, [StreamCause.NO_LANDING, StreamCause.OTHER_WRITER])


def test_a_landing_that_was_rolled_back_does_not_count(lake: Lake, name: str, produce: Producing, look: Look) -> None:
    for first in (0, 5):
        produce(name, 0, events(0, first, 5))
        lake.land(name)
    first, second = lake.snapshots()
    lake.roll_back(first)
    verdict = look(max_age=AT_ONCE, kafka_conn_id="kafka_default")
    assert causes(verdict) == [StreamCause.STOPPED_CONSUMER, StreamCause.ROLLBACK]
    assert f"{name}[0] [5,10)" in verdict.text
    assert f"5 rows in snapshots {second}" in verdict.text
    assert look(max_age="10m").value["snapshot_id"] == str(first)  # type: ignore[index]  # it is fresh

    lake.land(name)
    assert StreamCause.ROLLBACK not in causes(look(max_age=AT_ONCE))


def test_only_the_group_that_is_asked_for_counts(lake: Lake, name: str, produce: Producing, look: Look) -> None:
    produce(name, 0, events(0, 0, 5))
    lake.land(name)
    mine = lake.table().current_snapshot().snapshot_id
    lake.land(name, consumer_group="other", allow_group_overlap=True)
    assert look(max_age="10m", consumer_group="g").value["snapshot_id"] == str(mine)  # type: ignore[index]  # fresh
    unknown = look(max_age="10m", consumer_group="nobody")
    assert causes(unknown)[0] is StreamCause.NO_LANDING
    assert "nobody" in unknown.text


def test_a_branch_has_a_history_of_its_own(lake: Lake, name: str, produce: Producing, look: Look) -> None:
    produce(name, 0, events(0, 0, 5))
    lake.land(name)
    first = lake.table().current_snapshot().snapshot_id
    lake.table().manage_snapshots().create_branch(first, "audited").commit()
    produce(name, 0, events(0, 5, 5))
    lake.land(name)
    assert look(max_age="10m", branch="audited").value["snapshot_id"] == str(first)  # type: ignore[index]  # fresh
    # What its ledger lacks, main's has.
    behind = look(max_age=AT_ONCE, branch="audited", kafka_conn_id="kafka_default")
    assert f"{name}[0] [5,10)" in behind.text
    unknown = look(max_age="10m", branch="nowhere")
    assert (unknown.outcome, unknown.terminal) == (LookOutcome.FAILED, True)
    assert "audited, main" in unknown.text


def test_landings_whose_snapshots_have_expired_are_told(lake: Lake, name: str, produce: Producing, look: Look) -> None:
    produce(name, 0, events(0, 0, 5))
    lake.land(name)
    lake.compact()
    table = lake.table()
    table.maintenance.expire_snapshots().by_id(lake.snapshots()[0]).commit()
    verdict = look(max_age="10m")
    assert (verdict.outcome, causes(verdict)[0]) == (LookOutcome.WAITING, StreamCause.EXPIRED_LANDING)
    assert look(max_age="10m", kafka_conn_id="kafka_default").outcome is LookOutcome.DONE


# Event time


def test_the_newest_event_counts_whenever_it_was_landed(lake: Lake, name: str, produce: Producing, look: Look) -> None:
    now = int(time.time() * 1000)
    arguments = {"max_age": "1h", "event_time_column": "_kafka_timestamp"}
    produce(name, 0, events(0, 0, 3), timestamps=[now - 3 * HOUR, now - 2 * HOUR, now - 4 * HOUR])
    lake.land(name)
    old = look(**arguments)
    assert (old.outcome, causes(old)) == (LookOutcome.WAITING, [StreamCause.LATE_EVENTS])
    assert "2.0 h old" in old.text
    produce(name, 0, events(0, 3, 1), timestamps=[now - HOUR // 2])
    lake.land(name)
    # A later landing of older events takes nothing away.
    produce(name, 1, events(1, 0, 1), timestamps=[now - 5 * HOUR])
    lake.land(name)
    fresh = look(**arguments)
    assert fresh.outcome is LookOutcome.DONE
    assert fresh.value is not None
    assert HOUR / 2000 <= fresh.value["age"] < HOUR / 1000
    # What is dated beyond now says nothing about now.
    produce(name, 1, events(1, 1, 1), timestamps=[now + 1000 * HOUR])
    lake.land(name)
    assert HOUR / 2000 <= look(**arguments).value["age"] < HOUR / 1000  # type: ignore[index]  # it is fresh


def test_an_event_time_needs_a_column_of_times_with_bounds(
    lake: Lake, name: str, produce: Producing, look: Look
) -> None:
    produce(name, 0, events(0, 0, 3))
    lake.land(name, table_properties={"write.metadata.metrics.default": "none"})

    def refused(column: str) -> str:
        verdict = look(max_age="1h", event_time_column=column)
        assert (verdict.outcome, verdict.terminal) == (LookOutcome.FAILED, True)
        return verdict.text

    assert "'when' is not a column" in refused("when")
    assert "not a timestamp" in refused("name")
    assert "write.metadata.metrics.column._kafka_timestamp to full" in refused("_kafka_timestamp")


# Completeness


def minutes(*numbers: int) -> list[int]:
    return [DAY + number * 60_000 for number in numbers]


def complete(look: Look, hour: int = 1, **arguments: Any) -> Verdict:
    given = {"consumer_group": "g", "kafka_conn_id": "kafka_default", **arguments}
    return look(complete_through=f"2025-11-20T{hour:02}:00:00Z", **given)


def test_a_time_before_1970_is_complete_whatever_is_landed(
    lake: Lake, name: str, produce: Producing, look: Look, admin: AdminClient
) -> None:
    produce(name, 0, events(0, 0, 3), timestamps=minutes(10, 50, 70))
    lake.land(name, max_records=1)
    admin.delete_records([TopicPartition(name, 0, 2)])[TopicPartition(name, 0, 2)].result(30)
    for at in (-1, -2, -3, -5000, 0, "1969-12-31T23:59:59.999Z"):
        verdict = look(complete_through=at, consumer_group="g", kafka_conn_id="kafka_default")
        assert verdict.outcome is LookOutcome.DONE, verdict.text


def test_an_hour_is_complete_when_all_of_it_is_landed_and_each_partition_is_past_it(
    lake: Lake, name: str, produce: Producing, look: Look
) -> None:
    produce(name, 0, events(0, 0, 3), timestamps=minutes(10, 50, 70))
    produce(name, 1, events(1, 0, 2), timestamps=minutes(5, 15))
    lake.land(name)
    late = complete(look)
    assert (late.outcome, causes(late)) == (LookOutcome.WAITING, [StreamCause.LATE_PARTITION])
    assert f"{name}[1]" in late.text

    # A late record, and one that closes the hour.
    produce(name, 1, events(1, 2, 2), timestamps=minutes(59, 61))
    behind = complete(look)
    assert (behind.outcome, causes(behind)) == (LookOutcome.WAITING, [StreamCause.SLOW_CONSUMER])
    assert f"{name}[1] [2,3)" in behind.text
    lake.land(name)
    done = complete(look)
    assert (done.outcome, done.reasons) == (LookOutcome.DONE, ())
    assert done.value is not None
    assert done.value["through"] == "2025-11-20T01:00:00+00:00"
    assert causes(complete(look, 2)) == [StreamCause.OPEN_INTERVAL]


def test_a_time_that_nobody_writes_after_is_done_when_it_is_long_over(
    lake: Lake, name: str, produce: Producing, look: Look
) -> None:
    produce(name, 0, events(0, 0, 2), timestamps=minutes(10, 50))
    lake.land(name)
    assert causes(complete(look)) == [StreamCause.OPEN_INTERVAL]
    assert complete(look, idle_after="1h").outcome is LookOutcome.DONE
    produce(name, 0, events(0, 2, 1), timestamps=minutes(55))
    assert causes(complete(look, idle_after="1h"))[0] is StreamCause.SLOW_CONSUMER
    soon = look(
        complete_through=int(time.time() * 1000),
        consumer_group="g",
        kafka_conn_id="kafka_default",
        idle_after="1h",
    )
    assert soon.outcome is LookOutcome.WAITING


def test_a_group_of_intervals_is_complete_where_it_has_covered(
    lake: Lake, name: str, produce: Producing, look: Look
) -> None:
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 4), timestamps=minutes(10, 70, 130, 190))
    lake.land(name, mode="interval", interval_start=DAY + HOUR, interval_end=DAY + 2 * HOUR)
    assert complete(look, 2).outcome is LookOutcome.DONE
    assert causes(complete(look, 1)) == [StreamCause.NOT_COVERED]
    assert causes(complete(look, 3)) == [StreamCause.NOT_COVERED]


def test_a_group_that_began_later_does_not_hold_what_was_before(
    lake: Lake, name: str, produce: Producing, look: Look
) -> None:
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 2), timestamps=minutes(10, 70))
    lake.land(name, start_offset="latest", schema="id bigint, name string, score double")
    assert causes(complete(look)) == [StreamCause.NOT_COVERED]


def test_records_that_are_gone_fail_at_once_and_are_named(
    lake: Lake, name: str, produce: Producing, look: Look, admin: AdminClient
) -> None:
    produce(name, 0, events(0, 0, 1), timestamps=minutes(5))
    lake.land(name)
    produce(name, 0, events(0, 1, 3), timestamps=minutes(10, 50, 70))
    produce(name, 1, events(1, 0, 1), timestamps=minutes(70))
    admin.delete_records([TopicPartition(name, 0, 2)])[TopicPartition(name, 0, 2)].result(30)
    verdict = complete(look, missing="wait")
    assert (verdict.outcome, verdict.terminal) == (LookOutcome.FAILED, True)
    assert f"{name}[0] [1,2)" in verdict.text
    lake.land(name, on_data_loss=OnDataLoss.RECORD.value)
    assert complete(look).outcome is LookOutcome.DONE


def test_of_several_conditions_all_have_to_hold(lake: Lake, name: str, produce: Producing, look: Look) -> None:
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 2), timestamps=minutes(10, 70))
    lake.land(name)
    assert complete(look, max_age="10m").outcome is LookOutcome.DONE
    assert complete(look, max_age="10m", event_time_column="_kafka_timestamp", idle_is_fresh=False).outcome is (
        LookOutcome.WAITING
    )


# What is not there


def test_what_is_not_there_is_waited_for_or_an_error_as_asked(
    lake: Lake, connections: Connections, name: str, produce: Producing, look: Look
) -> None:
    for missing, outcome in (("wait", LookOutcome.WAITING), ("fail", LookOutcome.FAILED)):
        verdict = look(max_age="10m", missing=missing)
        assert (verdict.outcome, causes(verdict)) == (outcome, [StreamCause.UNUSABLE])
        assert TABLE in verdict.text
    produce(name, 0, events(0, 0, 1))
    lake.land(name)
    assert look(max_age="10m", missing="wait").outcome is LookOutcome.DONE
    for missing, outcome in (("wait", LookOutcome.WAITING), ("fail", LookOutcome.FAILED)):
        assert look(max_age="10m", missing=missing, iceberg_conn_id="nowhere").outcome is outcome
        assert look(max_age=AT_ONCE, missing=missing, kafka_conn_id="nowhere").outcome is outcome


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({}, "max_age"),
        ({"max_age": "soon"}, "max_age"),
        ({"max_age": "1h", "operations": ["merge"]}, "operations"),
        ({"event_time_column": "at", "complete_through": 5, "kafka_conn_id": "kafka_default"}, "event_time_column"),
        ({"max_age": "1h", "idle_after": "1h"}, "idle_after"),
        ({"complete_through": "2025-11-20T01:00:00Z"}, "kafka_conn_id"),
        ({"complete_through": "noon", "kafka_conn_id": "kafka_default"}, "complete_through"),
        ({"max_age": "1h", "missing": "perhaps"}, "missing"),
        ({"max_age": "1h", "idle_is_fresh": "perhaps"}, "idle_is_fresh"),
        ({"max_age": "1h", "table": "no_namespace"}, "table"),
    ],
)
def test_arguments_that_can_not_work_are_named(arguments: dict[str, Any], argument: str) -> None:
    given = {"table": TABLE, "iceberg_conn_id": "iceberg_default", **arguments}
    with pytest.raises(ValueError, match=f"^{argument}: "):
        make_check("freshness", given)
