"""A whole Airflow of a stack: scheduler, DAG processor, triggerer, API server. Connections, and a running stream."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from pyiceberg.exceptions import NoSuchTableError

from airflow_lakestream.pipelines.dags import BROKEN
from dev.services.airflow import Airflow
from dev.stack import Stack
from tests.support.broker import Producing, Topics, poll_until
from tests.support.lake import events
from tests.support.pipelines import LOADING

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

LISTENING_DAG = """
from airflow.sdk import dag, task
from airflow.sdk.bases.hook import BaseHook

@dag(schedule=None)
def connected():
    @task
    def tell():
        for conn_id in ("kafka_default", "iceberg_default"):
            print(conn_id, list(BaseHook.get_connection(conn_id).extra_dejson.values()))
        raise RuntimeError("all connections are printed")
    tell()

connected()
"""
# Runs that go on: in a worker, until no record came for ten minutes, and by a driver of Spark that a task supervises.
ORCHESTRATION = {
    "extract": "{engine: extract, schedule: continuous, checkpoint_interval: 1s, idle_timeout: 10m}",
    "spark": "{engine: spark, schedule: continuous, checkpoint_interval: 1s}",
}
STREAM = """\
metadata: {{name: {engine}}}
sources:
  events: {{type: kafka, topic: {engine}}}
sinks:
  lake: {{type: iceberg, table: lake.{engine}}}
orchestration: {orchestration}
"""


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of the DAGs: a DAG in Python, and a pipeline for each engine."""
    folder = tmp_path_factory.mktemp("dags")
    (folder / "connected.py").write_text(LISTENING_DAG)
    (folder / "pipelines").mkdir()
    for engine, orchestration in ORCHESTRATION.items():
        pipeline = STREAM.format(engine=engine, orchestration=orchestration)
        (folder / "pipelines" / f"{engine}.yaml").write_text(pipeline)
    (folder / "load.py").write_text(LOADING.format(folder=str(folder / "pipelines")))
    return folder


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Give a stack that takes all parts of its Airflow down."""
    with Stack.owned("airflow") as stack:
        yield stack
        processes = descendants_of(stack, "airflow")
        assert len(processes) > 4
    poll_until(lambda: not any(one.is_running() for one in processes), "all parts of Airflow to go", 180)
    assert not stack.folder.exists()


@pytest.fixture(scope="module")
def airflow(stack: Stack, dags: Path) -> Airflow:
    """Give the Airflow."""
    return stack.up_airflow(dags_folder=dags)


def test_airflow_runs_dags_with_the_connections_of_its_stack(stack: Stack, airflow: Airflow) -> None:
    kafka, api = stack.kafka(), airflow.api
    assert airflow.healthy()
    assert stack.up_airflow() == airflow
    assert addresses_of(stack) == {"127.0.0.1"}

    poll_until(lambda: api.has_dag("connected"), "the DAG to be parsed", 180, every=1)
    api.unpause("connected")
    run = api.send("POST", "/dags/connected/dagRuns", {"logical_date": None})["dag_run_id"]
    poll_until(lambda: api.runs("connected")[0]["state"] == "failed", "the run to end", 180, every=1)
    log = "\n".join(api.task_log(api.task_instances("connected", run)[0]))
    assert kafka.bootstrap in log
    assert airflow.catalog_uri in log
    assert "RuntimeError: all connections are printed" in log


@pytest.mark.parametrize("engine", ORCHESTRATION)
def test_a_running_stream_whose_file_breaks_goes_on(stack: Stack, airflow: Airflow, dags: Path, engine: str) -> None:
    config, api = stack.kafka().client_config(), airflow.api
    topic = Topics(AdminClient({**config, "log_level": 2}))(1, name=engine)
    produce, catalog = Producing(config), airflow.catalog()

    def landed() -> list[int]:
        try:
            table = catalog.load_table(f"lake.{engine}")
        except NoSuchTableError:
            return []
        return sorted(table.scan(selected_fields=("_kafka_offset",)).to_arrow()["_kafka_offset"].to_pylist())

    produce(topic, 0, events(0, 0, 3))
    poll_until(lambda: api.has_dag(engine), "the pipeline to be parsed", 180, every=1)
    api.unpause(engine)
    poll_until(lambda: landed() == [0, 1, 2], "the first rows", 300, every=1)

    file = dags / "pipelines" / f"{engine}.yaml"
    file.write_text(file.read_text().replace("topic:", "topik:"))
    # As a deployment of the folder does: a DAG file that has changed is parsed at once.
    os.utime(dags / "load.py")

    def tags() -> list[str]:
        return [tag["name"] for tag in api.get(f"/dags/{engine}")["tags"]]

    def names_the_key() -> bool:
        return f"{engine}.yaml:3:25: sources.events.topik" in api.get(f"/dags/{engine}/details")["doc_md"]

    # Airflow writes tags and the serialized DAG, whose text the details have, one after the other.
    poll_until(lambda: tags() == [BROKEN] and names_the_key(), "the DAG to be broken", 180, every=1)
    # The scheduler knows the broken DAG now, and what comes is still landed, by the same try.
    produce(topic, 0, events(0, 3, 3))
    poll_until(lambda: landed() == list(range(6)), "the rows that came later", 180, every=1)
    [run] = api.runs(engine)
    [task] = api.task_instances(engine, run["dag_run_id"])
    assert (run["state"], task["state"], task["try_number"]) == ("running", "running", 1)


def descendants_of(stack: Stack, service: str) -> list[psutil.Process]:
    """Return the processes of a service, without its leash."""
    leash = stack._service(service).process("leash")
    assert leash is not None
    return psutil.Process(leash.pid).children(recursive=True)


def addresses_of(stack: Stack) -> set[str]:
    """Return the addresses on which any process of the stack listens."""
    found = set()
    for process in descendants_of(stack, "airflow") + descendants_of(stack, "kafka"):
        listening = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        found |= {connection.laddr.ip.removeprefix("::ffff:") for connection in listening}
    return found
