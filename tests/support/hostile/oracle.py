"""Whether a mirror has what PostgreSQL's table has: row by row, column by column, by PostgreSQL's own text."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as t
from pyiceberg.table import Table

from tests.support.hostile.changes import Sql
from tests.support.hostile.forms import NOT_SENT
from tests.support.hostile.schema import Column, HostileTable

Rows = dict[tuple[Any, ...], dict[str, Any]]
SHOWN = 4


@dataclass
class Compared:
    """What a comparison looked at, and the first differences."""

    rows: int
    values: int
    differences: list[str]


def database_rows(sql: Sql, table: HostileTable, out_of_range: str = "reject") -> Rows:
    """Return the database's rows by their key, as a mirror has them that is told this of values out of range."""
    columns = compared_columns(table)
    said = ", ".join(one.kind.form.sql.format(one.sql) for one in columns)
    found = sql.execute(f"select {said} from {table.sql}").fetchall()
    rows = [
        {one.name: _held(one, value, out_of_range) for one, value in zip(columns, row, strict=True)} for row in found
    ]
    return by_key(table, rows)


def _held(column: Column, text: str | None, out_of_range: str) -> Any:
    form = column.kind.form
    value = None if text is None else form.theirs(text)
    if value is None or out_of_range == "reject" or form.nearest(value) == value:
        return value
    return form.nearest(value) if out_of_range == "clamp" else None


def rows_of(table: Table) -> pa.Table:
    """Return a table's rows; `to_arrow` fails for an empty table with a list of UUIDs."""
    return table.scan().to_arrow_batch_reader().read_all()


def mirror_rows(table: HostileTable, found: pa.Table) -> Rows:
    """Return a mirror's rows by their key. Raises ValueError where a key is there twice."""
    values = {one.name: list(values_of(one, found)) for one in compared_columns(table)}
    return by_key(table, [{name: held[at] for name, held in values.items()} for at in range(len(found))])


def by_key(table: HostileTable, rows: list[dict[str, Any]]) -> Rows:
    keyed = {tuple(row[name] for name in table.key): row for row in rows}
    if len(keyed) != len(rows):
        keys = [tuple(row[name] for name in table.key) for row in rows]
        raise ValueError(f"keys that are there twice: {[key for key in keyed if keys.count(key) > 1][:SHOWN]}")
    return keyed


def compared_columns(table: HostileTable) -> list[Column]:
    return [one for one in table.columns if one.kind.form is not NOT_SENT and not one.generated]


def compare(table: HostileTable, theirs: Rows, found: pa.Table) -> Compared:
    """Compare a mirror with what the database said."""
    try:
        ours = mirror_rows(table, found)
    except ValueError as e:
        return Compared(len(theirs), 0, [str(e)])
    differences = [f"row {key} is not in the mirror: {theirs[key]}" for key in theirs.keys() - ours.keys()]
    differences += [f"row {key} is in the mirror only: {ours[key]}" for key in ours.keys() - theirs.keys()]
    for key in theirs.keys() & ours.keys():
        differences += row_differences(compared_columns(table), theirs[key], ours[key], f"row {key}")
    columns = len(compared_columns(table))
    return Compared(len(theirs), len(theirs) * columns, differences)


def row_differences(columns: list[Column], theirs: dict[str, Any], ours: dict[str, Any], what: str) -> list[str]:
    return [
        f"{what}: {one.name} ({one.kind.sql}) is {theirs[one.name]!r:.200} in PostgreSQL, {ours[one.name]!r:.200} here"
        for one in columns
        if theirs[one.name] != ours[one.name]
    ]


def values_of(column: Column, found: pa.Table) -> Iterator[Any]:
    # A column that no event has brought is NULL in all rows.
    if column.name not in found.column_names:
        yield from [None] * len(found)
        return
    for value in plain(found[column.name]):
        if value is None:
            yield None
            continue
        try:
            yield column.kind.form.ours(value)
        except (ValueError, TypeError, ArithmeticError, AssertionError, KeyError):
            yield f"unreadable: {value!r}"


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Return values with dates, times and timestamps as integers: Python has no year 0, and none over 9999."""
    held = [_as_read(value) for chunk in column.chunks for value in _storage(chunk).to_pylist()]
    return [
        str(uuid.UUID(bytes=value)) if isinstance(value, bytes) and _is_uuid(column.type) else value for value in held
    ]


def _is_uuid(kind: pa.DataType) -> bool:
    return kind == pa.uuid() or (t.is_fixed_size_binary(kind) and kind.byte_width == 16)


def _storage(array: pa.Array) -> pa.Array:
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    return array.cast(_integers(array.type)) if _integers(array.type) != array.type else array


def _integers(kind: pa.DataType) -> pa.DataType:
    if t.is_date32(kind):
        return pa.int32()
    if t.is_timestamp(kind) or t.is_time64(kind):
        assert kind.unit == "us", f"{kind}: the oracle reads microseconds"
        return pa.int64()
    if t.is_list(kind) or t.is_large_list(kind):
        return pa.list_(_integers(kind.value_type))
    return kind


def _as_read(value: Any) -> Any:
    """Read UUIDs within lists."""
    if isinstance(value, list):
        return [str(one) if isinstance(one, uuid.UUID) else one for one in value]
    return value
