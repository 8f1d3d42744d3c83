"""Many records read at the same time: each step reads the next item of every record, with numpy.

A lane is a record (or a value inside a record) with its own position and end. A decoder reads field by field, in all
lanes at once, and a failed lane does not affect other lanes. The values of lists and maps are not read in the records'
order, and are sorted afterwards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

# Bytes behind the last lane: reads go a little over the end of a lane before the check of the end.
_PADDING = 64

_HIGH = np.uint64(0x8080808080808080)
_LOW = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)
# The groups of 7 bits in a word are joined in three steps: pairs of bytes, of 16 bits, of 32 bits.
_STEPS = (
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)


class ByteLanes:
    """Positions in a buffer, by lane; `failure` is 0 or the index of a failed lane's reason in `reasons`.

    A failed lane is empty and at position 0: values read from it have no meaning, and do no harm. The argument `path`
    of the methods is a field's path, for the reason of a failure.
    """

    __slots__ = ("data", "end", "failure", "pos", "reasons", "words")

    def __init__(self, data: Bytes, pos: Integers, end: Integers, failure: Integers, reasons: list[str]) -> None:
        self.data = data
        # Eight bytes at every position, aligned or not, without a copy.
        self.words = np.ndarray((len(data) - 8,), np.dtype("<u8"), data, strides=(1,))
        self.pos = pos
        self.end = end
        self.failure = failure
        self.reasons = reasons

    @classmethod
    def over(cls, values: pa.Array) -> ByteLanes:
        """Return a lane for each value of a binary array; a null has an empty lane."""
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
        first, last = int(ends[0]), int(ends[-1])
        padded = np.empty(last - first + _PADDING, np.uint8)
        padded[last - first :] = 0
        if last > first:
            padded[: last - first] = np.frombuffer(data, np.uint8, last - first, first)
        return cls(padded, ends[:-1] - first, ends[1:] - first, np.zeros(len(values), np.int64), [""])

    def __len__(self) -> int:
        return len(self.pos)

    def take(self, rows: Integers | Mask) -> ByteLanes:
        """Return a selection of the lanes; moves of the selection have no effect here before `put`."""
        return self._with(self.pos[rows], self.end[rows], self.failure[rows])

    def put(self, rows: Integers | Mask, lanes: ByteLanes) -> None:
        """Copy the positions and failures of `lanes` to these rows, from which `take` has selected `lanes`."""
        self.pos[rows] = lanes.pos
        self.end[rows] = lanes.end
        self.failure[rows] = lanes.failure

    def inside(self, starts: Integers, lengths: Integers) -> ByteLanes:
        """Return lanes over a part of each lane; a failure in them is not visible here before `fail_with`."""
        return self._with(starts.copy(), starts + lengths, self.failure.copy())

    def _with(self, pos: Integers, end: Integers, failure: Integers) -> ByteLanes:
        part = ByteLanes.__new__(ByteLanes)
        part.data, part.words, part.reasons = self.data, self.words, self.reasons
        part.pos, part.end, part.failure = pos, end, failure
        return part

    def fail(self, mask: Mask, reason: str) -> None:
        """Mark lanes as failed, and empty them; a lane keeps the reason of the first failure."""
        if not mask.any():
            return
        if reason not in self.reasons:
            self.reasons.append(reason)
        self.failure[mask & (self.failure == 0)] = self.reasons.index(reason)
        self.pos[mask] = 0
        self.end[mask] = 0

    def replace_reason(self, lane: int, reason: str) -> None:
        """Replace the reason of a lane's failure; an empty reason removes the failure, but the lane stays empty."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        self.failure[lane] = self.reasons.index(reason)

    def fail_with(self, other: ByteLanes) -> None:
        """Mark the lanes that failed in `other`, of the same length and with the same reasons, as failed here."""
        failed = other.failure != 0
        if failed.any():
            self.failure[failed & (self.failure == 0)] = other.failure[failed & (self.failure == 0)]
            self.pos[failed] = 0
            self.end[failed] = 0

    def skip(self, count: int | Integers, path: str) -> None:
        """Move on by `count` bytes; a lane with fewer bytes fails."""
        self.pos = self.pos + count
        self.fail(self.pos > self.end, f"{path}: the value ends early")

    def bytes(self, path: str) -> Bytes:
        """Read a byte in each lane."""
        values = self.data[self.pos]
        self.skip(1, path)
        return values

    def fixed64(self, path: str) -> Words:
        """Read eight bytes in each lane, little-endian."""
        values = self.words[self.pos]
        self.skip(8, path)
        return values

    def fixed32(self, path: str) -> npt.NDArray[np.uint32]:
        """Read four bytes in each lane, little-endian."""
        values = self.words[self.pos].astype(np.uint32)
        self.skip(4, path)
        return values

    def varints(self, path: str) -> Words:
        """Read a base-128 number of up to 64 bits in each lane, as Protobuf and Avro write numbers."""
        first = self.data[self.pos]
        if not np.any(first >= 0x80):
            self.skip(1, path)
            return first.astype(np.uint64)
        word = self.words[self.pos]
        stops = ~word & _HIGH
        below = (stops & (~stops + _ONE)) - _ONE
        # The number of bytes up to the first byte without a high bit; 8 if all eight have a high bit.
        sizes = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
        values = word & below & _LOW
        for low, high, shift in _STEPS:
            values = (values & low) | ((values & high) >> shift)
        is_long = stops == 0
        if is_long.any():
            self._long_varints(np.flatnonzero(is_long), values, sizes, path)
        self.skip(sizes, path)
        return values

    def _long_varints(self, rows: Integers, values: Words, sizes: Integers, path: str) -> None:
        """Complete the numbers of nine and ten bytes in `values` and `sizes`: a word has only the first eight bytes."""
        ninth = self.data[self.pos[rows] + 8].astype(np.uint64)
        tenth = np.where(ninth < 0x80, np.uint8(0), self.data[self.pos[rows] + 9]).astype(np.uint64)
        values[rows] |= ((ninth & np.uint64(0x7F)) << np.uint64(56)) | ((tenth & _ONE) << np.uint64(63))
        sizes[rows] = np.where(ninth < 0x80, 9, 10)
        too_long = np.zeros(len(self), np.bool_)
        too_long[rows] = tenth > 1
        sizes[too_long] = 0
        self.fail(too_long, f"{path}: a number of more than 64 bits")

    def zigzags(self, path: str) -> Integers:
        """Read a signed number in zigzag encoding in each lane."""
        values = self.varints(path)
        return ((values >> _ONE) ^ (~(values & _ONE) + _ONE)).view(np.int64)

    def spans(self, lengths: Integers, path: str) -> tuple[Integers, Integers]:
        """Move over `lengths` bytes; return the starts and the lengths, with length 0 in failed lanes."""
        starts = self.pos
        bad = (lengths < 0) | (lengths > self.end - starts)
        if bad.any():
            self.fail(bad, f"{path}: the value ends early")
            starts = np.where(bad, 0, starts)
            lengths = np.where(bad, 0, lengths)
        self.pos = starts + lengths
        return starts, lengths

    def binary(self, starts: Integers, lengths: Integers) -> pa.Array:
        """Return the bytes of each span, as an array. Raises AssertionError if spans overlap."""
        empty = lengths == 0
        if empty.any():
            # An empty span may be anywhere: its position must not spoil the order.
            ends = np.maximum.accumulate(np.where(empty, 0, starts + lengths))
            starts = np.where(empty, ends, starts)
        if np.all(starts[1:] >= starts[:-1] + lengths[:-1]):
            return self._ordered(starts, lengths, np.arange(0, 2 * len(starts), 2))
        order = np.argsort(starts, kind="stable")
        if np.any(starts[order][1:] < (starts + lengths)[order][:-1]):
            raise AssertionError("spans that overlap")
        places = np.empty(len(starts), np.int64)
        places[order] = np.arange(0, 2 * len(starts), 2)
        return self._ordered(starts[order], lengths[order], places)

    def _ordered(self, starts: Integers, lengths: Integers, places: Integers) -> pa.Array:
        """Return spans in the order of `places`; the spans must be ascending.

        An Arrow array over the lanes' own buffer has the spans and the gaps between them, and `take` copies the spans.
        """
        offsets = np.zeros(2 * len(starts) + 1, np.int32)
        offsets[0:-1:2] = starts
        offsets[1::2] = starts + lengths
        offsets[-1] = offsets[-2] if len(starts) else 0
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), 2 * len(starts), buffers).take(pa.array(places))

    def rows_of_bytes(self, starts: Integers, size: int) -> Bytes:
        """Return `size` bytes from each start, as a table of bytes; the rows of failed lanes have no meaning."""
        return self.data[np.minimum(starts, len(self.data) - size)[:, None] + np.arange(size)]


def cut(values: pa.Array, before: int, behind: int = 0) -> pa.Array:
    """Return binary values without `before` bytes at the start and `behind` bytes at the end; a null stays null.

    The values have to be long enough. Arrow's own `binary_slice` fails on some arrays ("Negative buffer resize"; 26.0).
    """
    lanes = ByteLanes.over(values)
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    lengths = np.where(is_valid, lanes.end - lanes.pos - before - behind, 0)
    inner = lanes.binary(lanes.pos + np.where(is_valid, before, 0), lengths)
    return inner if is_valid.all() else pc.if_else(pa.array(is_valid), inner, pa.scalar(None, inner.type))


def merged(parts: list[pa.Array], order: Integers, kind: pa.DataType) -> pa.Array:
    """Return the values of all parts, in the given order.

    :param order: positions in the concatenated parts; a single part has to be in order already.
    """
    if not parts:
        return pa.nulls(0, kind)
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts).take(pa.array(order))


def offsets_of(lengths: Integers) -> Integers:
    """Return the start of each list of these lengths, and the end of the last list."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def list_array(values: pa.Array, lengths: Integers, kind: pa.DataType) -> pa.Array:
    """Return lists of these lengths over consecutive values."""
    offsets = offsets_of(lengths)
    if t.is_large_list(kind):
        return pa.LargeListArray.from_arrays(pa.array(offsets), values, type=kind)
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=kind)


def map_array(entries: pa.Array, lengths: Integers, kind: pa.DataType) -> pa.Array:
    """Return maps of these lengths over consecutive structs of key and value."""
    offsets = pa.array(offsets_of(lengths).astype(np.int32))
    return pa.MapArray.from_arrays(offsets, entries.field(0), entries.field(1), type=kind)


def last_of_each_key(entries: pa.Array, lengths: Integers) -> tuple[pa.Array, Integers]:
    """Return the last entry of each key in each map, in order, and the new lengths of the maps."""
    if not len(entries):
        return entries, lengths
    keys = entries.field(0).dictionary_encode()
    owners = np.repeat(np.arange(len(lengths)), lengths)
    # A number for each pair of map and key; the last entry of each is the first in reverse order.
    pairs = owners * len(keys.dictionary) + keys.indices.to_numpy().astype(np.int64)
    _, last_reversed = np.unique(pairs[::-1], return_index=True)
    if len(last_reversed) == len(pairs):
        return entries, lengths
    kept = np.sort(len(pairs) - 1 - last_reversed)
    return entries.take(pa.array(kept)), np.bincount(owners[kept], minlength=len(lengths))


def with_uuids(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values of `leaves.plain(kind)` as values of `kind`.

    Arrow's own cast refuses a null struct around a required field.
    """
    if values.type == kind:
        return values
    if isinstance(kind, pa.UuidType):
        return pa.ExtensionArray.from_storage(kind, values)
    nulls = values.is_null() if values.null_count else None
    if t.is_struct(kind):
        children = [with_uuids(values.field(place), field.type) for place, field in enumerate(kind)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if t.is_map(kind):
        keys, items = with_uuids(values.keys, kind.key_type), with_uuids(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, keys, items, type=kind, mask=nulls)
    maker = pa.LargeListArray if t.is_large_list(kind) else pa.ListArray
    return maker.from_arrays(values.offsets, with_uuids(values.values, kind.value_type), type=kind, mask=nulls)
