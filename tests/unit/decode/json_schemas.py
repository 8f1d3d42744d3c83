"""JSON Schemas as generators write them, with values that they allow and the rows that are right for these.

The first are shapes of generators that are in wide use: `JAVA` is what mbknor's makes for Confluent's Java serializer.
`schemas` draws others of the same constructs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

NOTHING = {"type": "null", "title": "Not included"}


def optional(schema: Any) -> dict[str, Any]:
    return {"oneOf": [NOTHING, schema]}


JAVA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer"},
        "ratio": {"type": "number"},
        "customer": optional({"type": "string"}),
        "state": optional({"type": "string", "enum": ["NEW", "PAID"]}),
        "at": optional({"type": "string", "format": "date-time"}),
        "day": optional({"type": "string", "format": "date"}),
        "address": optional({"$ref": "#/definitions/Address"}),
        "lines": optional({"type": "array", "items": {"$ref": "#/definitions/Line"}}),
        "labels": optional({"type": "object", "additionalProperties": {"type": "string"}}),
        "extra": optional({"type": "object", "additionalProperties": True}),
        "payment": optional({"oneOf": [{"$ref": "#/definitions/Card"}, {"$ref": "#/definitions/Cash"}]}),
    },
    "required": ["id", "ratio"],
    "definitions": {
        "Address": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"street": optional({"type": "string"}), "zip": optional({"type": "integer"})},
        },
        "Line": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["sku", "count"],
        },
        "Card": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "kind": {"type": "string", "enum": ["card"], "default": "card"},
                "digits": optional({"type": "string"}),
            },
            "title": "card",
            "required": ["kind"],
        },
        "Cash": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "kind": {"type": "string", "enum": ["cash"], "default": "cash"},
                "change": {"type": "number"},
            },
            "title": "cash",
            "required": ["kind", "change"],
        },
    },
}
ORDERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {
            "id": 1,
            "ratio": 0.5,
            "customer": "é",
            "state": "NEW",
            "at": "2026-11-20T05:05:00.5Z",
            "day": "2026-11-20",
            "address": {"street": "Main", "zip": None},
            "lines": [{"sku": "a", "count": 2}],
            "labels": {"a": "b"},
            "extra": {"n": 1.50, "m": [True]},
            "payment": {"kind": "card", "digits": "1234"},
        },
        {
            "id": 1,
            "ratio": 0.5,
            "customer": "é",
            "state": "NEW",
            "at": datetime(2026, 11, 20, 5, 5, 0, 500_000, UTC),
            "day": date(2026, 11, 20),
            "address": {"street": "Main", "zip": None},
            "lines": [{"sku": "a", "count": 2}],
            "labels": [("a", "b")],
            "extra": '{"n":1.5,"m":[true]}',
            "payment": {"kind": "card", "digits": "1234", "change": None},
        },
    ),
    (
        {"id": 2, "ratio": 3, "customer": None, "lines": [], "payment": {"kind": "cash", "change": 0.25}},
        dict.fromkeys(("customer", "state", "at", "day", "address", "labels", "extra"))
        | {"id": 2, "ratio": 3.0, "lines": [], "payment": {"kind": "cash", "digits": None, "change": 0.25}},
    ),
]

# In other generators' words: the schema of the field v, the column, a value, and what lands.
FIELDS: dict[str, tuple[Any, str, Any, Any]] = {
    "Pydantic: Optional[str]": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string", None, None),
    "Pydantic 1: a model with a default": (
        {"default": {}, "allOf": [{"$ref": "#/$defs/P"}]}, "struct<x: bigint>", {"x": 1}, {"x": 1},
    ),
    "Pydantic: Literal": ({"const": "a", "title": "V"}, "string", "a", "a"),
    "Pydantic: an enum of ints": ({"enum": [1, 2], "title": "V"}, "bigint", 2, 2),
    "Pydantic: a union of models": (
        {"anyOf": [{"$ref": "#/$defs/P"}, {"$ref": "#/$defs/Q"}]},
        "struct<x: bigint, y: string>", {"y": "b"}, {"x": None, "y": "b"},
    ),
    "Pydantic: dict[str, float]": ({"type": "object", "additionalProperties": {"type": "number"}},
        "map<string, double>", {"a": 1}, [("a", 1.0)]),
    "Pydantic: an address, IPv4 or IPv6": (
        {"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]}, "string", "::", "::",
    ),
    "NJsonSchema: a base class": (
        {"allOf": [{"$ref": "#/$defs/P"}, {"type": "object", "properties": {"z": {"type": "boolean"}}}]},
        "struct<x: bigint, z: boolean>", {"x": 1, "z": True}, {"x": 1, "z": True},
    ),
    "NJsonSchema: a nullable reference": (
        {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/P"}]}, "struct<x: bigint>", None, None,
    ),
    "victools: nullable, with a remark": (
        {"anyOf": [{"type": "null"}, {"allOf": [{"$ref": "#/$defs/P"}, {"description": "it"}]}]},
        "struct<x: bigint>", {"x": 3}, {"x": 3},
    ),
    "victools: a name that URIs escape": ({"$ref": "#/$defs/Map%28String%2C~1%29"}, "map<string, bigint>", {"a": 1},
        [("a", 1)]),
    "invopop (Go): a map": ({"type": "object", "patternProperties": {".*": {"type": "integer"}}},
        "map<string, bigint>", {"a": 1}, [("a", 1)]),
    "invopop (Go): any in a map": ({"type": "object", "additionalProperties": True}, "string", {"a": [1]}, '{"a":[1]}'),
    "TypeScript: any object": ({"type": "object", "additionalProperties": {}}, "string", {"a": 1}, '{"a":1}'),
    "TypeScript: an empty interface": ({"type": "object", "additionalProperties": False}, "string", {}, "{}"),
    "a free object": ({"type": "object"}, "string", {"b": 1e3}, '{"b":1000.0}'),
    "free objects in a list": ({"type": "array", "items": {"type": "object"}}, "array<string>", [{}], ["{}"]),
    "a class without fields beside one": (
        {"oneOf": [{"$ref": "#/$defs/P"}, {"type": "object", "additionalProperties": False, "properties": {}}]},
        "struct<x: bigint>", {}, {"x": None},
    ),
    "a model, or anything": ({"anyOf": [{"$ref": "#/$defs/P"}, {"type": "object"}]}, "string", {"x": 1}, '{"x":1}'),
    "integer or number": ({"type": ["integer", "number"]}, "double", 5, 5.0),
    "integer, number or null": ({"type": ["null", "integer", "number"]}, "double", 0.5, 0.5),
    "integers among numbers": ({"allOf": [{"type": "number"}, {"type": "integer"}]}, "bigint", 5, 5),
    "null as a constant": ({"oneOf": [{"const": None}, {"type": "integer"}]}, "bigint", None, None),
    "null among an enum's": ({"enum": ["a", None]}, "string", None, None),
    "an enum of fractions": ({"enum": [1, 2.5]}, "double", 2.5, 2.5),
    "an enum of truth values": ({"enum": [True, False]}, "boolean", True, True),
    "a constant object": ({"const": {"a": 1}}, "string", {"a": 1}, '{"a":1}'),
    "dates, or instants": (
        {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]},
        "string", "2026-11-20", "2026-11-20",
    ),
    "a type around alternatives": (
        {"type": "string", "anyOf": [{"format": "email"}, {"format": "hostname"}]}, "string", "a@b", "a@b",
    ),
    "one of two fields is required": (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
         "required": ["a", "b"], "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "struct<a: bigint, b: bigint>", {"a": 1, "b": 2}, {"a": 1, "b": 2},
    ),
    "no type, but properties": ({"properties": {"a": {"type": "integer"}}}, "struct<a: bigint>", {"a": 1}, {"a": 1}),
    "no type, but items": ({"items": {"type": "integer"}}, "array<bigint>", [1], [1]),
    "alternatives inside a list": (
        {"type": "array", "items": {"oneOf": [{"$ref": "#/$defs/P"}, NOTHING]}}, "array<struct<x: bigint>>",
        [{"x": 1}, None], [{"x": 1}, None],
    ),
    "an item of another list of schemas": ({"$ref": "#/$defs/Choices/oneOf/1"}, "string", "a", "a"),
    **{
        f"the format {name}": ({"type": "string", "format": name}, "string", "x", "x")
        for name in (
            "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri",
            "uri-reference", "iri", "iri-reference", "uri-template", "json-pointer", "relative-json-pointer", "regex",
            "color", "byte",
        )
    },
}  # fmt: skip
DEFS = {
    "P": {"type": "object", "properties": {"x": {"type": "integer"}}},
    "Q": {"type": "object", "properties": {"y": {"type": "string"}}},
    "Map(String,/)": {"type": "object", "additionalProperties": {"type": "integer"}},
    "Choices": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
    "Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}},
    "Circle": {"anyOf": [{"$ref": "#/$defs/Circle"}, {"type": "null"}]},
    **{f"Twice{n}": {"anyOf": [{"allOf": [{"$ref": f"#/$defs/Twice{n + 1}"}, {"title": t}]} for t in "ab"]}
       for n in range(40)},
    "Twice40": {"type": "integer"},
    **{f"Wide{n}": {"properties": {t: {"$ref": f"#/$defs/Wide{n + 1}"} for t in "ab"}} for n in range(40)},
    "Wide40": {"type": "integer"},
}  # fmt: skip

# What stays refused: the schema of v, and what is said.
REFUSED: dict[str, tuple[Any, str]] = {
    "one of several types": ({"type": ["string", "integer"]}, "v: one of several types (integer, string): give"),
    "alternatives of several": ({"$ref": "#/$defs/Choices"}, "v: one of several types (integer, string): give"),
    "an enum of several": ({"enum": [1, "a"]}, "v: one of several types (integer, string): give"),
    "inside a list": ({"type": "array", "items": {"enum": [1, "a"]}}, "v[]: one of several types"),
    "inside a map": ({"type": "object", "additionalProperties": {"enum": [True, {}]}}, "v{}: one of several types"),
    "fields of one name": (
        {"oneOf": [{"properties": {"k": {"type": kind}}} for kind in ("string", "number")]},
        "v.k: one of several types (number, string): give the columns as schema",
    ),
    "anything": ({}, "v: anything is allowed here: give the columns as schema"),
    "true": (True, "v: anything is allowed here: give"),
    "a list of anything": ({"type": "array"}, "v[]: anything is allowed here"),
    "nothing": (False, "v: no value is allowed here"),
    "what can't be": ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "v: no value is allowed here"),
    "null alone": (NOTHING, "v: its only type is null: give the columns as schema, without it"),
    "a message in itself": ({"$ref": "#/$defs/Node"}, "nested deeper than 64 levels, or in itself: give the columns"),
    "a circle": ({"$ref": "#/$defs/Circle"}, "v: references in a circle"),
    "no such reference": ({"$ref": "#/$defs/None"}, "v: #/$defs/None is not to be found"),
    "no such file": ({"$ref": "other.json"}, "v: other.json is not to be found"),
    "no type": ({"type": "any"}, "v: any is not a type of JSON Schema"),
    "alternatives without end": ({"$ref": "#/$defs/Twice0"}, "v: more than 1000 alternatives"),
    "fields without end": ({"$ref": "#/$defs/Wide0"}, "more than 10000 fields"),
}


def document(schema: Any) -> str:
    """Return a schema as text, of documents with the one field v."""
    return json.dumps({"type": "object", "properties": {"v": schema}, "$defs": DEFS})


@dataclass(frozen=True)
class Part:
    """A drawn schema, values that it allows, and what each of them is in its column."""

    schema: Any
    values: st.SearchStrategy[Any]
    landed: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, eq=False)
class Meaning:
    """Equal to each JSON text of the value: its spelling is nobody's concern."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and json.loads(other) == self.value


def _scalars() -> st.SearchStrategy[Part]:
    instants = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda at: f"{at.isoformat()}Z")
    doubles = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**53), 2**53))
    integers = st.integers(-(2**63), 2**63 - 1)
    return st.sampled_from(
        [
            Part({"type": "integer"}, integers),
            Part({"type": "integer", "format": "utc-millisec"}, integers),
            Part({"type": "number"}, doubles, float),
            Part({"type": ["integer", "number"]}, doubles, float),
            Part({"oneOf": [{"type": "integer"}, {"type": "number"}]}, doubles, float),
            Part({"type": "boolean"}, st.booleans()),
            Part({"type": "string"}, st.text()),
            Part({"type": "string", "format": "email"}, st.text()),
            Part({"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "uri"}]}, st.text()),
            Part({"enum": ["a", "B"]}, st.sampled_from(["a", "B"])),
            Part({"const": 7}, st.just(7)),
            Part({"type": "string", "format": "date-time"}, instants, datetime.fromisoformat),
            Part({"type": "string", "format": "date"}, st.dates().map(str), date.fromisoformat),
            Part({"type": "string", "format": "uuid"}, st.uuids().map(str), UUID),
            Part(
                {"type": "object"}, st.dictionaries(st.text(), st.one_of(st.none(), st.integers(), st.text())), Meaning
            ),
        ]
    )


_NAMES = st.lists(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=4, unique=True)


@st.composite
def _parts(draw: st.DrawFn, defs: dict[str, Any], depth: int = 0) -> Part:
    choice = draw(st.integers(0, 4 if depth < 3 else 0))
    if choice == 0:
        return draw(_scalars())
    if choice == 1:
        item = draw(_fields(defs, depth + 1))
        return Part(
            {"type": "array", "items": item.schema},
            st.lists(item.values, max_size=3),
            lambda value: [None if one is None else item.landed(one) for one in value],
        )
    if choice == 2:
        item = draw(_fields(defs, depth + 1))
        return Part(
            {"type": "object", "additionalProperties": item.schema},
            st.dictionaries(st.text(max_size=3), item.values, max_size=3),
            lambda value: [(name, None if one is None else item.landed(one)) for name, one in value.items()],
        )
    return draw(objects(defs, depth + 1, union=choice == 4))


@st.composite
def _fields(draw: st.DrawFn, defs: dict[str, Any], depth: int = 0) -> Part:
    """Return a schema as it stands in a field: perhaps with null, perhaps behind a reference."""
    part, schema = draw(_parts(defs, depth)), None
    how = draw(st.integers(0, 5))
    schema, values = part.schema, part.values
    if how in (1, 2):
        name = f"D{len(defs)}"
        defs[name] = schema
        schema = {"$ref": f"#/definitions/{name}"} if how == 1 else {"allOf": [{"$ref": f"#/definitions/{name}"}]}
    elif how in (3, 4, 5):
        null = {3: NOTHING, 4: {"const": None}, 5: {"enum": [None]}}[how]
        schema = {draw(st.sampled_from(["oneOf", "anyOf"])): [null, schema]}
        values = st.none() | values
    return Part(schema, values, part.landed)


@st.composite
def objects(draw: st.DrawFn, defs: dict[str, Any], depth: int = 0, *, union: bool = False) -> Part:
    """Return a schema of objects: one, in one or two parts, or one of two whose fields are others."""
    names = draw(_NAMES)
    parts = {name: draw(_fields(defs, depth)) for name in names}
    needed = draw(st.sets(st.sampled_from(names)))
    cut = draw(st.integers(1, len(names)))
    halves = [_object(parts, some, needed) for some in (names[:cut], names[cut:]) if some]
    schema: Any = {"allOf": halves} if draw(st.booleans()) else _object(parts, names, needed)
    shapes = [names]
    if union:
        schema, shapes = {draw(st.sampled_from(["oneOf", "anyOf"])): halves}, [names[:cut], names[cut:] or names]
    values = st.one_of(
        [
            st.fixed_dictionaries(
                {name: parts[name].values for name in some if name in needed},
                optional={name: parts[name].values for name in some if name not in needed},
            )
            for some in shapes
        ]
    )

    def landed(value: dict[str, Any]) -> dict[str, Any]:
        there = {name: one for name, one in value.items() if one is not None}
        return {name: parts[name].landed(there[name]) if name in there else None for name in names}

    return Part(schema, values, landed)


def _object(parts: dict[str, Part], names: list[str], needed: set[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: parts[name].schema for name in names},
        "required": [name for name in names if name in needed],
    }


@st.composite
def schemas(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """Return a schema, documents that it allows, and the rows that they are."""
    defs: dict[str, Any] = {}
    part = draw(objects(defs, union=draw(st.booleans())))
    schema = part.schema
    if draw(st.booleans()):
        defs["Root"], schema = schema, {"$ref": "#/definitions/Root"}
    documents = draw(st.lists(part.values, min_size=1, max_size=5))
    return json.dumps({**schema, "definitions": defs}), documents, [part.landed(one) for one in documents]
