"""Forms of JSON documents, by their members: events, Maxwell's and Canal's documents, and Debezium's own records.

Debezium's own records are not events of a table: heartbeats, transactions, messages, schema changes and signals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
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


class RecordForm(StrEnum):
    """Form of a JSON object in a record, as errors name it."""

    DEBEZIUM = "an event of Debezium"
    FLATTENED = "a flattened event of Debezium"
    MAXWELL = "a document of Maxwell"
    CANAL = "a document of Canal"
    PLAIN = "a plain record"


_OF_DOCUMENTS = ("database", "table", "type")
_OF_CANAL = ("isDdl", "mysqlType", "sqlType", "pkNames", "es")
_OF_MAXWELL = ("data", "ts")


def form_of(document: Mapping[str, Any]) -> RecordForm:
    """Return the form of a record's JSON object, with or without Connect's schema around it."""
    if document.keys() == {"schema", "payload"} and isinstance(document["payload"], dict):
        document = document["payload"]
    names = document.keys()
    if "op" in names and names & {"before", "after"}:
        return RecordForm.DEBEZIUM
    if names & {"__deleted", "__op"} or any(name.startswith("__source_") for name in names):
        return RecordForm.FLATTENED
    if all(isinstance(document.get(name), str) for name in _OF_DOCUMENTS):
        if names & {*_OF_CANAL}:
            return RecordForm.CANAL
        return RecordForm.MAXWELL if names & {*_OF_MAXWELL} else RecordForm.PLAIN
    return RecordForm.PLAIN


def form_of_value(value: bytes) -> RecordForm | None:
    """Return the form of a record's value, or None if the value is not a JSON object."""
    document = _document(value)
    return None if document is None else form_of(document)


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
