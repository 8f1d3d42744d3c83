"""KafkaExtractOperator into a Delta table, on a real Airflow and a real broker."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, AssetAlias

from airflow_lakestream.operators.base import table_asset
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from tests.support.airflow_home import AirflowHome, Connections, FailsOnce
from tests.support.delta_table import GROUP, live_files, rows_of, versions

pytestmark = pytest.mark.airflow


def numbers(count: int) -> list[bytes]:
    return [b'{"id":%d,"name":"n%d"}' % (n, n) for n in range(count)]


def delta_dag(dag_id: str, topic: str, folder: Path, **options: Any) -> DAG:
    with DAG(dag_id, schedule=None, params={"folder": str(folder)}) as dag:
        given = {
            "table": "{{ params.folder }}/clicks",
            "table_format": "delta",
            "consumer_group": GROUP,
            "retry_delay": timedelta(0),
        }
        KafkaExtractOperator(task_id="land", topic=topic, **(given | options))
    return dag


def test_a_task_lands_in_a_delta_table_and_its_retry_reports_what_was_landed(
    airflow: AirflowHome, connections: Connections, topic_of, tmp_path: Path
) -> None:
    name = topic_of([*numbers(20), b"bad"])
    outlet = AssetAlias("delta_clicks")
    dag = delta_dag("delta_landing", name, tmp_path, retries=1, post_execute=FailsOnce(), outlets=[outlet])

    run = airflow.run(dag)

    assert run.state == "success"
    table = tmp_path / "clicks"
    assert [row[2] for row in rows_of(table)] == list(range(20))
    assert len(versions(table)) == 1
    assert len(live_files(f"{table}__rejected")) == 1
    result = run.task("land").xcom
    assert (result["rows"], result["rejected"], result["snapshot_ids"]) == (20, 1, ["0"])
    assert result["tables"] == {str(table): 20}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "{{ 'lake.clicks' }}"}, "not a place of a Delta table"),
        ({"partition_by": ["day(_kafka_timestamp)"]}, "CAST"),
        ({"table_format": "iceberg", "table": "lake.t", "storage_conn_id": "x"}, "storage_conn_id"),
    ],
    ids=["no path", "transform", "connection of a store"],
)
def test_what_can_not_be_fails_without_a_retry(
    airflow: AirflowHome, connections: Connections, topic, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    run = airflow.run(delta_dag(f"delta_refused_{abs(hash(said))}", topic(1), tmp_path, retries=3, **options))
    assert run.state == "failed"
    (error,) = run.errors
    assert isinstance(error, AirflowFailException)
    assert said in str(error)


def test_a_delta_tables_asset_is_where_it_lies() -> None:
    assert table_asset("s3://bucket/lake/clicks").uri == "s3://bucket/lake/clicks"
    assert table_asset("/lake/clicks").uri == "file:///lake/clicks"
    assert table_asset("lake.clicks").uri == "iceberg://lake/clicks"
