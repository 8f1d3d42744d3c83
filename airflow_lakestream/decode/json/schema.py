"""JSON messages in the wire format that Confluent's serializer for JSON Schema writes, and their schemas as columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.policies import UnknownFields, choose
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.lanes import confluent
from airflow_lakestream.decode.lanes.confluent import HEADER
from airflow_lakestream.decode.lanes.lanes import Integers, Lanes, cut
from airflow_lakestream.decode.values.outcome import BadRow, Decoded, SchemaRefused

_DEEPEST = 64


class _Decoder(Protocol):
    def decode(self, batch: RawBatch) -> Decoded: ...


class JsonSchemaDecoder:
    """Takes the framing off, and leaves the rest to the decoder of plain JSON: a row is what the columns say.

    Records are not validated against their schemas: what the columns need is checked by the decoder.

    :param documents: makes the decoder of plain JSON, of a schema and a policy for unknown fields.
    """

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: UnknownFields | str,
        documents: Callable[[pa.Schema, UnknownFields], _Decoder],
    ) -> None:
        self.schema = schema
        self.unknown_fields = choose(UnknownFields, "unknown_fields", unknown_fields)
        self._make = documents
        self._documents = documents(schema, self.unknown_fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, str(self.unknown_fields), self._make)

    def decode(self, batch: RawBatch) -> Decoded:
        """Return the rows of a batch, and its bad records."""
        framed = unframe(batch.values)
        count = len(framed.places)
        inner = RawBatch(batch.topic, batch.partition, range(count), [-1] * count, framed.values)
        decoded = self._documents.decode(inner)
        bad = [BadRow(int(framed.places[row.index]), row.reason, framed.schema_id(row.index)) for row in decoded.bad]
        bad += [BadRow(index, _NO_FRAME) for index in framed.unframed]
        return Decoded(decoded.rows, sorted(bad, key=lambda row: row.index))


_NO_FRAME = "the value does not begin as Confluent's wire format does: a zero and a schema id"


@dataclass(frozen=True)
class Framed:
    """Values without their frames, where they were, the ids of their schemas (-1: null), and where there was no frame.

    A null has no frame, and stays what it is.
    """

    values: pa.Array
    places: Integers
    ids: Integers
    unframed: list[int]

    def schema_id(self, row: int) -> int | None:
        """Return the id of the schema of one of the values."""
        return int(self.ids[row]) if self.ids[row] >= 0 else None


def unframe(values: pa.Array) -> Framed:
    """Take the frames off."""
    lanes = Lanes.over(values)
    null = values.is_null().to_numpy(zero_copy_only=False)
    framed = confluent.is_framed(lanes) & (lanes.end - lanes.pos >= HEADER)
    kept = framed | null
    ids = np.where(null, -1, confluent.schema_ids(lanes, framed))
    inner = values if kept.all() else values.filter(pa.array(kept))
    return Framed(cut(inner, HEADER), np.flatnonzero(kept), ids[kept], np.flatnonzero(~kept).tolist())


def arrow_schema(text: str, references: Iterable[tuple[str, str]] = ()) -> pa.Schema:
    """Return the columns that a table for documents of this schema has. Raises SchemaRefused, with the field's path.

    :param references: what `$ref` may name, as (name, text).
    """
    try:
        schema = json.loads(text)
        named = {name: json.loads(content) for name, content in references}
    except ValueError:
        raise SchemaRefused("The JSON schema is not JSON.") from None
    return pa.schema(_Columns(schema, named).fields(schema, "", 0))


class References:
    """Finds what a schema names by `$ref`: parts of its own, and other schemas by their names."""

    def __init__(self, root: Any, named: dict[str, Any]) -> None:
        self.root = root
        self._named = named

    def resolved(self, schema: Any, path: str) -> dict[str, Any]:
        """Return a schema, or the one that it names. Raises SchemaRefused."""
        for _ in range(_DEEPEST):
            if not isinstance(schema, dict):
                raise SchemaRefused(f"{path or 'The JSON schema'}: anything is allowed here: give the column's type.")
            if "$ref" not in schema:
                return schema
            schema = self._target(str(schema["$ref"]), path)
        raise SchemaRefused(f"{path}: references in a circle.")

    def _target(self, reference: str, path: str) -> Any:
        document, _, pointer = reference.partition("#")
        found = self._named.get(document) if document else self.root
        for step in filter(None, pointer.split("/")):
            key = step.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            raise SchemaRefused(f"{path}: {reference} is not to be found.")
        return found


class _Columns(References):
    """The columns of one schema, whose references are resolved on the way."""

    def fields(self, schema: Any, path: str, depth: int) -> list[pa.Field]:
        schema = self.resolved(schema, path)
        properties = schema.get("properties")
        if not isinstance(properties, dict) or not properties:
            raise SchemaRefused(f"{path or 'The JSON schema'}: an object without properties can't become columns.")
        if depth > _DEEPEST:
            raise SchemaRefused(f"{path}: nested deeper than {_DEEPEST} levels, or in itself: leave the field out.")
        required = schema.get("required") or []
        made = []
        for name, inner in properties.items():
            kind, nullable = self._kind(inner, f"{path}.{name}" if path else name, depth)
            made.append(pa.field(name, kind, nullable=nullable or name not in required))
        return made

    def _kind(self, schema: Any, path: str, depth: int) -> tuple[pa.DataType, bool]:
        schema = self.resolved(schema, path)
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices:
            values = [choice for choice in choices if choice != {"type": "null"}]
            if len(values) != 1:
                raise SchemaRefused(f"{path}: one of several types: give the column's type.")
            return self._kind(values[0], path, depth)[0], len(values) < len(choices)
        kinds = schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        types = [kind for kind in kinds if kind not in ("null", None)]
        if len(types) != 1:
            raise SchemaRefused(f"{path}: one of several types, or none given: give the column's type.")
        return self._single(str(types[0]), schema, path, depth), "null" in kinds

    def _single(self, kind: str, schema: dict[str, Any], path: str, depth: int) -> pa.DataType:
        if kind == "object" and not schema.get("properties") and isinstance(schema.get("additionalProperties"), dict):
            value, nullable = self._kind(schema["additionalProperties"], f"{path}{{}}", depth + 1)
            return pa.map_(pa.string(), pa.field("value", value, nullable=nullable))
        if kind == "object":
            return pa.struct(self.fields(schema, path, depth + 1))
        if kind == "array":
            item, nullable = self._kind(schema.get("items"), f"{path}[]", depth + 1)
            return pa.list_(pa.field("element", item, nullable=nullable))
        if kind == "string":
            return _FORMATS.get(str(schema.get("format")), pa.string())
        if kind not in _TYPES:
            raise SchemaRefused(f"{path}: {kind} is no type of JSON Schema.")
        return _TYPES[kind]


_TYPES = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}

_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32(), "uuid": pa.uuid()}
