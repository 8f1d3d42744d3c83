"""What a record of Avro means: the official avro package, and the rules of the table written down anew, one by one."""

from __future__ import annotations

import functools
import io
import json
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import avro.io
import avro.schema
import pyarrow as pa
from avro.errors import AvroException

EPOCH = datetime(1970, 1, 1)


class Bad(Exception):
    """The record can't become a row."""


class Strict(avro.io.BinaryDecoder):
    """The official one takes every byte but 1 for false; the specification knows 0 and 1."""

    def read_boolean(self) -> bool:
        byte = ord(self.read(1))
        if byte > 1:
            raise Bad("neither 0 nor 1")
        return byte == 1


def bare(schema: Any) -> Any:
    """Return the schema without logical types: the official package turns them into objects, and rounds."""
    if isinstance(schema, dict):
        return {key: bare(value) for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
    return [bare(item) for item in schema] if isinstance(schema, list) else schema


def official(schema: Any) -> avro.schema.Schema:
    """Return a schema as the official package has it."""
    return _parsed(json.dumps(bare(schema)))


@functools.lru_cache(maxsize=8)
def _parsed(text: str) -> avro.schema.Schema:
    return avro.schema.parse(text)


def decode(schema: Any, payload: bytes, columns: pa.Schema) -> dict[str, Any]:
    """Return the row that a payload stands for, as Python values. Raises Bad."""
    stream = io.BytesIO(payload)
    try:
        value = avro.io.DatumReader(official(schema)).read(Strict(stream))
    except (AvroException, UnicodeDecodeError, ValueError, IndexError, TypeError, OverflowError, EOFError) as error:
        raise Bad(str(error)) from None
    except (AssertionError, KeyError, MemoryError) as error:
        raise Bad(str(error)) from None
    if stream.read(1):
        raise Bad("bytes are left over")
    return {f["name"]: convert(f["type"], value[f["name"]], columns.field(f["name"]).type) for f in schema["fields"]}


def convert(schema: Any, value: Any, kind: pa.DataType) -> Any:
    """Return the value that a column of this type holds."""
    if isinstance(schema, list):
        return None if value is None else _branch(schema, value, kind)
    if isinstance(schema, str):
        schema = {"type": schema}
    name = schema["type"]
    if isinstance(name, (dict, list)):
        return convert(name, value, kind)
    if name == "record":
        return {f["name"]: convert(f["type"], value[f["name"]], kind.field(f["name"]).type) for f in schema["fields"]}
    if name == "array":
        return [convert(schema["items"], item, kind.value_type) for item in value]
    if name == "map":
        return {key: convert(schema["values"], item, kind.item_type) for key, item in value.items()}
    if name == "int" and not -(2**31) <= value < 2**31:
        raise Bad("not 32 bits")
    if name == "long" and not -(2**63) <= value < 2**63:
        raise Bad("not 64 bits")
    logical = schema.get("logicalType")
    return LOGICAL[logical](schema, value) if logical else value


def _branch(schema: list[Any], value: Any, kind: pa.DataType) -> Any:
    """Only unions of null and one type: which of several it was, the official reader does not tell."""
    (one,) = [branch for branch in schema if branch != "null"]
    return convert(one, value, kind)


def _date(schema: Any, value: int) -> date:
    return _checked(lambda: date(1970, 1, 1) + timedelta(days=value))


def _timestamp(unit: int, zone: Any) -> Callable[[Any, int], datetime]:
    def read(schema: Any, value: int) -> datetime:
        if value * unit % 1000:
            raise Bad("finer than microseconds")
        instant = _checked(lambda: EPOCH + timedelta(microseconds=value * unit // 1000))
        return instant.replace(tzinfo=zone)

    return read


def _time(unit: int) -> Callable[[Any, int], time]:
    def read(schema: Any, value: int) -> time:
        if not 0 <= value * unit < 86_400_000_000:
            raise Bad("not a time")
        return (EPOCH + timedelta(microseconds=value * unit)).time()

    return read


def _checked(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except OverflowError as error:
        raise Bad(str(error)) from None


def _decimal(schema: Any, value: bytes) -> Decimal:
    unscaled = int.from_bytes(value, "big", signed=True)
    if not value or abs(unscaled) >= 10 ** schema["precision"]:
        raise Bad("out of range")
    return Decimal(unscaled).scaleb(-schema.get("scale", 0), Context(prec=100))


def _uuid(schema: Any, value: Any) -> uuid.UUID:
    if isinstance(value, bytes):
        return uuid.UUID(bytes=value)
    try:
        found = uuid.UUID(value)
    except ValueError as error:
        raise Bad(str(error)) from None
    if str(found) != value.lower():
        raise Bad("not the usual form")
    return found


LOGICAL: dict[str, Callable[[Any, Any], Any]] = {
    "date": _date,
    "time-millis": _time(1000),
    "time-micros": _time(1),
    "timestamp-millis": _timestamp(1_000_000, UTC),
    "timestamp-micros": _timestamp(1_000, UTC),
    "timestamp-nanos": _timestamp(1, UTC),
    "local-timestamp-millis": _timestamp(1_000_000, None),
    "local-timestamp-micros": _timestamp(1_000, None),
    "decimal": _decimal,
    "uuid": _uuid,
    "duration": lambda schema, value: value,
}
