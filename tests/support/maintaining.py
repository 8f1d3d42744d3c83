"""`maintain_iceberg` on the tables of a test's lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from airflow_lakestream.spark.maintenance.work import TableReport, maintain
from tests.support.lake import TABLE, Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# All that is not protected, however young.
AT_ONCE = {"older_than": "1ms"}


def maintenance(lake: Lake, *tables: str, **work: Any) -> MaintenanceConfig:
    """Return the configuration; without names it is of the lake's one table."""
    properties = dict(lake.catalog().properties)
    return MaintenanceConfig.parse(
        {
            "app": "maintain_iceberg",
            "catalog": {"name": "iceberg_default", "properties": {"type": "sql"} | properties},
            "maintenance": {"tables": list(tables or (TABLE,)), **work},
        }
    )


def maintained(lake: Lake, spark: SparkSession, *tables: str, **work: Any) -> list[TableReport]:
    """Maintain tables in the session that all tests share."""
    return maintain(maintenance(lake, *tables, **work), spark)


def assert_every_snapshot_reads(table: Table) -> None:
    """Assert that each snapshot which is kept has all its rows."""
    for snapshot in table.snapshots():
        assert snapshot.summary is not None
        rows = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows
        counted, deleted = (int(snapshot.summary[f"total-{name}"] or 0) for name in ("records", "position-deletes"))
        # Spark's compaction leaves deletes behind whose rows are gone.
        assert counted - deleted <= rows <= counted
        assert rows == counted or deleted
