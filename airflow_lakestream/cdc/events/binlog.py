"""Positions in the binary log of MySQL and MariaDB, a sequence of transactions in the order of commit.

Its files are numbered; an event begins at a byte of its file, and has several rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

# Of an event's source: the file, the byte, and the number of the row in the event.
FILE, BYTE, ROW = "file", "pos", "row"
FIELDS = ((FILE, pa.string()), (BYTE, pa.int64()), (ROW, pa.int64()), ("gtid", pa.string()), ("server_id", pa.int64()))
# Instead of a transaction's number: transactions are never mixed in the log, and keys are checked with each row.
SERIAL = -1

_NUMBER = r"\.(?P<number>\d{1,9})$"
# A file has less than 2**32 bytes: positions in it have 32 bits.
_BYTES = 2**32


def places(source: pa.Array) -> pa.Array:
    """Return the events' log positions as numbers, growing with the log; null for events of another kind of log."""
    number = pc.struct_field(pc.extract_regex(_member(source, FILE, pa.string()), _NUMBER), "number").cast(pa.int64())
    return pc.add(pc.multiply(number, _BYTES), _member(source, BYTE, pa.int64()))


def first_without_position(source: pa.Array) -> int | None:
    """Return the index of the first event without a position in the file; None if all have positions.

    MariaDB may leave out an event's end position. Debezium then subtracts the event's length from 0: `pos` is negative.
    """
    byte = _member(source, BYTE, pa.int64())
    lacking = pc.and_(_member(source, FILE, pa.string()).is_valid(), pc.less(pc.fill_null(byte, 0), 0))
    found = pc.index(lacking, True).as_py()
    return None if found < 0 else int(found)


def log_columns(source: pa.Array) -> Sequence[pa.Array]:
    """Return GTID, server id, and time in milliseconds of each event; null for events of another kind of log.

    The time is -1 if the source has no time. All three are null also for rows of an incremental snapshot: they have the
    stream's position, but were read later.
    """
    is_incremental = pc.equal(_member(source, "snapshot", pa.string()), "incremental").fill_null(False)
    has_place = pc.and_(places(source).is_valid(), pc.invert(is_incremental))
    names = (("gtid", pa.string()), ("server_id", pa.int64()), ("ts_ms", pa.int64()))
    found = [pc.if_else(has_place, _member(source, name, kind), pa.scalar(None, kind)) for name, kind in names]
    return [*found[:2], pc.if_else(has_place, pc.fill_null(found[2], -1), pa.scalar(None, pa.int64()))]


def rows(source: pa.Array) -> pa.Array:
    """Return the number of each row in the event, from 1."""
    return pc.add(pc.fill_null(_member(source, ROW, pa.int64()), 0), 1)


def _member(source: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
    return pc.struct_field(source, name) if source.type.get_field_index(name) >= 0 else pa.nulls(len(source), kind)
