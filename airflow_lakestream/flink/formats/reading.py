"""How Flink reads records: the fields that its own format fills, and the expressions that make columns of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.flink.formats.types import type_of

_TEXTS = (iceberg.BinaryType(), iceberg.StringType())


@dataclass(frozen=True)
class Reading:
    """What Flink is told of the records of a format.

    :param fields: by name, the type that the format fills.
    :param options: of the table; secrets included.
    :param made: by column, the expression that makes it of the fields; None where the fields are the columns.
    """

    fields: Mapping[str, str]
    options: Mapping[str, str]
    made: Mapping[str, str] | None = field(default=None)


def json_reading(columns: Schema, *, passes: bool = False) -> Reading:
    """Return how JSON is read.

    :param passes: what does not fit a column is NULL, and no JSON is no row: somebody else lands these records. Else
        they fail the job, and no record is left out.
    """
    ignored = "true" if passes else "false"
    return Reading(
        {one.name: type_of(one.field_type, one.name) for one in columns.fields},
        {"format": "json", "json.ignore-parse-errors": ignored, "json.timestamp-format.standard": "ISO-8601"},
    )


def text_reading() -> Reading:
    """Return how keys and values are read for a statement that takes them apart, and Kafka's time of the record."""
    return Reading(
        {"key": "BYTES", "value": "BYTES"},
        {"value.format": "raw", "key.format": "raw", "key.fields": "key", "value.fields-include": "EXCEPT_KEY"},
        {
            "key": "DECODE(r.`key`, 'UTF-8')",
            "value": "DECODE(r.`value`, 'UTF-8')",
            "event_timestamp": "CAST(r.`_kafka_timestamp` AS TIMESTAMP_LTZ(6))",
        },
    )


def raw_reading(columns: Schema) -> Reading:
    """Return how keys and values are read as they are. Raises InvalidArgument."""
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
    return Reading({one.name: type_of(one.field_type, one.name) for one in columns.fields}, options)
