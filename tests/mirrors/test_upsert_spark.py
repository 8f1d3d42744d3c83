"""Tables by key of a real topic by Spark's apps of mirrors, whose executors decode and merge; and by the worker."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path
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


def by_spark(lake: Lake, landing: dict[str, Any], spark: SparkSession) -> None:
    """Land by Spark's app, up to now."""
    is_delta = isinstance(lake, DeltaLake)
    checkpoint = {"checkpoint_location": f"{lake.folder}/checkpoints/{Path(landing['table']).name}"}
    app = {"app": CDC_TO_DELTA if is_delta else CDC_TO_ICEBERG, "kafka": lake.kafka, "landing": landing}
    properties = {"uri": f"sqlite:///{lake.folder}/catalog.db", "warehouse": f"file://{lake.folder}/warehouse"}
    catalog = {} if is_delta else {"catalog": {"name": "iceberg_default", "properties": {"type": "sql", **properties}}}
    kafka_to_iceberg(AppConfig.parse({**app, **checkpoint, **catalog}), spark)


def by_worker(lake: Lake, landing: dict[str, Any], _: SparkSession) -> None:
    """Land in this process, up to now."""
    is_delta = isinstance(lake, DeltaLake)
    config = MirrorConfig(**landing, table_format="delta" if is_delta else "iceberg")
    tables: Any = DeltaStorage() if is_delta else lake.catalog()
    land(build_job(config, lake.kafka, tables, run_id=uuid.uuid4().hex))


@pytest.mark.parametrize("lake", ["iceberg", "delta"], indirect=True)
def test_spark_and_the_worker_keep_the_same_table_by_key_in_turn(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "LEAST_BYTES", 1)
    read, chance = topic(2), random.Random(7)
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

    for run in (by_spark, by_spark, by_worker, by_spark):
        write()
        run(lake, landing, spark)
        found = lake.scan().to_pylist()
        assert {row["id"]: row["v"] for row in found} == expected
        assert len(found) == len(expected)


@pytest.mark.parametrize("lake", ["iceberg", "delta"], indirect=True)
def test_spark_and_the_worker_keep_versions_and_fields_in_turn(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession
) -> None:
    read = topic(1)
    common: dict[str, Any] = {
        "topic": read,
        "consumer_group": GROUP,
        "envelope": None,
        "key": "user.id",
        "sequence_by": "at",
    }
    common["schema"] = "at timestamptz"
    kinds: dict[str, dict[str, Any]] = {
        "history": {"history": True},
        "given": {"merge": "given"},
        "once": {"insert_only": True, "within": "9 days"},
    }
    kinds["sql"] = {"sql": 'SELECT "at", "user", name FROM {{ input }} WHERE name <> \'v3\'', "sql_input": "decoded"}
    kinds["sql"]["schema"] = "at timestamptz, user struct<id: bigint>, name string"

    def landing(kind: str) -> dict[str, Any]:
        table = f"{lake.name}_{kind}"
        return common | {"table": table} | kinds[kind]

    for turn in range(3):
        values = [
            json.dumps({"user": {"id": key}, "at": f"2026-01-0{2 * turn + 1}T00:00:00Z"} | more)
            for key, more in ((1, {"name": f"v{turn}"}), (2, {"size": turn}), (3 + turn, {"name": f"v{turn + 1}"}))
        ]
        produce(read, 0, values)
        for kind in kinds:
            (by_worker if turn % 2 else by_spark)(lake, landing(kind), spark)

    def rows(kind: str) -> list[dict[str, Any]]:
        return sorted(lake.scan(f"_{kind}").to_pylist(), key=lambda row: (row["user_id"], row["at"]))

    ends = [(row["user_id"], row["name"], row["_is_current"]) for row in rows("history") if row["user_id"] == 1]
    assert ends == [(1, "v0", False), (1, "v1", False), (1, "v2", True)]
    assert [(row["user_id"], row["name"], row["size"]) for row in rows("given")][:2] == [(1, "v2", None), (2, None, 2)]
    assert [row["user_id"] for row in rows("once")] == [1, 2, 3, 4, 5]
    assert [(row["user_id"], row["name"]) for row in rows("sql")] == [(1, "v2"), (3, "v1"), (4, "v2")]
