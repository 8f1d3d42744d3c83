"""Steps along Protobuf's wire format: over an unknown field, and to the next field of the same tag."""

from __future__ import annotations

import numpy as np

from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, offsets_of
from airflow_lakestream.decode.protobuf.values import DELIMITED, FIXED32, FIXED64, VARINT, span


def skip(wire: int, lanes: ByteLanes, path: str) -> None:
    """Move over a value of this wire type in each lane."""
    if wire == VARINT:
        lanes.varints(path)
    elif wire == DELIMITED:
        span(lanes, path)
    else:
        lanes.skip(8 if wire == FIXED64 else 4, path)


def along(lanes: ByteLanes, tag: int, path: str) -> tuple[Integers, Integers, Integers]:
    """Return the consecutive values of a field: lane and start of each value, and the position behind the last by lane.

    The lanes are already behind the field's first tag; the values of a lane end ahead of another tag. A lane with a
    value that ends early fails, and has no values.
    """
    data, wire = memoryview(lanes.data.data), tag & 7
    written = varint(tag)
    owners: list[int] = []
    starts: list[int] = []
    behind = lanes.pos.copy()
    wrong = np.zeros(len(lanes), np.bool_)
    for lane, (pos, end) in enumerate(zip(lanes.pos.tolist(), lanes.end.tolist(), strict=True)):
        place, first = pos, len(starts)
        while True:
            owners.append(lane)
            starts.append(place)
            place = _behind(data, place, end, wire)
            if place > end or bytes(data[place : place + len(written)]) != written or place + len(written) > end:
                break
            place += len(written)
        behind[lane] = place
        if place > end:
            wrong[lane] = True
            del starts[first:], owners[first:]
    behind[wrong] = 0
    lanes.fail(wrong, f"{path}: the value ends early")
    return np.array(owners, np.int64), np.array(starts, np.int64), behind


def _behind(data: memoryview, place: int, end: int, wire: int) -> int:
    # Returns the position behind a value; a position above `end` if the value ends early.
    if wire == FIXED64:
        return place + 8
    if wire == FIXED32:
        return place + 4
    value = shift = 0
    while place < end and shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return place + value if wire == DELIMITED else place
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
    within = np.arange(int(lengths.sum())) - np.repeat(offsets_of(lengths)[:-1], lengths)
    owners = np.repeat(np.arange(len(lanes)), lengths)
    places = starts[owners] + within
    ends = lanes.data[places] < 0x80
    last = within == lengths[owners] - 1
    cut = np.zeros(len(lanes), np.bool_)
    cut[owners[last & ~ends]] = True
    lanes.fail(cut, f"{path}: the value ends early")
    # A number starts at the start of a span, and behind the last byte of a number, which has no high bit.
    first = within == 0
    first[1:] |= ends[:-1]
    return places[first], owners[first]
