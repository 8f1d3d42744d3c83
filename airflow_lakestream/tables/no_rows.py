"""Arrow columns of any type, without rows or with a single row.

Arrow's own functions fail for UUIDs inside of lists, structs and maps.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import types as arrow


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table with these columns, each of a single chunk."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def one_row(schema: pa.Schema) -> pa.Table:
    """Return a single made-up row, with a value in each column and in each nested field, for a trial of writing.

    Only a column of the null type has NULL.
    """
    return pa.Table.from_arrays([_one(field.type) for field in schema], schema=schema)


def _one(kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _one(kind.storage_type))
    if arrow.is_struct(kind):
        return pa.StructArray.from_arrays([_one(field.type) for field in kind], fields=list(kind))
    if arrow.is_map(kind):
        return pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), _one(kind.key_type), _one(kind.item_type), kind)
    if arrow.is_list(kind) or arrow.is_large_list(kind):
        make, offsets = (pa.ListArray, pa.int32()) if arrow.is_list(kind) else (pa.LargeListArray, pa.int64())
        return make.from_arrays(pa.array([0, 1], offsets), _one(kind.value_type), kind)
    value: Any = 0
    if arrow.is_null(kind):
        value = None
    elif arrow.is_boolean(kind):
        value = False
    elif arrow.is_string(kind) or arrow.is_large_string(kind):
        value = "a"
    elif arrow.is_fixed_size_binary(kind):
        value = bytes(kind.byte_width)
    elif arrow.is_binary(kind) or arrow.is_large_binary(kind):
        value = b"a"
    return pa.array([value], kind)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as a single array, even without a chunk (after a filter without hits)."""
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)
