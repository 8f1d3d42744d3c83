"""Which rows are records of given ranges: by topic, partition and offset alone, as one would by hand."""

from __future__ import annotations

import random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.tables.coordinates import COORDINATES, is_hit

# Few values, so that they meet; and such as 64 bits hold, but not twice over.
HUGE = 2**61
OFFSETS = st.one_of(st.integers(0, 12), st.none(), st.integers(HUGE, HUGE + 3))
Row = tuple[str | None, int | None, int | None]


@st.composite
def some_ranges(draw: st.DrawFn) -> RangeSet:
    starts = st.one_of(st.integers(0, 40), st.integers(2**61 - 2, 2**61 + 4))
    parts = draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), starts, st.integers(1, 6)), max_size=25))
    return RangeSet(OffsetRange(topic, p, start, start + width) for topic, p, start, width in parts)


def rows_of(rows: list[Row], offset_type: pa.DataType, cut: int) -> pa.Table:
    schema = pa.schema(zip(COORDINATES, (pa.string(), pa.int32(), offset_type), strict=True))
    table = pa.table(list(zip(*rows, strict=True)) or [[], [], []], schema=schema)
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])


def one_by_one(rows: list[Row], ranges: RangeSet) -> list[bool]:
    """Look at each row and each range: slow, and plainly right."""
    return [
        any(
            offset is not None and (r.topic, r.partition) == (topic, partition) and offset in range(*_ends(r))
            for r in ranges
        )
        for topic, partition, offset in rows
    ]


def _ends(r: OffsetRange) -> tuple[int, int]:
    return r.from_offset, r.until_offset


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0, 1, None]), OFFSETS), min_size=10),
    some_ranges(),
    st.integers(0, 60),
)
def test_hits_are_those_that_looking_at_each_row_and_range_finds(rows: list[Row], ranges: RangeSet, cut: int) -> None:
    found = is_hit(rows_of(rows, pa.int64(), cut), ranges).to_pylist()
    assert found == one_by_one(rows, ranges)


def test_hits_of_many_ranges_among_many_rows() -> None:
    rng = random.Random(7)
    starts = sorted(rng.sample(range(200_000), 10_000))
    ranges = RangeSet(OffsetRange("a", n % 3, start, start + rng.randint(1, 40)) for n, start in enumerate(starts))
    rows = [("a", rng.randint(0, 2), rng.randint(0, 200_000)) for _ in range(50_000)]
    held = {(r.partition, o) for r in ranges for o in range(r.from_offset, r.until_offset)}
    found = is_hit(rows_of(rows, pa.int32(), 20_000), ranges).to_pylist()
    assert found == [(partition, offset) in held for _, partition, offset in rows]
    assert any(found)
    assert not all(found)
