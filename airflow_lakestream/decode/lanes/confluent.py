"""Confluent's wire format: a zero, the schema's id in four bytes, big-endian, and the payload."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, Mask

HEADER = 5


def schema_ids(lanes: ByteLanes, framed: Mask) -> Integers:
    """Move the framed lanes behind the header, and return the schema ids in the headers.

    A framed lane that ends within the header fails. The ids of lanes outside `framed` have no meaning.
    """
    words = lanes.words[lanes.pos]
    ids = (words >> np.uint64(8)).astype(np.uint32).byteswap().astype(np.int64)
    lanes.fail(framed & (lanes.end - lanes.pos < HEADER), "the value ends within its first 5 bytes: no schema id")
    lanes.pos = lanes.pos + np.where(framed & (lanes.failure == 0), HEADER, 0)
    return ids


def is_framed(lanes: ByteLanes) -> Mask:
    """Return a mask of the lanes with Confluent's wire format: the first byte is a zero."""
    framed: Mask = (lanes.data[lanes.pos] == 0) & (lanes.end > lanes.pos)
    return framed


def groups(values: Integers, among: Mask) -> Iterator[tuple[int, Integers]]:
    """Yield each distinct value of the lanes in `among`, with the numbers of the value's lanes."""
    rows = np.flatnonzero(among)
    if not len(rows):
        return
    found = values[rows]
    if (found == found[0]).all():
        yield int(found[0]), rows
        return
    for value in np.unique(found):
        yield int(value), rows[found == value]
