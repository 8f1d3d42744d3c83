"""Keys for grouping, joining, sorting and comparing in Arrow, with the equality of PostgreSQL.

In PostgreSQL, NaN equals NaN, and -0.0 equals 0.0. Text is compared by its bytes: two texts that are equal by a
collation or by `citext` are never in a database's table at once, and a change from one to the other is a deletion and a
new row.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import OutOfRange
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.rising import Numbers, is_first

Key = tuple[Any, ...]
_ALL_BUT_SIGN = np.int64(2**63 - 1)


def check_key(columns: pa.Schema, policy: OutOfRange) -> None:
    """Refuse columns unfit for a key. Raises InvalidArgument.

    :param columns: the columns of the key.
    :param policy: the policy for values out of range; only "reject" is fit for times, since other policies would give
        several rows the same key.
    """
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
                f"{column.name} is {column.type}, which can't identify rows.",
                "Is it numeric without precision? Bare JSON has no type for that: let Debezium send schemas "
                "(value.converter.schemas.enable=true), or text (decimal.handling.mode=string).",
            )


def comparable(keys: pa.Table) -> pa.Table:
    """Return keys as values with the equality of PostgreSQL, but not with PostgreSQL's order."""
    columns = [_comparable(column) for column in keys.columns]
    return pa.table(dict(zip(keys.column_names, columns, strict=True)))


def keys_of(rows: pa.Table, key: Sequence[str]) -> list[Key]:
    """Return the keys of rows, as tuples with the equality of PostgreSQL."""
    columns = comparable(rows.select(list(key))).columns
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def find_keys(rows: pa.Table, key: Sequence[str], wanted: Collection[Key]) -> list[tuple[int, Key]]:
    """Return number and key of each row with a wanted key, by rising numbers."""
    if not wanted:
        return []
    column = comparable(rows.select([key[0]]))[0]
    # Filter by the first column: most rows do not have any of the keys, and making tuples in Python is slow.
    candidates = _numbers_in(column, pa.array([values[0] for values in wanted], column.type))
    numbered_keys = zip(candidates.tolist(), keys_of(rows.take(pa.array(candidates)), key), strict=True)
    return [(number, row_key) for number, row_key in numbered_keys if row_key in wanted]


def by_place(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return comparable keys in columns named by position, to avoid clashes with the user's names."""
    return comparable(rows.select(list(key)).rename_columns([f"key {place}" for place in range(len(key))]))


def _integers_of(keys: pa.Table) -> Numbers | None:
    """Return the values of keys from `by_place` if each is a single integer, fast to sort in NumPy; or else None."""
    is_single_integer = keys.num_columns == 1 and t.is_signed_integer(keys[0].type) and not keys[0].null_count
    return keys[0].to_numpy().astype(np.int64, copy=False) if is_single_integer else None


def in_order(keys: pa.Table) -> Numbers:
    """Return the indices of keys in order, given the keys from `by_place`."""
    if (integers := _integers_of(keys)) is not None:
        return np.argsort(integers)
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    indices: Numbers = order.to_numpy().astype(np.int64)
    return indices


def greatest_of_each(keys: pa.Table, *numbers: Numbers) -> list[Numbers]:
    """Return for each array of `numbers` the greatest number of each distinct key, as an array.

    All arrays have the keys in the same, arbitrary order.

    :param keys: from `by_place`.
    :param numbers: arrays with a number for each of the keys.
    """
    if len(keys) and (integers := _integers_of(keys)) is not None:
        # Sorting: hashing in Arrow takes three times as long.
        order = np.argsort(integers)
        starts = np.flatnonzero(is_first(integers[order]))
        return [np.maximum.reduceat(values[order], starts) for values in numbers]
    names = [f"numbers {place}" for place in range(len(numbers))]
    for name, values in zip(names, numbers, strict=True):
        keys = keys.append_column(name, pa.array(values))
    of_keys = [name for name in keys.column_names if name not in names]
    grouped = keys.group_by(of_keys).aggregate([(name, "max") for name in names])
    return [grouped[f"{name}_max"].to_numpy() for name in names]


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values that are equal if the database takes them as equal; floats as integers in the same order."""
    if isinstance(column.type, pa.BaseExtensionType):
        return column.cast(column.type.storage_type)
    if not t.is_floating(column.type):
        return column
    doubles = column.cast(pa.float64())
    # One NaN for all, and no signed zero.
    doubles = pc.if_else(pc.is_nan(doubles), float("nan"), pc.add(doubles, 0.0))
    return pa.chunked_array([_as_integers(chunk) for chunk in doubles.chunks], pa.int64())


def _as_integers(doubles: pa.Array) -> pa.Array:
    """Return integers in the order of the doubles, NaN last."""
    bits = doubles.view(pa.int64())
    # The bits of a negative double grow as the value falls: invert all bits except the sign.
    values = bits.fill_null(0).to_numpy()
    return pa.array(values ^ ((values >> 63) & _ALL_BUT_SIGN), mask=bits.is_null().to_numpy(zero_copy_only=False))


class KeySearch:
    """Search for the rows that have a key of a batch.

    A mirror's files are mostly sorted by key: in a sorted column of integers, the batch's keys are looked up, and not
    the column's own values.
    """

    def __init__(self, keys: pa.Table, key: Sequence[str]) -> None:
        self._key = list(key)
        first = _first_column(keys, self._key)
        # Integers are put in order once, and not in each task that this is pickled for.
        self._ordered = _ordered(first.to_numpy()) if t.is_integer(first.type) else None
        # For a key with one column the ordered values are enough: the given keys would only make each pickle larger.
        is_all = self._ordered is not None and len(self._key) == 1
        self._given = None if is_all else keys.select(self._key)

    @property
    def rising(self) -> Sequence[Any]:
        """The first column's values, in order."""
        rising = sorted(self._values.to_pylist()) if self._ordered is None else self._ordered[0]
        return cast("Sequence[Any]", rising)

    @property
    def _values(self) -> pa.Array | pa.ChunkedArray:
        return _first_column(self._keys, self._key) if self._ordered is None else pa.array(self._ordered[0])

    @property
    def _keys(self) -> pa.Table:
        """Return the keys in the order of the events."""
        if self._given is not None:
            return self._given
        assert self._ordered is not None, "without ordered values, the given keys are kept"
        values, places_ = self._ordered
        column = np.empty_like(values)
        column[places_] = values
        return pa.table({self._key[0]: column})

    def __call__(self, rows: pa.Table) -> tuple[Numbers, Numbers]:
        """Return the rising numbers of the rows with a key of the batch, and the index of each such key in the batch.

        If the batch has a key several times, the index is that of any of them.
        """
        column = _first_column(rows, self._key)
        if self._ordered is not None and t.is_integer(column.type):
            values, places_ = self._ordered
            candidates, indices = _looked_up(column.drop_null().to_numpy(), values)
            if column.null_count:
                candidates = np.flatnonzero(column.is_valid().to_numpy())[candidates]
            if len(self._key) == 1:
                return candidates, places_[indices].astype(np.int64)
        else:
            candidates = _numbers_in(column, self._values)
        # Looking up one value is quicker than joining, and most rows do not have any of the keys.
        indices = places(rows.select(self._key).take(pa.array(candidates)), self._keys, self._key)
        hits = np.flatnonzero(indices >= 0)
        return candidates[hits], indices[hits]


def _first_column(rows: pa.Table, key: Sequence[str]) -> pa.ChunkedArray:
    column = by_place(rows, key[:1])[0]
    # One width for all, for lookups between a file's integers and the batch's.
    return column.cast(pa.int64()) if t.is_integer(column.type) else column


def _ordered(values: Numbers) -> tuple[Numbers, npt.NDArray[np.int32]]:
    """Return the distinct values in order, and an index of each in `values`."""
    order = np.argsort(values)
    ordered = values[order]
    first = is_first(ordered)
    return ordered[first], order[first].astype(np.int32)


def _looked_up(column: Numbers, values: Numbers) -> tuple[Numbers, Numbers]:
    """Return the numbers of the column's values among the rising `values`, and the index of each in `values`."""
    if len(column) and (column[1:] >= column[:-1]).all():
        start, end = np.searchsorted(values, column[0]), np.searchsorted(values, column[-1], side="right")
        low, high = (np.searchsorted(column, values[start:end], side=side) for side in ("left", "right"))
        counts = high - low
        # Repeat each value's start by its count, and count the rows from the start.
        numbers = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return numbers, np.repeat(np.arange(start, end), counts)
    # The cost of hashing grows with the number of values, the cost of bisection with the length of the column.
    is_long = len(column) > len(values)
    candidates = _numbers_in(pa.array(column), pa.array(values)) if is_long else np.arange(len(column))
    indices = np.searchsorted(values, column[candidates])
    hits = (
        np.flatnonzero(values[np.minimum(indices, len(values) - 1)] == column[candidates])
        if len(values)
        else candidates[:0]
    )
    return candidates[hits], indices[hits]


def _numbers_in(column: pa.Array | pa.ChunkedArray, values: pa.Array | pa.ChunkedArray) -> Numbers:
    """Return the numbers of the items of `column` that are among `values`, compared in a common type."""
    kind = _common(pa.schema([("key", column.type)]), pa.schema([("key", values.type)])).field(0).type
    is_in = pc.is_in(column.cast(kind), value_set=values.cast(kind))
    numbers: Numbers = np.flatnonzero(is_in.to_numpy(zero_copy_only=False))
    return numbers


def _common(first: pa.Schema, second: pa.Schema) -> pa.Schema:
    """Return types for the keys of both schemas: a key's type may have become wider."""
    return pa.unify_schemas([first, second], promote_options="permissive")


def places(rows: pa.Table, table: pa.Table, key: Sequence[str]) -> Numbers:
    """Return the index of each row's key in `table`; -1 if `table` does not have the key.

    :param table: rows with the columns of the key, each key once.
    """
    indices = np.full(len(rows), -1, np.int64)
    if not len(rows) or not len(table):
        return indices
    of_rows, of_table = by_place(rows, key), by_place(table, key)
    common = _common(of_rows.schema, of_table.schema)
    of_rows = of_rows.cast(common).append_column("of_rows", pa.array(np.arange(len(rows))))
    of_table = of_table.cast(common).append_column("of_table", pa.array(np.arange(len(table))))
    joined = of_rows.join(of_table, common.names, join_type="inner")
    indices[joined["of_rows"].to_numpy()] = joined["of_table"].to_numpy()
    return indices
