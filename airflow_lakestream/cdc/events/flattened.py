"""Debezium's events flattened by `ExtractNewRecordState`: rows with `__deleted`, `__op` and `__source_...`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.cdc.events.decoder import is_streamed, log_places
from airflow_lakestream.cdc.events.log_state import BINLOG_FIELDS, binlog_places, binlog_rows
from airflow_lakestream.decode.connect.debezium import IMAGES
from airflow_lakestream.decode.connect.debezium_own import RecordForm
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.row_buffer import one_array

DELETED, OP = "__deleted", "__op"
_PREFIX = "__source_"
# The time of the change in the database, in milliseconds.
TIME_FIELD = f"{_PREFIX}ts_ms"
# Records with one of these fields are ordered by the database's log, other records by offset.
_LOG_FIELDS = ("sequence", "lsn", "file")
_FIELD_TYPES = {"sequence": pa.string(), "lsn": pa.int64(), **dict(BINLOG_FIELDS)}


@dataclass(frozen=True)
class FlattenedRecords:
    """Records with the fields that `ExtractNewRecordState` adds, in rows.

    :param rows: the rows; a tombstone has null in all columns except the key's.
    """

    rows: pa.Table

    def deleted(self) -> Mask:
        """Return a mask of the records that delete their row."""
        mask = np.zeros(len(self.rows), np.bool_)
        for name, value in ((DELETED, "true"), (OP, "d")):
            column = self._column(name)
            if column is not None:
                texts = column.cast(pa.string()) if t.is_boolean(column.type) else column
                mask |= pc.fill_null(pc.equal(texts, value), False).to_numpy(zero_copy_only=False)
        return mask

    @property
    def has_deletions(self) -> bool:
        """Whether deletions are records, so that the tombstones behind them change nothing."""
        return DELETED in self.rows.column_names

    def log_positions(self) -> tuple[pa.Array, pa.Array] | None:
        """Return `COMMIT` and `POSITION` of each record, or None if the rows have no columns of log positions.

        `COMMIT` is null for a record without a log position.
        """
        if not any(_PREFIX + name in self.rows.column_names for name in _LOG_FIELDS):
            return None
        columns = {name: self._column(_PREFIX + name, kind) for name, kind in _FIELD_TYPES.items()}
        source = pa.StructArray.from_arrays(list(columns.values()), list(columns))
        ops = self._column(OP, pa.string())
        commit, position = log_places(columns["sequence"], columns["lsn"], ops)
        binlog_commit = binlog_places(source)
        is_binlog_event = pc.and_(binlog_commit.is_valid(), is_streamed(ops))
        return pc.coalesce(binlog_commit, commit), pc.if_else(is_binlog_event, binlog_rows(source), position)

    def times(self) -> pa.Array:
        """Return the times of the changes in microseconds; null for a record without a time."""
        return pc.multiply(self._column(TIME_FIELD, pa.int64()), 1000)

    def forms(self) -> Iterator[tuple[RecordForm, Mask]]:
        """Yield the forms of records that belong neither among flattened nor among plain ones, with their masks."""
        yield RecordForm.DEBEZIUM, self.whole_events()
        names = [self._column(name) for name in ("database", "table", "type")]
        columns = [one for one in names if one is not None and t.is_string(one.type)]
        if len(columns) < len(names):
            return
        for form, members in ((RecordForm.CANAL, ("isDdl", "es")), (RecordForm.MAXWELL, ("data", "ts"))):
            more = [one for name in members if (one := self._column(name)) is not None]
            # A plain record may have the names of Maxwell, and no row in `data`.
            if len(more) == len(members) and (form is RecordForm.CANAL or t.is_struct(more[0].type)):
                there = [one.is_valid().to_numpy(zero_copy_only=False) for one in (*columns, *more)]
                yield form, np.logical_and.reduce(there)

    def whole_events(self) -> Mask:
        """Return a mask of the records that are whole events: a topic of flattened events must not have any."""
        mask = np.zeros(len(self.rows), np.bool_)
        images = [column for name in IMAGES if (column := self._column(name)) is not None]
        source, op = self._column("source"), self._column("op")
        if images and source is not None and op is not None and t.is_struct(source.type):
            is_event = source.is_valid().to_numpy(zero_copy_only=False) & op.is_valid().to_numpy(zero_copy_only=False)
            mask |= is_event & np.logical_or.reduce(
                [image.is_valid().to_numpy(zero_copy_only=False) for image in images]
            )
        return mask

    def _column(self, name: str, kind: pa.DataType | None = None) -> pa.Array | None:
        """Return a column, cast to a type if given. Without the column: nulls of the type, or None without a type."""
        if name in self.rows.column_names:
            column = one_array(self.rows[name])
            return column if kind is None else column.cast(kind)
        return None if kind is None else pa.nulls(len(self.rows), kind)


def place_columns(names: Sequence[str]) -> str:
    """Return the names of columns with log positions, among a table's column names, as a text for errors."""
    return ", ".join(name for name in names if name in {_PREFIX + field for field in _LOG_FIELDS})
