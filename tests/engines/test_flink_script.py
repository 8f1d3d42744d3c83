"""A script of Flink SQL as a supervised job: the next job begins with the state of the one before, however it ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.driver.lease_record import DriverOutcome
from airflow_lakestream.flink.rest import FlinkJobState
from airflow_lakestream.flink.script.bundled import flink_script
from dev.services.flink import Flink
from dev.services.kafka import Kafka
from tests.support.airflow_home import AirflowHome
from tests.support.broker import Producing
from tests.support.flink import FlinkScriptRun
from tests.support.lake import GROUP, TABLE, Lake

pytestmark = pytest.mark.integration

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BOUNDED = f"""
CREATE TEMPORARY TABLE records (id BIGINT) WITH (
  'connector' = 'kafka', ${{kafka}}, 'topic' = '%s', 'properties.group.id' = 'g', 'format' = 'json',
  'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset'
);
CREATE DATABASE IF NOT EXISTS iceberg_default.{TABLE.split(".", maxsplit=1)[0]};
CREATE TABLE IF NOT EXISTS iceberg_default.{TABLE} (id BIGINT);
CREATE TABLE IF NOT EXISTS iceberg_default.{TABLE}_odd (id BIGINT);
INSERT INTO iceberg_default.{TABLE} SELECT id FROM records WHERE MOD(id, 2) = 0;
INSERT INTO iceberg_default.{TABLE}_odd SELECT id FROM records WHERE MOD(id, 2) = 1
"""


@pytest.fixture
def run(tmp_path: Path, kafka: Kafka, topic: Any, flink: Flink) -> Iterator[FlinkScriptRun]:
    made = FlinkScriptRun(Lake(tmp_path, kafka.client_config()), topic(2), flink)
    try:
        yield made
    finally:
        made.end()


def clicks(partition: int, minutes: range) -> list[bytes]:
    """Three clicks in each minute, of two users, and one half a minute after the last of them."""
    found = [
        {"timestamp": BEGIN + timedelta(minutes=minute, seconds=second), "event": event, "user_id": user}
        for minute in minutes
        for second, event, user in ((1, "click", "u1"), (20, "click", "u2"), (50, "scroll", f"u{partition}"))
    ]
    found.append({"timestamp": BEGIN + timedelta(minutes=minutes.stop, seconds=30), "event": "end", "user_id": "u"})
    return [
        json.dumps({**one, "timestamp": f"{one['timestamp']:%Y-%m-%dT%H:%M:%S}.000Z", "on_site_seconds": 2}).encode()
        for one in found
    ]


def of_window(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["minute"], row["event"], row["clicks"], row["users"], row["on_site_seconds"]


def windows(minutes: range, ends: range) -> Counter[Any]:
    """What has to be in the table once these minutes are over; `ends` are those of the events at half a minute."""
    rows: Counter[Any] = Counter()
    for minute in minutes:
        at = BEGIN + timedelta(minutes=minute)
        rows[(at, "click", 4, 2, 8)] += 1
        rows[(at, "scroll", 2, 2, 4)] += 1
        if minute in ends:
            rows[(at, "end", 2, 1, 4)] += 1
    return rows


def await_windows(run: FlinkScriptRun, wanted: Counter[Any], what: str) -> None:
    run.until(lambda: Counter(map(of_window, run.rows())) == wanted, what)


def test_each_window_is_there_once_over_a_kill_and_a_stop(run: FlinkScriptRun, produce: Producing) -> None:
    run.script = flink_script("clicks_by_minute", topic=run.topic, table=TABLE, group=GROUP)
    for partition in (0, 1):
        produce(run.topic, partition, clicks(partition, range(3)))
    run.start()
    await_windows(run, windows(range(3), range(0)), "the first windows")
    job = run.await_running()
    run.kill_driver()
    for partition in (0, 1):
        produce(run.topic, partition, clicks(partition, range(3, 5)))
    run.start()
    await_windows(run, windows(range(5), range(3, 4)), "windows after a kill")
    assert run.await_running() == job

    run.stop()
    assert run.lease is not None
    assert run.lease.outcome is DriverOutcome.STOPPED
    assert run.note is not None
    savepoint = run.note.savepoint
    # The minute that was open when the job was stopped gets clicks from before and after it.
    for partition in (0, 1):
        produce(run.topic, partition, clicks(partition, range(5, 7)))
    run.start()
    await_windows(run, windows(range(7), range(3, 6, 2)), "windows after a stop")
    assert run.note.restored == savepoint
    assert run.await_running() != job

    # Another script is refused, and the job of the old one is left alone.
    kept = run.await_running()
    run.stop()
    other = run.start(script=run.script.replace("'1' MINUTE", "'2' MINUTE"))
    assert other.wait(60) != 0
    assert "script: was changed, or its Kafka, database or catalog was, and the checkpoint has the state of" in run.log
    assert run.note.job == kept


def test_a_job_of_bounded_sources_is_done_at_their_end(run: FlinkScriptRun, produce: Producing) -> None:
    run.script = BOUNDED % run.topic
    produce(run.topic, 0, [json.dumps({"id": number}).encode() for number in range(101)])
    assert run.start().wait(120) == 0, run.log
    assert sorted(row["id"] for row in run.rows()) == [*range(0, 101, 2)]
    assert sorted(row["id"] for row in run.rows(f"{TABLE}_odd")) == [*range(1, 101, 2)]
    assert run.note is not None
    assert run.jobs.manager.state(run.note.job) is FlinkJobState.FINISHED
    assert run.start().wait(60) != 0
    assert "has finished in an earlier run" in run.log


def test_what_flink_refuses_is_told_without_the_connection(run: FlinkScriptRun, produce: Producing) -> None:
    run.script = (
        BOUNDED.replace("SELECT id FROM records WHERE MOD(id, 2) = 1", "SELECT nothing FROM records") % run.topic
    )
    assert run.start().wait(60) != 0
    assert "Column 'nothing' not found" in run.log
    assert run.lake.kafka["bootstrap.servers"] not in run.log


_DAG = """
from airflow.sdk import DAG
from airflow_lakestream.operators.flink_script import FlinkScriptOperator

with DAG("flink_script", schedule=None, params={{"least": 1}}) as dag:
    FlinkScriptOperator(task_id="split", script="split.sql", **{arguments!r})
"""


@pytest.mark.airflow
def test_a_file_beside_the_dag_is_a_task_that_ends_with_its_sources(
    run: FlinkScriptRun,
    produce: Producing,
    airflow: AirflowHome,
    flink_connected: None,
) -> None:
    produce(run.topic, 0, [json.dumps({"id": number}).encode() for number in range(21)])
    arguments = {
        "checkpoint_location": run.location,
        "checkpoint_interval": "1s",
        "driver_folder": str(run.lake.folder / "drivers"),
        "poll_interval": "0.5s",
        "deferrable": True,
    }
    file = airflow.write("flink_script", _DAG.format(arguments=arguments))
    run.script = (BOUNDED % run.topic).replace("MOD(id, 2) = 1", "MOD(id, 2) = 1 AND id > {{ params.least }}")
    (file.parent / "split.sql").write_text(run.script)
    done = airflow.run(airflow.dag(file), {"least": 9})
    assert (done.state, done.errors) == ("success", [])
    assert sorted(row["id"] for row in run.rows(f"{TABLE}_odd")) == [*range(11, 21, 2)]
    assert (done.task("split").xcom["batches"], done.task("split").xcom["rows"]) == (0, 0)
