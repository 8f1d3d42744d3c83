"""The function that an Airflow user writes today: JSON to Arrow, and one PyIceberg append for each batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook
from confluent_kafka import Message
from pyiceberg.table import Table

SCHEMA = pa.schema(
    [
        ("timestamp", pa.string()),
        ("event", pa.string()),
        ("user_id", pa.string()),
        ("site_id", pa.string()),
        ("url", pa.string()),
        ("on_site_seconds", pa.int64()),
        ("viewed_percent", pa.float64()),
    ]
)
_tables: dict[str, Table] = {}


def append_batch(messages: Sequence[Message], table: str) -> None:
    """Append a batch."""
    if table not in _tables:
        _tables[table] = IcebergHook("iceberg_default").catalog.create_table_if_not_exists(table, SCHEMA)
    rows: list[dict[str, Any]] = [json.loads(message.value()) for message in messages]
    _tables[table].append(pa.Table.from_pylist(rows, schema=SCHEMA))
