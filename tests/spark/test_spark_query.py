"""kafka_to_iceberg as a query, on a real Spark and a real broker: what lands, and that it lands once."""

from __future__ import annotations

import os
import shutil
import threading
import uuid
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.core.landing.plan import DataLoss
from airflow_lakestream.driver.lease import HeldLease, LeaseHeld, request_stop
from airflow_lakestream.driver.progress import read_progress
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.spark.checkpoint import ForeignCheckpoint, read_checkpoint
from airflow_lakestream.spark.micro_batch import MicroBatches
from dev.services.kafka import Kafka
from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import Lake, assert_landed_once, events
from tests.support.spark import InterposedReaders, SparkRun

pytestmark = pytest.mark.integration

COUNTS = {0: 300, 1: 200}


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    name = topic(partitions=3)
    for partition, count in COUNTS.items():
        produce(name, partition, events(partition, 0, count))
    return name


@pytest.fixture
def run(lake: Lake, name: str) -> SparkRun:
    return SparkRun(lake, name)


@pytest.fixture
def landed_run(run: SparkRun, spark: SparkSession) -> SparkRun:
    """Give a topic that a query has landed in two batches."""
    run.run(spark, max_offsets_per_trigger=250)
    return run


def assert_clean(lake: Lake) -> None:
    assert lake.audit().verdict is AuditVerdict.CLEAN


@EACH_FORMAT
def test_a_topic_lands_and_then_what_is_new(
    lake: Lake, run: SparkRun, name: str, produce: Producing, spark: SparkSession
) -> None:
    run.run(spark)
    assert_landed_once(lake, name, COUNTS)
    produce(name, 2, events(2, 0, 10))
    produce(name, 0, events(0, 300, 5))
    run.run(spark)
    assert_landed_once(lake, name, {0: 305, 1: 200, 2: 10})
    assert len(lake.snapshots()) == 2
    lake.assert_whole()
    progress = read_progress(str(run.checkpoint))
    assert [(batch.batch_id, batch.rows_in, batch.rows_out, batch.lag) for batch in progress.last] == [
        (0, 500, 500, 0),
        (1, 15, 15, 0),
    ]
    assert lake.committed_offsets(name) == {0: 305, 1: 200, 2: 10}


def test_executors_are_told_to_keep_their_memory_unless_they_are_told_otherwise(
    run: SparkRun, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext

    def seen() -> list[str | None]:
        run.run(spark)
        return context.parallelize([0], 1).map(lambda _: os.environ.get("MIMALLOC_PURGE_DELAY")).collect()

    monkeypatch.setattr(context, "environment", context.environment)
    assert seen() == ["-1"]
    # What spark.executorEnv.MIMALLOC_PURGE_DELAY does when Spark starts.
    context.environment = {**context.environment, "MIMALLOC_PURGE_DELAY": "10"}
    assert seen() == ["10"]


def test_a_batch_has_no_more_offsets_than_it_may_and_the_query_ends_after_so_many_batches(
    lake: Lake, run: SparkRun, name: str, spark: SparkSession
) -> None:
    run.run(spark, max_offsets_per_trigger=100, max_batches=2)
    assert lake.table().scan().to_arrow().num_rows == 200
    run.run(spark, max_offsets_per_trigger=100)
    assert_landed_once(lake, name, COUNTS)
    assert all(batch.rows_in <= 100 for batch in read_progress(str(run.checkpoint)).last)


def test_a_batch_whose_commit_is_not_in_the_log_is_repeated_and_lands_nothing(
    lake: Lake, landed_run: SparkRun, name: str, spark: SparkSession
) -> None:
    snapshots, checkpoint = lake.snapshots(), read_checkpoint(str(landed_run.checkpoint))
    assert checkpoint is not None
    last = checkpoint.committed[-1]
    for entry in (landed_run.checkpoint / "commits").glob(f"*{last}*"):
        entry.unlink()
    landed_run.run(spark)
    repeated = read_checkpoint(str(landed_run.checkpoint))
    assert repeated is not None
    assert repeated.committed[-1] == last
    assert lake.snapshots() == snapshots
    assert_landed_once(lake, name, COUNTS)


def test_a_repeated_batch_lands_the_part_of_it_that_is_missing(
    lake: Lake, landed_run: SparkRun, name: str, produce: Producing, spark: SparkSession
) -> None:
    produce(name, 0, events(0, 300, 30))
    produce(name, 1, events(1, 200, 30))
    landed_run.run(spark)
    for entry in (landed_run.checkpoint / "commits").glob("*2*"):
        entry.unlink()
    table = lake.table()
    before = lake.snapshots()[-2]
    table.manage_snapshots().set_current_snapshot(before).commit()
    # Of the batch that is to be repeated an extract task has landed a part meanwhile.
    lake.land(name, mode="ranges", ranges=[[0, 300, 320]])
    landed_run.run(spark)
    assert_landed_once(lake, name, {0: 330, 1: 230})


@pytest.mark.parametrize("beside", [False, True])
def test_a_checkpoint_that_is_deleted_costs_nothing(
    lake: Lake, landed_run: SparkRun, name: str, produce: Producing, spark: SparkSession, beside: bool
) -> None:
    shutil.rmtree(landed_run.checkpoint)
    if beside:
        shutil.rmtree(f"{landed_run.checkpoint}.lakestream")
    produce(name, 1, events(1, 200, 7))
    landed_run.run(spark, max_offsets_per_trigger=7)
    assert_landed_once(lake, name, {0: 300, 1: 207})
    # It begins where the ledger says, not at the topic's start: one batch.
    checkpoint = read_checkpoint(str(landed_run.checkpoint))
    assert checkpoint is not None
    assert checkpoint.committed == (0,)


@EACH_FORMAT
def test_what_a_rollback_took_is_landed_first_though_nothing_new_is_there(
    lake: Lake, landed_run: SparkRun, name: str, produce: Producing, spark: SparkSession
) -> None:
    # The extract goes on from where the query is, and the query from where that ended.
    produce(name, 0, events(0, 300, 10))
    assert lake.land(name).to_dict()["ranges"] == [[0, 300, 310]]
    produce(name, 1, events(1, 200, 10))
    landed_run.run(spark)
    assert_landed_once(lake, name, {0: 310, 1: 210})

    lake.roll_back(lake.snapshots()[0])
    landed_run.run(spark)
    assert_landed_once(lake, name, {0: 310, 1: 210})
    lake.assert_whole()


def test_an_interval_that_was_left_out_is_landed_with_the_next_batch(
    lake: Lake, run: SparkRun, name: str, spark: SparkSession
) -> None:
    lake.land(name, mode="ranges", ranges=[[0, 100, 200], [1, 0, 50]])
    lake.land(name, mode="ranges", ranges=[[1, 150, 200]])
    run.run(spark)
    assert_landed_once(lake, name, COUNTS)


def test_an_extract_that_lands_between_plan_and_commit_is_respected(
    lake: Lake, run: SparkRun, name: str, spark: SparkSession
) -> None:
    batches = MicroBatches(run.config(), spark)
    batches.readers = InterposedReaders(batches.readers, lambda: lake.land(name, mode="ranges", ranges=[[0, 50, 150]]))
    report = batches.land(uuid.uuid4().hex)
    assert report.counts.written == 400
    assert_landed_once(lake, name, COUNTS)
    lake.assert_whole()


def test_engines_are_switched_while_the_topic_flows(
    lake: Lake, run: SparkRun, name: str, produce: Producing, spark: SparkSession
) -> None:
    counts = dict(COUNTS)
    ends = threading.Event()

    def flow() -> None:
        while not ends.is_set():
            for partition in COUNTS:
                produce(name, partition, events(partition, counts[partition], 20))
                counts[partition] += 20

    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        for number in range(5):
            before = len(lake.snapshots()) if number else 0
            if number % 2:
                lake.land(name)
            else:
                run.run(spark)
            assert len(lake.snapshots()) > before
        # Both at once.
        side = threading.Thread(target=lake.land, args=(name,))
        side.start()
        run.run(spark)
        side.join()
    finally:
        ends.set()
        flowing.join()
    run.run(spark)
    assert_landed_once(lake, name, counts)
    assert_clean(lake)


def test_a_continuous_query_ends_after_its_batch_when_that_is_asked_for(
    lake: Lake, run: SparkRun, name: str, produce: Producing, spark: SparkSession
) -> None:
    failed: list[BaseException] = []

    def follow() -> None:
        try:
            run.run(spark, trigger="1 second")
        except BaseException as e:  # noqa: BLE001  # looked at by the test
            failed.append(e)

    following = threading.Thread(target=follow)
    following.start()
    location = str(run.checkpoint)
    poll_until(lambda: read_progress(location).batches >= 1, "the first batch", 120)
    produce(name, 2, events(2, 0, 10))
    poll_until(lambda: read_progress(location).rows_out >= 510, "the second batch", 120)
    assert request_stop(location, "the test")
    following.join(120)
    assert not following.is_alive()
    assert not failed
    assert_landed_once(lake, name, {**COUNTS, 2: 10})


def test_a_second_driver_and_another_topic_are_refused(
    lake: Lake, landed_run: SparkRun, topic_of: TopicOf, spark: SparkSession
) -> None:
    snapshots = lake.snapshots()
    held = HeldLease.take(str(landed_run.checkpoint), landed_run.config().fingerprint, "the other one")
    with held, pytest.raises(LeaseHeld, match="the other one"):
        landed_run.run(spark)
    other = topic_of(events(0, 0, 1))
    shutil.rmtree(f"{landed_run.checkpoint}.lakestream")
    with pytest.raises(ForeignCheckpoint, match=other):
        SparkRun(lake, other).run(spark)
    assert lake.snapshots() == snapshots


def test_a_bad_record_is_the_error_that_the_extract_has(
    lake: Lake, run: SparkRun, name: str, produce: Producing, spark: SparkSession
) -> None:
    (offset,) = produce(name, 1, ["no JSON"])
    with pytest.raises(BadRecord) as caught:
        run.run(spark, on_error="fail", schema="id bigint, name string, score double")
    assert (caught.value.partition, caught.value.offset) == (1, offset)
    assert lake.has_nothing()
    run.run(spark, schema="id bigint, name string, score double")
    assert lake.table().scan().to_arrow().num_rows == sum(COUNTS.values())


def test_what_retention_took_is_an_error_or_a_receipt(
    lake: Lake, landed_run: SparkRun, name: str, produce: Producing, admin: AdminClient, spark: SparkSession
) -> None:
    produce(name, 0, events(0, 300, 40))
    admin.delete_records([TopicPartition(name, 0, 320)])[TopicPartition(name, 0)].result(30)
    with pytest.raises(DataLoss, match=r"\[300,320\)"):
        landed_run.run(spark)
    landed_run.run(spark, on_data_loss="record")
    assert lake.landed(name)[0] == [(0, 300), (320, 340)]


def test_the_topics_of_a_regex_land_in_tables_of_their_own(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    prefix = f"s{uuid.uuid4().hex[:8]}"
    for number, part in enumerate(("eu", "us")):
        produce(topic(1, name=f"{prefix}-{part}"), 0, events(0, 0, 10 + number))
    run = SparkRun(lake, f"^{prefix}-.*", {"table": "lake.{topic}"})
    run.run(spark)
    produce(topic(1, name=f"{prefix}-new"), 0, events(0, 0, 5))
    run.run(spark)
    rows = {part: lake.table(f"lake.{prefix}_{part}").scan().to_arrow().num_rows for part in ("eu", "us", "new")}
    assert rows == {"eu": 10, "us": 11, "new": 5}


def test_a_topic_whose_table_is_of_another_stream_keeps_no_other_from_landing(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    prefix = f"s{uuid.uuid4().hex[:8]}"
    other = topic(1)
    for name in (other, *(topic(1, name=f"{prefix}-{part}") for part in ("a", "taken", "z"))):
        produce(name, 0, events(0, 0, 10))
    lake.land(other, table=f"lake.{prefix}_taken", consumer_group="another-dag")
    before = lake.table(f"lake.{prefix}_taken").metadata_location
    with pytest.raises(InvalidArgument, match=f"{prefix}-taken.*another-dag"):
        SparkRun(lake, f"^{prefix}-.*", {"table": "lake.{topic}"}).run(spark)
    assert lake.table(f"lake.{prefix}_taken").metadata_location == before
    rows = [lake.table(f"lake.{prefix}_{part}").scan().to_arrow().num_rows for part in "az"]
    assert rows == [10, 10]


def test_tables_that_records_choose_are_written_by_the_driver(
    lake: Lake, name: str, run: SparkRun, spark: SparkSession
) -> None:
    run.run(spark, table="lake.by_{name}", schema="id bigint, name string", new_tables="create", max_tables=1000)
    tables = [table for _, table in lake.catalog().list_tables("lake") if table.startswith("by_")]
    assert len(tables) == sum(COUNTS.values())


def test_columns_that_a_given_schema_adds_come_with_the_rows(
    lake: Lake, landed_run: SparkRun, name: str, produce: Producing, spark: SparkSession
) -> None:
    produce(name, 0, ['{"id": 5, "name": "new", "score": 1.5, "more": 7}'])
    schema = "id bigint, name string, score double, more int"
    landed_run.run(spark, schema=schema, schema_evolution="add")
    produce(name, 0, ['{"id": 6, "name": "new", "score": 1.5, "more": 8589934592}'])
    landed_run.run(spark, schema=schema.replace("more int", "more bigint"), schema_evolution="widen")
    rows = lake.table().scan("id < 10 and more is not null").to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["more"]) for row in rows] == [(5, 7), (6, 8589934592)]
    assert lake.table().scan().to_arrow().num_rows == 502


def test_through_sasl_ssl_and_no_password_is_left_anywhere(
    tmp_path: Path, kafka: Kafka, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    lake, name = Lake(tmp_path, kafka.secure_client_config()), topic(partitions=2)
    produce(name, 0, events(0, 0, 30))
    run = SparkRun(lake, name)
    run.run(spark)
    assert lake.offsets() == [(0, n) for n in range(30)]
    secret = kafka.password.encode()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and secret in path.read_bytes()]
