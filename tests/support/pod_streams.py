"""Streams whose drivers are pods: DAGs of SparkStreamingSubmitOperator, and what a test sees of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.progress import read_progress
from tests.support.airflow_home import AirflowHome, Connections, TaskProcess
from tests.support.broker import poll_until
from tests.support.pods import PATIENCE, Namespace

CANARY = "canary-4711"
_FROM_CONNECTION = "{{ conn.hidden.password }}"
# A secret in each way that a driver and its executors can be given one, besides the configuration.
HIDDEN = {
    "conf": {"spark.a.password": _FROM_CONNECTION, "spark.executorEnv.B_PASSWORD": _FROM_CONNECTION},
    "env_vars": {"A_PASSWORD": _FROM_CONNECTION},
}
_DAG = """
import datetime
from airflow.sdk import DAG
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

with DAG({dag_id!r}, schedule=None) as dag:
    SparkStreamingSubmitOperator(task_id="land", **{arguments!r})
"""


def arguments_of(namespace: Namespace) -> dict[str, Any]:
    """Return what the operator is given wherever its drivers run in a namespace."""
    return {
        "checkpoint_location": str(namespace.folder / "checkpoint"),
        "driver_folder": str(namespace.folder / "drivers"),
        "conf": {**namespace.conf(), **HIDDEN["conf"]},
        "env_vars": HIDDEN["env_vars"],
        # The image has the jars.
        "packages": "",
        "poll_interval": 0.5,
        "start_timeout": "10m",
        "retry_delay": timedelta(0),
    }


@dataclass
class PodStream:
    """DAGs of one landing on Kubernetes, into one table."""

    airflow: AirflowHome
    connections: Connections
    namespace: Namespace

    def dag(self, dag_id: str, topic: str, conf: dict[str, str] | None = None, **arguments: Any) -> Path:
        """Write a DAG that lands a topic, and return its file; `conf` are settings besides."""
        landing = {"topic": topic, "table": "lake.t", "schema": "id bigint not null, name string"}
        return self.write(dag_id, conf, app="kafka_to_iceberg", app_config=landing, **arguments)

    def write(self, dag_id: str, conf: dict[str, str] | None = None, **arguments: Any) -> Path:
        """Write a DAG of any app, and return its file."""
        given = arguments_of(self.namespace) | arguments
        given["conf"] |= conf or {}
        return self.airflow.write(dag_id, _DAG.format(dag_id=dag_id, arguments=given))

    @property
    def checkpoint(self) -> str:
        return str(self.namespace.folder / "checkpoint")

    @property
    def generation(self) -> int:
        """How many drivers have taken the lease."""
        lease = read_lease(self.checkpoint)
        return lease.generation if lease is not None else 0

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

    def await_text(self, text: str, process: TaskProcess) -> None:
        """Wait until the task's log has a text; a task that ends without it is an error with its log."""

        def said() -> bool:
            ended = process.supervisor.poll() is not None
            found = text in process.log
            assert found or not ended, process.log
            return found

        poll_until(said, f"{text!r} in the task's log", PATIENCE)

    def shown(self) -> list[str]:
        """Return where the password of the connections can be read, Airflow's logs included."""
        logs = (path for path in (self.airflow.path / "logs").rglob("*") if path.is_file())
        found = [str(path) for path in logs if CANARY.encode() in path.read_bytes()]
        return found + self.namespace.shown(CANARY)

    def assert_nothing_left(self) -> None:
        """Wait until no object of a driver is in the namespace; there is no upload then, and no secret anywhere."""
        poll_until(lambda: self.namespace.left() == [], "all that the pods owned to go", PATIENCE)
        assert [*(self.namespace.folder / "uploads").iterdir()] == []
        assert self.shown() == []
