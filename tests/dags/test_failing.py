"""DAGs that must fail: at the first try, saying which argument and what to do, and leaving nothing half made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from tests.support.airflow_home import AirflowHome, Connections

# What each gives the operator, and what its error has to name.
FAILING: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "bad_record": ({"schema": "n bigint", "on_error": "fail"}, ("[0] offset 2",)),
    "invalid_partition_by": ({"partition_by": ["weeks(timestamp)"]}, ("partition_by", "weeks")),
    "metadata_name_taken": ({"schema": "n bigint, _kafka_offset string"}, ("_kafka_offset",)),
    "missing_iceberg_connection": (
        {"iceberg_conn_id": "iceberg_nowhere"},
        ("iceberg_conn_id", "iceberg_nowhere", "warehouse"),
    ),
    "missing_kafka_connection": (
        {"kafka_conn_id": "kafka_nowhere"},
        ("kafka_conn_id", "kafka_nowhere", "bootstrap.servers"),
    ),
    "missing_topic": ({"topic": "no-such-topic"}, ("no-such-topic", "does not exist", "kafka_default")),
    "no_such_partition_column": ({"partition_by": ["days(when)"]}, ("partition_by", "when")),
    "unknown_on_error": ({"on_error": "{{ 'ignore' }}"}, ("on_error", "ignore", "reject", "fail", "skip")),
}


@pytest.mark.parametrize("case", FAILING)
def test_fails_at_once_and_says_what_to_do(case: str, airflow: AirflowHome, connections: Connections, topic_of) -> None:
    given, expected = FAILING[case]
    name = topic_of([b'{"n":1}', b'{"n":2}', b'{"n":', b'{"n":4}'] if case == "bad_record" else [b'{"n":1}'])
    with DAG(case, schedule=None, params={"topic": ""}) as dag:
        arguments = {"topic": "{{ params.topic }}", "table": "lake.t", "retries": 2, "retry_delay": timedelta(0)}
        KafkaExtractOperator(task_id="land", **(arguments | given))
    run = airflow.run(dag, {"topic": name})
    assert (run.state, run.task().tries) == ("failed", 1)
    [error] = run.errors
    assert isinstance(error, AirflowFailException)
    for word in expected:
        assert word in str(error)
    assert run.task().xcom is None
    assert run.asset_events == []
    assert connections.catalog.list_namespaces() == []
    assert not [path for path in connections.warehouse.rglob("*") if path.is_file()]
