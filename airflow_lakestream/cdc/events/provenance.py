"""Origin of change events: table, transaction, record key, and the row's old key."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import (
    BEFORE,
    IMAGE,
    KEY_NAMES,
    LOG,
    OF_EVENTS,
    OLD,
    OP,
    REST,
    SOURCE,
    TABLE,
    TRANSACTION,
)
from airflow_lakestream.cdc.events.log_state import SERIAL, binlog_places, log_columns, member
from airflow_lakestream.cdc.events.record_keys import NO_KEY, as_list
from airflow_lakestream.cdc.keys.identity import comparable
from airflow_lakestream.tables.row_buffer import one_array
from airflow_lakestream.tables.schema.required import cast_to

_NAMES = ("db", "schema", "table")


class OldKeyState(StrEnum):
    """State of the row's key before an update; null for an unchanged key."""

    # The update has changed the key: the row before is part of the event.
    OTHER = "other"
    # Unknown: the mirror's key is not the database's, and the event has no row before.
    UNKNOWN = "unknown"


def with_image(schema: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Return the columns to decode events with: also the row before the change, if the user names the mirror's key.

    The database does not send a change of this key as a deletion and a new row, unless it is the database's key, too.

    :param key: the columns of the key; empty if the user does not name them.
    """
    row = [field for field in schema if field.name not in OF_EVENTS]
    if not key or not {field.name for field in row}.issuperset(key):
        return schema
    return schema.append(pa.field(IMAGE, pa.struct(row)))


def with_origin(rows: pa.Table, key: Sequence[str], names: pa.Array) -> pa.Table:
    """Return decoded events with the origin in separate columns, and with the old key's state in place of `IMAGE`.

    :param key: the columns of the mirror's key, if the user names them.
    :param names: the columns of the records' keys, see `record_keys.names_in`.
    """
    ops, source = rows[OP].combine_chunks(), rows[SOURCE].combine_chunks()
    # A truncation never has a key, so it has no columns of a key either.
    names = pc.if_else(pc.equal(ops, "t").fill_null(False), pa.scalar(None, pa.string()), names)
    events = rows.drop_columns([name for name in (IMAGE,) if name in rows.column_names])
    events = events.append_column(TABLE, _table(source))
    is_serial = binlog_places(source).is_valid()
    transactions = pc.if_else(is_serial, pa.scalar(SERIAL, pa.int64()), member(source, "txId", pa.int64()))
    events = events.append_column(TRANSACTION, transactions)
    for name, column in zip(LOG, log_columns(source), strict=True):
        events = events.append_column(name, column)
    events = events.append_column(KEY_NAMES, names)
    return _with_old(events, one_array(rows[IMAGE]), key) if IMAGE in rows.column_names else events


def is_serial(rows: pa.Table) -> bool:
    """Return whether all events come from a log of sequential transactions, see `log_state`; false without events."""
    if TRANSACTION not in rows.column_names or not len(rows):
        return False
    return bool(pc.all(pc.equal(pc.fill_null(rows[TRANSACTION], 0), SERIAL)).as_py())


def expanded(rows: pa.Table) -> pa.Table:
    """Split each change of a key into a deletion of the old row and a creation of the new row, at the same position.

    Changes of a key are the updates with `OldKeyState.OTHER`. All changes of a document become events.
    """
    rows = _with_rest(rows)
    old_columns = [name for name in rows.column_names if name.startswith(BEFORE)]
    if not old_columns:
        return rows
    moved = pc.equal(rows[OLD], str(OldKeyState.OTHER)).fill_null(False)
    deletions = rows.filter(moved)
    for name in old_columns:
        column = name.removeprefix(BEFORE)
        deletions = _set(deletions, column, cast_to(deletions[name], rows.schema.field(column).with_nullable(True)))
    deletions = _set(deletions, OP, pa.repeat(pa.scalar("d"), len(deletions)))
    # As Debezium does when its own key changes: the created row keeps the values that it leaves out.
    others = _set(rows, OP, pc.if_else(moved, "c", rows[OP]))
    return pa.concat_tables([deletions, others]).drop_columns(old_columns)


def nested(rows: pa.Table, of: npt.NDArray[np.int64]) -> pa.Table:
    """Return a row for each document; the rows after its first one are in `REST`; `expanded` makes events of them.

    :param of: for each row the position of its document; rising.
    """
    first = np.flatnonzero(np.diff(of, prepend=-1))
    if len(first) == len(of):
        return rows
    later = rows.take(pa.array(np.setdiff1d(np.arange(len(of)), first)))
    ends = np.cumsum(np.diff(first, append=len(of)) - 1)
    members = pa.StructArray.from_arrays([one_array(column) for column in later.columns], fields=list(later.schema))
    rest = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), members)
    return rows.take(pa.array(first)).append_column(REST, rest)


def _with_rest(rows: pa.Table) -> pa.Table:
    """Return events with the nested events of `REST` as events, at the partition and offset of their document."""
    if REST not in rows.column_names:
        return rows
    rest, rows = one_array(rows[REST]), rows.drop_columns([REST])
    later, of = rest.flatten(), pc.list_parent_indices(rest)
    columns = [
        later.field(index)
        if (index := later.type.get_field_index(field.name)) >= 0
        else one_array(rows[field.name]).take(of)
        for field in rows.schema
    ]
    cast = [cast_to(pa.chunked_array([column]), field) for column, field in zip(columns, rows.schema, strict=True)]
    return pa.concat_tables([rows, pa.Table.from_arrays(cast, schema=rows.schema)])


def _with_old(rows: pa.Table, image: pa.Array, key: Sequence[str]) -> pa.Table:
    """Return events with the old key's state in the column `OLD`, and for changed keys with the row before.

    :param image: the row before each event, or null.
    """
    # Only updates may change a key unnoticed. `has_old_key`: the row before has the whole key; `moved`: another key.
    is_update = pc.equal(rows[OP], "u").fill_null(False).combine_chunks().to_numpy(zero_copy_only=False)
    has_old_key = is_update & image.is_valid().to_numpy(zero_copy_only=False)
    moved = np.zeros(len(rows), np.bool_)
    for name in key:
        old, new = image.field(image.type.get_field_index(name)), one_array(rows[name])
        old_key, new_key = (comparable(pa.table({"key": column}))["key"].combine_chunks() for column in (old, new))
        is_same = pc.equal(old_key, new_key).fill_null(False).to_numpy(zero_copy_only=False)
        # An image without the key can't show a change.
        moved |= has_old_key & ~is_same
        has_old_key &= old.is_valid().to_numpy(zero_copy_only=False)
    moved &= has_old_key
    # Without the row before, an update may have changed columns that the record's key does not have.
    unknown = is_update & ~has_old_key & _may_hide_a_change(rows[KEY_NAMES].combine_chunks(), key)
    marks = pc.if_else(pa.array(moved), str(OldKeyState.OTHER), pa.scalar(None, pa.string()))
    rows = rows.append_column(OLD, pc.if_else(pa.array(unknown), str(OldKeyState.UNKNOWN), marks))
    # The row before is needed only for a changed key.
    if not moved.any():
        return rows
    for field in image.type:
        rows = rows.append_column(BEFORE + field.name, image.field(image.type.get_field_index(field.name)))
    return rows


def _may_hide_a_change(names: pa.Array, key: Sequence[str]) -> np.ndarray:
    """Return a mask of records without all columns of the mirror's key: the missing columns may change unnoticed."""
    texts = [text for text in names.unique().to_pylist() if text not in (None, NO_KEY)]
    others = [text for text in texts if not set(key).issubset(as_list(text) or ())]
    mask: np.ndarray = pc.is_in(names, pa.array(others, pa.string())).to_numpy(zero_copy_only=False)
    return mask


def _table(source: pa.Array) -> pa.Array:
    """Return the name of each event's table, with schema and database; null for events without a table."""
    *spaces, table = (member(source, name, pa.string()) for name in _NAMES)
    names = table
    for space in reversed(spaces):
        names = pc.coalesce(pc.binary_join_element_wise(space, names, "."), names)
    return names


def _set(rows: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return rows with a replaced column."""
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name).with_nullable(True), column)
