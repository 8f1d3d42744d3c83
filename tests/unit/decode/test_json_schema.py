"""Schemas of documents as generators write them: which columns they make, and that what they allow lands as it is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from airflow_lakestream.decode.json.schema import arrow_schema
from airflow_lakestream.decode.values.outcome import SchemaRefused
from tests.support.given_records import FORMATS, GivenLake
from tests.unit.decode.json_schemas import FIELDS, JAVA, ORDERS, REFUSED, document, schemas
from tests.unit.decode.support import batch, decoded, one_by_one
from tests.unit.decode.test_formats_page import assert_column
from tests.unit.values.payloads import framed


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_as_generators_write_it(name: str) -> None:
    schema, column, written, landed = FIELDS[name]
    columns = arrow_schema(document(schema))
    assert_column(columns, column)
    values = batch([json.dumps({"v": written}).encode()])
    assert decoded(one_by_one(columns), values).to_pylist() == [{"v": landed}]


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_refused_is_refused_with_its_path_and_what_to_do(name: str) -> None:
    schema, said = REFUSED[name]
    with pytest.raises(SchemaRefused, match=re.escape(said)) as refused:
        arrow_schema(document(schema))
    assert "give the columns as schema" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("true", "anything is allowed here"),
        ('{"type": "object"}', "no object with properties"),
        ('{"type": "string"}', "no object with properties"),
        ('{"oneOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "string"}]}', "one of sev"),
        ('{"properties": 1, "required": true, "allOf": {}, "enum": 5, "type": "object"}', "no object with properties"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deep"),
    ],
    ids=range(7),
)
def test_a_whole_schema_that_no_table_can_be_made_for(text: str, said: str) -> None:
    with pytest.raises(SchemaRefused, match=re.escape(said)):
        arrow_schema(text)


def test_a_column_is_required_where_each_alternative_requires_it() -> None:
    a, b = {"type": "integer"}, {"type": "string"}
    first = {"type": "object", "properties": {"a": a, "b": b}, "required": ["a", "b"]}
    second = {"type": "object", "properties": {"a": {"const": 1}, "c": b}, "required": ["a", "c"]}
    columns = arrow_schema(json.dumps({"oneOf": [first, second]}))
    assert [(one.name, one.nullable) for one in columns] == [("a", False), ("b", True), ("c", True)]


def test_references_of_a_reference_are_its_own() -> None:
    other = {"$ref": "#/definitions/X", "definitions": {"X": {"type": "string"}}}
    root = {"properties": {"v": {"$ref": "o.json"}, "w": {"$ref": "o.json#/definitions/X"}}, "definitions": {"X": {}}}
    columns = arrow_schema(json.dumps(root), [("o.json", json.dumps(other))])
    assert columns == pa.schema([("v", pa.string()), ("w", pa.string())])


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"]
)
def test_what_stands_beside_a_reference_counts_since_2019(draft: str) -> None:
    beside = {"$ref": "#/$defs/P", "properties": {"y": {"type": "string"}}}
    text = json.dumps({**json.loads(document(beside)), "$schema": draft})
    assert_column(arrow_schema(text), "struct<x: bigint>" if "07" in draft else "struct<y: string, x: bigint>")


@given(schemas())
def test_what_a_schema_allows_lands_as_it_is(drawn: tuple[str, list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    text, documents, rows = drawn
    values = batch([json.dumps(one).encode() for one in documents])
    assert decoded(one_by_one(arrow_schema(text)), values).to_pylist() == rows


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table_of_the_java_serializers_schema(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format, {1: ("JSON", json.dumps(JAVA))})
    report = lake.land([framed(json.dumps(one).encode()) for one, _ in ORDERS], format="json_schema")
    assert (report.counts.written, report.counts.rejected) == (2, 0)
    names = list(JAVA["properties"])
    assert [{name: row[name] for name in names} for row in lake.rows()] == [row for _, row in ORDERS]
