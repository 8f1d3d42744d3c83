"""Records in Avro, written by its official library, in the framing of Confluent's registry."""

from __future__ import annotations

import io
import struct
from typing import Any

import avro.io

from tests.unit.decode import avro_oracle


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    """Return the schema of a record with these fields."""
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


def written(schema: Any, schema_id: int, value: Any, behind: bytes = b"") -> bytes:
    """Return a value as a producer sends it; `behind` are bytes too many."""
    stream = io.BytesIO()
    avro.io.DatumWriter(avro_oracle.official(schema)).write(value, avro.io.BinaryEncoder(stream))
    return struct.pack(">bI", 0, schema_id) + stream.getvalue() + behind
