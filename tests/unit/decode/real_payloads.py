"""Real flights and clicks in every format, damaged at random: what each decoder makes of them, and what an oracle does.

An oracle is slow and not ours: `json.loads`, the official packages of Avro and Protobuf.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import avro.io
import pyarrow as pa
from google.protobuf import json_format, message_factory

from airflow_lakestream.decode import raw
from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.csv import CsvDecoder
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.infer import infer_schema
from airflow_lakestream.decode.json.schema import JsonSchemaDecoder
from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from airflow_lakestream.decode.protobuf.decoder import ProtobufDecoder
from dev.sources.clickstream import make_event, render_event
from dev.sources.flights import read_flights
from tests.support.registry import FakeRegistry
from tests.unit.decode import avro_oracle, csv_oracle, oracle, protobuf_oracle
from tests.unit.decode.binary_support import batch, normal

FRAME = struct.pack(">bI", 0, 7)
_SAMPLE = 300


@dataclass(frozen=True)
class Fuzzed:
    """A format under attack: good payloads, the decoder, and the row that an oracle reads or an error of `bad`."""

    payloads: list[bytes]
    decoder: Any
    oracle: Callable[[bytes | None], dict[str, Any]]
    bad: type[Exception]


@functools.cache
def flights() -> list[dict[str, Any]]:
    """Return some flights from all over the year."""
    return list(itertools.islice(read_flights(), 0, None, 1_100))[:_SAMPLE]


def _json() -> Fuzzed:
    rng, at = random.Random(1), datetime(2026, 11, 20, 5, 5, tzinfo=UTC)
    texts = [json.dumps(flight).encode() for flight in flights()] + [
        render_event(make_event(rng, at)) for _ in range(100)
    ]
    schema = infer_schema(batch(texts))
    return Fuzzed(texts, JsonDecoder(schema), functools.partial(oracle.row, schema), oracle.Rejected)


def _unframed(read: Callable[[bytes | None], Any], error: type[Exception], header: bytes) -> Callable[..., Any]:
    """Return an oracle for values behind a header, whose damage is a rejection."""

    def row(value: bytes | None) -> Any:
        if value is not None and not value.startswith(header):
            raise error("another frame")
        return read(value and value[len(header) :])

    return row


def _json_schema() -> Fuzzed:
    plain = _json()
    # Any id is good where the columns are given: the documents are not validated.
    decoder = JsonSchemaDecoder(plain.decoder.schema, "ignore", JsonDecoder)

    def row(value: bytes | None) -> Any:
        if value is not None and (len(value) < 5 or value[0]):
            raise oracle.Rejected("no frame")
        return plain.oracle(value and value[5:])

    return Fuzzed([FRAME + payload for payload in plain.payloads], decoder, row, oracle.Rejected)


AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "year", "type": "int"},
        {"name": "dep_delay", "type": ["null", "long"]},
        {"name": "tailnum", "type": ["null", "string"]},
        {"name": "carrier", "type": {"type": "enum", "name": "Carrier", "symbols": ["AA", "B6", "DL", "UA", "ZZ"]}},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "figures", "type": {"type": "map", "values": "double"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "hash", "type": {"type": "fixed", "name": "H", "size": 4}},
        {
            "name": "plan",
            "type": {
                "type": "record",
                "name": "Plan",
                "fields": [{"name": "hour", "type": "int"}, {"name": "ok", "type": "boolean"}],
            },
        },
    ],
}


def _avro() -> Fuzzed:
    text = json.dumps(AVRO)
    columns = avro_schema.arrow_schema(text)
    writer, payloads = avro.io.DatumWriter(avro_oracle.official(AVRO)), []
    for flight in flights():
        stream = io.BytesIO()
        writer.write(_as_avro(flight), avro.io.BinaryEncoder(stream))
        payloads.append(FRAME + stream.getvalue())
    read = functools.partial(_avro_row, columns=columns)
    decoder = AvroDecoder(columns, registry=FakeRegistry({7: ("AVRO", text)}))
    return Fuzzed(payloads, decoder, _unframed(read, avro_oracle.Bad, FRAME), avro_oracle.Bad)


def _avro_row(payload: bytes | None, columns: pa.Schema) -> dict[str, Any]:
    if payload is None:
        raise avro_oracle.Bad("a tombstone, and columns are required")
    return avro_oracle.decode(AVRO, payload, columns)


def _as_avro(flight: dict[str, Any]) -> dict[str, Any]:
    carrier = flight["carrier"]
    return {
        "year": flight["year"],
        "dep_delay": flight["dep_delay"],
        "tailnum": flight["tailnum"],
        "carrier": carrier if carrier in ("AA", "B6", "DL", "UA") else "ZZ",
        "stops": [flight["origin"], flight["dest"]],
        "figures": {name: float(flight[name] or 0) for name in ("distance", "air_time", "arr_delay")},
        "at": flight["flight"] * 1_000_000_007,
        "paid": (flight["flight"] * 99).to_bytes(4, "big"),
        "hash": flight["dest"].encode() + b"\0",
        "plan": {"hour": flight["hour"], "ok": flight["minute"] > 0},
    }


PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Flight {
  int32 year = 1; optional sint64 dep_delay = 2; optional string tailnum = 3; string carrier = 4;
  repeated string stops = 5; map<string, double> figures = 6; google.protobuf.Timestamp at = 7;
  repeated int32 minutes = 8; fixed64 hash = 9; Plan plan = 10; Kind kind = 11; bytes blob = 12;
  message Plan { int32 hour = 1; bool ok = 2; float share = 3; }
}
enum Kind { NONE = 0; LATE = 1; EARLY = 2; }
"""


def _protobuf() -> Fuzzed:
    descriptor = protobuf_schema.compile_proto(PROTO).descriptor((0,))
    columns = protobuf_schema.arrow_schema(PROTO)
    kind = message_factory.GetMessageClass(descriptor)
    header = FRAME + b"\0"
    payloads = [header + json_format.ParseDict(_as_proto(f), kind()).SerializeToString() for f in flights()]

    def read(value: bytes | None) -> Any:
        if value is None:
            return dict.fromkeys(columns.names)
        message, payload = protobuf_oracle.message_of(descriptor, value)
        return protobuf_oracle.decode(message, payload, columns)

    decoder = ProtobufDecoder(columns, registry=FakeRegistry({7: ("PROTOBUF", PROTO)}))
    return Fuzzed(payloads, decoder, _unframed(read, protobuf_oracle.Bad, FRAME), protobuf_oracle.Bad)


def _as_proto(flight: dict[str, Any]) -> dict[str, Any]:
    known = {name: flight[name] for name in ("year", "dep_delay", "tailnum", "carrier") if flight[name] is not None}
    return {
        **known,
        "stops": [flight["origin"], flight["dest"]],
        "figures": {name: float(flight[name] or 0) for name in ("distance", "air_time")},
        "at": flight["time_hour"],
        "minutes": [flight["minute"], flight["hour"], 70_000],
        "hash": flight["flight"],
        "plan": {"hour": flight["hour"], "ok": True, "share": 0.5},
        "kind": "LATE" if (flight["dep_delay"] or 0) > 0 else "EARLY",
    }


def _raw() -> Fuzzed:
    def row(value: bytes | None) -> Any:
        try:
            return {"value": None if value is None else value.decode()}
        except UnicodeDecodeError as error:
            raise avro_oracle.Bad(str(error)) from None

    texts = pa.schema([raw.arrow_schema(pa.string()).field("value")])
    payloads = [str(flight).encode() + "é😀".encode() for flight in flights()]
    return Fuzzed(payloads, raw.RawDecoder(texts), row, avro_oracle.Bad)


def _csv() -> Fuzzed:
    schema = infer_schema(batch([json.dumps(flight).encode() for flight in flights()]))
    lines = []
    for flight in flights():
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow([flight[name] for name in schema.names])
        lines.append(line.getvalue().encode())
    return Fuzzed(lines, CsvDecoder(schema), functools.partial(csv_oracle.row, schema), oracle.Rejected)


FORMATS: dict[str, Callable[[], Fuzzed]] = {
    "json": _json,
    "avro": _avro,
    "protobuf": _protobuf,
    "json_schema": _json_schema,
    "raw": _raw,
    "csv": _csv,
}


def damage(rng: random.Random, payload: bytes, others: list[bytes]) -> bytes | None:
    """Return the payload with a few bytes changed, or with none."""
    if rng.random() < 0.01:
        return None
    data = bytearray(payload)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(7)
        if how == 0:
            data[at:at] = rng.randbytes(rng.randrange(1, 4))
        elif how == 1:
            del data[at : at + rng.randrange(1, 4)]
        elif how == 2 and rng.random() < 0.3:
            del data[at:]
        elif how == 3:
            other = rng.choice(others)
            data[at:] = other[min(at, len(other)) :]
        elif how == 4 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif at < len(data):
            data[at] = rng.choice((0, 1, 2, 0x22, 0x2C, 0x30, 0x7B, 0x7D, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(data)


def attack(name: str, rng: random.Random, count: int, size: int = 500) -> Iterator[tuple[int, int]]:
    """Let a format decode damaged payloads in batches; yield how many became rows and how many were rejected.

    Raises AssertionError where a record is neither the oracle's row nor rejected by both.
    """
    fuzzed = FORMATS[name]()
    for first in range(0, count, size):
        chosen = rng.choices(fuzzed.payloads, k=min(size, count - first))
        yield compare(fuzzed, [damage(rng, payload, fuzzed.payloads) for payload in chosen])


def compare(fuzzed: Fuzzed, values: list[bytes | None]) -> tuple[int, int]:
    """Return how many of the values became rows and how many were rejected. Raises AssertionError as `attack` does."""
    decoded = fuzzed.decoder.decode(batch(values))
    decoded.rows.validate(full=True)
    rows = iter(decoded.rows.to_pylist(maps_as_pydicts="strict"))
    bad = {row.index: row.reason for row in decoded.bad}
    for index, value in enumerate(values):
        try:
            expected = normal(fuzzed.oracle(value))
        except fuzzed.bad:
            assert bad.get(index), f"a row, and the oracle rejects it: {value!r}"
            continue
        assert index not in bad, f"{bad[index]}, but the oracle has {expected}: {value!r}"
        found = normal(next(rows))
        assert found == expected, f"{found}, but the oracle has {expected}: {value!r}"
    assert next(rows, None) is None
    return len(values) - len(bad), len(bad)
