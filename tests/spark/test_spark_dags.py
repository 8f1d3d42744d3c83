"""The DAGs of clickstream on Spark, and Spark's batches without a query, run by `dag.test()` on real parts.

One DAG runs on a standalone cluster, whose executors lack the package; all else on a local Spark.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.lease_record import DriverOutcome, LeaseRecord
from dev.services.kafka import Kafka
from dev.sources.clickstream import make_event, produce_clickstream
from dev.stack import Stack
from tests.dags.test_dags import landed
from tests.support.airflow_home import CHECKOUT, DAGS, AirflowHome, Connections
from tests.support.broker import Producing
from tests.support.spark_stream import xcom

# Whole hours of a day that lies behind.
DAY = 1_763_596_800_000
HOUR = 3_600_000
# What each is told besides topic and checkpoint, and its task.
CONF: dict[str, tuple[dict[str, Any], str]] = {
    "clickstream_spark_micro_batch": ({"max_offsets_per_trigger": 2000}, "land"),
    "clickstream_streaming": ({"max_batches": 1}, "stream"),
    "clickstream_enriched": ({"max_offsets_per_trigger": 2000}, "land"),
}
# A Python for executors that has all packages but this one.
_WITHOUT_PACKAGE = f"""#!/bin/sh
PYTHONPATH="$(dirname "$0"):$PYTHONPATH" exec "{sys.executable}" "$@"
"""
_HIDE = f"""
import sys
sys.path[:] = [path for path in sys.path if path != {str(CHECKOUT)!r}]
"""


@pytest.fixture
def local_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the connection lead to a Spark on this machine, which listens on the loopback only."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


@pytest.fixture
def standalone_spark(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let it lead to a real master with a real worker, whose Python lacks the package; give the worker's folder."""
    master = stack.up_spark()
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": master.master}))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    python = tmp_path / "executors" / "python"
    python.parent.mkdir()
    python.write_text(_WITHOUT_PACKAGE)
    python.chmod(0o755)
    (python.parent / "sitecustomize.py").write_text(_HIDE)
    lacks = subprocess.run(
        [python, "-c", "import airflow_lakestream.core"], cwd=tmp_path, capture_output=True, check=False
    )
    assert b"No module named 'airflow_lakestream" in lacks.stderr
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    return stack.folder / "spark-worker" / "work"


@dataclass
class SparkDags:
    """Runs the two DAGs."""

    airflow: AirflowHome
    connections: Connections
    kafka: Kafka
    topic: Any
    folder: Path

    def lands_its_topic_once(self, name: str) -> LeaseRecord:
        """Run a DAG on a topic of 3000 events, and look at all that comes of it; return the driver's lease."""
        read, checkpoint = self.topic(2), self.folder / "checkpoint"
        count = produce_clickstream(self.kafka.client_config(), read, rate=0, count=3000)
        given, task_id = CONF[name]
        dag = self.airflow.dag(DAGS / f"{name}.py")
        run = self.airflow.run(dag, {"topic": read, "checkpoint": str(checkpoint), **given})
        assert (run.state, run.errors) == ("success", [])
        report = run.task(task_id).xcom
        assert (report["rows_in"], report["rows_out"], report["lag"], report["restarts"]) == (count, count, 0, 0)
        assert sum(end - start for _, start, end in report["ranges"]) == count
        rows = landed(self.connections.catalog.load_table(dag.params["table"]))
        assert (len(rows), sum(rows.values())) == (count, count)
        lease = read_lease(str(checkpoint))
        assert lease is not None
        assert lease.outcome is DriverOutcome.DONE
        # The driver's port is gone; the task's page has its log.
        for link in ("_link_SparkUILink", "_link_DriverLogLink"):
            assert f"/dags/{dag.dag_id}/runs/" in xcom(run, link, task_id)
        return lease


@pytest.fixture
def dags(airflow: AirflowHome, connections: Connections, kafka: Kafka, topic: Any, tmp_path: Path) -> SparkDags:
    return SparkDags(airflow, connections, kafka, topic, tmp_path)


@pytest.mark.usefixtures("local_spark")
def test_the_stream_lands_its_topic_once(dags: SparkDags) -> None:
    assert dags.lands_its_topic_once("clickstream_streaming").application_id.startswith("local-")


def test_micro_batches_land_their_topic_once_by_executors_that_lack_the_package(
    dags: SparkDags, standalone_spark: Path
) -> None:
    application = dags.lands_its_topic_once("clickstream_spark_micro_batch").application_id
    assert application.startswith("app-")
    # It was brought to each executor.
    [folder] = standalone_spark.glob(application)
    assert [path.name for path in folder.glob("*/airflow_lakestream-*.zip")]


def test_a_function_beside_the_dag_goes_along_to_the_driver_and_the_executors(
    dags: SparkDags, standalone_spark: Path
) -> None:
    application = dags.lands_its_topic_once("clickstream_enriched").application_id
    [folder] = standalone_spark.glob(application)
    assert [path.name for path in folder.glob("*/transform.zip")]
    rows = dags.connections.catalog.load_table("lake.clickstream_enriched").scan().to_arrow().to_pylist()
    assert {row["language"] for row in rows} == {"de", "en", "fr"}
    assert all(row["site_name"] == f"Site {int(row['site_id'][1:])}" for row in rows)
    assert all(f"/{row['section']}/" in row["url"] for row in rows)


def events_of_two_hours(rng: random.Random) -> list[dict[str, Any]]:
    """Return events of forty users, in the order of their times, and one that comes much later: it ends all windows."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    times = [begin + timedelta(seconds=5 * n + rng.random()) for n in range(1440)]
    return [
        {**make_event(rng, at), "user_id": f"u{rng.randrange(40)}"} for at in (*times, times[-1] + timedelta(hours=3))
    ]


def windows_of(events: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Count the events by five minutes and site."""
    found = Counter[tuple[Any, ...]]()
    for event in events:
        at = datetime.fromisoformat(event["timestamp"])
        found[at.replace(minute=at.minute // 5 * 5, second=0, microsecond=0), event["site_id"]] += 1
    return found


def sessions_of(events: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Return user, begin, end, number of events and whether one was a purchase, of each session."""
    by_user: dict[str, list[list[dict[str, Any]]]] = {}
    for event in events:
        at, sessions = datetime.fromisoformat(event["timestamp"]), by_user.setdefault(event["user_id"], [])
        if sessions and at - datetime.fromisoformat(sessions[-1][-1]["timestamp"]) < timedelta(minutes=30):
            sessions[-1].append(event)
        else:
            sessions.append([event])
    return Counter(
        (
            user,
            *(datetime.fromisoformat(one["timestamp"]) for one in (session[0], session[-1])),
            len(session),
            any(one["event"] == "purchase" for one in session),
        )
        for user, sessions in by_user.items()
        for session in sessions
    )


@pytest.mark.usefixtures("local_spark")
def test_windows_and_sessions_of_a_stream_are_those_of_all_its_events(dags: SparkDags, produce: Producing) -> None:
    read, given = dags.topic(2), events_of_two_hours(random.Random(5))
    for partition in (0, 1):
        produce(read, partition, [json.dumps(event) for event in given[partition::2]])
    dag = dags.airflow.dag(DAGS / "clickstream_windows.py")
    conf = {"topic": read, "checkpoint": str(dags.folder / "checkpoints"), "max_offsets_per_trigger": 600}
    run = dags.airflow.run(dag, conf)
    assert (run.state, run.errors) == ("success", [])
    assert [run.task(name).xcom["rows_in"] for name in ("windows", "sessions")] == [len(given)] * 2
    windows, sessions = (
        dags.connections.catalog.load_table(dag.params[name]).scan().to_arrow().to_pylist()
        for name in ("table", "sessions")
    )
    wanted = windows_of(given[:-1])
    assert Counter({(row["start"], row["site_id"]): row["events"] for row in windows}) == wanted
    assert len(windows) == len(wanted)
    names = ("user_id", "began", "ended", "events", "purchased")
    assert Counter(tuple(row[name] for name in names) for row in sessions) == sessions_of(given[:-1])


_AT_ONCE = """
import pendulum
from airflow.sdk import DAG, AssetAlias
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

with DAG("at_once_on_spark", schedule=None, params={{"replace": False}}, render_template_as_native_obj=True) as dag:
    SparkStreamingSubmitOperator(
        task_id="land",
        app="kafka_to_delta",
        app_config={{
            "topic": {topic!r},
            "table": {table!r},
            "mode": "interval",
            "interval_start": "{{{{ dag_run.conf['interval_start'] }}}}",
            "interval_end": "{{{{ dag_run.conf['interval_end'] }}}}",
            "replace": "{{{{ params.replace }}}}",
            "schema": "id bigint",
            "metadata_columns": ["topic", "partition", "offset", "timestamp"],
        }},
        iceberg_conn_id=None,
        storage_conn_id="lake_store",
        driver_folder={drivers!r},
        poll_interval=0.5,
        outlets=[AssetAlias("written")],
    )
"""


@pytest.mark.usefixtures("local_spark", "connections")
def test_an_interval_lands_at_once_in_a_delta_table_and_is_replaced(
    airflow: AirflowHome, topic: Any, produce: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE_STORE", json.dumps({"conn_type": "generic", "extra": {"timeout": "60s"}}))
    name, table = topic(1, **{"retention.ms": "-1"}), str(tmp_path / "delta" / "clicks")
    hours = [HOUR * (n // 10) for n in range(30)]
    produce(name, 0, [json.dumps({"id": n}) for n in range(30)], timestamps=[DAY + hour for hour in hours])
    file = airflow.write("at_once_on_spark", _AT_ONCE.format(topic=name, table=table, drivers=str(tmp_path / "d")))
    second_hour = {"interval_start": str(DAY + HOUR), "interval_end": str(DAY + 2 * HOUR)}
    run = airflow.run(airflow.dag(file), second_hour)
    assert (run.state, run.errors) == ("success", [])
    report = run.task("land").xcom
    assert (report["rows"], report["ranges"], report["tables"]) == (10, [[0, 10, 20]], {table: 10})
    assert [(uri, extra["rows"]) for uri, extra in run.asset_events] == [(f"file://{table}", 10)]
    first = DeltaTable(table).to_pyarrow_table()
    assert sorted(first["id"].to_pylist()) == list(range(10, 20))
    # What is landed is read again, and takes the place of its rows.
    again = airflow.run(airflow.dag(file), second_hour | {"replace": True})
    assert (again.state, again.errors) == ("success", [])
    assert (again.task("land").xcom["rows"], DeltaTable(table).version()) == (10, 1)
    assert sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist()) == list(range(10, 20))
