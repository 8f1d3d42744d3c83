"""Histories of rows equal a model that takes one record after the other, for random records, batches and formats."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import COMMIT, TIME, UNAVAILABLE
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.cdc.stops import StopReason
from airflow_lakestream.core.policies import MergeMode
from tests.support.keyed import Follower, Record, Source, stopped
from tests.support.keyed_models import FIELDS, KeyHistory, Row, day
from tests.support.mirroring import Event, HandDeltaMirror, HandMirror, landing_of, rows_of
from tests.unit.cdc.strategies import cut, histories, shuffled, with_copies

FEW = settings.get_profile(settings.get_current_profile_name()).max_examples // 2
MIRRORS = {"iceberg": HandMirror, "delta": HandDeltaMirror}

RECORDS = st.fixed_dictionaries(
    {"at": st.integers(-3, 3)},
    optional={
        "a": st.sampled_from([None, 1, 2]),
        "b": st.sampled_from([None, {"c": 1}, {"c": None}]),
        "op": st.sampled_from([None, "U", "D"]),
    },
)


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.data(),
    st.booleans(),
    st.sampled_from([(), ("a",), ("b",), ("op", "a")]),
    st.lists(st.tuples(st.integers(0, 2), RECORDS), min_size=1, max_size=12),
    st.sampled_from(sorted(MIRRORS)),
)
def test_a_version_begins_when_one_of_its_columns_changes_however_late_records_come(
    data: st.DataObject, is_given: bool, columns: Sequence[str], records: list[tuple[int, Row]], table_format: str
) -> None:
    ends = sorted(data.draw(st.sets(st.integers(1, len(records)), max_size=4)) | {len(records)})
    asked: Row = {"envelope": None, "key": ["id"], "history": True, "sequence_by": "at", "delete_when": "op = 'D'"}
    asked |= {"schema": "id bigint, at timestamptz, a bigint, b struct<c: bigint>, op string"}
    asked |= {"history_columns": list(columns)} if columns else {}
    asked |= {"merge": "given"} if is_given else {}
    model: dict[int, KeyHistory] = {}
    with tempfile.TemporaryDirectory() as folder:
        modes = [MergeMode.AUTO] if table_format == "delta" else [*MergeMode]
        mirror = MIRRORS[table_format](Path(folder), modes=modes, executors=data.draw(st.sampled_from([0, 2])))
        follower = Follower(mirror, asked)
        for start, end in pairwise([0, *ends]):
            batch = []
            for number in range(start, end):
                key, record = records[number]
                row = ({} if is_given else dict.fromkeys(FIELDS)) | record
                own = model.setdefault(key, KeyHistory(columns))
                own.land((record["at"], number), {name: value for name, value in row.items() if name != "at"})
                value = json.dumps(record | {"id": key, "at": str(day(record["at"]))}).encode()
                batch.append(Record(None, value))
            follower.land(batch)
            names = (*FIELDS, "_valid_from", "_valid_to", "_is_current")
            found = sorted(mirror.found(), key=lambda row: (row["id"], row["_valid_from"], row["_kafka_offset"]))
            for key in range(3):
                rows = [{name: row[name] for name in names} for row in found if row["id"] == key]
                assert rows == (model[key].rows() if key in model else [])


Change = tuple[int, Any, int, int | None]


def versions_of(events: Iterable[Event], columns: Sequence[str] = ()) -> list[Change]:
    """Return key, values, begin and end of all versions, by one event after the other in the order of the log."""
    distinct = {(one.commit, one.position, one.key, one.op == "d"): one for one in events}
    open_: dict[int, list[Any]] = {}
    moved: dict[tuple[int, int], Any] = {}
    found: list[list[Any]] = []
    for one in sorted(distinct.values(), key=lambda one: (one.commit, one.position, one.op != "d")):
        if one.op == "t":
            for row in open_.values():
                row[3] = one.commit
            open_ = {}
            continue
        assert one.key is not None
        before = open_.pop(one.key, None)
        if one.op == "d":
            moved[one.commit, one.position] = before and before[1]
            if before:
                before[3] = one.commit
            continue
        name, big = one.values or (None, None)
        held = before[1] if before else moved.get((one.commit, one.position))
        big = held[1] if big == UNAVAILABLE and held else big
        if columns and before and before[1][0] == name:
            before[1] = (name, big)
            open_[one.key] = before
            continue
        if before:
            before[3] = one.commit
        open_[one.key] = [one.key, (name, big), one.commit, None]
        found.append(open_[one.key])
    return sorted(tuple(one) for one in found)


def land(mirror: HandMirror, events: Sequence[Event]) -> None:
    """Land events whose commits are at the millisecond of their number."""
    sink = mirror.sink()
    sink.load("run")
    rows = rows_of(events, mirror.kind)
    mirror.take(sink, rows.append_column(TIME, pc.multiply(rows[COMMIT], 1000)))
    sink.commit(landing_of(events))


def found_in(mirror: HandMirror) -> list[Change]:
    """Return key, values, begin and end in milliseconds of all rows."""

    def millis(time: datetime | None) -> int | None:
        return None if time is None else int(time.timestamp() * 1000)

    rows = mirror.found()
    assert all(row["_is_current"] == (row["_valid_to"] is None) for row in rows)
    found = [
        (row["id"], (row["name"], row["big"]), millis(row["_valid_from"]), millis(row["_valid_to"])) for row in rows
    ]
    return sorted(found, key=lambda one: one[:3])


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.sampled_from(["late", "left out", "columns"]), st.sampled_from(sorted(MIRRORS)))
def test_the_history_of_a_databases_table_has_each_version_until_the_next_one(
    data: st.DataObject, kind: str, table_format: str
) -> None:
    events = data.draw(histories(leaves_out=kind != "late"))
    if kind == "late":
        events = [replace(one, partition=hash((one.key, one.op == "t")) % 2) for one in events]
        delivered = shuffled(data.draw, events)
    else:
        delivered = with_copies(data.draw, events, 1)
    columns = ("name",) if kind == "columns" else ()
    with tempfile.TemporaryDirectory() as folder:
        modes = [MergeMode.AUTO] if table_format == "delta" else [*MergeMode]
        mirror = MIRRORS[table_format](Path(folder), modes=modes, executors=data.draw(st.sampled_from([0, 2])))
        history(mirror, columns)
        seen: list[Event] = []
        for part in cut(data.draw, delivered):
            land(mirror, part)
            seen += part
            assert found_in(mirror) == sorted(versions_of(seen, columns), key=lambda one: one[:3])


@pytest.fixture(params=sorted(MIRRORS))
def mirror(request: pytest.FixtureRequest, tmp_path: Path) -> HandMirror:
    return history(MIRRORS[request.param](tmp_path))


def history(mirror: HandMirror, columns: tuple[str, ...] = ()) -> HandMirror:
    """Return a mirror that keeps each version of a row."""
    rows = RowStrategy.of(soft_delete=False, history=True, by_columns=bool(columns))
    mirror.design = replace(mirror.design, rows=rows, history_columns=columns)
    return mirror


@pytest.mark.parametrize("columns", [(), ("name",)])
def test_a_deletion_whose_row_was_never_seen_ends_only_the_row_that_comes_late(
    mirror: HandMirror, columns: tuple[str, ...]
) -> None:
    history(mirror, columns)
    kept = Event("c", 9, ("kept", "K"), 1, 1, 0, 0)
    land(mirror, [kept, Event("d", 1, None, 20, 20, 0, 1)])
    assert found_in(mirror) == [(9, ("kept", "K"), 1, None)]
    # Of another partition: the row from before the deletion, and the one after it, which has the same values.
    land(mirror, [Event("c", 1, ("a", "A"), 30, 30, 1, 1)])
    land(mirror, [Event("c", 1, ("a", "A"), 10, 10, 1, 0)])
    expected = [(1, ("a", "A"), 10, 20), (1, ("a", "A"), 30, None), (9, ("kept", "K"), 1, None)]
    assert found_in(mirror) == sorted(expected, key=lambda one: one[:3])
    land(mirror, [replace(kept, offset=2), Event("d", 1, None, 20, 20, 0, 3)])
    assert found_in(mirror) == sorted(expected, key=lambda one: one[:3])


@pytest.fixture
def follower(mirror: HandMirror) -> Follower:
    return Follower(mirror, {"history": True})


def current(follower: Follower) -> tuple[list[int], list[int]]:
    """Return the ids of current rows, and of ended ones."""
    rows = sorted(follower.rows(), key=lambda row: row["id"])
    ids = {is_current: [row["id"] for row in rows if row["_is_current"] == is_current] for is_current in (True, False)}
    return ids[True], ids[False]


def test_a_deletion_that_has_another_rows_values_stops_a_history(follower: Follower) -> None:
    source = Source()
    source.begin()
    follower.land([one for key in (0, 1) for one in source.change(None, {"id": key, "u": 10 + key})])
    source.begin()
    stopped(follower, [source.event("d", {"id": 0, "u": 11}, None)], StopReason.KEY_NOT_SENT, "USING INDEX")
    # Also if the row is one of the batch.
    source.begin()
    created = source.change(None, {"id": 2, "u": 12})
    stopped(follower, [*created, source.event("d", {"id": 0, "u": 12}, None)], StopReason.KEY_NOT_SENT, "USING INDEX")
    follower.land([*created, source.event("d", {"id": 0, "u": 10}, None)])
    assert current(follower) == ([1, 2], [0])


def test_two_rows_of_a_key_where_a_batch_ends_stop_a_history(follower: Follower) -> None:
    source, row = Source(), {"id": 3, "u": 13}
    source.begin()
    follower.land(source.change(None, {"id": 9, "u": 19}))
    source.begin()
    # The constraint is DEFERRABLE: the next batch deletes the first row of both.
    twice = [*source.change(None, row), *source.change(None, row | {"u": 99})]
    stopped(follower, twice, StopReason.ORDER_UNKNOWN, r"orders\[0\] offset 2: .* DEFERRABLE")
    follower.land([*twice, *source.change(row, None)])
    assert current(follower)[0] == [3, 9]
    assert [row["u"] for row in follower.rows() if row["id"] == 3 and row["_is_current"]] == [99]


PLACE = 1_000


@pytest.mark.parametrize("sizes", [[7], [3, 4], [4, 1, 1, 1], [3, 2, 2]], ids=str)
@pytest.mark.parametrize("columns", [(), ("name",)])
def test_a_snapshot_in_between_ends_the_rows_that_it_has_not_read(
    mirror: HandMirror, columns: tuple[str, ...], sizes: list[int]
) -> None:
    history(mirror, columns)
    old = [Event("c", key, (f"old{key}", "x"), 10 + key, 10 + key, 0, key) for key in range(3)]
    marks = {0: "first", 4: "true", 2: "last"}
    read = [
        Event("r", key, (f"new{key}", "x"), PLACE, PLACE, 0, 10 + number, mark)
        for number, (key, mark) in enumerate(marks.items())
    ]
    update = Event("u", 4, ("newer4", "x"), PLACE + 10, PLACE + 10, 0, 20)
    events, start = [*old, *read, update], 0
    for size in sizes:
        land(mirror, events[start : start + size])
        start += size
    expected = [
        (0, ("old0", "x"), 10, PLACE),
        (0, ("new0", "x"), PLACE, None),
        (1, ("old1", "x"), 11, PLACE),
        (2, ("old2", "x"), 12, PLACE),
        (2, ("new2", "x"), PLACE, None),
        (4, ("new4", "x"), PLACE, PLACE + 10),
        (4, ("newer4", "x"), PLACE + 10, None),
    ]
    assert found_in(mirror) == sorted(expected, key=lambda one: one[:3])
    # Sent again, or late from another partition: the snapshot has not read it.
    late = Event("c", 6, ("old6", "x"), 16, 16, 1, 6)
    land(mirror, [*(replace(one, partition=1) for one in old), late])
    assert found_in(mirror) == sorted([*expected, (6, ("old6", "x"), 16, PLACE)], key=lambda one: one[:3])


def test_values_come_from_the_record_before_in_batches_of_many_keys(mirror: HandMirror) -> None:
    """Absent values, deletions and late records of keys of one batch do not reach each other."""
    asked: Row = {"envelope": None, "key": ["id"], "history": True, "sequence_by": "at", "delete_when": "op = 'D'"}
    asked |= {"schema": "id bigint, at timestamptz, a bigint, op string", "history_columns": ["a"], "merge": "given"}
    follower = Follower(mirror, asked)

    def record(key: int, at: int, **values: Any) -> Record:
        return Record(None, json.dumps({"id": key, "at": str(day(at)), **values}).encode())

    follower.land([record(key, 0, a=key) for key in range(100)])
    # By turns: the same value, none, another, a deletion, and a record that is late.
    changes: list[Row] = [{}, {}, {"a": -1}, {"op": "D"}, {"a": -7}]
    follower.land([record(key, -1 if key % 5 == 4 else 1, **({"a": key} if key % 5 == 0 else changes[key % 5]))
                   for key in range(100)])  # fmt: skip
    follower.land([record(key, 2, op="U") for key in range(100)])
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in sorted(mirror.found(), key=lambda row: (row["id"], row["_valid_from"])):
        found.setdefault(row["id"], []).append((row["a"], row["_valid_from"], row["_valid_to"]))
    whole = {
        0: lambda key: [(key, day(0), None)],
        1: lambda key: [(key, day(0), None)],
        2: lambda key: [(key, day(0), day(1)), (-1, day(1), None)],
        3: lambda key: [(key, day(0), day(1)), (None, day(2), None)],
        4: lambda key: [(-7, day(-1), day(0)), (key, day(0), None)],
    }
    assert found == {key: whole[key % 5](key) for key in range(100)}


@pytest.mark.parametrize("kind", MIRRORS)
def test_each_column_may_begin_versions_also_the_key(kind: str, tmp_path: Path) -> None:
    asked: Row = {"envelope": None, "key": ["id"], "history": True, "sequence_by": "at"}
    asked |= {"schema": "id bigint, at timestamptz, a bigint", "history_columns": ["id", "at", "a"]}
    follower = Follower(MIRRORS[kind](tmp_path), asked)
    for a in (1, 2):
        follower.land([Record(None, json.dumps({"id": 7, "at": str(day(a)), "a": a}).encode())])
    found = sorted((row["id"], row["a"], row["_valid_to"]) for row in follower.mirror.found())
    assert found == [(7, 1, day(2)), (7, 2, None)]
