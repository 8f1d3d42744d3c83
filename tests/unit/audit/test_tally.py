"""A tally counts offsets as a Counter would, whatever their order."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.audit import tally as tally_module
from airflow_lakestream.audit.tally import OffsetTally, TallySegments

OFFSETS = st.lists(st.integers(0, 40), max_size=60)


def counts_of(tally: OffsetTally) -> Counter[int]:
    segments = TallySegments({"n": tally})
    counted: Counter[int] = Counter()
    for start, end, n in zip(
        *(a.to_pylist() for a in (segments.starts, segments.ends, segments.counts["n"])), strict=True
    ):
        counted.update(dict.fromkeys(range(start, end), n))
    return +counted


@given(st.lists(OFFSETS, max_size=4), st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=4))
def test_it_counts_as_a_counter_does(batches: list[list[int]], widths: list[tuple[int, int]]) -> None:
    tally, model = OffsetTally(), Counter[int]()
    for batch in batches:
        tally.add_offsets(pa.array(batch, pa.int64()))
        model.update(batch)
    for start, width in widths:
        tally.add_interval(start, start + width)
        model.update(range(start, start + width))

    assert counts_of(tally) == model
    assert len(tally) == model.total()
    assert {o for start, end in tally.intervals() for o in range(start, end)} == set(model)


@given(st.lists(OFFSETS, min_size=2, max_size=8))
def test_settling_now_and_then_changes_nothing(batches: list[list[int]]) -> None:
    whole, settled = OffsetTally(), OffsetTally()
    for batch in batches:
        whole.add_offsets(batch)
        settled.add_offsets(batch)
        settled.edges()
    assert counts_of(whole) == counts_of(settled)


def test_ranges_of_python_cost_one_entry() -> None:
    tally = OffsetTally()
    tally.add_offsets(range(5, 10_000_000))
    tally.add_offsets(range(0))
    assert len(tally.edges()) == 2
    assert tally.intervals() == ((5, 10_000_000),)


@pytest.mark.parametrize("stride", [1, -1])
def test_dense_rows_in_any_order_come_together(stride: int) -> None:
    tally = OffsetTally()
    tally.add_offsets(pa.array(list(range(1000))[::stride], pa.int64()))
    tally.add_offsets(pa.array(list(range(1000, 2000, 2)), pa.int64()))
    tally.add_offsets(pa.array(list(range(1001, 2000, 2)), pa.int64()))
    assert len(tally.edges()) == 2


def test_memory_is_bounded_by_what_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "_MOST_LOOSE", 10)
    tally = OffsetTally()
    for offset in range(0, 1000):
        tally.add_offsets([offset])
    assert tally._loose_count <= 12
    assert tally.intervals() == ((0, 1000),)
