"""The DAGs that watch and wait, run by `dag.test()` on a real broker and a real catalog."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pendulum
import pytest

from tests.support.airflow_home import DAGS, AirflowHome, Connections, Run
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake import Lake, events

DAY = 1_763_596_800_000
KEPT = {"retention_ms": -1}
CHECKS = ("is_fresh", "keeps_up", "loses_nothing", "looks_inside")


@pytest.fixture
def supervise(airflow: AirflowHome) -> Callable[..., Run]:
    """Give `supervise(conf)`: a run of the DAG, but for its deadline, which is the scheduler's to look after."""

    def go(conf: dict[str, Any] | None = None) -> Run:
        dag = airflow.dag(DAGS / "supervise_lakestream.py")
        # Airflow 3.3's `dag.test()` takes the deadlines of a DAG that is not from the database for their ids.
        dag.deadline = None
        return airflow.run(dag, conf)

    return go


def states(run: Run, task_id: str) -> list[str]:
    """Return the states of a mapped task's instances, in the order of the streams."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = select(TaskInstance).filter_by(dag_id=run.dag_id, run_id=run.run_id, task_id=task_id)
    with create_session() as session:
        return [str(ti.state) for ti in session.scalars(wanted.order_by(TaskInstance.map_index))]


@pytest.fixture
def streams(lake: Lake, topic_of: TopicOf, connections: Connections) -> list[dict[str, Any]]:
    """Give two streams: one idle, and one whose consumer has stopped long ago."""
    for group, landed in (("idle", 4), ("stopped", 2)):
        name = topic_of(events(0, 0, 4), timestamps=[DAY + n for n in range(4)], **KEPT)
        lake.land(name, table=f"lake.{group}", consumer_group=group, max_records=landed)
    return [{"table": f"lake.{group}", "consumer_group": group} for group in ("idle", "stopped")]


def test_each_stream_is_checked_and_what_is_wrong_is_named(
    supervise: Callable[..., Run], streams: list[dict[str, Any]]
) -> None:
    given = [streams[0], {**streams[1], "max_age": "1ms"}]
    run = supervise({"streams": given})
    assert run.state == "failed"
    assert states(run, "is_fresh") == ["success", "failed"]
    assert states(run, "keeps_up") == ["success", "failed"]
    assert states(run, "loses_nothing") == ["success", "success"]
    assert states(run, "looks_inside") == ["success", "success"]
    texts = sorted(map(str, run.errors))
    assert len(texts) == 2
    assert all("stopped consumer" in text or "slow consumer" in text for text in texts), texts


def test_a_stream_that_can_not_be_looked_at_fails_alone_and_says_why(
    supervise: Callable[..., Run], streams: list[dict[str, Any]], lake: Lake
) -> None:
    Path(lake.catalog().load_table("lake.stopped").metadata_location.removeprefix("file://")).unlink()
    run = supervise({"streams": streams})
    assert run.state == "failed"
    assert [states(run, check) for check in CHECKS[:3]] == [["success", "failed"]] * 3
    assert all("lake.stopped" in str(error) for error in run.errors), run.errors


def test_healthy_streams_of_the_variable_are_quiet(
    supervise: Callable[..., Run], streams: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_LAKESTREAM_STREAMS", json.dumps(streams[:1]))
    run = supervise()
    assert (run.state, run.errors) == ("success", [])
    assert [states(run, check) for check in CHECKS] == [["success"]] * len(CHECKS)


@pytest.mark.usefixtures("connections")
def test_no_streams_are_no_checks_and_a_warning_that_names_the_variable(
    supervise: Callable[..., Run], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = supervise()
    assert run.state == "success"
    assert states(run, "is_fresh") == ["skipped"]
    # The first run of a process gives tasks' logs to the output that Airflow began with, later ones to the root logger.
    written = caplog.messages or "".join(capfd.readouterr()).splitlines()
    [line] = [line for line in written if "no streams: " in line]
    form = line.partition("set the Airflow variable lakestream_streams to ")[2]
    [stream] = json.JSONDecoder().raw_decode(form)[0]
    assert set(stream) == {"table", "consumer_group"}


def test_a_run_that_misses_its_deadline_is_told_of_by_airflow(airflow: AirflowHome) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.models.deadline import Deadline
    from airflow.triggers.callback import CallbackTrigger
    from airflow.utils.session import create_session
    from sqlalchemy import select

    run = airflow.start(airflow.dag(DAGS / "supervise_lakestream.py"), state="queued")
    with create_session() as session:
        found = session.scalars(select(DagRun).filter_by(dag_id=run.dag_id, run_id=run.run_id)).one()
        deadlines = session.scalars(select(Deadline).filter_by(dagrun_id=found.id)).all()
        assert len(deadlines) == 1
        deadlines[0].handle_miss(session)
        callback = dict(deadlines[0].callback.data)

    async def told() -> list[dict[str, Any]]:
        trigger = CallbackTrigger(callback["path"], callback["kwargs"])
        return [event.payload async for event in trigger.run()]

    [_, last] = asyncio.run(told())
    assert last["state"] == "success"
    assert f"ALERT run {run.run_id} of supervise_lakestream was not done at" in last["body"]


def test_an_hour_is_counted_once_it_is_complete(
    airflow: AirflowHome, lake: Lake, topic: Topics, produce: Producing, connections: Connections
) -> None:
    name, dag = topic(2, **KEPT), airflow.dag(DAGS / "clickstream_hourly.py")
    hour = pendulum.now("UTC").start_of("hour").subtract(hours=3)
    conf = {"table": "lake.hourly", "consumer_group": "g"}

    def click(partition: int, *minutes: int) -> None:
        stamps = [int(hour.add(minutes=minute).timestamp() * 1000) for minute in minutes]
        produce(name, partition, ['{"id": 1}'] * len(minutes), timestamps=stamps)

    click(0, -5, 0, 30, 70)
    click(1, 10, 59, 61)
    lake.land(name, table="lake.hourly")
    run = airflow.run(dag, conf, logical_date=hour.add(hours=1))
    assert (run.state, run.errors) == ("success", [])
    assert run.task("count").xcom == 4
    told = run.task("is_complete").xcom
    assert (told["fresh"], told["through"]) == (True, hour.add(hours=1).isoformat())
