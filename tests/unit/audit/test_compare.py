"""The comparison against a model of plain sets and counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.audit import compare
from airflow_lakestream.audit.compare import DoubledRange, PartitionFacts, judge_partition
from airflow_lakestream.audit.tally import OffsetTally
from airflow_lakestream.core.ranges import OffsetRange, RangeSet

SETS = st.sets(st.integers(0, 30))


def ranges(offsets: Iterable[int]) -> RangeSet:
    return RangeSet(OffsetRange("t", 0, o, o + 1) for o in offsets)


def tally(offsets: Iterable[int]) -> OffsetTally:
    counted = OffsetTally()
    for offset in offsets:
        counted.add_offsets([offset])
    return counted


def offsets_of(found: RangeSet) -> set[int]:
    return {o for r in found for o in range(r.from_offset, r.until_offset)}


@pytest.mark.long
@given(
    own=SETS,
    other=SETS,
    older=SETS,
    readable=SETS,
    shown=SETS,
    forgotten=SETS,
    rows=st.lists(st.integers(0, 30)),
    rejects=st.lists(st.integers(0, 30), max_size=5),
)
def test_the_verdict_is_that_of_sets_and_counters(
    own: set[int],
    other: set[int],
    older: set[int],
    readable: set[int],
    shown: set[int],
    forgotten: set[int],
    rows: list[int],
    rejects: list[int],
) -> None:
    required = Counter([*own, *other])
    allowed = required + Counter(older)
    there = Counter(rows)
    landed = own | older
    # Only what a group has landed counts as rejected.
    rejected = Counter(offset for offset in rejects if allowed[offset])
    either = there + rejected

    facts = PartitionFacts(
        "t",
        0,
        landed=ranges(landed),
        forgotten=ranges(forgotten),
        required=tally(required.elements()),
        allowed=tally(allowed.elements()),
        shown=ranges(shown & landed),
        readable=tally(readable),
        rows=tally(rows),
        rejected=tally(rejected.elements()),
    )
    audit = judge_partition(facts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "_WINDOW", 3)
        in_stretches = judge_partition(facts)
    assert in_stretches == audit
    missing = {o for o in landed & readable - forgotten if either[o] < required[o]}
    doubled = {o: there[o] for o in there if there[o] > allowed[o] > 0}
    unexpected = {o for o in there if allowed[o] == 0}
    assert offsets_of(audit.missing) == missing
    assert {o: d.times for d in audit.doubled for o in range(d.from_offset, d.until_offset)} == doubled
    assert offsets_of(audit.unexpected) == unexpected
    beside = {o for o in rejected if either[o] > allowed[o]}
    assert offsets_of(audit.both) == {o for o in beside if there[o]}
    assert offsets_of(audit.rejected_twice) == {o for o in beside if not there[o]}
    assert audit.rejected == rejected.total()
    assert audit.rejected_too_many == sum(min(rejected[o], either[o] - allowed[o]) for o in beside)
    assert offsets_of(audit.not_verifiable) == landed - shown
    assert audit.rows == len(rows)
    assert audit.readable == len(landed & readable)
    assert audit.rows_missing == sum(required[o] - either[o] for o in missing)
    assert audit.rows_too_many == (there - allowed).total()
    assert audit.is_damaged == bool(missing or doubled or unexpected or beside)


def test_neighbours_with_as_many_rows_are_one_range() -> None:
    landed = ranges(range(10))
    rows = tally([*range(10), 3, 4, 5, 5])
    audit = judge_partition(PartitionFacts("t", 0, landed=landed, allowed=tally(range(10)), rows=rows))
    assert audit.doubled == (DoubledRange(3, 5, 2), DoubledRange(5, 6, 3))


def test_nothing_at_all_is_clean() -> None:
    assert not judge_partition(PartitionFacts("t", 0)).is_damaged


@given(landed=SETS, adopted=SETS, readable=SETS, shown=SETS, rows=SETS)
def test_an_adopted_offset_needs_no_row_and_is_never_verified(
    landed: set[int], adopted: set[int], readable: set[int], shown: set[int], rows: set[int]
) -> None:
    adopted &= landed
    facts = PartitionFacts(
        "t",
        0,
        landed=ranges(landed),
        adopted=ranges(adopted),
        required=tally(landed),
        allowed=tally(landed),
        shown=ranges(shown),
        readable=tally(readable),
        rows=tally(rows),
    )
    audit = judge_partition(facts)
    assert offsets_of(audit.missing) == (landed & readable) - rows - adopted
    assert offsets_of(audit.not_verifiable) == (landed - shown) | adopted
    assert offsets_of(audit.unexpected) == rows - landed
