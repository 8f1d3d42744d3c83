"""The DAGs of mirrors, run by `dag.test()` on a real broker, and a real local Spark where they need one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.airflow_home import DAGS, AirflowHome, Connections
from tests.support.broker import Producing, Topics
from tests.support.cdc import change


def test_a_run_mirrors_its_topic(
    airflow: AirflowHome,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    # Spark would listen on all addresses.
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    read = topic(1)
    events = [change("c", {"id": n, "total": n * 10}, n) for n in (1, 2, 3)]
    produce(read, 0, [*events, change("u", {"id": 1, "total": 7}, 4), change("d", {"id": 2}, 5), None])
    dag = airflow.dag(DAGS / "orders_cdc.py")
    run = airflow.run(dag, {"topic": read, "checkpoint": str(tmp_path / "checkpoint"), "max_batches": 1})
    assert (run.state, run.errors) == ("success", [])
    assert run.task("mirror").xcom["lag"] == 0
    rows = connections.catalog.load_table(dag.params["table"]).scan().to_arrow().to_pylist()
    assert {row["id"]: row["total"] for row in rows} == {1: 7, 3: 30}


def test_a_run_in_the_worker_mirrors_its_topic(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing
) -> None:
    read = topic(1)
    produce(read, 0, [change("c", {"id": n, "city": "Ulm"}, n) for n in (1, 2, 3)])
    dag = airflow.dag(DAGS / "customers_mirror.py")
    first = airflow.run(dag, {"topic": read, "max_records": 2})
    produce(read, 0, [change("u", {"id": 1, "city": "Bonn"}, 4), change("d", {"id": 2}, 5), None])
    second, third = (airflow.run(dag, {"topic": read, "max_records": None}) for _ in range(2))

    assert [(run.state, run.errors) for run in (first, second, third)] == [("success", [])] * 3
    reports = [run.task("mirror").xcom for run in (first, second, third)]
    assert [report["ranges"] for report in reports] == [[[0, 0, 2]], [[0, 2, 6]], []]
    assert first.asset_events == [("iceberg://lake/customers", reports[0])]
    assert third.asset_events == []
    rows = connections.catalog.load_table("lake.customers").scan().to_arrow().to_pylist()
    assert {row["id"]: row["city"] for row in rows} == {1: "Bonn", 3: "Ulm"}
