"""A NULL struct with a required field in it is a row like any other, whatever told that it is NULL, in every table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.given_records import GROUP, GivenLake, Record
from tests.unit.values.payloads import avro_registry, avro_value, framed

LAKES = pytest.mark.parametrize("table_format", ["iceberg", "delta"])
ST = "st struct<a: bigint not null, b: string>"
POINT = {"type": "record", "name": "S", "fields": [{"name": "a", "type": "long"}]}
WRITER = {"type": "record", "name": "R", "fields": [{"name": "st", "type": ["null", POINT]}]}
PROTO = """
syntax = "proto3";
message R { S st = 1; repeated T l = 2; map<string, T> m = 3; }
message S { int64 a = 1; }
message T { S st = 1; }
"""
JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "st": {
            "oneOf": [
                {"type": "null"},
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            ]
        }
    },
}


def connect(payload: Any) -> bytes:
    a = {"type": "int64", "optional": False, "field": "a"}
    st = {"type": "struct", "optional": True, "field": "st", "fields": [a]}
    return json.dumps({"schema": {"type": "struct", "fields": [st]}, "payload": payload}).encode()


# By what told it: the records, the arguments, and the rows to be had of them.
JSON_CASES: dict[str, tuple[list[bytes | None], str, list[Any]]] = {
    "null, absent, a tombstone": (
        [b'{"st":null}', b'{"st":{"a":1,"b":null}}', b"{}", None],
        ST,
        [None, {"a": 1, "b": None}, None, None],
    ),
    "nothing but null": ([b'{"st":null}'], ST, [None]),
    "documents of several layouts": (
        [b'{"x":"\\n","st":null}', b'{"st": {"a":1}, "x": [1]}'],
        ST,
        [None, {"a": 1, "b": None}],
    ),
    "an item of a list": (
        [b'{"st":[null,{"a":1}]}', b'{"st":[]}', b'{"st":[null]}'],
        "st array<struct<a: bigint not null>>",
        [[None, {"a": 1}], [], [None]],
    ),
    "a value of a map": (
        [b'{"st":{"k":null,"z":{"a":1}}}', b'{"st":{}}'],
        "st map<string, struct<a: bigint not null>>",
        [[("k", None), ("z", {"a": 1})], []],
    ),
    "inside another one": (
        [b'{"st":{"u":null}}', b'{"st":null}', b'{"st":{"u":{"a":1}}}'],
        "st struct<u: struct<a: bigint not null>>",
        [{"u": None}, None, {"u": {"a": 1}}],
    ),
    "around a required one": (
        [b'{"st":null}', b'{"st":{"u":{"a":1}}}'],
        "st struct<u: struct<a: bigint not null> not null>",
        [None, {"u": {"a": 1}}],
    ),
    "around required lists and maps": (
        [b'{"st":null}', b'{"st":{"l":[{"a":1}],"m":{"k":2}}}'],
        "st struct<l: array<struct<a: bigint not null> not null> not null, m: map<string, int not null> not null>",
        [None, {"l": [{"a": 1}], "m": [("k", 2)]}],
    ),
    **{
        f"around a required {kind}": ([b'{"st":null}'], f"st struct<a: {kind} not null>", [None])
        for kind in ("boolean", "int", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz")
    },
    "around a required decimal": ([b'{"st":null}'], "st struct<a: decimal(9,2) not null>", [None]),
}


@LAKES
@pytest.mark.parametrize("case", JSON_CASES)
def test_json(tmp_path: Path, table_format: str, case: str) -> None:
    values, schema, expected = JSON_CASES[case]
    lake = GivenLake(tmp_path, table_format)

    report = lake.land(values, schema=schema)

    assert (report.counts.written, report.counts.rejected) == (len(values), 0)
    assert [row["st"] for row in lake.rows()] == expected
    assert [row["st"] for row in sorted(lake.by_duckdb(), key=lambda row: row["_kafka_offset"])] == expected


@pytest.mark.parametrize("kind", ["time", "uuid", "fixed(3)"])
def test_json_of_types_that_only_iceberg_has(tmp_path: Path, kind: str) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"st":null}'], schema=f"st struct<a: {kind} not null>")
    assert [row["st"] for row in lake.rows()] == [None]


@LAKES
def test_a_required_field_that_is_missing_in_a_struct_that_is_there_rejects_the_record(
    tmp_path: Path, table_format: str
) -> None:
    lake = GivenLake(tmp_path, table_format)
    values = [b'{"st":{"b":"x"}}', b'{"st":null}', b'{"st":{"a":null}}']

    lake.land(values, schema=ST, max_rejected=1.0)

    assert [(row["_kafka_offset"], row["st"]) for row in lake.rows()] == [(1, None)]
    assert {at: row["error"].split(":")[0] for at, row in lake.rejected().items()} == {0: "st.a", 2: "st.a"}
    assert {at: row["value"] for at, row in lake.rejected().items()} == {0: values[0], 2: values[2]}


@LAKES
@pytest.mark.parametrize("schema", [None, "st struct<a: bigint not null>"])
def test_avro(tmp_path: Path, table_format: str, schema: str | None) -> None:
    lake = GivenLake(tmp_path, table_format, avro_registry(WRITER))
    lake.land([avro_value(WRITER, {"st": None}), avro_value(WRITER, {"st": {"a": 7}})], format="avro", schema=schema)
    assert [row["st"] for row in lake.rows()] == [None, {"a": 7}]


@LAKES
def test_avro_in_arrays_maps_and_unions_of_several_records(tmp_path: Path, table_format: str) -> None:
    other = {"type": "record", "name": "T", "fields": [{"name": "u", "type": ["null", "S"]}]}
    fields: list[dict[str, Any]] = [
        {"name": "l", "type": {"type": "array", "items": ["null", POINT]}},
        {"name": "m", "type": {"type": "map", "values": ["null", "S"]}},
        {"name": "one", "type": ["null", "S", other]},
    ]
    writer = {"type": "record", "name": "R", "fields": fields}
    values: list[dict[str, Any]] = [
        {"l": [None, {"a": 1}], "m": {"k": None}, "one": None},
        {"l": [], "m": {"k": {"a": 2}}, "one": {"u": None}},
        {"l": [None], "m": {}, "one": {"a": 3}},
    ]
    lake = GivenLake(tmp_path, table_format, avro_registry(writer))

    lake.land([avro_value(writer, value) for value in values], format="avro")

    rows = lake.rows()
    assert [row["l"] for row in rows] == [value["l"] for value in values]
    assert [dict(row["m"]) for row in rows] == [value["m"] for value in values]
    assert [row["one"] for row in rows] == [None, {"S": None, "T": {"u": None}}, {"S": {"a": 3}, "T": None}]


@LAKES
def test_an_avro_key(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format, avro_registry(WRITER))
    keys = [avro_value(WRITER, {"st": None}), avro_value(WRITER, {"st": {"a": 1}}), None]

    lake.land([Record(b"{}", key=key) for key in keys], schema=None, format="raw", key_format="avro")

    assert [row["_key"] for row in lake.rows()] == [{"st": None}, {"st": {"a": 1}}, None]


@LAKES
def test_protobuf(tmp_path: Path, table_format: str) -> None:
    inner, empty = b"\x0a\x02\x08\x05", b""
    payloads = [empty, inner, b"\x12\x00\x12\x04" + inner, b"\x1a\x05\x0a\x01k\x12\x00"]
    lake = GivenLake(tmp_path, table_format, {1: ("PROTOBUF", PROTO)})
    s = "struct<a: bigint not null>"

    lake.land(
        [framed(b"\x00" + payload) for payload in payloads],
        format="protobuf",
        schema=f"st {s}, l array<struct<st: {s}>>, m map<string, struct<st: {s}>>",
    )

    rows = lake.rows()
    assert [row["st"] for row in rows] == [None, {"a": 5}, None, None]
    assert rows[2]["l"] == [{"st": None}, {"st": {"a": 5}}]
    assert rows[3]["m"] == [("k", {"st": None})]


@LAKES
def test_json_schema(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format, {1: ("JSON", json.dumps(JSON_SCHEMA))})
    lake.land([framed(b'{"st":null}'), framed(b'{"st":{"a":1}}')], format="json_schema")
    assert [row["st"] for row in lake.rows()] == [None, {"a": 1}]


@LAKES
def test_connect(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    lake.land([connect({"st": None}), connect({"st": {"a": 1}}), connect({}), connect(None)], envelope="connect")
    assert [row["st"] for row in lake.rows()] == [None, {"a": 1}, None, None]


@LAKES
def test_debezium(tmp_path: Path, table_format: str) -> None:
    created = b'{"before":null,"after":{"id":1,"st":null},"op":"c","source":{"ts_ms":1},"ts_ms":1}'
    deleted = b'{"before":{"id":1,"st":{"a":2}},"after":null,"op":"d","source":{"ts_ms":2},"ts_ms":2}'
    lake = GivenLake(tmp_path, table_format)

    lake.land(
        [created, deleted, None],
        envelope="debezium",
        schema="id bigint, st struct<a: bigint not null>, before struct<id: bigint not null>",
        tombstones="skip",
    )

    assert [(row["id"], row["st"]) for row in lake.rows()] == [(1, None), (1, {"a": 2})]


@LAKES
def test_sql_of_decoded_rows(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    lake.land(
        [b'{"st":null}', b'{"st":{"a":1}}'],
        schema="st struct<a: bigint not null>",
        sql="SELECT st, st.a AS a FROM {{ input }}",
        sql_input="decoded",
    )
    assert [(row["st"], row["a"]) for row in lake.rows()] == [(None, None), ({"a": 1}, 1)]


def test_iceberg_files_say_what_the_schema_says(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"st":null}', b'{"st":{"a":4}}'], schema=ST, partition_by=["_kafka_partition"])

    (path,) = lake.files()
    written = pq.ParquetFile(path)
    st = lake.iceberg().schema().find_field("st")
    a = lake.iceberg().schema().find_field("st.a")
    text = str(written.schema)
    assert f"optional group field_id={st.field_id} st" in text
    assert f"required int64 field_id={a.field_id} a" in text
    statistics = next(
        written.metadata.row_group(0).column(at).statistics
        for at in range(written.metadata.num_columns)
        if written.metadata.row_group(0).column(at).path_in_schema == "st.a"
    )
    # What was put below the NULL struct is nowhere to be seen.
    assert (statistics.min, statistics.max, statistics.null_count) == (4, 4, 1)


@pytest.mark.parametrize("order", [None, ["st.a"], ["st.a desc nulls last"]])
def test_such_a_field_may_partition_and_sort_the_table(tmp_path: Path, order: list[str] | None) -> None:
    lake = GivenLake(tmp_path)
    values = [b'{"st":null}', b'{"st":{"a":4}}', b"{}", b'{"st":{"a":5}}']

    lake.land(values, schema=ST, partition_by=["bucket(4, st.a)"], sort_order=order)

    assert [row["st"] and row["st"]["a"] for row in lake.rows()] == [None, 4, None, 5]


@LAKES
def test_files_with_such_rows_are_read_and_written_anew_by_a_replace(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    values = [b'{"st":null}', b'{"st":{"a":1}}', b"{}", b'{"st":{"a":3}}']
    lake.land(values, schema=ST)

    lake.land(values, schema=ST, mode="ranges", ranges=[[0, 1, 2]], replace=True)

    assert len(lake.files()) == 2
    assert [row["st"] and row["st"]["a"] for row in lake.rows()] == [None, 1, None, 3]


def test_deltalake_reads_it(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, "delta")
    lake.land([b'{"st":null}', b'{"st":{"a":1,"b":"x"}}'], schema=ST)
    read = pa.table(DeltaTable(lake.name).to_pyarrow_table()).sort_by("_kafka_offset")
    assert read["st"].to_pylist() == [None, {"a": 1, "b": "x"}]


def test_a_fan_out_lands_it(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    values = [b'{"kind":"x","st":null}', b'{"kind":"x","st":{"a":1}}']
    config = {"table": "lake.{kind}", "new_tables": "create", "consumer_group": GROUP}
    lake.catalog().create_namespace("lake")

    lake.land(values, schema=f"kind string, {ST}", **config)

    assert [row["st"] and row["st"]["a"] for row in lake.rows("lake.x")] == [None, 1]
