"""Width and end of a single Avro value in a buffer."""

from __future__ import annotations

from airflow_lakestream.decode.avro.schema import AvroArray, AvroFixed, AvroMap, AvroPrimitive, AvroUnion, Node, Record

# Items without bytes can have any count: without a limit, a few bytes would be a bomb.
MOST_EMPTY = 1 << 16
# Values may contain values of their own type: a deeper value is malformed.
DEEPEST = 64
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class Malformed(ValueError):
    """Error: the bytes are not a value of the type."""


def entry_of(node: AvroMap) -> Record:
    """Return the type of a map's entry: a record of a key and a value."""
    return Record("entry", [("key", AvroPrimitive("string")), ("value", node.values)])


def width(node: Node) -> int | None:
    """Return the number of bytes of each value of the type, or None if the number depends on the value."""
    if isinstance(node, AvroPrimitive):
        return _WIDTHS.get(node.name)
    return node.size if isinstance(node, AvroFixed) else None


def skip_one(node: Node, data: memoryview, pos: int, end: int, depth: int = 0) -> int:
    """Return the position after the value at `pos`. Raises Malformed if the value does not end before `end`."""
    if depth > DEEPEST:
        raise Malformed
    size = width(node)
    if size is not None:
        pos += size
    elif isinstance(node, Record):
        for _, kind in node.fields:
            pos = skip_one(kind, data, pos, end, depth + 1)
    elif isinstance(node, AvroArray | AvroMap):
        pos = _skip_blocks(node.items if isinstance(node, AvroArray) else entry_of(node), data, pos, end, depth)
    else:
        # A branch, a length, a symbol, or the number itself.
        number, pos = read_one(data, pos, end)
        if isinstance(node, AvroUnion):
            pos = skip_one(_branch(node, number), data, pos, end, depth + 1)
        elif isinstance(node, AvroPrimitive) and node.name in ("bytes", "string"):
            pos = pos + number if number >= 0 else end + 1
    if pos > end:
        raise Malformed
    return pos


def _branch(node: AvroUnion, index: int) -> Node:
    if not 0 <= index < len(node.branches):
        raise Malformed
    return node.branches[index]


def _skip_blocks(node: Node, data: memoryview, pos: int, end: int, depth: int) -> int:
    while True:
        count, pos = read_one(data, pos, end)
        # Behind a negative count follows the size of the block in bytes.
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
    """Return the number at `pos`, in zigzag encoding, and the position after the number. Raises Malformed."""
    value = shift = 0
    # Ten bytes of seven bits hold the longest number.
    while pos < end and shift < 70:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise Malformed
