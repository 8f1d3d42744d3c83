"""docs/formats.md, row by row: the column that each type becomes, and the value that lands."""

from __future__ import annotations

import ast
import base64
import io
import json
import re
import struct
from pathlib import Path
from typing import Any

import avro.io
import pyarrow as pa
import pyarrow.types as t
import pytest
from google.protobuf import message_factory, text_format
from pyiceberg.io.pyarrow import schema_to_pyarrow

from airflow_lakestream.decode import raw
from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.csv import CsvDecoder
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.json import schema as json_schema
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from airflow_lakestream.decode.protobuf.decoder import ProtobufDecoder
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult
from airflow_lakestream.tables.schema.columns import to_schema
from tests.support.registry import FakeRegistry
from tests.unit.decode import avro_oracle
from tests.unit.decode.support import batch

PAGE = Path(__file__).parents[3] / "docs" / "formats.md"
FRAME = struct.pack(">bI", 0, 7)


def rows(title: str, *starts: str) -> list[list[str]]:
    section = PAGE.read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith(starts or "| `")]
    assert len(lines) > 10
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def code(cell: str) -> str:
    return cell[1:-1] if cell.startswith("`") else cell


def shape(kind: pa.DataType) -> str:
    """Return a type as text that tells neither nullability nor Arrow's two sizes of offsets."""
    if t.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {shape(field.type)}' for field in kind)}>"
    if t.is_map(kind):
        return f"map<{shape(kind.key_type)}, {shape(kind.item_type)}>"
    if t.is_list(kind) or t.is_large_list(kind):
        return f"list<{shape(kind.value_type)}>"
    return str(kind).removeprefix("large_").replace("tz=+00:00", "tz=UTC")


def assert_column(columns: pa.Schema, cell: str) -> None:
    named = schema_to_pyarrow(to_schema(f"v {code(cell)}"), include_field_ids=False)
    assert shape(columns.field("v").type) == shape(named.field("v").type)


def assert_lands(decoded: DecoderResult, cell: str) -> None:
    if cell.startswith("bad: "):
        assert [row.reason for row in decoded.bad] == [f"v: {cell.removeprefix('bad: ')}"]
        assert decoded.rows.num_rows == 0
    else:
        assert not decoded.bad
        assert str(decoded.rows.to_pylist(maps_as_pydicts="strict")[0]["v"]) == code(cell)


@pytest.mark.parametrize(("kind", "column", "written", "landed"), rows("Avro"))
def test_avro(kind: str, column: str, written: str, landed: str) -> None:
    field = {"name": "v", "type": json.loads(code(kind))}
    schema = {"type": "record", "name": "Top", "fields": [field]}
    text = json.dumps(schema)
    if column.startswith("refused: "):
        with pytest.raises(avro_schema.SchemaRefused, match=re.escape(column.removeprefix("refused: "))):
            avro_schema.arrow_schema(text)
        return
    columns = avro_schema.arrow_schema(text)
    assert_column(columns, column)
    stream = io.BytesIO()
    writer = avro.io.DatumWriter(avro_oracle.official(schema))
    writer.write({"v": ast.literal_eval(code(written))}, avro.io.BinaryEncoder(stream))
    decoder = AvroDecoder(columns, registry=FakeRegistry({7: ("AVRO", text)}))
    assert_lands(decoder.decode(batch([FRAME + stream.getvalue()])), landed)


@pytest.mark.parametrize(
    ("name", "as_json", "as_avro", "column", "written", "landed"),
    rows("Debezium and Kafka Connect", "| `io.", "| `org."),
)
def test_connect(name: str, as_json: str, as_avro: str, column: str, written: str, landed: str) -> None:
    value = ast.literal_eval(code(written))
    is_decimal = name.endswith("Decimal`")
    parameters = {"scale": "2", "connect.decimal.precision": "9"}
    field = {
        "field": "v",
        "type": code(as_json),
        "name": code(name),
        **({"parameters": parameters} if is_decimal else {}),
    }
    told = base64.b64encode(value.to_bytes(4, "big")).decode() if is_decimal else value
    document = {"schema": {"type": "struct", "fields": [field], "optional": False}, "payload": {"v": told}}
    first = batch([json.dumps(document).encode()])
    payload = PayloadFormats(envelope="connect")
    columns = payload.columns(first)
    assert_column(columns, column)
    assert_lands(payload.decoder(columns).decode(first), landed)

    logical = {"logicalType": "decimal", "precision": 9, "scale": 2} if is_decimal else {"connect.name": code(name)}
    schema = {
        "type": "record", "name": "Top", "fields": [{"name": "v", "type": {"type": code(as_avro), **logical}}],
    }  # fmt: skip
    text = json.dumps(schema)
    columns = avro_schema.arrow_schema(text)
    assert_column(columns, column)
    stream = io.BytesIO()
    told = value.to_bytes(4, "big") if is_decimal else value
    avro.io.DatumWriter(avro_oracle.official(schema)).write({"v": told}, avro.io.BinaryEncoder(stream))
    decoder = AvroDecoder(columns, registry=FakeRegistry({7: ("AVRO", text)}))
    assert_lands(decoder.decode(batch([FRAME + stream.getvalue()])), landed)


@pytest.mark.parametrize(("kind", "column", "written", "landed"), rows("Protobuf"))
def test_protobuf(kind: str, column: str, written: str, landed: str) -> None:
    known = ("timestamp", "duration", "wrappers", "struct", "any")
    imports = "".join(f'import "google/protobuf/{name}.proto";' for name in known)
    others = (
        "enum Kind { NONE = 0; ONE = 1; } message Part { int32 a = 1; string b = 2; } message Node { Node next = 1; }"
    )
    text = f'syntax = "proto3"; {imports} message Top {{ {code(kind)} v = 1; }} {others}'
    if column.startswith("refused: "):
        with pytest.raises(protobuf_schema.SchemaRefused, match=re.escape(column.removeprefix("refused: "))):
            protobuf_schema.arrow_schema(text)
        return
    columns = protobuf_schema.arrow_schema(text)
    assert_column(columns, column)
    message = message_factory.GetMessageClass(protobuf_schema.compile_proto(text).descriptor((0,)))()
    text_format.Parse(code(written), message)
    decoder = ProtobufDecoder(columns, registry=FakeRegistry({7: ("PROTOBUF", text)}))
    assert_lands(decoder.decode(batch([FRAME + b"\0" + message.SerializeToString()])), landed)


@pytest.mark.parametrize(("kind", "column"), rows("JSON Schema"))
def test_json_schema(kind: str, column: str) -> None:
    text = json.dumps({"type": "object", "properties": {"v": json.loads(code(kind))}})
    if column.startswith("refused: "):
        with pytest.raises(json_schema.SchemaRefused, match=re.escape(column.removeprefix("refused: "))):
            json_schema.arrow_schema(text)
    else:
        assert_column(json_schema.arrow_schema(text), column[: column.index("`", 1) + 1])


@pytest.mark.parametrize(("column", "written", "landed"), rows("CSV"))
def test_csv(column: str, written: str, landed: str) -> None:
    columns = schema_to_pyarrow(to_schema(f"v {column[1:-1].replace(': ', ' ')}"), include_field_ids=False)
    decoded = CsvDecoder(columns).decode(batch([code(written).encode()]))
    if landed or column != "`string`":
        # What is wrong with a whole record has no column.
        bad = [BadRow(row.index, f"v: {row.reason.removeprefix('v: ')}") for row in decoded.bad]
        assert_lands(DecoderResult(decoded.rows, bad), landed)
    else:
        assert decoded.rows.to_pylist() == [{"v": ""}]


def test_raw_records_are_key_and_value_as_bytes_or_as_text() -> None:
    given: Any = batch([b"a", None, b"\xff"])
    keyed = type(given)(given.topic, 0, given.offsets, given.timestamps, given.values, pa.array([b"k", None, b"l"]))
    as_bytes = raw.RawDecoder(raw.arrow_schema()).decode(keyed)
    expected = [{"key": b"k", "value": b"a"}, {"key": None, "value": None}, {"key": b"l", "value": b"\xff"}]
    assert (as_bytes.rows.to_pylist(), list(as_bytes.bad)) == (expected, [])
    as_text = raw.RawDecoder(raw.arrow_schema(pa.string())).decode(keyed)
    assert as_text.rows.to_pylist() == [{"key": "k", "value": "a"}, {"key": None, "value": None}]
    assert [(row.index, row.reason) for row in as_text.bad] == [(2, "value: invalid UTF-8")]
    required = raw.RawDecoder(pa.schema([pa.field("key", pa.binary(), nullable=False)])).decode(keyed)
    assert required.rows.to_pylist() == [{"key": b"k"}, {"key": b"l"}]
    assert [row.reason for row in required.bad] == ["key: null, and the column is required"]


def numbers() -> list[list[str]]:
    section = PAGE.read_text().split("\n## Numbers in JSON\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and "`double`" not in line]
    assert len(lines) == 8
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(("what", "written", "landed"), numbers())
def test_numbers_in_json(what: str, written: str, landed: str) -> None:
    decoder = JsonDecoder(pa.schema([("v", pa.float64())]))
    for more in ("", ', "only in {}": 1'):
        # By the layout that all documents share, and by Arrow's reader where each is another.
        documents = [f'{{"v":{code(written)}{more.format(number)}}}'.encode() for number in range(50)]
        decoded = decoder.decode(batch(documents))
        if not landed.startswith("bad: "):
            assert [str(row["v"]) for row in decoded.rows.to_pylist()] == [code(landed)] * 50
            continue
        reason = landed.removeprefix("bad: ")
        reason = reason if reason.startswith("can't") else f"is {reason}"
        assert [row.reason for row in decoded.bad] == [f"v: {code(written)} {reason}"] * 50, what
