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


def test_records_give_an_event_for_each_table_that_they_chose(
    airflow: AirflowHome, connections: Connections, prefix: str, topic, produce
) -> None:
    name = topic(1, name=prefix)
    produce(name, 0, [b'{"event":"click"}', b'{"event":"view"}', b'{"event":"click"}'])
    outlets = [AssetAlias("lake"), Asset("whole", uri="iceberg://lake/whole")]
    options = {"topic": name, "table": "lake.{event}", "consumer_group": "g", "outlets": outlets}
    refused = airflow.run(extract_dag("by_event", **options))
    assert refused.state == "failed"
    assert "new_tables" in str(refused.errors[0])
    run = airflow.run(extract_dag("by_event_told", new_tables="create", **options))
    assert run.state == "success", run.errors
    events = {uri: (extra["rows"], extra["table"]) for uri, extra in run.asset_events}
    assert events == {
        "iceberg://lake/click": (2, "lake.click"),
        "iceberg://lake/view": (1, "lake.view"),
        "iceberg://lake/whole": (3, "lake.{event}"),
    }
    result = run.task().xcom
    assert result["tables"] == {"lake.click": 2, "lake.view": 1}
    assert result["home_table"] == f"lake.{prefix}__g__home"
