"""Columns without rows, of any type.

Arrow's own functions fail for UUIDs inside of lists, structs and maps.
"""

from __future__ import annotations

import pyarrow as pa


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table with these columns, each of one chunk."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, also where it has no chunk, as after a filter that keeps no row."""
    return column.combine_chunks() if column.num_chunks else pa.nulls(0, column.type)
