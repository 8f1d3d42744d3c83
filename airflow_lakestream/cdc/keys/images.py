"""Images: the values of a row before its deletion, in the deletion event; maybe with placeholders for values not sent.

In place of a value that PostgreSQL did not send, Debezium puts the column's default, zero or an empty value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.cdc.columns import OF_EVENTS, VERSION
from airflow_lakestream.cdc.events.apart import check_values
from airflow_lakestream.decode.connect.unavailable import Mask, left_out
from airflow_lakestream.tables.row_buffer import one_array

Image = dict[str, Any]

# Zero values as text: of floats, JSON, UUIDs and times.
_TEXTS = ("", "0.0", "0", "{}", "00000000-0000-0000-0000-000000000000", "1970-01-01T00:00:00Z", "00:00:00Z")


def image_columns(rows: pa.Table, key: Sequence[str]) -> list[str]:
    """Return the columns of rows except the key. Raises ValuesApart if the values were not read."""
    check_values(rows, "a key has several events in a transaction")
    not_values = {*key, *VERSION, *OF_EVENTS}
    return [name for name in rows.column_names if name not in not_values]


def images(rows: pa.Table, columns: Sequence[str]) -> list[Image]:
    """Return an image of each row: comparable values by column, without left-out values."""
    result: list[Image] = [{} for _ in range(len(rows))]
    for name in columns:
        lacking = left_out(rows[name])
        for index, value in enumerate(plain(rows[name]).to_pylist()):
            if not lacking[index]:
                result[index][name] = _comparable(value)
    return result


def has_sent_values(rows: pa.Table, columns: Sequence[str]) -> bool:
    """Return whether any value in rows' images is surely not a placeholder."""
    return any(not is_placeholder(_comparable(value)) for name in columns for value in _different(rows[name]))


def _different(column: pa.ChunkedArray) -> Iterator[Any]:
    """Yield the distinct values of a column without left-out values; for some types also repeated values."""
    values = plain(column).filter(pa.array(~left_out(column)))
    # Arrow's `unique` can't take nested values, and takes -0.0 for 0.0.
    is_plain = not t.is_nested(values.type) and not t.is_floating(values.type)
    yield from (pc.unique(values) if is_plain else values).to_pylist()


def _comparable(value: Any) -> Any:
    """Return a value with each float as text, since NaN is not equal to NaN."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    return {name: _comparable(item) for name, item in value.items()} if isinstance(value, dict) else value


def is_placeholder(value: Any) -> bool:
    """Return whether an image's value may be a placeholder for a value not sent: zero, empty, or the start of 1970.

    Placeholders by a column's own default are not recognized.
    """
    if isinstance(value, bytes):
        return not value.strip(b"\x00")
    if isinstance(value, str):
        return value in _TEXTS
    if isinstance(value, dict):
        return all(is_placeholder(item) for item in value.values())
    if isinstance(value, datetime):
        return value.replace(tzinfo=None) == datetime(1970, 1, 1)
    if isinstance(value, date):
        return value == date(1970, 1, 1)
    return not value or value == time()


def zero_keys(rows: pa.Table, key: Sequence[str]) -> Mask:
    """Return a mask of the rows with a placeholder in each column of the key."""
    mask = np.ones(len(rows), np.bool_)
    for name in key:
        column = plain(rows[name])
        if t.is_integer(column.type):
            mask &= pc.equal(column, 0).fill_null(False).to_numpy(zero_copy_only=False)
            continue
        values = pc.unique(column).to_pylist()
        zeros = pa.array([value for value in values if value is not None and is_placeholder(value)], column.type)
        mask &= pc.is_in(column, value_set=zeros).to_numpy(zero_copy_only=False)
        if not mask.any():
            break
    return mask


class PreviousEvents:
    """Search for the previous event of an event's key.

    :param rows: in the order of their versions.
    :param wanted: the indices of the events whose previous events are needed.
    """

    def __init__(self, rows: pa.Table, key: Sequence[str], wanted: Sequence[int]) -> None:
        # Whole keys are compared only if the key's first column is that of a wanted event: making tuples is slow.
        first = plain(rows[key[0]])
        is_candidate = pc.is_in(first, value_set=pc.unique(first.take(pa.array(wanted, pa.int64()))))
        numbers = np.flatnonzero(is_candidate.to_numpy(zero_copy_only=False)).tolist()
        keys_part = rows.select(list(key)).take(pa.array(numbers, pa.int64()))
        keys = zip(*(plain(column).to_pylist() for column in keys_part.columns), strict=True)
        self._before: dict[int, int] = {}
        last: dict[str, int] = {}
        for number, key_text in zip(numbers, map(repr, keys), strict=True):
            if key_text in last:
                self._before[number] = last[key_text]
            last[key_text] = number

    def of(self, index: int) -> int | None:
        """Return the index of the previous event of the same key, or None for a first event."""
        return self._before.get(index)


def plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as a single array, extension types as their storage."""
    array = one_array(column)
    return array.storage if isinstance(array.type, pa.BaseExtensionType) else array
