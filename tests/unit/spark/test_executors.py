"""Records as Spark hands them over, told apart by partition without looking at each."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_lakestream.spark.executors import raw_batches


def batch(*places: tuple[int, int], **more: Any) -> pa.RecordBatch:
    columns = {
        "partition": pa.array([p for p, _ in places], pa.int32()),
        "offset": pa.array([offset for _, offset in places], pa.int64()),
        "millis": pa.array([1000 + offset for _, offset in places], pa.int64()),
        "value": pa.array([b"%d-%d" % place for place in places], pa.binary()),
        **more,
    }
    return pa.RecordBatch.from_pydict(columns)


def test_partitions_and_ranges_of_one_batch_are_told_apart() -> None:
    places = [(0, 7), (0, 8), (0, 9), (2, 1), (2, 5), (0, 3), (0, 4), (0, 100), (0, 20)]
    found = list(raw_batches("t", batch(*places)))
    assert [(one.partition, list(one.offsets)) for one in found] == [
        (0, [7, 8, 9]),
        (2, [1, 5]),
        (0, [3, 4, 100]),
        (0, [20]),
    ]
    assert found[0].offsets == range(7, 10)
    assert [value.as_py() for one in found for value in one.values] == [b"%d-%d" % place for place in places]
    assert list(found[1].timestamps) == [1001, 1005]
    assert found[0].keys is None
    assert found[0].headers is None


def test_a_batch_without_records_is_none() -> None:
    assert not list(raw_batches("t", batch()))


def test_keys_and_headers_come_as_the_decoders_have_them() -> None:
    kind = pa.list_(
        pa.field(
            "element",
            pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())]),
            nullable=False,
        )
    )
    headers = pa.array([[{"key": "h", "value": b"1"}], None], kind)
    (one,) = raw_batches("t", batch((0, 1), (0, 2), key=pa.array([b"k", None]), headers=headers))
    assert one.keys is not None
    assert one.keys.to_pylist() == [b"k", None]
    assert one.headers is not None
    assert one.headers.to_pylist() == [[{"key": "h", "value": b"1"}], None]
    assert one.headers.type.value_type.field("key").nullable
