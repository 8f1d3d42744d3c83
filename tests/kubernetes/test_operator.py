"""kafka_to_iceberg by the operator on a real Kubernetes: to its end, deleted pods, a dead worker, a person, no API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.driver.lease import read_lease
from airflow_lakestream.driver.progress import read_progress
from dev.ports import free_ports
from dev.services.kafka import Kafka
from dev.services.kubernetes import Kubernetes
from dev.stack import Stack
from tests.support.airflow_home import AirflowHome, Connections, TaskProcess
from tests.support.broker import QUICK_CLEANUP, Producing, TopicOf, poll_until
from tests.support.lake import events
from tests.support.pods import PATIENCE, Namespace
from tests.support.spark_stream import kill_the_worker, mark

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

CANARY = "canary-4711"
_DAG = """
import datetime
from airflow.sdk import DAG
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

with DAG({dag_id!r}, schedule=None) as dag:
    SparkStreamingSubmitOperator(task_id="land", app="kafka_to_iceberg", poll_interval=0.5, **{arguments!r})
"""


@pytest.fixture(scope="session")
def kafka(stack: Stack, node: Kubernetes) -> Kafka:
    """A broker that pods reach, too: at the bridge's address."""
    ports = stack._kafka_ports
    # Kafka wants another port for each of its listeners.
    (of_pods,) = free_ports(1)
    listeners = f"PLAINTEXT://127.0.0.1:{ports.plain},PODS://{node.ADDRESS}:{of_pods}"
    listeners += f",SASL_SSL://127.0.0.1:{ports.secure}"
    overrides = QUICK_CLEANUP | {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{ports.controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PODS:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
    }
    return stack.up_kafka(overrides=overrides)


@dataclass
class PodStream:
    """DAGs of one landing on Kubernetes, into one table."""

    airflow: AirflowHome
    connections: Connections
    namespace: Namespace

    def dag(self, dag_id: str, topic: str, **arguments: Any) -> Path:
        """Write a DAG, and return its file."""
        given = {
            "app_config": {"topic": topic, "table": "lake.t", "schema": "id bigint not null, name string"},
            "checkpoint_location": self.checkpoint,
            "driver_folder": str(self.namespace.folder / "drivers"),
            "conf": {**self.namespace.conf(), "spark.a.password": CANARY},
            "env_vars": {"A_PASSWORD": CANARY},
            # The image has the jars.
            "packages": "",
            "start_timeout": "10m",
        }
        return self.airflow.write(dag_id, _DAG.format(dag_id=dag_id, arguments=given | arguments))

    @property
    def checkpoint(self) -> str:
        return str(self.namespace.folder / "checkpoint")

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


@pytest.fixture
def stream(airflow: AirflowHome, connections: Connections, namespace: Namespace, kafka: Kafka) -> PodStream:
    listeners = kafka.overrides["advertised.listeners"].split(",")
    (address,) = [part.removeprefix("PODS://") for part in listeners if part.startswith("PODS://")]
    connections.kafka({"bootstrap.servers": address})
    return PodStream(airflow, connections, namespace)


def test_a_topic_lands_by_a_driver_in_a_pod_and_nothing_is_left(stream: PodStream, topic_of: TopicOf) -> None:
    name = topic_of(events(0, 0, 20), events(1, 0, 20))
    run = stream.airflow.run(stream.airflow.dag(stream.dag("pods_land", name)))
    assert (run.state, run.errors) == ("success", [])
    report = run.task().xcom
    assert (report["read"], report["rows"], report["lag"], report["restarts"]) == (40, 40, 0, 0)
    assert stream.landed == [(partition, offset) for partition in (0, 1) for offset in range(20)]
    poll_until(lambda: stream.namespace.left() == [], "all that the pod owned to go", PATIENCE)
    assert [*(stream.namespace.folder / "uploads").iterdir()] == []


def test_deleted_pods_cost_one_restart_and_a_person_ends_the_driver(
    stream: PodStream, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 10))
    given = {"trigger": "1 second", "on_kill_action": "kill", "restart_backoff": "100ms", "retries": 0}
    file = stream.dag("pods_are_deleted", name, max_restarts=1, **given)
    run = stream.airflow.start(stream.airflow.dag(file))
    with stream.airflow.process(run, file) as process:
        stream.await_rows(10, process)
        assert stream.namespace.shown(CANARY) == []
        (first,) = stream.namespace.await_pods(1)
        # An executor first: Spark itself makes another.
        for executor in stream.namespace.pods("executor"):
            stream.namespace.delete(executor)
        produce(name, 0, events(0, 10, 10))
        stream.await_rows(20, process)
        assert [*stream.namespace.pods()] == [first]
        stream.namespace.delete(first)
        produce(name, 0, events(0, 20, 10))
        stream.await_rows(30, process)
        assert process.log.count("It is restarted") == 1
        assert first not in stream.namespace.pods()
        # The API server goes and comes, the stream goes on.
        stream.namespace.node.stop("api-server")
        produce(name, 0, events(0, 30, 10))
        stream.await_rows(40, process)
        stream.namespace.node.start("api-server")
        mark(run, "failed", "land")
        process.wait(PATIENCE)
    poll_until(lambda: stream.namespace.left() == [], "all to go", PATIENCE)
    assert stream.landed == [(0, offset) for offset in range(40)]


def test_a_worker_that_dies_between_submit_and_answer_leaves_a_pod_that_the_next_try_finds(
    stream: PodStream, topic_of: TopicOf
) -> None:
    name = topic_of(events(0, 0, 10))
    file = stream.dag("pods_are_found", name, trigger="1 second", on_kill_action="kill", retries=3)
    run = stream.airflow.start(stream.airflow.dag(file))
    with stream.airflow.process(run, file) as process:
        # Before `spark-submit` has ended.
        poll_until(stream.namespace.pods, "the pod", PATIENCE)
        kill_the_worker(process)
    (first,) = stream.namespace.pods()
    mark(run, "cleared", "land")
    with stream.airflow.process(run, file) as process:
        stream.await_rows(10, process)
        assert [*stream.namespace.pods()] == [first]
        poll_until(lambda: _owner(stream.namespace, first) == first, "the secret to be the pod's", PATIENCE)
        mark(run, "failed", "land")
        process.wait(PATIENCE)
    poll_until(lambda: stream.namespace.left() == [], "all to go", PATIENCE)
    lease = read_lease(stream.checkpoint)
    assert lease is not None
    assert lease.generation == 1


def _owner(namespace: Namespace, name: str) -> str:
    owners = namespace.node.core.read_namespaced_secret(name, namespace.name).metadata.owner_references or []
    return owners[0].name if owners else ""
