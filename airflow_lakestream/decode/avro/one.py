"""One Avro value in a buffer: how wide it is, and where the next one begins."""

from __future__ import annotations

from airflow_lakestream.decode.avro.schema import Array, Fixed, Map, Node, Primitive, Record, Union

# Items that take no bytes can be as many as a number says: a bomb of a few bytes.
MOST_EMPTY = 1 << 16
# Values may hold values of their own type: deeper than that none is read.
DEEPEST = 64
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}


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


def skip_one(node: Node, data: memoryview, pos: int, end: int, depth: int = 0) -> int:
    """Return the place behind a value that begins at `pos`. Raises Malformed."""
    if depth > DEEPEST:
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
        if count > end - pos and count > MOST_EMPTY:
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
