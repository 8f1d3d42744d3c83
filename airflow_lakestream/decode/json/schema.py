"""JSON Schema: messages in the wire format of Confluent's serializer, and a table's columns from a generated schema.

A schema can have references and alternatives. It is first split into alternatives that have neither; the column's type
fits the values of all alternatives.
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
    """Decoder of framed JSON: removes the frames, and passes the documents to the decoder of plain JSON.

    Records are not validated against their schemas: the decoder checks them against the columns.

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
    """Values without their frames, and the positions of values that lack a frame, in `unframed`.

    For each of `values`, `places` has the position in the batch, and `ids` the schema id, or -1 for a null. A null
    needs no frame, and stays null.
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
    null = values.is_null().to_numpy(zero_copy_only=False)
    framed = is_framed(lanes) & (lanes.end - lanes.pos >= HEADER)
    kept = framed | null
    ids = np.where(null, -1, schema_ids(lanes, framed))
    inner = values if kept.all() else values.filter(pa.array(kept))
    return FramedValues(cut(inner, HEADER), np.flatnonzero(kept), ids[kept], np.flatnonzero(~kept).tolist())


_DEEPEST = 64
# A part with two references to a part with two references, and so on, would keep a run busy for ever.
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
_FORMATS = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32(), "uuid": pa.uuid()}
_NEWER = ("2019-09", "2020-12")

_GIVE = "give the columns as schema, with a type for it (string takes any value as its text)"
_LEAVE_OUT = "give the columns as schema, without it"

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
    """Return the schema, with the document's name put ahead of references to places inside the document."""
    if isinstance(schema, list):
        return [_of_document(one, name) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {word: _of_document(value, name) for word, value in schema.items()}
    if isinstance(made.get("$ref"), str) and made["$ref"].startswith("#"):
        made["$ref"] = f"{name}{made['$ref']}"
    return made


class SchemaAlternatives:
    """Finder of the alternatives that a schema allows.

    An alternative is a schema without `$ref`, `allOf`, `anyOf` and `oneOf`, whose `type` is a set of types. A valid
    value is allowed by at least one alternative.

    :param text: the schema; `references` are the schemas that `$ref` may name, as (name, text).

    Raises ValueError for a text that is not JSON.
    """

    def __init__(self, text: str, references: Iterable[tuple[str, str]] = ()) -> None:
        self._documents = {name: _of_document(json.loads(one), name) for name, one in (*references, ("", text))}
        self._resolved: dict[str, list[Alternative]] = {}
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
        parts += [
            [one for choice in _get(schema, word, []) for one in self.of(choice, where)]
            for word in ("anyOf", "oneOf")
            if _get(schema, word, [])
        ]
        found = [{**schema, "type": _types(schema, where)}]
        for part in parts:
            if len(found) * len(part) > _MOST_ALTERNATIVES:
                raise SchemaRefused(f"{where}: more than {_MOST_ALTERNATIVES} alternatives: {_GIVE}.")
            found = [both for one in found for other in part if (both := _both(one, other))["type"]]
        return found

    def _target(self, reference: str, where: str) -> list[Alternative]:
        # Returns the alternatives of the schema that a reference names; `_open` has the references on the way to this
        # one.
        if reference in self._open:
            raise SchemaRefused(f"{where}: references in a circle: {_LEAVE_OUT}.")
        if reference not in self._resolved:
            document, _, pointer = reference.partition("#")
            found = self._documents.get(document)
            for step in filter(None, pointer.split("/")):
                found = _inside(found, unquote(step).replace("~1", "/").replace("~0", "~"))
            if found is None:
                raise SchemaRefused(f"{where}: {reference} is not to be found: {_GIVE}.")
            self._open.add(reference)
            self._resolved[reference] = self.of(found, where)
            self._open.remove(reference)
        return self._resolved[reference]


class _SchemaColumns(SchemaAlternatives):
    """Columns of a schema. The methods raise SchemaRefused."""

    _fields = 0

    def kind(self, schema: Any, path: str, depth: int) -> tuple[pa.DataType, bool]:
        """Return the type of a column for the schema's values, and whether null is allowed.

        The type fits the values of all alternatives.
        """
        where = path or "The JSON schema"
        if depth > _DEEPEST:
            raise SchemaRefused(f"{where}: nested deeper than {_DEEPEST} levels, or in itself: {_LEAVE_OUT}.")
        found = [_implied(one) for one in self.of(schema, where)]
        types = frozenset[str]().union(*(one["type"] for one in found))
        values = types - {"null"}
        if types == _ANY:
            raise SchemaRefused(f"{where}: anything is allowed here: {_GIVE}.")
        if not values:
            only = "its only type is null" if types else "no value is allowed here"
            raise SchemaRefused(f"{where}: {only}: {_LEAVE_OUT}.")
        return self._of_values(values, found, path, depth), "null" in types

    def _of_values(self, types: frozenset[str], found: list[Alternative], path: str, depth: int) -> pa.DataType:
        # Returns the type for values of these types, null excluded; only numbers may be of two types.
        if types <= NUMBERS:
            return pa.float64() if "number" in types else pa.int64()
        if len(types) > 1:
            names = ", ".join(sorted(types - {"integer"} if types >= NUMBERS else types))
            raise SchemaRefused(f"{path or 'The JSON schema'}: one of several types ({names}): {_GIVE}.")
        (kind,) = types
        found = [one for one in found if kind in one["type"]]
        if kind == "boolean":
            return pa.bool_()
        if kind == "string":
            formats = {_FORMATS.get(str(one.get("format")), pa.string()) for one in found}
            return formats.pop() if len(formats) == 1 else pa.string()
        if kind == "array":
            items = [item for one in found for item in (*_get(one, "prefixItems", []), one.get("items", True))]
            item, nullable = self.kind({"anyOf": items}, f"{path}[]", depth + 1)
            return pa.list_(pa.field("element", item, nullable=nullable))
        return self._object(found, path, depth)

    def _object(self, found: list[Alternative], path: str, depth: int) -> pa.DataType:
        """Return the type for objects: a struct of all properties, a map, or text if any member is allowed."""
        properties = [_get(one, "properties", {}) for one in found]
        members = [_members(one) for one in found]
        # An alternative without any property, like a class without fields, fits any struct.
        if any(properties) and all(p or m == [] for p, m in zip(properties, members, strict=True)):
            return pa.struct(self._struct(found, properties, path, depth))
        if not any(properties) and any(members) and None not in members:
            inside = [one for some in members for one in some or ()]
            value, nullable = self.kind({"anyOf": inside}, f"{path}{{}}", depth + 1)
            return pa.map_(pa.string(), pa.field("value", value, nullable=nullable))
        return pa.string()

    def _struct(
        self, found: list[Alternative], properties: list[dict[str, Any]], path: str, depth: int
    ) -> Iterable[pa.Field]:
        # A field is required if all alternatives require the property.
        made = []
        for name in dict.fromkeys(name for some in properties for name in some):
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise SchemaRefused(f"The JSON schema has more than {_MOST_FIELDS} fields: give the columns as schema.")
            inner = {"anyOf": [some[name] for some in properties if name in some]}
            kind, nullable = self.kind(inner, f"{path}.{name}" if path else name, depth + 1)
            required = all(name in _get(one, "required", []) for one in found)
            made.append(pa.field(name, kind, nullable=nullable or not required))
        return made


def _inside(schema: Any, key: str) -> Any:
    """Return the part of a schema at a step of a pointer, or None if the part is missing."""
    if isinstance(schema, list):
        return schema[int(key)] if key.isdecimal() and int(key) < len(schema) else None
    return schema.get(key) if isinstance(schema, dict) else None


def _get(schema: Any, word: str, default: Word) -> Word:
    """Return a schema's value for a keyword, or the default if the value has the wrong type."""
    found = schema.get(word) if isinstance(schema, dict) else None
    return found if isinstance(found, type(default)) else default


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


def _implied(one: Alternative) -> Alternative:
    """Return an alternative with the type implied by `properties` or `items`, if all types are allowed."""
    if one["type"] == _ANY and _get(one, "properties", {}):
        return {**one, "type": _TYPES["object"]}
    return {**one, "type": _TYPES["array"]} if one["type"] == _ANY and "items" in one else one


def _members(one: Alternative) -> list[Any] | None:
    """Return the schemas of members except properties, or None if any member is allowed.

    An empty list allows no further member.
    """
    patterns, others = list(_get(one, "patternProperties", {}).values()), one.get("additionalProperties")
    if others is False or (others is None and patterns):
        return patterns
    return [*patterns, others] if isinstance(others, dict) and others else None


def _both(one: Alternative, other: Alternative) -> Alternative:
    """Return the alternative for values allowed by both alternatives; its `type` is empty if no value is."""
    both = {**one, **other, "type": one["type"] & other["type"]}
    shared = {word: (_get(one, word, {}), _get(other, word, {})) for word in ("properties", "patternProperties")}
    for word, (first, second) in shared.items():
        alike = {name: {"allOf": [first[name], second[name]]} for name in first if name in second}
        both[word] = first | second | alike
    both["required"] = _get(one, "required", []) + _get(other, "required", [])
    for word in ("items", "additionalProperties"):
        if isinstance(one.get(word), dict) and isinstance(other.get(word), dict):
            both[word] = {"allOf": [one[word], other[word]]}
    return both
