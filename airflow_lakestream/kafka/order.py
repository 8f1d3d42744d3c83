"""The order of a partition's records, by which a batch is found that stands at other offsets than its own.

A batch's checksum does not cover the batch's own offset. Damaged to a higher or a lower one, its records come at
offsets of others, or beyond the log's end, and the records behind them seem to go back. Their order in the log is right
all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise


def rises(offsets: Sequence[int]) -> bool:
    """Tell whether each offset is higher than the one before."""
    return isinstance(offsets, range) or all(one < other for one, other in pairwise(offsets))


def misplaced(offsets: Sequence[int], start: int) -> tuple[int, int] | None:
    """Return the own offsets [first, end) of the first batch that stands at other ones; None where no offset goes back.

    They are empty where the reading began behind them. Where compaction has left holes it may be that neither way to
    put the records in order fills them: then it is the one that leaves room.

    :param offsets: those of records in the order of the log, as one answer of the broker has them.
    :param start: where the reading began.
    """
    at = next((n for n, (one, other) in enumerate(pairwise(offsets), 1) if other <= one), None)
    if at is None:
        return None
    before, after = offsets[at - 1], offsets[at]
    # Raised are some in front of the break, which fill the room from the last good one to what follows.
    there = [start - 1, *offsets]
    raised = next((there[n] + 1 for n in range(at, -1, -1) if there[n] + at + 1 - n == after), None)
    if raised is not None:
        return raised, after
    if offsets[0] != start:
        return after, after
    # Lowered are some from the break on, likewise.
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
