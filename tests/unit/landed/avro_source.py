"""Records of Avro, written byte by byte: the official package refuses what lies beyond, and reads it all the same."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from datetime import datetime
from random import Random
from typing import Any

import pyarrow as pa

from tests.unit.decode import avro_oracle
from tests.unit.landed import json_texts
from tests.unit.landed.json_sources import FRAME
from tests.unit.landed.landing import Source

# Of the version whose fields have other names.
_RENAMED_FRAME = b"\0\0\0\0\x08"
# Fields whose columns have the names of that version; the other columns have the names of the version before.
_RENAMED_COLUMNS = frozenset({"bo", "d", "tz", "ds", "en", "li", "mp", "ti", "u"})
_EPOCH = datetime(1970, 1, 1)
_MICRO = json_texts.MICRO
_UTC, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


def _logical(base: Any, name: str, **more: Any) -> dict[str, Any]:
    return {**(base if isinstance(base, dict) else {"type": base}), "logicalType": name, **more}


_INNER = {"type": "record", "name": "inner", "fields": [
    {"name": "a", "type": "long"}, {"name": "t", "type": ["null", _logical("long", "timestamp-micros")]},
]}  # fmt: skip
_INNER_TYPE = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("t", _UTC)])
_RENAMED_INNER_TYPE = pa.struct([pa.field("a_2", pa.int64(), nullable=False), pa.field("t_2", _UTC)])
# Names, what is written, and the columns; all but the first may be null.
FIELDS: list[tuple[str, Any, pa.DataType]] = [
    ("id", "long", pa.int64()),
    ("bo", "boolean", pa.bool_()),
    ("i", "int", pa.int32()),
    ("l", "long", pa.int64()),
    ("f", "float", pa.float32()),
    ("d", "double", pa.float64()),
    ("by", "bytes", pa.binary()),
    ("s", "string", pa.string()),
    ("da", _logical("int", "date"), pa.date32()),
    ("ts", _logical("long", "timestamp-micros"), _UTC),
    ("tm", _logical("long", "timestamp-millis"), _UTC),
    ("tz", _logical("long", "timestamp-nanos"), _UTC),
    ("tn", _logical("long", "local-timestamp-micros"), _LOCAL),
    ("de", _logical("bytes", "decimal", precision=38, scale=10), pa.decimal128(38, 10)),
    ("ds", _logical({"type": "fixed", "name": "f9", "size": 9}, "decimal", precision=5, scale=2), pa.decimal128(5, 2)),
    ("en", {"type": "enum", "name": "e", "symbols": ["A", "B"]}, pa.string()),
    ("st", _INNER, _INNER_TYPE),
    ("li", {"type": "array", "items": ["null", {**_INNER, "name": "item"}]},
     pa.list_(pa.field("element", _RENAMED_INNER_TYPE))),
    ("mp", {"type": "map", "values": _logical("bytes", "decimal", precision=20, scale=0)},
     pa.map_(pa.string(), pa.field("value", pa.decimal128(20, 0), nullable=False))),
]  # fmt: skip
OTHERS: list[tuple[str, Any, pa.DataType]] = [
    ("ti", _logical("int", "time-millis"), pa.time64("us")),
    ("tu", _logical("long", "time-micros"), pa.time64("us")),
    ("u", _logical("string", "uuid"), pa.uuid()),
    ("fx", {"type": "fixed", "name": "f3", "size": 3}, pa.binary(3)),
]
LAYOUTS: list[Mapping[str, Any]] = [
    {},
    {"partition_by": ["day(ts)", "bucket(2, s)"]},
    {"partition_by": ["hour(tm)"], "sort_order": ["f desc nulls last"]},
    {"partition_by": ["year(tn)", "truncate(10, l)"]},
    {"partition_by": ["month(da)"], "sort_order": ["de"]},
    {"partition_by": ["truncate(5, by)"]},
    {"partition_by": ["year(st.t)", "truncate(3, i)"]},
]
_UNITS = {"timestamp-millis": 1000, "timestamp-micros": 1, "local-timestamp-micros": 1}
_DAY = 86_400_000_000


def source(table_format: str) -> Source:
    """Return records for a kind of table."""
    fields = FIELDS if table_format == "delta" else [*FIELDS, *OTHERS]
    schema = {"type": "record", "name": "r", "fields": [
        {"name": name, "type": kind if name == "id" else ["null", kind]} for name, kind, _ in fields
    ]}  # fmt: skip
    renamed = _renamed(schema)
    both = zip(schema["fields"], renamed["fields"], strict=True)
    in_table = {**schema, "fields": [new if old["name"] in _RENAMED_COLUMNS else old for old, new in both]}
    columns = pa.schema([
        pa.field(one["name"], kind, nullable=name != "id")
        for one, (name, _, kind) in zip(in_table["fields"], fields, strict=True)
    ])  # fmt: skip

    def payload(rng: Random) -> bytes | None:
        if rng.random() < 0.005:
            return rng.choice([None, b"", b"\0", FRAME, b"\0\0\0\0\x09\0", b"{}"])
        value = b"".join(_union(one["type"], rng) for one in schema["fields"])  # type: ignore[index]
        if rng.random() < 0.01:
            value = rng.choice([value[:-1], value + b"\0", value[: rng.randrange(len(value))]])
        return rng.choice([FRAME, _RENAMED_FRAME]) + value

    def row(value: bytes | None) -> dict[str, Any]:
        if value is None or not value.startswith((FRAME, _RENAMED_FRAME)):
            raise avro_oracle.Bad("frame")
        return avro_oracle.decode(in_table, value[len(FRAME) :], columns)

    registry = {7: ("AVRO", json.dumps(schema)), 8: ("AVRO", json.dumps(renamed))}
    config = {"schema": columns, "format": "avro"}
    return Source("avro", columns, payload, row, (avro_oracle.Bad,), config, registry, LAYOUTS)


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    """Return the next version of a record's schema: its fields have other names, with the old ones as aliases."""
    fields = [
        {"name": f"{one['name']}_2", "aliases": [one["name"]], "type": _renamed_type(one["type"])}
        for one in record["fields"]
    ]
    return {**record, "fields": fields}


def _renamed_type(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_renamed_type(one) for one in kind]
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "record":
        return _renamed(kind)
    return {name: _renamed_type(one) if name in ("items", "values") else one for name, one in kind.items()}


def _union(kind: Any, rng: Random) -> bytes:
    if not isinstance(kind, list):
        return _value(kind, rng)
    if rng.random() < 0.0005:
        return rng.choice([b"\4", b"\1", b"\x80"])
    return b"\0" if rng.random() < 0.15 else b"\2" + _value(kind[1], rng)


def varint(number: int) -> bytes:
    """Return an integer as Avro writes it, whatever its size."""
    number = number * 2 if number >= 0 else -number * 2 - 1
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def _value(kind: Any, rng: Random) -> bytes:
    beyond = rng.random() < json_texts.BEYOND
    if isinstance(kind, str):
        return _plain(kind, rng, beyond)
    if "logicalType" in kind:
        return _of_logical(kind, rng, beyond)
    if kind["type"] == "record":
        return b"".join(_union(one["type"], rng) for one in kind["fields"])
    if kind["type"] == "enum":
        return varint(rng.choice([2, -1, 2**31]) if beyond else rng.choice([0, 1]))
    if kind["type"] == "fixed":
        return rng.choice([bytes(3), b"\xff" * 3, rng.randbytes(3)])
    count = rng.choice([0, 1, 3])
    keys = [_text(f"k{n}".encode()) if kind["type"] == "map" else b"" for n in range(count)]
    items = b"".join(key + _union(kind.get("items", kind.get("values")), rng) for key in keys)
    return (varint(count) + items if count else b"") + b"\0"


def _text(text: bytes) -> bytes:
    return varint(len(text)) + text


def _plain(kind: str, rng: Random, beyond: bool) -> bytes:
    match kind:
        case "boolean":
            return rng.choice([b"\2", b"\xff"]) if beyond else rng.choice([b"\0", b"\1"])
        case "int":
            return varint(json_texts.whole(32, rng, beyond=beyond))
        case "long":
            return varint(json_texts.whole(64, rng, beyond=beyond))
        case "float":
            odd = [float("nan"), float("inf"), float("-inf")]
            return struct.pack("<f", rng.choice(odd if beyond else json_texts.SINGLES))
        case "double":
            odd = [float("nan"), float("inf"), float("-inf")]
            return struct.pack("<d", rng.choice(odd if beyond else [*json_texts.DOUBLES, json_texts.any_double(rng)]))
        case "bytes":
            return _text(rng.choice([b"", b"\0", b"\xff" * 40, rng.randbytes(5)]))
    broken = [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"a\xe2\x82"]
    return _text(rng.choice(broken) if beyond else rng.choice(json_texts.TEXTS).encode())


def _of_logical(kind: dict[str, Any], rng: Random, beyond: bool) -> bytes:
    name = kind["logicalType"]
    if name == "decimal":
        number = json_texts.decimal(kind["precision"], rng, beyond=beyond)
        if kind["type"] == "fixed":
            limit = 2 ** (8 * kind["size"] - 1)
            return max(min(number, limit - 1), -limit).to_bytes(kind["size"], "big", signed=True)
        size = rng.choice([number.bit_length() // 8 + 1, number.bit_length() // 8 + 1, 17, 30])
        return _text(
            b""
            if beyond and rng.random() < 0.2
            else number.to_bytes(max(size, number.bit_length() // 8 + 1), "big", signed=True)
        )
    if name == "uuid":
        good = "00000000-0000-0000-0000-00000000000A"
        return _text(
            rng.choice(["", good[1:], "{" + good[2:] + "}"] if beyond else [good, "f" * 8 + good[8:]]).encode()
        )
    if name == "date":
        days = [one.toordinal() - 719_163 for one in json_texts.DAYS]
        return varint(rng.choice([min(days) - 1, max(days) + 1, 2**31 - 1, -(2**31)] if beyond else days))
    if name.startswith("time-"):
        last = _DAY // (1000 if name == "time-millis" else 1)
        return varint(rng.choice([last, -1, 2**31 - 1, -(2**31)] if beyond else [0, 1, last - 1]))
    micros = (json_texts.instant(rng) - _EPOCH) // _MICRO
    if name == "timestamp-nanos":
        return varint(
            rng.choice(
                [1, -999, 2**63 - 1, -(2**63), 2**63] if beyond else [0, 1000, -1000, 2**63 // 1000 * 1000 - 1000]
            )
        )
    unit = _UNITS[name]
    bounds = [(one - _EPOCH) // _MICRO // unit for one in (datetime.min, datetime.max)]
    far = [bounds[0] - 1, bounds[1] + 1, 2**63 - 1, -(2**63), 2**63 // 1000, 10**17]
    return varint(rng.choice(far) if beyond else max(micros // unit, bounds[0]))
