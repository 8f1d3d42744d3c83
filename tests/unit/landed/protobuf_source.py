"""Messages of Protobuf as the official package writes them, with what it does not write put behind them as bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random
from typing import Any

from google.protobuf import message_factory

from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from tests.unit.decode import protobuf_oracle
from tests.unit.landed import json_texts
from tests.unit.landed.landing import Source

# Of three versions: fields have their numbers in common, not their names. The newest gives the table its columns.
_FRAMES = (b"\0\0\0\0\7\0", b"\0\0\0\0\6\0", b"\0\0\0\0\x08\0")
FRAME = _FRAMES[0]
TEXT = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Kind { NONE = 0; CLICK = 1; BUY = -5; }
message All {
  int64 id = 1; optional bool bo = 2; optional int32 i = 3; optional int64 l = 4; uint32 ui = 5; optional uint64 ul = 6;
  sint32 si = 7; optional sint64 sl = 8; fixed32 fi = 9; fixed64 fl = 10; sfixed32 gi = 11; sfixed64 gl = 12;
  optional float f = 13; optional double d = 14; optional string s = 15; optional bytes by = 16; optional Kind k = 17;
  google.protobuf.Timestamp ts = 18; google.protobuf.Int64Value w = 19; google.protobuf.StringValue ws = 20;
  Inner st = 21; repeated Inner li = 22; repeated sint64 lr = 23; map<string, Inner> mp = 24;
  map<int32, double> md = 25;
  oneof one { string oa = 26; uint64 ob = 27; google.protobuf.Timestamp oc = 28; }
}
message Inner { int64 a = 1; google.protobuf.Timestamp t = 2; optional string n = 3; }
"""
_FIELD = re.compile(r"\b([a-z]+)(?= = \d+;)")
_RENAMED_TEXT = _FIELD.sub(r"\1_2", TEXT)
_KEPT = frozenset({"ts", "s", "l", "ul", "st", "t", "k"})  # in layouts
_NEWEST_TEXT = _FIELD.sub(lambda found: found[1] if found[1] in _KEPT else f"{found[1]}_2", TEXT)
LAYOUTS: list[Mapping[str, Any]] = [
    {},
    {"partition_by": ["day(ts)"], "sort_order": ["s"]},
    {"partition_by": ["bucket(3, s)", "truncate(10, l)"]},
    {"partition_by": ["truncate(1000, ul)"]},
    {"partition_by": ["year(st.t)", "k"]},
]
# Text that is none, a group, an end of one, a field cut short, a tag without a number, a length beyond the end.
_BEHIND = [
    b"\x7a\x01\xff", b"\x7a\x03\xed\xa0\x80", b"\x93\x03\x08\x01\x94\x03", b"\x94\x03", b"\x08", b"\0\0", b"\x7a\x7f",
    b"\x88\x01\x09", b"\xf8\x3f\x01", b"\x92\x01\x02\x10\x01", b"\x08" + b"\xff" * 10 + b"\x01",
]  # fmt: skip


def source(table_format: str) -> Source:
    """Return messages for a kind of table."""
    descriptor = protobuf_schema.compile_proto(_NEWEST_TEXT).descriptor((0,))
    message = message_factory.GetMessageClass(descriptor)
    columns = protobuf_schema.arrow_schema(_NEWEST_TEXT)

    def payload(rng: Random) -> bytes | None:
        if rng.random() < 0.005:
            return rng.choice([None, b"", b"\0", FRAME[:-1], b"{}", FRAME[:-1] + b"\2\x0a"])
        one = message()
        _fill(one, rng)
        written: bytes = one.SerializeToString()
        return rng.choice(_FRAMES) + written + (rng.choice(_BEHIND) if rng.random() < 0.1 else b"")

    def row(value: bytes | None) -> dict[str, Any]:
        if value is None:
            return dict.fromkeys(columns.names)
        if not value.startswith(_FRAMES):
            raise protobuf_oracle.Bad("frame")
        return protobuf_oracle.decode(descriptor, value[len(FRAME) :], columns)

    registry = {6: ("PROTOBUF", _RENAMED_TEXT), 7: ("PROTOBUF", TEXT), 8: ("PROTOBUF", _NEWEST_TEXT)}
    config = {"format": "protobuf"}
    return Source("protobuf", columns, payload, row, (protobuf_oracle.Bad,), config, registry, LAYOUTS)


def _fill(message: Any, rng: Random) -> None:
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.2:
            continue
        beyond = rng.random() < json_texts.BEYOND
        if protobuf_schema.is_map(field):
            _fill_map(getattr(message, field.name), field.message_type.fields_by_name, rng, beyond=beyond)
        elif field.is_repeated and field.message_type is not None:
            for _ in range(rng.choice([0, 1, 3])):
                _fill(getattr(message, field.name).add(), rng)
        elif field.is_repeated:
            getattr(message, field.name).extend(_scalar(field, rng, beyond) for _ in range(rng.choice([0, 1, 3, 20])))
        elif field.message_type is None:
            setattr(message, field.name, _scalar(field, rng, beyond))
        elif field.message_type.full_name == protobuf_schema.TIMESTAMP:
            one = getattr(message, field.name)
            one.seconds, one.nanos = _instant(rng, beyond)
        else:
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name), rng)


def _fill_map(entries: Any, entry: Any, rng: Random, *, beyond: bool) -> None:
    for _ in range(rng.choice([0, 1, 3])):
        key = _scalar(entry["key"], rng, False)
        if entry["value"].message_type is None:
            entries[key] = _scalar(entry["value"], rng, beyond)
        else:
            _fill(entries[key], rng)


def _instant(rng: Random, beyond: bool) -> tuple[int, int]:
    low, high = -62_135_596_800, 253_402_300_799
    if beyond:
        far = [low - 1, high + 1, 2**63 - 1, -(2**63), 9_223_372_036_855]
        return rng.choice([(rng.choice(far), 0), (0, 1), (0, 10**9), (0, -1000), (high, 999_999_999)])
    return rng.choice([low, high, 0, -1, rng.randint(low, high)]), rng.choice([0, 1000, 999_999_000])


def _scalar(field: Any, rng: Random, beyond: bool) -> Any:
    kind = field.type
    if kind in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        if beyond:
            return rng.choice([float("nan"), float("inf"), float("-inf")])
        return rng.choice(json_texts.SINGLES if kind == field.TYPE_FLOAT else json_texts.DOUBLES)
    if kind == field.TYPE_BOOL:
        return rng.random() < 0.5
    if kind == field.TYPE_STRING:
        return rng.choice(json_texts.TEXTS)
    if kind == field.TYPE_BYTES:
        return rng.choice([b"", b"\0", b"\xff" * 20])
    if kind == field.TYPE_ENUM:
        return rng.choice([7, -1, 2**31 - 1]) if beyond else rng.choice([0, 1, -5])
    bits = 64 if kind in (3, 4, 6, 16, 18) else 32
    if kind in (4, 6, 7, 13):
        return rng.choice([0, 1, 2**bits - 1, 2**bits - 2, 2 ** (bits - 1)])
    return json_texts.whole(bits, rng, beyond=False)
