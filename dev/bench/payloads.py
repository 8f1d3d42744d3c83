"""The same clickstream events in each format: a head with the time, and a tail that is rendered beforehand."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

import avro.io
import avro.schema
from google.protobuf import message_factory

from airflow_lakestream.decode.protobuf.schema import compile_proto
from dev.sources.clickstream import iso_milliseconds, render_event

_TIME = {"name": "timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}}
_OTHERS = {
    "event": "string",
    "user_id": "string",
    "site_id": "string",
    "url": "string",
    "on_site_seconds": "long",
    "viewed_percent": "double",
    "text": "string",
}
_PROTO_TYPES = {"string": "string", "long": "int64", "double": "double"}
# The first message of its schema, in Confluent's short form.
_FIRST_MESSAGE = b"\x00"

Register = Callable[[str, str], int]


class Encoder(Protocol):
    """Renders events of one format; a record is a head and a tail."""

    def head(self, at: datetime) -> bytes:
        """Render all that comes before the other fields, the time of the event included."""

    def tail(self, event: Mapping[str, Any]) -> bytes:
        """Render the other fields."""


class Json:
    """Compact JSON, without any framing."""

    def __init__(self, register: Register, names: list[str]) -> None:
        pass

    def head(self, at: datetime) -> bytes:
        """Open the object with its time."""
        return f'{{"timestamp":"{iso_milliseconds(at)}",'.encode()

    def tail(self, event: Mapping[str, Any]) -> bytes:
        """Go on behind the time."""
        return render_event(event)[1:]


class Avro:
    """Confluent's framing, then an Avro record: fields one after the other, so that the time can be put in front."""

    def __init__(self, register: Register, names: list[str]) -> None:
        others = [{"name": name, "type": _OTHERS[name]} for name in names]
        whole = {"type": "record", "name": "Click", "namespace": "bench", "fields": [_TIME, *others]}
        self._header = struct.pack(">bI", 0, register(json.dumps(whole), "AVRO"))
        self._writer = avro.io.DatumWriter(avro.schema.parse(json.dumps({**whole, "fields": others})))

    def head(self, at: datetime) -> bytes:
        """Write header and time."""
        stream = io.BytesIO()
        avro.io.BinaryEncoder(stream).write_long(int(at.timestamp() * 1000))
        return self._header + stream.getvalue()

    def tail(self, event: Mapping[str, Any]) -> bytes:
        """Write the record without its time."""
        stream = io.BytesIO()
        self._writer.write(dict(event), avro.io.BinaryEncoder(stream))
        return stream.getvalue()


class Protobuf:
    """Confluent's framing, then a message: two that are joined are one with the fields of both."""

    def __init__(self, register: Register, names: list[str]) -> None:
        schema = _proto(names)
        self._header = struct.pack(">bI", 0, register(schema, "PROTOBUF")) + _FIRST_MESSAGE
        self._message = message_factory.GetMessageClass(compile_proto(schema, ()).descriptor((0,)))

    def head(self, at: datetime) -> bytes:
        """Write header and time."""
        message = self._message()
        message.timestamp.FromMilliseconds(int(at.timestamp() * 1000))
        return bytes(self._header + message.SerializeToString())

    def tail(self, event: Mapping[str, Any]) -> bytes:
        """Write the message without its time."""
        return bytes(self._message(**event).SerializeToString())


def _proto(names: list[str]) -> str:
    fields = [f"  {_PROTO_TYPES[_OTHERS[name]]} {name} = {number};\n" for number, name in enumerate(names, start=2)]
    return (
        'syntax = "proto3";\npackage bench;\nimport "google/protobuf/timestamp.proto";\n'
        "message Click {\n  google.protobuf.Timestamp timestamp = 1;\n" + "".join(fields) + "}\n"
    )


ENCODERS: Mapping[str, Callable[[Register, list[str]], Encoder]] = {"json": Json, "avro": Avro, "protobuf": Protobuf}
