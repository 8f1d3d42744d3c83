"""A function of the stream, on a real Spark and a real broker: windows land once, or the run says why they can't."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.core.landing.modes import LandedBesideStream, StreamReplaced
from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.spark.frames.function import TransformRefused
from airflow_lakestream.spark.frames.stateful import CheckpointLost, RolledBackTooFar
from tests.support import frames, streams
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.flowing import IN_A_SOAK
from tests.support.lake import GROUP, Lake
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

COUNT = 600


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    name = topic(partitions=2)
    add(produce, name, 0, COUNT)
    return name


def add(produce: Producing, name: str, first: int, until: int) -> None:
    for partition in (0, 1):
        produce(name, partition, streams.clicks(partition, range(first, until)))


def run_of(lake: Lake, name: str, function: str = "windows", **landing: Any) -> SparkRun:
    given = {"schema": streams.SCHEMA, "stream_transform": f"tests.support.streams:{function}", **landing}
    return SparkRun(lake, name, given)


def windows(lake: Lake) -> Counter[tuple[Any, ...]]:
    return Counter((row["start"], row["k"], row["n"], row["total"]) for row in lake.scan().to_pylist())


@EACH_FORMAT
def test_windows_land_once_with_what_was_read_for_them(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    run = run_of(lake, name)
    produce(name, 1, ["no JSON"])
    run.run(spark, max_offsets_per_trigger=250)
    assert windows(lake) == streams.windows_of(COUNT)
    add(produce, name, COUNT, COUNT + 200)
    run.run(spark)
    assert windows(lake) == streams.windows_of(COUNT + 200)
    assert lake.landed(name) == {0: [(0, 400)], 1: [(0, 401)]}
    counts = lake.entry(name).counts
    assert (counts.read, counts.written, counts.filtered, counts.rejected) == (801, 0, 800, 1)
    assert [row["_kafka_offset"] for row in lake.counting()] == [300]
    before = lake.snapshots()
    run.run(spark)
    assert lake.snapshots() == before
    assert lake.audit().verdict is AuditVerdict.CLEAN
    lake.assert_whole()


@EACH_FORMAT
def test_a_table_that_is_rolled_back_takes_the_checkpoint_back_with_it(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    run = run_of(lake, name)
    run.run(spark, max_offsets_per_trigger=200)
    lake.roll_back(lake.snapshots()[1])
    assert windows(lake) != streams.windows_of(COUNT)
    add(produce, name, COUNT, COUNT + 100)
    run.run(spark, max_offsets_per_trigger=150)
    assert windows(lake) == streams.windows_of(COUNT + 100)
    assert lake.landed(name) == {0: [(0, 350)], 1: [(0, 350)]}
    assert lake.audit().verdict is AuditVerdict.CLEAN
    lake.assert_whole()


def test_a_table_that_is_dropped_is_made_again_by_the_same_checkpoint(
    lake: Lake, name: str, spark: SparkSession
) -> None:
    run = run_of(lake, name)
    run.run(spark, max_offsets_per_trigger=400)
    lake.catalog().drop_table(lake.name)
    run.run(spark)
    assert windows(lake) == streams.windows_of(COUNT)
    assert lake.landed(name) == {0: [(0, 300)], 1: [(0, 300)]}


def test_a_checkpoint_that_is_not_the_tables_is_refused_by_name(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    run, kept = run_of(lake, name), lake.folder / "kept"
    run.run(spark, max_offsets_per_trigger=300)
    shutil.copytree(run.checkpoint, kept)
    add(produce, name, COUNT, COUNT + 100)
    run.run(spark)
    snapshots, last = lake.snapshots(), lake.ledger().topics
    [entry] = last.values()
    assert entry.streamed is not None

    def refused(error: type[Exception], words: str, **settings: Any) -> None:
        with pytest.raises(error, match=words):
            run.run(spark, **settings)
        assert lake.snapshots() == snapshots

    shutil.move(run.checkpoint, lake.folder / "right")
    refused(CheckpointLost, f"holds {entry.streamed}, and there is no checkpoint at {run.checkpoint}")
    shutil.copytree(kept, run.checkpoint)
    refused(StreamReplaced, "it is an old copy")
    (run.checkpoint / "metadata").write_text(json.dumps({"id": "another"}))
    refused(StreamReplaced, "is of query another")
    # The right one, but for what Spark deletes after a hundred batches.
    shutil.rmtree(run.checkpoint)
    shutil.copytree(lake.folder / "right", run.checkpoint)
    (run.checkpoint / "commits" / "0").unlink()
    lake.roll_back(snapshots[0])
    refused(RolledBackTooFar, "it holds batch 0 .* batch 0 is not there any more")
    plainly = {
        "stream_transform": None,
        "schema": "start timestamp, k int, n bigint, total bigint",
        "metadata_columns": [],
    }
    refused(LandedBesideStream, "made by a streaming query", **plainly)
    with pytest.raises(CannotReplace, match="without topic, partition and offset"):
        run.run(spark, **plainly, mode="ranges", ranges=[[0, 0, 10]], replace=True)
    assert lake.snapshots() == snapshots


def test_a_group_that_landed_records_otherwise_has_no_stream(lake: Lake, name: str, spark: SparkSession) -> None:
    lake.land(name, schema=streams.SCHEMA)
    snapshots = lake.snapshots()
    with pytest.raises(LandedBesideStream, match=f"another consumer_group than '{GROUP}'"):
        run_of(lake, name).run(spark)
    assert lake.snapshots() == snapshots


def test_a_bad_record_fails_the_batch_or_is_counted(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    produce(name, 0, ["no JSON"])
    with pytest.raises(BadRecord, match=rf"{name}\[0\] offset 300"):
        run_of(lake, name, on_error="fail").run(spark)
    assert lake.has_nothing()
    run_of(lake, name, on_error="skip").run(spark)
    assert windows(lake) == streams.windows_of(COUNT)
    counts = lake.entry(name).counts
    assert (counts.read, counts.filtered, counts.skipped) == (601, 600, 1)


@pytest.mark.parametrize(
    ("function", "words"),
    [("unbounded", "watermark"), ("no_stream", "it returned a DataFrame that is not a stream")],
)
def test_what_can_not_be_landed_by_appending_is_refused_before_it_begins(
    lake: Lake, name: str, spark: SparkSession, function: str, words: str
) -> None:
    with pytest.raises(TransformRefused, match=words):
        run_of(lake, name, function).run(spark)
    assert lake.has_nothing()


def test_a_stream_is_joined_with_itself_and_its_state_kept_in_rocksdb(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    run = run_of(lake, name, "pairs", state_store="rocksdb")
    run.run(spark, max_offsets_per_trigger=200)
    lake.roll_back(lake.snapshots()[1])
    add(produce, name, COUNT, COUNT + 50)
    run.run(spark)
    found = sorted((row["first"], row["second"]) for row in lake.scan().to_pylist())
    assert found == [(n, n + 10) for n in range(0, COUNT + 40, 10)]
    assert lake.landed(name) == {0: [(0, 325)], 1: [(0, 325)]}
    assert lake.entry(name).counts.read == COUNT + 50
    with pytest.raises(InvalidArgument, match=r"state_store: is 'memory', and .* is kept by .*Rocks"):
        run_of(lake, name, "pairs", state_store="memory").run(spark)


@IN_A_SOAK
def test_a_state_of_the_users_own_goes_on_over_batches_and_rollbacks(
    lake: Lake, name: str, spark: SparkSession
) -> None:
    run = run_of(lake, name, "processed", state_store="rocksdb")
    run.run(spark, max_offsets_per_trigger=200)
    lake.roll_back(lake.snapshots()[1])
    run.run(spark)
    rows = lake.scan().to_pylist()
    for key in range(3):
        counts = sorted((row["total"], row["n"]) for row in rows if row["k"] == key)
        assert [total for total, _ in counts] == list(itertools.accumulate(n for _, n in counts))
        assert counts[-1][0] == COUNT // 3


@pytest.mark.parametrize(
    "function",
    [
        pytest.param("killed_as_it_begins", marks=IN_A_SOAK),
        pytest.param("killed_while_it_runs", marks=IN_A_SOAK),
        pytest.param("killed_before_the_commit", marks=IN_A_SOAK),
        "killed_after_the_commit",
    ],
)
def test_a_driver_that_is_killed_lands_each_window_once(
    lake: Lake, name: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, killed = run_of(lake, name, function), lake.folder / "killed"
    monkeypatch.setenv(frames.KILLED, str(killed))
    log = lake.folder / "driver.log"
    assert run.start(max_offsets_per_trigger=150).wait(400) == -signal.SIGKILL, log.read_text()[-3000:]
    assert windows(lake) != streams.windows_of(COUNT)
    assert run.start(max_offsets_per_trigger=150).wait(400) == 0, log.read_text()[-3000:]
    assert windows(lake) == streams.windows_of(COUNT)
    assert lake.audit().verdict is AuditVerdict.CLEAN
    lake.assert_whole()
