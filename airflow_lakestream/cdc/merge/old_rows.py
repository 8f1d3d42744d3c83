"""Rows of a mirror before a batch, and the new versions of those that stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import DELETED, VERSION
from airflow_lakestream.cdc.keys.identity import keys_of
from airflow_lakestream.cdc.merge.newest import Mask
from airflow_lakestream.cdc.merge.snapshots import Version


class OldRows:
    """The table's rows that are removed or changed and still needed."""

    def __init__(self) -> None:
        self._rows: list[pa.Table] = []
        self._by_key: dict[tuple[object, ...], int] | None = None
        self._table: pa.Table | None = None

    def add(self, rows: pa.Table) -> None:
        """Take some."""
        self._rows.append(rows)

    def table(self) -> pa.Table | None:
        """Return all of them; None without any."""
        if self._table is None and self._rows:
            self._table = pa.concat_tables(self._rows, promote_options="permissive")
        return self._table

    def row_of(self, key: tuple[object, ...], names: Sequence[str]) -> pa.Table | None:
        """Return the row of a key."""
        rows = self.table()
        if rows is None:
            return None
        if self._by_key is None:
            self._by_key = {one: number for number, one in enumerate(keys_of(rows, names))}
        number = self._by_key.get(key)
        return None if number is None else rows.slice(number, 1)


def with_values(rows: pa.Table, column: str, values: dict[int, pa.Scalar | None]) -> pa.Table:
    """Return rows with some values of a column replaced; None is NULL."""
    field_, there = rows.schema.field(column), rows[column].combine_chunks()
    # Not through Python objects, from which Arrow can't make UUID arrays.
    new = [pa.nulls(1, there.type) if one is None else pa.repeat(one, 1).cast(there.type) for one in values.values()]
    takes = np.arange(len(rows))
    takes[list(values)] = len(rows) + np.arange(len(values))
    # Also for arrays, in which Arrow can't replace by a mask.
    filled = pa.concat_arrays([there, *new]).take(pa.array(takes))
    return rows.set_column(rows.column_names.index(column), field_, filled)


def with_deleted(rows: pa.Table) -> pa.Table:
    """Return rows marked as deleted."""
    deleted = pa.repeat(pa.scalar(True), len(rows))
    if DELETED not in rows.column_names:
        return rows.append_column(DELETED, deleted)
    return rows.set_column(rows.column_names.index(DELETED), DELETED, deleted)


def marked_where(rows: pa.Table, mask: Mask, version: Version | None) -> pa.Table:
    """Return rows, some of them marked as deleted by a truncation."""
    assert version is not None, "rows are marked by a truncation"
    values = {**dict(zip(VERSION, version, strict=True)), DELETED: True}
    for name, value in values.items():
        kind = rows.schema.field(name).type
        column = pc.if_else(pa.array(mask), pa.scalar(value, kind), rows[name])
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


def as_bytes(row: pa.Table) -> bytes:
    """Return a row as Arrow's IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    return bytes(sink.getvalue())
