"""Debezium's own records: heartbeats, transactions, messages, schema changes and signals are no events of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# What Debezium takes by its signal topic.
_SIGNALS = ("log", "set-binlog-position", "schema-changes")
_SNAPSHOTS = ("execute-snapshot", "stop-snapshot", "pause-snapshot", "resume-snapshot")
_TRANSACTION = {"status", "id", "event_count", "data_collections"}
_SCHEMA_CHANGE = {"source", "databaseName", "ddl", "tableChanges"}
# The same by the name that Debezium gives the schema, of which registries keep the last part as a record's name.
_NAMES = {
    "Heartbeat": "a heartbeat",
    "TransactionMetadataValue": "the limit of a transaction",
    "MessageValue": "a message of pg_logical_emit_message",
    "SchemaChangeValue": "a schema change",
}
_DEBEZIUMS = "io.debezium.connector."


def own_record(value: bytes) -> str | None:
    """Return what a record of Debezium's own is, in words; None for anything that may be a table's event.

    Told by the JSON document as a whole, bare or with its schema; never by a name of the topic, which users choose.
    """
    document = _document(value)
    return None if document is None else _kind(document)


def op_in_json(value: bytes) -> str | None:
    """Return the operation of an event in JSON, bare or with its schema; None for anything else."""
    op = (_document(value) or {}).get("op")
    return op if isinstance(op, str) else None


def _document(value: bytes) -> dict[str, Any] | None:
    """Return a JSON document without its schema; None for anything that is no object."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, dict) and document.keys() == {"schema", "payload"}:
        document = document["payload"]
    return document if isinstance(document, dict) else None


def own_schema(text: str) -> str | None:
    """Return what records with a schema of a registry are, by the full name in Avro or the title in JSON Schema."""
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
