"""Values as producers write them, framed as a registry's serializers frame them; every schema has the id 1."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import avro.io
import avro.schema

from tests.unit.decode.avro_oracle import bare

ID = 1


def framed(payload: bytes) -> bytes:
    """Return a payload behind the header that names its schema."""
    return b"\x00" + ID.to_bytes(4, "big") + payload


def avro_value(schema: Any, value: Any) -> bytes:
    """Return a value as Avro's official package writes it, without a look at logical types."""
    stream = io.BytesIO()
    writer = avro.schema.parse(json.dumps(bare(schema)))
    avro.io.DatumWriter(writer).write(value, avro.io.BinaryEncoder(stream))
    return framed(stream.getvalue())


def avro_registry(schema: Any) -> Mapping[int, tuple[str, str]]:
    """Return the schemas of a registry that has this one."""
    return {ID: ("AVRO", json.dumps(schema))}
