"""What change events say of themselves: their table, their transaction, their record's key, and the row's old key."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import BEFORE, IMAGE, KEY_NAMES, OF_EVENTS, OLD, OP, SOURCE, TABLE, TRANSACTION
from airflow_lakestream.cdc.events.record_keys import NO_KEY, as_list
from airflow_lakestream.cdc.keys.identity import comparable
from airflow_lakestream.tables.schema.required import cast_to

_NAMES = ("db", "schema", "table")


class Old(StrEnum):
    """What an update says of the key that its row had before."""

    # It was another one: the row before is beside the event.
    OTHER = "other"
    # Nothing, though it may have been another: the mirror's key is not the database's, and there is no row before.
    UNKNOWN = "unknown"


def with_image(schema: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Return the columns to decode events with: the row before the change, too, where it may have another key."""
    row = [field for field in schema if field.name not in OF_EVENTS]
    if not key or not {field.name for field in row}.issuperset(key):
        return schema
    return schema.append(pa.field(IMAGE, pa.struct(row)))


def told(rows: pa.Table, key: Sequence[str], names: pa.Array) -> pa.Table:
    """Return decoded events with what they say of themselves in columns of its own.

    :param key: the columns of the mirror's key, where the user names them.
    :param names: what the records' keys have, see `record_keys.names_in`.
    """
    ops, source = rows[OP].combine_chunks(), rows[SOURCE].combine_chunks()
    # A truncation has no key, whatever the table's is.
    names = pc.if_else(pc.equal(ops, "t").fill_null(False), pa.scalar(None, pa.string()), names)
    found = rows.drop_columns([name for name in (IMAGE,) if name in rows.column_names])
    found = found.append_column(TABLE, _table(source))
    found = found.append_column(TRANSACTION, _member(source, "txId", pa.int64()))
    found = found.append_column(KEY_NAMES, names)
    return _with_old(found, rows[IMAGE].combine_chunks(), key) if IMAGE in rows.column_names else found


def expanded(rows: pa.Table) -> pa.Table:
    """Return events with a deletion of the old row ahead of each that has changed the key, at the same place."""
    beside = [name for name in rows.column_names if name.startswith(BEFORE)]
    if not beside:
        return rows
    moved = pc.equal(rows[OLD], str(Old.OTHER)).fill_null(False)
    old = rows.filter(moved)
    for name in beside:
        own = name.removeprefix(BEFORE)
        old = _set(old, own, cast_to(old[name], rows.schema.field(own).with_nullable(True)))
    old = _set(old, OP, pa.repeat(pa.scalar("d"), len(old)))
    # As Debezium has it where its own key changes: a row that is created takes along what it leaves out.
    new = _set(rows, OP, pc.if_else(moved, "c", rows[OP]))
    return pa.concat_tables([old, new]).drop_columns(beside)


def _with_old(rows: pa.Table, image: pa.Array, key: Sequence[str]) -> pa.Table:
    is_update = pc.equal(rows[OP], "u").fill_null(False).combine_chunks().to_numpy(zero_copy_only=False)
    there = is_update & image.is_valid().to_numpy(zero_copy_only=False)
    moved = np.zeros(len(rows), np.bool_)
    for name in key:
        old, new = image.field(image.type.get_field_index(name)), rows[name].combine_chunks()
        old_key, new_key = (comparable(pa.table({"key": one}))["key"].combine_chunks() for one in (old, new))
        same = pc.equal(old_key, new_key).fill_null(False).to_numpy(zero_copy_only=False)
        # An image that lacks the key says nothing of it.
        moved |= there & ~same
        there &= old.is_valid().to_numpy(zero_copy_only=False)
    moved &= there
    unknown = is_update & ~there & _may_hide_a_change(rows[KEY_NAMES].combine_chunks(), key)
    marks = pc.if_else(pa.array(moved), str(Old.OTHER), pa.scalar(None, pa.string()))
    rows = rows.append_column(OLD, pc.if_else(pa.array(unknown), str(Old.UNKNOWN), marks))
    if not moved.any():
        return rows
    for field in image.type:
        rows = rows.append_column(BEFORE + field.name, image.field(image.type.get_field_index(field.name)))
    return rows


def _may_hide_a_change(names: pa.Array, key: Sequence[str]) -> np.ndarray:
    """Tell for each record whether its key has not all columns of the mirror's: then they change without a word."""
    texts = [text for text in names.unique().to_pylist() if text not in (None, NO_KEY)]
    others = [text for text in texts if not set(key).issubset(as_list(text) or ())]
    found: np.ndarray = pc.is_in(names, pa.array(others, pa.string())).to_numpy(zero_copy_only=False)
    return found


def _table(source: pa.Array) -> pa.Array:
    """Return the name of each event's table, with its schema and database; null where the event has none."""
    *spaces, table = (_member(source, name, pa.string()) for name in _NAMES)
    found = table
    for space in reversed(spaces):
        found = pc.coalesce(pc.binary_join_element_wise(space, found, "."), found)
    return found


def _member(source: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    return pc.struct_field(source, name) if source.type.get_field_index(name) >= 0 else pa.nulls(len(source), kind)


def _set(rows: pa.Table, name: str, column: pa.Array | pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), rows.schema.field(name).with_nullable(True), column)
