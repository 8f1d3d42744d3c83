"""cdc_to_iceberg: a real PostgreSQL, a real Debezium and a real Spark; in the end the mirror is the table."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.run import Audit
from airflow_lakestream.iceberg.mirrors import IsMirror
from airflow_lakestream.spark.stream import kafka_to_iceberg
from tests.support.cdc import Captured, mirror_config, mirrored
from tests.support.lake import GROUP, Lake

pytestmark = pytest.mark.integration

COLUMNS = "id, name, amount, at, day, flag, price, data, big"
BIG = "x" * 9_000


def fill(captured: Captured, first: int, last: int) -> None:
    captured.sql.execute(
        f"insert into {captured.name} select i, 'n' || i, i * 1.25, timestamptz '2026-01-02 03:04:05.678901+02', "
        f"date '2026-01-02' + i, i %% 2 = 0, i / 3.0, '\\xdeadbeef', %s || i from generate_series(%s::int, %s::int) i",
        (BIG, first, last),
    )


def test_a_mirror_follows_its_table(lake: Lake, captured: Captured, spark: SparkSession, tmp_path: Path) -> None:
    fill(captured, 1, 20)
    captured.begin()
    captured.await_all_sent()
    config = mirror_config(lake, captured.topic, tmp_path)
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, COLUMNS) == captured.rows(COLUMNS)

    # What is kept apart is left out of the events of an update, and of a row that gets another key.
    captured.sql.execute(f"update {captured.name} set name = 'new' where id in (1, 2)")
    captured.sql.execute(f"update {captured.name} set id = 100 where id = 3")
    captured.sql.execute(f"delete from {captured.name} where id > 15 and id < 100")
    captured.sql.execute(f"alter table {captured.name} add column extra int default 7")
    captured.sql.execute(f"update {captured.name} set extra = id where id = 4")
    captured.await_all_sent()
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, COLUMNS) == captured.rows(COLUMNS)
    assert mirrored(lake, "id, extra")[4] == (4, 4)

    captured.sql.execute(f"truncate {captured.name}")
    fill(captured, 15, 18)
    captured.await_all_sent()
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, f"{COLUMNS}, extra") == captured.rows(f"{COLUMNS}, extra")

    snapshots = lake.table("lake.orders").metadata.snapshots
    kafka_to_iceberg(config, spark)
    assert lake.table("lake.orders").metadata.snapshots == snapshots
    with pytest.raises(IsMirror, match="can't be audited"):
        Audit(table="lake.orders", consumer_group=GROUP).run(lake.catalog())
    with pytest.raises(IsMirror, match="can't be landed into"):
        lake.land(captured.topic, table="lake.orders")
