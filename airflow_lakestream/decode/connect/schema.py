"""Schemas in records of Kafka Connect's JSON converter, and the table columns for the schemas."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from airflow_lakestream.decode.values.outcome import SchemaRefused
from airflow_lakestream.tables.schema.value_ranges import DECIMAL_DIGITS, column_type

# The deepest level of nested types.
_DEEPEST = 64


@dataclass(frozen=True)
class ConnectType:
    """Type in a Connect schema, called shape here.

    :param kind: Connect's word, such as "int32" or "struct".
    :param name: the full name of a logical type, such as "org.apache.kafka.connect.data.Decimal", or "".
    :param scale: for decimals, with `precision`.
    :param fields: for structs.
    :param items: the type of an array's items, or of a map's values.
    :param keys: the type of a map's keys.
    """

    kind: str
    name: str = ""
    optional: bool = True
    scale: int = 0
    precision: int = DECIMAL_DIGITS
    fields: dict[str, ConnectType] = field(default_factory=dict)
    items: ConnectType | None = None
    keys: ConnectType | None = None

    @property
    def logical(self) -> LogicalType | None:
        """Logical type of the number or the bytes, or None for plain values."""
        return LOGICAL.get((self.kind, self.name))

    @property
    def with_numbers(self) -> ConnectType:
        """The same shape with each decimal as a JSON number, for the converter's `decimal.format=NUMERIC`."""
        if self.logical is not None and self.logical.meaning == "decimal":
            return replace(self, kind=NUMBER, name="")
        inner = {name: shape.with_numbers for name, shape in self.fields.items()}
        return replace(self, fields=inner, items=self.items and self.items.with_numbers)


@dataclass(frozen=True)
class LogicalType:
    """Logical type of numbers or bytes: `meaning` is "date", "time", "timestamp" or "decimal".

    `nanos` is the unit of a time or a timestamp in nanoseconds; a `zoned` timestamp is an instant, another a wall-clock
    time.
    """

    meaning: str
    nanos: int = 0
    zoned: bool = False


# The kind of a decimal written as digits, see `ConnectType.with_numbers`. No schema of Connect has this word.
NUMBER = "number"

_CONNECT = "org.apache.kafka.connect.data."
_DEBEZIUM = "io.debezium.time."

LOGICAL = {
    ("bytes", f"{_CONNECT}Decimal"): LogicalType("decimal"),
    ("int32", f"{_CONNECT}Date"): LogicalType("date"),
    ("int32", f"{_CONNECT}Time"): LogicalType("time", 1_000_000),
    ("int64", f"{_CONNECT}Timestamp"): LogicalType("timestamp", 1_000_000, zoned=True),
    ("int32", f"{_DEBEZIUM}Date"): LogicalType("date"),
    ("int32", f"{_DEBEZIUM}Time"): LogicalType("time", 1_000_000),
    ("int64", f"{_DEBEZIUM}MicroTime"): LogicalType("time", 1_000),
    ("int64", f"{_DEBEZIUM}NanoTime"): LogicalType("time", 1),
    ("int64", f"{_DEBEZIUM}Timestamp"): LogicalType("timestamp", 1_000_000),
    ("int64", f"{_DEBEZIUM}MicroTimestamp"): LogicalType("timestamp", 1_000),
    ("int64", f"{_DEBEZIUM}NanoTimestamp"): LogicalType("timestamp", 1),
}

# The columns' types for logical types that JSON has as text.
_TEXTS = {f"{_DEBEZIUM}ZonedTimestamp": pa.timestamp("us", "UTC"), "io.debezium.data.Uuid": pa.uuid()}


def parse(text: str) -> ConnectType | None:
    """Return a schema's shape, or None if the schema is null or invalid."""
    try:
        return _shape(json.loads(text), 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _shape(schema: Any, depth: int) -> ConnectType | None:
    if schema is None or depth > _DEEPEST:
        # Values of a type without a shape, such as a type that is nested too deep, are decoded by the column's type.
        return None
    parameters = schema.get("parameters") or {}
    scale, precision = int(parameters.get("scale", 0)), int(parameters.get("connect.decimal.precision", DECIMAL_DIGITS))
    inner = {
        str(member["field"]): shape
        for member in schema.get("fields") or ()
        if (shape := _shape(member, depth + 1)) is not None
    }
    return ConnectType(
        kind=str(schema["type"]),
        name=str(schema.get("name") or ""),
        # Older records lack a field that was added with a default.
        optional=bool(schema.get("optional")) or "default" in schema,
        scale=scale,
        precision=precision,
        fields=inner,
        items=_shape(schema.get("items") or schema.get("values"), depth + 1),
        keys=_shape(schema.get("keys"), depth + 1),
    )


def arrow_type(shape: ConnectType, path: str) -> pa.DataType:
    """Return the type of a column for values of this shape. Raises SchemaRefused, with the field's path."""
    if shape.logical is not None:
        return _logical_type(shape, shape.logical)
    if shape.kind == "string":
        return _TEXTS.get(shape.name, pa.string())
    if shape.name == VARIABLE_DECIMAL:
        return pa.string()
    if shape.kind == "struct":
        if not shape.fields:
            raise SchemaRefused(f"{path}: a struct without fields can't be a column: leave the field out.")
        return pa.struct([arrow_field(name, inner, f"{path}.{name}") for name, inner in shape.fields.items()])
    if shape.kind == "array" and shape.items is not None:
        return pa.list_(arrow_field("element", shape.items, f"{path}[]"))
    if shape.kind == "map" and shape.items is not None and shape.keys is not None and shape.keys.kind == "string":
        return pa.map_(pa.string(), arrow_field("value", shape.items, f"{path}{{}}"))
    if shape.kind not in _TYPES:
        raise SchemaRefused(f"{path}: Connect's type {shape.kind} can't be a column: leave the field out.")
    return _TYPES[shape.kind]


def arrow_field(name: str, shape: ConnectType, path: str) -> pa.Field:
    """Return the column for values of this shape. Raises SchemaRefused."""
    return pa.field(name, arrow_type(shape, path), nullable=shape.optional)


def _logical_type(shape: ConnectType, logical: LogicalType) -> pa.DataType:
    if logical.meaning == "decimal":
        return column_type(shape.precision, shape.scale)
    if logical.meaning == "timestamp":
        return pa.timestamp("us", "UTC" if logical.zoned else None)
    return pa.date32() if logical.meaning == "date" else pa.time64("us")


# The name of a struct of an unscaled number and a scale, which differs from value to value.
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"

_TYPES = {
    "int8": pa.int32(),
    "int16": pa.int32(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
