"""A mirror that is a Delta table comes to the same, whatever happens around its commits."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.merge import entries, memory
from airflow_lakestream.cdc.merge.values import ValueMissing
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.core.ports import LedgerConflict
from airflow_lakestream.core.routing import IsMirror
from airflow_lakestream.delta import committing
from airflow_lakestream.exceptions import InvalidArgument
from tests.support.delta_table import a_sink, faulty, live_files, stray_files, versions
from tests.support.faults import Fault, applied, before, passed, unapplied
from tests.support.mirroring import (
    IDENTITY,
    KINDS,
    Elsewhere,
    Event,
    HandDeltaMirror,
    HandMirror,
    again,
    come_to,
    deleted_by,
    landing_of,
    rows_of,
)
from tests.unit.cdc.strategies import cut, histories, shuffled

FEW = settings.get_profile(settings.get_current_profile_name()).max_examples // 4
# Delta has no type for the others.
DELTA_KINDS = sorted(set(KINDS) - {"uuids of their own type"})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "RETRY_PAUSE", 0.001)


@pytest.fixture
def mirror(tmp_path: Path) -> HandDeltaMirror:
    return HandDeltaMirror(tmp_path)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the next commits, of any table, meet faults."""

    def meet(*some: Fault) -> None:
        monkeypatch.setattr(committing, "put_commit", faulty(*some))

    return meet


def assert_whole(mirror: HandDeltaMirror) -> None:
    for place in (mirror.place, f"{mirror.place}{memory.SUFFIX}"):
        assert not Path(place).exists() or not stray_files(place)


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans())
def test_in_any_order_a_mirror_is_what_all_events_so_far_come_to(data: st.DataObject, soft_delete: bool) -> None:
    events = data.draw(histories(leaves_out=False))
    events = [replace(one, partition=hash((one.key, one.op == "t")) % 2) for one in events]
    with tempfile.TemporaryDirectory() as folder:
        mirror = HandDeltaMirror(Path(folder), soft_delete=soft_delete)
        seen: list[Event] = []
        for part in cut(data.draw, shuffled(data.draw, events)):
            mirror.land(part)
            seen += part
            assert mirror.rows() == come_to(seen)
        assert_whole(mirror)


@settings(max_examples=FEW, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans(), st.sampled_from(DELTA_KINDS))
def test_values_that_events_leave_out_are_kept(data: st.DataObject, soft_delete: bool, kind: str) -> None:
    events = data.draw(histories(leaves_out=True))
    repeated = data.draw(st.integers(0, len(events)))
    with tempfile.TemporaryDirectory() as folder:
        mirror = HandDeltaMirror(Path(folder), soft_delete=soft_delete, kind=kind)
        for part in cut(data.draw, events + again(events[len(events) - repeated :], len(events))):
            mirror.land(part)
        assert mirror.rows() == come_to(events)
        if soft_delete:
            assert mirror.deleted() == deleted_by(events)


@settings(max_examples=FEW // 2, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.data(), st.booleans(), st.booleans())
def test_each_format_has_the_same_rows_whoever_works_on_its_files(
    data: st.DataObject, soft_delete: bool, leaves_out: bool
) -> None:
    events = data.draw(histories(leaves_out=leaves_out))
    if not leaves_out:
        # Values that an event leaves out are in no later batch.
        events = shuffled(data.draw, events)
    with tempfile.TemporaryDirectory() as folder:
        mirrors = [
            HandMirror(Path(folder, "iceberg"), soft_delete=soft_delete, modes=[MergeMode.COPY_ON_WRITE]),
            HandDeltaMirror(Path(folder, "threads"), soft_delete=soft_delete),
            HandDeltaMirror(
                Path(folder, "elsewhere"),
                soft_delete=soft_delete,
                modes=[MergeMode.COPY_ON_WRITE],
                pool=Elsewhere(),
            ),
            HandMirror(Path(folder, "files"), soft_delete=soft_delete, pool=Elsewhere(), executors=1),
            HandDeltaMirror(Path(folder, "delta files"), soft_delete=soft_delete, pool=Elsewhere(), executors=3),
        ]
        for part in cut(data.draw, events):
            for mirror in mirrors:
                mirror.land(part)
            first, *others = (sorted(mirror.found(), key=itemgetter("id")) for mirror in mirrors)
            assert all(rows == first for rows in others)


def test_a_look_for_keys_fetches_no_other_columns(mirror: HandDeltaMirror, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = random.Random(1)
    wide = [("n", noise.randbytes(10_000).hex()) for _ in range(100)]
    mirror.land([Event("c", n, values, 100, n, offset=n) for n, values in enumerate(wide)])
    fetched, get_range = list[int](), obstore.get_range

    def get(*args: Any, start: int, end: int) -> Any:
        fetched.append(end - start)
        return get_range(*args, start=start, end=end)

    monkeypatch.setattr(obstore, "get_range", get)
    # Older than what is there: the merge looks for it, and rewrites nothing.
    mirror.land([Event("u", 5, ("late", "L"), 50, 5, partition=1, offset=0)])
    (add,) = live_files(mirror.place).values()
    assert 0 < sum(fetched) < add["size"] / 5


CREATED = [Event("c", n, (f"n{n}", "X"), 100, n, offset=n) for n in range(4)]


@pytest.mark.parametrize("fault", [applied, unapplied])
@pytest.mark.parametrize("place", ["entries", "mirror"])
def test_a_lost_answer_changes_nothing(
    mirror: HandDeltaMirror, faults: Callable[..., None], fault: Callable[[Exception], Fault], place: str
) -> None:
    mirror.land(CREATED)
    # The entry is written first.
    faults(*([] if place == "entries" else [passed]), fault(OSError("no answer")))
    mirror.land([Event("d", 1, None, 200, 1, offset=4)])
    mirror.land([Event("u", 1, ("late", "L"), 150, 1, partition=1, offset=0)])
    assert sorted(mirror.rows()) == [0, 2, 3]
    assert_whole(mirror)
    with pytest.raises(LedgerConflict):
        mirror.land(CREATED)


def test_files_of_a_request_that_is_applied_late_stay(mirror: HandDeltaMirror, faults: Callable[..., None]) -> None:
    mirror.land(CREATED)
    late = list[Callable[[], Any]]()

    def unanswered(request: Callable[[], Any]) -> Any:
        late.append(request)
        raise OSError("time-out")

    def second(request: Callable[[], Any]) -> Any:
        # The first request arrives after the second attempt has written files of its own.
        assert late[0]()
        return request()

    faults(unanswered, second)
    mirror.land([Event("u", 1, ("new", "N"), 200, 1, offset=4)])
    assert mirror.rows()[1] == ("new", "N")
    assert_whole(mirror)


def test_a_writer_that_gets_in_between_is_merged_on(mirror: HandDeltaMirror, faults: Callable[..., None]) -> None:
    mirror.land(CREATED)
    other = [Event("u", 1, ("other", "O"), 300, 1, offset=5)]
    faults(before(lambda: mirror.land(other)))
    mirror.land([Event("u", 1, ("older", "A"), 200, 1, offset=4), Event("c", 9, ("b", "B"), 200, 2, offset=6)])
    assert {key: values[0] for key, values in mirror.rows().items()} == {0: "n0", 1: "other", 2: "n2", 3: "n3", 9: "b"}
    assert_whole(mirror)


def test_many_files_of_entries_become_one(mirror: HandDeltaMirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "MOST_FILES", 2)
    mirror.land(CREATED)
    for n in range(4):
        mirror.land([Event("d", n, None, 200, n, offset=4 + n)])
    assert len(live_files(f"{mirror.place}{memory.SUFFIX}")) == 2
    mirror.land([Event("u", n, ("late", "L"), 150, n, partition=1, offset=n) for n in range(4)])
    assert mirror.rows() == {}
    assert_whole(mirror)


def test_entries_of_a_mirror_that_was_dropped_are_none(mirror: HandDeltaMirror) -> None:
    mirror.land(CREATED)
    mirror.land([Event("d", 1, None, 200, 1, offset=4)])
    Path(mirror.place).rename(f"{mirror.place}-gone")
    mirror.land([Event("c", 1, ("anew", "X"), 120, 0, offset=20)])
    assert mirror.rows() == {1: ("anew", "X")}
    mirror.land([Event("d", 1, None, 300, 0, offset=21)])
    assert len(live_files(f"{mirror.place}{memory.SUFFIX}")) == 1


def test_rows_of_a_batch_and_its_ledger_are_restored_together(mirror: HandDeltaMirror) -> None:
    mirror.land(CREATED)
    update = [Event("u", 1, ("new", "N"), 200, 1, offset=4)]
    mirror.land(update)
    DeltaTable(mirror.place).restore(0)
    assert mirror.rows()[1] == ("n1", "X")
    mirror.land(update)
    assert mirror.rows()[1] == ("new", "N")


def test_a_value_that_nobody_has_is_an_error_and_nothing_lands(mirror: HandDeltaMirror) -> None:
    mirror.land(CREATED)
    with pytest.raises(ValueMissing, match="partition 0, offset 4 leaves out big"):
        mirror.land([Event("u", 7, ("b", UNAVAILABLE), 200, 1, offset=4)])
    assert len(versions(mirror.place)) == 1
    assert_whole(mirror)


def test_columns_come_up_and_another_type_is_an_error_that_names_the_column(mirror: HandDeltaMirror) -> None:
    mirror.land(CREATED)

    def land(kind: pa.DataType, offset: int) -> None:
        events = [Event("u", 1, ("new", "N"), 200, offset, offset=offset)]
        sink = mirror.sink()
        sink.load("run")
        sink.write(rows_of(events, mirror.kind).append_column("extra", pa.array([7], kind)), IDENTITY)
        try:
            sink.commit(landing_of(events))
        finally:
            sink.discard()

    land(pa.int32(), 4)
    assert {row["id"]: row["extra"] for row in mirror.found() if "extra" in row}[1] == 7
    with pytest.raises(MirrorStopped, match="'extra'") as stopped:
        land(pa.int64(), 5)
    assert stopped.value.reason == StopReason.TYPE_CHANGED
    assert_whole(mirror)


def test_records_do_not_go_into_a_mirror(mirror: HandDeltaMirror) -> None:
    mirror.land(CREATED)
    with pytest.raises(IsMirror, match="can't be landed into"):
        a_sink(mirror.place).load("run")
    mirror.design = replace(mirror.design, key=("name",))
    with pytest.raises(InvalidArgument, match="is mirrored by id, not by name"):
        mirror.sink().load("run")
