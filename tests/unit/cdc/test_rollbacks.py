"""A mirror that is rolled back and landed again equals a mirror that was never rolled back, after each landing."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import COMMIT, TIME, UNAVAILABLE
from airflow_lakestream.cdc.rows import RowStrategy
from tests.support.mirroring import Event, HandDeltaMirror, HandMirror, landing_of, rows_of
from tests.unit.cdc.strategies import cut, histories, shuffled

FEW = settings.get_profile(settings.get_current_profile_name()).max_examples // 2
MIRRORS = {"iceberg": HandMirror, "delta": HandDeltaMirror}


def mirror_of(kind: str, folder: Path, strategy: RowStrategy) -> HandMirror:
    mirror = MIRRORS[kind](folder)
    columns = ("name",) if strategy is RowStrategy.CHANGES else ()
    mirror.design = replace(mirror.design, rows=strategy, history_columns=columns)
    return mirror


def land(mirror: HandMirror, events: Sequence[Event]) -> None:
    """Land events whose commits are at the millisecond of their number."""
    sink = mirror.sink()
    sink.load("run")
    rows = rows_of(events, mirror.kind)
    mirror.take(sink, rows.append_column(TIME, pc.multiply(rows[COMMIT], 1000)))
    sink.commit(landing_of(events))


def head_of(mirror: HandMirror) -> int:
    if isinstance(mirror, HandDeltaMirror):
        return int(DeltaTable(mirror.place).version())
    snapshot = mirror.table().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def roll_back(mirror: HandMirror, head: int) -> None:
    if isinstance(mirror, HandDeltaMirror):
        DeltaTable(mirror.place).restore(head)
    else:
        mirror.table().manage_snapshots().rollback_to_snapshot(head).commit()


def found_in(mirror: HandMirror) -> list[str]:
    return sorted(map(repr, mirror.found()))


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.sampled_from(sorted(MIRRORS)), st.sampled_from(RowStrategy), st.booleans())
def test_a_mirror_that_was_rolled_back_equals_one_that_never_was(
    data: st.DataObject, kind: str, strategy: RowStrategy, is_late: bool
) -> None:
    events = data.draw(histories(leaves_out=not is_late))
    if is_late:
        events = [replace(one, partition=hash((one.key, one.op == "t")) % 2) for one in events]
        events = shuffled(data.draw, events)
    parts = cut(data.draw, events)
    stay = data.draw(st.integers(1, len(parts)))
    with tempfile.TemporaryDirectory() as folder:
        rolled, other = (mirror_of(kind, Path(folder, name), strategy) for name in ("rolled", "other"))
        heads = list[int]()
        for part in parts:
            land(rolled, part)
            heads.append(head_of(rolled))
        if stay < len(parts):
            roll_back(rolled, heads[stay - 1])
        for part in parts[:stay]:
            land(other, part)
        for part in cut(data.draw, events[sum(map(len, parts[:stay])) :]):
            assert found_in(rolled) == found_in(other)
            land(rolled, part)
            land(other, part)
        assert found_in(rolled) == found_in(other)


@pytest.mark.parametrize("kind", sorted(MIRRORS))
@pytest.mark.parametrize("end", [Event("d", 1, None, 30, 30, offset=3), Event("t", None, None, 30, 30, offset=3)])
def test_a_deleted_row_has_the_values_that_it_had_last_also_after_a_rollback(
    tmp_path: Path, kind: str, end: Event
) -> None:
    mirror = mirror_of(kind, tmp_path, RowStrategy.MARKED)
    mirror.land([Event("c", 1, ("first", "F"), 10, 10, offset=1)])
    head = head_of(mirror)
    update = Event("u", 1, ("last", "L"), 20, 20, offset=2)
    mirror.land([update, end])
    roll_back(mirror, head)
    mirror.land([update])
    assert (mirror.rows(), mirror.deleted()) == ({1: ("last", "L")}, {})
    mirror.land([end])
    assert (mirror.rows(), mirror.deleted()) == ({}, {1: ("last", "L")})


@pytest.mark.parametrize("kind", sorted(MIRRORS))
@pytest.mark.parametrize("strategy", [RowStrategy.CURRENT, RowStrategy.MARKED])
def test_a_row_with_a_new_key_has_the_values_that_its_event_leaves_out_also_after_a_rollback(
    tmp_path: Path, kind: str, strategy: RowStrategy
) -> None:
    mirror = mirror_of(kind, tmp_path, strategy)
    mirror.land([Event("c", 9, ("other", "O"), 5, 5, offset=0)])
    head = head_of(mirror)
    created = Event("c", 1, ("first", "F"), 10, 10, offset=1)
    moved = [
        Event("d", 1, None, 20, 20, offset=2),
        Event("c", 2, ("moved", UNAVAILABLE), 20, 20, offset=3),
    ]
    mirror.land([created])
    mirror.land(moved)
    roll_back(mirror, head)
    mirror.land([created])
    mirror.land(moved)
    assert mirror.rows() == {9: ("other", "O"), 2: ("moved", "F")}
