"""Which Avro gets into which columns by Flink, how it is told to read it, and what is refused before a job begins."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.flink import statements
from airflow_lakestream.flink.formats.avro import AvroEncodings, WayRefused, avro_reading, ways_of
from airflow_lakestream.flink.formats.proof import SchemaMoved, _CheckedRegistry
from airflow_lakestream.flink.formats.reading import FormatReading
from airflow_lakestream.registry.client import RegisteredSchema
from airflow_lakestream.registry.config import RegistryConfig
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.tables.schema.types import arrow_schema
from tests.support.registry import FakeRegistry

REGISTRY = RegistryConfig("http://r:8081/", "me", "p:w'd")
ENUM = {"type": "enum", "name": "ns.Kind", "symbols": ["A", "B"]}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def schema(**fields: Any) -> RegisteredSchema:
    told = {"type": "record", "name": "ns.R", "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}
    return RegisteredSchema(1, "AVRO", json.dumps(told))


def reading(ddl: str, *schemas: RegisteredSchema) -> FormatReading:
    columns = parse_schema(ddl)
    return avro_reading(columns, ways_of(columns, schemas), REGISTRY)


@pytest.mark.parametrize(
    ("column", "written", "flink", "made"),
    [
        ("bigint", "long", "BIGINT", "`r`.`c`"),
        ("bigint", logical("long", "time-micros"), "BIGINT", "`r`.`c`"),
        ("double", ["null", "float"], "DOUBLE", "`r`.`c`"),
        ("string", ENUM, "STRING", "`r`.`c`"),
        ("binary", logical("bytes", "decimal", precision=4), "BYTES", "`r`.`c`"),
        ("decimal(9, 2)", logical("bytes", "decimal", precision=4, scale=2), "DECIMAL(9, 2)", "`r`.`c`"),
        ("date", logical("int", "date"), "DATE", "`r`.`c`"),
        (
            "timestamp",
            logical("long", "timestamp-millis"),
            "BIGINT",
            "CAST(TO_TIMESTAMP_LTZ(`r`.`c`, 3) AS TIMESTAMP_LTZ(6))",
        ),
        ("array<string>", {"type": "array", "items": ENUM}, "ARRAY<STRING>", "`r`.`c`"),
        ("map<string, int>", {"type": "map", "values": "int"}, "MAP<STRING NOT NULL, INT>", "`r`.`c`"),
    ],
)
def test_a_column_is_made_of_what_is_written(column: str, written: Any, flink: str, made: str) -> None:
    found = reading(f"c {column}", schema(c=written))
    assert (found.fields, found.expressions) == ({"c": flink}, {"c": made})


@pytest.mark.parametrize(
    ("column", "written", "why"),
    [
        ("bigint", "string", "c is written as string, which Flink does not convert to long"),
        ("double", "long", "c is written as long, which Flink does not convert to double"),
        ("string", "bytes", "c is written as bytes"),
        ("string", "int", "c is written as int"),
        ("decimal(9, 2)", logical("bytes", "decimal", precision=9, scale=3), r"c is written as bytes \(decimal\)"),
        ("binary", {"type": "fixed", "name": "F", "size": 2}, "c is written as ns.F"),
        ("timestamp", logical("long", "timestamp-nanos"), r"c is written as long \(timestamp-nanos\)"),
        ("timestamp", logical("long", "local-timestamp-millis"), "c is written as long"),
        ("timestamp_ntz", logical("long", "timestamp-millis"), "c is written as long"),
        ("timestamp", "long", "c is written as long, which Flink does not convert to timestamptz"),
        ("bigint", ["null", "long", "string"], "c is a union of several types"),
        ("array<bigint>", "long", "c is written as long, and the column is a list"),
        ("array<bigint>", {"type": "array", "items": "string"}, r"c\[\] is written as string"),
        ("array<timestamp>", {"type": "array", "items": logical("long", "timestamp-millis")}, "timestamps in a list"),
        ("map<int, int>", {"type": "map", "values": "int"}, "c is written as map"),
        ("struct<a: int>", {"type": "record", "name": "N", "fields": []}, "no schema of the topic has any field of c"),
    ],
)
def test_what_flink_would_read_otherwise_is_refused(column: str, written: Any, why: str) -> None:
    with pytest.raises(WayRefused, match=why):
        reading(f"c {column}", schema(c=written))


def test_schemas_that_write_a_field_in_two_ways_are_refused() -> None:
    one, other = (schema(at=logical("long", f"timestamp-{unit}")) for unit in ("millis", "micros"))
    with pytest.raises(WayRefused, match="at is written as timestamp-micros by one schema of the topic"):
        reading("at timestamp", one, other)


def test_what_no_schema_has_is_null_and_all_symbols_of_an_enum_are_known() -> None:
    person = {"type": "record", "name": "P", "fields": [{"name": "kind", "type": ["null", ENUM]}]}
    newer = schema(who=["null", {**person, "fields": [{"name": "kind", "type": {**ENUM, "symbols": ["B", "C"]}}]}])
    found = reading("who struct<kind: string, born: date>, note string", schema(who=person), newer)
    assert found.expressions is not None
    assert found.expressions["note"] == "CAST(NULL AS STRING)"
    assert found.expressions["who"] == (
        "MAP[TRUE, CAST(ROW(`r`.`who`.`kind`, CAST(NULL AS DATE)) AS ROW<`kind` STRING, `born` DATE>)]"
        "[`r`.`who` IS NOT NULL]"
    )
    told = json.loads(found.options["avro-confluent.schema"])
    assert [one["name"] for one in told["fields"]] == ["who"]
    (kind,) = told["fields"][0]["type"][1]["fields"]
    assert kind["type"] == ["null", {"type": "enum", "name": "ns.Kind", "symbols": ["A", "B", "C"]}]


def test_the_login_of_the_registry_has_options_that_flink_does_not_show() -> None:
    found = reading("c bigint", schema(c="long"))
    text = statements.create_source("t", found, {"bootstrap.servers": "b:9092"}, "g", {0: 5})
    assert found.options["avro-confluent.basic-auth.user-info"] == "me:p:w'd"
    assert "'avro-confluent.basic-auth.user-info' = 'me:p:w''d'" in text[0]
    assert text[1] == (
        "CREATE TEMPORARY VIEW source AS SELECT `r`.`c` AS `c`, "
        "_kafka_topic, _kafka_partition, _kafka_offset, _kafka_timestamp FROM records AS r"
    )
    columns = parse_schema("c bigint")
    bearer = avro_reading(columns, ways_of(columns, [schema(c="long")]), RegistryConfig("http://r", token="t0ken"))
    assert bearer.options["avro-confluent.bearer-auth.token"] == "t0ken"


def test_a_record_of_a_schema_that_the_job_reads_otherwise_is_no_proof() -> None:
    columns = parse_schema("c bigint, d int")
    asked = FakeRegistry({1: ("AVRO", schema(c="long").text), 2: ("AVRO", schema(c="long", d="int").text)})
    ways = ways_of(columns, [asked.schema(1)])
    decoder = AvroDecoder(arrow_schema(columns), registry=_CheckedRegistry(columns, asked, ways))

    def batch(value: bytes) -> RawBatch:
        return RawBatch("t", 0, range(7, 8), [0], pa.array([value]))

    good = batch(b"\x00\x00\x00\x00\x01\x02")
    assert decoder.decode(good).whole(good).to_pylist() == [{"c": 1, "d": None}]
    spoilt = batch(b"\x00\x00\x00\x00\x01\x02\x02")
    with pytest.raises(BadRecord, match=r"t\[0\] offset 7: bytes are left over"):
        decoder.decode(spoilt).whole(spoilt)
    with pytest.raises(SchemaMoved, match="schema 2 of the registry: d is written as int, and the job reads none"):
        decoder.decode(batch(b"\x00\x00\x00\x00\x02\x02\x02"))
    assert ways.lacks(AvroEncodings({"c": "long"})) is None
