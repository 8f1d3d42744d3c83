"""The oldest Airflow that is promised: the provider loads, and a topic lands. Runs in an environment of its own."""

from __future__ import annotations

import importlib

import pytest

from airflow_lakestream.get_provider_info import get_provider_info
from dev.sources.clickstream import produce_clickstream
from dev.sources.flights import produce_flights
from tests.support.airflow_home import DAGS, AirflowHome, Connections
from tests.support.pipelines import Pipelines, pipelines

__all__ = ["pipelines"]


def test_airflow_finds_the_provider_and_all_that_it_lists() -> None:
    from airflow.providers_manager import ProvidersManager

    found = ProvidersManager().providers["airflow-lakestream"]
    assert get_provider_info().items() <= found.data.items()
    for kind in ("operators", "sensors", "hooks"):
        for entry in found.data[kind]:
            for module in entry["python-modules"]:
                importlib.import_module(module)


@pytest.mark.parametrize(
    ("dag_id", "produce"), [("clickstream_to_lake", produce_clickstream), ("flights_to_lake", produce_flights)]
)
def test_a_topic_lands(dag_id: str, produce, airflow: AirflowHome, connections: Connections, kafka, topic) -> None:
    name = topic()
    options = {"rate": 0} if produce is produce_clickstream else {}
    produce(kafka.client_config(), name, count=1000, **options)
    dag = airflow.dag(DAGS / f"{dag_id}.py")
    run = airflow.run(dag, {"topic": name})
    assert (run.state, run.errors) == ("success", [])
    report = run.task().xcom
    assert (report["rows"], report["remaining_lag"], report["consumer_group"]) == (1000, 0, dag_id)
    table = connections.catalog.load_table(report["table"])
    rows = table.scan(selected_fields=("_kafka_partition", "_kafka_offset")).to_arrow()
    landed = set(zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True))
    assert landed == {(p, n) for p, start, end in report["ranges"] for n in range(start, end)}
    assert len(rows) == 1000
    assert run.asset_events == [(f"iceberg://{report['table'].replace('.', '/')}", report)]

    again = airflow.run(dag, {"topic": name})
    assert (again.state, again.task().xcom["snapshot_ids"], again.asset_events) == ("success", [], [])


def test_a_pipeline_in_yaml_lands(pipelines: Pipelines, kafka, topic) -> None:
    name = topic()
    produce_flights(kafka.client_config(), name, count=100)
    pipelines.write("flights", topic=name)
    run = pipelines.run("flights")
    assert (run.state, run.errors, run.task().xcom["rows"]) == ("success", [], 100)


def test_a_list_of_streams_is_supervised(airflow: AirflowHome, connections: Connections, kafka, topic) -> None:
    name = topic()
    produce_clickstream(kafka.client_config(), name, count=100, rate=0)
    assert airflow.run(airflow.dag(DAGS / "clickstream_to_lake.py"), {"topic": name}).state == "success"
    stream = {"table": "lake.clickstream", "consumer_group": "clickstream_to_lake"}
    dag = airflow.dag(DAGS / "supervise_lakestream.py")
    assert [alert.callback.path for alert in dag.deadline] == ["airflow_lakestream.alerts.tell_deadline"]
    # `dag.test()` has no scheduler to look after it.
    dag.deadline = None
    run = airflow.run(dag, {"streams": [stream]})
    assert (run.state, run.errors) == ("success", [])


def test_a_sensor_that_should_begin_in_the_triggerer_begins_in_a_worker() -> None:
    from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor

    with pytest.warns(UserWarning, match="start_from_trigger needs Airflow 3.3"):
        sensor = IcebergSnapshotFreshnessSensor(task_id="s", table="lake.t", max_age="1h", start_from_trigger=True)
    assert (sensor.start_from_trigger, sensor.deferrable) == (False, True)


def test_a_retry_policy_is_refused_with_the_reason() -> None:
    from airflow_lakestream.exceptions import AirflowTooOld
    from airflow_lakestream.retries import LakestreamRetryPolicy

    with pytest.raises(AirflowTooOld, match=r"needs Airflow 3\.3"):
        LakestreamRetryPolicy()


def test_partitions_of_assets_are_refused_with_the_reason() -> None:
    from airflow_lakestream.exceptions import AirflowTooOld
    from airflow_lakestream.operators.asset_partitions import AssetPartitionsOperator

    with pytest.raises(AirflowTooOld, match=r"needs Airflow 3\.3 or newer"):
        AssetPartitionsOperator(task_id="tell", table="lake.t", since="2026-01-01T00:00:00Z")
