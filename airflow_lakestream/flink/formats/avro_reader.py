"""Options of Flink's Avro format: the reader's schema, its fields, and the expressions for columns.

Every field of the reader's schema may be null, and is null if a writer's schema lacks it. A timestamp is read as a
plain number, since Flink takes all timestamps for milliseconds. SQL makes it a time again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.formats.avro import ITEM, VALUE, AvroEncodings, WayRefused, enum_of
from airflow_lakestream.flink.formats.reading import FormatReading
from airflow_lakestream.flink.formats.types import quoted, type_of
from airflow_lakestream.registry.config import RegistryConfig

_FORMAT = "avro-confluent"
# Options of Flink's client of the registry.
_TRUST = f"{_FORMAT}.properties.schema.registry.ssl.truststore"
# By way: the type in the reader's schema, and Flink's type.
_PLAIN: Mapping[str, tuple[Any, str]] = {
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
    def __init__(self, ways: AvroEncodings) -> None:
        self._ways = ways
        self._records = 0
        self._enums: set[str] = set()

    def reading(self, columns: Schema, registry: RegistryConfig) -> FormatReading:
        fields = {one.name: self._field(one.field_type, one.name) for one in columns.fields}
        filled = {name: one for name, one in fields.items() if one is not None}
        if not filled:
            raise WayRefused("no schema of the topic has any of the columns")
        expressions = {
            one.name: _value(fields[one.name], f"{quoted('r')}.{quoted(one.name)}", type_of(one.field_type, one.name))
            for one in columns.fields
        }
        schema = {"type": "record", "name": "lakestream_row", "fields": _members(filled)}
        options = {"format": _FORMAT, f"{_FORMAT}.schema": json.dumps(schema), **_registry_options(registry)}
        return FormatReading({name: one.flink for name, one in filled.items()}, options, expressions)

    def _field(self, kind: IcebergType, place: str) -> _ReaderField | None:
        """Return the reader's field of a place; None if no schema has the place."""
        way = self._ways.places.get(place)
        if way is None:
            return None
        if isinstance(kind, iceberg.StructType):
            return self._struct(kind, place)
        if isinstance(kind, iceberg.ListType):
            item = self._plain(kind.element_type, place + ITEM)
            return _ReaderField({"type": "array", "items": _nullable(item.schema)}, f"ARRAY<{item.flink}>")
        if isinstance(kind, iceberg.MapType):
            value = self._plain(kind.value_type, place + VALUE)
            return _ReaderField(
                {"type": "map", "values": _nullable(value.schema)}, f"MAP<STRING NOT NULL, {value.flink}>"
            )
        if isinstance(kind, iceberg.DecimalType):
            digits = {"precision": kind.precision, "scale": kind.scale}
            return _ReaderField({"type": "bytes", "logicalType": "decimal", **digits}, type_of(kind, place))
        if (enum := enum_of(way)) is not None:
            return _ReaderField(self._enum(enum), "STRING")
        if way in _PLAIN:
            return _ReaderField(*_PLAIN[way])
        return _ReaderField("long", "BIGINT", partial(_time, way, type_of(kind, place)))

    def _plain(self, kind: IcebergType, place: str) -> _ReaderField:
        """Return the field of a list's items or a map's values.

        SQL can't convert values within lists and maps. Raises WayRefused for a field that needs an SQL expression.
        """
        field = self._field(kind, place)
        assert field is not None, "a list or map has items"
        if field.make is not None:
            raise WayRefused(
                f"{place} has timestamps in a list or map, or fields that no schema has; bigint takes them"
            )
        return field

    def _struct(self, kind: iceberg.StructType, place: str) -> _ReaderField:
        self._records += 1
        name = f"lakestream_{self._records}"
        fields = {one.name: self._field(one.field_type, f"{place}.{one.name}") for one in kind.fields}
        filled = {field: one for field, one in fields.items() if one is not None}
        if not filled:
            raise WayRefused(f"no schema of the topic has any field of {place}")
        schema = {"type": "record", "name": name, "fields": _members(filled)}
        flink = f"ROW<{', '.join(f'{quoted(field)} {one.flink}' for field, one in filled.items())}>"
        if len(filled) == len(fields) and all(one.make is None for one in filled.values()):
            return _ReaderField(schema, flink)
        return _ReaderField(schema, flink, partial(_row, fields, kind, type_of(kind, place)))

    def _enum(self, name: str) -> Any:
        # A name is defined at its first use.
        if name in self._enums:
            return name
        self._enums.add(name)
        return {"type": "enum", "name": name, "symbols": self._ways.symbols[name]}


def _members(fields: Mapping[str, _ReaderField]) -> list[dict[str, Any]]:
    return [{"name": name, "type": _nullable(one.schema), "default": None} for name, one in fields.items()]


def _nullable(schema: Any) -> list[Any]:
    return ["null", schema]


def _value(field: _ReaderField | None, reference: str, kind: str) -> str:
    """Return the expression of a column's value."""
    if field is None:
        return f"CAST(NULL AS {kind})"
    return reference if field.make is None else field.make(reference)


def _row(fields: Mapping[str, _ReaderField | None], kind: iceberg.StructType, flink: str, reference: str) -> str:
    values = (
        _value(fields[one.name], f"{reference}.{quoted(one.name)}", type_of(one.field_type, one.name))
        for one in kind.fields
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
    """Return the options of the registry. Flink masks options of these names."""
    options = {f"{_FORMAT}.url": registry.url.rstrip("/")}
    if registry.ca_file:
        options |= {f"{_TRUST}.type": "PEM", f"{_TRUST}.certificates": _text_of(registry.ca_file)}
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
