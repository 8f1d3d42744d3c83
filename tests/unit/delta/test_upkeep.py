"""Upkeep by Delta's own means: the ledger stays, and landings and replaces go on."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.delta_table import expected, land, landed, live_files, rows_of, stray_files


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
