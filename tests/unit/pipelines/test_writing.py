"""Pipelines as `lakestream init --yaml` writes them: read back, they say what the DAG file of the same landing says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.policies import ValueFormat
from airflow_lakestream.onramp.dag_file import DagEngine, DagFile
from airflow_lakestream.pipelines.compiled import CompiledPipeline
from airflow_lakestream.pipelines.compiling import compile_document
from airflow_lakestream.pipelines.writing import dumped, pipeline_text
from airflow_lakestream.pipelines.yaml_file import PipelineError, read_document

COLUMNS = 'id bigint not null, "odd "" name" string, place struct<x: double, y: double> comment \'costs ${5}\''
RECORD = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "doc": "$5, ${x}"}]}'
LANDING = {"topic": "orders", "table": "lake.orders", "consumer_group": "orders-lake", "kafka_conn_id": "kafka_default"}


def dag_file(**told: Any) -> DagFile:
    given = {"topic": "orders", "table": "lake.orders", "group": "orders-lake", "dag_id": "orders_to_lake"}
    return DagFile(**{**given, **told})


def read(file: DagFile) -> CompiledPipeline:
    def lookup(name: str) -> str:
        raise AssertionError(name)

    return compile_document(read_document("a.yaml", pipeline_text(file), lookup))


@pytest.mark.parametrize(
    ("told", "landing"),
    [
        ({}, {}),
        ({"columns": COLUMNS}, {"schema": COLUMNS.replace(", ", ",\n").replace("double,\n", "double, ")}),
        (
            {"table": "/lake/orders", "connections": {"storage_conn_id": "s", "kafka_conn_id": "k"}},
            {"table": "/lake/orders", "table_format": "delta", "storage_conn_id": "s", "kafka_conn_id": "k"},
        ),
        ({"decoding": {"format": ValueFormat.CSV, "csv_delimiter": ";"}, "columns": "a int"}, {"schema": "a int"}),
        ({"decoding": {"format": "avro", "writer_schemas": [RECORD, '"string"']}}, {}),
        ({"decoding": {"unknown_fields": "fail"}, "connections": {"iceberg_conn_id": "i"}}, {"iceberg_conn_id": "i"}),
        (
            {"decoding": {"sql": "SELECT a AS \"b\", '$x ${y}' AS c\nFROM {{ input }}", "sql_input": "decoded"}}
            | {"columns": "a string"},
            {"schema": "a string"},
        ),
    ],
)
@pytest.mark.parametrize("engine", [DagEngine.EXTRACT, DagEngine.GROUP, DagEngine.SPARK])
def test_it_says_what_the_dag_file_says(engine: DagEngine, told: dict[str, Any], landing: dict[str, Any]) -> None:
    file = dag_file(engine=engine, **told)
    found = read(file)
    [landed] = found.landings
    assert landed.arguments == {**LANDING, **file.decoding, **landing}
    assert (found.name, found.engine, landed.mode) == (file.dag_id, str(engine), "append")


def test_a_long_schema_has_a_line_for_each_column() -> None:
    text = pipeline_text(dag_file(columns=COLUMNS))
    lines = ["id bigint not null,", '"odd "" name" string,', "place struct<x: double, y: double> comment"]
    at = text.index("schema: |-\n")
    assert [one.strip()[: len(line)] for one, line in zip(text[at:].splitlines()[1:], lines, strict=False)] == lines


def test_a_mirror_is_a_mode_of_its_table() -> None:
    found = read(dag_file(engine=DagEngine.MIRROR, key=["id", "it's"]))
    [landed] = found.landings
    assert (found.engine, landed.mode) == ("extract", "mirror")
    assert landed.arguments == {**LANDING, "key": ["id", "it's"]}


@pytest.mark.parametrize("schedule", ["@continuous", "@hourly", "5 4 * * *", None])
@pytest.mark.parametrize("engine", list(DagEngine))
def test_its_dag_has_the_schedule_that_the_dag_file_has(engine: DagEngine, schedule: str | None) -> None:
    file = dag_file(engine=engine, schedule=schedule, key=["id"] if engine is DagEngine.MIRROR else [])
    cron = f'"{read(file).cron}"'
    intervals = f'CronDataIntervalTimetable({cron}, timezone="UTC")'
    assert f"schedule={cron if 'continuous' in cron else intervals}," in file.text


VALUES = st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner))


@given(VALUES)
def test_any_text_is_read_back_as_it_is(value: Any) -> None:
    assert read_document("a.yaml", dumped({"a": value}), str).content == {"a": value}


def test_what_is_wrong_with_a_schema_is_told_with_its_line() -> None:
    file = dag_file(decoding={"format": "avro", "writer_schemas": ['{"fields": []}']})
    with pytest.raises(PipelineError, match=r"yaml:\d+:\d+: sources.orders.writer_schemas: Not an Avro schema"):
        pipeline_text(file)
