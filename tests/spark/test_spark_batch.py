"""kafka_to_iceberg as a batch: an interval or ranges at once, landed or replaced by the executors."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import Lake, assert_landed_once, events
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

START = 1_700_000_000_000


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic with a record for each second of 200, in two partitions."""
    name = topic(partitions=2, retention_ms=-1)
    for partition in (0, 1):
        times = [START + 1000 * n for n in range(200)]
        produce(name, partition, events(partition, 0, 200), timestamps=times)
    return name


def interval(start: int, end: int) -> dict[str, object]:
    return {"mode": "interval", "interval_start": START + 1000 * start, "interval_end": START + 1000 * end}


def test_intervals_in_any_order_land_each_record_once(lake: Lake, name: str, spark: SparkSession) -> None:
    run = SparkRun(lake, name)
    for start, end in ((100, 200), (0, 50), (50, 100)):
        run.run(spark, **interval(start, end))
    assert_landed_once(lake, name, {0: 200, 1: 200})
    run.run(spark, **interval(0, 100))
    assert len(lake.snapshots()) == 3
    assert not (lake.folder / "checkpoint").exists()


def test_a_retry_of_a_run_lands_nothing_again(lake: Lake, name: str, spark: SparkSession) -> None:
    run = SparkRun(lake, name)
    for _ in range(2):
        run.run(spark, mode="ranges", ranges=[[0, 0, 200], [1, 20, 40], [1, 60, 80]], run_id="this run")
    assert lake.landed(name) == {0: [(0, 200)], 1: [(20, 40), (60, 80)]}
    assert lake.table().scan().to_arrow().num_rows == 240


@EACH_FORMAT
def test_ranges_are_replaced_with_all_that_became_of_their_records(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    SparkRun(lake, name).run(spark, schema="id bigint, name string, score double")
    sql = """SELECT json_value(value, '$.id')::BIGINT AS id, 'again' AS name,
        json_value(value, '$.score')::DOUBLE AS score FROM {{ input }}
        WHERE json_value(value, '$.id')::BIGINT % 2 = 0"""
    ranges = {"mode": "ranges", "ranges": [[0, 10, 50], [1, 0, 20], [1, 190, 200]], "replace": True}
    SparkRun(lake, name).run(spark, sql=sql, **ranges)
    rows = lake.rows(name).to_pylist()
    again = {(row["_kafka_partition"], row["_kafka_offset"]) for row in rows if row["name"] == "again"}
    assert again == {(p, n) for p, start, end in ranges["ranges"] for n in range(start, end, 2)}  # type: ignore[attr-defined]  # a report is a plain mapping
    assert len(rows) == 400 - 35
    assert lake.landed(name) == {0: [(0, 200)], 1: [(0, 200)]}
    # Replaced by the whole again, the table is what it was.
    SparkRun(lake, name).run(spark, mode="ranges", ranges=[[0, 0, 200], [1, 0, 200]], replace=True)
    assert_landed_once(lake, name, {0: 200, 1: 200})
    lake.assert_whole()


def test_what_makes_no_sense_is_refused_before_anything_is_touched(lake: Lake, spark: SparkSession) -> None:
    run = SparkRun(lake, "t")
    for settings, key in (
        ({**interval(0, 1), "checkpoint_location": "/c"}, "checkpoint_location"),
        ({**interval(0, 1), "trigger": "1 second"}, "trigger"),
        ({"replace": True}, "replace"),
        ({"parallelism": 2}, "parallelism"),
        ({"max_record": 2}, "landing.max_record"),
    ):
        with pytest.raises(InvalidArgument, match=key):
            run.run(spark, **settings)


def test_a_table_without_positions_can_not_be_replaced(lake: Lake, name: str, spark: SparkSession) -> None:
    run = SparkRun(lake, name, {"metadata_columns": ["offset"]})
    run.run(spark, mode="ranges", ranges=[[0, 0, 10]])
    with pytest.raises(CannotReplace):
        run.run(spark, mode="ranges", ranges=[[0, 0, 10]], replace=True)
