"""A table without rows, for any columns."""

from __future__ import annotations

import pyarrow as pa


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return an empty table with these columns; Arrow's own function fails for UUIDs inside of lists, structs and maps.

    Each column has one chunk: `combine_chunks` fails for such columns, too, where there is none.
    """
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
