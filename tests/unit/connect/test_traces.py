"""What traces say of the record that a task failed at."""

from __future__ import annotations

import pytest

from airflow_lakestream.connect.judging import TraceRecord, cause_of, culprit_of


@pytest.mark.parametrize(
    "trace",
    [
        "DataException: An error occurred converting record, topic: orders.v1, partition, 3, offset: 55\n\tat x",
        "ConnectException: topic 'orders.v1', partition 3 and offset 55 is bad",
        "Error in topic 'orders.v1' partition 3 at offset 55 and timestamp 9",
        "record orders.v1-3@55 can't be written",
        "Error deserializing key/value for partition orders.v1-3 at offset 55. If needed, please seek past the record",
    ],
)
def test_places_as_connect_and_sinks_write_them(trace: str) -> None:
    assert culprit_of(trace) == TraceRecord("orders.v1", 3, 55)


def test_a_trace_without_a_place_blames_a_record_only_where_a_record_is_at_fault() -> None:
    assert culprit_of("ConnectException: the table is away") is None
    trace = "ConnectException: Tolerance exceeded in error handler\n\tat x\nCaused by: DataException: bad\n\tat y"
    assert culprit_of(trace) == TraceRecord(error="DataException: bad")
    assert cause_of("") == ""
