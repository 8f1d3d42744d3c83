"""What a Protobuf message means: the official package, and the rules of the table written down anew, one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import json_format, message_factory
from google.protobuf.internal import wire_format
from google.protobuf.internal.decoder import _DecodeVarint
from google.protobuf.message import DecodeError, EncodeError

from airflow_lakestream.decode.protobuf.schema import JSON_TYPES, TIMESTAMP, WRAPPERS, is_map

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Bad(Exception):
    """The record can't become a row."""


def decode(descriptor: Any, payload: bytes, columns: pa.Schema) -> dict[str, Any]:
    """Return the row that a payload stands for, as Python values. Raises Bad."""
    try:
        message = message_factory.GetMessageClass(descriptor).FromString(payload)
        message.SerializeToString()
        return row(message, columns)
    except (DecodeError, EncodeError, UnicodeDecodeError) as error:
        raise Bad(str(error)) from None


def message_of(first: Any, value: bytes) -> tuple[Any, bytes]:
    """Return which message stands behind a frame, of those in the first one's file, and its bytes. Raises Bad.

    Confluent writes the numbers of the message and of those around it, as many as the first number says; none stands
    for the first message. Each may be written in more bytes than it needs.
    """
    numbers = []
    try:
        count, at = _zigzag(value, 0)
        if count < 0:
            raise Bad("a negative count")
        for _ in range(count):
            number, at = _zigzag(value, at)
            numbers.append(number)
        found, inside = None, list(first.file.message_types_by_name.values())
        for number in numbers or [0]:
            if number < 0:
                raise Bad("no such message")
            found = inside[number]
            inside = list(found.nested_types)
    except (IndexError, DecodeError):
        raise Bad("no such message") from None
    return found, value[at:]


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    number, at = _DecodeVarint(value, at)
    return wire_format.ZigZagDecode(number), at


def row(message: Any, columns: Any) -> dict[str, Any]:
    """Return the columns of a message; null where it has no such field."""
    known = message.DESCRIPTOR.fields_by_name
    return {
        column.name: field(message, known[column.name], column.type) if column.name in known else None
        for column in columns
    }


def field(message: Any, descriptor: Any, kind: pa.DataType) -> Any:
    """Return what a column holds for one field."""
    value = getattr(message, descriptor.name)
    if is_map(descriptor):
        inner = descriptor.message_type.fields_by_name["value"]
        return {key: single(inner, value[key], kind.item_type) for key in value}
    if descriptor.is_repeated:
        return [single(descriptor, item, kind.value_type) for item in value]
    if descriptor.has_presence and not message.HasField(descriptor.name):
        return None
    return single(descriptor, value, kind)


def single(descriptor: Any, value: Any, kind: pa.DataType) -> Any:
    """Return one value of a field."""
    if descriptor.type == descriptor.TYPE_ENUM:
        names = {number.number: number.name for number in reversed(descriptor.enum_type.values)}
        if value not in names:
            raise Bad("no name for this number")
        return names[value]
    if descriptor.type in (descriptor.TYPE_UINT64, descriptor.TYPE_FIXED64):
        return Decimal(value)
    if descriptor.type == descriptor.TYPE_STRING and isinstance(value, bytes):
        # What the package shows for text of proto2 that is none.
        raise Bad("invalid UTF-8")
    if descriptor.type != descriptor.TYPE_MESSAGE:
        return value
    name = descriptor.message_type.full_name
    if name == TIMESTAMP:
        return timestamp(value)
    if name in WRAPPERS:
        return single(descriptor.message_type.fields_by_name["value"], value.value, kind)
    if name in JSON_TYPES:
        return json_text(value)
    return row(value, kind)


def timestamp(value: Any) -> datetime:
    """Return an instant that microseconds can hold."""
    if not 0 <= value.nanos < 10**9 or value.nanos % 1000:
        raise Bad("nanos")
    try:
        return EPOCH + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    except OverflowError:
        raise Bad("out of range") from None


def json_text(value: Any) -> str:
    """Return a value of JSON's own kinds as its text."""
    try:
        return json_format.MessageToJson(value, indent=None, sort_keys=True)
    except (json_format.Error, ValueError, RecursionError) as error:
        raise Bad(str(error)) from None
