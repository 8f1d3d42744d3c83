"""Tables that a plain Spark stream filled, with nothing of this package in it, are adopted by its checkpoint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from airflow_lakestream.adopt.claim import CannotAdopt, StillRunning
from airflow_lakestream.adopt.filled import open_filled
from airflow_lakestream.adopt.run import AdoptionResult, TableAdoption
from airflow_lakestream.adopt.tools import SparkCheckpoint
from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.spark.checkpoint import ForeignCheckpoint
from airflow_lakestream.spark.lake_settings import catalog_settings
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import DELTA, DeltaLake
from tests.support.lake import GROUP, TABLE, Lake, events, rows_of_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.integration

EACH = 40
BOTH = {0: EACH, 1: EACH}
FIELDS = "id BIGINT, name STRING, score DOUBLE"
POSITIONS = "_kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, _kafka_timestamp TIMESTAMP"


class Stream:
    """A stream as a user writes it: Kafka, from_json, and a sink."""

    def __init__(self, spark: SparkSession, lake: Lake, topic: str, *, keeps_positions: bool) -> None:
        # A session of its own: one that has opened a catalog keeps it.
        spark = spark.newSession()
        self._spark, self._lake, self._topic, self._keeps = spark, lake, topic, keeps_positions
        for key, value in catalog_settings("iceberg_default", lake_properties(lake), {}).items():
            spark.conf.set(key, value)
        self.name = f"iceberg_default.{TABLE}"
        lake.catalog().create_namespace_if_not_exists("lake")
        columns = f"{FIELDS}, {POSITIONS}" if keeps_positions else FIELDS
        spark.sql(f"CREATE TABLE {self.name} ({columns}) USING iceberg TBLPROPERTIES ('format-version'='2')")

    @property
    def checkpoint(self) -> str:
        return str(self._lake.folder / "plain-checkpoint")

    def records(self) -> DataFrame:
        source = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._lake.kafka["bootstrap.servers"])
            .option("subscribe", self._topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", 20)
            .load()
        )
        kept = (
            ["topic _kafka_topic", "partition _kafka_partition", "offset _kafka_offset", "timestamp _kafka_timestamp"]
            if self._keeps
            else []
        )
        parsed = source.selectExpr(f"from_json(CAST(value AS STRING), '{FIELDS}') v", *kept)
        return parsed.select("v.*", *[one.split()[1] for one in kept])

    def run(self, write: Callable[[DataFrame, int], None] | None = None) -> None:
        """Write all that the topic has, by the sink of Iceberg or a function of batches."""
        writer = self.records().writeStream.option("checkpointLocation", self.checkpoint).trigger(availableNow=True)
        query = writer.toTable(self.name) if write is None else writer.foreachBatch(write).start()
        query.awaitTermination()

    def append(self, batch: DataFrame, _: int) -> None:
        batch.writeTo(self.name).append()

    def adopt(self, **more: Any) -> AdoptionResult:
        catalog = self._lake.catalog()
        tool = SparkCheckpoint(self.checkpoint, open_filled(catalog, TABLE, GROUP))
        work = TableAdoption(
            table=TABLE, consumer_group=GROUP, topic=self._topic, kafka=self._lake.kafka, watch=0.0, **more
        )
        return work.write(catalog, tool)


def lake_properties(lake: Lake) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{lake.folder}/catalog.db",
        "warehouse": f"file://{lake.folder}/warehouse",
    }


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic with EACH records in each of two partitions."""
    made = topic(partitions=2)
    for partition in BOTH:
        produce(made, partition, events(partition, 0, EACH))
    return made


def assert_once(lake: Lake) -> None:
    assert sorted(lake.scan()["id"].to_pylist()) == sorted(rows_of_events(BOTH)["id"].to_pylist())
    assert lake.audit().verdict is AuditVerdict.CLEAN


def test_the_tables_own_commits_tell_where_the_sink_is(lake: Lake, name: str, spark: SparkSession) -> None:
    stream = Stream(spark, lake, name, keeps_positions=False)
    stream.run()
    rows, snapshots = len(lake.scan()), lake.snapshots()
    assert (rows, len(snapshots)) == (2 * EACH, 4)

    # The checkpoint says that all four batches are there; the table has two of them.
    lake.roll_back(snapshots[1])
    done = stream.adopt()

    assert "up to batch 1" in " ".join(done.decision.proved)
    assert done.decision.entry.adopted.width == 40
    assert lake.land(name, schema_evolution="add").counts.written == 40
    assert_once(lake)


def test_a_function_of_batches_is_taken_at_the_checkpoints_word(lake: Lake, name: str, spark: SparkSession) -> None:
    stream = Stream(spark, lake, name, keeps_positions=False)
    stream.run(stream.append)
    done = stream.adopt()
    assert any("the table's commits name no batch" in line for line in done.decision.trusted)
    assert lake.land(name, schema_evolution="add").counts.written == 0
    assert_once(lake)


@pytest.mark.parametrize("keeps_positions", [False, True])
def test_a_batch_that_was_begun_and_not_ended(
    lake: Lake, name: str, spark: SparkSession, keeps_positions: bool
) -> None:
    stream = Stream(spark, lake, name, keeps_positions=keeps_positions)

    def dies_after_the_commit(batch: DataFrame, number: int) -> None:
        stream.append(batch, number)
        if number == 1:
            raise RuntimeError("killed")

    with pytest.raises(StreamingQueryException):
        stream.run(dies_after_the_commit)
    assert len(lake.scan()) == 40

    if not keeps_positions:
        with pytest.raises(CannotAdopt, match=r"batch 1 of .* was begun and not ended"):
            stream.adopt()
        return
    assert stream.adopt().decision.entry.counts.written == 40
    assert lake.land(name).counts.written == 40
    assert_once(lake)


def test_another_topics_checkpoint_and_a_query_that_goes_on_are_refused(
    lake: Lake, name: str, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    stream = Stream(spark, lake, name, keeps_positions=False)
    stream.run()
    catalog = lake.catalog()
    tool = SparkCheckpoint(stream.checkpoint, open_filled(catalog, TABLE, GROUP))
    other = topic(partitions=2)
    with pytest.raises(ForeignCheckpoint, match=f"it is of topic '{name}', not of '{other}'"):
        TableAdoption(table=TABLE, consumer_group=GROUP, topic=other, kafka=lake.kafka).look(catalog, tool)
    empty = SparkCheckpoint(str(lake.folder / "nothing"), open_filled(catalog, TABLE, GROUP))
    with pytest.raises(CannotAdopt, match="has no checkpoint"):
        TableAdoption(table=TABLE, consumer_group=GROUP, topic=name, kafka=lake.kafka).look(catalog, empty)

    class GoesOn(SparkCheckpoint):
        def read(self, topic: str) -> Any:
            claim = super().read(topic)
            produce(name, 0, events(0, EACH, 5))
            stream.run()
            return claim

    goes_on = GoesOn(stream.checkpoint, open_filled(catalog, TABLE, GROUP))
    with pytest.raises(StillRunning):
        TableAdoption(table=TABLE, consumer_group=GROUP, topic=name, kafka=lake.kafka, watch=0.0).write(
            catalog, goes_on
        )
    assert not Path(stream.checkpoint, "nothing").exists()
    assert not lake.entry(name).landed


@DELTA
def test_deltas_own_transactions_tell_where_its_sink_is(lake: DeltaLake, name: str, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    program = [sys.executable, "-m", "tests.support.delta_stream"]
    subprocess.run([*program, lake.kafka["bootstrap.servers"], name, lake.place, checkpoint], check=True, timeout=300)
    assert len(lake.scan()) == 2 * EACH
    # The checkpoint says that all four batches are there; the table has two of them.
    lake.table().restore(1)
    storage = lake.catalog()
    tool = SparkCheckpoint(checkpoint, open_filled(storage, lake.name, GROUP))
    work = TableAdoption(table=lake.name, consumer_group=GROUP, topic=name, kafka=lake.kafka, watch=0.0)

    done = work.write(storage, tool)

    assert "up to batch 1" in " ".join(done.decision.proved)
    assert lake.land(name, schema_evolution="add").counts.written == 40
    assert_once(lake)
