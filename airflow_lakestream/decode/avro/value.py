"""An Avro value as a Python value, for the few messages of programs; records are decoded by columns."""

from __future__ import annotations

import struct
from typing import Any

from airflow_lakestream.decode.avro.one import DEEPEST, MOST_EMPTY, Malformed, entry_of, read_one, width
from airflow_lakestream.decode.avro.schema import AvroArray, AvroEnum, AvroMap, AvroUnion, Node, Record

_FLOATS = {"float": "<f", "double": "<d"}


def value_of(node: Node, data: bytes) -> Any:
    """Return the value of the bytes. Raises Malformed."""
    view = memoryview(data)
    try:
        value, end = _read(node, view, 0, len(view), 0)
    except (IndexError, UnicodeDecodeError, struct.error) as e:
        raise Malformed from e
    if end != len(view):
        raise Malformed
    return value


def _read(node: Node, data: memoryview, pos: int, end: int, depth: int) -> tuple[Any, int]:
    # Returns the value at `pos`, and the position behind the value.
    if depth > DEEPEST:
        raise Malformed
    if isinstance(node, Record):
        record = {}
        for name, kind in node.fields:
            record[name], pos = _read(kind, data, pos, end, depth + 1)
        return record, pos
    if isinstance(node, AvroArray):
        return _blocks(node.items, data, pos, end, depth)
    if isinstance(node, AvroMap):
        entries, pos = _blocks(entry_of(node), data, pos, end, depth)
        return {entry["key"]: entry["value"] for entry in entries}, pos
    if isinstance(node, AvroUnion):
        branch, pos = read_one(data, pos, end)
        if not 0 <= branch < len(node.branches):
            raise Malformed
        return _read(node.branches[branch], data, pos, end, depth + 1)
    return _leaf(node, data, pos, end)


def _leaf(node: Node, data: memoryview, pos: int, end: int) -> tuple[Any, int]:
    size = width(node)
    if size is not None:
        content = bytes(data[pos : pos + size])
        if pos + size > end:
            raise Malformed
        if node.name in _FLOATS:
            return struct.unpack(_FLOATS[node.name], content)[0], pos + size
        return {"null": None, "boolean": content == b"\x01"}.get(node.name, content), pos + size
    number, pos = read_one(data, pos, end)
    if isinstance(node, AvroEnum):
        return node.symbols[number], pos
    if node.name not in ("bytes", "string"):
        return number, pos
    if number < 0 or pos + number > end:
        raise Malformed
    content = bytes(data[pos : pos + number])
    return (content.decode() if node.name == "string" else content), pos + number


def _blocks(node: Node, data: memoryview, pos: int, end: int, depth: int) -> tuple[list[Any], int]:
    # Returns the items of an array, and the position behind the last block, whose count is 0.
    items: list[Any] = []
    while True:
        count, pos = read_one(data, pos, end)
        if count < 0:
            count = -count
            _, pos = read_one(data, pos, end)
        if not count:
            return items, pos
        if count > end - pos and count > MOST_EMPTY:
            raise Malformed
        for _ in range(count):
            item, pos = _read(node, data, pos, end, depth + 1)
            items.append(item)
