"""Tables by key of a real topic by Spark's apps of mirrors, whose executors decode and merge; and by the worker."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.run.job import build_job
from airflow_lakestream.spark import readers
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.apps import CDC_TO_DELTA, CDC_TO_ICEBERG
from airflow_lakestream.spark.stream import kafka_to_iceberg
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import DeltaLake
from tests.support.lake import GROUP, Lake

pytestmark = [pytest.mark.integration]


@pytest.mark.parametrize("lake", ["iceberg", "delta"], indirect=True)
def test_spark_and_the_worker_keep_the_same_table_by_key_in_turn(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LEAST_BYTES", 1)
    read, chance, is_delta = topic(2), random.Random(7), isinstance(lake, DeltaLake)
    landing: dict[str, Any] = {
        "topic": read,
        "table": lake.name,
        "consumer_group": GROUP,
        "envelope": None,
        "key": "id",
        "delete_when": "v % 7 = 3",
    }
    expected: dict[int, int] = {}

    def write() -> None:
        changes = [(chance.randrange(400), None if chance.random() < 0.2 else number) for number in range(1_000)]
        for partition in (0, 1):
            own = [(key, value) for key, value in changes if key % 2 == partition]
            values = [None if value is None else json.dumps({"id": key, "v": value}) for key, value in own]
            produce(read, partition, values, keys=[str(key) for key, _ in own])
            for key, value in own:
                expected.pop(key, None)
                expected.update({} if value is None or value % 7 == 3 else {key: value})

    def by_spark() -> None:
        checkpoint = {"checkpoint_location": str(lake.folder / "checkpoint")}
        app = {"app": CDC_TO_DELTA if is_delta else CDC_TO_ICEBERG, "kafka": lake.kafka, "landing": landing}
        properties = {"uri": f"sqlite:///{lake.folder}/catalog.db", "warehouse": f"file://{lake.folder}/warehouse"}
        catalog = (
            {} if is_delta else {"catalog": {"name": "iceberg_default", "properties": {"type": "sql", **properties}}}
        )
        kafka_to_iceberg(AppConfig.parse({**app, **checkpoint, **catalog}), spark)

    def by_worker() -> None:
        config = MirrorConfig(**landing, table_format="delta" if is_delta else "iceberg")
        tables: Any = DeltaStorage() if is_delta else lake.catalog()
        land(build_job(config, lake.kafka, tables, run_id=f"worker {len(expected)}"))

    for run in (by_spark, by_spark, by_worker, by_spark):
        write()
        run()
        found = lake.scan().to_pylist()
        assert {row["id"]: row["v"] for row in found} == expected
        assert len(found) == len(expected)
