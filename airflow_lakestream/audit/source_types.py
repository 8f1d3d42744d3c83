"""Expressions of SQL by which columns of a source database are compared with a mirror's columns.

A column without an expression is not compared: Debezium rounds or rewrites its values, or leaves a part of them out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as t


@dataclass(frozen=True, kw_only=True)
class SourceColumn:
    """Column of a table in a source database.

    :param kind: the type's own name, of a domain that of the type below; `element` that of an array's items.
    :param full_type: the type as SQL casts to it, and in messages.
    :param modifier: length or precision, as the database keeps it; -1 without.
    :param is_builtin: whether comparing values needs no extension.
    :param category: PostgreSQL's letter of the type's group: "e" of enums, "r" of ranges.
    """

    name: str
    kind: str
    full_type: str
    element: str | None = None
    modifier: int = -1
    is_builtin: bool = True
    is_generated: bool = False
    is_nullable: bool = True
    category: str = ""


@dataclass(frozen=True)
class ComparedValue:
    """A value in SQL, `{c}` is the column. `is_raw`: Arrow takes the values of the driver, not their text."""

    sql: str
    is_raw: bool = False


_Fits = Callable[[pa.DataType], bool]
# `format` has the text that the server itself writes, also of padded texts and addresses; of NULL an empty text.
_NUMBER = ComparedValue("{c}")
_TEXT = ComparedValue("case when {c} is not null then format('%%s', {c}) end")
_IN_RANGE = "case when {{c}} between '0001-01-01' and '9999-12-31 23:59:59.999999' then {} end"


def _is_text(kind: pa.DataType) -> bool:
    return bool(t.is_string(kind) or t.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(t.is_binary(kind) or t.is_large_binary(kind))


def _is_time(has_zone: bool) -> _Fits:
    return lambda kind: bool(t.is_timestamp(kind) and (kind.tz is not None) is has_zone)


def _is_uuid(kind: pa.DataType) -> bool:
    return bool(kind == pa.uuid() or (t.is_fixed_size_binary(kind) and kind.byte_width == 16))


# By type of PostgreSQL: which columns of a mirror are compared, and the value.
_POSTGRES: dict[str, list[tuple[_Fits, ComparedValue]]] = {
    **{name: [(t.is_integer, _NUMBER)] for name in ("int2", "int4", "int8", "oid")},
    "float4": [(t.is_float32, ComparedValue("{c}::text"))],
    "float8": [(t.is_float64, ComparedValue("{c}::text"))],
    # Debezium has NULL for numbers that are none.
    "numeric": [(t.is_decimal, ComparedValue("case when {c}::text !~* 'n' then {c}::text end"))],
    "bool": [(t.is_boolean, ComparedValue("{c}::text"))],
    "bytea": [(_is_bytes, ComparedValue("{c}", is_raw=True))],
    "date": [(t.is_date32, ComparedValue(_IN_RANGE.format("{c}::text")))],
    "timestamp": [(_is_time(False), ComparedValue(_IN_RANGE.format("{c}::text")))],
    "timestamptz": [(_is_time(True), ComparedValue(_IN_RANGE.format("({c} at time zone 'UTC')::text")))],
    "time": [
        (
            t.is_time64,
            ComparedValue("case when {c} < '24:00' then (extract(epoch from {c}) * 1000000)::bigint end"),
        )
    ],
    "uuid": [(_is_uuid, ComparedValue("decode(replace({c}::text, '-', ''), 'hex')", is_raw=True)), (_is_text, _TEXT)],
}
_TEXTS = {"text", "varchar", "bpchar", "citext", "json", "jsonb", "xml", "ltree", "inet", "cidr", "macaddr", "macaddr8"}
_ITEMS: dict[str, _Fits] = {
    **dict.fromkeys(("int2", "int4", "int8"), t.is_integer),
    **dict.fromkeys(("text", "varchar"), _is_text),
    "bool": t.is_boolean,
}
# Debezium has NULL for each inner array.
_ARRAY = ComparedValue(
    "case when array_ndims({c}) > 1 then array_fill(null::{element}, array[array_length({c}, 1)]) else {c} end",
    is_raw=True,
)


def postgres_value(column: SourceColumn, kind: pa.DataType) -> ComparedValue | None:
    """Return the value of a column of PostgreSQL, as a mirror's column of a type has it; None if not compared."""
    if column.element is not None:
        fits = _ITEMS.get(column.element)
        is_list = t.is_list(kind) or t.is_large_list(kind)
        if fits is None or not is_list or not fits(kind.value_type):
            return None
        return ComparedValue(_ARRAY.sql.replace("{element}", column.element), is_raw=True)
    if column.kind == "bit" and column.modifier == 1 and t.is_boolean(kind):
        return ComparedValue("{c}::int")
    if (column.kind in _TEXTS or column.category in ("e", "r")) and _is_text(kind):
        return _TEXT
    return _first(_POSTGRES.get(column.kind, []), kind)


_PLAIN, _RAW = ComparedValue("{c}"), ComparedValue("{c}", is_raw=True)
_MYSQL: dict[str, list[tuple[_Fits, ComparedValue]]] = {
    # A number beyond 63 bits is negative in the mirror, as Debezium sends it.
    **{
        name: [(t.is_integer, ComparedValue("cast({c} as signed)"))]
        for name in ("tinyint", "smallint", "mediumint", "int", "bigint", "year")
    },
    "decimal": [(t.is_decimal, _PLAIN)],
    # The text of a float has six digits.
    "float": [(t.is_float32, ComparedValue("cast({c} as double)"))],
    "double": [(t.is_float64, _PLAIN)],
    "bit": [(t.is_boolean, ComparedValue("{c} + 0"))],
    **{
        name: [(_is_text, _RAW)]
        for name in ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set")
    },
    **{name: [(_is_bytes, _RAW)] for name in ("varbinary", "tinyblob", "blob", "mediumblob", "longblob")},
    "time": [
        (
            t.is_time64,
            ComparedValue(
                "case when {c} between '00:00:00' and '23:59:59.999999' "
                "then floor(time_to_sec({c})) * 1000000 + microsecond({c}) end"
            ),
        )
    ],
}
_ZERO = "case when {{c}} = '0000-00-00' then {zero} else cast({{c}} as char) end"


def mysql_value(column: SourceColumn, kind: pa.DataType) -> ComparedValue | None:
    """Return the value of a column of MariaDB or MySQL, as a mirror's column of a type has it; None if not compared."""
    is_date = column.kind == "date" and t.is_date32(kind)
    if is_date or (column.kind in ("datetime", "timestamp") and _is_time(column.kind == "timestamp")(kind)):
        # Debezium sends a zero date as NULL, or in a column without NULL as the first day of 1970.
        return ComparedValue(_ZERO.format(zero="null" if column.is_nullable else "'1970-01-01'"))
    return _first(_MYSQL.get(column.kind, []), kind)


def _first(values: Sequence[tuple[_Fits, ComparedValue]], kind: pa.DataType) -> ComparedValue | None:
    return next((value for fits, value in values if fits(kind)), None)


def to_arrow(values: Sequence[Any], value: ComparedValue, kind: pa.DataType) -> pa.Array:
    """Return the values of a column in a mirror's type. Raises ArrowInvalid for a value that the type can't hold."""
    if value.is_raw:
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        found = pa.array(values, storage)
        return pa.ExtensionArray.from_storage(kind, found) if storage is not kind else found
    texts = pa.array([None if one is None else str(one) for one in values], pa.string())
    if t.is_time64(kind):
        return texts.cast(pa.int64()).cast(kind)
    if t.is_timestamp(kind) and kind.tz is not None:
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)
    return texts.cast(kind)
