"""Adoption of a Delta table for exactly the head whose rows were counted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_lakestream.adopt.delta import DeltaFilledTable
from airflow_lakestream.core.ports import HeadMoved
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta import committing
from airflow_lakestream.delta.storage import DeltaStorage
from tests.support.delta_table import GROUP, TOPIC, append_foreign_row, faulty, landing, versions
from tests.support.faults import TIMEOUT, applied, before, unapplied


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Make a table that another tool has filled."""
    columns = {"id": pa.array([1], pa.int64()), "name": ["a"]}
    write_deltalake(str(tmp_path / "filled"), pa.table(columns))
    return tmp_path / "filled"


def adopt(filled: DeltaFilledTable) -> int:
    return filled.write(GROUP, landing(0, 3), {"note": "adopted"})


def look(table: Path) -> DeltaFilledTable:
    return DeltaFilledTable(DeltaStorage(), str(table), GROUP)


@pytest.mark.parametrize("answer", [applied(TIMEOUT), unapplied(TIMEOUT)], ids=["applied", "unapplied"])
def test_an_answer_that_was_lost_is_no_other_writer(
    table: Path, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "RETRY_PAUSE", 0.0)
    monkeypatch.setattr(committing, "put_commit", faulty(answer))
    assert adopt(look(table)) == 1
    assert len(versions(table)) == 2
    assert look(table).ledgers[GROUP].entry(TOPIC).landed == RangeSet.of(TOPIC.topic, 0, 0, 3)


@pytest.mark.parametrize("is_late", [False, True], ids=["before the commit", "in the commit"])
def test_rows_that_came_since_are_not_adopted(table: Path, is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = look(table)
    if is_late:
        monkeypatch.setattr(committing, "put_commit", faulty(before(lambda: append_foreign_row(table))))
    else:
        append_foreign_row(table)
    with pytest.raises(HeadMoved):
        adopt(filled)
    assert len(versions(table)) == 2


def test_a_table_that_was_dropped_since_is_not_made_again(table: Path) -> None:
    filled = look(table)
    shutil.rmtree(table)
    with pytest.raises(HeadMoved):
        adopt(filled)
    assert not table.exists()
