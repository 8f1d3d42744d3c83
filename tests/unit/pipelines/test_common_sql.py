"""The mission's own file, and what of a file's SQL Flink takes: said where the file is parsed."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_lakestream.pipelines.check import check
from airflow_lakestream.pipelines.compiling import compile_document
from airflow_lakestream.pipelines.operator import OperatorCall, calls_of
from airflow_lakestream.pipelines.yaml_file import PipelineError, read_document
from dev.service import CHECKOUT

EXAMPLE = CHECKOUT / "dags" / "pipelines" / "realtime-clickstream.yaml"
VARIABLES = {"KAFKA_CONNECTION": "kafka_default", "SCHEMA_REGISTRY_URL": "http://registry:8081"}
CHAIN = """\
metadata: {name: chain}
sources:
  orders: {type: kafka, topic: orders, %s}
transformations:
  - name: parsed
    type: sql_transform
    input: orders
    sql: |
      SELECT key,
             %s AS amount
      FROM {{ input }}
  - {name: large, type: sql_transform, input: parsed, sql: "SELECT key, amount FROM {{ input }} WHERE amount > 10"}
sinks:
  all_of_them: {type: iceberg, table: lake.orders, input: parsed}
  some: {type: iceberg, table: lake.large, input: large, consumer_group: some}
orchestration: {engine: flink}
"""


def compiled(text: str, engine: str | None = None) -> Any:
    return compile_document(read_document("p.yaml", text, VARIABLES.__getitem__), engine)


def calls(text: str, engine: str | None = None) -> list[OperatorCall]:
    return list(calls_of(compiled(text, engine)))


def problems(text: str, engine: str | None = None) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        compiled(text, engine)
    return [str(one) for one in caught.value.problems]


@pytest.mark.parametrize("engine", ["flink", "extract", "group", "spark"])
def test_the_example_is_taken_as_it_is_by_each_engine_that_runs_sql(engine: str) -> None:
    text = EXAMPLE.read_text()
    check(compiled(text, engine))
    (call,) = calls(text, engine)
    arguments = call.arguments.get("app_config", call.arguments)
    assert (arguments["table"], arguments["topic"]) == ("analytics.web.clickstream_events", "web.clickstream")
    assert "JSON_VALUE(value, '$.page_url') AS page_url" in arguments["sql"]
    assert "columns" not in arguments
    if engine == "flink":
        assert (arguments["on_error"], arguments["publish_interval"]) == ("reject", "60s")


def test_a_chain_goes_into_several_sinks_of_flink() -> None:
    text = CHAIN % ("format: json", "CAST(json_value(value, '$.amount') AS DECIMAL(10, 2))")
    first, second = calls(text)
    assert first.arguments["sql"].startswith("SELECT key,")
    assert second.arguments["sql"].startswith('WITH "parsed" AS (')
    assert first.arguments["checkpoint_location"] != second.arguments["checkpoint_location"]


@pytest.mark.parametrize("told", ["format: json", "format: avro, schema_registry: registry"])
def test_decoded_columns_are_told_to_flink(told: str) -> None:
    text = CHAIN % (f'{told}, schema: "key string, cents bigint"', "cents * 2")
    for call in calls(text):
        assert (call.arguments["columns"], call.arguments["sql_input"]) == ("key string, cents bigint", "decoded")
        assert "schema" not in call.arguments


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("printf('%d', 3)", "p.yaml:8:5: transformations.0.sql: line 2, column 8: printf is not in the SQL that Flink"),
        ("key::TINYINT", "p.yaml:8:5: transformations.0.sql: line 2, column 11: the type TINYINT is not in the SQL"),
    ],
)
def test_a_function_that_flink_lacks_is_named_by_its_transformation_and_line(expression: str, said: str) -> None:
    text = CHAIN % ("format: json", expression)
    found = problems(text)
    # Both sinks read it.
    assert len(found) == 1
    assert found[0].startswith(said), found
    assert "extract, group and spark take it" in found[0]
    for engine in ("extract", "group", "spark"):
        compiled(text, engine)


def test_the_second_step_of_a_chain_has_its_own_lines() -> None:
    text = (CHAIN % ("format: json", "value")).replace("amount > 10", "reverse(amount) = 'x'")
    (found,) = problems(text)
    assert found.startswith("p.yaml:12:55: transformations.1.sql: line 1, column 43: reverse is not in the SQL"), found


def test_a_template_in_sql_is_left_to_the_run() -> None:
    assert calls(CHAIN % ("format: json", "printf('{{ ds }}')"))


def test_connect_takes_no_sql() -> None:
    assert any("SQL is not for the engine connect" in one for one in problems(EXAMPLE.read_text(), "connect"))
