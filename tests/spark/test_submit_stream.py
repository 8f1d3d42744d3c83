"""SparkStreamingSubmitOperator on a real Airflow, its driver a stand-in without a JVM."""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.driver.lease_record import DriverOutcome
from tests.support.spark_stand_in import launched, most_drivers
from tests.support.spark_stream import Streams, xcom

pytestmark = pytest.mark.airflow

_LANDS = {"app": "kafka_to_iceberg", "application": None}
_MAINTAINS = {"app": "maintain_iceberg", "application": None, "app_config": {"tables": ["lake.t"], "compact": True}}
_RANGES = {"topic": "t", "table": "a.b", "mode": "ranges", "ranges": [[0, 0, 1]]}
CANARY = "canary-4711"
COUNTS = ("batches", "rows_in", "rows_out", "rejected", "restarts", "lag")


def test_a_stream_that_ends_is_reported_and_can_run_again(streams: Streams) -> None:
    task = streams.run("ends", {"batches": 3}).task("stream")
    assert task.state == "success"
    assert {name: task.xcom[name] for name in COUNTS} == {
        "batches": 3,
        "rows_in": 30,
        "rows_out": 27,
        "rejected": 3,
        "restarts": 0,
        "lag": 7,
    }
    # Under the names of the extract operator's report, too.
    assert (task.xcom["read"], task.xcom["rows"], task.xcom["tables"]) == (30, 27, {"lake.t": 27})
    assert task.xcom["topics"] == {"t": {"ranges": [[0, 0, 30]]}}
    # Airflow's own operator would find the finished job, and do nothing.
    again = streams.run("ends", {"batches": 3}).task("stream")
    assert (again.state, again.xcom["batches"], again.xcom["tables"]) == ("success", 3, {"lake.t": 27})
    assert (launched(streams.location), most_drivers(streams.location)) == (2, 1)


def test_a_driver_that_fails_vanishes_or_stalls_is_restarted(
    streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    task = streams.run(
        "restarts", {"batches": 4, "ends": ["fail", "vanish", "stall", "done"]}, stall_timeout="5s", max_restarts="3"
    ).task("stream")
    assert task.state == "success"
    # Two batches of each that ended badly, and four of the last.
    assert (task.xcom["restarts"], task.xcom["batches"]) == (3, 10)
    for reason in ("failed: the table is away", "vanished without a word", "made no progress for "):
        assert f"since the driver {reason}" in caplog.text
    assert (launched(streams.location), most_drivers(streams.location)) == (4, 1)
    # The last one has told that it is done, and may still be ending.
    streams.await_no_driver()


def test_restarts_end(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    run = streams.run("gives_up", {"ends": ["fail"]}, max_restarts=1)
    assert run.task("stream").state == "failed"
    assert "was restarted 1 times and failed: the table is away" in str(run.errors[0])
    # What it said last is in the task's own log.
    assert "driver: Broken: the table is away" in caplog.text
    assert launched(streams.location) == 2


def test_an_error_that_would_come_again_is_neither_restarted_nor_retried(streams: Streams) -> None:
    run = streams.run("terminal", {"ends": ["terminal"]}, retries=3)
    assert run.task("stream").state == "failed"
    assert "the driver failed: topic: is missing." in str(run.errors[0])
    assert launched(streams.location) == 1


@pytest.mark.parametrize(
    ("config", "start_timeout", "reason"),
    [
        ({"waits_for": "/nowhere"}, "2s", "did not begin to work within 2 s"),
        ({"dies_first": True}, "5m", "ended before it took"),
    ],
)
def test_a_driver_that_never_begins_to_work_is_a_failure(
    streams: Streams, config: dict[str, Any], start_timeout: str, reason: str
) -> None:
    run = streams.run("never_begins", config, max_restarts=0, start_timeout=start_timeout)
    assert run.task("stream").state == "failed"
    assert reason in str(run.errors[0])
    assert launched(streams.location) == 1
    streams.await_no_driver()


def test_a_timeout_stops_the_driver(streams: Streams) -> None:
    run = streams.run("timed_out", execution_timeout=timedelta(seconds=20))
    assert run.task("stream").state == "failed"
    assert [type(error).__name__ for error in run.errors] == ["AirflowTaskTimeout"]
    streams.await_no_driver()
    assert streams.lease is not None
    assert streams.lease.outcome is DriverOutcome.STOPPED


def test_no_secret_is_where_others_look(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, capfd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": CANARY}
    kafka = {"bootstrap.servers": "127.0.0.1:1", **login}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": kafka}))
    run = streams.run(
        "secrets",
        {"batches": 2},
        kafka_conn_id="kafka_default",
        conf={"spark.hadoop.fs.s3a.secret.key": CANARY},
        env_vars={"STORE_PASSWORD": CANARY},
    )
    assert run.task("stream").state == "success"
    seen = json.loads(Path(f"{streams.location}.seen").read_text())
    # Where they are, until the driver works.
    assert {name: seen["modes"][name] for name in (".", "app.json", "spark.properties")} == {
        ".": "0o700",
        "app.json": "0o600",
        "spark.properties": "0o600",
    }
    assert seen["password"] == CANARY
    assert seen["environment"]["STORE_PASSWORD"] == CANARY
    assert not [name for name in seen["environment"] if name.startswith("AIRFLOW_")]
    # And where they are not.
    [folder] = streams.folders()
    assert not (folder / "app.json").exists()
    assert not (folder / "spark.properties").exists()
    beside = Path(f"{streams.location}.lakestream")
    shown = [path.read_text() for path in [*folder.rglob("*"), *beside.iterdir()] if path.is_file()]
    task = run.task("stream")
    shown += [json.dumps(task.rendered), json.dumps(task.xcom), json.dumps(xcom(run, "progress")), str(seen["argv"])]
    shown += [*capfd.readouterr(), caplog.text]
    assert not [text for text in shown if CANARY in text]
    assert "Submitted a driver" in "".join(shown)


def test_what_spark_submit_takes_reaches_it(streams: Streams) -> None:
    (streams.folder / "given.properties").write_text("spark.given true\n")
    given = {
        "conf": {"spark.a": " b\\c", "spark.pyspark.python": "/of/the/executors"},
        "jars": "/a.jar,/b.jar",
        "py_files": "/c.py",
        "files": "/d",
        "archives": "/e.zip",
        "driver_class_path": "/f",
        "packages": "g:h:1",
        "exclude_packages": "i:j",
        "repositories": "file:///k",
        "total_executor_cores": 2,
        "executor_cores": 1,
        "executor_memory": "3g",
        "driver_memory": "4g",
        "num_executors": 5,
        "name": "a name",
        "properties_file": str(streams.folder / "given.properties"),
        "yarn_queue": "q",
        "deploy_mode": "client",
        "proxy_user": "somebody",
        "keytab": "/l.keytab",
        "principal": "m",
    }
    run = streams.run("passes_on", {"batches": 1}, **given)
    assert run.task("stream").state == "success"
    [folder] = streams.folders()
    arguments = (folder / "arguments.txt").read_text().splitlines()
    properties = json.loads(Path(f"{streams.location}.seen").read_text())["properties"]
    assert arguments[0] == "--load-spark-defaults"
    for option, value in {
        "--master": "local[1]",
        "--jars": "/a.jar,/b.jar",
        "--py-files": "/c.py",
        "--files": "/d",
        "--archives": "/e.zip",
        "--driver-class-path": "/f",
        "--packages": "g:h:1",
        "--exclude-packages": "i:j",
        "--repositories": "file:///k",
        "--total-executor-cores": "2",
        "--executor-cores": "1",
        "--executor-memory": "3g",
        "--driver-memory": "4g",
        "--num-executors": "5",
        "--name": "a name",
        "--properties-file": str(folder / "spark.properties"),
        "--queue": "q",
        "--deploy-mode": "client",
        "--proxy-user": "somebody",
        "--keytab": "/l.keytab",
        "--principal": "m",
        "--config": str(folder / "app.json"),
    }.items():
        assert arguments[arguments.index(option) + 1] == value
    assert "--conf" not in arguments
    assert properties.splitlines() == [
        "spark.given true",
        "",
        "spark.a=\\ b\\\\c",
        f"spark.driver.log.localDir={folder}/jvm",
        f"spark.pyspark.driver.python={sys.executable}",
        "spark.pyspark.python=/of/the/executors",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"spark_conn_id": "nowhere"}, "there is no connection 'nowhere'"),
        ({"deploy_mode": "cluster"}, "no cluster mode for Python applications"),
        ({"max_restarts": "{{ '-1' }}"}, "max_restarts: '-1' is not a number from 0 on"),
        ({"stall_timeout": "{{ 'soon' }}"}, "stall_timeout: 'soon' is not a number of seconds"),
        ({"on_kill_action": "{{ 'perhaps' }}"}, "on_kill_action: 'perhaps' is not one of 'graceful', 'kill', 'leave'"),
        ({"app": "{{ 'kafka_to_icebrg' }}", "application": None}, "Did you mean 'kafka_to_iceberg'?"),
        ({**_MAINTAINS, "app_config": {"compact": True}}, "maintenance.tables: is missing"),
        ({**_MAINTAINS, "max_batches": 1}, "max_batches: goes with a query; maintain_iceberg has no query"),
        ({**_MAINTAINS, "trigger": "10 seconds"}, "trigger: goes with a query; maintain_iceberg has no query"),
        ({"checkpoint_location": "{{ '' }}", **_LANDS}, "checkpoint_location: is missing"),
        ({"stop_timeout": "{{ 'soon' }}"}, "stop_timeout: 'soon' is not a number of seconds"),
        ({**_LANDS, "app_config": _RANGES, "max_batches": 1}, 'max_batches: goes with landing.mode="resume"'),
        ({**_LANDS, "storage_conn_id": "a"}, "storage_conn_id: connections of a store are for Delta tables"),
    ],
)
def test_what_can_never_work_is_said_before_anything_is_submitted(
    streams: Streams, arguments: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "b"}})
    )
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"conn_type": "iceberg", "extra": {"type": "sql"}}))
    if "app" in arguments:
        arguments |= {"kafka_conn_id": "kafka_default", "iceberg_conn_id": "iceberg_default"}
    run = streams.run("never_works", retries=3, **arguments)
    assert [type(error).__name__ for error in run.errors] == ["AirflowFailException"]
    assert problem in str(run.errors[0])
    assert not (streams.folder / "drivers").exists()


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        ("JAVA_HOME", r"bin/java is version 25, on which Spark does not run\. Spark 4 needs a JDK 17 or 21"),
        ("SPARK_HOME", r"would run Spark 3\.5\.1 in .*\(SPARK_HOME\), and the installed pyspark is 4\.0"),
        ("PATH", r"would run Spark 3\.5\.1 in .*\(by .*/bin/spark-submit\), and the installed pyspark is 4\.0"),
        ("PYTHONPATH", r"pyspark is 4\.0\.\d, and pyspark-client 4\.2\.0: both are installed into one folder"),
    ],
)
def test_an_unfit_java_and_a_mixed_spark_are_said_before_anything_is_submitted(
    streams: Streams, variable: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    for name, text in {
        "bin/java": "#!/bin/sh\necho 'openjdk version \"25.0.1\" 2025-10-21' >&2\n",
        "bin/spark-submit": "#!/bin/sh\n",
        "jars/spark-core_2.12-3.5.1.jar": "",
        "pyspark_client-4.2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: pyspark-client\nVersion: 4.2.0\n",
    }.items():
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_text(text)
        (other / name).chmod(0o755)
    if variable == "PYTHONPATH":
        monkeypatch.syspath_prepend(other)
    elif variable == "PATH":
        (other / "bin/java").unlink()
        monkeypatch.setenv("PATH", f"{other / 'bin'}{os.pathsep}{os.environ['PATH']}")
    else:
        monkeypatch.setenv(variable, str(other))
    servers = {"conn_type": "kafka", "extra": {"bootstrap.servers": "b"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(servers))
    catalog = {"type": "sql", "uri": "sqlite://", "warehouse": "file:///w"}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps({"conn_type": "iceberg", "extra": catalog}))
    connections = {"kafka_conn_id": "kafka_default", "iceberg_conn_id": "iceberg_default", "packages": "g:h:1"}
    run = streams.run(
        "unfit", {"topic": "t", "table": "a.b"}, retries=3, app="kafka_to_iceberg", application=None, **connections
    )
    assert [type(error).__name__ for error in run.errors] == ["AirflowFailException"]
    assert re.search(problem, str(run.errors[0]))
    assert not (streams.folder / "drivers").exists()
