"""Flink's names of the types of a table's columns."""

from __future__ import annotations

from collections.abc import Mapping
from functools import singledispatch

from pyiceberg import types as iceberg
from pyiceberg.types import IcebergType

from airflow_lakestream.exceptions import InvalidArgument

_PLAIN: Mapping[IcebergType, str] = {
    iceberg.BooleanType(): "BOOLEAN",
    iceberg.IntegerType(): "INT",
    iceberg.LongType(): "BIGINT",
    iceberg.FloatType(): "FLOAT",
    iceberg.DoubleType(): "DOUBLE",
    iceberg.DateType(): "DATE",
    iceberg.StringType(): "STRING",
    iceberg.BinaryType(): "BYTES",
    iceberg.TimestampType(): "TIMESTAMP(6)",
    iceberg.TimestamptzType(): "TIMESTAMP_LTZ(6)",
}


def quoted(name: str) -> str:
    """Return a name as quoted in SQL."""
    return "`" + name.replace("`", "``") + "`"


@singledispatch
def type_of(kind: IcebergType, column: str) -> str:
    """Return Flink's name of a type. Raises InvalidArgument for a type that no format of Flink can fill.

    :param column: the column's name, for errors.
    """
    if kind not in _PLAIN:
        raise InvalidArgument(
            "columns", f"{column!r} is of type {kind}, which Flink's landing can't fill.", "Take a string."
        )
    return _PLAIN[kind]


@type_of.register
def _(kind: iceberg.DecimalType, column: str) -> str:
    return f"DECIMAL({kind.precision}, {kind.scale})"


@type_of.register
def _(kind: iceberg.ListType, column: str) -> str:
    return f"ARRAY<{type_of(kind.element_type, column)}>"


@type_of.register
def _(kind: iceberg.MapType, column: str) -> str:
    return f"MAP<{type_of(kind.key_type, column)}, {type_of(kind.value_type, column)}>"


@type_of.register
def _(kind: iceberg.StructType, column: str) -> str:
    fields = (f"{quoted(field.name)} {type_of(field.field_type, f'{column}.{field.name}')}" for field in kind.fields)
    return f"ROW<{', '.join(fields)}>"
