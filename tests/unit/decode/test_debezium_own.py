"""Debezium's own records, as 3.2 writes them, told from events of tables."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_lakestream.decode.connect.debezium_own import own_record, own_schema

SOURCE = {"version": "3.2.0.Final", "connector": "postgresql", "db": "shop", "schema": "", "table": "", "lsn": 7}
OWN: dict[str, dict[str, Any]] = {
    "a heartbeat": {"ts_ms": 1795438744572},
    "the limit of a transaction": {
        "status": "BEGIN", "id": "739:2632", "event_count": None, "data_collections": None, "ts_ms": 1,
    },
    "a message of pg_logical_emit_message": {
        "op": "m", "ts_ms": 1, "source": SOURCE, "transaction": None, "message": {"prefix": "p", "content": "aGVsbG8="},
    },
    "a schema change": {"source": SOURCE, "ts_ms": 1, "databaseName": "shop", "ddl": "alter", "tableChanges": []},
    "a signal": {"type": "execute-snapshot", "data": {"data-collections": ["public.orders"]}},
}  # fmt: skip
ROW = {"id": 1, "op": "m", "message": {"prefix": "p"}, "type": "log", "status": "BEGIN", "ddl": "x"}
EVENTS = [
    {"before": None, "after": ROW, "source": SOURCE, "op": "c", "ts_ms": 1},
    {"before": ROW, "after": None, "source": SOURCE, "op": "d", "ts_ms": 1},
    {"before": None, "after": None, "source": SOURCE, "op": "t", "ts_ms": 1},
    {"before": None, "after": ROW, "op": "m", "message": {}},
    ROW,
    {"type": "log", "id": 1, "name": "a row that was flattened"},
    {"type": "odd"},
    {"ts_ms": "no number"},
]


@pytest.mark.parametrize("schema", [False, True])
def test_own_records_are_told_and_events_never_are(schema: bool) -> None:
    def written(payload: object) -> bytes:
        return json.dumps({"schema": {"type": "struct"}, "payload": payload} if schema else payload).encode()

    assert {kind: own_record(written(payload)) for kind, payload in OWN.items()} == {kind: kind for kind in OWN}
    assert [own_record(written(event)) for event in EVENTS] == [None] * len(EVENTS)


@pytest.mark.parametrize("value", [b"", b"null", b"[]", b'{"ts_ms"', b"\xff", b"[" * 100_000, b"7", b'{"payload":{}}'])
def test_what_is_no_document_is_nobodys_own(value: bytes) -> None:
    assert own_record(value) is None
    assert own_schema(value.decode(errors="replace")) is None


def test_schemas_of_a_registry_are_told_by_debeziums_names() -> None:
    common = "io.debezium.connector.common"
    assert own_schema(json.dumps({"type": "record", "name": "Heartbeat", "namespace": common})) == "a heartbeat"
    assert own_schema(json.dumps({"title": f"{common}.TransactionMetadataValue"})) == "the limit of a transaction"
    assert own_schema(json.dumps({"type": "record", "name": "Heartbeat", "namespace": "shop.public"})) is None
    assert own_schema(json.dumps({"type": "record", "name": "Envelope", "namespace": common})) is None
