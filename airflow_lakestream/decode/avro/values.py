"""Readers of Avro values: of a single value, or of the same field in many records at once (lanes)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.avro.schema import (
    AvroArray,
    AvroEnum,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroUnion,
    Node,
    Record,
)
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, offsets_of

# Reads a value in each lane, and returns the values as a column.
ColumnRead = Callable[[ByteLanes], pa.Array]

# The most items without bytes (such as null): without a limit, a record of a few bytes could fill the memory.
MOST_EMPTY = 1 << 16
# The deepest level of nested values; a deeper value is malformed.
DEEPEST = 64
# The bytes of each value of a primitive type.
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class Malformed(ValueError):
    """The bytes are not a value of the type."""


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
        # The number of a branch or symbol, a length in bytes, or the value of an integer.
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
        # A negative count is followed by the size of the block in bytes.
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
    # The longest number has ten bytes of seven bits.
    while pos < end and shift < 70:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), pos
        shift += 7
    raise Malformed


_FLOATS = {"float": "<f", "double": "<d"}


def value_of(node: Node, data: bytes) -> Any:
    """Return the single value in `data` as a Python object. Raises Malformed."""
    view = memoryview(data)
    try:
        value, end = _read(node, view, 0, len(view), 0)
    except (IndexError, UnicodeDecodeError, struct.error) as e:
        raise Malformed from e
    if end != len(view):
        raise Malformed
    return value


def _read(node: Node, data: memoryview, pos: int, end: int, depth: int) -> tuple[Any, int]:
    """Return the value at `pos`, and the position behind the value."""
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
        index, pos = read_one(data, pos, end)
        return _read(_branch(node, index), data, pos, end, depth + 1)
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
    """Return the items of an array, and the position behind the last block, whose count is 0."""
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


# A round reads one item in each lane, at the same cost for few lanes as for many. After this number of rounds, if fewer
# lanes than this have items left, a walk over these lanes finds the start of each item, and all are read at once.
_MOST_ROUNDS = 16
_FEW_LANES = 256


def read_items(
    lanes: ByteLanes, item: Callable[[ByteLanes], pa.Array | None], node: Node, path: str
) -> tuple[list[pa.Array], Integers, Integers]:
    """Read the items of all arrays or maps; return (parts, order, counts).

    `parts` has the items in the order of reading: the first items of all lanes come before the second items. `order`
    has, lane by lane, the positions of the items in the concatenated parts; see `merged`. `counts` has the number of
    items of each lane.

    :param item: reads one item in each lane; or skips the items, and returns None: then `parts` is empty.
    :param node: type of an item.
    """
    reader = _ItemReader(item, node, path)
    rows, live = np.arange(len(lanes)), lanes.take(np.arange(len(lanes)))
    while True:
        counts = _block_header(live, path)
        has_items = (counts > 0) & (live.failure == 0)
        lanes.put(rows[~has_items], live.take(~has_items))
        rows, live, counts = rows[has_items], live.take(has_items), counts[has_items]
        if not len(rows):
            break
        reader.block(rows, live, counts)
    owners = np.concatenate(reader.owners) if reader.owners else np.zeros(0, np.int64)
    return reader.parts, np.argsort(owners, kind="stable"), np.bincount(owners, minlength=len(lanes))


def _block_header(lanes: ByteLanes, path: str) -> Integers:
    """Return the number of items in the next block of each lane; 0 ends the array or the map."""
    counts = lanes.zigzags(path)
    sized = np.flatnonzero((counts < 0) & (lanes.failure == 0))
    if len(sized):
        counts = counts.copy()
        counts[sized] = -counts[sized]
        part = lanes.take(sized)
        # The block's size in bytes, which is only for readers that skip the block.
        part.zigzags(path)
        lanes.put(sized, part)
    # Items without bytes may be more than the bytes that are left, up to a limit.
    too_many = (counts < 0) | (counts > np.maximum(lanes.end - lanes.pos, MOST_EMPTY))
    lanes.fail(too_many, f"{path}: more items than the value has bytes")
    return counts


class _ItemReader:
    """Reader of items, block by block; `owners` has the lane of each item in `parts`."""

    def __init__(self, item: Callable[[ByteLanes], pa.Array | None], node: Node, path: str) -> None:
        self.parts: list[pa.Array] = []
        self.owners: list[Integers] = []
        self._item = item
        self._node = node
        self._path = path
        self._width = width(node)

    def block(self, rows: Integers, live: ByteLanes, counts: Integers) -> None:
        """Read a block of `counts` items in each lane.

        :param rows: the numbers of the lanes for `owners`.
        :param live: the lanes, which are moved behind the block.
        """
        if self._width is not None:
            self._block_of_width(rows, live, counts, self._width)
            return
        active, left, current = np.arange(len(live)), counts.copy(), live.take(np.arange(len(live)))
        rounds = 0
        while len(active):
            if rounds >= _MOST_ROUNDS and len(active) < _FEW_LANES:
                self._walk(rows[active], current, left)
                live.put(active, current)
                return
            self._read(rows[active], current)
            left -= 1
            rounds += 1
            has_items = (left > 0) & (current.failure == 0)
            if not has_items.all():
                live.put(active[~has_items], current.take(~has_items))
                active, left, current = active[has_items], left[has_items], current.take(has_items)

    def _read(self, rows: Integers, lanes: ByteLanes) -> None:
        values = self._item(lanes)
        if values is not None:
            self.parts.append(values)
            self.owners.append(rows)

    def _block_of_width(self, rows: Integers, live: ByteLanes, counts: Integers, width: int) -> None:
        """Read a block of items of `width` bytes, all at once."""
        fits = counts * width <= live.end - live.pos
        live.fail(~fits, f"{self._path}: the value ends early")
        counts = np.where(fits, counts, 0)
        starts = np.repeat(live.pos, counts) + _within(counts) * width
        self._read_at(rows, live, counts, starts)
        live.skip(np.where(live.failure == 0, counts * width, 0), self._path)

    def _walk(self, rows: Integers, live: ByteLanes, counts: Integers) -> None:
        """Read the last `counts` items of each lane: find the start of each item, then read all items at once."""
        data = memoryview(live.data.data)
        starts: list[int] = []
        is_malformed, good_counts = np.zeros(len(live), np.bool_), np.zeros(len(live), np.int64)
        ends = live.pos.copy()
        for lane, count in enumerate(counts.tolist()):
            pos, lane_end, first = int(live.pos[lane]), int(live.end[lane]), len(starts)
            try:
                for _ in range(count):
                    starts.append(pos)
                    pos = skip_one(self._node, data, pos, lane_end)
                ends[lane], good_counts[lane] = pos, count
            except Malformed:
                del starts[first:]
                is_malformed[lane] = True
        live.fail(is_malformed, f"{self._path}: the value ends early, or is not a value of its type")
        self._read_at(rows, live, good_counts, np.array(starts, np.int64))
        live.pos = np.where(live.failure == 0, ends, 0)

    def _read_at(self, rows: Integers, live: ByteLanes, counts: Integers, starts: Integers) -> None:
        """Read the items at `starts`, `counts` of them in each lane. A lane fails if one of its items fails."""
        lanes = np.repeat(np.arange(len(live)), counts)
        items = live.take(lanes)
        items.pos = starts
        self._read(rows[lanes], items)
        failed = items.failure != 0
        if failed.any():
            failed_lanes = lanes[failed]
            live.failure[failed_lanes] = items.failure[failed]
            live.pos[failed_lanes] = live.end[failed_lanes] = 0


def _within(counts: Integers) -> Integers:
    """Return the numbers 0, 1, ... below each count, concatenated."""
    return np.arange(int(counts.sum())) - np.repeat(offsets_of(counts)[:-1], counts)


def skip_all(node: Node, lanes: ByteLanes, path: str, depth: int = 0) -> None:
    """Move all lanes over a value of the type; a lane without a valid value fails."""
    size = width(node)
    if depth > DEEPEST:
        lanes.fail(np.ones(len(lanes), np.bool_), f"{path}: nested deeper than {DEEPEST} levels")
    elif size is not None:
        lanes.skip(size, path)
    elif isinstance(node, Record):
        # The path of a failure names two levels of skipped fields at most.
        for name, kind in node.fields:
            skip_all(kind, lanes, f"{path}.{name}" if depth < 2 else path, depth + 1)
    elif isinstance(node, AvroUnion):
        _skip_union(node, lanes, path, depth)
    elif isinstance(node, AvroArray | AvroMap):
        inner = node.items if isinstance(node, AvroArray) else entry_of(node)
        read_items(lanes, lambda part: skip_all(inner, part, path, depth + 1), inner, path)
    elif isinstance(node, AvroPrimitive) and node.name in ("bytes", "string"):
        lanes.spans(lanes.zigzags(path), path)
    else:
        lanes.zigzags(path)


def _skip_union(node: AvroUnion, lanes: ByteLanes, path: str, depth: int) -> None:
    """Move all lanes over a union's value: the number of a branch, then the branch's value."""
    chosen = lanes.zigzags(path)
    lanes.fail((chosen < 0) | (chosen >= len(node.branches)), f"{path}: a type that the union does not have")
    live = lanes.failure == 0
    for index, branch in enumerate(node.branches):
        rows = np.flatnonzero(live & (chosen == index))
        if len(rows):
            part = lanes.take(rows)
            skip_all(branch, part, path, depth + 1)
            lanes.put(rows, part)


def as_decimal(node: AvroFixed | AvroPrimitive, kind: pa.DataType) -> bool:
    """Return whether the bytes become a decimal in a column of this type."""
    return node.logical == "decimal" and not (t.is_binary(kind) or t.is_fixed_size_binary(kind))


def primitive_reader(node: AvroPrimitive, kind: pa.DataType, path: str, finer: TimestampsFiner) -> ColumnRead:
    """Return the reader of a primitive type for a column. Raises Unfit."""
    if node.name == "null":
        return lambda lanes: pa.nulls(len(lanes), kind)
    if node.name in ("int", "long"):
        return _number(node, kind, path, finer)
    if node.name in ("bytes", "string"):
        return _span(node, kind, path, finer)
    if node.name == "boolean":
        return _boolean(kind, path)
    fit = leaves.floats(kind, path)
    if node.name == "float":
        return lambda lanes: fit(lanes, lanes.fixed32(path).view(np.float32))
    return lambda lanes: fit(lanes, lanes.fixed64(path).view(np.float64))


def _boolean(kind: pa.DataType, path: str) -> ColumnRead:
    fit = leaves.booleans(kind, path)

    def read(lanes: ByteLanes) -> pa.Array:
        values = lanes.bytes(path)
        lanes.fail(values > 1, f"{path}: a boolean that is neither 0 nor 1")
        return fit(lanes, values)

    return read


def _span(node: AvroPrimitive, kind: pa.DataType, path: str, finer: TimestampsFiner) -> ColumnRead:
    """Return the reader of bytes and strings, which begin with a length."""
    if node.logical == "zoned-timestamp" and t.is_timestamp(kind):
        fit = leaves.instants(kind, path, finer)
    elif node.name == "string":
        fit = leaves.texts(kind, path)
    else:
        fit = leaves.decimals(kind, path, node.scale) if as_decimal(node, kind) else leaves.blobs(kind, path)

    def read(lanes: ByteLanes) -> pa.Array:
        starts, lengths = lanes.spans(lanes.zigzags(path), path)
        return fit(lanes, lanes.binary(starts, lengths))

    return read


# Nanoseconds of the units of Avro's times.
_NANOS = {"nanos": 1, "micros": 1_000, "millis": 1_000_000}


def _number(node: AvroPrimitive, kind: pa.DataType, path: str, finer: TimestampsFiner) -> ColumnRead:
    fit = _number_fit(node.logical or "", kind, path, finer)
    is_int = node.name == "int"

    def read(lanes: ByteLanes) -> pa.Array:
        values = lanes.zigzags(path)
        if is_int:
            lanes.fail((values < -(1 << 31)) | (values >= 1 << 31), f"{path}: more than the 32 bits of an int")
        return fit(lanes, values)

    return read


def _number_fit(logical: str, kind: pa.DataType, path: str, finer: TimestampsFiner) -> leaves.Converter:
    """Return the converter of numbers of a logical type; the last word of the type's name is the unit."""
    if logical == "date":
        return leaves.dates(kind, path)
    unit = _NANOS.get(logical.rpartition("-")[2], 0)
    if logical.startswith("time-"):
        return leaves.times(kind, path, unit, finer=finer)
    if unit:
        return leaves.timestamps(kind, path, unit, zoned=not logical.startswith("local-"), finer=finer)
    return leaves.integers(kind, path)
