"""Hashes of rows by value: equal rows have equal hashes, independent of the writer and of Arrow's layout.

NaN equals NaN, 0.0 equals -0.0, the entries of a map have no order, and NULL equals NULL alone. A hash has 64 bits: of
2^64 pairs of different rows, one is missed.
"""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as arrow

Hashes = npt.NDArray[np.uint64]

# The hash of NULL, and factors for the items of lists, the keys of maps, and the fields of structs.
_NULL, _ITEM, _ENTRY, _FIELD = (
    np.uint64(one) for one in (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xA5CB9243F0AEF993, 0xC2B2AE3D27D4EB4F)
)


class RowHashes:
    """Hash function for columns and rows; not thread-safe."""

    def __init__(self) -> None:
        self._sql = duckdb.connect(config={"threads": 1})

    def of_columns(self, rows: pa.Table) -> Hashes:
        """Return the hash of each value, in the shape (columns, rows)."""
        hashes = np.empty((rows.num_columns, rows.num_rows), np.uint64)
        for number, column in enumerate(rows.columns):
            hashes[number] = self._of(column.combine_chunks())
        return hashes

    @staticmethod
    def of_rows(columns: Hashes) -> Hashes:
        """Return the hash of each row from the hashes of the columns."""
        total = np.zeros(columns.shape[1], np.uint64)
        for column in columns:
            total = _mixed(total * _FIELD + column)
        return total

    def _of(self, values: pa.Array) -> Hashes:
        """Return the hash of each value; all NULLs have the same hash."""
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        hashes = self._of_kind(values)
        if values.null_count:
            hashes[values.is_null().to_numpy(zero_copy_only=False)] = _NULL
        return hashes

    def _of_kind(self, values: pa.Array) -> Hashes:
        """Return the hashes of values; those of NULLs have no meaning yet."""
        kind = values.type
        if arrow.is_null(kind):
            return np.full(len(values), _NULL)
        if arrow.is_struct(kind):
            return self.of_rows(np.array([self._of(children) for children in values.flatten()], np.uint64))
        if arrow.is_map(kind):
            keys, items = (self._of(_within(values, children)) for children in (values.keys, values.items))
            # The entries of a map have no order: their hashes are added as they are.
            return _sums(values, _mixed(_mixed(keys * _ENTRY) + items))
        if arrow.is_list(kind) or arrow.is_large_list(kind):
            lengths = np.diff(_offsets(values))
            starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
            # The items of a list have an order: each item's place is mixed into its hash before the sum.
            places = (np.arange(len(starts), dtype=np.int64) - starts).astype(np.uint64)
            return _sums(values, _mixed(self._of(_within(values, values.values)) + places * _ITEM))
        if arrow.is_decimal(kind):
            return self._of_bytes(values.cast(pa.string()))
        if arrow.is_floating(kind):
            # Adding 0.0 removes the sign of 0, and all NaNs become the same NaN.
            numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
            return _mixed(np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64))
        if arrow.is_boolean(kind):
            return _mixed(values.cast(pa.uint8()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64))
        if arrow.is_integer(kind) or arrow.is_temporal(kind):
            return _mixed(_integers(values).view(np.uint64))
        return self._of_bytes(values)

    def _of_bytes(self, values: pa.Array) -> Hashes:
        rows = pa.table({"value": values.cast(pa.large_binary()).fill_null(b"")})
        self._sql.register("rows", rows)
        hashes: Any = self._sql.execute("SELECT hash(value) AS hash FROM rows").fetchnumpy()["hash"]
        return np.array(hashes, np.uint64)


def _integers(values: pa.Array) -> npt.NDArray[np.int64]:
    if arrow.is_date32(values.type) or arrow.is_time32(values.type):
        values = values.cast(pa.int32())
    return np.array(values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _offsets(values: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(values.offsets.to_numpy(zero_copy_only=False), np.int64)


def _within(values: pa.Array, children: pa.Array) -> pa.Array:
    """Return the children of the lists in a slice: Arrow keeps the children of the whole array."""
    offsets = _offsets(values)
    return children.slice(int(offsets[0]), int(offsets[-1] - offsets[0])) if len(offsets) else children.slice(0, 0)


def _sums(values: pa.Array, children: Hashes) -> Hashes:
    """Return a hash for each list from the hashes of the children; the order of children does not count."""
    offsets = _offsets(values) - (_offsets(values)[0] if len(values) else 0)
    # Sums wrap round at 2^64, and so do their differences.
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(children, dtype=np.uint64)])
    lengths = np.diff(offsets).astype(np.uint64)
    return _mixed(sums[offsets[1:]] - sums[offsets[:-1]] + lengths * _ITEM)


def _mixed(values: Hashes) -> Hashes:
    """Return the values mixed by SplitMix64's last step: each bit of a number changes half of the bits."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
