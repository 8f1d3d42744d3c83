"""DAG files as `lakestream init` writes them: formatted, without a mistake for linters, whatever the names in them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.onramp.dag_file import DagEngine, DagFile, default_name, default_table
from airflow_lakestream.operators.base import table_asset
from airflow_lakestream.tables.schema.columns import to_schema

RUFF = Path(sys.executable).with_name("ruff")
COLUMNS = "id bigint not null, \"odd \"\" name\" string, place struct<x: double, y: double> comment 'it''s \\\\'"


def dag_file(**told: Any) -> DagFile:
    given = {"topic": "orders", "table": "lake.orders", "group": "orders-lake", "dag_id": "orders_to_lake"}
    return DagFile(**{**given, **told})


def string_of(text: str, name: str) -> str:
    """Return the string that a module gives to a name."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return str(ast.literal_eval(node.value))
    raise AssertionError(name)


@pytest.mark.parametrize("engine", list(DagEngine))
@pytest.mark.parametrize(
    "told",
    [
        {},
        {"columns": COLUMNS, "columns_by": "12 records of orders"},
        {"decoding": {"format": "csv", "csv_delimiter": '"'}, "table": "/lake/orders", "columns": "a int"},
        {"decoding": {"format": "avro"}, "key": ["id", "it's"]},
        {"decoding": {"format": "avro", "writer_schemas": ['{"type": "record"}', "it's"]}},
        {"decoding": {"sql": "SELECT 'a' AS \"b\"\nFROM {{ input }}"}, "connections": {"kafka_conn_id": "k"}},
    ],
)
def test_a_file_is_formatted_and_clean(engine: DagEngine, told: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "dag.py"
    file.write_text(dag_file(engine=engine, **told).text)
    compile(file.read_text(), str(file), "exec")
    for command in (["format", "--check", "--diff"], ["check", "--select", "E,F,I,W,Q,UP", "--ignore", "E501"]):
        options = ["--isolated", "--line-length", "120", "--target-version", "py311"]
        done = subprocess.run([RUFF, *command, *options, file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_columns_in_the_file_are_those_that_were_found() -> None:
    text = dag_file(columns=COLUMNS, columns_by="12 records of orders").text
    assert to_schema(string_of(text, "SCHEMA")) == to_schema(COLUMNS)
    assert "by 12 records of orders" in text


@given(
    st.text(min_size=1, max_size=12).filter(
        lambda text: "{" not in text and not any("\ud800" <= c <= "\udfff" for c in text)
    )
)
def test_any_name_of_a_column_comes_back(name: str) -> None:
    columns = '"{}" int'.format(name.replace('"', '""'))
    text = dag_file(columns=columns).text
    assert to_schema(string_of(text, "SCHEMA")).fields[0].name == to_schema(columns).fields[0].name == name


@pytest.mark.parametrize("name", ["{{ var.value.password }}", "{% raw %}", "a{#"])
def test_a_field_that_airflow_would_render_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="takes for a template"):
        dag_file(columns=f'id int, "{name}" string')


def test_a_delta_table_is_landed_by_the_parts_for_delta() -> None:
    assert 'table_format="delta"' in dag_file(table="/lake/orders").text
    spark = dag_file(table="/lake/orders", engine=DagEngine.SPARK).text
    assert 'app="kafka_to_delta"' in spark
    assert "table_format" not in spark


@pytest.mark.parametrize("schedule", ["* * * *", "every day", "@sometimes", "61 * * * *", "*/5 * *", ""])
def test_a_schedule_that_is_none_is_refused(schedule: str) -> None:
    with pytest.raises(InvalidArgument, match="--schedule"):
        dag_file(schedule=schedule)


@pytest.mark.parametrize("schedule", ["0 6 * * 1-5", "@hourly", "@continuous"])
def test_a_schedule_is_taken_as_it_is(schedule: str) -> None:
    kept = f'"{schedule}"' if schedule == "@continuous" else f'CronDataIntervalTimetable("{schedule}", timezone="UTC")'
    assert f"schedule={kept}," in dag_file(schedule=schedule).text


def test_names_that_come_from_the_topic() -> None:
    assert (default_name("a.b-c"), default_table("a.b-c")) == ("a.b-c_to_lake", "lake.a_b_c")
    assert default_table("..--") == "lake.topic"


@pytest.mark.parametrize(
    "sql", ["SELECT 1 AS a FROM {{ input }}", 'SELECT \'\\\' AS """x"""\n  FROM {{ input }} -- "', "a\r\n\x85b"]
)
def test_a_statement_is_a_text_of_several_lines(sql: str) -> None:
    assert string_of(dag_file(decoding={"sql": sql}).text, "SQL") == f"\n{sql}\n"


@pytest.mark.parametrize("table", ["lake.orders", "/lake/orders", "s3://lake/orders"])
@pytest.mark.parametrize("engine", list(DagEngine))
def test_the_table_is_an_outlet_and_runs_have_intervals(engine: DagEngine, table: str) -> None:
    text = dag_file(engine=engine, table=table).text
    asset = table_asset(table)
    assert f'outlets=[Asset(name="{asset.name}", uri="{asset.uri}")]' in text
    expected = '"@continuous"' if engine is DagEngine.SPARK else "CronDataIntervalTimetable("
    assert f"schedule={expected}" in text
