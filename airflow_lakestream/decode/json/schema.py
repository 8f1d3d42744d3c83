"""JSON Schema: messages in the wire format of Confluent's serializer, and a table's columns from a schema.

A schema can have references and alternatives. It is first split into alternatives without references; a column's type
then fits the values of all alternatives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import UnknownFields, choose
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.lanes.framed import HEADER, is_framed, schema_ids
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, cut
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, SchemaRefused


class _DocumentDecoder(Protocol):
    def decode(self, batch: RawBatch) -> DecoderResult: ...


class JsonSchemaDecoder:
    """Decoder of JSON with a frame (a zero and a schema id): removes the frames, and decodes the plain documents.

    Records are not validated against their schemas: the decoder of plain JSON checks them against the columns.

    :param documents: returns a decoder of plain JSON, given a schema and a policy for unknown fields.
    """

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: UnknownFields | str,
        documents: Callable[[pa.Schema, UnknownFields], _DocumentDecoder],
    ) -> None:
        self.schema = schema
        self.unknown_fields = choose(UnknownFields, "unknown_fields", unknown_fields)
        self._make = documents
        self._documents = documents(schema, self.unknown_fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, str(self.unknown_fields), self._make)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        framed = unframe(batch.values)
        count = len(framed.places)
        inner = RawBatch(batch.topic, batch.partition, range(count), [-1] * count, framed.values)
        decoded = self._documents.decode(inner)
        bad = [BadRow(int(framed.places[row.index]), row.reason, framed.schema_id(row.index)) for row in decoded.bad]
        bad += [BadRow(index, _NO_FRAME) for index in framed.unframed]
        return DecoderResult(decoded.rows, sorted(bad, key=lambda row: row.index))


_NO_FRAME = "the value does not begin as Confluent's wire format does: a zero and a schema id"


@dataclass(frozen=True)
class FramedValues:
    """Values without their frames.

    For each of `values`, `places` has the position in the batch, and `ids` the schema id, or -1 for a null, which needs
    no frame. `unframed` has the positions of values that lack a frame.
    """

    values: pa.Array
    places: Integers
    ids: Integers
    unframed: list[int]

    def schema_id(self, row: int) -> int | None:
        """Return the schema id of a value, or None for a null."""
        return int(self.ids[row]) if self.ids[row] >= 0 else None


def unframe(values: pa.Array) -> FramedValues:
    """Return the values without their frames, and the positions of values that lack a frame."""
    lanes = ByteLanes.over(values)
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    framed = is_framed(lanes) & (lanes.end - lanes.pos >= HEADER)
    kept = framed | is_null
    ids = np.where(is_null, -1, schema_ids(lanes, framed))
    inner = values if kept.all() else values.filter(pa.array(kept))
    return FramedValues(cut(inner, HEADER), np.flatnonzero(kept), ids[kept], np.flatnonzero(~kept).tolist())


# The deepest level of nested types.
_DEEPEST = 64
# The most alternatives and fields: parts that refer twice to parts that refer twice to parts, and so on, would keep a
# run busy for ever.
_MOST_ALTERNATIVES = 1_000
_MOST_FIELDS = 10_000

NUMBERS = frozenset({"integer", "number"})
_TYPES = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"boolean"}),
    "integer": frozenset({"integer"}),
    # Each integer is a number.
    "number": NUMBERS,
    "string": frozenset({"string"}),
    "array": frozenset({"array"}),
    "object": frozenset({"object"}),
}
_ANY = frozenset[str]().union(*_TYPES.values())
# The columns' types for formats of strings; and the drafts in which keywords next to `$ref` have an effect.
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32(), "uuid": pa.uuid()}
_NEWER = ("2019-09", "2020-12")

_GIVE = "give the columns as schema, with a type for it (string takes any value as its text)"
_LEAVE_OUT = "give the columns as schema, without it"

# A schema without `$ref`, `allOf`, `anyOf` and `oneOf`, whose `type` is a set of types.
Alternative = dict[str, Any]
Word = TypeVar("Word", dict[str, Any], list[Any])


def arrow_schema(text: str, references: Iterable[tuple[str, str]] = ()) -> pa.Schema:
    """Return the columns of a table for documents of this schema. Raises SchemaRefused, with the field's path.

    :param references: the schemas that `$ref` may name, as (name, text).
    """
    try:
        columns = _SchemaColumns(text, references)
        kind = columns.kind(columns.root, "", 0)[0]
    except SchemaRefused:
        raise
    except ValueError:
        raise SchemaRefused("The JSON schema is not JSON.") from None
    except RecursionError:
        raise SchemaRefused(f"The JSON schema is nested too deep: {_LEAVE_OUT}.") from None
    if not t.is_struct(kind):
        raise SchemaRefused(
            "The JSON schema: no object with properties, which columns need: give the columns as schema."
        )
    return pa.schema(list(kind))


def _of_document(schema: Any, name: str) -> Any:
    """Return the schema with the document's name in its references to parts of the document itself."""
    if isinstance(schema, list):
        return [_of_document(part, name) for part in schema]
    if not isinstance(schema, dict):
        return schema
    named = {word: _of_document(value, name) for word, value in schema.items()}
    if isinstance(named.get("$ref"), str) and named["$ref"].startswith("#"):
        named["$ref"] = f"{name}{named['$ref']}"
    return named


class SchemaAlternatives:
    """Finder of the alternatives that a schema allows: a valid value is allowed by at least one `Alternative`.

    :param references: the schemas that `$ref` may name, as (name, text).

    Raises ValueError for a text that is not JSON.
    """

    def __init__(self, text: str, references: Iterable[tuple[str, str]] = ()) -> None:
        documents = (*references, ("", text))
        self._documents = {name: _of_document(json.loads(document), name) for name, document in documents}
        self._resolved: dict[str, list[Alternative]] = {}
        # The references that are being resolved: one of them, again, is a circle.
        self._open: set[str] = set()

    @property
    def root(self) -> Any:
        """Schema of the document itself."""
        return self._documents[""]

    def of(self, schema: Any, where: str) -> list[Alternative]:
        """Return the alternatives allowed by a schema; the list is empty if no value is allowed.

        :param where: name of the place for errors.

        Raises SchemaRefused for an unknown reference, a circle of references, an unknown type, or too many
        alternatives.
        """
        if not isinstance(schema, dict):
            return [] if schema is False else [{"type": _ANY}]
        parts: list[list[Alternative]] = []
        if "$ref" in schema:
            parts.append(self._target(str(schema["$ref"]), where))
            if not any(draft in str(_get(self._documents, "", {}).get("$schema")) for draft in _NEWER):
                # In older drafts, keywords next to `$ref` have no effect.
                return parts[0]
        parts += [self.of(part, where) for part in _get(schema, "allOf", [])]
        for word in ("anyOf", "oneOf"):
            if choices := _get(schema, word, []):
                parts.append([alternative for choice in choices for alternative in self.of(choice, where)])
        alternatives = [{**schema, "type": _types(schema, where)}]
        for part in parts:
            if len(alternatives) * len(part) > _MOST_ALTERNATIVES:
                raise SchemaRefused(f"{where}: more than {_MOST_ALTERNATIVES} alternatives: {_GIVE}.")
            pairs = [_both(alternative, other) for alternative in alternatives for other in part]
            alternatives = [both for both in pairs if both["type"]]
        return alternatives

    def _target(self, reference: str, where: str) -> list[Alternative]:
        """Return the alternatives of the schema that a reference names. Raises the errors of `of`."""
        if reference in self._open:
            raise SchemaRefused(f"{where}: references in a circle: {_LEAVE_OUT}.")
        if reference not in self._resolved:
            document, _, pointer = reference.partition("#")
            target = self._documents.get(document)
            for step in filter(None, pointer.split("/")):
                target = _inside(target, unquote(step).replace("~1", "/").replace("~0", "~"))
            if target is None:
                raise SchemaRefused(f"{where}: {reference} is not to be found: {_GIVE}.")
            self._open.add(reference)
            self._resolved[reference] = self.of(target, where)
            self._open.remove(reference)
        return self._resolved[reference]


class _SchemaColumns(SchemaAlternatives):
    """Columns of a schema. The methods raise SchemaRefused."""

    # The number of fields so far.
    _fields = 0

    def kind(self, schema: Any, path: str, depth: int) -> tuple[pa.DataType, bool]:
        """Return the type of a column for the values of all alternatives, and whether null is allowed."""
        where = path or "The JSON schema"
        if depth > _DEEPEST:
            raise SchemaRefused(f"{where}: nested deeper than {_DEEPEST} levels, or in itself: {_LEAVE_OUT}.")
        alternatives = [_implied(alternative) for alternative in self.of(schema, where)]
        types = frozenset[str]().union(*(alternative["type"] for alternative in alternatives))
        values = types - {"null"}
        if types == _ANY:
            raise SchemaRefused(f"{where}: anything is allowed here: {_GIVE}.")
        if not values:
            only = "its only type is null" if types else "no value is allowed here"
            raise SchemaRefused(f"{where}: {only}: {_LEAVE_OUT}.")
        return self._of_values(values, alternatives, path, depth), "null" in types

    def _of_values(self, types: frozenset[str], alternatives: list[Alternative], path: str, depth: int) -> pa.DataType:
        """Return the column's type for values of these types, null excluded; only numbers may be of two types."""
        if types <= NUMBERS:
            return pa.float64() if "number" in types else pa.int64()
        if len(types) > 1:
            names = ", ".join(sorted(types - {"integer"} if types >= NUMBERS else types))
            raise SchemaRefused(f"{path or 'The JSON schema'}: one of several types ({names}): {_GIVE}.")
        (kind,) = types
        alternatives = [alternative for alternative in alternatives if kind in alternative["type"]]
        if kind == "boolean":
            return pa.bool_()
        if kind == "string":
            formats = {_FORMATS.get(str(alternative.get("format")), pa.string()) for alternative in alternatives}
            return formats.pop() if len(formats) == 1 else pa.string()
        if kind == "array":
            items: list[Any] = []
            for alternative in alternatives:
                items += [*_get(alternative, "prefixItems", []), alternative.get("items", True)]
            item, nullable = self.kind({"anyOf": items}, f"{path}[]", depth + 1)
            return pa.list_(pa.field("element", item, nullable=nullable))
        return self._object(alternatives, path, depth)

    def _object(self, alternatives: list[Alternative], path: str, depth: int) -> pa.DataType:
        """Return the type for objects: a struct of all properties, a map, or text if any member is allowed."""
        properties = [_get(alternative, "properties", {}) for alternative in alternatives]
        members = [_members(alternative) for alternative in alternatives]
        # An alternative that allows no member at all, like a class without fields, fits any struct.
        if any(properties) and all(p or m == [] for p, m in zip(properties, members, strict=True)):
            return pa.struct(self._struct(alternatives, properties, path, depth))
        if not any(properties) and any(members) and None not in members:
            values = [schema for schemas in members for schema in schemas or ()]
            value, nullable = self.kind({"anyOf": values}, f"{path}{{}}", depth + 1)
            return pa.map_(pa.string(), pa.field("value", value, nullable=nullable))
        return pa.string()

    def _struct(
        self, alternatives: list[Alternative], properties: list[dict[str, Any]], path: str, depth: int
    ) -> Iterable[pa.Field]:
        """Return a field for each property; a field is required if all alternatives require the property."""
        fields = []
        for name in dict.fromkeys(name for by_name in properties for name in by_name):
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise SchemaRefused(f"The JSON schema has more than {_MOST_FIELDS} fields: give the columns as schema.")
            inner = {"anyOf": [by_name[name] for by_name in properties if name in by_name]}
            kind, nullable = self.kind(inner, f"{path}.{name}" if path else name, depth + 1)
            is_required = all(name in _get(alternative, "required", []) for alternative in alternatives)
            fields.append(pa.field(name, kind, nullable=nullable or not is_required))
        return fields


def _inside(schema: Any, key: str) -> Any:
    """Return the part of a schema at a step of a pointer, or None if the part is missing."""
    if isinstance(schema, list):
        return schema[int(key)] if key.isdecimal() and int(key) < len(schema) else None
    return schema.get(key) if isinstance(schema, dict) else None


def _get(schema: Any, word: str, default: Word) -> Word:
    """Return a schema's value for a keyword, or the default if the value has the wrong type."""
    value = schema.get(word) if isinstance(schema, dict) else None
    return value if isinstance(value, type(default)) else default


def _types(schema: dict[str, Any], where: str) -> frozenset[str]:
    """Return the types allowed by a schema's own keywords: `type`, or the types of the values in `const` or `enum`."""
    if (given := schema.get("type")) is not None:
        names = [str(name) for name in (given if isinstance(given, list) else [given])]
        if unknown := [name for name in names if name not in _TYPES]:
            raise SchemaRefused(f"{where}: {unknown[0]} is not a type of JSON Schema: {_GIVE}.")
        return frozenset[str]().union(*(_TYPES[name] for name in names))
    values = [schema["const"]] if "const" in schema else _get(schema, "enum", [])
    return frozenset(map(_type_of, values)) or _ANY


def _type_of(value: Any) -> str:
    if isinstance(value, float):
        return "integer" if value.is_integer() else "number"
    names = {type(None): "null", bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _implied(alternative: Alternative) -> Alternative:
    """Return an alternative with the type that `properties` or `items` imply, if all types are allowed."""
    if alternative["type"] != _ANY:
        return alternative
    if _get(alternative, "properties", {}):
        return {**alternative, "type": _TYPES["object"]}
    return {**alternative, "type": _TYPES["array"]} if "items" in alternative else alternative


def _members(alternative: Alternative) -> list[Any] | None:
    """Return the schemas of an object's members except properties, or None if any member is allowed.

    An empty list allows no further member.
    """
    patterns = list(_get(alternative, "patternProperties", {}).values())
    further = alternative.get("additionalProperties")
    if further is False or (further is None and patterns):
        return patterns
    return [*patterns, further] if isinstance(further, dict) and further else None


def _both(first: Alternative, second: Alternative) -> Alternative:
    """Return the alternative for the values that both alternatives allow; its `type` is empty if there are none."""
    both = {**first, **second, "type": first["type"] & second["type"]}
    for word in ("properties", "patternProperties"):
        members, others = _get(first, word, {}), _get(second, word, {})
        shared = {name: {"allOf": [members[name], others[name]]} for name in members if name in others}
        both[word] = members | others | shared
    both["required"] = _get(first, "required", []) + _get(second, "required", [])
    for word in ("items", "additionalProperties"):
        if isinstance(first.get(word), dict) and isinstance(second.get(word), dict):
            both[word] = {"allOf": [first[word], second[word]]}
    return both
