"""Debezium's own records, not events of a table: heartbeats, transactions, messages, schema changes and signals."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Types of the records in Debezium's signal topic.
_SIGNALS = ("log", "set-binlog-position", "schema-changes")
_SNAPSHOTS = ("execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot")
_TRANSACTION = {"status", "id", "event_count", "data_collections"}
_SCHEMA_CHANGE = {"source", "databaseName", "ddl", "tableChanges"}
# The same records by Debezium's name for the schema; registries keep the last part as the record's name.
_NAMES = {
    "Heartbeat": "a heartbeat",
    "TransactionMetadataValue": "the limit of a transaction",
    "MessageValue": "a message of pg_logical_emit_message",
    "SchemaChangeValue": "a schema change",
}
_DEBEZIUMS = "io.debezium.connector."


def own_record(value: bytes) -> str | None:
    """Return a description of a record of Debezium's own, or None if the record may be a table's event.

    The JSON document decides, and not the topic's name, which users choose.
    """
    document = _document(value)
    return None if document is None else _kind(document)


def op_in_json(value: bytes) -> str | None:
    """Return the operation of a change event in JSON, or None for another value."""
    op = (_document(value) or {}).get("op")
    return op if isinstance(op, str) else None


def _document(value: bytes) -> dict[str, Any] | None:
    """Return a JSON object, without Connect's wrapper of schema and payload, or None for another value."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, dict) and document.keys() == {"schema", "payload"}:
        document = document["payload"]
    return document if isinstance(document, dict) else None


def own_schema(text: str) -> str | None:
    """Return a description of Debezium's own records with this schema, or None for another schema.

    The schema's name decides: the full name in Avro, the title in JSON Schema.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(schema, dict):
        return None
    name = str(schema.get("title") or f"{schema.get('namespace', '')}.{schema.get('name', '')}")
    return _NAMES.get(name.rsplit(".", 1)[-1]) if name.startswith(_DEBEZIUMS) else None


def _kind(payload: Mapping[str, Any]) -> str | None:
    names = set(payload)
    if payload.get("op") == "m" and names >= {"message", "source"} and not names & {"before", "after"}:
        return _NAMES["MessageValue"]
    # An event has at least one of these members.
    if names & {"op", "before", "after"}:
        return None
    if names == {"ts_ms"} and isinstance(payload["ts_ms"], int):
        return _NAMES["Heartbeat"]
    if names >= _TRANSACTION and payload["status"] in ("BEGIN", "END"):
        return _NAMES["TransactionMetadataValue"]
    if names >= _SCHEMA_CHANGE:
        return _NAMES["SchemaChangeValue"]
    if {"type"} < names <= {"id", "type", "data", "additionalData"} and payload["type"] in (*_SIGNALS, *_SNAPSHOTS):
        return "a signal"
    return None
