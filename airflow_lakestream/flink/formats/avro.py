"""By which way the values of an Avro schema get into columns: where Flink's decoder and SQL make what ours makes.

A *way* says how the values of one place are written, as far as it matters to who reads them: Avro's own resolution of
schemas asks for types only, and would take milliseconds for microseconds. So each writer's schema has to have the same
ways as those that a job was submitted with, in all places of the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from airflow_lakestream.decode.avro.schema import Array, Enum, Map, Node, Primitive, Record, Union, parse
from airflow_lakestream.registry.schemas import RegisteredSchema

# A way to a list's items, and to a map's values.
ITEM, VALUE = "[]", "{}"
# The way of a place that has others below it.
WHOLE = "whole"
_ENUM = "enum "


class WayRefused(ValueError):
    """Flink would make something else of the values than the extract does, or nothing."""


@dataclass
class Ways:
    """The ways to the places of the columns, such as `{"at": "timestamp-millis", "tags[]": "string"}`.

    :param symbols: by name, those of the enums; a job that does not know one fails at it.
    """

    places: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, list[str]] = field(default_factory=dict)

    def add(self, place: str, way: str) -> None:
        """Take down a way. Raises WayRefused where there is another one."""
        if (known := self.places.setdefault(place, way)) != way:
            raise WayRefused(f"{place} is written as {way} by one schema of the topic, and as {known} by another")

    def lacks(self, other: Ways) -> str | None:
        """Say which way of another schema is not among these; None where all are."""
        for place, way in other.places.items():
            if (known := self.places.get(place)) != way:
                return f"{place} is written as {way}, and the job reads {known or 'none'}"
        return None


def ways_of(columns: Schema, schemas: Iterable[RegisteredSchema]) -> Ways:
    """Return the ways to the columns, of all these schemas. Raises WayRefused, and SchemaRefused for what is none."""
    found = Ways()
    for schema in schemas:
        if schema.kind != "AVRO":
            raise WayRefused(f"schema {schema.id} is of type {schema.kind}, not AVRO")
        node = parse(schema.text, [needed.text for _, needed in schema.all_references()])
        if not isinstance(node, Record):
            raise WayRefused(f"schema {schema.id} is of type {node.name}, not a record")
        _fields(node, columns.fields, "", found)
    return found


def _fields(record: Record, fields: Iterable[iceberg.NestedField], path: str, found: Ways) -> None:
    written = dict(record.fields)
    for one in fields:
        # A field that a schema lacks is NULL, as it is for the extract.
        if one.name in written:
            place = f"{path}.{one.name}" if path else one.name
            _take(one.field_type, written[one.name], place, found)


def _take(kind: IcebergType, node: Node, place: str, found: Ways) -> None:
    if isinstance(node, Union):
        if len(node.values) != 1:
            raise WayRefused(f"{place} is a union of several types")
        node = node.values[0][1]
    _way(kind, node, place, found)


@singledispatch
def _way(kind: IcebergType, node: Node, place: str, found: Ways) -> None:
    way = _of_enum(node, found) if isinstance(node, Enum) and isinstance(kind, iceberg.StringType) else None
    if way is None and isinstance(node, Primitive):
        way = _of_primitive(kind, node)
    if way is None:
        written = f"{node.name} ({node.logical})" if isinstance(node, Primitive) and node.logical else node.name
        raise WayRefused(f"{place} is written as {written}, of which Flink makes no {kind} as the extract does")
    found.add(place, way)


@_way.register
def _(kind: iceberg.ListType, node: Node, place: str, found: Ways) -> None:
    if not isinstance(node, Array):
        raise WayRefused(f"{place} is written as {node.name}, and the column is a list")
    found.add(place, WHOLE)
    _take(kind.element_type, node.items, place + ITEM, found)


@_way.register
def _(kind: iceberg.MapType, node: Node, place: str, found: Ways) -> None:
    if not isinstance(node, Map) or not isinstance(kind.key_type, iceberg.StringType):
        raise WayRefused(f"{place} is written as {node.name}, and the column is {kind}")
    found.add(place, WHOLE)
    _take(kind.value_type, node.values, place + VALUE, found)


@_way.register
def _(kind: iceberg.StructType, node: Node, place: str, found: Ways) -> None:
    if not isinstance(node, Record):
        raise WayRefused(f"{place} is written as {node.name}, and the column is a struct")
    found.add(place, WHOLE)
    _fields(node, kind.fields, place, found)


def _of_enum(node: Enum, found: Ways) -> str:
    known = found.symbols.setdefault(node.name, [])
    known.extend(symbol for symbol in node.symbols if symbol not in known)
    return f"{_ENUM}{node.name}"


def enum_of(way: str) -> str | None:
    """Return the name of the enum that a way is of."""
    return way.removeprefix(_ENUM) if way.startswith(_ENUM) else None


# By the column's type: what is written, with its logical type, and the way; None for any logical type.
_PRIMITIVES: Mapping[IcebergType, Mapping[tuple[str, str | None], str]] = {
    iceberg.BooleanType(): {("boolean", None): "boolean"},
    # Days and clocks fit as the integers that they are.
    iceberg.IntegerType(): dict.fromkeys((("int", None), ("int", "date"), ("int", "time-millis")), "int"),
    iceberg.FloatType(): {("float", None): "float"},
    iceberg.DoubleType(): dict.fromkeys((("double", None), ("float", None)), "double"),
    iceberg.DateType(): {("int", "date"): "date"},
    iceberg.TimestamptzType(): {("long", way): way for way in ("timestamp-millis", "timestamp-micros")},
    iceberg.TimestampType(): {("long", way): way for way in ("local-timestamp-millis", "local-timestamp-micros")},
}
# Columns that take values whatever is said of them beside their type.
_ANY: Mapping[IcebergType, Mapping[str, str]] = {
    iceberg.LongType(): {"int": "long", "long": "long"},
    iceberg.StringType(): {"string": "string"},
    iceberg.BinaryType(): {"bytes": "bytes"},
}


def _of_primitive(kind: IcebergType, node: Primitive) -> str | None:
    if isinstance(kind, iceberg.DecimalType):
        # Flink takes the bytes for an unscaled number of the column's own scale.
        is_decimal = node.logical == "decimal" and node.name == "bytes" and node.scale == kind.scale
        return f"decimal of scale {kind.scale}" if is_decimal else None
    if kind in _ANY:
        return _ANY[kind].get(node.name)
    return _PRIMITIVES.get(kind, {}).get((node.name, node.logical))
