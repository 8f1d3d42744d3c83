"""kafka_to_delta: the executors write, the driver commits, and both engines keep one ledger in a Delta table."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.stream import kafka_to_iceberg
from dev.services.registry import Registry
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import DeltaLake
from tests.support.delta_table import GROUP
from tests.support.lake import assert_landed_once, events

pytestmark = pytest.mark.integration

EACH = 50


def config(lake: DeltaLake, topic: str, **landing: Any) -> AppConfig:
    given = {"topic": topic, "table": lake.place, "consumer_group": GROUP, **landing}
    settings = {} if "mode" in landing else {"checkpoint_location": str(lake.folder / "checkpoint")}
    return AppConfig.parse({"app": "kafka_to_delta", "kafka": lake.kafka, "landing": given, **settings})


def test_batches_land_once_beside_the_extract_path_and_after_a_restore(
    lake: DeltaLake, filled: str, produce: Producing, spark: SparkSession
) -> None:
    kafka_to_iceberg(config(lake, filled), spark)
    assert_landed_once(lake, filled, {0: EACH, 1: EACH})

    # The extract path goes on from there, and the query from where that ended.
    produce(filled, 0, events(0, EACH, 10))
    assert lake.land(filled).to_dict()["ranges"] == [[0, EACH, EACH + 10]]
    produce(filled, 1, events(1, EACH, 10))
    kafka_to_iceberg(config(lake, filled), spark)
    assert_landed_once(lake, filled, {0: EACH + 10, 1: EACH + 10})

    # Rolled back under the query, whose checkpoint is ahead.
    DeltaTable(lake.place).restore(0)
    kafka_to_iceberg(config(lake, filled), spark)
    assert_landed_once(lake, filled, {0: EACH + 10, 1: EACH + 10})
    assert not lake.stray()


def test_bad_records_and_a_replay_without_the_checkpoint(
    lake: DeltaLake, filled: str, produce: Producing, spark: SparkSession
) -> None:
    produce(filled, 1, ["bad"])
    kafka_to_iceberg(config(lake, filled), spark)
    (lake.folder / "checkpoint").rename(lake.folder / "lost")
    versions = lake.snapshots()
    kafka_to_iceberg(config(lake, filled), spark)
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
    kafka_to_iceberg(config(lake, name, format="avro", schema_registry=registry.url), spark)
    found = DeltaTable(lake.place)
    assert found.to_pyarrow_table()["id"].to_pylist().count(7) == 2
    # One task has read so few, and the driver none.
    assert len(found.file_uris()) == 1
    assert not lake.stray()


def test_ranges_are_replaced_by_the_executors(lake: DeltaLake, filled: str, spark: SparkSession) -> None:
    lake.land(filled)
    kafka_to_iceberg(config(lake, filled, mode="ranges", ranges=[[0, 10, 30]], replace=True), spark)
    assert_landed_once(lake, filled, {0: EACH, 1: EACH})
    assert lake.snapshots() == [0, 1]
    assert not lake.stray()


def test_what_belongs_to_the_other_app_is_refused_by_name(lake: DeltaLake) -> None:
    with pytest.raises(InvalidArgument, match=r"landing\.table_format"):
        config(lake, "t", table_format="iceberg")
    iceberg = {"app": "kafka_to_iceberg", "kafka": lake.kafka, "catalog": {}, "checkpoint_location": "/c"}
    landing = {"topic": "t", "table": "lake.t", "consumer_group": GROUP}
    with pytest.raises(InvalidArgument, match=r"landing\.table_format"):
        AppConfig.parse({**iceberg, "landing": {**landing, "table_format": "delta", "table": str(Path("/lake/t"))}})
    with pytest.raises(InvalidArgument, match="storage"):
        AppConfig.parse({**iceberg, "landing": landing, "storage": {"aws_region": "x"}})
