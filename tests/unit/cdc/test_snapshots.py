"""A snapshot of the whole table, landed into a mirror that is there: what it did not read, is there no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.mirroring import Event, HandDeltaMirror, HandMirror, Values

KINDS = {"iceberg": HandMirror, "delta": HandDeltaMirror}
# Where the log stands when the table is read.
PLACE = 1_000


@pytest.fixture(params=["iceberg", "delta", "iceberg by executors", "delta by executors"])
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> HandMirror:
    kind, *by = request.param.split(" by ")
    return KINDS[kind](tmp_path, executors=2 if by else 0)


def row(key: int, text: str) -> Values:
    return text, text


def streamed(op: str, key: int, place: int, offset: int, text: str = "x") -> Event:
    return Event(op, key, None if op == "d" else row(key, text), place, place, 0, offset)


def snapshot(keys: Sequence[int], offset: int, place: int = PLACE) -> list[Event]:
    """Return the events of a snapshot: all of its rows stand at one place of the log."""
    marks = ["first", *["true"] * (len(keys) - 2), "last"] if len(keys) > 1 else ["last"]
    return [
        Event("r", key, row(key, "read"), place, place, 0, offset + number, mark)
        for number, (key, mark) in enumerate(zip(keys, marks, strict=True))
    ]


def old(count: int = 6) -> list[Event]:
    return [streamed("c", key, 10 + key, key, "old") for key in range(count)]


@pytest.mark.parametrize("sizes", [[4], [1, 3], [2, 1, 1], [3, 1]], ids=str)
def test_rows_that_it_did_not_read_go_with_its_end_in_however_many_batches(
    sizes: list[int], mirror: HandMirror
) -> None:
    mirror.land(old())
    events, gone = snapshot([0, 2, 4, 7], 10), {1, 3, 5}
    for number, size in enumerate(sizes):
        at = sum(sizes[:number])
        mirror.land(events[at : at + size])
        is_whole = at + size == len(events)
        assert gone & set(mirror.rows()) == (set() if is_whole else gone)
    assert mirror.rows() == {key: row(key, "read") for key in (0, 2, 4, 7)}
    # Sent again, or late from another partition.
    mirror.land([replace(one, partition=1) for one in old()])
    assert mirror.rows() == {key: row(key, "read") for key in (0, 2, 4, 7)}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_they_stay_marked_where_deleted_rows_stay(kind: str, tmp_path: Path) -> None:
    mirror = KINDS[kind](tmp_path, soft_delete=True)
    mirror.land(old(4))
    mirror.land([*old(1)[:0], streamed("u", 3, 500, 9, "new"), *snapshot([0, 2], 10)])
    assert mirror.rows() == {key: row(key, "read") for key in (0, 2)}
    assert mirror.deleted() == {1: row(1, "old"), 3: row(3, "new")}


@pytest.mark.parametrize("batches", [1, 2])
def test_the_first_snapshot_takes_nothing_and_what_was_open_then_comes_behind_it(
    batches: int, mirror: HandMirror
) -> None:
    # Its transaction began before the snapshot, was committed after it, and is the first one that is streamed: no
    # commit is known before it, only places in the log that are older than the snapshot's.
    late = [streamed("c", 9, PLACE - 5, 20, "open"), streamed("u", 1, PLACE - 4, 21, "open")]
    events = [*snapshot([1, 2, 3], 0), *late]
    cut = 3 if batches == 2 else len(events)
    mirror.land(events[:cut])
    if batches == 2:
        mirror.land(events[cut:])
    found = {1: row(1, "open"), 2: row(2, "read"), 3: row(3, "read"), 9: row(9, "open")}
    assert mirror.rows() == found
    mirror.land([streamed("d", 9, PLACE + 10, 30), streamed("c", 8, PLACE + 11, 31)])
    assert set(mirror.rows()) == {1, 2, 3, 8}


def test_two_snapshots_in_a_batch_and_a_truncation_between_them(mirror: HandMirror) -> None:
    mirror.land(old())
    between = [Event("t", None, None, PLACE + 1, PLACE + 1, 0, 20), streamed("c", 9, PLACE + 2, 21)]
    mirror.land([*snapshot([0, 2, 4], 10), *between, *snapshot([9, 10], 30, PLACE + 100)])
    assert set(mirror.rows()) == {9, 10}


@pytest.mark.parametrize("mark", ["incremental", "true", "first", "false", None])
def test_rows_that_are_read_in_another_way_take_nothing(mark: str | None, mirror: HandMirror) -> None:
    mirror.land(old())
    mirror.land([replace(one, snapshot=mark) for one in snapshot([0, 2], 10)])
    assert set(mirror.rows()) == set(range(6))
