"""Rows have equal hashes exactly if their values are equal, however Arrow keeps them."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.tables.row_hashes import RowHashes

POINT = pa.struct([("a", pa.int64()), ("b", pa.string())])
# By the type: some of its values, all of them different.
VALUES: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    pa.int32(): [0, 1, -1, 2**31 - 1],
    pa.int64(): [0, 1, -1, -(2**63), 2**53, 2**53 + 1],
    pa.float32(): [0.0, 1.5, -1.5, math.inf, -math.inf, math.nan],
    pa.float64(): [0.0, 5e-324, -5e-324, 0.1, math.inf, math.nan],
    pa.decimal128(38, 2): [Decimal("0.00"), Decimal("1.01"), Decimal("-1.01"), Decimal("9" * 36 + ".99")],
    pa.date32(): [date(1970, 1, 1), date(2020, 2, 29), date(1, 1, 1)],
    pa.timestamp("us", "UTC"): [0, 1, -1, 2**63 - 1, -(2**63)],
    pa.timestamp("us"): [datetime(2020, 1, 1), datetime(2020, 1, 1, 0, 0, 0, 1)],
    pa.string(): ["", "a", "A", "a\0", "\0", "é", "e\u0301", "NULL"],
    pa.binary(): [b"", b"\0", b"\0\0", b"\xff"],
    POINT: [{"a": None, "b": None}, {"a": 0, "b": ""}, {"a": None, "b": ""}, {"a": 0, "b": None}],
    pa.list_(pa.int64()): [[], [None], [None, None], [0], [1, 2], [2, 1], [1, 2, 2]],
    pa.list_(pa.list_(pa.string())): [[], [[]], [[], []], [None], [["a"], ["b"]], [["a", "b"]], [["b"], ["a"]]],
    pa.map_(pa.string(), pa.int64()): [
        {},
        {"a": None},
        {"a": 1},
        {"a": 2},
        {"b": 1},
        {"a": 1, "b": 2},
        {"a": 2, "b": 1},
    ],
    pa.list_(POINT): [[], [None], [{"a": 1, "b": "x"}], [{"a": 1, "b": "x"}, {"a": None, "b": "x"}]],
}


def hashes(values: list[Any], kind: pa.DataType) -> list[int]:
    made = RowHashes().of_columns(pa.table({"v": pa.array(values, kind)}))
    assert made.shape == (1, len(values))
    found: list[int] = made[0].tolist()
    return found


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_that_differ_have_other_hashes_wherever_they_stand(kind: pa.DataType) -> None:
    values = [*VALUES[kind], None]
    found = hashes(values, kind)
    assert len(set(found)) == len(values)
    assert hashes(values[::-1], kind) == found[::-1]
    # Of a slice, with rows before and behind it that have children.
    array = pa.array([*values[::-1], *values, *values[::-1]], kind).slice(len(values), len(values))
    assert RowHashes().of_columns(pa.table({"v": array}))[0].tolist() == found
    assert RowHashes().of_columns(pa.table({"v": array.slice(1, 0)}))[0].tolist() == []


@pytest.mark.parametrize(
    ("kind", "other", "values"),
    [
        (pa.string(), pa.large_string(), VALUES[pa.string()]),
        (pa.binary(), pa.large_binary(), VALUES[pa.binary()]),
        (pa.list_(pa.string()), pa.large_list(pa.large_string()), [[], ["a", None], None]),
        (pa.binary(2), pa.binary(), [b"ab", b"cd", None]),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "+00:00"), VALUES[pa.timestamp("us", "UTC")]),
        (pa.uuid(), pa.binary(16), [bytes(range(16)), None]),
    ],
    ids=str,
)
def test_how_arrow_keeps_a_value_makes_no_difference(kind: pa.DataType, other: pa.DataType, values: list[Any]) -> None:
    assert hashes(values, kind) == hashes(values, other)


def test_what_sql_calls_equal_is_equal() -> None:
    assert len(set(hashes([0.0, -0.0], pa.float64()))) == 1
    assert len(set(hashes([math.nan, -math.nan], pa.float64()))) == 1
    one, other = ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])
    assert len(set(hashes([one, other], pa.map_(pa.string(), pa.int64())))) == 1


ROW = st.fixed_dictionaries({str(kind): st.sampled_from([*values, None]) for kind, values in VALUES.items()})
SCHEMA = pa.schema([(str(kind), kind) for kind in VALUES])


@given(st.lists(ROW, min_size=2, max_size=6))
def test_rows_have_equal_hashes_exactly_if_they_are_equal(rows: list[dict[str, Any]]) -> None:
    made = RowHashes()
    found = made.of_rows(made.of_columns(pa.Table.from_pylist(rows, SCHEMA))).tolist()
    # By text: NaN is equal to itself there.
    assert [[a == b for a in found] for b in found] == [[repr(a) == repr(b) for a in rows] for b in rows]
