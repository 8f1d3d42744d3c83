"""A compaction that loses against another writer, each time in the same moment: planned, and not committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.spark.maintenance.calls import CompactionLost, Procedures
from airflow_lakestream.spark.maintenance.work import own_session
from tests.support.broker import poll_until
from tests.support.lake import TABLE, Lake
from tests.support.landings import Landings
from tests.support.maintaining import maintenance

pytestmark = pytest.mark.integration


@contextmanager
def busy(spark: SparkSession, folder: Path) -> Iterator[Callable[[], None]]:
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
        poll_until(lambda: running(spark) == cores, "the cores to be busy", 60)
        yield gate.unlink
    finally:
        gate.unlink(missing_ok=True)
        thread.join()


def running(spark: SparkSession) -> int:
    tracker = spark.sparkContext.statusTracker()
    return sum(info.numActiveTasks for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)))


def compact_beside(
    lake: Lake, spark: SparkSession, folder: Path, other: Callable[[], object], tries: int
) -> Procedures:
    """Compact while another writer acts between the plan of the first try and its commit."""
    config = maintenance(lake, compact={"options": {"rewrite-all": True}, "tries": tries})
    procedures = Procedures(own_session(config, spark), config.catalog_name, TABLE)
    how = config.work.compact
    assert how is not None
    stages = spark.sparkContext.statusTracker().getActiveStageIds
    with ThreadPoolExecutor(1) as pool:
        with busy(spark, folder) as go_on:
            held = set(stages())
            done = pool.submit(procedures.compact, how)
            poll_until(lambda: done.done() or bool(set(stages()) - held), "the compaction to be planned", 60)
            other()
            go_on()
        done.result()
    return procedures


def test_it_is_begun_anew_where_another_took_its_files_out(
    lake: Lake, landings: Landings, spark: SparkSession, tmp_path: Path
) -> None:
    landings(4)
    procedures = compact_beside(lake, spark, tmp_path, lambda: lake.compact(), tries=2)
    assert procedures.size().files == 1
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
    procedures = compact_beside(lake, spark, tmp_path, lambda: landings(1), tries=1)
    # The compacted one, and that of the landing which came meanwhile.
    assert procedures.size().files == 2
    landings.assert_once()
