"""Names of a record's fields, as a tree, from the document or from the writer's schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from airflow_lakestream.core.policies import ValueEnvelope, ValueFormat
from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.connect.debezium import IMAGES
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.json.document import parse_object
from airflow_lakestream.decode.known_formats import SchemaText
from airflow_lakestream.decode.lanes.confluent import HEADER
from airflow_lakestream.decode.protobuf.schema import compile_proto, is_map
from airflow_lakestream.decode.values.outcome import Misfit, SchemaRefused

# Inner fields by name: a mapping, a list of several mappings, or another value for no fields.
Fields = Mapping[str, Any]

# Records may contain records of their own type.
_DEEPEST = 8


class FieldNames:
    """Finder of field names in records of a payload; keeps the names by schema."""

    def __init__(self, payload: PayloadFormats, format_name: str, *, is_key: bool = False) -> None:
        self._payload, self._format, self._is_key = payload, format_name, is_key
        self._envelope = None if is_key else payload.envelope
        self._is_wrapped = payload.envelope is not None and ValueEnvelope.CONNECT in payload.row.envelopes
        self._of_schemas: dict[SchemaText, Fields] = {}

    @property
    def are_known(self) -> bool:
        """Whether records of the format have names for fields."""
        return self._format in (ValueFormat.JSON, ValueFormat.JSON_SCHEMA) or self._format in _BY_SCHEMA

    def of(self, value: bytes) -> Fields:
        """Return the fields of a record by the names after `rename_columns`; no fields for an invalid record.

        Of a change event, these are the fields of the row; of a key, the fields of the key.
        """
        try:
            fields = self._of_record(value)
        except (Misfit, SchemaRefused):
            return {}
        if self._envelope == ValueEnvelope.DEBEZIUM:
            fields = next((fields[image] for image in reversed(IMAGES) if fields.get(image)), {})
        fields = inside(fields)
        if self._is_key:
            return fields
        # By the names of their columns.
        return dict(zip(self._payload.new_names.of(list(fields)), fields.values(), strict=True))

    def _of_record(self, value: bytes) -> Fields:
        # The writer's schema gives the names for Avro and Protobuf, the document itself for JSON.
        if self._format in _BY_SCHEMA:
            found = self._payload.schema_of(self._format, value)
            if found is None:
                return {}
            if found not in self._of_schemas:
                self._of_schemas[found] = _BY_SCHEMA[self._format](found)
            return self._of_schemas[found]
        document = parse_object(value[HEADER:] if self._format == ValueFormat.JSON_SCHEMA else value)
        if self._is_wrapped and set(document) == {"schema", "payload"}:
            document = document["payload"]
        return inside(document)


def _of_avro(found: SchemaText) -> Fields:
    return _inside_avro(avro_schema.parse(found.text, found.texts), 0) or {}


def _inside_avro(node: avro_schema.Node, depth: int) -> Any:
    # Returns the fields inside a type by name, a list of several mappings for a union, or None without fields.
    if isinstance(node, avro_schema.AvroUnion):
        return [_inside_avro(branch, depth) for _, branch in node.values]
    if isinstance(node, avro_schema.AvroArray):
        return _inside_avro(node.items, depth)
    if not isinstance(node, avro_schema.Record) or depth > _DEEPEST:
        return None
    fields = {name: _inside_avro(kind, depth + 1) for name, kind in node.fields}
    # A column may be named by an alias of a field.
    return {alias: fields[name] for name in fields for alias in node.field_aliases.get(name, ())} | fields


def _of_protobuf(found: SchemaText) -> Fields:
    return _inside_message(compile_proto(found.text, found.references).descriptor(found.message), 0)


def _inside_message(descriptor: Any, depth: int) -> Fields:
    if depth > _DEEPEST:
        return {}
    return {
        one.name: None if one.message_type is None or is_map(one) else _inside_message(one.message_type, depth + 1)
        for one in descriptor.fields
    }


_BY_SCHEMA: Mapping[str, Callable[[SchemaText], Fields]] = {
    ValueFormat.AVRO: _of_avro,
    ValueFormat.PROTOBUF: _of_protobuf,
}


def inside(fields: Any) -> Fields:
    """Return the fields inside a field: of a record, or of all records in a list; no fields for another value."""
    if isinstance(fields, Mapping):
        return fields
    if not isinstance(fields, list):
        return {}
    merged: dict[str, Any] = {}
    for one in fields:
        merged.update(inside(one))
    return merged
