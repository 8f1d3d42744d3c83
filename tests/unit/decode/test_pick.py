from __future__ import annotations

import json
from array import array
from collections.abc import Sequence

import pyarrow as pa
import pytest

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.decode.values.outcome import pick

HEADERS = metadata_schema(["headers"]).field(0).type


@pytest.mark.parametrize("offsets", [range(10, 14), [10, 11, 15, 19], array("q", [10, 11, 15, 2**62])])
def test_all_columns_of_a_record_stay_together(offsets: Sequence[int]) -> None:
    headers = pa.array([[("a", b"0")], None, [], [("b", None)]], HEADERS)
    values, keys = pa.array([b"0", None, b"2", b"3"]), pa.array([None, b"1", b"", b"k"])
    picked = pick(RawBatch("orders", 7, offsets, array("q", [0, 1, 2, -1]), values, keys, headers), [1, 3])
    assert list(picked.offsets) == [offsets[1], offsets[3]]
    assert list(picked.timestamps) == [1, -1]
    assert picked.values.to_pylist() == [None, b"3"]
    assert picked.keys is not None
    assert picked.keys.to_pylist() == [b"1", b"k"]
    assert picked.headers is not None
    assert picked.headers.to_pylist() == [None, [{"key": "b", "value": None}]]
    # They go into ledgers and reports, as JSON.
    assert json.loads(json.dumps(picked.offsets[0])) == offsets[1]


def test_what_was_not_read_is_not_there() -> None:
    picked = pick(RawBatch("orders", 7, range(2), [0, 0], pa.array([b"a", b"b"])), [1])
    assert picked.keys is None
    assert picked.headers is None
