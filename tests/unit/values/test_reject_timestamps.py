"""The timestamps of rejected records, in reject tables of this version and of earlier ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_lakestream.decode import rejected, rows
from airflow_lakestream.run import job
from airflow_lakestream.run.replay import RejectReplay
from tests.support.given_records import GROUP, GivenLake, Record

LAKES = pytest.mark.parametrize("table_format", ["iceberg", "delta"])
METADATA = ["topic", "partition", "offset", "timestamp"]
RECORDS = [
    Record(b'{"v":1}', at_ms=2**62),
    Record(b'{"v":"x"}', at_ms=5),
    Record(b'{"v":2}', at_ms=6),
    Record(b'{"v":"y"}'),
    Record(b'{"v":"z"}', at_ms=-(2**63)),
]


def land_as_before(lake: GivenLake, records: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """Land with a reject table without a column for the milliseconds and with other words, as by an earlier version."""
    before = rejected.RECORD_SCHEMA.remove(rejected.RECORD_SCHEMA.get_field_index("timestamp_ms"))

    def without(*given: Any) -> Any:
        made = rejected.rejected_rows(*given).select(before.names)
        place = before.get_field_index("error")
        # A replay commits only if a reason is another one now.
        words = pc.replace_substring(made["error"], "is the string", "is a string")
        return made.set_column(place, before.field(place), words)

    with monkeypatch.context() as earlier:
        earlier.setattr(job, "RECORD_SCHEMA", before)
        earlier.setattr(rows, "rejected_rows", without)
        lake.land(records, schema="v int", metadata_columns=METADATA, max_rejected=1.0)
    assert lake.rejected().keys() == {0, 1}
    assert all("timestamp_ms" not in row for row in lake.rejected().values())


@LAKES
def test_a_rejected_record_keeps_its_timestamp_whatever_it_is(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    lake.land(RECORDS, schema="v int", metadata_columns=METADATA, max_rejected=1.0)
    found = {at: row["timestamp_ms"] for at, row in lake.rejected().items()}
    assert found == {0: 2**62, 1: 5, 3: -1, 4: -(2**63)}


@LAKES
def test_a_reject_table_of_an_earlier_version_gains_the_column_and_keeps_its_rows(
    tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = GivenLake(tmp_path, table_format)
    land_as_before(lake, RECORDS[:3], monkeypatch)
    before = lake.rejected()

    for count in (4, 5):
        report = lake.land(RECORDS[:count], schema="v int", metadata_columns=METADATA, max_rejected=1.0)
        assert report.counts.rejected == 1

    after = lake.rejected()
    assert {at: row["timestamp_ms"] for at, row in after.items()} == {0: None, 1: None, 3: -1, 4: -(2**63)}
    assert {at: {**row, "timestamp_ms": None} for at, row in before.items()} == {at: after[at] for at in (0, 1)}
    assert [row["_kafka_offset"] for row in lake.rows()] == [2]


def test_a_replay_of_such_a_table_has_the_timestamps_and_gives_it_the_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = GivenLake(tmp_path)
    land_as_before(lake, RECORDS[:3], monkeypatch)

    replayed = RejectReplay(table=lake.name, consumer_group=GROUP, decoding={"schema": "v int"}).run(lake.catalog())

    assert (replayed.counts.read, replayed.counts.rejected) == (2, 2)
    found = lake.rejected()
    assert {at: row["timestamp_ms"] for at, row in found.items()} == {0: 2**62, 1: 5}
    assert found[0]["error"] == f"the record's timestamp {2**62} ms is out of range"


def test_a_timestamp_comes_from_its_column_and_from_a_reason_only_where_that_is_null() -> None:
    told = "what ends with the record's timestamp 253402300800000 ms is out of range"
    stamps = pa.array([None, None, 5_000, 5_000, None], pa.timestamp("us", "UTC"))
    found = pa.table({"_kafka_timestamp": stamps, "error": [told, told, told, "", ""]})
    assert rejected.timestamps_of(found) == [253402300800000, 253402300800000, 5, 5, -1]
    found = found.append_column("timestamp_ms", pa.array([-1, None, None, 7, 2**62], pa.int64()))
    assert rejected.timestamps_of(found) == [-1, 253402300800000, 5, 7, 2**62]
