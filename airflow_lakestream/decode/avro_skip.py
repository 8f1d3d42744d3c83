"""Over Avro values without looking at them: side by side in many records, or from one to the next in a single one."""

from __future__ import annotations

import numpy as np

from airflow_lakestream.decode import avro_blocks
from airflow_lakestream.decode.avro_schema import Array, Fixed, Map, Node, Primitive, Record, Union
from airflow_lakestream.decode.lanes import Lanes

_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_DEEPEST = 64


class Malformed(ValueError):
    """The bytes are no value of the type."""


def entry_of(node: Map) -> Record:
    """Return what a map's entry looks like: as a record of its key and its value does."""
    return Record("entry", [("key", Primitive("string")), ("value", node.values)])


def width(node: Node) -> int | None:
    """Return how many bytes each value of the type has; None where that depends on the value."""
    if isinstance(node, Primitive):
        return _WIDTHS.get(node.name)
    return node.size if isinstance(node, Fixed) else None


def skip_all(node: Node, lanes: Lanes, path: str, depth: int = 0) -> None:
    """Move all lanes over a value of the type."""
    size = width(node)
    if depth > _DEEPEST:
        lanes.fail(np.ones(len(lanes), np.bool_), f"{path}: nested deeper than {_DEEPEST} levels")
    elif size is not None:
        lanes.skip(size, path)
    elif isinstance(node, Record):
        for name, kind in node.fields:
            skip_all(kind, lanes, f"{path}.{name}" if depth < 2 else path, depth + 1)
    elif isinstance(node, Union):
        _skip_union(node, lanes, path, depth)
    elif isinstance(node, Array | Map):
        inner = node.items if isinstance(node, Array) else entry_of(node)
        avro_blocks.read_items(lanes, lambda part: skip_all(inner, part, path, depth + 1), inner, path)
    elif isinstance(node, Primitive) and node.name in ("bytes", "string"):
        lanes.spans(lanes.zigzags(path), path)
    else:
        lanes.zigzags(path)


def _skip_union(node: Union, lanes: Lanes, path: str, depth: int) -> None:
    chosen = lanes.zigzags(path)
    lanes.fail((chosen < 0) | (chosen >= len(node.branches)), f"{path}: a type that the union does not have")
    live = lanes.why == 0
    for index, branch in enumerate(node.branches):
        rows = np.flatnonzero(live & (chosen == index))
        if len(rows):
            part = lanes.take(rows)
            skip_all(branch, part, path, depth + 1)
            lanes.put(rows, part)


def skip_one(node: Node, data: memoryview, pos: int, end: int, depth: int = 0) -> int:
    """Return the place behind a value that begins at `pos`. Raises Malformed."""
    if depth > _DEEPEST:
        raise Malformed
    size = width(node)
    if size is not None:
        pos += size
    elif isinstance(node, Record):
        for _, kind in node.fields:
            pos = skip_one(kind, data, pos, end, depth + 1)
    elif isinstance(node, Array | Map):
        pos = _skip_blocks(node.items if isinstance(node, Array) else entry_of(node), data, pos, end, depth)
    else:
        # A branch, a length, a symbol, or the number itself.
        number, pos = read_one(data, pos, end)
        if isinstance(node, Union):
            pos = skip_one(_branch(node, number), data, pos, end, depth + 1)
        elif isinstance(node, Primitive) and node.name in ("bytes", "string"):
            pos = pos + number if number >= 0 else end + 1
    if pos > end:
        raise Malformed
    return pos


def _branch(node: Union, index: int) -> Node:
    if not 0 <= index < len(node.branches):
        raise Malformed
    return node.branches[index]


def _skip_blocks(node: Node, data: memoryview, pos: int, end: int, depth: int) -> int:
    while True:
        count, pos = read_one(data, pos, end)
        if count < 0:
            count = -count
            _, pos = read_one(data, pos, end)
        if not count:
            return pos
        if count > end - pos and count > avro_blocks.MOST_EMPTY:
            raise Malformed
        for _ in range(count):
            pos = skip_one(node, data, pos, end, depth + 1)


def read_one(data: memoryview, pos: int, end: int) -> tuple[int, int]:
    """Return the signed number at `pos`, and the place behind it. Raises Malformed."""
    value = shift = 0
    while pos < end and shift < 70:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise Malformed
