"""kafka_to_iceberg by the operator on a real Spark: a data interval, ranges; and a driver that hangs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pendulum
import psutil
import pytest

from airflow_lakestream.driver.lease import read_lease, request_stop
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseState
from tests.support.airflow_home import CHECKOUT, AirflowHome, Connections
from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.lake import events
from tests.support.spark import SETTINGS

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

HOUR = 3600
_DAG = """
import pendulum
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

with DAG(
    {dag_id!r}, schedule={schedule}, start_date=pendulum.datetime(2026, 1, 1, tz="UTC"), catchup=False,
    params={{"ranges": None}}, render_template_as_native_obj=True,
) as dag:
    SparkStreamingSubmitOperator(
        task_id="land", app="kafka_to_iceberg", app_config={landing!r}, poll_interval=0.5, **{stream!r}
    )
"""
# Its one task never ends; it beats often, so that the test need not wait.
_HANGS = """
import sys, time
from pyspark.sql import SparkSession
from airflow_lakestream.spark.lease import Lease

spark = SparkSession.builder.getOrCreate()
with Lease.take(sys.argv[1], "same", "a batch that hangs", ttl=1.5):
    spark.sparkContext.parallelize([0], 1).foreach(lambda _: time.sleep(3600))  # it hangs: that is what is tested
"""


@pytest.fixture
def local_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the connection lead to a Spark on this machine, which listens on the loopback only."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def written(
    airflow: AirflowHome,
    tmp_path: Path,
    dag_id: str,
    schedule: str,
    stream: Mapping[str, Any] | None = None,
    **landing: Any,
) -> Any:
    given = {"table": "lake.t", "schema": "id bigint not null, name string, score double", **landing}
    operator = {"driver_folder": str(tmp_path / "drivers"), **(stream or {})}
    text = _DAG.format(dag_id=dag_id, schedule=schedule, landing=given, stream=operator)
    return airflow.dag(airflow.write(dag_id, text))


def landed(connections: Connections) -> list[tuple[int, int]]:
    rows = connections.catalog.load_table("lake.t").scan().to_arrow().to_pylist()
    return sorted((row["_kafka_partition"], row["_kafka_offset"]) for row in rows)


@pytest.mark.usefixtures("local_spark")
def test_a_run_lands_its_data_interval(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing, tmp_path: Path
) -> None:
    name = topic(partitions=1, retention_ms=-1)
    hour = pendulum.now("UTC").start_of("hour").subtract(hours=3)
    stamps = [int((hour.timestamp() + HOUR * n / 10) * 1000) for n in range(-10, 20)]
    produce(name, 0, events(0, 0, 30), timestamps=stamps)
    schedule = "CronDataIntervalTimetable('0 * * * *', timezone='UTC')"
    dag = written(airflow, tmp_path, "interval_on_spark", schedule, topic=name, mode="interval")
    run = airflow.run(dag, logical_date=hour.add(hours=1))
    assert (run.state, run.errors) == ("success", [])
    assert run.task().xcom["ranges"] == [[0, 10, 20]]
    assert landed(connections) == [(0, n) for n in range(10, 20)]


@pytest.mark.usefixtures("local_spark")
def test_ranges_of_the_trigger_form_are_landed(
    airflow: AirflowHome, connections: Connections, topic_of: TopicOf, tmp_path: Path
) -> None:
    name = topic_of(events(0, 0, 20), events(1, 0, 20))
    form = {"mode": "ranges", "ranges": "{{ params.ranges }}"}
    dag = written(airflow, tmp_path, "ranges_on_spark", "None", topic=name, **form)
    ranges = [[0, 5, 15], [1, 0, 3]]
    wanted = sorted((p, n) for p, start, end in ranges for n in range(start, end))
    run = airflow.run(dag, {"ranges": ranges})
    assert (run.state, run.errors) == ("success", [])
    assert (run.task().xcom["rows"], landed(connections)) == (13, wanted)


@pytest.mark.usefixtures("local_spark")
def test_a_gap_in_the_checkpoint_fails_the_first_try_and_without_the_checkpoint_each_record_lands_once(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing, tmp_path: Path
) -> None:
    name, checkpoint = topic(partitions=1), tmp_path / "checkpoint"
    produce(name, 0, events(0, 0, 30))
    stream = {"checkpoint_location": str(checkpoint), "max_offsets_per_trigger": 5, "retries": 3}
    dag = written(airflow, tmp_path, "gap_on_spark", "None", stream, topic=name)
    assert airflow.run(dag).state == "success"
    assert {path.name for path in (checkpoint / "offsets").glob("[0-9]*")} == {str(batch) for batch in range(6)}
    (checkpoint / "offsets" / "4").unlink()
    produce(name, 0, events(0, 30, 5))
    run = airflow.run(dag)
    assert (run.state, run.task().tries, len(run.errors)) == ("failed", 1, 1)
    assert "offsets/4 is missing. Delete the checkpoint. Nothing is lost or landed twice: " in str(run.errors[0])
    # One driver of each run: the second one was not restarted.
    assert len({*tmp_path.glob("drivers/*/*/driver.log")}) == 2
    assert landed(connections) == [(0, n) for n in range(30)]
    shutil.rmtree(checkpoint)
    assert airflow.run(dag).state == "success"
    assert landed(connections) == [(0, n) for n in range(35)]


def command(process: psutil.Process) -> str:
    """Return a process's command; nothing of one that has ended by now, as those of the shell script do."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_a_driver_that_hangs_is_gone_with_its_jvm_and_its_workers_when_patience_ends(tmp_path: Path) -> None:
    program, location = tmp_path / "hangs.py", str(tmp_path / "checkpoint")
    program.write_text(_HANGS)
    settings = [part for key, value in SETTINGS.items() for part in ("--conf", f"{key}={value}")]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYSPARK_PYTHON": sys.executable}
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [str(Path(sys.executable).with_name("spark-submit")), *settings, str(program), location],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=env,
        )
    tree: list[psutil.Process] = []

    def works() -> bool:
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        root = psutil.Process(driver.pid)
        tree[:] = [root, *root.children(recursive=True)]
        # The JVM, the program, and the daemon of Python workers with the one that hangs.
        return sum("pyspark.daemon" in command(one) for one in tree) >= 2

    try:
        poll_until(works, "the task that hangs", 400)
        assert any("SparkSubmit" in command(one) for one in tree)
        assert request_stop(location, "the test", within=0.5)
        driver.wait(60)
        assert psutil.wait_procs(tree[1:], timeout=60)[1] == []
    finally:
        for one in tree:
            if one.is_running():
                one.kill()
        driver.wait()
    lease = read_lease(location)
    assert lease is not None
    assert (lease.state(), lease.outcome) == (LeaseState.RELEASED, DriverOutcome.STOPPED)
    assert "killed: its batch did not end within 0.5 s" in lease.error
