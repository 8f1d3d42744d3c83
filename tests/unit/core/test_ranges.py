"""RangeSet against plain Python sets."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.codec import decode_ranges, encode_ranges
from airflow_lakestream.core.ranges import OffsetRange, RangeSet

TOPIC = "orders"


@st.composite
def range_sets(draw: st.DrawFn) -> RangeSet:
    parts = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 8)), max_size=8))
    return RangeSet(OffsetRange(TOPIC, p, start, start + width) for p, start, width in parts)


def offsets(ranges: RangeSet) -> set[tuple[int, int]]:
    return {(r.partition, offset) for r in ranges for offset in range(r.from_offset, r.until_offset)}


@given(range_sets(), range_sets())
def test_set_algebra_is_that_of_sets_of_offsets(a: RangeSet, b: RangeSet) -> None:
    assert offsets(a | b) == offsets(a) | offsets(b)
    assert offsets(a - b) == offsets(a) - offsets(b)
    assert offsets(a & b) == offsets(a) & offsets(b)


@given(range_sets())
def test_ranges_are_sorted_disjoint_and_coalesced(a: RangeSet) -> None:
    for partition in range(3):
        intervals = a.intervals(TOPIC, partition)
        assert all(left[1] < right[0] for left, right in itertools.pairwise(intervals))
    assert a.width == len(offsets(a))
    assert list(a) == sorted(a)


@given(range_sets())
def test_equality_and_hash_are_by_content(a: RangeSet) -> None:
    single = RangeSet(OffsetRange(TOPIC, p, o, o + 1) for p, o in offsets(a))
    assert single == a
    assert hash(single) == hash(a)


@given(range_sets())
def test_gaps_are_what_is_missing_between_first_and_last(a: RangeSet) -> None:
    spans = RangeSet(
        OffsetRange(TOPIC, p, a.intervals(TOPIC, p)[0][0], a.intervals(TOPIC, p)[-1][1]) for _, p in a.partitions
    )
    assert a.gaps() == spans - a


@given(range_sets(), st.integers(0, 2), st.integers(0, 40))
def test_first_missing_is_the_least_offset_not_held(a: RangeSet, partition: int, start: int) -> None:
    held = offsets(a)
    expected = next(o for o in range(start, 100) if (partition, o) not in held)
    assert a.first_missing(TOPIC, partition, start) == expected


@given(range_sets())
def test_the_compact_text_comes_back_as_it_was(a: RangeSet) -> None:
    assert decode_ranges(encode_ranges(a, TOPIC), TOPIC) == a


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5), (-1, 3)])
def test_an_empty_or_negative_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not an offset range"):
        OffsetRange(TOPIC, 0, start, end)
