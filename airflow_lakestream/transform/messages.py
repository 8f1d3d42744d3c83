"""What goes through the pipes of a process that runs a statement: a few words, and a table, as Arrow writes it.

Words are JSON, not pickle: whoever might take over that process could say anything, and is to reach nothing by it.
"""

from __future__ import annotations

import io
import json
import struct
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Setup:
    """The words of the first message, whose table has the columns that the statement may read.

    :param bounds: a `Bounds`.
    :param plan: what another process made of the statement, empty where it is to be made. If it is there, a second
        message follows, whose table has the columns that the statement makes.
    """

    sql: str
    bounds: dict[str, Any]
    plan: dict[str, Any]


_SIZES = struct.Struct(">QQ")


def send(pipe: io.FileIO, words: dict[str, Any], table: pa.Table) -> None:
    """Write a message. Raises OSError where nobody is there to read it."""
    body = pa.BufferOutputStream()
    with pa.ipc.new_stream(body, table.schema) as writer:
        writer.write_table(table)
    buffer = body.getvalue()
    head = json.dumps(words).encode()
    _write(pipe, _SIZES.pack(len(head), buffer.size) + head)
    _write(pipe, buffer)


def receive(pipe: io.FileIO) -> tuple[dict[str, Any], pa.Table]:
    """Read a message. Raises EOFError where there is none, or not all of it."""
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
