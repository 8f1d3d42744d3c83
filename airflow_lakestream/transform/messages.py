"""Messages through the pipes of a statement's process: a few words, and a table in Arrow's format.

The words are JSON, not pickle: answers of a compromised process could not run code here.
"""

from __future__ import annotations

import io
import json
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class ProcessSetup:
    """Words of the first message; the message's table has the columns available to the statement.

    :param bounds: the fields of a `ProcessBounds`.
    :param plan: the fields of another process's `StatementPlan`; empty to plan the statement here. With a plan, a
        second message follows: its table has the statement's output columns.
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
