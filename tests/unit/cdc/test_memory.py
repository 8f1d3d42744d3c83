"""What a mirror remembers of deleted rows is kept whatever becomes of a commit, its answer, or other writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableResponse, Table

from airflow_lakestream.cdc.iceberg import entries_of
from airflow_lakestream.cdc.merge import entries, memory
from airflow_lakestream.cdc.merge.memory import MirrorMemory, entry_schema
from airflow_lakestream.iceberg.commit import committing
from tests.support.faults import FaultyCatalog, ReadTimeout, applied, unapplied
from tests.support.lake import assert_files_are_whole
from tests.support.mirroring import TABLE, Event, HandMirror

KEY = ["id"]
ERRORS = [CommitFailedException("409"), ReadTimeout()]


class Faulty(FaultyCatalog):
    """Also for whoever commits by a table that was loaded from it."""

    def load_table(self, identifier: Any) -> Table:
        found = self.real.load_table(identifier)
        here: Any = self
        return Table(found.name(), found.metadata, found.metadata_location, found.io, here, found.config)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "RETRY_PAUSE", 0.0)


@pytest.fixture
def mirror(tmp_path: Path) -> HandMirror:
    """Give a mirror that has had four rows, of which one is deleted."""
    mirror = HandMirror(tmp_path)
    mirror.land([Event("c", n, (f"n{n}", "X"), 100, n, offset=n) for n in range(4)])
    mirror.land([Event("d", 0, None, 200, 0, offset=10)])
    return mirror


def table_of_entries(mirror: HandMirror) -> Table:
    return mirror.catalog.load_table(f"{TABLE}{memory.SUFFIX}")


def assert_remembers(mirror: HandMirror, *keys: int) -> None:
    """Assert that late events of these rows bring none back."""
    late = [Event("u", key, ("late", "L"), 150, key, partition=1, offset=key) for key in keys]
    left = mirror.rows()
    mirror.land(late)
    assert mirror.rows() == left
    assert not set(keys) & set(left)
    assert_files_are_whole(table_of_entries(mirror))


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_a_commit_that_was_applied_and_reported_as_failed_loses_no_entry(mirror: HandMirror, error: Exception) -> None:
    real: Any = mirror.catalog
    mirror.catalog = Faulty(real, applied(error))  # type: ignore[assignment]  # in the place of the real one
    mirror.land([Event("d", 1, None, 200, 1, offset=11)])
    mirror.catalog = real
    assert_remembers(mirror, 0, 1)
    assert len(table_of_entries(mirror).scan().to_arrow()) == 2


@pytest.mark.parametrize("fault", [applied, unapplied])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_files_are_put_together_whatever_the_catalog_says_of_it(
    mirror: HandMirror, error: Exception, fault: Callable[[Exception], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "MOST_FILES", 1)
    real: Any = mirror.catalog
    mirror.catalog = Faulty(real, fault(error))  # type: ignore[assignment]  # in the place of the real one
    mirror.land([Event("d", 1, None, 200, 1, offset=11)])
    mirror.land([Event("d", 2, None, 200, 2, offset=12)])
    mirror.catalog = real
    # That of the last entry, and one for all before it.
    assert len(list(table_of_entries(mirror).scan().plan_files())) == 2
    assert_remembers(mirror, 0, 1, 2)


def test_entries_that_others_add_meanwhile_are_kept(mirror: HandMirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MOST_FILES", 1)
    real: Any = mirror.catalog
    table = mirror.table()

    def entry(key: int) -> pa.Table:
        values = {"id": key, "_cdc_commit": 200, "_cdc_position": 1, "_kafka_partition": 0, "_kafka_offset": 11}
        return pa.Table.from_pylist([values], entry_schema(pa.schema([("id", pa.int64())])))

    def another_first(apply: Callable[[], CommitTableResponse]) -> CommitTableResponse:
        entries_of(real, TABLE, table, KEY).add(entry(2))
        return apply()

    entries_of(FaultyCatalog(real, another_first), TABLE, table, KEY).add(entry(1))  # type: ignore[arg-type]  # in the place of the real one
    assert len(list(table_of_entries(mirror).scan().plan_files())) == 2
    opened = entries_of(real, TABLE, table, KEY).open()
    assert opened is not None
    assert sorted(opened.read()["id"].to_pylist()) == [0, 1, 2]
    assert_files_are_whole(table_of_entries(mirror))


def test_entries_of_a_mirror_that_was_dropped_are_none(mirror: HandMirror) -> None:
    mirror.catalog.drop_table(TABLE)
    mirror.land([Event("c", 0, ("anew", "X"), 120, 0, offset=20)])
    assert mirror.rows() == {0: ("anew", "X")}
    mirror.land([Event("d", 0, None, 300, 0, offset=21)])
    assert table_of_entries(mirror).scan().to_arrow()["id"].to_pylist() == [0]


def test_without_any_entry_nothing_is_dead() -> None:
    rows = pa.table({"id": [1]})
    nothing = MirrorMemory(("id",), None)
    assert (nothing.truncated, nothing.is_dead(rows).tolist(), nothing.moved((1, 1))) == (None, [False], None)
