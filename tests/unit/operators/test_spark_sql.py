"""A statement in a Spark app's configuration: `{{ input }}` stays, all else is rendered."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator


def operator(**landing: Any) -> SparkStreamingSubmitOperator:
    told = {"topic": "{{ params.topic }}", "table": "lake.t", **landing}
    return SparkStreamingSubmitOperator(task_id="land", app="kafka_to_iceberg", app_config=told)


def test_input_stays_and_all_else_is_rendered() -> None:
    task = operator(sql="SELECT value, '{{ params.topic }}' AS topic FROM {{ input }}")
    task.render_template_fields({"params": {"topic": "orders"}})
    assert task.app_config["topic"] == "orders"
    assert task.app_config["sql"] == "SELECT value, 'orders' AS topic FROM {{ input }}"


def test_a_statement_without_input_fails_where_the_dag_is_parsed() -> None:
    with pytest.raises(InvalidArgument, match="sql: it does not read from"):
        operator(sql="SELECT value FROM orders")
