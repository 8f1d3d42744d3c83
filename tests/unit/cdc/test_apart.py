"""Events whose values stay in files that executors read: when a driver needs no more of them, and when it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.cdc.columns import LEAVES_OUT, UNAVAILABLE
from airflow_lakestream.cdc.events import apart as events_apart
from airflow_lakestream.cdc.events.apart import EventNumbers, EventRowReader
from airflow_lakestream.cdc.events.notes import with_notes
from airflow_lakestream.cdc.events.taken import CommitEvents
from airflow_lakestream.core.policies import MergeMode
from tests.support.keyed import Follower, Record, Source
from tests.support.mirroring import Elsewhere, Event, HandDeltaMirror, HandMirror, landing_of, rows_of

KINDS = {"iceberg": HandMirror, "delta": HandDeltaMirror}


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many files the driver reads as a whole, by batch."""
    calls, original = list[int](), CommitEvents.joined

    def join(self: CommitEvents, *arguments: Any, **named: Any) -> pa.Table:
        calls.append(len(self.files))
        return original(self, *arguments, **named)

    monkeypatch.setattr(CommitEvents, "joined", join)
    return calls


@pytest.fixture(params=sorted(KINDS))
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> HandMirror:
    return KINDS[request.param](tmp_path, executors=2)


def created(keys: Sequence[int]) -> list[Event]:
    return [Event("c", key, (f"n{key}", f"B{key}"), 1, key, offset=key) for key in keys]


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("iceberg", MergeMode.COPY_ON_WRITE), ("iceberg", MergeMode.MERGE_ON_READ), ("delta", MergeMode.AUTO)],
)
def test_rows_go_from_files_of_events_into_those_of_the_mirror_and_not_by_the_driver(
    kind: str, mode: MergeMode, tmp_path: Path, joined: list[int]
) -> None:
    hands = Elsewhere()
    mirror = KINDS[kind](tmp_path, modes=[mode], pool=hands, executors=3)
    mirror.land(created(range(20)))
    joined.clear()
    updated = [Event("u", key, ("new", f"B{key}"), 2, key, offset=100 + key) for key in (3, 7, 19)]
    gone, late = Event("d", 5, None, 2, 30, offset=130), Event("u", 7, ("late", "B"), 1, 0, partition=1, offset=0)
    added = [Event("c", key, ("more", "B"), 3, key, offset=200 + key) for key in (40, 30)]
    mirror.land([*updated, gone, late, *added])
    assert joined == []
    expected = {key: (f"n{key}", f"B{key}") for key in range(20) if key != 5}
    expected |= {key: ("new", f"B{key}") for key in (3, 7, 19)} | dict.fromkeys((30, 40), ("more", "B"))
    assert mirror.rows() == expected
    assert all(keys == sorted(keys) for keys in mirror.keys_by_file() if 0 not in keys)
    assert "RowWriteTask" in hands.works
    assert ("FileRewriteTask" in hands.works) == (mode is not MergeMode.MERGE_ON_READ)


def changed(mirror: HandMirror) -> None:
    mirror.land(created(range(3)))
    mirror.land([Event("u", 1, ("new", UNAVAILABLE), 2, 1, offset=10), Event("u", 2, ("two", "B2"), 2, 2, offset=11)])
    assert mirror.rows() == {0: ("n0", "B0"), 1: ("new", "B1"), 2: ("two", "B2")}


def deleted_after_an_update(mirror: HandMirror) -> None:
    mirror.land(created(range(3)))
    # The next event may leave out what this row had: its key may have changed.
    mirror.land([Event("u", 1, ("new", "B"), 2, 1, offset=10), Event("d", 1, None, 3, 2, offset=11)])
    mirror.land([Event("c", 9, ("moved", UNAVAILABLE), 3, 2, offset=12)])
    assert mirror.rows() == {0: ("n0", "B0"), 2: ("n2", "B2"), 9: ("moved", "B")}


def of_other_columns(mirror: HandMirror) -> None:
    mirror.land(created(range(3)))
    events = [Event("u", 1, ("new", "B"), 2, 1, offset=10), Event("u", 2, ("two", "B2"), 2, 2, offset=11)]
    rows, sink = [rows_of([one], mirror.kind) for one in events], mirror.sink()
    sink.load("run")
    mirror.executors = 1
    mirror.take(sink, rows[0])
    mirror.take(sink, rows[1].append_column("w", pa.array([7], pa.int32())))
    sink.commit(landing_of(events))
    assert {row["id"]: row["w"] for row in mirror.found()} == {0: None, 1: None, 2: 7}


def unnoted(mirror: HandMirror) -> None:
    mirror.land(created(range(3)))
    sink, event = mirror.sink(), Event("u", 1, ("new", UNAVAILABLE), 2, 1, offset=10)
    sink.load("run")
    rows = with_notes(rows_of([event], mirror.kind).append_column("_cdc_key_names", pa.array(['["id"]'])), ())
    at = rows.column_names.index(LEAVES_OUT)
    mirror.take(sink, rows.set_column(at, LEAVES_OUT, pa.nulls(1, pa.bool_())))
    sink.commit(landing_of([event]))
    assert mirror.rows()[1] == ("new", "B1")


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (changed, "values are left out"),
        (deleted_after_an_update, "the batch ends with a deletion, and has an earlier event of the row"),
        (of_other_columns, "executors saw different columns"),
        (unnoted, "some events have no notes"),
    ],
)
def test_the_driver_reads_all_of_it_where_values_decide_and_says_why(
    case: Callable[[HandMirror], None],
    reason: str,
    mirror: HandMirror,
    joined: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    case(mirror)
    assert f"reads whole events of this batch: {reason}." in caplog.text
    # The first batch founds the mirror.
    assert joined[0] == 0
    assert joined[1] > 0


def test_the_driver_reads_all_of_it_where_a_key_was_changed(
    tmp_path: Path, joined: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    # The mirror's key is not the database's, so that Debezium sends no deletion of the old key.
    source, follower = Source(key=("u",)), Follower(HandMirror(tmp_path, executors=1), {"key": ["id"]})
    old, new = {"id": 1, "u": 7, "v": "a"}, {"id": 2, "u": 7, "v": "b"}
    source.begin()
    follower.land([*source.change(None, old), *source.change(None, {"id": 9, "u": 8, "v": "c"})])
    source.begin()
    follower.land([source.event("u", old, new), *source.change(None, {"id": 3, "u": 9, "v": "d"})])
    assert {row["id"]: row["v"] for row in follower.rows()} == {2: "b", 3: "d", 9: "c"}
    assert joined == [0, 1]
    assert "reads whole events of this batch: a key was changed." in caplog.text


def test_the_driver_reads_all_of_it_where_deleted_rows_stay(tmp_path: Path, joined: list[int]) -> None:
    mirror = HandMirror(tmp_path, soft_delete=True, executors=1)
    mirror.land(created(range(3)))
    mirror.land([Event("u", 1, ("new", "B"), 2, 1, offset=10), Event("d", 1, None, 3, 2, offset=11)])
    assert joined == [0, 1]
    assert mirror.deleted() == {1: ("new", "B")}


def test_executors_do_not_read_all_of_a_batch_that_is_too_large_for_them(
    mirror: HandMirror, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.land(created(range(3)))
    monkeypatch.setattr(events_apart, "MOST_BYTES", 1)
    mirror.land([Event("u", key, ("new", "B"), 2, key, offset=10 + key) for key in (1, 2)])
    assert joined == [0, 2]
    assert mirror.rows()[1] == ("new", "B")


def only_key(source: Source, key: int) -> Record:
    """Return a deletion as the database sends it by default: with the key, and with nothing of the row."""
    return source.event("d", {"id": key, "v": "", "w": 0}, None)


@pytest.mark.parametrize(
    ("case", "is_read"),
    [("keys only", False), ("whole rows", True), ("one key twice", True), ("the key zero", False)],
)
def test_transactions_that_may_go_on_are_settled_by_values_only_where_there_are_some(
    case: str, is_read: bool, tmp_path: Path, joined: list[int]
) -> None:
    source, follower = Source(), Follower(HandMirror(tmp_path, executors=2), {"key": ["id"]})
    source.begin()
    follower.land([record for key in (0, 1, 2) for record in source.change(None, {"id": key, "v": "a", "w": 7})])
    source.begin()
    gone = {"id": 1, "v": "a", "w": 7}
    key = 0 if case == "the key zero" else 1
    records = source.change(gone, None) if case == "whole rows" else [only_key(source, key)]
    source.begin()
    records += source.change(None, {"id": 5, "v": "b", "w": 8})
    if case == "one key twice":
        records += source.change({"id": 5, "v": "b", "w": 8}, {"id": 5, "v": "c", "w": 8})
    follower.land(records)
    assert joined == [0, *([2] if is_read else [])]
    last = "c" if case == "one key twice" else "b"
    stay = {one: "a" for one in (0, 1, 2) if one != key}
    assert {row["id"]: row["v"] for row in follower.rows()} == {**stay, 5: last}


def test_versions_go_along_where_they_are_others_than_in_the_files(
    mirror: HandMirror, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, original = list[EventNumbers](), EventRowReader.__call__

    def read(self: EventRowReader, numbered: EventNumbers) -> pa.Table:
        wanted.append(numbered)
        return original(self, numbered)

    monkeypatch.setattr(EventRowReader, "__call__", read)
    mirror.land(created(range(3)))
    mirror.land([Event("u", 2, ("plain", "B"), 2, 2, offset=5)])
    assert [one.versions for one in wanted] == [None] * len(wanted)
    wanted.clear()
    # It was open when the snapshot began, and is read behind it: it counts as later.
    read_all = [replace(one, op="r", commit=1000, position=1000, offset=10 + one.key) for one in created([0, 1])]
    snapshot = [replace(read_all[0], snapshot="first"), replace(read_all[1], snapshot="last")]
    mirror.land([*snapshot, Event("u", 1, ("open", "B"), 990, 995, offset=20)])
    assert any(one.versions is not None for one in wanted)
    assert joined == [0]
    assert mirror.rows() == {0: ("n0", "B0"), 1: ("open", "B")}
    assert {row["id"]: row["_cdc_commit"] for row in mirror.found()} == {0: 1000, 1: 1000}
