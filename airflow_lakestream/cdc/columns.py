"""Names and types of a mirror's own columns, and of the columns of change events."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from airflow_lakestream.core.policies import UNAVAILABLE as UNAVAILABLE

# The version of an event. COMMIT is the commit before the event's transaction, or in a binary log the log position of
# the event itself. POSITION is the event's log position, or in a binary log the number of the row in the event; 0 for
# a row that a snapshot has read.
COMMIT, POSITION = "_cdc_commit", "_cdc_position"
PARTITION, OFFSET = "_kafka_partition", "_kafka_offset"
# Compared in this order, the columns decide which of two events of one key is later.
VERSION = (COMMIT, POSITION, PARTITION, OFFSET)
# Whether a row is deleted; only in a mirror whose deleted rows stay.
# Not `_deleted`: Iceberg reserves that name, and Spark can't compact a table with such a column.
DELETED = "_is_deleted"

# Only with the history of rows: the times between which a version of a row was valid, and whether it still is.
VALID_FROM, VALID_TO, IS_CURRENT = "_valid_from", "_valid_to", "_is_current"
# In a history of some columns, a row covers successive records that do not change these columns: `VERSION` is the last
# record's, `BEGIN` the first record's, and TIME the last record's time in microseconds. TIME is also an event's time.
BEGIN = ("_cdc_begin_commit", "_cdc_begin_position", "_cdc_begin_partition", "_cdc_begin_offset")
TIME = "_cdc_time"

# Bytes in the order of plain records, if a column of `sequence_by` has no numbers. `COMMIT` is then the rank of these
# bytes during a merge, and 0 in the table.
SEQUENCE = "_cdc_sequence"

OP, SOURCE, RECORD_KEY = "_op", "_source", "_kafka_key"
# An event's origin: its transaction, its table, and the columns of its record's key.
TRANSACTION, TABLE, KEY_NAMES = "_cdc_transaction", "_cdc_table", "_cdc_key_names"
# Of an event in a binary log: its transaction's GTID, the server that wrote it, and its time.
GTID, SERVER, MILLIS = "_cdc_gtid", "_cdc_server", "_cdc_millis"
LOG = (GTID, SERVER, MILLIS)
# For an update that may have changed the key: see `cdc.events.provenance.OldKeyState`. The row before the update is
# in columns with this prefix.
OLD, BEFORE = "_cdc_old", "_cdc_before__"
# The whole row before the change, until it is split into those columns.
IMAGE = "_cdc_image"
# Notes of the decoder on the events of a batch, see `cdc.events.notes`: whether an event leaves out a value,
# whether a deletion contains more than its key, and how many bytes a row takes.
LEAVES_OUT, DELETES_HAVE_VALUES, ROW_BYTES = "_cdc_leaves_out", "_cdc_tells_more", "_cdc_row_bytes"
NOTES = (LEAVES_OUT, DELETES_HAVE_VALUES, ROW_BYTES)
# The number of an event in its batch, if only its files have the row's values; see `cdc.events.apart`.
PLACE = "_cdc_place"
# The columns whose fields a plain record has, if records may lack fields; see `cdc.events.presence`.
GIVEN = "_cdc_given"
# The events of a document after its first one, if the document has several changed rows; see `cdc.events.documents`.
REST = "_cdc_rest"
# The columns of decoded events, next to the columns of the row and of the version.
OF_EVENTS = (OP, SOURCE, RECORD_KEY, TRANSACTION, TABLE, KEY_NAMES, *LOG, OLD, GIVEN, REST, TIME, *NOTES)

# Operations: a row read by a snapshot, and the last row of the table that it read.
READ, READ_LAST = "r", "r: last"
# A plain record that deletes its key, if deleted rows stay: its values are the row's last ones.
MARK = "m"

_VERSION_TYPES = {COMMIT: pa.int64(), POSITION: pa.int64(), PARTITION: pa.int32(), OFFSET: pa.int64()}


def is_kept(name: str) -> bool:
    """Return whether a name begins with `_cdc_`, in any case, and so is reserved for a mirror's own columns."""
    return name.lower().startswith("_cdc_")


def order_columns(names: Collection[str]) -> tuple[str, ...]:
    """Return the columns that order records, given the names of a table's columns."""
    return (*VERSION, SEQUENCE) if SEQUENCE in names else VERSION


def version_schema(names: Sequence[str] = VERSION) -> pa.Schema:
    """Return the schema of the four columns of an event's version, named by `names`."""
    return pa.schema(list(zip(names, _VERSION_TYPES.values(), strict=True)))
