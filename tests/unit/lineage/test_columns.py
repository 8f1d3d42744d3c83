"""Which fields a statement's columns are made of: what is certain, and nothing else."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from openlineage.client.serde import Serde
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from airflow_lakestream.config.sql import SqlStatement
from airflow_lakestream.core.policies import SqlInput
from airflow_lakestream.lineage.columns import columns_of
from airflow_lakestream.lineage.datasets import outputs_of
from airflow_lakestream.lineage.facts import LineageColumn, LineageFacts, TableOutput, TablePlace, TopicRead

GIVEN = Schema(
    NestedField(1, "Id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "tags", StringType(), required=False),
)


def columns(select: str, input_: SqlInput = SqlInput.DECODED) -> dict[str, tuple[str, ...]]:
    return columns_of(SqlStatement(f"{select} from {{{{ input }}}}", input_, GIVEN, pa.schema([])))


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("select ID, name as called", {"ID": ("Id",), "called": ("name",)}),
        ("select upper(name) || id as both, 7 as seven", {"both": ("name", "Id")}),
        ("select case when id > 3 then name else tags end as x", {"x": ("Id", "name", "tags")}),
        # Of these something is not certain, and the rest still is.
        ("select id, _kafka_offset + id as place", {"id": ("Id",)}),
        ("select id + 1 as tags, tags as same", {"tags": ("Id",)}),
        ("select name.first as first, id", {"id": ("Id",)}),
        ("select list_transform([1], lambda id: id + 1) as l, name", {"name": ("name",)}),
        ("select *", {}),
        ("select id, *", {}),
    ],
)
def test_a_column_is_told_if_all_its_parts_are_fields(select: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert columns(select) == expected


def test_of_with_of_raw_records_and_without_a_statement_nothing_is_told() -> None:
    assert columns_of(None) == {}
    assert columns("select key as id", SqlInput.RAW) == {}
    text = "with a as (select id as name from {{ input }}) select name from a"
    assert columns_of(SqlStatement(text, SqlInput.DECODED, GIVEN, pa.schema([]))) == {}


def test_columns_that_the_table_has_are_told_of_one_topic_and_one_table() -> None:
    place = TablePlace("/lake/t", "iceberg", (LineageColumn("id", "long"),))
    facts = LineageFacts(
        "b:9092", "g", {"t": TopicRead()}, {"lake.t": TableOutput(place=place)}, columns={"id": ("Id",), "no": ("x",)}
    )
    [told] = (json.loads(Serde.to_json(one)) for one in outputs_of(facts))
    [(name, fields)] = told["facets"]["columnLineage"]["fields"].items()
    [part] = fields["inputFields"]
    assert (name, part["namespace"], part["name"], part["field"]) == ("id", "kafka://b:9092", "t", "Id")
    facts.topic("other")
    [other] = outputs_of(facts)
    assert "columnLineage" not in (other.facets or {})
