from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from airflow_lakestream.core.names import METADATA_NAMES
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.metadata import bad_timestamps, metadata_columns, metadata_schema
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue

ALL = [*METADATA_NAMES]
RECORDS = RawBatch(
    "orders", 7, [5, 6, 9], [0, -1, 1_700_000_000_123], pa.array([b"{}", None, b"x"]),
    keys=pa.array([b"\xff", None, b""]),
    headers=pa.array([[("h", b"1"), ("h", None)], None, []], metadata_schema(["headers"]).field(0).type),
    timestamp_types=pa.array(["create_time", None, "log_append_time"]),
)  # fmt: skip


def test_types_and_values() -> None:
    schema = metadata_schema(ALL)
    assert [f"{field.name} {field.type}" for field in schema] == [
        "_kafka_topic string",
        "_kafka_partition int32",
        "_kafka_offset int64",
        "_kafka_timestamp timestamp[us, tz=UTC]",
        "_kafka_key binary",
        "_kafka_headers list<element: struct<key: string, value: binary>>",
        "_kafka_timestamp_type string",
    ]
    table = pa.Table.from_arrays(metadata_columns(RECORDS, ALL), schema=schema)
    table.validate(full=True)
    headers = [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert [list(row.values()) for row in table.to_pylist()] == [
        ["orders", 7, 5, datetime(1970, 1, 1, tzinfo=UTC), b"\xff", headers, "create_time"],
        ["orders", 7, 6, None, None, None, None],
        ["orders", 7, 9, datetime(2023, 11, 14, 22, 13, 20, 123000, UTC), b"", [], "log_append_time"],
    ]  # fmt: skip


@pytest.mark.parametrize("offsets", [range(0), range(1), range(2**40, 2**40 + 1000)])
def test_a_range_of_offsets(offsets: range) -> None:
    n = len(offsets)
    (column,) = metadata_columns(RawBatch("t", 0, offsets, [-1] * n, [None] * n), ["offset"])
    assert column.type == pa.int64()
    assert column.to_pylist() == list(offsets)


def test_a_timestamp_that_no_column_holds() -> None:
    (bad,) = bad_timestamps(RawBatch("t", 0, [8, 9], [1, 2**62], [None, None]))
    assert (bad.index, bad.reason) == (1, "the record's timestamp 4611686018427387904 ms is out of range")
    assert not bad_timestamps(RawBatch("t", 0, [8, 9], [-1, 253_402_300_799_999], [None, None]))


def test_wrong_names() -> None:
    with pytest.raises(UnknownValue, match="'offsets' is not one of 'topic', "):
        metadata_schema(["topic", "offsets"])
    with pytest.raises(InvalidArgument, match="twice"):
        metadata_schema(["topic", "topic"])
    with pytest.raises(InvalidArgument, match="the payload has a column _kafka_key"):
        metadata_schema(ALL, pa.schema([("_kafka_key", pa.string())]))
    with pytest.raises(InvalidArgument, match="without their keys"):
        metadata_columns(RawBatch("t", 0, [1], [1], [None]), ["key"])
