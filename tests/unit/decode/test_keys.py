"""Decoded keys: the column that each format makes of them, keys that are none, and who is bad in a record."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.keys import KEY_COLUMN
from tests.support.registry import FakeRegistry
from tests.unit.decode.support import batch


def keyed(keys: list[bytes | None], values: list[bytes | None] | None = None) -> Any:
    return replace(batch(values or [b'{"v":%d}' % n for n in range(len(keys))]), keys=pa.array(keys, pa.binary()))


def decoded(payload: PayloadFormats, given: Any, schema: pa.Schema | None = None) -> tuple[list[Any], dict[int, str]]:
    """Return the keys that landed, by their values, and the reasons of the bad ones."""
    out = payload.decoder(schema or payload.columns(given)).decode(given)
    out.rows.validate(full=True)
    assert len(out.rows) + len(out.bad) == len(given)
    return [(row["v"], row[KEY_COLUMN]) for row in out.rows.to_pylist()], {row.index: row.reason for row in out.bad}


@pytest.mark.parametrize(
    ("key_format", "keys", "landed", "bad"),
    [
        ("string", [b"a", None, b"\xff", b""], [(0, "a"), (1, None), (3, "")], {2: "the key: _key: invalid UTF-8"}),
        ("raw", [b"a", None, b"\xff"], [(0, b"a"), (1, None), (2, b"\xff")], {}),
        ("json", [b"1", None, b"2"], [(0, 1), (1, None), (2, 2)], {}),
        ("json", [b'"x"', b"null"], [(0, "x"), (1, None)], {}),
        (
            "json",
            [b'{"id":1}', None, b"{", b'{"id":2}', b'{"id":3} {"id":4}'],
            [(0, {"id": 1}), (1, None), (3, {"id": 2})],
            {2: "the key: not valid JSON: truncated", 4: "the key: more than one document"},
        ),
    ],
)
def test_a_key_is_one_column(key_format: str, keys: list[bytes | None], landed: list[Any], bad: dict[int, str]) -> None:
    found, reasons = decoded(PayloadFormats(key_format=key_format), keyed(keys))
    assert found == landed
    assert reasons.keys() == bad.keys()
    assert all(reasons[index].startswith(words) for index, words in bad.items())


def test_a_record_is_bad_where_its_key_or_its_value_is() -> None:
    schema = pa.schema([("v", pa.int64()), ("_key", pa.int32())])
    values = [b'{"v":0}', b"{", b'{"v":2}', b"{", b'{"v":4}']
    given = keyed([b"0", b"1", b"x", b"x", b"4"], values)
    found, reasons = decoded(PayloadFormats(key_format="json"), given, schema)
    assert found == [(0, 0), (4, 4)]
    # Of two reasons the value's is told.
    assert [index for index, reason in reasons.items() if reason.startswith("the key: ")] == [2]
    assert sorted(reasons) == [1, 2, 3]


@pytest.mark.parametrize("kind", [pa.string(), pa.int64(), pa.struct([pa.field("id", pa.int64())])])
def test_a_key_that_has_to_be_there(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("_key", kind, nullable=False), ("v", pa.int64())])
    payload = PayloadFormats(key_format="string" if kind == pa.string() else "json")
    good = b'{"id":1}' if pa.types.is_struct(kind) else b"1"
    out = payload.decoder(schema).decode(keyed([None, good, None]))
    assert out.rows.schema == schema
    assert [row["v"] for row in out.rows.to_pylist()] == [1]
    assert [(row.index, "_key" in row.reason and "required" in row.reason) for row in out.bad] == [(0, True), (2, True)]


@pytest.mark.parametrize(
    ("kind", "column", "key", "landed"),
    [
        ("long", pa.int64(), b"\x0e", 7),
        ("string", pa.string(), b"\x02x", "x"),
        (["null", "long"], pa.int64(), b"\x00", None),
        ({"type": "string", "logicalType": "uuid"}, pa.uuid(), b"\x02x", "bad"),
        ({"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]}, None, b"\x0e", {"id": 7}),
    ],
)
def test_avro_keys_need_not_be_records(kind: Any, column: pa.DataType | None, key: bytes, landed: Any) -> None:
    column = column or pa.struct([pa.field("id", pa.int64(), nullable=False)])
    registry = FakeRegistry({7: ("AVRO", json.dumps(kind))})
    decoder = AvroDecoder(pa.schema([pa.field("_key", column)]), registry=registry, is_whole=True)
    header = struct.pack(">bI", 0, 7)
    out = decoder.decode(batch([header + key, None, header + key + b"!"]))
    bad = [row.index for row in out.bad]
    if landed == "bad":
        assert (out.rows.to_pylist(), bad) == ([{"_key": None}], [0, 2])
    else:
        assert (out.rows.to_pylist(), bad) == ([{"_key": landed}, {"_key": None}], [2])
