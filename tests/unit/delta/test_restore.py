"""RESTORE: the ledger goes back with the rows, and what is landed anew is landed once."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_lakestream.delta.ledger_store import LedgerTakenAway
from tests.support.delta_table import GROUP, a_sink, expected, land, landed, rows_of, versions


@pytest.fixture
def table(tmp_path: Path) -> Path:
    name = tmp_path / "clicks"
    land(name, 0, 5)
    land(name, 5, 8)
    land(name, 8, 9)
    return name


def transaction(table: Path) -> int | None:
    return DeltaTable(str(table)).transaction_version(f"lakestream.{GROUP}")


def test_the_ledger_goes_back_with_the_rows_and_the_offsets_land_again(table: Path) -> None:
    DeltaTable(str(table)).restore(0)
    assert landed(table) == "clicks[0] [0,5)"
    # What RESTORE leaves as it is: a number that only counted up would have these offsets skipped.
    assert transaction(table) == 3

    land(table, 5, 8)

    assert rows_of(table) == expected((0, 8))
    assert landed(table) == "clicks[0] [0,8)"
    assert transaction(table) == 4


def test_forward_again_brings_the_ledger_of_then(table: Path) -> None:
    DeltaTable(str(table)).restore(0)
    DeltaTable(str(table)).restore(2)
    assert landed(table) == "clicks[0] [0,9)"
    assert rows_of(table) == expected((0, 9))


@pytest.mark.parametrize("how", ["emptied", "set back"])
def test_a_property_that_somebody_took_away_is_refused_with_the_remedy(table: Path, how: str) -> None:
    key = f"lakestream.ledger.{GROUP}"
    old = next(a["metaData"]["configuration"] for a in versions(table)[0] if "metaData" in a)
    value = old[key] if how == "set back" else ""
    own = {key: value, f"lakestream.generation.{GROUP}": "1"}
    DeltaTable(str(table)).alter.set_table_properties(own, raise_if_not_exists=False)
    with pytest.raises(LedgerTakenAway, match="RESTORE the table to a version"):
        a_sink(table).load("r")
    DeltaTable(str(table)).restore(2)
    assert landed(table) == "clicks[0] [0,9)"


def test_an_overwritten_table_that_lost_its_properties_is_refused(table: Path) -> None:
    DeltaTable.create(str(table), DeltaTable(str(table)).schema(), mode="overwrite")
    with pytest.raises(LedgerTakenAway):
        a_sink(table).load("r")
