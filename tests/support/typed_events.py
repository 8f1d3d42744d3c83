"""Change events whose schemas tell the source's types, as Debezium writes them: in JSON, Avro and JSON Schema."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from tests.support.avro_records import record, written

_TIME, _CONNECT, _DATA = "io.debezium.time.", "org.apache.kafka.connect.data.", "io.debezium.data."


def _of(kind: str, name: str = "", **parameters: str) -> dict[str, Any]:
    return {"type": kind, **({"name": name} if name else {}), **({"parameters": parameters} if parameters else {})}


# Types of columns, as Connect's schemas have them.
INT, LONG, SHORT, FLOAT, DOUBLE = (_of(kind) for kind in ("int32", "int64", "int16", "float", "double"))
BOOLEAN, TEXT, BYTES = _of("boolean"), _of("string"), _of("bytes")
YEAR, DATE, MILLIS_OF_DAY = (_of("int32", f"{_TIME}{name}") for name in ("Year", "Date", "Time"))
MICROS_OF_DAY, MILLIS = (_of("int64", f"{_TIME}{name}") for name in ("MicroTime", "Timestamp"))
MICROS = _of("int64", f"{_TIME}MicroTimestamp")
INTERVAL, INSTANT = _of("int64", f"{_TIME}MicroDuration"), _of("int64", f"{_CONNECT}Timestamp")
CONNECT_DATE = _of("int32", f"{_CONNECT}Date")
ZONED = _of("string", f"{_TIME}ZonedTimestamp")
UUID, JSON, ENUM = (_of("string", f"{_DATA}{name}") for name in ("Uuid", "Json", "Enum"))
BITS, MORE_BITS = _of("bytes", f"{_DATA}Bits", length="8"), _of("bytes", f"{_DATA}Bits", length="16")
_DIGITS = {"connect.decimal.precision": "10"}
NUMERIC, FINER = (_of("bytes", f"{_CONNECT}Decimal", scale=scale, **_DIGITS) for scale in ("2", "4"))


def _any_scale() -> dict[str, Any]:
    fields = [{**INT, "field": "scale"}, {**BYTES, "field": "value"}]
    return {"type": "struct", "name": f"{_DATA}VariableScaleDecimal", "fields": fields}


ANY_SCALE = _any_scale()


def array(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of an array."""
    return {"type": "array", "items": {**items, "optional": True}}


def nested(**fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the type of a record."""
    return {"type": "struct", "fields": [{**kind, "field": name, "optional": True} for name, kind in fields.items()]}


Kinds = Mapping[str, Mapping[str, Any]]


def typed_change(op: str, row: Mapping[str, Any], place: int, kinds: Kinds) -> bytes:
    """Return a change event in Connect's JSON with its schema; `id` is an int64.

    :param place: of its transaction in the source's log.
    """
    image = {**nested(id=LONG, **kinds), "optional": True}
    source = {**nested(sequence=TEXT, lsn=LONG, ts_ms=LONG), "optional": False}
    members = {"before": image, "after": image, "source": source, "op": TEXT}
    schema = {"type": "struct", "fields": [{**kind, "field": name} for name, kind in members.items()]}
    return json.dumps({"schema": schema, "payload": _document(op, row, place)}, separators=(",", ":")).encode()


def _document(op: str, row: Mapping[str, Any], place: int) -> dict[str, Any]:
    before, after = (row, None) if op == "d" else (None, row)
    source = {"sequence": f'["{place}","{place}"]', "lsn": place, "ts_ms": 1}
    return {"before": before, "after": after, "source": source, "op": op}


_AVRO = {"int16": "int", "int32": "int", "int64": "long"}


def avro_kind(kind: Mapping[str, Any]) -> Any:
    """Return a type as Connect's converter writes it in Avro."""
    if kind["type"] == "array":
        return {"type": "array", "items": ["null", avro_kind(kind["items"])]}
    made = {"type": _AVRO.get(kind["type"], kind["type"])}
    if "name" in kind:
        made["connect.name"] = kind["name"]
    if kind.get("name") == f"{_CONNECT}Decimal":
        made |= {"logicalType": "decimal", "precision": 10, "scale": int(kind["parameters"]["scale"])}
    return made


def avro_schema(kinds: Kinds) -> str:
    """Return the schema of change events with these columns, as the registry has it."""
    row = record("Value", id="long", **{name: ["null", avro_kind(kind)] for name, kind in kinds.items()})
    source = record("Source", sequence="string", lsn="long", ts_ms="long")
    return json.dumps(record("Envelope", before=["null", row], after=["null", "Value"], source=source, op="string"))


def avro_change(op: str, row: Mapping[str, Any], place: int, kinds: Kinds, schema_id: int) -> bytes:
    """Return a change event in Avro."""
    document = _document(op, {**dict.fromkeys(kinds), **row}, place)
    return written(json.loads(avro_schema(kinds)), schema_id, document)


_JSON = {"string": "string", "bytes": "string", "boolean": "boolean", "float": "number", "double": "number"}


def json_kind(kind: Mapping[str, Any]) -> dict[str, Any]:
    """Return a type as Connect's converter writes it in JSON Schema."""
    if kind["type"] == "array":
        return {"type": "array", "items": json_kind(kind["items"])}
    made = {"type": _JSON.get(kind["type"], "integer"), "connect.type": kind["type"]}
    made |= {"title": kind["name"]} if "name" in kind else {}
    return {"oneOf": [{"type": "null"}, made]}


def json_schema(kinds: Kinds) -> str:
    """Return the same in JSON Schema."""
    row = {"type": "object", "properties": {"id": {"type": "integer"}, **{n: json_kind(k) for n, k in kinds.items()}}}
    image = {"oneOf": [{"type": "null"}, row]}
    return json.dumps({"type": "object", "properties": {"before": image, "after": image, "op": {"type": "string"}}})


def json_change(op: str, row: Mapping[str, Any], place: int, schema_id: int) -> bytes:
    """Return a change event in the framing of JSON Schema."""
    return struct.pack(">bI", 0, schema_id) + json.dumps(_document(op, row, place)).encode()
