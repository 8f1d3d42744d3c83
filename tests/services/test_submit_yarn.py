"""kafka_to_iceberg by the operator on a real YARN, in cluster mode: to its end, killed on YARN, ended by a person."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.progress import read_progress
from dev.services.yarn import YarnDaemon
from dev.stack import Stack
from tests.support.airflow_home import AirflowHome, Connections, TaskProcess
from tests.support.broker import Producing, TopicOf, poll_until
from tests.support.lake import events
from tests.support.spark_stream import PATIENCE, mark

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

CANARY = "canary-4711"
# The jars of Spark are on each node of this cluster of one, and need not be sent there.
CONF = {
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
    "spark.pyspark.python": sys.executable,
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
SIZES = {"driver_memory": "768m", "executor_memory": "512m", "num_executors": 1, "executor_cores": 1}
_DAG = """
import datetime
from airflow.sdk import DAG
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

with DAG({dag_id!r}, schedule=None) as dag:
    SparkStreamingSubmitOperator(task_id="land", app="kafka_to_iceberg", poll_interval=0.5, **{arguments!r})
"""


@pytest.fixture
def yarn(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> YarnDaemon:
    """Let the connection lead to a real YARN, in cluster mode."""
    manager = stack.up_yarn()
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": manager.url}
    connection = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("HADOOP_CONF_DIR", manager.conf)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return manager


@dataclass
class YarnStream:
    """DAGs of one landing on YARN, into one table."""

    airflow: AirflowHome
    connections: Connections
    manager: YarnDaemon
    folder: Path

    def dag(self, dag_id: str, topic: str, **arguments: Any) -> Path:
        """Write a DAG, and return its file."""
        given = {
            "app_config": {"topic": topic, "table": "lake.t", "schema": "id bigint not null, name string"},
            "checkpoint_location": self.checkpoint,
            "driver_folder": str(self.folder / "drivers"),
            "conf": {**CONF, "spark.yarn.stagingDir": (self.folder / "staging").as_uri()},
            "env_vars": {"SPARK_LOCAL_IP": "127.0.0.1", "A_PASSWORD": CANARY},
            **SIZES,
        }
        return self.airflow.write(dag_id, _DAG.format(dag_id=dag_id, arguments=given | arguments))

    @property
    def checkpoint(self) -> str:
        return str(self.folder / "checkpoint")

    @property
    def landed(self) -> list[tuple[int, int]]:
        rows = self.connections.catalog.load_table("lake.t").scan().to_arrow().to_pylist()
        return sorted((row["_kafka_partition"], row["_kafka_offset"]) for row in rows)

    def await_rows(self, count: int, process: TaskProcess) -> None:
        """Wait until so many rows are told of; a task that ends before is an error with its log."""

        def done() -> bool:
            assert process.supervisor.poll() is None, process.log
            return int(read_progress(self.checkpoint).sums()["rows_out"]) >= count

        poll_until(done, f"{count} rows", PATIENCE)

    def await_state(self, state: str) -> None:
        """Wait until YARN says that the application is in a state."""
        poll_until(lambda: self.application()["state"] == state, f"the application to be {state}", PATIENCE)

    def application(self) -> dict[str, Any]:
        """Return what YARN says of the application that took the checkpoint's lease last."""
        lease = read_lease(self.checkpoint)
        assert lease is not None
        return dict(self.manager.asked(f"apps/{lease.application_id}")["app"])


@pytest.fixture
def stream(airflow: AirflowHome, connections: Connections, yarn: YarnDaemon, tmp_path: Path) -> YarnStream:
    return YarnStream(airflow, connections, yarn, tmp_path)


def test_a_topic_lands_by_a_driver_inside_yarn(stream: YarnStream, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 20), events(1, 0, 20))
    run = stream.airflow.run(stream.airflow.dag(stream.dag("yarn_lands", name)))
    assert (run.state, run.errors) == ("success", [])
    report = run.task().xcom
    assert (report["read"], report["rows"], report["lag"], report["restarts"]) == (40, 40, 0, 0)
    assert stream.landed == [(partition, offset) for partition in (0, 1) for offset in range(20)]
    # The driver says that it is done, and then ends.
    stream.await_state("FINISHED")
    application = stream.application()
    assert (application["finalStatus"], application["name"]) == ("SUCCEEDED", "lakestream yarn_lands.land")
    # What was sent along, the configuration with its secrets, is gone: here, and, with the application, there.
    assert not [path for name in ("app.json", "spark.properties") for path in (stream.folder / "drivers").rglob(name)]
    poll_until(lambda: not list((stream.folder / "staging").rglob("app.json")), "the staging folder to go", PATIENCE)
    logs = list(Path(stream.manager.folder).parent.glob("yarn-node/containers/*/*/std*"))
    assert logs
    assert not [log for log in logs if CANARY in log.read_text()]


def test_what_is_killed_on_yarn_is_restarted_and_what_a_person_ends_is_killed_there(
    stream: YarnStream, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 10))
    file = stream.dag(
        "yarn_is_killed", name, trigger="1 second", on_kill_action="kill", restart_backoff="100ms", retries=0
    )
    run = stream.airflow.start(stream.airflow.dag(file))
    with stream.airflow.process(run, file) as process:
        stream.await_rows(10, process)
        first = stream.application()
        assert first["state"] == "RUNNING"
        # As an administrator does, or a cluster that needs the room.
        stream.manager.kill(first["id"])
        produce(name, 0, events(0, 10, 10))
        stream.await_rows(20, process)
        second = stream.application()
        assert second["id"] != first["id"]
        assert stream.manager.asked(f"apps/{first['id']}")["app"]["state"] == "KILLED"
        # YARN asks the driver's machine to end it, and does not wait for long: it may have time to give its lease back.
        assert re.search("since the driver (vanished without a word|failed: .*ended by SIGTERM)", process.log)
        mark(run, "failed", "land")
        process.wait(PATIENCE)
    stream.await_state("KILLED")
    assert stream.application()["id"] == second["id"]
    assert stream.landed == [(0, offset) for offset in range(20)]
