"""maintain_iceberg on mirrors whose rows are deleted in place: what is left to read, and races with merges."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.cdc.merge.merge import BatchMerger, MergeResult
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.replace.takeout import bounds_of, live_files
from airflow_lakestream.iceberg.upkeep.reads import ReadCounts, live_rows
from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from airflow_lakestream.spark.maintenance.work import IcebergProcedures, TableReport, maintain, of_table, own_session
from tests.support.lake import assert_totals_are_right
from tests.support.maintaining import AT_ONCE, assert_every_snapshot_reads, beside
from tests.support.mirroring import TABLE, Event, HandMirror, Values

pytestmark = pytest.mark.integration

ROWS, BATCHES, DELETED = 400, 50, 3
# Only deleted rows are a reason to rewrite a file, however small it is.
ANY_SIZE = {"min-file-size-bytes": "0"}


@pytest.fixture
def mirror(tmp_path: Path) -> HandMirror:
    return HandMirror(tmp_path, modes=[MergeMode.MERGE_ON_READ])


def created(keys: Sequence[int], commit: int = 1) -> list[Event]:
    return [Event("c", key, (f"n{key}", "X"), commit, key, offset=key) for key in keys]


def changed(batch: int, keys: Sequence[int], op: str = "u") -> list[Event]:
    values = None if op == "d" else (f"batch {batch}", "Y")
    return [Event(op, key, values, 1 + batch, key, offset=1_000 * batch + key) for key in keys]


def config_of(mirror: HandMirror, *tables: str, **work: Any) -> MaintenanceConfig:
    catalog = {"name": mirror.catalog.name, "properties": {"type": "sql", **mirror.catalog.properties}}
    section = {"tables": list(tables or (TABLE,)), **({"compact": True} | work)}
    return MaintenanceConfig.parse({"app": "maintain_iceberg", "catalog": catalog, "maintenance": section})


def maintained(mirror: HandMirror, spark: SparkSession, *tables: str, **work: Any) -> list[TableReport]:
    return maintain(config_of(mirror, *tables, **work), spark)


def procedures(mirror: HandMirror, spark: SparkSession) -> IcebergProcedures:
    return IcebergProcedures(own_session(config_of(mirror), spark), mirror.catalog.name, TABLE)


def by_spark(mirror: HandMirror, spark: SparkSession) -> dict[int, Values]:
    table = own_session(config_of(mirror), spark).table(f"{mirror.catalog.name}.{TABLE}")
    return {row.id: (row.name, row.big) for row in table.collect()}


def test_after_fifty_batches_a_read_opens_no_more_than_it_would_of_rewritten_files(
    mirror: HandMirror, spark: SparkSession
) -> None:
    for part in range(4):
        mirror.land(created(range(part * ROWS // 4, (part + 1) * ROWS // 4)))
    for batch in range(1, BATCHES + 1):
        deletes = changed(batch, [batch + 300], "d") if batch <= DELETED else []
        mirror.land([*changed(batch, [batch, batch + 100, batch + 200]), *deletes])
    rows, ledger = mirror.rows(), read_ledger(mirror.table(), "g")
    before = ReadCounts.of(mirror.table())
    assert (before.data_files > BATCHES, before.delete_files) == (True, 4)

    of_mirror, of_memory = maintained(mirror, spark, f"{TABLE}*", rewrite_manifests=True, expire=AT_ONCE)

    table = mirror.table()
    assert ReadCounts.of(table) == ReadCounts(1, 0, most=0, shared=0, needless=0)
    assert live_rows(table) == len(rows) == ROWS - DELETED
    assert_totals_are_right(table)
    assert mirror.rows() == by_spark(mirror, spark) == rows
    assert read_ledger(table, "g") == ledger
    assert_every_snapshot_reads(table)
    assert (of_mirror.before.deletes, of_mirror.after.deletes) == (4, 0)
    assert "(4 of them delete files) of " in str(of_mirror)
    # What it remembers is sorted, and in few files, by itself.
    assert of_memory.before.files == of_memory.after.files > 1
    assert mirror.catalog.load_table(f"{TABLE}{SUFFIX}").scan().count() == DELETED
    # A late event of a deleted row, and one that is new.
    mirror.land([Event("u", 301, ("late", "Z"), 1, 301, offset=90_000), *changed(60, [1])])
    assert mirror.rows() == rows | {1: ("batch 60", "Y")}


def test_a_file_is_rewritten_once_rows_of_it_are_deleted_or_where_the_user_says_so_a_tenth(
    mirror: HandMirror, spark: SparkSession
) -> None:
    mirror.land(created(range(100)))
    mirror.land(created(range(100, 200)))
    mirror.land([*changed(2, range(9), "d"), *changed(2, range(100, 110), "d")])
    (few, many) = sorted(live_files(mirror.table()), key=lambda task: sum(f.record_count for f in task.delete_files))

    maintained(mirror, spark, compact={"options": ANY_SIZE | {"delete-file-threshold": 5}})

    files = {task.file.file_path: len(task.delete_files) for task in live_files(mirror.table())}
    assert files.pop(few.file.file_path) == 1
    assert many.file.file_path not in files
    assert list(files.values()) == [0]
    # Nor is there a delete file that no data file needs.
    assert ReadCounts.of(mirror.table()) == ReadCounts(2, 1, most=1, shared=0, needless=0)
    maintained(mirror, spark, compact={"options": ANY_SIZE})
    assert ReadCounts.of(mirror.table()) == ReadCounts(2, 0, most=0, shared=0, needless=0)
    assert set(mirror.rows()) == {*range(9, 100), *range(110, 200)}


def test_a_mirror_is_sorted_by_its_key_and_has_files_with_bounds_of_their_own(
    mirror: HandMirror, spark: SparkSession
) -> None:
    for part in range(6):
        mirror.land(created(range(part, 6_000, 6)))
    small = {"target-file-size-bytes": "30000", "min-file-size-bytes": "29000", "max-file-size-bytes": "40000"}
    maintained(mirror, spark, compact={"options": small})
    table = mirror.table()
    bounds = sorted(bounds_of(table.schema(), task.file, "id") or () for task in live_files(table))
    assert len(bounds) > 1
    assert all(one[1] < other[0] for one, other in itertools.pairwise(bounds))
    assert len(mirror.rows()) == 6_000


def test_deleted_rows_stay_deleted_where_a_merge_comes_between_a_compactions_plan_and_its_commit(
    mirror: HandMirror, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mirror.land(created(range(20)))
    mirror.land(changed(2, [1], "d"))
    before = mirror.table().current_snapshot()
    assert before is not None

    def compact(tries: int) -> Callable[[], None]:
        how = config_of(mirror, compact={"options": {"rewrite-all": True}, "tries": tries}).work.compact
        assert how is not None
        return lambda: procedures(mirror, spark).compact(of_table(how, mirror.table()))

    with caplog.at_level(logging.WARNING):
        beside(spark, tmp_path, compact(1), lambda: mirror.land(changed(3, [2, 3], "d")))
    # Its commit would have brought these two back. It gave up, and the merge stays.
    assert "A part of the table stays as it is until the next run." in caplog.text
    assert set(mirror.rows()) == {0, *range(4, 20)}
    head = mirror.table().current_snapshot()
    assert head is not None
    assert head.parent_snapshot_id == before.snapshot_id

    beside(spark, tmp_path, compact(2), lambda: mirror.land(changed(4, [4], "d")))
    assert set(mirror.rows()) == by_spark(mirror, spark).keys() == {0, *range(5, 20)}
    assert ReadCounts.of(mirror.table()).delete_files == 0


def test_deleted_rows_stay_deleted_where_a_merge_comes_while_position_deletes_are_rewritten(
    mirror: HandMirror, spark: SparkSession, tmp_path: Path
) -> None:
    mirror.land(created(range(20)))
    mirror.land(changed(2, [1], "d"))
    rewrite = procedures(mirror, spark).rewrite_position_deletes
    beside(spark, tmp_path, lambda: rewrite(1), lambda: mirror.land(changed(3, [2, 3], "d")))
    assert set(mirror.rows()) == {0, *range(4, 20)}
    beside(spark, tmp_path, lambda: rewrite(2), lambda: mirror.land(changed(4, [4], "d")))
    assert set(mirror.rows()) == by_spark(mirror, spark).keys() == {0, *range(5, 20)}
    assert ReadCounts.of(mirror.table()) == ReadCounts(1, 1, most=1, shared=0, needless=0)
    # The next merge knows Spark's delete file for one that it replaces.
    mirror.land(changed(5, [5], "d"))
    assert ReadCounts.of(mirror.table()) == ReadCounts(1, 1, most=1, shared=0, needless=0)


@pytest.mark.parametrize("deletes_only", [False, True])
def test_a_merge_is_done_anew_where_maintenance_rewrote_the_files_that_it_deletes_rows_of(
    deletes_only: bool, mirror: HandMirror, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.land(created(range(20)))
    mirror.land(changed(2, [1], "d"))
    remember, tries = BatchMerger.remember, list[int]()

    def maintain_between(self: BatchMerger, merged: MergeResult) -> None:
        remember(self, merged)
        tries.append(len(merged.deleted))
        if len(tries) > 1:
            return
        if deletes_only:
            procedures(mirror, spark).rewrite_position_deletes(1)
        else:
            maintained(mirror, spark, compact={"options": {"rewrite-all": True}})

    monkeypatch.setattr(BatchMerger, "remember", maintain_between)
    mirror.land(changed(3, [2, 3], "d"))

    assert tries == [1, 1]
    assert set(mirror.rows()) == by_spark(mirror, spark).keys() == {0, *range(4, 20)}
    assert ReadCounts.of(mirror.table()) == ReadCounts(1, 1, most=1, shared=0, needless=0)
    assert_totals_are_right(mirror.table())
