"""Change events of the next commit, collected for a mirror in any table format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import (
    GIVEN,
    GTID,
    KEY_NAMES,
    MILLIS,
    OF_EVENTS,
    OFFSET,
    OP,
    PARTITION,
    RECORD_KEY,
    SERVER,
    TABLE,
    TIME,
    TRANSACTION,
    version_schema,
)
from airflow_lakestream.cdc.events.apart import bare, read_each
from airflow_lakestream.cdc.events.notes import note_columns
from airflow_lakestream.cdc.events.provenance import expanded
from airflow_lakestream.cdc.events.widening import joined_type
from airflow_lakestream.cdc.stops import ColumnTypeOrigin, type_changed
from airflow_lakestream.tables.row_buffer import no_rows


@dataclass
class CommitEvents:
    """Change events: `rows` of this process, and `files` of executors."""

    rows: list[pa.Table] = field(default_factory=list)
    files: list[Any] = field(default_factory=list)

    def joined(
        self, read: Callable[[Any], pa.Table], columns: pa.Schema, table: str, *, of_records: bool = False
    ) -> pa.Table:
        """Return all events, or an empty table with `columns`. Raises MirrorStopped if a column has no common type.

        :param read: returns the events of a file.
        :param of_records: whether the mirror is one of plain records, for the error.
        """
        parts = [bare(expanded(part)) for part in (*self.rows, *read_each(read, self.files))] or [no_rows(columns)]
        schema, lengths = pa.schema(_fields(parts, table, of_records)), [len(part) for part in parts]
        arrays = []
        for column in schema:
            # Combined column by column and freed at once: all columns together would need the memory of two batches.
            of_parts = [_column(part, column, length) for part, length in zip(parts, lengths, strict=True)]
            parts = [part.drop_columns([name for name in part.column_names if name == column.name]) for part in parts]
            arrays.append(pa.concat_tables(of_parts).combine_chunks()[0])
        return pa.Table.from_arrays(arrays, schema=schema)

    def forget(self) -> None:
        """Forget the events. The caller deletes the files."""
        self.rows, self.files = [], []


def columns_of_events(mirror: pa.Schema, further: Sequence[str] = (), *, with_key: bool) -> pa.Schema:
    """Return the columns of events in executors' files, for a mirror with the columns `mirror`.

    :param further: the mirror's columns that no event has, since the merge makes them.
    :param with_key: whether events have the records' keys: if the user does not name the mirror's key.
    """
    of_row = [
        field.with_nullable(True)
        for field in mirror
        if field.name not in (*version_schema().names, *further, *OF_EVENTS)
    ]
    key = [pa.field(RECORD_KEY, pa.binary())] if with_key else []
    origin = [pa.field(TABLE, pa.string()), pa.field(TRANSACTION, pa.int64()), pa.field(KEY_NAMES, pa.string())]
    origin += [
        pa.field(GIVEN, pa.string()),
        pa.field(GTID, pa.string()),
        pa.field(SERVER, pa.int64()),
        pa.field(MILLIS, pa.int64()),
        pa.field(TIME, pa.int64()),
    ]
    return pa.schema([*of_row, pa.field(OP, pa.string()), *version_schema(), *origin, *note_columns(), *key])


def _fields(parts: Sequence[pa.Table], table: str, of_records: bool) -> Iterator[pa.Field]:
    """Yield each column of any part, with the common type of all parts. Raises MirrorStopped."""
    # By name, the column with the common type until now, and the first part with a value in the column.
    columns: dict[str, tuple[pa.Field, pa.Table]] = {}
    for part in parts:
        for own in part.schema:
            name = own.name
            column, first_part = columns.get(name, (own, part))
            # A column of NULLs only has no type.
            if part[name].null_count == len(part) and column is not own:
                continue
            if first_part[name].null_count == len(first_part):
                column, first_part = own, part
            kind = joined_type(column.type, own.type) or _joined_numbers(column.type, own.type)
            if kind is None:
                origins = _type_origin(first_part, name), _type_origin(part, name)
                raise type_changed(table, name, *origins, of_records=of_records)
            columns[name] = (column.with_type(kind), first_part)
    return (column for column, _ in columns.values())


def _joined_numbers(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return float64 for an integer and a float type: without schemas, values decide the type. Otherwise None."""
    return pa.float64() if {first, second} == {pa.int64(), pa.float64()} else None


def _type_origin(rows: pa.Table, name: str) -> ColumnTypeOrigin:
    """Return a column's type with the place of the first event that has a value in the column."""
    first = pc.index(rows[name].is_valid(), True).as_py()
    return ColumnTypeOrigin.at(
        rows.schema.field(name).type, rows[PARTITION][first].as_py(), rows[OFFSET][first].as_py()
    )


def _column(rows: pa.Table, column: pa.Field, length: int) -> pa.Table:
    """Return the column with this type, or `length` NULLs if the rows lack the column."""
    has_values = column.name in rows.column_names and rows[column.name].null_count < length
    values = rows[column.name].cast(column.type) if has_values else pa.nulls(length, column.type)
    return pa.Table.from_arrays([values], schema=pa.schema([column]))
