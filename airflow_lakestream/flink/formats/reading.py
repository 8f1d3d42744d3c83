"""Flink's reading of records: the fields of a format, and the expressions for columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.formats.types import type_of

_TEXTS = (iceberg.BinaryType(), iceberg.StringType())


@dataclass(frozen=True)
class FormatReading:
    """The reading of a format's records by Flink.

    :param fields: the types that the format fills, by name.
    :param options: options of the table; secrets included.
    :param expressions: by column, the expression of its value from the fields; None if the fields are the columns.
    """

    fields: Mapping[str, str]
    options: Mapping[str, str]
    expressions: Mapping[str, str] | None = field(default=None)


def json_reading(columns: Schema, *, skips_bad_records: bool = False) -> FormatReading:
    """Return the reading of JSON.

    :param skips_bad_records: a value unfit for its column is NULL, a record that is not JSON has no row; the extract
        lands these records. Otherwise they fail the job, and no record is left out.
    """
    ignored = "true" if skips_bad_records else "false"
    return FormatReading(
        {one.name: type_of(one.field_type, one.name) for one in columns.fields},
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
    for one in columns.fields:
        if one.name not in ("key", "value") or one.field_type not in _TEXTS:
            problem = f"raw records have no {one.name} of type {one.field_type}."
            raise InvalidArgument("columns", problem, "They have key and value, each binary or string.")
    names = [one.name for one in columns.fields]
    if "value" not in names:
        raise InvalidArgument("columns", "lack value, which Flink reads of raw records in any case.", "Add it.")
    options = {"value.format": "raw"}
    if "key" in names:
        options |= {"key.format": "raw", "key.fields": "key", "value.fields-include": "EXCEPT_KEY"}
    return FormatReading({one.name: type_of(one.field_type, one.name) for one in columns.fields}, options)
