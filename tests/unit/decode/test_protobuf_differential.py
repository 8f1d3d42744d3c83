"""Any value, any damage, any order of fields: each is the row that the official package reads, or bad in both."""

from __future__ import annotations

import struct
import threading
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import json_format, message_factory
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.decode.protobuf import decoder
from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from airflow_lakestream.decode.protobuf.decoder import ProtobufDecoder
from tests.support.registry import FakeRegistry
from tests.unit.decode import protobuf_oracle
from tests.unit.decode.binary_support import batch, damaged, normal
from tests.unit.decode.protobuf_oracle import Bad

RECORDS = 24

PROTO3 = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/any.proto";
enum Kind { NONE = 0; CLICK = 1; BUY = -5; }
message Scalars {
  double a = 1; float b = 2; int32 c = 3; int64 d = 4; uint32 e = 5; uint64 f = 6; sint32 g = 7; sint64 h = 8;
  fixed32 i = 9; fixed64 j = 10; sfixed32 k = 11; sfixed64 l = 12; bool m = 13; string n = 14; bytes o = 15;
  Kind p = 16; optional int32 q = 17; optional string r = 2000;
}
message Lists {
  repeated int32 a = 1; repeated sint64 b = 2; repeated fixed32 c = 3; repeated double d = 4; repeated string e = 5;
  repeated Kind f = 6; repeated Inner g = 7; repeated bool h = 8; repeated int32 i = 9 [packed = false];
  repeated google.protobuf.Timestamp j = 10;
}
message Inner { int32 a = 1; string b = 2; Innermost c = 3; }
message Innermost { repeated uint64 a = 1; optional bool b = 2; }
message Maps {
  map<string, int32> a = 1; map<int64, string> b = 2; map<string, Inner> c = 3; map<bool, Kind> d = 4;
  map<sint32, double> e = 5;
}
message Choice {
  oneof one { string a = 1; int64 b = 2; Inner c = 3; Kind d = 4; }
  string between = 5;
  oneof other { bool e = 6; bytes f = 7; }
}
message Known {
  google.protobuf.Timestamp a = 1; google.protobuf.Duration b = 2; google.protobuf.Int64Value c = 3;
  google.protobuf.StringValue d = 4; google.protobuf.BoolValue e = 5; google.protobuf.DoubleValue f = 6;
  google.protobuf.Struct g = 7; google.protobuf.Value h = 8; google.protobuf.ListValue i = 9;
  google.protobuf.Any j = 10; google.protobuf.BytesValue k = 11; google.protobuf.UInt64Value l = 12;
}
"""
PROTO2 = """
syntax = "proto2";
package shop;
enum Closed { ZERO = 0; ONE = 1; TWO = 2; }
message Old {
  required int32 a = 1; optional string b = 2 [default = "x"]; optional Closed c = 3; repeated Closed d = 4;
  repeated int32 e = 5 [packed = true]; optional Part f = 6; map<string, Closed> g = 7; repeated int64 h = 8;
}
message Part { required string a = 1; optional double b = 2; }
"""
MESSAGES = [(PROTO3, index) for index in range(7)] + [(PROTO2, 0)]


@cache
def columns(text: str, index: int) -> Any:
    return protobuf_schema.arrow_schema(text, (), (index,))


def descriptor(text: str, index: int) -> Any:
    return protobuf_schema.compile_proto(text).descriptor((index,))


def integer(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.integers(0, 100)


SCALARS = {
    1: st.floats(),
    2: st.floats(width=32),
    3: integer(64),
    4: integer(64, signed=False),
    5: integer(32),
    6: integer(64, signed=False),
    7: integer(32, signed=False),
    8: st.booleans(),
    9: st.text(max_size=10),
    12: st.binary(max_size=10),
    13: integer(32, signed=False),
    15: integer(32),
    16: integer(64),
    17: integer(32),
    18: integer(64),
}


@st.composite
def messages(draw: st.DrawFn, kind: Any, depth: int = 3) -> Any:
    message = message_factory.GetMessageClass(kind)()
    for field in kind.fields:
        if not (field.is_required or draw(st.booleans())) or (depth == 0 and field.message_type is not None):
            continue
        if protobuf_schema.is_map(field):
            entry = field.message_type.fields_by_name
            for _ in range(draw(st.integers(0, 3))):
                key = draw(single(entry["key"], depth))
                if entry["value"].message_type is not None:
                    getattr(message, field.name)[key].CopyFrom(draw(single(entry["value"], depth)))
                else:
                    getattr(message, field.name)[key] = draw(single(entry["value"], depth))
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(single(field, depth), max_size=3)))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(draw(single(field, depth)))
        else:
            setattr(message, field.name, draw(single(field, depth)))
    return message


def single(field: Any, depth: int) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        known = st.sampled_from([value.number for value in field.enum_type.values])
        return known if field.enum_type.is_closed else known | st.integers(-9, 9)
    if field.message_type is not None and field.message_type.full_name == protobuf_schema.TIMESTAMP:
        return instants(field.message_type) | messages(field.message_type, depth - 1)
    if field.message_type is not None:
        return messages(field.message_type, depth - 1)
    return SCALARS[field.type]


def instants(kind: Any) -> st.SearchStrategy[Any]:
    make = message_factory.GetMessageClass(kind)
    seconds = st.integers(-70_000_000_000, 260_000_000_000)
    return st.builds(lambda s, micros: make(seconds=s, nanos=micros * 1000), seconds, st.integers(0, 999_999))


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, int, list[bytes]]:
    text, index = draw(st.sampled_from(MESSAGES))
    written = messages(descriptor(text, index)).map(lambda message: message.SerializePartialToString())
    # Messages one behind the other are one that has all fields of both: in any order, and twice.
    payloads = draw(st.lists(st.lists(written, min_size=1, max_size=2).map(b"".join), min_size=1, max_size=RECORDS))
    return text, index, [draw(damaged(payload)) if draw(st.booleans()) else payload for payload in payloads]


def framed(payload: bytes, index: int) -> bytes:
    which = b"\0" if index == 0 else bytes([2, 2 * index])
    return struct.pack(">bI", 0, 7) + which + payload


def check(text: str, index: int, payloads: list[bytes]) -> None:
    schema = columns(text, index)
    decoder = ProtobufDecoder(schema, registry=FakeRegistry({7: ("PROTOBUF", text)}))
    decoded = decoder.decode(batch([framed(payload, index) for payload in payloads]))
    assert decoded.rows.schema == schema
    decoded.rows.validate(full=True)
    rows = iter(decoded.rows.to_pylist(maps_as_pydicts="strict"))
    bad = {row.index: row.reason for row in decoded.bad}
    for place, payload in enumerate(payloads):
        try:
            expected = normal(protobuf_oracle.decode(descriptor(text, index), payload, schema))
        except Bad:
            assert bad.get(place), f"a row: {payload!r}"
            continue
        assert place not in bad, f"{bad[place]}, but {expected}"
        assert normal(next(rows)) == expected


@given(cases())
def test_every_message_is_what_the_official_package_reads_or_bad(case: tuple[str, int, list[bytes]]) -> None:
    check(*case)


GROUPS = """
syntax = "proto2";
message M {
  optional int32 a = 1;
  optional group G = 2 { optional int32 x = 1; required string y = 2; }
  repeated group R = 3 { optional int32 z = 1; optional group D = 4 { optional int64 deep = 1; } }
  optional string b = 4;
  optional Inner inner = 5;
  map<string, Inner> by_name = 6;
}
message Inner { optional group H = 1 { optional int32 v = 1; } optional int32 w = 2; }
"""
STRICT = """
syntax = "proto2";
message M { required group G = 1 { optional int32 x = 1; } optional int32 a = 2; }
"""
DELIMITED = """
edition = "2023";
message M { N g = 2 [features.message_encoding = DELIMITED]; int32 a = 1; string b = 4; }
message N { int32 x = 1; }
"""
FRAME = struct.pack(">bIB", 0, 7, 0)


def read(text: str, payloads: list[bytes], columns: pa.Schema) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    found = ProtobufDecoder(columns, "ignore", FakeRegistry({7: ("PROTOBUF", text)})).decode(
        batch([FRAME + payload for payload in payloads])
    )
    return found.rows.to_pylist(), [(row.index, row.reason) for row in found.bad]


def test_groups_without_a_column_are_left_out_wherever_they_are() -> None:
    message = message_factory.GetMessageClass(descriptor(GROUPS, 0))()
    message.a, message.b, message.g.x, message.g.y = 1, "b", 2, "y"
    message.r.add().z = 3
    message.r.add().d.deep = 2**60
    message.inner.h.v, message.inner.w = 4, 5
    message.by_name["k"].h.v, message.by_name["k"].w = 6, 7
    plain = message_factory.GetMessageClass(descriptor(GROUPS, 0))(a=9, b="plain")
    inner = pa.struct([("w", pa.int32())])
    columns = pa.schema(
        [("a", pa.int32()), ("b", pa.string()), ("inner", inner), ("by_name", pa.map_(pa.string(), inner))]
    )
    # One more that the schema does not know, as an older reader sees it; the last two have no end, and the wrong one.
    unknown = b"\x08\x05" + b"\x53\x08\x01\x5b\x5c\x54" + b"\x22\x01b"
    payloads = [message.SerializeToString(), plain.SerializeToString(), unknown, b"\x53\x08\x01", b"\x53\x5c"]

    rows, bad = read(GROUPS, payloads, columns)

    assert rows == [
        {"a": 1, "b": "b", "inner": {"w": 5}, "by_name": [("k", {"w": 7})]},
        {"a": 9, "b": "plain", "inner": None, "by_name": []},
        {"a": 5, "b": "b", "inner": None, "by_name": []},
    ]
    assert [index for index, _ in bad] == [3, 4]


def test_a_required_group_is_left_out_and_missed() -> None:
    message = message_factory.GetMessageClass(descriptor(STRICT, 0))()
    message.g.x, message.a = 1, 2

    rows, bad = read(STRICT, [message.SerializeToString(), b"\x10\x02"], pa.schema([("a", pa.int32())]))

    assert rows == [{"a": 2}]
    assert [index for index, _ in bad] == [1]


def test_of_aliases_the_first_declared_is_the_text_as_in_the_official_package() -> None:
    text = """
syntax = "proto3";
enum Level { option allow_alias = true; MIN = 0; NONE = 0; AAA = 0; BEST = 5; HIGH = 5; LOW = -3; }
message M { Level level = 1; }
"""
    message = message_factory.GetMessageClass(descriptor(text, 0))
    payloads = [message(level=number).SerializeToString() for number in (0, 5, -3)]
    rows, bad = read(text, payloads, pa.schema([("level", pa.string())]))
    official = [
        json_format.MessageToDict(message.FromString(one), always_print_fields_with_no_presence=True)
        for one in payloads
    ]
    assert (rows, bad) == (official, [])
    assert [row["level"] for row in rows] == ["MIN", "BEST", "LOW"]


def test_threads_that_share_a_decoder_read_and_reject_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    message = message_factory.GetMessageClass(descriptor(STRICT, 0))()
    message.g.x, message.a = 1, 2
    shared = ProtobufDecoder(pa.schema([("a", pa.int32())]), "ignore", FakeRegistry({7: ("PROTOBUF", STRICT)}))
    whole, lacking = batch([FRAME + message.SerializeToString()]), batch([FRAME + b"\x10\x02"])
    original, calls, found = decoder.ProtobufMessageReader.read, [], []

    def read_while_another_reads(reader: Any, lanes: Any, depth: int = 0) -> list[pa.Array]:
        calls.append(depth)
        # Within the second reading of a message with a group, another thread reads one without.
        if len(calls) == 2:
            other = threading.Thread(target=lambda: found.append(shared.decode(lacking)))
            other.start()
            other.join()
        return original(reader, lanes, depth)

    monkeypatch.setattr(decoder.ProtobufMessageReader, "read", read_while_another_reads)
    assert shared.decode(whole).rows.to_pylist() == [{"a": 2}]
    assert [(one.rows.num_rows, len(one.bad)) for one in found] == [(0, 1)]


@pytest.mark.parametrize("text", [GROUPS, DELIMITED], ids=["proto2", "edition 2023"])
def test_a_group_that_has_a_column_rejects_the_record_by_name(text: str) -> None:
    message = message_factory.GetMessageClass(descriptor(text, 0))(a=1, b="b")
    message.g.x = 2
    if text is GROUPS:
        message.g.y = "y"
    payloads = [message.SerializeToString(), b"\x08\x01"]

    rows, bad = read(text, payloads, pa.schema([("a", pa.int32()), ("g", pa.struct([("x", pa.int32())]))]))
    assert rows == []
    assert bad == [(0, "g: a group can't become a column"), (1, "g: a group can't become a column")]
    assert read(text, payloads, pa.schema([("a", pa.int32())])) == ([{"a": 1}, {"a": 1}], [])
