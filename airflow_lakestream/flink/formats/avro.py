"""Encodings of an Avro schema's values for which Flink's decoder and SQL make the same columns as our decoder.

A *way* is the encoding of the values of one place, as far as it matters to readers: Avro's own resolution of schemas
compares types only, and would take milliseconds for microseconds. So each writer's schema must have the same ways as
the schemas that a job was submitted with, in all places of the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from airflow_lakestream.decode.avro.schema import (
    AvroArray,
    AvroEnum,
    AvroMap,
    AvroPrimitive,
    AvroUnion,
    Node,
    Record,
    parse,
)
from airflow_lakestream.registry.schemas import RegisteredSchema

# A way to a list's items, and to a map's values.
ITEM, VALUE = "[]", "{}"
# The way of a place that has other places below it.
WHOLE = "whole"
_ENUM = "enum "


class WayRefused(ValueError):
    """Error of an encoding that Flink decodes otherwise than the extract, or not at all."""


@dataclass
class AvroEncodings:
    """The ways of the places of the columns, such as `{"at": "timestamp-millis", "tags[]": "string"}`.

    :param symbols: the symbols of the enums, by name; a job fails at a symbol that it does not know.
    """

    places: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, list[str]] = field(default_factory=dict)

    def add(self, place: str, way: str) -> None:
        """Add the way of a place. Raises WayRefused for a second, different way of the place."""
        if (known := self.places.setdefault(place, way)) != way:
            raise WayRefused(f"{place} is written as {way} by one schema of the topic, and as {known} by another")

    def lacks(self, other: AvroEncodings) -> str | None:
        """Return the first way of another schema that differs from these ways; None without a difference."""
        for place, way in other.places.items():
            if (known := self.places.get(place)) != way:
                return f"{place} is written as {way}, and the job reads {known or 'none'}"
        return None


def ways_of(columns: Schema, schemas: Iterable[RegisteredSchema]) -> AvroEncodings:
    """Return the ways of the columns in all these schemas. Raises WayRefused, SchemaRefused for malformed schemas."""
    encodings = AvroEncodings()
    for schema in schemas:
        if schema.kind != "AVRO":
            raise WayRefused(f"schema {schema.id} is of type {schema.kind}, not AVRO")
        node = parse(schema.text, [needed.text for _, needed in schema.all_references()])
        if not isinstance(node, Record):
            raise WayRefused(f"schema {schema.id} is of type {node.name}, not a record")
        _fields(node, columns.fields, "", encodings)
    return encodings


def _fields(record: Record, fields: Iterable[iceberg.NestedField], path: str, encodings: AvroEncodings) -> None:
    written = dict(record.fields)
    for one in fields:
        # A field that a schema lacks is NULL, as in the extract.
        if one.name in written:
            place = f"{path}.{one.name}" if path else one.name
            _take(one.field_type, written[one.name], place, encodings)


def _take(kind: IcebergType, node: Node, place: str, encodings: AvroEncodings) -> None:
    if isinstance(node, AvroUnion):
        if len(node.values) != 1:
            raise WayRefused(f"{place} is a union of several types")
        node = node.values[0][1]
    _way(kind, node, place, encodings)


@singledispatch
def _way(kind: IcebergType, node: Node, place: str, encodings: AvroEncodings) -> None:
    way = _of_enum(node, encodings) if isinstance(node, AvroEnum) and isinstance(kind, iceberg.StringType) else None
    if way is None and isinstance(node, AvroPrimitive):
        way = _of_primitive(kind, node)
    if way is None:
        written = f"{node.name} ({node.logical})" if isinstance(node, AvroPrimitive) and node.logical else node.name
        raise WayRefused(f"{place} is written as {written}, which Flink does not convert to {kind} as the extract does")
    encodings.add(place, way)


@_way.register
def _(kind: iceberg.ListType, node: Node, place: str, encodings: AvroEncodings) -> None:
    if not isinstance(node, AvroArray):
        raise WayRefused(f"{place} is written as {node.name}, and the column is a list")
    encodings.add(place, WHOLE)
    _take(kind.element_type, node.items, place + ITEM, encodings)


@_way.register
def _(kind: iceberg.MapType, node: Node, place: str, encodings: AvroEncodings) -> None:
    if not isinstance(node, AvroMap) or not isinstance(kind.key_type, iceberg.StringType):
        raise WayRefused(f"{place} is written as {node.name}, and the column is {kind}")
    encodings.add(place, WHOLE)
    _take(kind.value_type, node.values, place + VALUE, encodings)


@_way.register
def _(kind: iceberg.StructType, node: Node, place: str, encodings: AvroEncodings) -> None:
    if not isinstance(node, Record):
        raise WayRefused(f"{place} is written as {node.name}, and the column is a struct")
    encodings.add(place, WHOLE)
    _fields(node, kind.fields, place, encodings)


def _of_enum(node: AvroEnum, encodings: AvroEncodings) -> str:
    known = encodings.symbols.setdefault(node.name, [])
    known.extend(symbol for symbol in node.symbols if symbol not in known)
    return f"{_ENUM}{node.name}"


def enum_of(way: str) -> str | None:
    """Return the name of a way's enum; None for other ways."""
    return way.removeprefix(_ENUM) if way.startswith(_ENUM) else None


# By the column's type: the written type with its logical type, and the way; None for no logical type.
_PRIMITIVES: Mapping[IcebergType, Mapping[tuple[str, str | None], str]] = {
    iceberg.BooleanType(): {("boolean", None): "boolean"},
    # Days and times of day fit as plain integers.
    iceberg.IntegerType(): dict.fromkeys((("int", None), ("int", "date"), ("int", "time-millis")), "int"),
    iceberg.FloatType(): {("float", None): "float"},
    iceberg.DoubleType(): dict.fromkeys((("double", None), ("float", None)), "double"),
    iceberg.DateType(): {("int", "date"): "date"},
    iceberg.TimestamptzType(): {("long", way): way for way in ("timestamp-millis", "timestamp-micros")},
    iceberg.TimestampType(): {("long", way): way for way in ("local-timestamp-millis", "local-timestamp-micros")},
}
# Columns that take values of a type with any logical type.
_ANY: Mapping[IcebergType, Mapping[str, str]] = {
    iceberg.LongType(): {"int": "long", "long": "long"},
    iceberg.StringType(): {"string": "string"},
    iceberg.BinaryType(): {"bytes": "bytes"},
}


def _of_primitive(kind: IcebergType, node: AvroPrimitive) -> str | None:
    if isinstance(kind, iceberg.DecimalType):
        # Flink takes the bytes for an unscaled number of the column's own scale.
        is_decimal = node.logical == "decimal" and node.name == "bytes" and node.scale == kind.scale
        return f"decimal of scale {kind.scale}" if is_decimal else None
    if kind in _ANY:
        return _ANY[kind].get(node.name)
    return _PRIMITIVES.get(kind, {}).get((node.name, node.logical))
