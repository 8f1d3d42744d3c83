"""Records with the strangest timestamps and NULL structs, from the real broker, by both engines, read by Spark, too."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.run.replay import RejectReplay
from airflow_lakestream.tables.rejects.settlement import rejects_of
from airflow_lakestream.tables.schema.value_ranges import MAX_MILLIS
from dev.services.kafka import Kafka
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import DELTA, DeltaLake
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

SCHEMA = "n int, st struct<a: bigint not null>, day date"
GOOD = ['{"n":0,"st":null}', '{"n":1,"st":{"a":1}}', '{"n":2,"day":"9999-12-31"}', '{"n":3,"day":"0001-01-01"}']
BAD = ['{"n":4,"st":{}}', '{"n":5,"day":"10000-01-01"}']
# By offset, the timestamps of the last records.
STAMPS = {6: MAX_MILLIS, 7: MAX_MILLIS + 1, 8: 2**62, 9: 2**63 - 1}
UTC = dt.UTC


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic with such records; those at 0 to 3 and 6 are rows."""
    name = topic(partitions=1, retention_ms=-1, message_timestamp_after_max_ms=2**63 - 1)
    values = [*GOOD, *BAD, *(f'{{"n":{n}}}' for n in STAMPS)]
    stamps = [1_700_000_000_000] * 6 + list(STAMPS.values())
    produce(name, 0, values, timestamps=stamps)
    return name


def test_both_engines_land_what_fits_and_keep_the_rest(
    lake: Lake, name: str, spark: SparkSession, tmp_path: Path, kafka: Kafka
) -> None:
    lake.land(name, schema=SCHEMA, max_rejected=1.0)
    by_spark = Lake(tmp_path / "spark", kafka.client_config())
    by_spark.folder.mkdir()
    SparkRun(by_spark, name).run(spark, mode="ranges", ranges=[[0, 0, 10]], schema=SCHEMA, max_rejected=1.0)

    for one in (lake, by_spark):
        rows = one.records()
        assert [(row["n"], row["st"], row["day"]) for row in rows] == [
            (0, None, None),
            (1, {"a": 1}, None),
            (2, None, dt.date.max),
            (3, None, dt.date.min),
            (6, None, None),
        ]
        assert rows[-1]["_kafka_timestamp"] == dt.datetime.max.replace(tzinfo=UTC, microsecond=999000)
        rejected = sorted(one.table(rejects_of(TABLE)).scan().to_arrow().to_pylist(), key=lambda r: r["_kafka_offset"])
        assert [row["_kafka_offset"] for row in rejected] == [4, 5, 7, 8, 9]
        assert [row["error"] for row in rejected[2:]] == [
            f"the record's timestamp {STAMPS[at]} ms is out of range" for at in (7, 8, 9)
        ]
        # Spark's own reader, of the table as Iceberg has it.
        read = spark.read.format("iceberg").load(one.table().metadata_location)
        assert [row["n"] for row in read.filter("st IS NULL").sort("n").collect()] == [0, 2, 3, 6]
        assert [row["st"]["a"] for row in read.filter("st IS NOT NULL").collect()] == [1]
        assert one.landed(name) == {0: [(0, 10)]}


@DELTA
def test_a_delta_table_takes_them_too_and_spark_reads_it(lake: DeltaLake, name: str, spark: SparkSession) -> None:
    lake.land(name, schema=SCHEMA, max_rejected=1.0)

    rows = lake.scan().sort_by("_kafka_offset").to_pylist()
    assert [(row["n"], row["st"]) for row in rows] == [(0, None), (1, {"a": 1}), (2, None), (3, None), (6, None)]
    read = spark.read.parquet(*(str(path) for path in Path(lake.place).glob("*.parquet")))
    assert [row["n"] for row in read.filter("st IS NULL").sort("n").collect()] == [0, 2, 3, 6]


def test_a_replay_has_the_timestamps_that_no_column_takes(lake: Lake, name: str) -> None:
    lake.land(name, schema=SCHEMA, max_rejected=1.0)

    replayed = RejectReplay(table=TABLE, consumer_group=GROUP, decoding={"schema": SCHEMA}).run(lake.catalog())

    assert (replayed.counts.read, replayed.counts.rejected) == (5, 5)
    again = lake.table(rejects_of(TABLE)).scan().to_arrow().to_pylist()
    assert sorted(row["error"] for row in again if row["_kafka_timestamp"] is None) == sorted(
        f"the record's timestamp {STAMPS[at]} ms is out of range" for at in (7, 8, 9)
    )


@pytest.mark.parametrize("mode", ["resume", "interval"])
def test_boundaries_and_the_look_beyond_now_stand_such_timestamps(lake: Lake, name: str, mode: str) -> None:
    bounds = {"interval_start": 1_699_999_999_000, "interval_end": 1_700_000_001_000} if mode == "interval" else {}

    report = lake.land(name, schema=SCHEMA, mode=mode, max_rejected=1.0, **bounds)

    # What is dated beyond now says nothing about where a time stands: the interval's end is still open.
    assert report.counts.read == 10
    assert lake.landed(name) == {0: [(0, 10)]}
