"""Order of a partition's records, to find a batch at foreign offsets.

A batch's checksum does not cover the batch's own offset. If that is damaged to a higher or a lower offset, the records
come at offsets of other batches, or beyond the log's end, and the records behind them seem to go back. Their order in
the log is right all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def is_rising(offsets: Sequence[int]) -> bool:
    """Return whether each offset is higher than the previous offset."""
    return isinstance(offsets, range) or all(one < other for one, other in pairwise(offsets))


def misplaced(offsets: Sequence[int], start: int) -> tuple[int, int] | None:
    """Return the range [first, end) of offsets that the first batch at wrong offsets should have.

    None if no offset goes back. The range is empty if the read began behind the batch's place. Compaction may have
    left holes, so that no place fits exactly: then the place with enough room is taken.

    :param offsets: of records in the order of the log, from a single answer of the broker.
    :param start: the first offset of the read.
    """
    at = next((n for n, (one, other) in enumerate(pairwise(offsets), 1) if other <= one), None)
    if at is None:
        return None
    before, after = offsets[at - 1], offsets[at]
    # Raised offsets before the break fill the room from the last good offset to the next one.
    there = [start - 1, *offsets]
    raised = next((there[n] + 1 for n in range(at, -1, -1) if there[n] + at + 1 - n == after), None)
    if raised is not None:
        return raised, after
    if offsets[0] != start:
        return after, after
    # Lowered offsets after the break, likewise.
    for n in range(at + 1, len(offsets)):
        if offsets[n] == before + 1 + n - at:
            return before + 1, offsets[n]
    # With holes between them.
    lower = next((one for one in reversed(offsets[:at]) if one < after), start - 1)
    if lower + 1 < after:
        return lower + 1, after
    is_whole = offsets[-1] - after == len(offsets) - 1 - at
    higher = None if is_whole else next((one for one in offsets[at:] if one > before), None)
    return before + 1, before + 1 + len(offsets) - at if higher is None else higher
