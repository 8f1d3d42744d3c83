"""Flink's reading of records: names of types, the fields of a format, and the expressions for columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatch

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from airflow_lakestream.exceptions import InvalidArgument

_TYPE_NAMES: Mapping[IcebergType, str] = {
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
    if kind not in _TYPE_NAMES:
        raise InvalidArgument(
            "columns", f"{column!r} is of type {kind}, which Flink's landing can't fill.", "Take a string."
        )
    return _TYPE_NAMES[kind]


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


_TEXTS = (iceberg.BinaryType(), iceberg.StringType())


@dataclass(frozen=True)
class FormatReading:
    """The reading of a format's records by Flink.

    :param fields: by name, Flink's types of the fields of the records.
    :param options: options of the source table in Flink, secrets included.
    :param expressions: by column, the SQL expression of the value from the fields; None if the fields are the columns.
    """

    fields: Mapping[str, str]
    options: Mapping[str, str]
    expressions: Mapping[str, str] | None = field(default=None)


def json_reading(columns: Schema, *, skips_bad_records: bool = False) -> FormatReading:
    """Return the reading of JSON.

    :param skips_bad_records: whether a bad record does not fail the job. A value unfit for its column then becomes
        NULL, and a record that is not JSON has no row; the extract lands these records.
    """
    ignored = "true" if skips_bad_records else "false"
    return FormatReading(
        {column.name: type_of(column.field_type, column.name) for column in columns.fields},
        {"format": "json", "json.ignore-parse-errors": ignored, "json.timestamp-format.standard": "ISO-8601"},
    )


def text_reading() -> FormatReading:
    """Return the reading of keys and values as text, and of the record's time, for a statement to parse the texts."""
    return FormatReading(
        {"key": "BYTES", "value": "BYTES"},
        {"value.format": "raw", "key.format": "raw", "key.fields": "key", "value.fields-include": "EXCEPT_KEY"},
        {
            "key": "DECODE(r.`key`, 'UTF-8')",
            "value": "DECODE(r.`value`, 'UTF-8')",
            "event_timestamp": "CAST(r.`_kafka_timestamp` AS TIMESTAMP_LTZ(6))",
        },
    )


def raw_reading(columns: Schema) -> FormatReading:
    """Return the reading of unchanged keys and values.

    Raises InvalidArgument for columns other than `key` and `value`, each binary or string, and without `value`.
    """
    for column in columns.fields:
        if column.name not in ("key", "value") or column.field_type not in _TEXTS:
            problem = f"raw records have no {column.name} of type {column.field_type}."
            raise InvalidArgument("columns", problem, "They have key and value, each binary or string.")
    names = [column.name for column in columns.fields]
    if "value" not in names:
        raise InvalidArgument("columns", "lack value, which Flink reads of raw records in any case.", "Add it.")
    options = {"value.format": "raw"}
    if "key" in names:
        options |= {"key.format": "raw", "key.fields": "key", "value.fields-include": "EXCEPT_KEY"}
    return FormatReading({column.name: type_of(column.field_type, column.name) for column in columns.fields}, options)
