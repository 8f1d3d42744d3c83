"""The values of incoming rows: left-out values come from the batch, the table's old rows or the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import DELETED, OP, UNAVAILABLE, VERSION, order_columns
from airflow_lakestream.cdc.keys.identity import keys_of, places
from airflow_lakestream.cdc.merge.left_out import ValueOrigin, ValueSource
from airflow_lakestream.cdc.merge.memory import MirrorMemory
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.snapshots import Version, is_gone, is_later, versions
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.exceptions import LakestreamError, Terminal
from airflow_lakestream.tables.rising import Numbers
from airflow_lakestream.tables.row_buffer import one_array

# Notes an event that leaves a value out: called with the column, partition and offset.
Borrowed = Callable[[str, int, int], None]


class OldRows:
    """The table's removed or changed rows, as far as still needed. All rows must be added before the first lookup."""

    def __init__(self) -> None:
        self._rows: list[pa.Table] = []
        self._by_key: dict[tuple[object, ...], int] | None = None
        self._table: pa.Table | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._rows.append(rows)

    def table(self) -> pa.Table | None:
        """Return all rows, or None without rows."""
        if self._table is None and self._rows:
            self._table = pa.concat_tables(self._rows, promote_options="permissive")
        return self._table

    def row_of(self, key: tuple[object, ...], names: Sequence[str]) -> pa.Table | None:
        """Return the row of a key, or None if unknown.

        :param names: the columns of the key.
        """
        rows = self.table()
        if rows is None:
            return None
        if self._by_key is None:
            self._by_key = {row_key: number for number, row_key in enumerate(keys_of(rows, names))}
        number = self._by_key.get(key)
        return None if number is None else rows.slice(number, 1)


def with_values(rows: pa.Table, column: str, values: dict[int, pa.Scalar | None]) -> pa.Table:
    """Return rows with replaced values in a column; a value None becomes NULL.

    :param values: the new values, by the index of the row.
    """
    field, old = rows.schema.field(column), one_array(rows[column])
    # Not through Python objects, from which Arrow can't make UUID arrays.
    new = [pa.nulls(1, old.type) if value is None else pa.repeat(value, 1).cast(old.type) for value in values.values()]
    indices = np.arange(len(rows))
    indices[list(values)] = len(rows) + np.arange(len(values))
    # Arrow's replace_with_mask does not support lists; `take` supports all types.
    filled = pa.concat_arrays([old, *new]).take(pa.array(indices))
    return rows.set_column(rows.column_names.index(column), field, filled)


def with_deleted(rows: pa.Table) -> pa.Table:
    """Return rows marked as deleted."""
    deleted = pa.repeat(pa.scalar(True), len(rows))
    if DELETED not in rows.column_names:
        return rows.append_column(DELETED, deleted)
    return rows.set_column(rows.column_names.index(DELETED), DELETED, deleted)


def marked_where(rows: pa.Table, mask: Mask, version: Version | None) -> pa.Table:
    """Return rows with the rows of a mask marked as deleted by a truncation.

    :param version: the version of the truncation, which the marked rows get.
    """
    assert version is not None, "rows are marked by a truncation"
    values = {**dict(zip(VERSION, version, strict=True)), DELETED: True}
    for name, value in values.items():
        kind = rows.schema.field(name).type
        column = pc.if_else(pa.array(mask), pa.scalar(value, kind), rows[name])
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


def as_bytes(rows: pa.Table, compression: str | None = None) -> bytes:
    """Return rows as Arrow's IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


class ValueMissing(LakestreamError, Terminal):
    """Failure by a left-out value in an event, missing in the batch and in the table."""

    def __init__(self, table: str, column: str, partition: int, offset: int) -> None:
        super().__init__(
            f"{table}: the change event at partition {partition}, offset {offset} leaves out {column} (Debezium's "
            f"{UNAVAILABLE}), and the table has no row to take it from: events before it were not landed, or the row's "
            "key was changed and its events are in several partitions. Nothing was landed. Let the database send all "
            "values (ALTER TABLE ... REPLICA IDENTITY FULL), and read the table again with a snapshot of Debezium. If "
            "the table was truncated while Debezium read its first snapshot, run again once the "
            "truncation is in the topic: one batch has to reach beyond it (in the worker by a larger max_batch_bytes)."
        )


@dataclass
class RowValues:
    """The values of a batch's rows, including left-out values.

    :param table: the mirror's name; `key` are its key's columns.
    :param memory: has deleted rows, whose values a row with another key may need.
    :param old: the table's rows that are replaced or deleted.
    :param borrowed: notes each left-out value, and an unknown value becomes NULL; without it, an unknown value raises
        ValueMissing.
    """

    batch: NewestEvents
    table: str
    key: tuple[str, ...]
    memory: MirrorMemory
    old: OldRows
    borrowed: Borrowed | None = None

    def complete(self, indices: Numbers) -> pa.Table:
        """Return the events' rows with all values. Raises ValueMissing, except for deleted rows.

        :param indices: the indices of the events in the batch.
        """
        batch = self.batch
        rows = batch.rows.take(pa.array(indices))
        if batch.partial is not None:
            dead = self.memory.is_dead(batch.partial.records.select([*self.key, *VERSION]))
            return batch.partial.complete(rows.drop_columns([OP]), self.old.table(), dead)
        gone, rows = is_gone(rows), rows.drop_columns([OP])
        number_of = {int(index): number for number, index in enumerate(indices)} if batch.sources else {}
        by_column: dict[str, dict[int, pa.Scalar | None]] = {}
        for (index, column), source in batch.sources.items():
            if index not in number_of:
                continue
            value = self._value(column, source)
            partition, offset = (batch.rows[name][index].as_py() for name in VERSION[2:])
            if self.borrowed is not None:
                self.borrowed(column, partition, offset)
            # A deleted row may lack a value.
            elif value is None and not gone[number_of[index]]:
                raise ValueMissing(self.table, column, partition, offset)
            by_column.setdefault(column, {})[number_of[index]] = value
        for column, values in by_column.items():
            rows = with_values(rows, column, values)
        return rows

    def marked(self, deletes: Numbers) -> Iterator[tuple[Numbers, pa.Table]]:
        """Yield the deleted rows to keep, marked: first rows with values from the batch, then rows from the table.

        Each part comes with the indices of its deletions.

        :param deletes: the indices of all deletions in the batch.
        """
        table_rows, rows, key = self.old.table(), self.complete(deletes), self.key
        row_of = places(rows, table_rows, key) if table_rows is not None else np.full(len(rows), -1, np.int64)
        of_table = np.flatnonzero(row_of >= 0)
        if table_rows is not None and len(of_table):
            # The table's row is taken if the batch has no values of the row, or if the table's row is newer than the
            # values in the batch.
            contents = self.batch.contents.take(pa.array(deletes[of_table]))
            has_batch_values = is_later(rows.take(pa.array(of_table)), contents)
            of_table = of_table[~has_batch_values | is_later(table_rows.take(pa.array(row_of[of_table])), contents)]
        of_batch = np.setdiff1d(np.arange(len(rows)), of_table)
        yield deletes[of_batch], with_deleted(rows.take(pa.array(of_batch)))
        if table_rows is not None and len(of_table):
            kept, deletions = table_rows.take(pa.array(row_of[of_table])), rows.take(pa.array(of_table))
            for name in order_columns(deletions.column_names):
                kept = kept.set_column(kept.column_names.index(name), name, deletions[name])
            yield deletes[of_table], with_deleted(kept)

    def row_before(self, index: int) -> bytes | None:
        """Return a deleted row's values as an Arrow stream, or None without values for the next event.

        The next event may create the row again under another key, and leave values out.

        :param index: the index of the deletion in the batch.
        """
        before = self.batch.befores.get(index)
        if not before:
            return None
        values = {name: self._value(name, source) for name, source in before.items()}
        known_values = {name: value for name, value in values.items() if value is not None}
        if not known_values:
            return None
        return as_bytes(pa.table({name: pa.repeat(value, 1) for name, value in known_values.items()}))

    def _value(self, column: str, source: ValueSource) -> pa.Scalar | None:
        """Return the value from a source, or None if unknown."""
        outside = (self._outside(column, origin) for origin in source.origins)
        return next((value for value in outside if value is not None), source.value)

    def _outside(self, column: str, origin: ValueOrigin) -> pa.Scalar | None:
        """Return a column's value in a row outside of the batch, or None if the row has no valid value."""
        if origin.moved is not None:
            row = self.memory.moved(origin.moved)
        else:
            row = self.old.row_of(origin.key, self.key)
            if row is not None and not origin.spans(versions(row)[0], self.memory.snapshots):
                return None
        return None if row is None or column not in row.column_names else row[column][0]
