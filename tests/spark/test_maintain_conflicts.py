"""A compaction that loses against another writer, each time in the same moment: planned, and not committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.iceberg.upkeep.reads import TableSize
from airflow_lakestream.spark.maintenance.work import CompactionLost, IcebergProcedures, own_session
from tests.support.lake import TABLE, Lake
from tests.support.landings import Landings
from tests.support.maintaining import beside, maintenance

pytestmark = pytest.mark.integration


def compact_beside(lake: Lake, spark: SparkSession, folder: Path, other: Callable[[], object], tries: int) -> None:
    """Compact while another writer acts between the plan of the first try and its commit."""
    config = maintenance(lake, compact={"options": {"rewrite-all": True}, "tries": tries})
    procedures = IcebergProcedures(own_session(config, spark), config.catalog_name, TABLE)
    how = config.work.compact
    assert how is not None
    beside(spark, folder, lambda: procedures.compact(how), other)


def test_it_is_begun_anew_where_another_took_its_files_out(
    lake: Lake, landings: Landings, spark: SparkSession, tmp_path: Path
) -> None:
    landings(4)
    compact_beside(lake, spark, tmp_path, lambda: lake.compact(), tries=2)
    assert TableSize.of(lake.table()).files == 1
    summary = lake.table().current_snapshot()
    assert summary is not None
    # The second try's, on top of the other's.
    assert summary.parent_snapshot_id is not None
    assert "engine-name" in summary.summary.additional_properties
    landings.assert_once()


def test_after_so_many_tries_it_says_that_it_was_lost_and_leaves_nothing(
    lake: Lake, landings: Landings, spark: SparkSession, tmp_path: Path
) -> None:
    landings(4)
    with pytest.raises(CompactionLost, match=rf"{TABLE}: not compacted, since in each of 1 tries another writer"):
        compact_beside(lake, spark, tmp_path, lambda: lake.compact(), tries=1)
    lake.assert_whole()
    landings.assert_once()


def test_a_landing_in_between_is_no_conflict(
    lake: Lake, landings: Landings, spark: SparkSession, tmp_path: Path
) -> None:
    landings(4)
    compact_beside(lake, spark, tmp_path, lambda: landings(1), tries=1)
    # The compacted one, and that of the landing which came meanwhile.
    assert TableSize.of(lake.table()).files == 2
    landings.assert_once()
