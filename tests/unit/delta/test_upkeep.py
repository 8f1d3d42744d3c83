"""Upkeep by Delta's own means: the ledger stays, and landings and replaces go on."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.iceberg.upkeep.file_use import FileUse
from airflow_lakestream.watching.streams.delta import DeltaStreams, file_use
from tests.support.delta_table import GROUP, expected, land, landed, live_files, rows_of, stray_files


@pytest.fixture
def table(tmp_path: Path) -> Path:
    name = tmp_path / "clicks"
    for start in range(0, 12, 3):
        land(name, start, start + 3)
    return name


def data_files(table: Path) -> set[str]:
    return {str(path.relative_to(table)) for path in table.rglob("*.parquet") if "_delta_log" not in path.parts}


def vacuum(table: Path) -> None:
    """Remove all files that the newest version does not have, however young: nobody else writes here."""
    DeltaTable(str(table)).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def test_optimize_and_vacuum_leave_one_file_and_the_ledger(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()
    vacuum(table)
    assert len(data_files(table)) == len(live_files(table)) == 1
    assert landed(table) == "clicks[0] [0,12)"
    assert rows_of(table) == expected((0, 12))
    land(table, 12, 14)
    assert rows_of(table) == expected((0, 14))
    assert landed(table) == "clicks[0] [0,14)"


def test_z_order_and_a_log_that_begins_at_a_checkpoint_leave_the_ledger(table: Path) -> None:
    DeltaTable(str(table)).optimize.z_order(["id"])
    vacuum(table)
    DeltaTable(str(table)).create_checkpoint()
    newest = DeltaTable(str(table)).version()
    for file in Path(table, "_delta_log").glob("0*.json"):
        if int(file.stem) < newest:
            file.unlink()
    assert landed(table) == "clicks[0] [0,12)"
    assert land(table, 12, 14) == newest + 1
    assert landed(table) == "clicks[0] [0,14)"
    found = DeltaTable(str(table)).to_pyarrow_table(columns=["_kafka_offset"])["_kafka_offset"].to_pylist()
    assert sorted(found) == list(range(14))


def test_a_vacuum_of_a_table_with_leftovers_of_a_killed_run_removes_them(table: Path) -> None:
    (table / "left.parquet").write_bytes(b"of a run that was killed")
    vacuum(table)
    assert not stray_files(table)
    assert rows_of(table) == expected((0, 12))


def counts(table: Path) -> FileUse:
    head = DeltaStorage().open(str(table))
    assert head is not None
    return file_use(head)


def test_small_files_are_counted_by_the_log_alone(table: Path) -> None:
    sizes = {path: (table / path).stat().st_size for path in data_files(table)}
    for path in sizes:
        (table / path).unlink()
    assert counts(table) == FileUse(files=4, small=4, delete_files=0)
    size = min(sizes.values())
    DeltaTable(str(table)).alter.set_table_properties({"delta.targetFileSize": str(size)}, raise_if_not_exists=False)
    assert counts(table) == FileUse(files=4, small=0, delete_files=0)


def test_only_partitions_with_several_small_files_wait_for_a_compaction(tmp_path: Path) -> None:
    table = tmp_path / "parts"
    for start, end in ((0, 3), (0, 2), (5, 6)):
        first = start if start else (0 if not table.exists() else 3)
        land(table, first, first + end - start, partition_by=["name"])
    # Each name has one file, until one comes twice.
    assert counts(table).small == 0
    schema = pa.schema(DeltaTable(str(table)).schema())
    write_deltalake(str(table), pa.Table.from_pylist([{"id": 1, "name": "n0"}], schema=schema), mode="append")
    assert counts(table).small == 2


def test_the_history_of_a_stream_has_small_files_and_a_compaction_since_its_last_landing(table: Path) -> None:
    def use() -> tuple[int, bool]:
        streams = DeltaStreams.at(DeltaStorage(), str(table))
        assert streams is not None
        files = streams.history(GROUP).files
        assert files is not None
        return files.small, files.compacted_at is not None

    assert use() == (4, False)
    DeltaTable(str(table)).optimize.compact()
    assert use() == (0, True)
    land(table, 12, 14)
    assert use() == (2, False)
