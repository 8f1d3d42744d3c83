"""Change events of a commit, collected for a mirror in any table format."""

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
from airflow_lakestream.cdc.events.apart import bare, each
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
        """Return all events, or an empty table with `columns`. Raises MirrorStopped without a common type.

        :param read: returns the events of a file.
        :param table: the mirror's name, and `of_records` whether it is one of plain records, for the error.
        """
        parts = [bare(expanded(part)) for part in (*self.rows, *each(read, self.files))] or [no_rows(columns)]
        schema, lengths = pa.schema(_fields(parts, table, of_records)), [len(part) for part in parts]
        columns = []
        for one in schema:
            # Combined column by column and freed at once: all columns together would need the memory of two batches.
            of_parts = [_column(part, one, length) for part, length in zip(parts, lengths, strict=True)]
            parts = [part.drop_columns([name for name in part.column_names if name == one.name]) for part in parts]
            columns.append(pa.concat_tables(of_parts).combine_chunks()[0])
        return pa.Table.from_arrays(columns, schema=schema)

    def forget(self) -> None:
        """Forget the events. The caller deletes the files."""
        self.rows, self.files = [], []


def columns_of_events(mirror: pa.Schema, further: Sequence[str] = (), *, with_key: bool) -> pa.Schema:
    """Return the columns of events in executors' files, for a mirror with the columns `mirror`.

    :param further: the mirror's columns that the merge makes, and no event has.
    :param with_key: include the records' keys, if the user does not name the key.
    """
    own = [one.with_nullable(True) for one in mirror if one.name not in (*version_schema().names, *further, *OF_EVENTS)]
    key = [pa.field(RECORD_KEY, pa.binary())] if with_key else []
    origin = [pa.field(TABLE, pa.string()), pa.field(TRANSACTION, pa.int64()), pa.field(KEY_NAMES, pa.string())]
    origin += [
        pa.field(GIVEN, pa.string()),
        pa.field(GTID, pa.string()),
        pa.field(SERVER, pa.int64()),
        pa.field(MILLIS, pa.int64()),
        pa.field(TIME, pa.int64()),
    ]
    return pa.schema([*own, pa.field(OP, pa.string()), *version_schema(), *origin, *note_columns(), *key])


def _fields(parts: Sequence[pa.Table], table: str, of_records: bool) -> Iterator[pa.Field]:
    """Yield each column of any part, with the common type of all parts. Raises MirrorStopped."""
    found: dict[str, tuple[pa.Field, pa.Table]] = {}
    for part in parts:
        for one in part.schema:
            there, first = found.get(one.name, (one, part))
            # All its values are NULL, so it has no type.
            if part[one.name].null_count == len(part) and there is not one:
                continue
            if first[one.name].null_count == len(first):
                there, first = one, part
            kind = joined_type(there.type, one.type) or _of_numbers(there.type, one.type)
            if kind is None:
                origins = _type_origin(first, one.name), _type_origin(part, one.name)
                raise type_changed(table, one.name, *origins, of_records=of_records)
            found[one.name] = (there.with_type(kind), first)
    return (one for one, _ in found.values())


def _of_numbers(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return float64 for an integer and a float type: without schemas, values decide the type. Otherwise None."""
    return pa.float64() if {one, other} == {pa.int64(), pa.float64()} else None


def _type_origin(rows: pa.Table, name: str) -> ColumnTypeOrigin:
    at = pc.index(rows[name].is_valid(), True).as_py()
    return ColumnTypeOrigin.at(rows.schema.field(name).type, rows[PARTITION][at].as_py(), rows[OFFSET][at].as_py())


def _column(rows: pa.Table, one: pa.Field, length: int) -> pa.Table:
    """Return the column with this type, or `length` NULLs if the rows lack the column."""
    is_there = one.name in rows.column_names and rows[one.name].null_count < length
    column = rows[one.name].cast(one.type) if is_there else pa.nulls(length, one.type)
    return pa.Table.from_arrays([column], schema=pa.schema([one]))
