"""KafkaExtractOperator with several topics and tables on a real Airflow: XCom, asset events, skipping."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Asset, AssetAlias

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from tests.support.airflow_home import AirflowHome, Connections

pytestmark = pytest.mark.integration


def extract_dag(dag_id: str, **options: Any) -> DAG:
    with DAG(dag_id, schedule=None) as dag:
        KafkaExtractOperator(task_id="land", retries=0, **options)
    return dag


@pytest.fixture
def prefix() -> str:
    """Give the beginning of this test's topic names."""
    return f"f{uuid.uuid4().hex[:8]}"


def test_a_regex_gives_an_event_for_each_table_that_was_written(
    airflow: AirflowHome, connections: Connections, prefix: str, topic, produce
) -> None:
    for part, count in (("a", 2), ("b", 3), ("empty", 0)):
        produce(topic(1, name=f"{prefix}-{part}"), 0, [b'{"n":1}'] * count)
    outlets = [AssetAlias("lake"), Asset("whole", uri="iceberg://lake/whole")]
    run = airflow.run(extract_dag("regex", topic=f"^{prefix}-.*", table="lake.{topic}", outlets=outlets))
    assert run.state == "success", run.errors
    events = dict(run.asset_events)
    rows = {uri: extra["rows"] for uri, extra in events.items()}
    assert rows == {
        f"iceberg://lake/{prefix}_a": 2,
        f"iceberg://lake/{prefix}_b": 3,
        "iceberg://lake/whole": 5,
    }
    assert run.task().xcom["tables"] == {f"lake.{prefix}_a": 2, f"lake.{prefix}_b": 3, f"lake.{prefix}_empty": 0}


def test_a_regex_without_a_match_fails_or_is_skipped_as_told(
    airflow: AirflowHome, connections: Connections, prefix: str
) -> None:
    run = airflow.run(extract_dag("none", topic=f"^{prefix}", table="lake.{topic}"))
    assert run.state == "failed"
    assert isinstance(run.errors[0], AirflowFailException)
    skipped = airflow.run(extract_dag("none_skip", topic=f"^{prefix}", table="lake.{topic}", on_empty="skip"))
    assert skipped.task().state == "skipped"
