"""Readers of the items of Avro's arrays and maps, and skipping of unwanted values, in many records at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from airflow_lakestream.decode.avro.one import DEEPEST, MOST_EMPTY, Malformed, entry_of, skip_one, width
from airflow_lakestream.decode.avro.schema import AvroArray, AvroMap, AvroPrimitive, AvroUnion, Node, Record
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, offsets_of

# Each round of items costs some calls, for any number of lanes: when few lanes have many items left, a walk over these
# lanes finds the start of each item, and all items are read at once.
_ROUNDS = 16
_FEW = 256


def read_items(
    lanes: ByteLanes, item: Callable[[ByteLanes], pa.Array | None], node: Node, path: str
) -> tuple[list[pa.Array], Integers, Integers]:
    """Read the items of all arrays or maps: return their parts, the order of the items, and each lane's item count.

    The parts are in the order of reading: the first items of all lanes come before the second items. The positions
    `order`, taken from the concatenated parts, sort the items by lane; see `merged`.

    :param item: reads one item in each lane, or returns None if the items are only skipped; then the list of parts is
        empty.
    :param node: type of an item.
    """
    reading = _ItemReader(item, node, path)
    rows, live = np.arange(len(lanes)), lanes.take(np.arange(len(lanes)))
    while True:
        counts = _block_header(live, width(node) == 0, path)
        more = (counts > 0) & (live.failure == 0)
        lanes.put(rows[~more], live.take(~more))
        rows, live, counts = rows[more], live.take(more), counts[more]
        if not len(rows):
            break
        reading.block(rows, live, counts)
    owners = np.concatenate(reading.owners) if reading.owners else np.zeros(0, np.int64)
    return reading.parts, np.argsort(owners, kind="stable"), np.bincount(owners, minlength=len(lanes))


def _block_header(lanes: ByteLanes, empty: bool, path: str) -> Integers:
    # Returns the number of items in the next block of each lane; 0 ends the array or the map.
    counts = lanes.zigzags(path)
    sized = np.flatnonzero((counts < 0) & (lanes.failure == 0))
    if len(sized):
        counts = counts.copy()
        counts[sized] = -counts[sized]
        part = lanes.take(sized)
        # The block's size in bytes, for readers that skip the block unread.
        part.zigzags(path)
        lanes.put(sized, part)
    # Items without bytes may be more than the bytes that are left, up to a limit.
    too_many = (counts < 0) | (counts > np.maximum(lanes.end - lanes.pos, MOST_EMPTY))
    lanes.fail(too_many, f"{path}: more items than the value has bytes")
    return counts


class _ItemReader:
    """Reader of items, block by block; `owners` has the lane of each item of `parts`."""

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
            if rounds >= _ROUNDS and len(active) < _FEW:
                self._walk(rows[active], current, left)
                live.put(active, current)
                return
            self._read(rows[active], current)
            left -= 1
            rounds += 1
            stay = (left > 0) & (current.failure == 0)
            if not stay.all():
                live.put(active[~stay], current.take(~stay))
                active, left, current = active[stay], left[stay], current.take(stay)

    def _read(self, rows: Integers, lanes: ByteLanes) -> None:
        values = self._item(lanes)
        if values is not None:
            self.parts.append(values)
            self.owners.append(rows)

    def _block_of_width(self, rows: Integers, live: ByteLanes, counts: Integers, width: int) -> None:
        # The size of an item is known, so all items of the block are read at once.
        fits = counts * width <= live.end - live.pos
        live.fail(~fits, f"{self._path}: the value ends early")
        counts = np.where(fits, counts, 0)
        starts = np.repeat(live.pos, counts) + _within(counts) * width
        self._read_at(rows, live, counts, starts)
        live.skip(np.where(live.failure == 0, counts * width, 0), self._path)

    def _walk(self, rows: Integers, live: ByteLanes, counts: Integers) -> None:
        # One lane after the other: first the start of each item is found, then all items are read at once.
        data = memoryview(live.data.data)
        starts: list[int] = []
        wrong, found = np.zeros(len(live), np.bool_), np.zeros(len(live), np.int64)
        behind = live.pos.copy()
        for lane, count in enumerate(counts.tolist()):
            place, end, first = int(live.pos[lane]), int(live.end[lane]), len(starts)
            try:
                for _ in range(count):
                    starts.append(place)
                    place = skip_one(self._node, data, place, end)
                behind[lane], found[lane] = place, count
            except Malformed:
                del starts[first:]
                wrong[lane] = True
        live.fail(wrong, f"{self._path}: the value ends early, or is not a value of its type")
        self._read_at(rows, live, found, np.array(starts, np.int64))
        live.pos = np.where(live.failure == 0, behind, 0)

    def _read_at(self, rows: Integers, live: ByteLanes, counts: Integers, starts: Integers) -> None:
        # Reads the items at `starts`, `counts` in each lane. A lane fails if one of its items fails.
        lanes = np.repeat(np.arange(len(live)), counts)
        items = live.take(lanes)
        items.pos = starts
        self._read(rows[lanes], items)
        failed = items.failure != 0
        if failed.any():
            hit = lanes[failed]
            live.failure[hit] = items.failure[failed]
            live.pos[hit] = live.end[hit] = 0


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
    # Skips the value of the chosen branch in each lane; the number of the branch is ahead of the value.
    chosen = lanes.zigzags(path)
    lanes.fail((chosen < 0) | (chosen >= len(node.branches)), f"{path}: a type that the union does not have")
    live = lanes.failure == 0
    for index, branch in enumerate(node.branches):
        rows = np.flatnonzero(live & (chosen == index))
        if len(rows):
            part = lanes.take(rows)
            skip_all(branch, part, path, depth + 1)
            lanes.put(rows, part)
