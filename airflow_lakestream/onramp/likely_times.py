"""Columns of numbers that are likely times, as a new file has them: as times if the name is a time's, too.

A range of numbers alone is not enough: phone numbers of ten digits look like seconds, and some ids like nanoseconds. A
wrong guess would land them as strange times, so that these columns only get a note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.decode.json.kinds import Kinds, likely_unit, path_of, remarks
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.time_sources import ELEMENT, Path, TimeSource
from airflow_lakestream.tables.schema.types import schema_text, type_text

_WHERE = "the file's schema"
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_OF_TIMES = frozenset(
    {"at", "created", "date", "datetime", "deleted", "epoch", "modified", "time", "timestamp", "ts", "updated", "when"}
)
# As in time_zone_id or timestampCount.
_OF_OTHERS = frozenset({"code", "count", "duration", "id", "key", "number", "phone", "zone"})


def with_likely_times(columns: str, kinds: Kinds) -> tuple[str, Sequence[str]]:
    """Return the DDL of guessed columns with likely times as times, and notes about columns for a comment.

    A column of numbers becomes a time if all its values are likely times of one unit, and its name is a time's.

    :param columns: the columns as DDL.
    :param kinds: the kinds of values in the columns.
    """
    schema, times, notes = to_schema(columns), dict[Path, TimeSource](), list[str]()
    for name, kind_counts in kinds.items():
        path, unit = path_of(name), likely_unit(kind_counts)
        kind = _type_at(schema.as_struct(), path)
        if unit is None or not isinstance(kind, iceberg.LongType | iceberg.DoubleType) or not is_of_a_time(name):
            continue
        times[path] = TimeSource(unit)
        seen = "; ".join(map(str, kind_counts))
        notes.append(f"{name}: {seen}. They land as times; {type_text(kind)} as its type lands the numbers.")
    made = Schema(*(_retyped(field, (field.name,), times) for field in schema.fields))
    return schema_text(made, times), [*notes, *remarks(made, kinds, times, _WHERE)]


def is_of_a_time(name: str) -> bool:
    """Return whether a column's name has a word for times, such as `shippedAt`, `ts_ms` or `event.time`."""
    words = {word.lower() for word in _WORDS.findall(name.rpartition(".")[2])}
    return bool(words & _OF_TIMES) and not words & _OF_OTHERS


def _type_at(kind: iceberg.IcebergType, path: Path) -> iceberg.IcebergType | None:
    if not path:
        return kind
    if isinstance(kind, iceberg.ListType):
        return _type_at(kind.element_type, path[1:]) if path[0] == ELEMENT else None
    fields = kind.fields if isinstance(kind, iceberg.StructType) else ()
    return next((_type_at(field.field_type, path[1:]) for field in fields if field.name == path[0]), None)


def _retyped(field: iceberg.NestedField, path: Path, times: Mapping[Path, TimeSource]) -> iceberg.NestedField:
    kind = _timed(field.field_type, path, times)
    return iceberg.NestedField(field.field_id, field.name, kind, required=field.required, doc=field.doc)


def _timed(kind: iceberg.IcebergType, path: Path, times: Mapping[Path, TimeSource]) -> iceberg.IcebergType:
    if path in times:
        return iceberg.TimestamptzType()
    if isinstance(kind, iceberg.StructType):
        return iceberg.StructType(*(_retyped(field, (*path, field.name), times) for field in kind.fields))
    if isinstance(kind, iceberg.ListType):
        element = _timed(kind.element_type, (*path, ELEMENT), times)
        return iceberg.ListType(kind.element_id, element, element_required=kind.element_required)
    return kind
