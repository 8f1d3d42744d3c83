"""What tasks tell of the records that they decode: counted once, however often, and in what order, it is told."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.config.frames import FrameConfig
from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.metadata import HEADERS, metadata_schema
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.run.job import build_job
from airflow_lakestream.spark.frames.tasks import DecodeTask, ReportParam, TaskReports, reports_after, sums_of

GOOD, BAD = b'{"id": 7}', b"no JSON"


class Telling:
    """An accumulator of a task, without Spark."""

    def __init__(self) -> None:
        self.value: TaskReports = {}

    def add(self, told: TaskReports) -> None:
        self.value = ReportParam().addInPlace(self.value, pickle.loads(pickle.dumps(told)))


def decoding(telling: Telling, **more: Any) -> DecodeTask:
    given = {"topic": "t", "table": "lake.t", "consumer_group": "g", "schema": "id bigint"}
    config = FrameConfig(**given, stream_transform="m:f", **more)
    job = build_job(config, {"bootstrap.servers": "b"}, None, run_id="r")  # type: ignore[arg-type]  # nothing is opened
    assert isinstance(job.decoders, RowDecoderFactory)
    assert config.decoded is not None
    columns = pa.schema([*config.decoded, *metadata_schema(config.metadata_columns)])
    return DecodeTask(job.decoders, "t", columns, telling)  # type: ignore[arg-type]


def records(partition: int, first: int, values: Sequence[bytes], *, step: int = 1) -> pa.RecordBatch:
    offsets = range(first, first + step * len(values), step)
    columns = {
        "partition": pa.array([partition] * len(values), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array([offset * 1000 for offset in offsets], pa.timestamp("us", "UTC")),
        "value": pa.array(values),
        "key": pa.array([b"k"] * len(values)),
        "headers": pa.array([[{"key": "h", "value": b"1"}]] * len(values), HEADERS),
        "timestampType": pa.array([index % 3 - 1 for index in range(len(values))], pa.int32()),
    }
    return pa.record_batch(columns)


@pytest.mark.parametrize(
    ("on_error", "counts"),
    [("skip", Counts(read=3, skipped=1, filtered=2)), ("reject", Counts(read=3, rejected=1, filtered=2))],
)
def test_rows_keep_their_positions_and_what_became_of_records_is_told(on_error: str, counts: Counts) -> None:
    telling = Telling()
    task = decoding(telling, on_error=on_error)
    # Spark gave the task two partitions; the second one has a hole.
    both = pa.Table.from_batches([records(0, 5, [GOOD]), records(1, 4, [GOOD, BAD, GOOD], step=2)])
    [whole] = both.combine_chunks().to_batches()
    rows = pa.Table.from_batches(list(task([whole]))).to_pylist()
    assert [(row["_kafka_partition"], row["_kafka_offset"]) for row in rows] == [(0, 5), (1, 4), (1, 8)]
    assert {row["id"] for row in rows} == {7}
    assert [row["_kafka_timestamp"].microsecond for row in rows] == [5000, 4000, 8000]
    ranges = RangeSet.of("t", 0, 5, 6) | RangeSet.of("t", 1, 4, 9)
    sums = sums_of(telling.value, ranges)
    assert (sums.counts, sums.bad.count) == ({0: Counts(read=1, filtered=1), 1: counts}, 1)
    assert [rows["_kafka_offset"].to_pylist() for rows in sums.rejected] == ([[6]] if on_error == "reject" else [])
    assert reports_after(telling.value, ranges) == {}


def test_each_part_of_a_record_has_a_column_of_sparks_source() -> None:
    parts = [part.name.lower() for part in RecordPart]
    task = decoding(Telling(), metadata_columns=["partition", "offset", *parts])
    [rows] = task([records(0, 0, [GOOD] * 3)])
    assert rows["_kafka_key"].to_pylist() == [b"k"] * 3
    assert rows["_kafka_headers"].to_pylist() == [[{"key": "h", "value": b"1"}]] * 3
    assert rows["_kafka_timestamp_type"].to_pylist() == [None, "create_time", "log_append_time"]


def test_records_that_are_told_of_twice_and_by_other_chunks_count_once() -> None:
    telling = Telling()
    values = [BAD if n == 3 else GOOD for n in range(10)]
    cut = [records(0, 0, values[:4]), records(0, 4, values[4:])]
    for batches in ([records(0, 0, values)], [records(0, 0, values)], cut):
        list(decoding(telling)(batches))
    ranges = RangeSet.of("t", 0, 0, 6)
    sums = sums_of(telling.value, ranges)
    assert (sums.counts, sums.bad.count) == ({0: Counts(read=6, rejected=1, filtered=5)}, 1)
    assert Counter(at for rows in sums.rejected for at in rows["_kafka_offset"].to_pylist()) == {3: 1}
    # One of two sources was ahead of the other: the next batch has the rest.
    rest = reports_after(telling.value, ranges)
    assert sums_of(rest, RangeSet.of("t", 0, 6, 10)).counts == {0: Counts(read=4, filtered=4)}


def test_an_error_of_a_decoder_comes_as_it_is_and_no_row_comes_behind_it() -> None:
    telling = Telling()
    given = [records(0, offset, [value]) for offset, value in enumerate([GOOD, BAD, GOOD])]
    rows = list(decoding(telling, on_error="fail")(given))
    assert sum(len(batch) for batch in rows) == 1
    with pytest.raises(BadRecord, match=r"t\[0\] offset 1"):
        sums_of(telling.value, RangeSet.of("t", 0, 0, 3))


def test_keys_and_headers_are_decoded_where_they_are_asked_for() -> None:
    task = decoding(Telling(), metadata_columns=["key", "headers"])
    [row] = pa.Table.from_batches(list(task([records(0, 0, [GOOD])]))).to_pylist()
    assert (row["_kafka_key"], row["_kafka_headers"]) == (b"k", [{"key": "h", "value": b"1"}])


def test_nothing_told_is_nothing_read() -> None:
    assert sums_of({}, RangeSet.of("t", 0, 0, 3)).counts == {}
    assert sums_of({}, RangeSet()).bad == BadRecords()
