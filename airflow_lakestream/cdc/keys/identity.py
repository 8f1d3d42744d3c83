"""Keys that Arrow can group, join, sort and compare, with the equality that they have in PostgreSQL.

There NaN equals NaN, and -0.0 equals 0.0. Text is compared by its bytes: two texts that a collation or `citext` takes
for equal are never in a database's table at once, and a change from one to the other is a deletion and a new row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import OutOfRange
from airflow_lakestream.exceptions import InvalidArgument

Key = tuple[Any, ...]
Numbers = npt.NDArray[np.int64]
_ALL_BUT_SIGN = np.int64(2**63 - 1)


def check_key(columns: pa.Schema, policy: OutOfRange) -> None:
    """Refuse columns that can't be a key. Raises InvalidArgument."""
    for column in columns:
        if t.is_temporal(column.type) and policy is not OutOfRange.REJECT:
            raise InvalidArgument(
                "out_of_range",
                f"{policy.value!r} would merge several rows: the key's column {column.name} is {column.type}.",
                f'Leave it out; or make the column a string, with schema="{column.name} string" for a new mirror.',
            )
        if t.is_nested(column.type):
            raise InvalidArgument(
                "key",
                f"{column.name} is {column.type}, by which rows can't be told apart.",
                "Is it numeric without precision? Bare JSON has no type for that: let Debezium send schemas "
                "(value.converter.schemas.enable=true), or text (decimal.handling.mode=string).",
            )


def comparable(keys: pa.Table) -> pa.Table:
    """Return keys that are equal where PostgreSQL says so; their order is our own."""
    columns = [_comparable(column) for column in keys.columns]
    return pa.table(dict(zip(keys.column_names, columns, strict=True)))


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[Key]:
    """Return the keys of rows, as tuples that are equal where PostgreSQL says so."""
    columns = comparable(rows.select(list(key))).columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def by_place(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return comparable keys in columns named by position, so that user names can't clash with ours."""
    return comparable(rows.select(list(key)).rename_columns([f"key {place}" for place in range(len(key))]))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        return column.cast(column.type.storage_type)
    if not t.is_floating(column.type):
        return column
    doubles = column.cast(pa.float64())
    # One NaN for all, and no signed zero.
    doubles = pc.if_else(pc.is_nan(doubles), float("nan"), pc.add(doubles, 0.0))
    return pa.chunked_array([_as_integers(chunk) for chunk in doubles.chunks], pa.int64())


def _as_integers(doubles: pa.Array) -> pa.Array:
    """Return integers that are ordered like the doubles, NaN last."""
    bits = doubles.view(pa.int64())
    values = bits.fill_null(0).to_numpy()
    return pa.array(values ^ ((values >> 63) & _ALL_BUT_SIGN), mask=bits.is_null().to_numpy(zero_copy_only=False))


class Among:
    """Finds the values of columns that are among others, without NULL.

    A mirror's files are mostly sorted by key: in a sorted column of integers, the others are looked up, and not its
    own values.
    """

    def __init__(self, values: pa.ChunkedArray) -> None:
        self._values = values

    @cached_property
    def _ordered(self) -> Numbers | None:
        return np.unique(self._values.to_numpy()) if t.is_integer(self._values.type) else None

    def __call__(self, column: pa.ChunkedArray) -> Numbers:
        """Return the numbers of the values found, rising."""
        if self._ordered is not None and t.is_integer(column.type) and len(column) and not column.null_count:
            mine = column.to_numpy()
            if (mine[1:] >= mine[:-1]).all():
                first = np.searchsorted(self._ordered, mine[0])
                return _found(mine, self._ordered[first : np.searchsorted(self._ordered, mine[-1], side="right")])
        found: Numbers = np.flatnonzero(pc.is_in(column, value_set=self._values.cast(column.type)).to_numpy())
        return found


def _found(ordered: Numbers, wanted: Numbers) -> Numbers:
    low, high = np.searchsorted(ordered, wanted), np.searchsorted(ordered, wanted, side="right")
    counts = high - low
    # Each start as often as its value is there, and within it one after the other.
    found: Numbers = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    return found


def places(rows: pa.Table, among: pa.Table, key: Sequence[str]) -> Numbers:
    """Return for each row the place of its key in the other table, whose keys are unique; -1 if it is not there."""
    found = np.full(len(rows), -1, np.int64)
    if not len(rows) or not len(among):
        return found
    mine, theirs = by_place(rows, key), by_place(among, key)
    both = mine.append_column("mine", pa.array(np.arange(len(rows)))).join(
        theirs.cast(mine.schema).append_column("theirs", pa.array(np.arange(len(among)))),
        mine.column_names,
        join_type="inner",
    )
    found[both["mine"].to_numpy()] = both["theirs"].to_numpy()
    return found
