"""kafka_to_delta: the executors write, the driver commits, and both engines keep one ledger in a Delta table."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.app_config import AppConfig
from dev.services.registry import Registry
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import DeltaLake
from tests.support.delta_table import GROUP
from tests.support.lake import events
from tests.support.spark import SparkRun

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("lake", ["delta"], indirect=True)]

EACH = 50


def test_bad_records_and_a_replay_without_the_checkpoint(
    lake: DeltaLake, topic_of: TopicOf, produce: Producing, spark: SparkSession
) -> None:
    name = topic_of(events(0, 0, EACH), events(1, 0, EACH))
    run = SparkRun(lake, name)
    produce(name, 1, ["bad"])
    run.run(spark)
    (lake.folder / "checkpoint").rename(lake.folder / "lost")
    versions = lake.snapshots()
    run.run(spark)
    assert lake.snapshots() == versions
    assert lake.rejected("_kafka_offset", "value") == [(EACH, b"bad")]
    entry = next(iter(lake.ledger().topics.values()))
    assert entry.counts == Counts(2 * EACH + 1, 2 * EACH, 1)


def test_a_new_table_has_the_columns_that_the_registry_tells(
    lake: DeltaLake, topic: Topics, produce: Producing, registry: Registry, spark: SparkSession
) -> None:
    name = topic(2)
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    header = struct.pack(">bI", 0, registry.register(f"{name}-value", text))
    for partition in (0, 1):
        produce(name, partition, [header + bytes([2 * n]) for n in range(EACH)])
    SparkRun(lake, name).run(spark, format="avro", schema_registry=registry.url)
    found = DeltaTable(lake.place)
    assert found.to_pyarrow_table()["id"].to_pylist().count(7) == 2
    # One task has read so few, and the driver none.
    assert len(found.file_uris()) == 1
    assert not lake.stray()


def test_what_belongs_to_the_other_app_is_refused_by_name(lake: DeltaLake) -> None:
    with pytest.raises(InvalidArgument, match=r"landing\.table_format"):
        SparkRun(lake, "t").config(table_format="iceberg")
    iceberg = {"app": "kafka_to_iceberg", "kafka": lake.kafka, "catalog": {}, "checkpoint_location": "/c"}
    landing = {"topic": "t", "table": "lake.t", "consumer_group": GROUP}
    with pytest.raises(InvalidArgument, match=r"landing\.table_format"):
        AppConfig.parse({**iceberg, "landing": {**landing, "table_format": "delta", "table": str(Path("/lake/t"))}})
    with pytest.raises(InvalidArgument, match="storage"):
        AppConfig.parse({**iceberg, "landing": landing, "storage": {"aws_region": "x"}})
