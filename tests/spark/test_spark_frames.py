"""A function of DataFrames between records and table, on a real Spark and a real broker: what lands, once, or not."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.driver.progress import read_progress
from airflow_lakestream.spark.frames.function import TransformFailed, TransformRefused
from tests.support import frames
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.flowing import IN_A_SOAK
from tests.support.lake import Lake, events
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

COUNTS = {0: 300, 1: 200}


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    name = topic(partitions=2)
    for partition, count in COUNTS.items():
        produce(name, partition, events(partition, 0, count))
    return name


def run_of(lake: Lake, name: str, function: str, **landing: Any) -> SparkRun:
    return SparkRun(lake, name, {"schema": frames.SCHEMA, "transform": f"tests.support.frames:{function}", **landing})


def positions(lake: Lake) -> Counter[tuple[int, int]]:
    return Counter((row["_kafka_partition"], row["_kafka_offset"]) for row in lake.scan().to_pylist())


@EACH_FORMAT
def test_a_function_that_is_row_by_row_lands_each_record_once(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    run = run_of(lake, name, "enriched")
    run.run(spark, max_offsets_per_trigger=200)
    produce(name, 0, [*events(0, 300, 20), "no JSON"])
    run.run(spark)
    rows = lake.scan().to_pylist()
    ids = {(p, n): n for p, count in {0: 320, 1: 200}.items() for n in range(count)}
    assert positions(lake) == Counter(key for key, n in ids.items() if n % 10)
    assert all(row["parity_name"] == ("odd" if row["id"] % 2 else "even") for row in rows)
    assert all(row["name"] == row["name"].upper() and "score" not in row for row in rows)
    assert lake.landed(name) == {0: [(0, 321)], 1: [(0, 200)]}
    counts = lake.entry(name).counts
    assert (counts.read, counts.written, counts.filtered, counts.rejected) == (521, 468, 52, 1)
    assert lake.audit().verdict is AuditVerdict.CLEAN
    lake.assert_whole()
    progress = read_progress(str(run.checkpoint))
    assert (progress.rows_out, progress.filtered) == (468, 52)


@EACH_FORMAT
def test_what_a_function_makes_of_a_batch_as_a_whole_lands_and_is_marked(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    run = run_of(lake, name, "totals")
    run.run(spark)
    produce(name, 0, events(0, 300, 10))
    run.run(spark)
    rows = sorted((row["parity"], row["count"]) for row in lake.scan().to_pylist())
    assert rows == [(0, 5), (0, 250), (1, 5), (1, 250)]
    assert lake.landed(name) == {0: [(0, 310)], 1: [(0, 200)]}
    counts = lake.entry(name).counts
    assert (counts.read, counts.written, counts.filtered) == (510, 0, 510)
    progress = read_progress(str(run.checkpoint))
    assert (progress.rows_in, progress.rows_out, progress.tables) == (510, 4, {lake.name: 4})
    for full in (False, True):
        result = lake.audit(full=full)
        assert result.verdict is AuditVerdict.CLEAN
        assert f"not verifiable: rows that {run.landing['transform']} made" in result.render()
    with pytest.raises(CannotReplace, match="without topic, partition and offset"):
        run_of(lake, name, "totals").run(spark, mode="ranges", ranges=[[0, 0, 10]], replace=True)
    assert len(lake.scan()) == 4
    lake.assert_whole()


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        ("raising", TransformRefused, "KeyError: 'no such category'"),
        ("leaving", TransformRefused, "SystemExit: that is enough"),
        ("misspelt", TransformRefused, "nmae"),
        ("failing_on_a_row", TransformFailed, "ZeroDivisionError"),
        ("nothing", TransformRefused, "it returned a NoneType instead of a DataFrame"),
        ("with_an_interval", TransformRefused, "column 'a_day'"),
        ("doubled", TransformRefused, "it returned several rows for the record"),
        ("misplaced", TransformRefused, "that are not the batch's"),
        ("placeless", TransformRefused, "it returned rows with NULL in _kafka_topic"),
    ],
)
def test_a_function_that_fails_is_named_and_nothing_lands(
    lake: Lake, name: str, spark: SparkSession, function: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        run_of(lake, name, function).run(spark, mode="ranges", ranges=[[0, 0, 20]])
    assert words in str(caught.value)
    assert f"tests.support.frames:{function}" in str(caught.value)
    assert f"{name}[0] [0,20)" in str(caught.value)
    assert lake.has_nothing()
    assert not list(lake.folder.rglob("*.parquet"))


def test_a_function_that_ends_the_process_ends_the_query(lake: Lake, name: str, spark: SparkSession) -> None:
    with pytest.raises(TransformRefused, match="SystemExit"):
        run_of(lake, name, "leaving").run(spark)
    assert lake.has_nothing()


@EACH_FORMAT
def test_the_table_decides_which_columns_a_result_may_have(lake: Lake, name: str, spark: SparkSession) -> None:
    run_of(lake, name, "unchanged").run(spark, mode="ranges", ranges=[[0, 0, 20]])
    before = lake.snapshots()
    with pytest.raises(TransformRefused, match=r"transform: .*'id' is given as string"):
        run_of(lake, name, "with_texts_for_ids").run(spark, mode="ranges", ranges=[[0, 20, 40]])
    with pytest.raises(TransformRefused, match=r"transform: .*'grade'"):
        run_of(lake, name, "with_a_rank").run(spark, mode="ranges", ranges=[[0, 20, 40]])
    assert lake.snapshots() == before
    more = run_of(lake, name, "with_a_rank", schema_evolution="add")
    more.run(spark, mode="ranges", ranges=[[0, 20, 40]])
    assert Counter(row["grade"] for row in lake.scan().to_pylist()) == Counter([*[None] * 20, *range(20, 40)])
    assert positions(lake) == Counter((0, n) for n in range(40))
    lake.assert_whole()


@EACH_FORMAT
def test_ranges_are_replaced_by_what_the_function_makes_of_them_now(lake: Lake, name: str, spark: SparkSession) -> None:
    run_of(lake, name, "unchanged").run(spark, mode="ranges", ranges=[[0, 0, 40]])
    again = run_of(lake, name, "enriched", schema_evolution="add")
    again.run(spark, mode="ranges", ranges=[[0, 5, 25]], replace=True)
    rows = {row["_kafka_offset"]: row for row in lake.scan().to_pylist()}
    assert sorted(rows) == [n for n in range(40) if n not in (10, 20)]
    assert {n for n, row in rows.items() if row["parity_name"] is not None} == set(range(5, 25)) - {10, 20}
    assert lake.audit().verdict is AuditVerdict.CLEAN
    lake.assert_whole()


def test_a_table_that_is_rolled_back_gets_its_rows_again(lake: Lake, name: str, spark: SparkSession) -> None:
    run = run_of(lake, name, "enriched")
    run.run(spark, max_offsets_per_trigger=250)
    rows = positions(lake)
    lake.roll_back(lake.snapshots()[0])
    run.run(spark)
    assert positions(lake) == rows
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_a_topic_without_records_makes_the_table_with_the_columns_of_the_result(
    lake: Lake, topic: Topics, spark: SparkSession
) -> None:
    run_of(lake, topic(partitions=1), "totals").run(spark)
    assert lake.table().schema().column_names == ["parity", "count"]
    assert len(lake.scan()) == 0


@pytest.mark.parametrize(
    "function",
    [
        pytest.param("killed_while_called", marks=IN_A_SOAK),
        pytest.param("killed_while_its_result_is_written", marks=IN_A_SOAK),
        "killed_before_the_commit",
        pytest.param("killed_after_the_commit", marks=IN_A_SOAK),
    ],
)
def test_a_driver_that_is_killed_leaves_no_row_and_no_file_behind(
    lake: Lake, name: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, killed = run_of(lake, name, function), lake.folder / "killed"
    monkeypatch.setenv(frames.KILLED, str(killed))
    log = lake.folder / "driver.log"
    assert run.start().wait(400) == -signal.SIGKILL, log.read_text()[-3000:]
    assert run.start().wait(400) == 0, log.read_text()[-3000:]
    assert positions(lake) == Counter((p, n) for p, count in COUNTS.items() for n in range(count))
    assert lake.audit().verdict is AuditVerdict.CLEAN
    lake.assert_whole()
