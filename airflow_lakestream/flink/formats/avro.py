"""Encodings of an Avro schema's values for which Flink's decoder and SQL make the same columns as our decoder.

A *place* is a column, or a field, item or value within a column. A *way* is the encoding of the values of a place, such
as "timestamp-millis": Avro's own resolution of schemas compares types only, and would take milliseconds for
microseconds. So each writer's schema must have the same ways as the schemas that a job was submitted with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial, singledispatch
from pathlib import Path
from typing import Any

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
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.formats.reading import FormatReading, quoted, type_of
from airflow_lakestream.registry.client import RegisteredSchema
from airflow_lakestream.registry.config import RegistryConfig

# Ends of places: a list's items, and a map's values.
ITEM, VALUE = "[]", "{}"
# The way of a place with places below, such as a struct.
WHOLE = "whole"
# Beginning of an enum's way, before the enum's name.
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
        if (first := self.places.setdefault(place, way)) != way:
            raise WayRefused(f"{place} is written as {way} by one schema of the topic, and as {first} by another")

    def lacks(self, other: AvroEncodings) -> str | None:
        """Return the first difference of another schema from these ways, in words; None without a difference."""
        for place, way in other.places.items():
            if (own := self.places.get(place)) != way:
                return f"{place} is written as {way}, and the job reads {own or 'none'}"
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
        _add_fields(node, columns.fields, "", encodings)
    return encodings


def _add_fields(record: Record, fields: Iterable[iceberg.NestedField], path: str, encodings: AvroEncodings) -> None:
    """Add the ways of fields of an Avro record; `path` is the record's place, empty for the topmost record."""
    written = dict(record.fields)
    for field_ in fields:
        # A field that a schema lacks is NULL, as in the extract.
        if field_.name in written:
            place = f"{path}.{field_.name}" if path else field_.name
            _add_value(field_.field_type, written[field_.name], place, encodings)


def _add_value(kind: IcebergType, node: Node, place: str, encodings: AvroEncodings) -> None:
    """Add the ways of a place and of the places below, for a column's type and the written type."""
    if isinstance(node, AvroUnion):
        if len(node.values) != 1:
            raise WayRefused(f"{place} is a union of several types")
        node = node.values[0][1]
    _way(kind, node, place, encodings)


@singledispatch
def _way(kind: IcebergType, node: Node, place: str, encodings: AvroEncodings) -> None:
    way = _enum_way(node, encodings) if isinstance(node, AvroEnum) and isinstance(kind, iceberg.StringType) else None
    if way is None and isinstance(node, AvroPrimitive):
        way = _primitive_way(kind, node)
    if way is None:
        written = f"{node.name} ({node.logical})" if isinstance(node, AvroPrimitive) and node.logical else node.name
        raise WayRefused(f"{place} is written as {written}, which Flink does not convert to {kind} as the extract does")
    encodings.add(place, way)


@_way.register
def _(kind: iceberg.ListType, node: Node, place: str, encodings: AvroEncodings) -> None:
    if not isinstance(node, AvroArray):
        raise WayRefused(f"{place} is written as {node.name}, and the column is a list")
    encodings.add(place, WHOLE)
    _add_value(kind.element_type, node.items, place + ITEM, encodings)


@_way.register
def _(kind: iceberg.MapType, node: Node, place: str, encodings: AvroEncodings) -> None:
    if not isinstance(node, AvroMap) or not isinstance(kind.key_type, iceberg.StringType):
        raise WayRefused(f"{place} is written as {node.name}, and the column is {kind}")
    encodings.add(place, WHOLE)
    _add_value(kind.value_type, node.values, place + VALUE, encodings)


@_way.register
def _(kind: iceberg.StructType, node: Node, place: str, encodings: AvroEncodings) -> None:
    if not isinstance(node, Record):
        raise WayRefused(f"{place} is written as {node.name}, and the column is a struct")
    encodings.add(place, WHOLE)
    _add_fields(node, kind.fields, place, encodings)


def _enum_way(node: AvroEnum, encodings: AvroEncodings) -> str:
    """Return the way of an enum, and add its symbols to the encodings."""
    symbols = encodings.symbols.setdefault(node.name, [])
    symbols.extend(symbol for symbol in node.symbols if symbol not in symbols)
    return f"{_ENUM}{node.name}"


def enum_of(way: str) -> str | None:
    """Return the name of a way's enum; None for other ways."""
    return way.removeprefix(_ENUM) if way.startswith(_ENUM) else None


# By the column's type and the written type with its logical type (None: no logical type), the way.
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
# By the column's type and a written type with any logical type, the way.
_ANY_LOGICAL_TYPE: Mapping[IcebergType, Mapping[str, str]] = {
    iceberg.LongType(): {"int": "long", "long": "long"},
    iceberg.StringType(): {"string": "string"},
    iceberg.BinaryType(): {"bytes": "bytes"},
}


def _primitive_way(kind: IcebergType, node: AvroPrimitive) -> str | None:
    """Return the way of a written type for a column's type; None if Flink does not convert it as the extract does."""
    if isinstance(kind, iceberg.DecimalType):
        # Flink takes the bytes for an unscaled number of the column's own scale.
        is_decimal = node.logical == "decimal" and node.name == "bytes" and node.scale == kind.scale
        return f"decimal of scale {kind.scale}" if is_decimal else None
    if kind in _ANY_LOGICAL_TYPE:
        return _ANY_LOGICAL_TYPE[kind].get(node.name)
    return _PRIMITIVES.get(kind, {}).get((node.name, node.logical))


_FORMAT = "avro-confluent"
# Prefix of options of Flink's client of the registry.
_TRUSTSTORE = f"{_FORMAT}.properties.schema.registry.ssl.truststore"
# By way, the type in the reader's schema and Flink's type.
_READER_TYPES: Mapping[str, tuple[Any, str]] = {
    "boolean": ("boolean", "BOOLEAN"),
    "int": ("int", "INT"),
    "long": ("long", "BIGINT"),
    "float": ("float", "FLOAT"),
    "double": ("double", "DOUBLE"),
    "string": ("string", "STRING"),
    "bytes": ("bytes", "BYTES"),
    "date": ({"type": "int", "logicalType": "date"}, "DATE"),
}


@dataclass(frozen=True)
class _ReaderField:
    """A place of the reader's schema.

    :param schema: the field's type, as in an Avro schema.
    :param flink: the field's type in Flink's SQL.
    :param make: returns the column's value for a reference to the field; None if the field is the value.
    """

    schema: Any
    flink: str
    make: Callable[[str], str] | None = None


def avro_reading(columns: Schema, ways: AvroEncodings, registry: RegistryConfig) -> FormatReading:
    """Return the reading of records with these ways. Raises WayRefused."""
    return _ReaderSchema(ways).reading(columns, registry)


class _ReaderSchema:
    """The reader's schema for Flink's Avro decoder, built place by place."""

    def __init__(self, ways: AvroEncodings) -> None:
        self._ways = ways
        # The number of named structs, and the enums that the schema already defines.
        self._structs = 0
        self._enums: set[str] = set()

    def reading(self, columns: Schema, registry: RegistryConfig) -> FormatReading:
        """Return the reading of records; a column that no schema has is NULL. Raises WayRefused."""
        fields = {column.name: self._field(column.field_type, column.name) for column in columns.fields}
        filled = {name: reader_field for name, reader_field in fields.items() if reader_field is not None}
        if not filled:
            raise WayRefused("no schema of the topic has any of the columns")
        expressions = {}
        for column in columns.fields:
            reference = f"{quoted('r')}.{quoted(column.name)}"
            expressions[column.name] = _value(fields[column.name], reference, type_of(column.field_type, column.name))
        schema = {"type": "record", "name": "lakestream_row", "fields": _members(filled)}
        options = {"format": _FORMAT, f"{_FORMAT}.schema": json.dumps(schema), **_registry_options(registry)}
        types = {name: reader_field.flink for name, reader_field in filled.items()}
        return FormatReading(types, options, expressions)

    def _field(self, kind: IcebergType, place: str) -> _ReaderField | None:
        """Return the reader's field of a place; None if no schema has the place."""
        way = self._ways.places.get(place)
        if way is None:
            return None
        if isinstance(kind, iceberg.StructType):
            return self._struct(kind, place)
        if isinstance(kind, iceberg.ListType):
            item = self._unconverted(kind.element_type, place + ITEM)
            return _ReaderField({"type": "array", "items": _nullable(item.schema)}, f"ARRAY<{item.flink}>")
        if isinstance(kind, iceberg.MapType):
            value = self._unconverted(kind.value_type, place + VALUE)
            return _ReaderField(
                {"type": "map", "values": _nullable(value.schema)}, f"MAP<STRING NOT NULL, {value.flink}>"
            )
        if isinstance(kind, iceberg.DecimalType):
            digits = {"precision": kind.precision, "scale": kind.scale}
            return _ReaderField({"type": "bytes", "logicalType": "decimal", **digits}, type_of(kind, place))
        if (enum := enum_of(way)) is not None:
            return _ReaderField(self._enum(enum), "STRING")
        if way in _READER_TYPES:
            return _ReaderField(*_READER_TYPES[way])
        return _ReaderField("long", "BIGINT", partial(_time, way, type_of(kind, place)))

    def _unconverted(self, kind: IcebergType, place: str) -> _ReaderField:
        """Return the field of a list's items or a map's values. Raises WayRefused for a field that needs an expression.

        SQL can't convert values within lists and maps.
        """
        field = self._field(kind, place)
        assert field is not None, "a list or map has items"
        if field.make is not None:
            raise WayRefused(
                f"{place} has timestamps in a list or map, or fields that no schema has; bigint takes them"
            )
        return field

    def _struct(self, kind: iceberg.StructType, place: str) -> _ReaderField:
        """Return the field of a struct; values that need a conversion, or that no schema has, make it an expression."""
        self._structs += 1
        schema_name = f"lakestream_{self._structs}"
        fields = {inner.name: self._field(inner.field_type, f"{place}.{inner.name}") for inner in kind.fields}
        filled = {name: reader_field for name, reader_field in fields.items() if reader_field is not None}
        if not filled:
            raise WayRefused(f"no schema of the topic has any field of {place}")
        schema = {"type": "record", "name": schema_name, "fields": _members(filled)}
        flink = f"ROW<{', '.join(f'{quoted(name)} {reader_field.flink}' for name, reader_field in filled.items())}>"
        if len(filled) == len(fields) and all(reader_field.make is None for reader_field in filled.values()):
            return _ReaderField(schema, flink)
        return _ReaderField(schema, flink, partial(_row, fields, kind, type_of(kind, place)))

    def _enum(self, name: str) -> Any:
        # A name is defined at its first use.
        if name in self._enums:
            return name
        self._enums.add(name)
        return {"type": "enum", "name": name, "symbols": self._ways.symbols[name]}


def _members(fields: Mapping[str, _ReaderField]) -> list[dict[str, Any]]:
    """Return the fields of a record in an Avro schema."""
    return [{"name": name, "type": _nullable(inner.schema), "default": None} for name, inner in fields.items()]


def _nullable(schema: Any) -> list[Any]:
    return ["null", schema]


def _value(field: _ReaderField | None, reference: str, kind: str) -> str:
    """Return the SQL expression of a value from a reference to its field; NULL without a field."""
    if field is None:
        return f"CAST(NULL AS {kind})"
    return reference if field.make is None else field.make(reference)


def _row(fields: Mapping[str, _ReaderField | None], kind: iceberg.StructType, flink: str, reference: str) -> str:
    """Return the SQL expression of a struct with converted fields."""
    values = (
        _value(fields[inner.name], f"{reference}.{quoted(inner.name)}", type_of(inner.field_type, inner.name))
        for inner in kind.fields
    )
    row = f"CAST(ROW({', '.join(values)}) AS {flink})"
    # A NULL struct becomes NULL: the map has no key FALSE. Flink allows no ROW inside of CASE or IF.
    return f"MAP[TRUE, {row}][{reference} IS NOT NULL]"


def _time(way: str, kind: str, reference: str) -> str:
    """Return the expression of a time from a number of milliseconds or microseconds since 1970; sessions are in UTC."""
    if way.endswith("millis"):
        return f"CAST(TO_TIMESTAMP_LTZ({reference}, 3) AS {kind})"
    # No function takes microseconds. The remainder has the number's sign, also for days before 1970.
    micros = f"MOD(MOD({reference}, 1000) + 1000, 1000)"
    millis = f"TO_TIMESTAMP_LTZ(({reference} - {micros}) / 1000, 3)"
    text = f"CONCAT(DATE_FORMAT({millis}, 'yyyy-MM-dd HH:mm:ss.SSS'), LPAD(CAST({micros} AS STRING), 3, '0'))"
    return f"CAST(CAST({text} AS TIMESTAMP(6)) AS {kind})"


def _registry_options(registry: RegistryConfig) -> dict[str, str]:
    """Return the options of the registry's client, secrets included, whose values Flink masks by their names."""
    options = {f"{_FORMAT}.url": registry.url.rstrip("/")}
    if registry.ca_file:
        options |= {f"{_TRUSTSTORE}.type": "PEM", f"{_TRUSTSTORE}.certificates": _text_of(registry.ca_file)}
    if registry.token:
        options |= {f"{_FORMAT}.bearer-auth.credentials-source": "STATIC_TOKEN"}
        options |= {f"{_FORMAT}.bearer-auth.token": registry.token}
    elif registry.username is not None:
        options |= {f"{_FORMAT}.basic-auth.credentials-source": "USER_INFO"}
        options |= {f"{_FORMAT}.basic-auth.user-info": f"{registry.username}:{registry.password}"}
    return options


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidArgument("schema_registry.ca_file", f"{file} can't be read as PEM: {e}.") from None
