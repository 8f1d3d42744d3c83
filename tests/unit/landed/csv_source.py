"""CSV with fields of every type; the oracle reads lines character by character."""

from __future__ import annotations

import json
from random import Random

import pyarrow as pa

from tests.unit.decode import csv_oracle
from tests.unit.decode.oracle import Rejected
from tests.unit.landed import json_texts
from tests.unit.landed.json_sources import LAYOUTS, columns
from tests.unit.landed.landing import Source

_ODD = [
    None, b"", b"\n", b",", b'"', b"\xff", b'1,"a', b"1,a\nb", b"1\r2", b'1,a"b', b'"1"2', b"," * 5_000,
    b"\xef\xbb\xbf1", b"\0", b'""', b"1;2",
]  # fmt: skip


def _field(field: pa.Field, rng: Random) -> bytes:
    if rng.random() < (0.1 if field.nullable else json_texts.BEYOND / 4):
        return b""
    text = json_texts.value(field.type, rng)
    if text.startswith(b'"') and rng.random() < 0.98:
        try:
            text = json.loads(text).encode()
        except ValueError:
            return text
    if rng.random() < 0.3 or any(char in text for char in b'",\r\n') or not text:
        return b'"%b"' % text.replace(b'"', b'""')
    return text


def source(table_format: str) -> Source:
    """Return lines with a field for each column, most of them."""
    schema = columns(table_format)

    def payload(rng: Random) -> bytes | None:
        choice = rng.random()
        if choice < 0.02:
            return rng.choice(_ODD)
        line = b",".join(_field(field, rng) for field in schema)
        if choice < 0.03:
            return line + b","
        return line + rng.choice([b"", b"", b"\n", b"\r\n"])

    config = {"schema": schema, "format": "csv"}
    return Source(
        "csv", schema, payload, lambda value: csv_oracle.row(schema, value), (Rejected,), config, layouts=LAYOUTS
    )
