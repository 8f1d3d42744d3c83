"""A column of a database that becomes another one: what the worker has landed counts for Spark, and back."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.core.source_types import SourceTypeChanged
from tests.support import typed_events as kinds
from tests.support.broker import Producing
from tests.support.lake import Lake
from tests.support.lake_reading import one_partition
from tests.support.mirror_lake import MirrorLake
from tests.support.spark import SparkRun
from tests.support.typed_events import typed_change

pytestmark = pytest.mark.integration

name = one_partition


def test_executors_keep_a_mirrors_types_and_stop_at_another_one(
    mirror_lake: MirrorLake, name: str, produce: Producing, spark: SparkSession
) -> None:
    by_spark = SparkRun(mirror_lake, name, {"key": ["id"]}, {"app": mirror_lake.app})
    produce(name, 0, [typed_change("c", {"id": n, "v": n}, n, {"v": kinds.DATE}) for n in range(1, 40)])
    by_spark.run(spark)
    assert mirror_lake.ledger().types["v"].meaning == "date"
    # Events without the column, and with it again.
    produce(name, 0, [typed_change("u", {"id": 1}, 50, {})])
    mirror_lake.land(name)
    produce(name, 0, [typed_change("u", {"id": 2, "v": 7}, 60, {"v": kinds.DATE})])
    by_spark.run(spark)
    assert mirror_lake.ledger().types["v"].stale
    produce(name, 0, [typed_change("u", {"id": 3, "v": 2026}, 70, {"v": kinds.INT})])
    for land in (lambda: by_spark.run(spark), lambda: mirror_lake.land(name)):
        with pytest.raises(SourceTypeChanged, match=r"column v .*resnapshot"):
            land()
    mirror_lake.assert_whole()


def test_executors_refuse_events_whose_column_is_another_one(
    lake: Lake, name: str, produce: Producing, spark: SparkSession
) -> None:
    by_spark = SparkRun(lake, name, {"envelope": "debezium"})
    produce(name, 0, [typed_change("c", {"id": n, "v": n}, n, {"v": kinds.LONG}) for n in range(1, 40)])
    by_spark.run(spark)
    produce(name, 0, [typed_change("c", {"id": n, "v": n}, n, {"v": kinds.MICROS}) for n in range(50, 60)])
    with pytest.raises(SourceTypeChanged, match=r"was int64 before, and is int64 \(io.debezium.time.MicroTimestamp\)"):
        by_spark.run(spark)
    assert len(lake.column("v")) == 39
