"""`maintain_iceberg` on the tables of a test's lake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from airflow_lakestream.spark.maintenance.work import TableReport, maintain
from tests.support.broker import poll_until
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


def beside(spark: SparkSession, folder: Path, work: Callable[[], object], other: Callable[[], object]) -> None:
    """Let Spark work while another writer acts between the plan of the first try and its commit."""
    stages = spark.sparkContext.statusTracker().getActiveStageIds
    with ThreadPoolExecutor(1) as pool:
        with _busy(spark, folder) as go_on:
            held = set(stages())
            done = pool.submit(work)
            poll_until(lambda: done.done() or bool(set(stages()) - held), "the work to be planned", 180)
            other()
            go_on()
        done.result()


@contextmanager
def _busy(spark: SparkSession, folder: Path) -> Iterator[Callable[[], None]]:
    """Keep all of Spark's cores busy: what is begun meanwhile is planned, and waits. Yield what lets them go."""
    gate = folder / "gate"
    gate.touch()
    context = spark.sparkContext
    path = str(gate)

    def wait(_: object) -> Iterator[int]:
        import time
        from pathlib import Path

        while Path(path).exists():
            time.sleep(0.02)  # between two looks for the file, in a process of Spark's
        return iter(())

    cores = context.defaultParallelism
    thread = threading.Thread(target=lambda: context.parallelize(range(cores), cores).mapPartitions(wait).count())
    thread.start()
    try:
        poll_until(lambda: _running(spark) == cores, "the cores to be busy", 180)
        yield gate.unlink
    finally:
        gate.unlink(missing_ok=True)
        thread.join()


def _running(spark: SparkSession) -> int:
    tracker = spark.sparkContext.statusTracker()
    return sum(info.numActiveTasks for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)))
