"""A kept branch beside a real Spark: it shows what failed, outlives maintenance, and can't be published by the way."""

from __future__ import annotations

import os
import time

import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.iceberg import checked as branches
from airflow_lakestream.spark.maintenance.work import own_session
from tests.support.broker import Producing, Topics
from tests.support.lake import GROUP, TABLE, Lake, assert_landed_once, events
from tests.support.maintaining import AT_ONCE, assert_every_snapshot_reads, maintained, maintenance

pytestmark = pytest.mark.integration

OLD = time.time() - 30 * 86_400


def test_a_kept_branch_beside_spark(lake: Lake, spark: SparkSession, topic: Topics, produce: Producing) -> None:
    name = topic(2)
    for first in (0, 4):
        produce(name, 0, events(0, first, 4))
        produce(name, 1, events(1, first, 4))
        lake.land(name, checks={"unique": ["id"], "not_null": ["name"]})
    produce(name, 1, events(1, 8, 4))
    with pytest.raises(ChecksFailed) as caught:
        lake.land(name, checks={"sql": "SELECT * FROM landing WHERE score > 10"})
    assert f"{name}[1] offset 11: id=10000011" in str(caught.value)
    branch = caught.value.branch
    # Even the oldest rule of maintenance finds its files in use.
    for path in lake.folder.rglob("*"):
        os.utime(path, (OLD, OLD))
    work = {"compact": {"options": {"rewrite-all": True}}, "expire": AT_ONCE, "remove_orphans": True}
    [report] = maintained(lake, spark, **work)
    assert (report.after.files, report.orphans) == (1, 0)
    session = own_session(maintenance(lake, **work), spark)
    shown = session.sql(f"SELECT * FROM iceberg_default.{TABLE} VERSION AS OF '{branch}'").collect()
    assert sorted(row["_kafka_offset"] for row in shown) == [8, 9, 10, 11]
    with pytest.raises(IllegalArgumentException, match="is not an ancestor of"):
        session.sql(f"CALL iceberg_default.system.fast_forward('{TABLE}', 'main', '{branch}')").collect()
    assert_landed_once(lake, name, {0: 8, 1: 8})
    lake.land(name, checks={"row_count": {"min_of_week": 0.1}})
    assert list(branches.kept_branches(lake.table(), GROUP)) == []
    assert_landed_once(lake, name, {0: 8, 1: 12})
    # What Spark lets expire takes none of the files that were on the branch first.
    maintained(lake, spark, expire=AT_ONCE, remove_orphans=True)
    assert_every_snapshot_reads(lake.table())
    assert_landed_once(lake, name, {0: 8, 1: 12})
