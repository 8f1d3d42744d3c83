"""IcebergSnapshotFreshnessSensor in each way of waiting: in a worker, rescheduled, deferred, begun in the triggerer."""

from __future__ import annotations

import asyncio
import threading
import uuid
from typing import Any

import pytest

from tests.sensors.test_sensor_loop import event_of, in_loop
from tests.support.airflow_home import Connections
from tests.support.broker import TopicOf, poll_until
from tests.support.lake import TABLE, Lake, events
from tests.support.sensing import TASK, Sensing

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

SENSOR = ("iceberg_snapshot_freshness", "IcebergSnapshotFreshnessSensor")
DAY = 1_763_596_800_000
IN_LINE = {"poke": {}, "reschedule": {"mode": "reschedule"}, "deferred": {"deferrable": True}}
HOUR = {"consumer_group": "g", "kafka_conn_id": "kafka_default", "complete_through": "2025-11-20T01:00:00Z"}


@pytest.fixture
def name(lake: Lake, topic_of: TopicOf, connections: Connections) -> str:
    """Give a topic with two records of an hour and one behind it; the table has the first."""
    given = topic_of(events(0, 0, 3), timestamps=[DAY + minute * 60_000 for minute in (10, 50, 70)], retention_ms=-1)
    lake.land(given, max_records=1)
    return given


@pytest.fixture
def dag_id() -> str:
    return f"fresh_{uuid.uuid4().hex[:8]}"


def began(dag_id: str) -> bool:
    """Tell whether the DAG's task has begun to wait."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(TaskInstance).filter_by(dag_id=dag_id, task_id=TASK)).all()
        return any(ti.start_date is not None for ti in found)


@pytest.mark.parametrize("mode", IN_LINE)
def test_it_waits_until_the_hour_is_complete(sensing: Sensing, lake: Lake, name: str, dag_id: str, mode: str) -> None:
    def land_later() -> None:
        poll_until(lambda: began(dag_id), "the sensor to begin", 120, every=0.3)
        lake.land(name)

    lander = threading.Thread(target=land_later)
    lander.start()
    run = sensing.run(dag_id, SENSOR, table=TABLE, **HOUR, **IN_LINE[mode])
    lander.join()
    task = run.task(TASK)
    assert (task.state, run.errors) == ("success", [])
    newest = lake.table().current_snapshot()
    assert (task.xcom["snapshot_id"], task.xcom["rows"]) == (str(newest.snapshot_id), 2)
    assert (task.xcom["fresh"], task.xcom["through"]) == (True, "2025-11-20T01:00:00+00:00")


@pytest.mark.usefixtures("name")
@pytest.mark.parametrize("mode", IN_LINE)
def test_a_time_out_names_what_it_waited_for(sensing: Sensing, dag_id: str, mode: str) -> None:
    run = sensing.run(dag_id, SENSOR, table=TABLE, **HOUR, **IN_LINE[mode], timeout=1, retries=2)
    task = run.task(TASK)
    assert (task.state, task.tries, task.xcom["fresh"]) == ("failed", 1, False)
    assert "slow consumer: group g lacks 1 offsets" in str(run.errors[0])


@pytest.mark.usefixtures("name")
def test_a_check_fails_at_once(sensing: Sensing, dag_id: str) -> None:
    given = {"max_age": "1ms", "kafka_conn_id": "kafka_default", "fail_when_stale": True}
    run = sensing.run(dag_id, SENSOR, table=TABLE, **given)
    assert run.task(TASK).state == "failed"
    assert "stopped consumer" in str(run.errors[0])


def test_it_waits_in_a_real_triggerer(sensing: Sensing, lake: Lake, name: str, dag_id: str) -> None:
    given = {**HOUR, "table": "{{ params.table }}", "params": {"table": TABLE}}
    run, file = sensing.write(dag_id, SENSOR, start_from_trigger=True, **given)
    sensing.triggerer.start()
    sensing.through_triggerer(run, file, lambda: lake.land(name))
    task = run.task(TASK)
    assert task.state == "success", sensing.triggerer.log.read_text()
    assert task.xcom["through"] == "2025-11-20T01:00:00+00:00"


@pytest.mark.usefixtures("name")
def test_nothing_blocks_the_triggerers_loop() -> None:
    from airflow_lakestream.triggers.look import LookTrigger

    old = {"max_age": "1h", "event_time_column": "_kafka_timestamp", "kafka_conn_id": "kafka_default"}
    every = [HOUR, {"max_age": "1ms"}, old]

    async def all_of_them() -> list[dict[str, Any]]:
        kinds = (
            LookTrigger("freshness", 0.3, 2, table=TABLE, iceberg_conn_id="iceberg_default", **one) for one in every
        )
        return await asyncio.gather(*map(event_of, kinds))

    told, seen = in_loop(all_of_them)
    assert [one["outcome"] for one in told] == ["timed out"] * 3
    assert [one["reasons"][0]["cause"] for one in told] == ["slow consumer", "stopped consumer", "late events"]
    assert seen == []
