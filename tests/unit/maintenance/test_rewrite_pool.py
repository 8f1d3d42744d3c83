"""Compaction by several processes: the result of one process, within bounded memory, and whole files after any end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile

from airflow_lakestream.config.maintenance import MaintenanceSection
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.maintenance.processes import rewriter_processes
from airflow_lakestream.run.maintenance.upkeep import IcebergUpkeep, TableToMaintainAgain
from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from tests.support.given_records import GivenLake
from tests.support.lake import assert_files_are_whole
from tests.support.pooled_upkeep import PooledUpkeep
from tests.unit.maintenance.test_compaction import COLUMNS, assert_sound, data_files, every_type
from tests.unit.maintenance.test_compaction import land as land_rows

PARTITIONS = 5
TWIN = "lake.twin"


def partitioned(folder: Path, **config: Any) -> GivenLake:
    """Return a lake with five partitions of three files each."""
    found = GivenLake(folder)
    for run in range(3):
        rows = [{"n": n, "name": f"n{n % PARTITIONS}"} for n in range(run * 10, run * 10 + 10)]
        land_rows(found, rows, schema="n bigint, name string", partition_by=["name"], **config)
    return found


@pytest.fixture
def lake(tmp_path: Path) -> GivenLake:
    return partitioned(tmp_path, sort_order=["n desc"])


def upkeep(lake: GivenLake, *tables: str, **wanted: Any) -> PooledUpkeep:
    return PooledUpkeep(lake.folder, tables or (lake.name,), lake.folder / "seen", **wanted)


def seen(lake: GivenLake) -> dict[int, int]:
    """Return the peaks of bytes by process."""
    folder = lake.folder / "seen"
    return {int(one.name): int(one.read_text()) for one in folder.iterdir()} if folder.exists() else {}


def contents_of(file: DataFile) -> dict[str, Any]:
    """Return a file's statistics, and its rows in their order."""
    names = ("record_count", "lower_bounds", "upper_bounds", "value_counts", "null_value_counts", "sort_order_id")
    rows = pq.read_table(file.file_path.removeprefix("file://")).to_pylist()
    return {"partition": repr(file.partition), "rows": rows} | {name: getattr(file, name) for name in names}


def test_two_processes_write_the_files_of_one(lake: GivenLake) -> None:
    lake.catalog().register_table(TWIN, lake.iceberg().metadata_location)
    rows = lake.rows()
    [report] = upkeep(lake).run()
    assert (report["rewritten"], report["new"], report["lost"], report["is_whole"]) == (15, PARTITIONS, 0, True)
    assert len(seen(lake)) == 2
    section = MaintenanceSection.parse({"tables": [TWIN], "compact": {"options": {"min-input-files": 2}}})
    IcebergUpkeep(lake.catalog(), section).run()
    ours, theirs = (
        sorted(
            (contents_of(file) for file in data_files(lake.catalog().load_table(name))),
            key=lambda one: one["partition"],
        )
        for name in (lake.name, TWIN)
    )
    assert ours == theirs
    assert len(ours) == PARTITIONS
    assert_sound(lake, rows)


def test_rows_of_every_type_go_through_the_pipe(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    for run in range(4):
        land_rows(lake, [every_type(n) for n in range(run * 5, run * 5 + 5)], schema=COLUMNS, partition_by=["c0"])
    rows = lake.rows()
    [report] = upkeep(lake).run()
    assert report["rewritten"] > report["new"] > 1
    assert_sound(lake, rows)


def test_each_process_has_a_bounded_part_of_the_rows_in_memory(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    for run in range(24):
        rows = [{"n": n % 2, "name": os.urandom(2**19).hex()} for n in range(run * 8, run * 8 + 8)]
        land_rows(lake, rows, schema="n bigint, name string", partition_by=["n"])
    # A hundred MiB for each process. With as few rows, each has the peak of an idle one.
    few = GivenLake(tmp_path / "few")
    few.folder.mkdir()
    for _ in range(2):
        land_rows(few, [{"n": n, "name": "n"} for n in range(2)], schema="n bigint, name string", partition_by=["n"])
    for one in (lake, few):
        upkeep(one, row_group_bytes=4 * 2**20).run()
    assert len(seen(lake)) == len(seen(few)) == 2
    assert max(seen(lake).values()) - max(seen(few).values()) < 60 * 2**20


def test_a_process_that_is_killed_is_named_and_the_next_run_compacts(lake: GivenLake) -> None:
    before, rows = set(lake.files()), lake.rows()
    with pytest.raises(TableToMaintainAgain, match=r"process \d .*signal 9 .*memory.*'parallelism': 1"):
        upkeep(lake, fault="die").run()
    assert set(lake.files()) == before
    assert_files_are_whole(lake.iceberg())
    [report] = upkeep(lake).run()
    assert report["rewritten"] == 15
    assert_sound(lake, rows)


def test_an_error_in_a_process_is_the_error_of_the_table_and_other_tables_are_maintained(lake: GivenLake) -> None:
    rows = lake.rows()
    with pytest.raises(TableToMaintainAgain, match="OSError"):
        upkeep(lake, fault="break").run()
    assert_files_are_whole(lake.iceberg())
    assert lake.rows() == rows


def test_groups_that_were_written_before_a_stop_are_committed(lake: GivenLake) -> None:
    rows = lake.rows()
    [report] = upkeep(lake, fault="stop").run()
    assert (report["new"], report["is_whole"]) == (2, False)
    assert_files_are_whole(lake.iceberg())
    assert_sound(lake, rows)


def test_a_stop_within_a_file_leaves_nothing(tmp_path: Path) -> None:
    # Each file's rows are a row group.
    lake = partitioned(tmp_path)
    head = lake.iceberg().current_snapshot()
    [report] = upkeep(lake, fault="stop", row_group_bytes=1).run()
    assert (report["new"], report["is_whole"]) == (0, False)
    assert lake.iceberg().current_snapshot() == head
    assert_files_are_whole(lake.iceberg())


def test_the_processes_of_a_killed_maintenance_end_and_delete_what_they_wrote(lake: GivenLake) -> None:
    before, rows = set(lake.files()), lake.rows()
    upkeep(lake, fault="kill the parent").run_until_killed()
    assert set(lake.files()) == before
    assert_files_are_whole(lake.iceberg())
    assert lake.rows() == rows


@pytest.mark.parametrize("work", [{"expire": True}, {"compact": True}, {"compact": {"parallelism": 1}}])
def test_one_process_is_enough(work: dict[str, Any]) -> None:
    with rewriter_processes(MaintenanceSection.parse({"tables": ["lake.t"], **work}), dry_run=False) as children:
        assert children is None


def test_a_dry_run_and_delta_tables_have_no_processes() -> None:
    compact = {"compact": {"parallelism": 2}}
    for table, dry_run in (("lake.t", True), ("/lake/t", False)):
        with rewriter_processes(MaintenanceSection.parse({"tables": [table], **compact}), dry_run) as children:
            assert children is None


def test_a_wrong_number_is_refused_and_so_is_any_by_sparks_app() -> None:
    with pytest.raises(InvalidArgument, match=r"maintenance\.compact\.parallelism: 0 is not a number of processes"):
        MaintenanceSection.parse({"tables": ["lake.t"], "compact": {"parallelism": 0}})
    catalog = {"name": "c", "properties": {"type": "rest", "uri": "http://c"}}
    with pytest.raises(InvalidArgument, match="max-concurrent-file-group-rewrites"):
        MaintenanceConfig(catalog=catalog, maintenance={"tables": ["lake.t"], "compact": {"parallelism": 2}})
