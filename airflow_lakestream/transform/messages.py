"""Results of a statement for a batch, and messages through the pipes of the statement's process.

A message is a JSON object, called words, and a table in Arrow's format. Unlike pickle, JSON from a compromised process
can't run code here.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True)
class ProcessSetup:
    """Words of the first message to a statement's process; the message's table has the statement's input columns.

    :param bounds: the fields of a `ProcessBounds`.
    :param plan: the fields of another process's `StatementPlan`; empty if the process must plan the statement itself.
        With a plan, a second message follows, whose table has the statement's output columns.
    """

    sql: str
    bounds: dict[str, Any]
    plan: dict[str, Any]


_SIZES = struct.Struct(">QQ")


def send(pipe: io.FileIO, words: dict[str, Any], table: pa.Table) -> None:
    """Write a message: the sizes of both parts, the words, and the table. Raises OSError if the pipe has no reader."""
    body = pa.BufferOutputStream()
    with pa.ipc.new_stream(body, table.schema) as writer:
        writer.write_table(table)
    buffer = body.getvalue()
    head = json.dumps(words).encode()
    _write(pipe, _SIZES.pack(len(head), buffer.size) + head)
    _write(pipe, buffer)


def receive(pipe: io.FileIO) -> tuple[dict[str, Any], pa.Table]:
    """Read a message. Raises EOFError if the message is missing or incomplete."""
    head, body = _SIZES.unpack(_read(pipe, _SIZES.size))
    words: dict[str, Any] = json.loads(_read(pipe, head))
    return words, pa.ipc.open_stream(pa.py_buffer(_read(pipe, body))).read_all()


def _write(pipe: io.FileIO, data: bytes | pa.Buffer) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[pipe.write(rest) :]


def _read(pipe: io.FileIO, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        if not (count := pipe.readinto(rest)):
            raise EOFError
        rest = rest[count:]
    return data


Indices = npt.NDArray[np.int64]

# Prefix of names that no statement may use.
HIDDEN = "_lakestream_"
# The column with the number of a row's record in the batch.
ROW = f"{HIDDEN}row"
# Beginnings of errors that do not depend on the columns.
NO_SQL, NO_SELECT = "DuckDB does not understand it", "only a SELECT is allowed here."


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record for which the statement fails: the record's number in the batch, and the reason."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Transformed:
    """The rows of a batch, and the record of each row.

    `kept[i]` is the record that row `i` was made from; `filtered` are the records for which the WHERE was not true. All
    indices count records of the batch, in ascending order. Every record is in exactly one of `kept`, `filtered` and
    `bad`.
    """

    rows: pa.Table
    kept: Indices
    filtered: Indices
    bad: Sequence[FailedRecord] = ()


def spans(offsets: Sequence[int], indices: Indices) -> list[tuple[int, int]]:
    """Return the offsets of some records of a batch as half-open ranges, one for neighbours in the batch.

    Holes of the log between two neighbours are part of the range: no record can ever be there.

    :param offsets: offsets of all records of the batch.
    :param indices: indices of the records in the batch, ascending.
    """
    if not len(indices):
        return []
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    return [(offsets[int(run[0])], offsets[int(run[-1])] + 1) for run in np.split(indices, breaks)]
