"""Every format from the broker to the table: several schemas in one topic, keys, columns that the registry tells."""

from __future__ import annotations

import io
import json
import logging
import struct
from decimal import Decimal
from typing import Any

import avro.io
import pyarrow as pa
import pytest
from google.protobuf import message_factory

from airflow_lakestream.decode import protobuf_schema
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.registry.schemas import RegistryUnavailable
from dev.ports import LOOPBACK, free_ports
from dev.services.registry import Registry
from tests.support.broker import Producing, Topics
from tests.support.lake import TABLE, Lake
from tests.unit.decode import avro_oracle

pytestmark = pytest.mark.integration


def framed(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + payload


def avro_bytes(schema: Any, value: Any) -> bytes:
    """Write a value with the official package; logical types as the numbers and bytes that they are."""
    stream = io.BytesIO()
    avro.io.DatumWriter(avro_oracle.official(schema)).write(value, avro.io.BinaryEncoder(stream))
    return stream.getvalue()


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


def rows(lake: Lake, *columns: str) -> list[dict[str, Any]]:
    """Return the table's rows without metadata, by offset."""
    found = lake.table().scan().to_arrow().sort_by("_kafka_offset")
    names = columns or [name for name in found.column_names if not name.startswith("_kafka_")]
    return found.select(names).to_pylist()


def test_avro_of_two_schemas_with_keys(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "airflow_lakestream")
    name = topic(1)
    old = record("Order", id="long", price={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})
    new = {**old, "fields": [*old["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    key = record("Key", id="long")
    first, second = (registry.register(f"{name}-value", json.dumps(schema)) for schema in (old, new))
    key_id = registry.register(f"{name}-key", json.dumps(key))
    keys = [framed(key_id, avro_bytes(key, {"id": number})) for number in (1, 2)]
    values = [
        framed(first, avro_bytes(old, {"id": 1, "price": b"\x30\x39"})),
        framed(second, avro_bytes(new, {"id": 2, "price": b"\x30\x39", "note": "gift"})),
        framed(2_000_000_000, b""),
    ]
    produce(name, 0, values[:2], keys=keys)
    lake.land(name, format="avro", key_format="avro", schema_registry=registry.url)
    assert rows(lake) == [
        {"id": 1, "price": Decimal("123.45"), "note": None, "_key": {"id": 1}},
        {"id": 2, "price": Decimal("123.45"), "note": "gift", "_key": {"id": 2}},
    ]
    assert f"schema {second}, the latest of subject {name}-value" in caplog.text
    # A key that is none of its schema makes a bad record, and says so.
    (offset,) = produce(name, 0, values[:1], keys=[framed(key_id, b"")])
    with pytest.raises(BadRecord, match=rf"offset {offset}: the key: _key\.id: the value ends early"):
        lake.land(name, format="avro", key_format="avro", schema_registry=registry.url, on_error="fail")
