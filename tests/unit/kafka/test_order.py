"""A batch at other offsets than its own is found by the order of the log: any log, any batch, any other offset."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_lakestream.kafka.partition import is_rising, misplaced


@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=8),
    which=st.integers(0, 7),
    other=st.integers(0, 60),
    start=st.integers(0, 5),
)
def test_the_own_offsets_of_a_batch_are_found_where_any_goes_back(
    sizes: list[int], which: int, other: int, start: int
) -> None:
    assume(which < len(sizes))
    log, at, own = [], start, (0, 0)
    for number, size in enumerate(sizes):
        if number == which:
            own = at, at + size
            log += range(other, other + size)
        else:
            log += range(at, at + size)
        at += size
    # Nothing goes back: only another look than ours could tell.
    assume(any(after <= before for before, after in pairwise(log)))
    # All that is before it was read, and something is: else what is raised could be what is lowered.
    assume(which > 0)
    assert not is_rising(log)
    assert misplaced(log, start) == own


def test_what_rises_has_no_such_batch() -> None:
    assert misplaced([], 0) is None
    assert misplaced([3, 4, 9, 12], 0) is None
    assert is_rising(range(5))
    assert is_rising([3, 4, 9])


def test_read_from_behind_it_the_offsets_are_none() -> None:
    first, end = misplaced([1_000_020, 1_000_021, 30, 31, 32], 30) or (0, 1)
    assert first == end == 30
