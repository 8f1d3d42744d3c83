"""The columns that a mirror has beside the row's own, and those that its change events come with."""

from __future__ import annotations

import pyarrow as pa

# Where an event stands in its source: the commit that it came after, and its own place there.
COMMIT, POSITION = "_cdc_commit", "_cdc_position"
PARTITION, OFFSET = "_kafka_partition", "_kafka_offset"
# In this order they say which of two events of one key is the later one.
VERSION = (COMMIT, POSITION, PARTITION, OFFSET)
# Only where deleted rows stay.
# Not `_deleted`: Iceberg keeps that name for itself, and Spark compacts no table that has it.
DELETED = "_is_deleted"

OP, SOURCE, RECORD_KEY = "_op", "_source", "_kafka_key"
# What an event says of itself: its transaction, its table, and the names of the columns in its record's key.
TRANSACTION, TABLE, KEY_NAMES = "_cdc_transaction", "_cdc_table", "_cdc_key_names"
# Of an update that may have changed the key: see `Old`. The row before it is in columns of this prefix.
OLD, BEFORE = "_cdc_old", "_cdc_before__"
# The whole row before the change, on its way from the decoder to those columns.
IMAGE = "_cdc_image"
OF_EVENTS = (OP, SOURCE, RECORD_KEY, TRANSACTION, TABLE, KEY_NAMES, OLD)

# Operations: of a row that a snapshot read, and of the last one that it read of the table.
READ, READ_LAST = "r", "r: last"

# What Debezium writes for a value that PostgreSQL keeps apart (TOAST) and an update did not touch.
UNAVAILABLE = "__debezium_unavailable_value"

_VERSION_TYPES = {COMMIT: pa.int64(), POSITION: pa.int64(), PARTITION: pa.int32(), OFFSET: pa.int64()}


def is_kept(name: str) -> bool:
    """Tell whether mirrors keep a name for their own columns."""
    return name.lower().startswith("_cdc_")


def version_schema() -> pa.Schema:
    """Return the columns of an event's place."""
    return pa.schema(list(_VERSION_TYPES.items()))


def no_rows(schema: pa.Schema) -> pa.Table:
    """Return a table of these columns without rows; Arrow's own way has none of UUIDs."""
    return pa.Table.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def mirror_schema(*, soft_delete: bool) -> pa.Schema:
    """Return the columns that a mirror has beside the row's own."""
    return version_schema().append(pa.field(DELETED, pa.bool_())) if soft_delete else version_schema()
