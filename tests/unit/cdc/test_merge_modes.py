"""Rows of a mirror that are deleted in place: what its files are then, and when a file is rewritten all the same."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import FileScanTask, Table

from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.merge import merge as merging
from airflow_lakestream.cdc.merge.files import PackedRows
from airflow_lakestream.cdc.merge.merge import BatchMerger, MergeResult
from airflow_lakestream.cdc.merge.pool import MergeThreads
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.core.ports import LedgerConflict
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import sink as iceberg_sink
from airflow_lakestream.iceberg.replace.takeout import live_files, read_rows
from airflow_lakestream.iceberg.write.deletes import deleted_positions, own_deletes
from airflow_lakestream.tables.row_buffer import no_rows
from tests.support.delete_files import delete_positions
from tests.support.lake import assert_files_are_whole, assert_totals_are_right
from tests.support.mirroring import Elsewhere, Event, HandDeltaMirror, HandMirror, landing_of, rows_of


@pytest.fixture
def mirror(tmp_path: Path) -> HandMirror:
    return HandMirror(tmp_path, modes=[MergeMode.MERGE_ON_READ])


def created(keys: Sequence[int], commit: int = 1) -> list[Event]:
    return [Event("c", key, (f"n{key}", "X"), commit, key, offset=key) for key in keys]


def updated(keys: Sequence[int], commit: int) -> list[Event]:
    return [Event("u", key, (f"n{commit}", "X"), commit, key, offset=commit * 1000 + key) for key in keys]


def files(mirror: HandMirror) -> dict[str, FileScanTask]:
    return {task.file.file_path: task for task in live_files(mirror.table())}


def summary(mirror: HandMirror) -> dict[str, str]:
    head = mirror.table().current_snapshot()
    assert head is not None
    assert head.summary is not None
    return head.summary.additional_properties


def test_changed_rows_are_deleted_in_place_and_written_into_another_file(mirror: HandMirror) -> None:
    mirror.land(created(range(50)))
    (first,) = files(mirror)
    mirror.land([*updated([7, 30], 2), Event("d", 9, None, 2, 99, offset=900)])
    assert (
        summary(mirror).items()
        >= {
            "added-data-files": "1",
            "added-records": "2",
            "added-delete-files": "1",
            "added-position-delete-files": "1",
            "added-position-deletes": "3",
            "total-records": "52",
            "total-data-files": "2",
            "total-delete-files": "1",
            "total-position-deletes": "3",
        }.items()
    )
    assert "deleted-data-files" not in summary(mirror)
    (deletes,) = files(mirror)[first].delete_files
    assert deleted_positions(mirror.table().io, files(mirror)[first]).tolist() == [7, 9, 30]
    assert deletes.lower_bounds == deletes.upper_bounds == {2147483546: first.encode()}
    assert (len(mirror.rows()), mirror.rows()[7], 9 in mirror.rows()) == (49, ("n2", "X"), False)


def test_a_data_file_has_one_delete_file_however_often_its_rows_change(mirror: HandMirror) -> None:
    mirror.land(created(range(50)))
    (first,) = files(mirror)
    for commit in range(2, 6):
        mirror.land(updated([commit, commit + 10, 40], commit))
    (deletes,) = files(mirror)[first].delete_files
    assert deletes.record_count == 9
    # A file of which no row is left goes, and its delete file with it.
    assert sorted(task.file.record_count for task in files(mirror).values()) == [3, 3, 3, 3, 50]
    mirror.land(updated([5, 15, 40], 6))
    assert sorted(task.file.record_count for task in files(mirror).values()) == [3, 3, 3, 3, 50]
    assert_files_are_whole(mirror.table())
    assert_totals_are_right(mirror.table())
    snapshot = mirror.table().current_snapshot()
    assert snapshot is not None
    live = [one for one in snapshot.manifests(mirror.table().io) if one.content == 1 and one.has_added_files()]
    assert len(live) == 1


def test_rows_deleted_by_another_engine_stay_deleted_and_its_file_of_several_stays(mirror: HandMirror) -> None:
    mirror.land(created(range(50)))
    (first,) = files(mirror)
    # Its file has no bounds: it may be of any data file.
    delete_positions(mirror.table(), first, [3, 4])
    mirror.land(updated([2, 5], 2))
    task = files(mirror)[first]
    assert deleted_positions(mirror.table().io, task).tolist() == [2, 3, 4, 5]
    assert sorted((len(own_deletes(task)), len(task.delete_files))) == [1, 2]
    assert set(mirror.rows()) == set(range(50)) - {3, 4}
    mirror.land([Event("c", 3, ("back", "B"), 9, 1, offset=9001)])
    assert mirror.rows()[3] == ("back", "B")


def test_a_file_without_any_row_left_and_one_with_some(mirror: HandMirror) -> None:
    mirror.land(created(range(5)))
    (first,) = files(mirror)
    delete_positions(mirror.table(), first, list(range(5)))
    mirror.land(updated(range(3), 2))
    assert set(mirror.rows()) == set(range(3))
    mirror.land([Event("t", None, None, 3, 1, offset=5000)])
    assert mirror.rows() == {}


@pytest.mark.parametrize("mode", MergeMode)
def test_delete_files_are_of_the_partition_of_their_data_file(
    mode: MergeMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "SMALL_BYTES", 0)
    mirror = HandMirror(tmp_path, modes=[mode])
    mirror.design = replace(mirror.design, table=replace(mirror.design.table, partition_by=("bucket(4, id)", "name")))
    mirror.land([Event("c", key, (f"n{key % 3}" if key % 5 else None, "X"), 1, key, offset=key) for key in range(200)])
    mirror.land([*updated([7, 30, 31], 2), Event("d", 10, None, 2, 99, offset=9000)])
    mirror.land(updated([7, 11, 15], 3))
    for task in files(mirror).values():
        assert all(one.partition == task.file.partition for one in task.delete_files)
    assert {key: mirror.rows()[key][0] for key in (7, 11, 15, 30)} == {7: "n3", 11: "n3", 15: "n3", 30: "n2"}
    assert set(mirror.rows()) == set(range(200)) - {10}
    where = "id >= 8 and id <= 12"
    assert sorted(mirror.table().scan(where).to_arrow()["id"].to_pylist()) == [8, 9, 11, 12]
    assert_files_are_whole(mirror.table())
    assert_totals_are_right(mirror.table())


def test_manifests_of_which_nothing_is_left_do_not_pile_up(mirror: HandMirror) -> None:
    mirror.land(created(range(50)))
    for commit in range(2, 12):
        mirror.land(updated([commit, 40], commit))
    head = mirror.table().current_snapshot()
    assert head is not None
    left = [
        one for one in head.manifests(mirror.table().io) if not one.has_added_files() and not one.has_existing_files()
    ]
    assert len(left) <= 1


def test_values_left_out_come_from_the_right_row_of_a_file_with_deleted_ones(mirror: HandMirror) -> None:
    mirror.land([Event("c", key, ("a", f"big{key}"), 1, key, offset=key) for key in range(20)])
    mirror.land([Event("d", key, None, 2, key, offset=100 + key) for key in (0, 3, 9)])
    mirror.land([Event("u", key, ("b", UNAVAILABLE), 3, key, offset=200 + key) for key in (1, 4, 10, 19)])
    assert {key: mirror.rows()[key] for key in (1, 4, 10, 19)} == {key: ("b", f"big{key}") for key in (1, 4, 10, 19)}


def test_by_default_a_small_file_and_one_with_many_deleted_rows_are_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = HandMirror(tmp_path)
    mirror.land(created(range(50)))
    mirror.land(updated([1], 2))
    assert [len(task.delete_files) for task in files(mirror).values()] == [0]
    monkeypatch.setattr(merging, "SMALL_BYTES", 0)
    mirror.land(updated([1, 2], 3))
    assert sorted(len(task.delete_files) for task in files(mirror).values()) == [0, 1]
    mirror.land(updated([11, 12], 4))
    (held,) = [task for task in files(mirror).values() if task.delete_files]
    assert len(deleted_positions(mirror.table().io, held)) == 4
    # With this one a tenth of its rows are deleted.
    mirror.land(updated([13], 5))
    assert [len(task.delete_files) for task in files(mirror).values()] == [0] * len(files(mirror))
    assert len(mirror.rows()) == 50
    assert_files_are_whole(mirror.table())
    assert_totals_are_right(mirror.table())


def test_a_truncation_takes_all_files_out_with_their_delete_files(mirror: HandMirror) -> None:
    mirror.land(created(range(10)))
    mirror.land(updated([1], 2))
    mirror.land([Event("t", None, None, 3, 1, offset=5000), Event("c", 4, ("new", "N"), 4, 1, offset=5001)])
    assert mirror.rows() == {4: ("new", "N")}
    assert {name: summary(mirror)[f"total-{name}"] for name in ("records", "delete-files", "position-deletes")} == {
        "records": "1",
        "delete-files": "0",
        "position-deletes": "0",
    }


def test_with_soft_delete_a_truncation_marks_the_live_rows_of_files_with_deleted_ones(tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path, soft_delete=True, modes=[MergeMode.MERGE_ON_READ])
    mirror.land(created(range(10)))
    mirror.land([*updated([1], 2), Event("d", 5, None, 2, 50, offset=2500)])
    mirror.land([Event("t", None, None, 3, 1, offset=5000)])
    assert mirror.rows() == {}
    assert mirror.deleted()[1] == ("n2", "X")
    assert len(mirror.deleted()) == 10


def test_a_commit_that_is_refused_leaves_no_delete_file(mirror: HandMirror, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror.land(created(range(50)))
    merge, events = BatchMerger.merge, updated([1, 2], 2)

    def behind_another(self: BatchMerger, *head: Any) -> MergeResult:
        merged = merge(self, *head)
        monkeypatch.setattr(BatchMerger, "merge", merge)
        mirror.land(events)
        return merged

    monkeypatch.setattr(BatchMerger, "merge", behind_another)
    with pytest.raises(LedgerConflict):
        mirror.land(events)
    assert mirror.rows()[1] == ("n2", "X")
    assert_files_are_whole(mirror.table())


def test_rows_of_a_large_file_are_deleted_by_their_place_in_it(mirror: HandMirror) -> None:
    # Files are read in parts of 131,072 rows.
    count, rng = 300_000, np.random.default_rng(1)
    mirror.land(created(range(3)))
    table = mirror.table()
    numbers = np.arange(10, 10 + count)
    rows = {
        "id": numbers,
        "name": [f"n{one}" for one in numbers],
        "big": ["X"] * count,
        "_cdc_commit": np.ones(count, np.int64),
        "_cdc_position": numbers,
        "_kafka_partition": pa.array(np.zeros(count), pa.int32()),
        "_kafka_offset": numbers,
    }
    table.append(pa.table(rows).cast(table.schema().as_arrow()))
    gone: set[int] = set()
    for commit in (2, 3):
        keys = [int(one) for one in rng.choice(numbers, 300, replace=False)]
        gone |= set(keys)
        mirror.land([Event("d", key, None, commit, key, offset=commit * 10**6 + key) for key in keys])
    (large,) = [task for task in files(mirror).values() if task.file.record_count == count]
    read = pa.concat_tables(read_rows(mirror.table().metadata, mirror.table().io, large, columns=["id"]))
    assert read["id"].to_pylist() == sorted(set(numbers.tolist()) - gone)
    assert len(mirror.found()) == 3 + count - len(gone)


@pytest.mark.parametrize("soft_delete", [False, True])
@pytest.mark.parametrize("kind", [HandMirror, HandDeltaMirror])
def test_other_processes_do_the_same(
    tmp_path: Path, kind: type[HandMirror], soft_delete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "SMALL_BYTES", 0)
    found, elsewhere = [], Elsewhere()
    for hands in (MergeThreads(), elsewhere):
        mirror = kind(tmp_path / type(hands).__name__, soft_delete=soft_delete, pool=hands)
        mirror.land(created(range(100)))
        mirror.land([*updated([1, 50], 2), Event("d", 60, None, 2, 600, offset=2600)])
        mirror.land([Event("u", key, ("kept", UNAVAILABLE), 3, key, offset=3000 + key) for key in range(40, 55)])
        mirror.land([*updated([99], 4), Event("d", 98, None, 4, 700, offset=4700)])
        if kind is HandMirror:
            assert_files_are_whole(mirror.table())
            assert_totals_are_right(mirror.table())
        found.append((mirror.rows(), mirror.deleted() if soft_delete else {}, sorted(map(len, mirror.keys_by_file()))))
    assert found[0] == found[1]
    in_place = {"RowDeleteTask", "RowWriteTask"} if kind is HandMirror else set()
    assert elsewhere.works == {"EntrySearch", "KeyLookup", "RowReadTask", "FileRewriteTask"} | in_place


def test_what_can_t_be_is_refused_where_it_is_written_down() -> None:
    of = {"topic": "t", "consumer_group": "g", "key": ["id"]}
    assert MirrorConfig(table="lake.t", **of).mirror.merge_mode is MergeMode.AUTO
    delta = {"table": "/lake/t", "table_format": "delta", **of}
    assert MirrorConfig(merge_mode="copy-on-write", **delta).mirror.merge_mode is MergeMode.COPY_ON_WRITE
    with pytest.raises(InvalidArgument, match=r"merge_mode: .* a Delta table; deletion vectors.*copy-on-write"):
        MirrorConfig(merge_mode="merge-on-read", **delta)
    with pytest.raises(InvalidArgument, match=r"merge_mode.*auto.*copy-on-write.*merge-on-read"):
        MirrorConfig(table="lake.t", merge_mode="in place", **of)


def inserted(mirror: HandMirror, batches: range) -> None:
    for batch in batches:
        mirror.land(created([batch], commit=batch))


@pytest.mark.parametrize("mode", [MergeMode.AUTO, MergeMode.COPY_ON_WRITE])
def test_a_mirror_that_only_gets_new_rows_has_few_files(mode: MergeMode, tmp_path: Path) -> None:
    mirror = HandMirror(tmp_path, modes=[mode])
    inserted(mirror, range(1, merging.MOST_SMALL + 1))
    assert len(files(mirror)) == merging.MOST_SMALL
    inserted(mirror, range(merging.MOST_SMALL + 1, merging.MOST_SMALL + 4))
    # The first of these had so many small files before it, and made them one.
    assert sorted(task.file.record_count for task in files(mirror).values()) == [1, 1, 1, merging.MOST_SMALL]
    assert mirror.rows() == {n: (f"n{n}", "X") for n in range(1, merging.MOST_SMALL + 4)}
    assert_totals_are_right(mirror.table())


def test_small_files_of_so_many_partitions_stay_and_so_they_do_where_maintenance_is_to_take_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MOST_SMALL", 4)
    for name in ("partitioned", "in place"):
        (tmp_path / name).mkdir()
    partitioned = HandMirror(tmp_path / "partitioned")
    table = replace(partitioned.design.table, partition_by=("identity(id)",))
    partitioned.design = replace(partitioned.design, table=table)
    in_place = HandMirror(tmp_path / "in place", modes=[MergeMode.MERGE_ON_READ])
    for mirror in (partitioned, in_place):
        inserted(mirror, range(1, 8))
        before = set(files(mirror))
        inserted(mirror, range(8, 9))
        assert before < set(files(mirror))


def test_small_files_become_one_without_the_rows_that_are_deleted_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "MOST_SMALL", 3)
    mirror = HandMirror(tmp_path, modes=[MergeMode.MERGE_ON_READ])
    for start in (0, 10, 20):
        mirror.land(created(range(start, start + 10)))
        mirror.land([Event("d", start, None, 2, start, offset=900 + start)])
    # Another engine's delete file, of any data file.
    delete_positions(mirror.table(), next(iter(files(mirror))), [5])
    rows = mirror.rows()
    mirror._modes = itertools.repeat(MergeMode.AUTO)
    mirror.land(created([99], commit=3))
    assert sorted(task.file.record_count for task in files(mirror).values()) == [1, 26]
    assert mirror.rows() == rows | {99: ("n99", "X")}


def test_rows_that_go_elsewhere_leave_the_rest_of_their_table_behind() -> None:
    rows = pa.table({"id": range(100_000), "name": pa.array([f"row {number}" for number in range(100_000)])})
    few = rows.slice(70_000, 10)
    there = pickle.dumps(PackedRows(few))
    assert pickle.loads(there).rows.equals(few)
    assert len(there) < 2_000


def test_no_rows_that_go_elsewhere_can_be_worked_on_whatever_their_types() -> None:
    schema = pa.schema([("uuids", pa.list_(pa.uuid())), ("of", pa.struct([("uuid", pa.uuid())]))])
    rows = pickle.loads(pickle.dumps(PackedRows(no_rows(schema)))).rows
    assert rows.schema == schema
    # Arrow can't put columns without any chunk together where they have UUIDs inside.
    assert [column.num_chunks for column in rows.columns] == [1, 1]


def test_a_sweep_after_a_merge_reads_no_manifest_unless_something_is_left(
    mirror: HandMirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.land(created(range(10)))
    events, sink, looks = updated([3, 4], 2), mirror.sink(), list[str]()
    sink.load("run")
    sink.write_below("runs/r1")
    mirror.take(sink, rows_of(events, mirror.kind))
    sink.commit(landing_of(events))
    original = iceberg_sink.delete_unreferenced

    def delete(table: Table, folder: str) -> tuple[int, int]:
        looks.append(folder)
        return original(table, folder)

    monkeypatch.setattr(iceberg_sink, "delete_unreferenced", delete)
    sink.sweep("runs/r1")
    assert looks == []
    (folder,) = {Path(path).parent for path in files(mirror) if "runs/r1" in path}
    orphan = Path(str(folder).removeprefix("file:"), "left-by-a-task.parquet")
    orphan.write_bytes(b"half a file")
    sink.sweep("runs/r1")
    assert len(looks) == 1
    assert not orphan.exists()
    assert_files_are_whole(mirror.table())
    assert len(mirror.found()) == 10
