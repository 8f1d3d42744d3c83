"""Readers of Protobuf's scalar fields on the wire, and walks over consecutive values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, Words, offsets_of
from airflow_lakestream.decode.lanes.leaves import Unfit

Read = Callable[[ByteLanes], pa.Array]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5

# The numbers of types in descriptors.
_DOUBLE, _FLOAT, _INT64, _UINT64, _INT32, _FIXED64, _FIXED32, _BOOL, _STRING = 1, 2, 3, 4, 5, 6, 7, 8, 9
_BYTES, _UINT32, _ENUM, _SFIXED32, _SFIXED64, _SINT32, _SINT64 = 12, 13, 14, 15, 16, 17, 18

_WIRE = {
    **dict.fromkeys((_DOUBLE, _FIXED64, _SFIXED64), FIXED64),
    **dict.fromkeys((_FLOAT, _FIXED32, _SFIXED32), FIXED32),
    **dict.fromkeys((_STRING, _BYTES, 11), DELIMITED),
}


def wire_type(field: Any) -> int:
    """Return the wire type of a single value of the field."""
    return _WIRE.get(field.type, VARINT)


def _int32(values: Words) -> Any:
    # Only the lower 32 bits count: a negative number is written with 64 bits.
    return values.astype(np.uint32).view(np.int32).astype(np.int64)


def _zigzag(values: Words) -> Any:
    return ((values >> np.uint64(1)) ^ (~(values & np.uint64(1)) + np.uint64(1))).view(np.int64)


_NUMBERS: dict[int, Callable[[Words], Any]] = {
    _INT64: lambda values: values.view(np.int64),
    _UINT64: lambda values: values,
    _INT32: _int32,
    _UINT32: lambda values: values.astype(np.uint32).astype(np.int64),
    _SINT32: lambda values: _zigzag(values.astype(np.uint32).astype(np.uint64)),
    _SINT64: _zigzag,
    _FIXED64: lambda values: values,
    _SFIXED64: lambda values: values.view(np.int64),
    _FIXED32: lambda values: values.astype(np.int64),
    _SFIXED32: lambda values: values.view(np.int32).astype(np.int64),
}


def scalar(field: Any, kind: pa.DataType, path: str) -> tuple[Read, pa.Array | None]:
    """Return the reader of a field's values, and the default of a missing field, as an array of length 1.

    The default is 0, False or empty; None if the column can't represent the default. Raises Unfit.
    """
    if field.type in (_STRING, _BYTES):
        return _span(field, kind, path)
    convert = _converter(field, kind, path)
    raw = {FIXED64: ByteLanes.fixed64, FIXED32: ByteLanes.fixed32}.get(wire_type(field), ByteLanes.varints)
    zero = np.zeros(1, np.uint32 if wire_type(field) == FIXED32 else np.uint64)

    def read(lanes: ByteLanes) -> pa.Array:
        return convert(lanes, raw(lanes, path))

    return read, _default(lambda lanes: convert(lanes, zero))


def _default(make: Callable[[ByteLanes], pa.Array]) -> pa.Array | None:
    """Return the value made by `make` in a lane of its own, or None if the lane fails."""
    lanes = ByteLanes.over(pa.array([b""]))
    value = make(lanes)
    return None if lanes.failure.any() else value


def _converter(field: Any, kind: pa.DataType, path: str) -> leaves.Converter:
    """Return the converter of a field's numbers, read as unsigned words of 32 or 64 bits, into the column."""
    if field.type == _ENUM:
        return _enum(field.enum_type, kind, path)
    if field.type == _BOOL:
        from_booleans = leaves.booleans(kind, path)
        return lambda lanes, words: from_booleans(lanes, words != 0)
    if field.type in (_DOUBLE, _FLOAT):
        from_floats, bits = leaves.floats(kind, path), np.float64 if field.type == _DOUBLE else np.float32
        return lambda lanes, words: from_floats(lanes, words.view(bits))
    from_integers, numbers_of = leaves.integers(kind, path), _NUMBERS[field.type]
    return lambda lanes, words: from_integers(lanes, numbers_of(words))


def _enum(enum: Any, kind: pa.DataType, path: str) -> leaves.Converter:
    # Only open enums can go into a column of integers: a closed enum's unknown number is an unknown field.
    if t.is_integer(kind) and not enum.is_closed:
        from_integers = leaves.integers(kind, path)
        return lambda lanes, words: from_integers(lanes, _int32(words))
    if not (t.is_string(kind) or t.is_large_string(kind)):
        raise Unfit(f"{path}: an enum can't become {kind}")
    # As in the official package, the first declared name of a number counts.
    names = dict(sorted({value.number: value.name for value in reversed(enum.values)}.items()))
    numbers, texts = np.array(list(names), np.int64), pa.array(names.values(), kind)

    def from_numbers(lanes: ByteLanes, words: Words) -> pa.Array:
        values = _int32(words)
        places = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
        lanes.fail(numbers[places] != values, f"{path}: a number that the enum {enum.full_name} has no name for")
        return texts.take(pa.array(places))

    return from_numbers


def _span(field: Any, kind: pa.DataType, path: str) -> tuple[Read, pa.Array | None]:
    """Return reader and default of a string or bytes; see `scalar`."""
    fit = leaves.texts(kind, path) if field.type == _STRING else leaves.blobs(kind, path)

    def read(lanes: ByteLanes) -> pa.Array:
        starts, lengths = span(lanes, path)
        return fit(lanes, lanes.binary(starts, lengths))

    return read, _default(lambda lanes: fit(lanes, pa.array([b""])))


def span(lanes: ByteLanes, path: str) -> Any:
    """Move over a length and the bytes of this length; return the starts and the lengths of the bytes."""
    # A length of 2**63 or more becomes negative, which fails the lane, too.
    return lanes.spans(lanes.varints(path).view(np.int64), path)


def skip(wire: int, lanes: ByteLanes, path: str) -> None:
    """Move over a value of this wire type in each lane."""
    if wire == VARINT:
        lanes.varints(path)
    elif wire == DELIMITED:
        span(lanes, path)
    else:
        lanes.skip(8 if wire == FIXED64 else 4, path)


def along(lanes: ByteLanes, tag: int, path: str) -> tuple[Integers, Integers, Integers]:
    """Return the consecutive values of a field: lane and start of each value, and each lane's end of the last value.

    At the call, each lane is behind the field's first tag; another tag ends the lane's values. A lane with a value that
    ends early fails, and has no values.
    """
    data, wire = memoryview(lanes.data.data), tag & 7
    written = varint(tag)
    owners: list[int] = []
    starts: list[int] = []
    ends = lanes.pos.copy()
    is_cut = np.zeros(len(lanes), np.bool_)
    for lane, (pos, lane_end) in enumerate(zip(lanes.pos.tolist(), lanes.end.tolist(), strict=True)):
        first = len(starts)
        while True:
            owners.append(lane)
            starts.append(pos)
            pos = _behind(data, pos, lane_end, wire)
            if pos + len(written) > lane_end or bytes(data[pos : pos + len(written)]) != written:
                break
            pos += len(written)
        ends[lane] = pos
        if pos > lane_end:
            is_cut[lane] = True
            del starts[first:], owners[first:]
    ends[is_cut] = 0
    lanes.fail(is_cut, f"{path}: the value ends early")
    return np.array(owners, np.int64), np.array(starts, np.int64), ends


def _behind(data: memoryview, pos: int, end: int, wire: int) -> int:
    """Return the position behind a value, or a position above `end` if the value ends early."""
    if wire == FIXED64:
        return pos + 8
    if wire == FIXED32:
        return pos + 4
    value = shift = 0
    while pos < end and shift < 70:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return pos + value if wire == DELIMITED else pos
        shift += 7
    return end + 1


def varint(number: int) -> bytes:
    """Return a number in Protobuf's encoding."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def packed_varints(lanes: ByteLanes, starts: Integers, lengths: Integers, path: str) -> tuple[Integers, Integers]:
    """Return the start and the lane of each number in these spans; a lane fails if its last number is cut off."""
    # By byte of the spans: its number in the span, its lane, and its position.
    within = np.arange(int(lengths.sum())) - np.repeat(offsets_of(lengths)[:-1], lengths)
    owners = np.repeat(np.arange(len(lanes)), lengths)
    places = starts[owners] + within
    # The last byte of a number has no high bit.
    ends_number = lanes.data[places] < 0x80
    ends_span = within == lengths[owners] - 1
    is_cut = np.zeros(len(lanes), np.bool_)
    is_cut[owners[ends_span & ~ends_number]] = True
    lanes.fail(is_cut, f"{path}: the value ends early")
    begins_number = within == 0
    begins_number[1:] |= ends_number[:-1]
    return places[begins_number], owners[begins_number]
