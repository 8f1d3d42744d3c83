"""How records say which schema they were written with: frames that are none, and several schemas in one batch."""

from __future__ import annotations

import json
import pickle
import struct
import sys
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.avro.schema import fingerprint
from airflow_lakestream.decode.json.schema import unframe
from airflow_lakestream.decode.protobuf.decoder import ProtobufDecoder
from airflow_lakestream.decode.protobuf.schema import MissingExtra, compile_proto
from airflow_lakestream.registry.client import RegistryUnavailable
from tests.support.registry import FakeRegistry
from tests.unit.decode.support import batch

LONG = {"type": "record", "name": "R", "fields": [{"name": "v", "type": "long"}]}
COLUMNS = pa.schema([pa.field("v", pa.int64())])


def of(*schemas: Any) -> FakeRegistry:
    return FakeRegistry({number: ("AVRO", json.dumps(schema)) for number, schema in enumerate(schemas, 1)})


def framed(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + payload


def typed(kind: Any, name: str = "v") -> Any:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]}


class DownRegistry:
    """Never answers."""

    def schema(self, schema_id: int) -> Any:
        raise RegistryUnavailable("down")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "begins neither as"),
        (b"\x01\x00\x00\x00\x01\x02", "begins neither as"),
        (b"\x00\x00\x00", "ends within its first 5 bytes"),
        (framed(1, b""), "v: the value ends early"),
        (framed(1, b"\x02\x02"), "bytes are left over"),
        (framed(1, b"\x80" * 9 + b"\x02"), "more than 64 bits"),
        (framed(9, b"\x02"), "Schema 9 is not in the registry"),
        (b"\xc3\x01" + bytes(8) + b"\x02", "no schema with the fingerprint 0000000000000000 is given"),
    ],
)
def test_what_is_no_record_is_bad_and_its_neighbours_are_rows(value: bytes, reason: str) -> None:
    good = framed(1, b"\x02")
    decoded = AvroDecoder(COLUMNS, registry=of(LONG)).decode(batch([good, value, good]))
    assert decoded.rows.to_pylist() == [{"v": 1}, {"v": 1}]
    assert [row.index for row in decoded.bad] == [1]
    assert reason in decoded.bad[0].reason


def test_schemas_side_by_side_keep_the_order_of_the_records() -> None:
    registry = of(LONG, typed("int"), typed("string"), typed("long", "w"))
    values = [framed(2, b"\x04"), framed(1, b"\x02"), framed(3, b"\x02x"), framed(4, b"\x02"), None, framed(2, b"\x06")]
    decoded = AvroDecoder(COLUMNS, registry=registry).decode(batch(values))
    assert decoded.rows["v"].to_pylist() == [2, 1, None, None, 3]
    assert [(row.index, row.reason, row.schema_id) for row in decoded.bad] == [(2, "v: text can't become int64", 3)]
    strict = AvroDecoder(COLUMNS, "fail", registry).decode(batch(values))
    assert [row.reason for row in strict.bad][1:] == ["w: there is no column for this field"]


def test_a_batch_larger_than_a_chunk_keeps_its_places() -> None:
    values = [framed(1, bytes([2 * (i % 50)])) if i % 1000 else b"no" for i in range(30_000)]
    decoded = AvroDecoder(COLUMNS, registry=of(LONG)).decode(batch(values))
    assert [row.index for row in decoded.bad] == list(range(0, 30_000, 1000))
    assert decoded.rows["v"].to_pylist() == [i % 50 for i in range(30_000) if i % 1000]


def test_single_object_encoding_names_its_schema_by_a_fingerprint() -> None:
    # Avro's own example: the fingerprint of "int".
    assert fingerprint('"int"') == 0x7275D51A3F395C8F
    text = json.dumps({**LONG, "doc": "not part of the fingerprint"})
    value = b"\xc3\x01" + fingerprint(json.dumps(LONG)).to_bytes(8, "little") + b"\x0a"
    decoder = pickle.loads(pickle.dumps(AvroDecoder(COLUMNS, schemas=[text])))
    assert decoder.decode(batch([value])).rows.to_pylist() == [{"v": 5}]


def test_a_registry_that_is_down_is_no_bad_record() -> None:
    with pytest.raises(RegistryUnavailable):
        AvroDecoder(COLUMNS, registry=DownRegistry()).decode(batch([framed(1, b"\x02")]))


@pytest.mark.parametrize(
    "kind", ["string", "long", "double", {"type": "record", "name": "I", "fields": LONG["fields"]}]
)
def test_long_lists_in_few_records_are_walked_and_equal(kind: Any) -> None:
    one = {"string": b"\x02x", "long": b"\x84\x02", "double": struct.pack("<d", 0.5)}
    item, value = (
        (one[kind], {"string": "x", "long": 130, "double": 0.5}[kind])
        if isinstance(kind, str)
        else (
            b"\x06",
            {"v": 3},
        )
    )
    schema = typed({"type": "array", "items": kind})
    count = 5000
    lists = framed(1, b"\x90\x4e" + item * count + b"\x00")
    short = framed(1, b"\x02" + item + b"\x00")
    decoder = AvroDecoder(avro_schema.arrow_schema(json.dumps(schema)), registry=of(schema))
    decoded = decoder.decode(batch([short, lists, short, lists[:-20]]))
    assert decoded.rows["v"].to_pylist() == [[value], [value] * count, [value]]
    assert [row.index for row in decoded.bad] == [3]


def test_a_bomb_of_items_that_take_no_bytes_is_bad() -> None:
    schema = typed({"type": "array", "items": {"type": "fixed", "name": "f", "size": 0}})
    decoder = AvroDecoder(pa.schema([pa.field("v", pa.list_(pa.binary()))]), registry=of(schema))
    decoded = decoder.decode(batch([framed(1, b"\xfe\xff\xff\xff\xff\xff\x01\x00")]))
    assert [row.reason for row in decoded.bad] == ["v: more items than the value has bytes"]


def test_a_record_that_holds_itself_can_be_left_out_of_the_table() -> None:
    tree = {"type": "record", "name": "T", "fields": [{"name": "n", "type": ["null", "T"]}]}
    schema = {"type": "record", "name": "R", "fields": [{"name": "t", "type": tree}, {"name": "v", "type": "long"}]}
    with pytest.raises(avro_schema.SchemaRefused, match=r"t\.n: the record T holds itself"):
        avro_schema.arrow_schema(json.dumps(schema))
    values = [framed(1, b"\x02" * depth + b"\x00\x06") for depth in (0, 5, 5000)]
    decoded = AvroDecoder(COLUMNS, registry=of(schema)).decode(batch(values))
    assert decoded.rows["v"].to_pylist() == [3, 3]
    assert "nested deeper than" in decoded.bad[0].reason


def test_messages_with_all_kinds_of_unknown_fields_take_no_longer_than_their_bytes() -> None:
    text = 'syntax = "proto3"; message M { int64 v = 1; repeated string s = 2; }'
    values = [
        framed(1, b"\0\x08\x05" + bytes([0x80 | (i * 8) & 0x7F, 0x80 | (i >> 4) & 0x7F, 0x01 + (i >> 11)]) + b"\x01")
        for i in range(3000)
    ]
    long = framed(1, b"\0" + b"\x12\x01x" * 5000)
    decoder = ProtobufDecoder(COLUMNS, registry=FakeRegistry({1: ("PROTOBUF", text)}))
    decoded = decoder.decode(batch([*values, long]))
    assert decoded.rows["v"].to_pylist() == [5] * 3000 + [0]
    assert not decoded.bad


def test_json_loses_its_frame_and_a_null_has_none() -> None:
    values: list[bytes | None] = [framed(7, b"{}"), None, b"{}", b"\0\0\0\0", b"", framed(2**32 - 1, b"")]
    found = unframe(batch(values).values)
    assert found.values.to_pylist() == [b"{}", None, b""]
    assert [found.schema_id(row) for row in range(3)] == [7, None, 2**32 - 1]
    assert (found.places.tolist(), found.unframed) == ([0, 1, 5], [2, 3, 4])
    # What stands before a slice is none of its bytes.
    assert unframe(batch(values).values[4:]).values.to_pylist() == [b""]


def test_a_value_may_be_null_as_a_whole() -> None:
    schema = ["null", {"type": "record", "name": "R", "fields": [{"name": "v", "type": "long"}]}]
    columns = avro_schema.arrow_schema(json.dumps(schema))
    assert columns == pa.schema([pa.field("v", pa.int64())])
    values = batch([framed(1, b"\x02\x06"), framed(1, b"\x00"), None, framed(1, b"\x04"), framed(1, b"\x00\x00")])
    decoded = AvroDecoder(columns, registry=of(schema)).decode(values)
    assert decoded.rows.to_pylist() == [{"v": 3}, {"v": None}, {"v": None}]
    assert [(row.index, row.reason) for row in decoded.bad] == [
        (3, "the value: a type that the union does not have"),
        (4, "bytes are left over behind the value"),
    ]
    required = pa.schema([pa.field("v", pa.int64(), nullable=False)])
    decoded = AvroDecoder(required, registry=of(schema)).decode(batch([framed(1, b"\x00"), framed(1, b"\x02\x06")]))
    assert (decoded.rows.to_pylist(), [row.reason for row in decoded.bad]) == (
        [{"v": 3}],
        ["v: the value is null, and the column is required"],
    )


def test_a_field_that_has_a_default_may_be_missing_in_older_records() -> None:
    old = typed("long")
    new = {**old, "fields": [*old["fields"], {"name": "w", "type": "int", "default": 0}]}
    columns = avro_schema.arrow_schema(json.dumps(new))
    decoded = AvroDecoder(columns, registry=of(old, new)).decode(batch([framed(1, b"\x02"), framed(2, b"\x02\x04")]))
    assert decoded.rows.to_pylist() == [{"v": 1, "w": None}, {"v": 1, "w": 2}]


def test_a_missing_extra_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[protobuf\]'"):
        compile_proto('syntax = "proto3"; message NotCompiledYet { int64 v = 1; }')
