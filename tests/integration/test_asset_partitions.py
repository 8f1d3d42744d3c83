"""Hours and days of a real table on a real Airflow: each starts the documented DAGs once, again for late records."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pendulum
import pytest

from tests.support.airflow_home import CHECKOUT, AirflowHome, Connections, Run
from tests.support.broker import Producing, Topics
from tests.support.lake import Lake, events

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

SNIPPETS = re.findall(
    r"^```python\n(.*?)^```$", (CHECKOUT / "docs/partitions.md").read_text(), re.MULTILINE | re.DOTALL
)
# Airflow would stand between an operator's work and the end of its task: there the worker is lost.
KILLED = """
import os
import signal
from pathlib import Path

def killed_once(context, result=None):
    flag = Path({flag!r})
    if flag.exists():
        flag.unlink()
        os.kill(os.getpid(), signal.SIGKILL)

"""
TABLE, GROUP = "lake.clicks", "clicks_to_lake"
DOWNSTREAM = ("clicks_hourly", "clicks_daily", "clicks_rolled_up")


def told(asset: str) -> list[tuple[str, dict[str, int]]]:
    """Return (partition, marks) of an asset's events, in the order of their keys."""
    from airflow.models.asset import AssetEvent, AssetModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = select(AssetEvent).join(AssetModel, AssetModel.id == AssetEvent.asset_id).where(AssetModel.name == asset)
    with create_session() as session:
        found = session.scalars(wanted.order_by(AssetEvent.id))
        return sorted(((str(one.partition_key), dict(one.extra["reopened"])) for one in found), key=str)


def started() -> dict[str, Counter[str]]:
    """Let the scheduler start what is to be started; return how many runs each DAG has had, by partition."""
    from airflow.jobs.job import Job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    scheduler = SchedulerJobRunner(Job())
    with create_session() as session:
        # The step of its loop that is about partitions.
        scheduler._create_dagruns_for_partitioned_asset_dags(session)
    with create_session() as session:
        runs = session.execute(select(DagRun.dag_id, DagRun.partition_key).where(DagRun.dag_id.in_(DOWNSTREAM))).all()
    return {dag_id: Counter(key for of, key in runs if of == dag_id) for dag_id in DOWNSTREAM}


def unpause() -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).where(DagModel.dag_id.in_(DOWNSTREAM)).values(is_paused=False))


def newest(dag_id: str) -> Run:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        found = session.scalars(select(DagRun).filter_by(dag_id=dag_id).order_by(DagRun.id.desc())).first()
        assert found is not None
        return Run(dag_id, found.run_id, str(found.state))


def states(run: Run) -> list[str]:
    return [run.task(name).state for name in ("tell_hours", "tell_days")]


@pytest.fixture
def file(airflow: AirflowHome, tmp_path: Path) -> Path:
    """Give the documented DAGs, in one file; its first task is killed once if the file `flag` is there."""
    text = KILLED.format(flag=str(tmp_path / "flag")) + "\n".join(SNIPPETS)
    since = pendulum.now("UTC").start_of("day").subtract(days=2)
    for before, after in {
        "2026-11-24T00:00:00Z": since.isoformat(),
        "outlets=[asset],": "outlets=[asset], post_execute=killed_once,",
    }.items():
        assert before in text
        text = text.replace(before, after)
    return airflow.write("documented_partitions", text)


def test_each_hour_and_day_starts_its_dag_once_and_again_when_a_record_is_late(
    airflow: AirflowHome,
    connections: Connections,
    lake: Lake,
    topic: Topics,
    produce: Producing,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, day = topic(2, retention_ms=-1), pendulum.now("UTC").start_of("day").subtract(days=2)
    counts = [0, 0]

    def click(partition: int, *minutes: int) -> None:
        stamps = [int(day.add(minutes=minute).timestamp() * 1000) for minute in minutes]
        produce(name, partition, events(partition, counts[partition], len(minutes)), timestamps=stamps)
        counts[partition] += len(minutes)

    def land() -> None:
        lake.land(name, table=TABLE, consumer_group=GROUP)

    hours, today = [day.add(hours=n).strftime("%Y-%m-%dT%H:%M:%S") for n in range(24)], day.strftime("%Y-%m-%d")
    dags = airflow.bag(file).dags
    for dag in dags.values():
        airflow._make_known(dag)
    unpause()
    tells = dags["clicks_partitions"]

    click(0, *(60 * n + 30 for n in range(24)), 24 * 60 + 5)
    click(1, *(60 * n + 10 for n in range(23)))
    land()
    (tmp_path / "flag").touch()
    first = airflow.start(tells)
    with airflow.process(first, file, "tell_hours") as process:
        process.wait(200)
    assert not (tmp_path / "flag").exists(), process.log
    assert told("clicks_by_hour") == []
    airflow.run_task(tells, first, "tell_hours")
    assert first.task("tell_hours").state == "success"
    # The second partition's last record is of 22:10: it may still get one of 22:00.
    assert told("clicks_by_hour") == [(hour, {}) for hour in hours[:22]]
    assert started() == {"clicks_hourly": Counter(hours[:22]), "clicks_daily": Counter(), "clicks_rolled_up": Counter()}

    run = airflow.run(tells)
    assert states(run) == ["skipped", "skipped"]
    click(1, 23 * 60 + 10, 24 * 60 + 1)
    land()
    run = airflow.run(tells)
    assert (states(run), run.errors) == (["success", "success"], [])
    assert run.task("tell_days").xcom == {"partitions": [today], "reopened": {}}
    airflow.clear_and_run(tells, run, "tell_days")
    assert states(run) == ["success", "skipped"]
    once = {"clicks_hourly": Counter(hours), "clicks_daily": Counter([today]), "clicks_rolled_up": Counter([today])}
    assert [started(), started()] == [once, once]

    # One record of 03:59, behind those of the next day.
    click(0, 3 * 60 + 59)
    assert states(airflow.run(tells)) == ["skipped", "skipped"]
    land()
    run = airflow.run(tells)
    assert run.task("tell_hours").xcom == {"partitions": [hours[3]], "reopened": {hours[3]: 1}}
    assert run.task("tell_days").xcom == {"partitions": [today], "reopened": {today: 1}}
    again = {**once, "clicks_hourly": Counter([*hours, hours[3]]), "clicks_daily": Counter([today, today])}
    assert [started(), started()] == [again, again]
    assert told("clicks_by_hour") == sorted([*((hour, {}) for hour in hours), (hours[3], {hours[3]: 1})], key=str)
    airflow.run_task(dags["clicks_hourly"], newest("clicks_hourly"), "count_hour")
    assert f"count from {hours[3]} UTC, 1 rows came late" in capsys.readouterr().out
