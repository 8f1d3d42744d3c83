"""Which rows of one record are the same: what a repair may make one, and what it has to refuse."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.iceberg.replace.repair import _pieces, different

NAN = float("nan")


def rows(offsets: list[int], **columns: Any) -> pa.Table:
    place = {"_kafka_topic": ["t"] * len(offsets), "_kafka_partition": [3] * len(offsets), "_kafka_offset": offsets}
    return pa.table({**place, **columns})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 2),
        (1.5, NAN),
        ("a", "b"),
        ("a", None),
        (b"a", b"b"),
        (True, None),
        (Decimal("1.5"), Decimal("1.6")),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, tzinfo=dt.UTC)),
        ([1], [1, 2]),
        ([], None),
        ({"a": 1, "b": None}, {"a": 1, "b": "x"}),
        ([{"a": NAN}], [{"a": 1.0}]),
    ],
)
def test_rows_are_different_where_one_value_is(one: object, other: object) -> None:
    for values in ([one, one], [other, other]):
        assert not different(rows([5, 5], value=pa.array([*values, one, other])[:2]))
    found = different(rows([4, 5, 5, 6, 6, 6], value=[one, one, other, other, other, other]))
    assert found == RangeSet([OffsetRange("t", 3, 5, 6)])


def test_rows_of_different_records_may_differ_and_the_third_one_counts_too() -> None:
    assert not different(rows([1, 2, 3], value=["a", "b", "a"]))
    assert different(rows([1, 1, 1], value=["a", "a", "b"])) == RangeSet([OffsetRange("t", 3, 1, 2)])
    assert not different(rows([], value=[]))


@pytest.mark.parametrize("width", [1, 3, 4, 100])
def test_pieces_cover_the_ranges_and_are_of_one_partition_and_no_wider(width: int) -> None:
    ranges = RangeSet(OffsetRange("t", p, start, start + 5) for p in (0, 2) for start in (0, 10, 11, 40))
    pieces = list(_pieces(ranges, width))
    assert RangeSet(r for piece in pieces for r in piece) == ranges
    assert sum(piece.width for piece in pieces) == ranges.width
    assert all(piece.width <= width and len(piece.partitions) == 1 for piece in pieces)
