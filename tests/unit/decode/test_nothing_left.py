"""Batches of which no row is left, for columns with UUIDs inside of others: Arrow's own functions fail for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import airflow_lakestream
from airflow_lakestream.cdc.events.decoder import EventPayload, event_columns
from airflow_lakestream.core.policies import OnError, Tombstones
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.metadata import HEADERS
from airflow_lakestream.decode.rows import RowDecoderFactory
from tests.unit.decode.support import batch

KINDS = {
    "itself": pa.uuid(),
    "in a list": pa.list_(pa.uuid()),
    "in a struct": pa.struct([("a", pa.uuid())]),
    "in a map": pa.map_(pa.string(), pa.uuid()),
    "deep": pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.uuid()))])),
}
_CONNECT = {"type": "struct", "fields": [{"field": "id", "type": "int64"}]}
BATCHES: dict[str, list[bytes | None]] = {
    "no record": [],
    "nulls": [None, None],
    "bad records": [b"{", b"\xff"],
    "an event without its row": [b'{"op":"u"}'],
    "wrapped nulls": [json.dumps({"schema": None, "payload": None}).encode()],
    "wrapped bad records": [json.dumps({"schema": _CONNECT, "payload": {"id": "x"}}).encode()],
    "a field of no column": [b'{"x":1}'],
}
PAYLOADS: dict[str, Any] = {
    "json": PayloadFormats(),
    "growing json": PayloadFormats(unknown_fields="evolve"),
    "rescued json": PayloadFormats(unknown_fields="rescue"),
    "debezium": PayloadFormats(envelope="debezium"),
    "connect": PayloadFormats(envelope="connect"),
    "a mirror": EventPayload(envelope="debezium"),
    "avro": PayloadFormats(
        "avro", writer_schemas=('{"type":"record","name":"r","fields":[{"name":"id","type":"long"}]}',)
    ),
}


@pytest.mark.parametrize("values", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_batch_ends_with_no_error_of_a_library(payload: Any, kind: pa.DataType, values: list[bytes | None]) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", kind), ("_rescued", pa.string())])
    if isinstance(payload, EventPayload):
        schema = event_columns(schema)
    records = replace(batch(values), keys=pa.nulls(len(values), pa.binary()), headers=pa.nulls(len(values), HEADERS))
    decoder = RowDecoderFactory(payload, ("partition", "offset"), None, OnError.REJECT, Tombstones.SKIP)(
        schema, records
    )
    assert decoder is not None
    found = decoder.decode(records)
    assert found.rows.schema.field("v").type == kind
    rejected = 0 if found.rejected is None else len(found.rejected)
    rowless = 0 if found.rowless is None else len(found.rowless)
    assert len(found.rows) + rowless == len(values)
    assert rejected <= rowless


def test_no_module_asks_arrow_for_an_empty_table() -> None:
    package = Path(airflow_lakestream.__file__).parent
    assert [path for path in package.rglob("*.py") if ".empty_table(" in path.read_text()] == []
