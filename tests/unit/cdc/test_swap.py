"""A swap of all rows of a mirror keeps or replaces the entries of deleted rows, also if its commit fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.cdc import delta, iceberg
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.core.ledger import Landing, TopicEntry
from airflow_lakestream.core.names import ANEW
from airflow_lakestream.core.ports import LedgerConflict, StaleFiles
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.tables.design import TableDesign
from tests.support.mirroring import IDENTITY, TABLE, Event, HandDeltaMirror, HandMirror, landing_of, rows_of

KEY = ("name",)


class Killed(Exception):
    """The end of a process."""


class Resnapshot:
    """A mirror with a deleted row, and a table with rows that were read again: they have another key."""

    def __init__(self, folder: Path, kind: str, key: tuple[str, ...] = KEY) -> None:
        self.mirror = HandDeltaMirror(folder) if kind == "delta" else HandMirror(folder)
        self.is_delta = kind == "delta"
        self.mirror.land([Event("c", 1, ("a", "A"), 10, 1, 0, 0), Event("c", 2, ("b", "B"), 10, 2, 0, 1)])
        self.mirror.land([Event("d", 1, None, 40, 3, 0, 2)])
        self.aside = f"{self.mirror.place if isinstance(self.mirror, HandDeltaMirror) else TABLE}{ANEW}"
        design = replace(self.mirror.design, key=key)
        aside: Any = (
            delta.mirror_sink(DeltaStorage(), self.aside, "g", design)
            if self.is_delta
            else iceberg.mirror_sink(self.mirror.catalog, self.aside, "g", design)
        )
        created = [Event("c", 2, ("b", "B"), 10, 2, 0, 1), Event("c", 3, ("c", "C"), 50, 4, 0, 3)]
        self.mirror.land([*created, Event("d", 3, ("c", "C"), 60, 5, 0, 4)], aside)

    def swap(self) -> Any:
        design = MirrorDesign(TableDesign(metadata=pa.schema([])))
        if isinstance(self.mirror, HandDeltaMirror):
            swap: Any = delta.mirror_swap(DeltaStorage(), self.mirror.place, "g", design, self.aside)
        else:
            swap = iceberg.mirror_swap(self.mirror.catalog, TABLE, "g", design, self.aside)
        swap.mirror.load("resnapshot")
        return swap

    def exchange(self, end: int, swap: Any = None, key: tuple[str, ...] = KEY) -> None:
        """Replace the mirror's rows by rows that reach up to an offset."""
        reach = RangeSet.of(IDENTITY.topic, 0, 0, end)
        landed = reach - RangeSet.of(IDENTITY.topic, 0, 0, 3)
        landing = Landing("swap", "resnapshot", {IDENTITY: TopicEntry(landed=landed)})
        (swap or self.swap()).exchange(landing, key, reach)

    def rows(self) -> dict[int, Any]:
        return self.mirror.rows()


@pytest.fixture(params=["iceberg", "delta"])
def resnapshot(request: pytest.FixtureRequest, tmp_path: Path) -> Resnapshot:
    return Resnapshot(tmp_path, request.param)


def test_a_swap_that_is_not_committed_keeps_what_the_mirror_remembers(resnapshot: Resnapshot) -> None:
    with pytest.raises(LedgerConflict):
        resnapshot.exchange(2)
    resnapshot.mirror.land([Event("u", 1, ("late", "L"), 30, 9, 1, 0)])
    assert resnapshot.rows() == {2: ("b", "B")}


@pytest.mark.parametrize("is_killed", [False, True], ids=["in one run", "killed behind its commit"])
def test_rows_deleted_while_new_ones_were_read_stay_deleted(resnapshot: Resnapshot, is_killed: bool) -> None:
    swap = resnapshot.swap()
    if is_killed:

        def die(*_: Any) -> None:
            raise Killed

        swap.table.add_entries = die
        with pytest.raises(Killed):
            resnapshot.exchange(5, swap)
        assert resnapshot.rows() == {2: ("b", "B")}
        resnapshot.swap().table.add_entries(KEY)
    else:
        resnapshot.exchange(5, swap)
    resnapshot.mirror.design = replace(resnapshot.mirror.design, key=KEY)
    late = [Event("c", 3, ("c", "C"), 50, 4, 1, 0), Event("c", 4, ("d", "D"), 70, 6, 1, 1)]
    resnapshot.mirror.land(late)
    assert resnapshot.rows() == {2: ("b", "B"), 4: ("d", "D")}
    # The old key's deletions do not concern the new key's rows.
    resnapshot.mirror.land([Event("c", 1, ("a", "A"), 30, 9, 1, 2)])
    assert resnapshot.rows() == {1: ("a", "A"), 2: ("b", "B"), 4: ("d", "D")}


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_batch_that_was_begun_before_the_swap_takes_nothing_from_what_is_remembered(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resnapshot = Resnapshot(tmp_path, kind, key=("id",))
    # Another binary log: the columns stay as they are.
    for module in (delta, iceberg):
        monkeypatch.setattr(module, "is_other_log", lambda *_: True)
    early = resnapshot.mirror.sink()
    early.load("run")
    early.write(rows_of([Event("d", 2, None, 80, 8, 1, 0)], resnapshot.mirror.kind), IDENTITY)
    resnapshot.exchange(5, key=("id",))
    with pytest.raises(StaleFiles, match="all rows of the mirror were replaced"):
        early.commit(landing_of([Event("d", 2, None, 80, 8, 1, 0)]))
    resnapshot.mirror.land([Event("c", 3, ("c", "C"), 50, 4, 1, 1)])
    assert resnapshot.rows() == {2: ("b", "B")}


def test_entries_of_a_dropped_mirror_with_another_key_are_replaced(resnapshot: Resnapshot) -> None:
    mirror = resnapshot.mirror
    if isinstance(mirror, HandDeltaMirror):
        Path(mirror.place).rename(f"{mirror.place}-gone")
        assert Path(f"{mirror.place}{SUFFIX}").is_dir()
    else:
        mirror.catalog.drop_table(TABLE)
    mirror.design = replace(mirror.design, key=KEY)
    mirror.land([Event("c", 1, ("a", "A"), 30, 1, 0, 20)])
    mirror.land([Event("d", 1, ("a", "A"), 60, 2, 0, 21)])
    mirror.land([Event("u", 1, ("a", "late"), 50, 2, 1, 0), Event("c", 2, ("b", "B"), 30, 3, 0, 22)])
    assert resnapshot.rows() == {2: ("b", "B")}
