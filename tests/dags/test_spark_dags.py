"""The DAGs of clickstream on Spark, run by `dag.test()` on a real broker and a real local Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.spark.lease import read_lease
from airflow_lakestream.spark.lease_record import Outcome
from dev.services.kafka import Kafka
from dev.sources.clickstream import produce_clickstream
from tests.dags.test_dags import landed
from tests.support.airflow_home import DAGS, AirflowHome, Connections
from tests.support.spark_stream import xcom

# What each is told besides topic and checkpoint, and its task.
CONF: dict[str, tuple[dict[str, Any], str]] = {
    "clickstream_spark_micro_batch": ({"max_offsets_per_trigger": 2000}, "land"),
    "clickstream_streaming": ({"max_batches": 1}, "stream"),
}


@pytest.mark.parametrize("name", list(CONF))
def test_lands_its_topic_once(
    name: str,
    airflow: AirflowHome,
    connections: Connections,
    kafka: Kafka,
    topic: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    # Spark would listen on all addresses.
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    read, checkpoint = topic(2), tmp_path / "checkpoint"
    count = produce_clickstream(kafka.client_config(), read, rate=0, count=3000)
    given, task_id = CONF[name]
    dag = airflow.dag(DAGS / f"{name}.py")
    run = airflow.run(dag, {"topic": read, "checkpoint": str(checkpoint), **given})
    assert (run.state, run.errors) == ("success", [])
    report = run.task(task_id).xcom
    assert (report["rows_in"], report["rows_out"], report["lag"], report["restarts"]) == (count, count, 0, 0)
    rows = landed(connections.catalog.load_table(dag.params["table"]))
    assert (len(rows), sum(rows.values())) == (count, count)
    lease = read_lease(str(checkpoint))
    assert lease is not None
    assert lease.outcome is Outcome.DONE
    assert lease.application_id.startswith("local-")
    assert xcom(run, "_link_SparkUILink", task_id) == lease.ui_url
