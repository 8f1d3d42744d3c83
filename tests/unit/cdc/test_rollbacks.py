"""A mirror that is rolled back and landed again equals a mirror that was never rolled back, after each landing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from airflow_lakestream.cdc.columns import COMMIT, TIME, UNAVAILABLE
from airflow_lakestream.cdc.rows import RowStrategy
from tests.support.mirroring import Event, HandDeltaMirror, HandMirror, landing_of, rows_of

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


def events_of(rng: Random) -> list[Event]:
    """Return events of a table of few rows: a row may be truncated, deleted, or get another key."""
    events, rows = list[Event](), set[int]()
    for at in range(1, 15):
        key, place = rng.randrange(4), {"commit": at * 10, "position": at * 10}
        kind = rng.choice(["write"] * 4 + ["move", "delete", "truncate"])
        free = [one for one in range(4) if one not in rows]
        if kind == "truncate":
            events.append(Event("t", None, None, **place))
            rows.clear()
        elif key not in rows or kind == "write":
            big = UNAVAILABLE if key in rows and at % 2 else f"big{at}"
            events.append(Event("u" if key in rows else "c", key, (f"n{at}", big), **place))
            rows.add(key)
        else:
            events.append(Event("d", key, None, **place))
            rows.discard(key)
            if kind == "move" and free:
                events.append(Event("c", free[0], (f"n{at}", UNAVAILABLE), **place))
                rows.add(free[0])
    return [replace(one, offset=number) for number, one in enumerate(events)]


@pytest.mark.parametrize("kind", sorted(MIRRORS))
@pytest.mark.parametrize("strategy", RowStrategy)
@pytest.mark.parametrize("seed", range(2))
def test_a_mirror_that_was_rolled_back_equals_one_that_never_was(
    tmp_path: Path, kind: str, strategy: RowStrategy, seed: int
) -> None:
    events = events_of(rng := Random(seed))
    stay = rng.randint(1, 4)
    rolled, other = (mirror_of(kind, tmp_path / name, strategy) for name in ("rolled", "other"))
    for mirror in (rolled, other):
        land(mirror, events[:stay])
    head = head_of(rolled)
    end = rng.randint(stay + 1, len(events) - 1)
    for part in (events[stay:end], events[end:]):
        land(rolled, part)
    roll_back(rolled, head)
    for one in events[stay:]:
        assert found_in(rolled) == found_in(other)
        land(rolled, [one])
        land(other, [one])
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
