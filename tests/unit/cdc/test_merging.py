"""What events come to in a mirror, against the slow way: in whatever batches, late, twice, and with values left out."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.iceberg import mirror_sink
from airflow_lakestream.cdc.merge import merge as merging
from airflow_lakestream.cdc.merge.merge import BatchMerger, MergeResult
from airflow_lakestream.cdc.merge.values import ValueMissing
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.core.ports import LedgerConflict
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.ledger_store import read_ledger
from tests.support.lake import assert_files_are_whole, assert_totals_are_right, compact
from tests.support.mirroring import (
    IDENTITY,
    KINDS,
    Event,
    HandMirror,
    again,
    come_to,
    deleted_by,
    landing_of,
    rows_of,
)
from tests.unit.cdc.strategies import cut, histories, shuffled

FEW = settings.get_profile(settings.get_current_profile_name()).max_examples // 2


MODES = st.lists(st.sampled_from(MergeMode), min_size=1, max_size=4)
# Who takes the events: this process, or so many executors.
EXECUTORS = st.sampled_from([0, 1, 3])


@pytest.fixture(
    params=[(MergeMode.COPY_ON_WRITE, 0), (MergeMode.COPY_ON_WRITE, 2), (MergeMode.MERGE_ON_READ, 1)],
    ids=["copy-on-write", "copy-on-write by executors", "merge-on-read by an executor"],
)
def mirror(tmp_path: Path, request: pytest.FixtureRequest) -> HandMirror:
    mode, executors = request.param
    return HandMirror(tmp_path, modes=[mode], executors=executors)


@pytest.fixture
def rewritten(tmp_path: Path) -> HandMirror:
    return HandMirror(tmp_path, modes=[MergeMode.COPY_ON_WRITE])


@pytest.mark.long
@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans(), MODES, EXECUTORS)
def test_in_any_order_a_mirror_is_what_all_events_so_far_come_to(
    data: st.DataObject, soft_delete: bool, modes: list[MergeMode], executors: int
) -> None:
    events = data.draw(histories(leaves_out=False))
    events = [replace(one, partition=hash((one.key, one.op == "t")) % 2) for one in events]
    with tempfile.TemporaryDirectory() as folder:
        mirror = HandMirror(Path(folder), soft_delete=soft_delete, modes=modes, executors=executors)
        seen: list[Event] = []
        for part in cut(data.draw, shuffled(data.draw, events)):
            mirror.land(part)
            seen += part
            if data.draw(st.integers(0, 3)) == 0:
                compact(mirror.table())
            assert mirror.rows() == come_to(seen)
        assert_files_are_whole(mirror.table())
        assert_totals_are_right(mirror.table())


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans(), st.sampled_from(sorted(KINDS)), MODES, EXECUTORS)
def test_values_that_events_leave_out_are_kept(
    data: st.DataObject, soft_delete: bool, kind: str, modes: list[MergeMode], executors: int
) -> None:
    events = data.draw(histories(leaves_out=True))
    expected = come_to(events)
    assert all(big != UNAVAILABLE and big is not None for _, big in expected.values())
    # A connector that was restarted sends the end of what it had sent once more.
    repeated = data.draw(st.integers(0, len(events)))
    delivered = events + again(events[len(events) - repeated :], len(events))
    with tempfile.TemporaryDirectory() as folder:
        mirror = HandMirror(Path(folder), soft_delete=soft_delete, kind=kind, modes=modes, executors=executors)
        for part in cut(data.draw, delivered):
            mirror.land(part)
        assert mirror.rows() == expected
        if soft_delete:
            assert mirror.deleted() == deleted_by(events)


def test_a_late_event_brings_no_deleted_row_back_and_a_batch_twice_changes_nothing(mirror: HandMirror) -> None:
    first = [Event("c", 1, ("a", "A"), 100, 1, offset=0), Event("c", 2, ("b", "B"), 100, 2, offset=1)]
    mirror.land(first)
    mirror.land([Event("d", 1, None, 300, 5, offset=3)])
    mirror.land([Event("u", 1, ("late", "L"), 200, 3, partition=1, offset=0)])
    assert mirror.rows() == {2: ("b", "B")}
    # The same events at new offsets, as a connector sends them that was restarted.
    mirror.land(again(first, 10))
    assert mirror.rows() == {2: ("b", "B")}
    with pytest.raises(LedgerConflict):
        mirror.land(first)


def test_a_late_event_changes_nothing_though_others_of_its_batch_are_newer_than_all_rows(mirror: HandMirror) -> None:
    mirror.land([Event("c", key, ("a", "A"), 100 * key, key, offset=key) for key in (1, 2, 3)])
    # Of the row with its key it is not the later one, but the batch's first event is older than only some rows.
    late = Event("u", 2, ("late", "L"), 150, 1, partition=1, offset=0)
    mirror.land([late, Event("u", 1, ("new", "N"), 400, 1, offset=10), Event("d", 3, None, 500, 1, offset=11)])
    assert mirror.rows() == {1: ("new", "N"), 2: ("a", "A")}


@pytest.mark.parametrize("batch", ["in the table", "in the batch", "under another key"])
def test_a_value_is_not_taken_from_what_is_sent_again_after_the_event_that_leaves_it_out(
    mirror: HandMirror, batch: str
) -> None:
    created, changed = (Event("c", 1, ("a", "A"), 100, 1, offset=0), Event("u", 1, ("b", "B"), 200, 2, offset=1))
    kept = Event("u", 1, ("c", UNAVAILABLE), 300, 3, offset=2)
    moved = [Event("d", 1, None, 300, 3, offset=2), Event("c", 2, ("c", UNAVAILABLE), 300, 3, offset=3)]
    if batch == "in the table":
        mirror.land([created, changed])
        # In the source's order the creation stands right ahead of the update, and the change between them is not here.
        mirror.land([kept, *again([created], 3)])
    elif batch == "in the batch":
        mirror.land([created])
        mirror.land([changed, kept, *again([created], 3)])
    else:
        mirror.land([created, changed])
        mirror.land([*moved, *again([created], 4)])
    assert mirror.rows() == {2 if batch == "under another key" else 1: ("c", "B")}


def test_only_files_with_a_changed_key_are_written_anew(rewritten: HandMirror) -> None:
    mirror = rewritten
    for start in (0, 100, 200):
        mirror.land([Event("c", start + n, ("x", "X"), start + 1, n, offset=start + n) for n in range(50)])
    before = {task.file.file_path for task in mirror.table().scan().plan_files()}
    mirror.land([Event("u", 120, ("new", "X"), 500, 1, offset=500), Event("d", 121, None, 500, 2, offset=501)])
    after = {task.file.file_path for task in mirror.table().scan().plan_files()}
    assert len(before - after) == 1
    assert (len(mirror.rows()), mirror.rows()[120]) == (149, ("new", "X"))
    head = mirror.table().current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.operation is Operation.OVERWRITE
    assert head.summary.additional_properties["total-records"] == "149"


def test_rows_stay_in_the_range_of_their_file_and_new_ones_get_another(
    rewritten: HandMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = rewritten
    # So small that no two files become one.
    monkeypatch.setattr(merging, "PART_BYTES", 1)
    for start in (0, 100, 200):
        mirror.land([Event("c", start + n, ("x", "X"), start + 1, n, offset=start + n) for n in range(50)])
    updates = [Event("u", key, ("new", "X"), 500, key, offset=500 + key) for key in (7, 120, 230)]
    mirror.land(
        [*updates, Event("c", 300, ("more", "X"), 500, 300, offset=800), Event("d", 8, None, 500, 8, offset=801)]
    )
    spans = sorted((min(keys), max(keys), len(keys)) for keys in map(set, mirror.keys_by_file()))
    assert spans == [(0, 49, 49), (100, 149, 50), (200, 249, 50), (300, 300, 1)]
    assert [mirror.rows()[key][0] for key in (7, 120, 230, 300)] == ["new", "new", "new", "more"]


def test_small_files_that_change_become_one(rewritten: HandMirror) -> None:
    mirror = rewritten
    for start in (0, 100, 200, 300):
        mirror.land([Event("c", start + n, ("x", "X"), start + 1, n, offset=start + n) for n in range(50)])
    mirror.land([Event("u", key, ("new", "X"), 500, key, offset=500 + key) for key in (7, 120, 330)])
    assert sorted(map(len, mirror.keys_by_file())) == [50, 150]
    assert len(mirror.rows()) == 200


def test_types_that_become_wider_come_by_way_of_executors_too(mirror: HandMirror) -> None:
    def events(number: int, kind: pa.DataType, offset: int) -> pa.Table:
        rows = rows_of([Event("u", 1, ("a", "A"), 100 + offset, 1, offset=offset)], mirror.kind)
        return rows.append_column("number", pa.array([number], kind))

    first, sink = Event("u", 1, ("a", "A"), 100, 1, offset=0), mirror.sink()
    sink.load("run")
    sink.write(events(7, pa.int32(), 0), IDENTITY)
    sink.commit(landing_of([first]))
    sink = mirror.sink()
    sink.load("run 2")
    outline = sink.outline()
    executor = mirror.executor(outline)
    executor.load("task")
    executor.write(events(7, pa.int32(), 1), IDENTITY)
    executor.write(events(2**40, pa.int64(), 2), IDENTITY)
    sink.take_over(executor.hand_over())
    sink.commit(landing_of([replace(first, offset=1), replace(first, offset=2)]))
    assert [row["number"] for row in mirror.found()] == [2**40]


def test_deleted_rows_stay_where_that_is_asked_for(tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path, soft_delete=True)
    mirror.land([Event("c", n, (f"n{n}", "X"), 100, n, offset=n) for n in range(3)])
    mirror.land([Event("d", 1, None, 200, 1, offset=3)])
    found = {row["id"]: (row["name"], row["_is_deleted"]) for row in mirror.table().scan().to_arrow().to_pylist()}
    assert found == {0: ("n0", False), 1: ("n1", True), 2: ("n2", False)}
    mirror.land([Event("t", None, None, 300, 1, offset=4), Event("c", 1, ("back", "X"), 400, 1, offset=5)])
    found = {row["id"]: (row["name"], row["_is_deleted"]) for row in mirror.table().scan().to_arrow().to_pylist()}
    assert found == {0: ("n0", True), 1: ("back", False), 2: ("n2", True)}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_value_of_any_type_that_is_left_out_is_that_of_the_table(kind: str, tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path, kind=kind)
    mirror.land([Event("c", 1, ("a", "A"), 100, 1, offset=0), Event("c", 2, ("b", "B"), 100, 2, offset=1)])
    mirror.land([Event("u", 1, ("new", UNAVAILABLE), 200, 1, offset=2), Event("d", 2, None, 300, 1, offset=3)])
    # The second one got another key, and the batch ended in between.
    mirror.land([Event("c", 3, ("b", UNAVAILABLE), 300, 1, offset=4)])
    assert mirror.rows() == {1: ("new", "A"), 3: ("b", "B")}


def test_rows_written_and_deleted_in_one_batch_stay_with_their_last_values(tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path, soft_delete=True)
    mirror.land([Event("c", 1, ("a", "A"), 100, 1, offset=0), Event("c", 2, ("b", "B"), 100, 2, offset=1)])
    of_one = [
        Event("u", 1, ("changed", UNAVAILABLE), 200, 1, offset=2),
        Event("c", 3, ("c", "C"), 200, 2, offset=3),
        Event("d", 1, None, 300, 1, offset=4),
        Event("d", 3, None, 300, 2, offset=5),
        # Nobody has its value, and nobody needs it.
        Event("u", 4, ("read before", UNAVAILABLE), 300, 3, offset=6),
        Event("u", 2, ("changed", "B2"), 300, 4, offset=7),
        Event("t", None, None, 400, 1, offset=8),
        Event("c", 5, ("new", "N"), 500, 1, offset=9),
    ]
    mirror.land(of_one)
    gone = {1: ("changed", "A"), 2: ("changed", "B2"), 3: ("c", "C"), 4: ("read before", None)}
    assert (mirror.rows(), mirror.deleted()) == ({5: ("new", "N")}, gone)
    mirror.land(again(of_one, 10))
    assert (mirror.rows(), mirror.deleted()) == ({5: ("new", "N")}, gone)


def test_a_value_that_nobody_has_is_an_error_and_nothing_lands(mirror: HandMirror) -> None:
    mirror.land([Event("c", 1, ("a", "A"), 100, 1, offset=0)])
    with pytest.raises(ValueMissing, match="partition 0, offset 1 leaves out big"):
        mirror.land([Event("u", 2, ("b", UNAVAILABLE), 200, 1, offset=1)])
    assert mirror.rows() == {1: ("a", "A")}
    assert len(mirror.table().metadata.snapshots) == 1


def test_a_deletion_sent_twice_takes_nothing_from_the_row_that_came_since(mirror: HandMirror) -> None:
    deletion = Event("d", 1, None, 200, 1, offset=1)
    mirror.land([Event("c", 1, ("a", "A"), 100, 1, offset=0), deletion, Event("c", 1, ("b", "B"), 300, 1, offset=2)])
    mirror.land([Event("u", 1, ("new", UNAVAILABLE), 400, 1, offset=3), *again([deletion], 4)])
    assert mirror.rows() == {1: ("new", "B")}


def test_a_key_that_changed_is_sent_twice_with_a_batch_that_ends_in_between(mirror: HandMirror) -> None:
    change = [Event("d", 3, None, 200, 1, offset=1), Event("c", 1, ("a", UNAVAILABLE), 200, 1, offset=2)]
    mirror.land([Event("c", 3, ("a", "A"), 100, 1, offset=0), change[0]])
    mirror.land([change[1], *again(change, 3)])
    assert mirror.rows() == {1: ("a", "A")}


@pytest.mark.parametrize("first", [0, 1, 2, 3])
@pytest.mark.parametrize("last", [4, 5])
def test_a_key_that_changed_twice_takes_its_values_along_wherever_a_batch_ends(
    mirror: HandMirror, first: int, last: int
) -> None:
    events = [Event("c", 1, ("a", "A"), 100, 1)]
    for place, (old, new) in enumerate([(1, 2), (2, 3)]):
        events += [Event("d", old, None, 200, place), Event("c", new, ("a", UNAVAILABLE), 200, place)]
    events.append(Event("u", 3, ("b", UNAVAILABLE), 300, 1))
    events = [replace(one, offset=offset) for offset, one in enumerate(events)]
    for part in (events[:first], events[first:last], events[last:]):
        if part:
            mirror.land(part)
    assert mirror.rows() == {3: ("b", "A")}


def test_a_truncation_behind_a_value_that_nobody_has_needs_a_batch_that_reaches_beyond_it(mirror: HandMirror) -> None:
    # The table was truncated while Debezium's snapshot was read: what was there before, nobody has read.
    events = [
        Event("u", 1, ("b", UNAVAILABLE), 200, 1, offset=0),
        Event("t", None, None, 300, 1, offset=1),
        Event("c", 2, ("c", "C"), 400, 1, offset=2),
    ]
    with pytest.raises(ValueMissing, match="once the truncation is in the topic: one batch has to reach beyond it"):
        mirror.land(events[:1])
    mirror.land(events)
    assert mirror.rows() == {2: ("c", "C")}


def test_a_writer_that_got_in_first_is_seen_and_the_batch_merged_anew(
    mirror: HandMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.land([Event("c", 1, ("a", "A"), 100, 1, offset=0)])
    merge, others = BatchMerger.merge, [[Event("u", 1, ("other", "O"), 300, 1, offset=2)]]

    def with_another(self: BatchMerger, *head: Any) -> MergeResult:
        merged = merge(self, *head)
        if others:
            mirror.land(others.pop())
        return merged

    monkeypatch.setattr(BatchMerger, "merge", with_another)
    mirror.land([Event("u", 1, ("older", "A"), 200, 1, offset=1), Event("c", 2, ("b", "B"), 200, 2, offset=3)])
    assert mirror.rows() == {1: ("other", "O"), 2: ("b", "B")}
    ledger = read_ledger(mirror.table(), "g").entry(IDENTITY)
    assert ledger.landed == RangeSet.of(IDENTITY.topic, 0, 0, 4)
    assert_files_are_whole(mirror.table())


def test_another_key_or_a_table_of_records_is_refused(mirror: HandMirror, tmp_path: Path) -> None:
    mirror.land([Event("c", 1, ("a", "A"), 100, 1, offset=0)])
    mirror.design = replace(mirror.design, key=("name",))
    with pytest.raises(InvalidArgument, match=r"key: lake\.orders is mirrored by id, not by name"):
        mirror.sink().load("run")
    mirror.design = replace(mirror.design, key=None, rows=RowStrategy.MARKED)
    with pytest.raises(InvalidArgument, match=r"soft_delete: lake\.orders was made with False"):
        mirror.sink().load("run")
    mirror.catalog.create_table("lake.records", pa.schema([("id", pa.int64())]))
    with pytest.raises(InvalidArgument, match=r"lake\.records exists, and is not a mirror"):
        mirror_sink(mirror.catalog, "lake.records", "g", replace(mirror.design)).load("run")


def test_a_batch_without_any_event_and_one_that_only_truncates(mirror: HandMirror) -> None:
    mirror.land([Event("t", None, None, 50, 1, offset=0)])
    mirror.land([Event("c", 1, ("older", "A"), 40, 1, partition=1, offset=0)])
    assert mirror.rows() == {}
    mirror.land([Event("c", 2, ("newer", "B"), 60, 1, offset=1)])
    mirror.land([])
    assert mirror.rows() == {2: ("newer", "B")}
