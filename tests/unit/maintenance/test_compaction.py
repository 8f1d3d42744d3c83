"""Compaction in the worker, on real files: the same rows in fewer files, and landings and merges beside it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.core.policies import MergeMode
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.replace.takeout import live_files
from airflow_lakestream.iceberg.upkeep import compaction, narrow_bounds
from airflow_lakestream.iceberg.upkeep.compaction import CompactionReport, compact
from airflow_lakestream.iceberg.upkeep.compaction_plan import CompactionRule
from airflow_lakestream.iceberg.write import sorted_rows
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.given_records import GROUP, GivenLake
from tests.support.lake import assert_files_are_whole, assert_totals_are_right
from tests.support.mirroring import TABLE, Event, HandMirror, come_to, landing_of, rows_of
from tests.support.partitioning import VALUES, assert_partitions_are_right, made_of_version_1, partition_by

# Two files are worth a rewrite here.
RULE = CompactionRule(target_bytes=2**29, least_files=2)
NESTED = "s struct<a: int, u: uuid, t: array<struct<x: string>>>, m map<string, decimal(9, 2)>, l array<bigint>"


def every_type(number: int) -> dict[str, Any]:
    row = {f"c{at}": values[number % len(values)] for at, values in enumerate(VALUES.values())}
    struct = {"a": number, "u": VALUES["uuid"][0], "t": [{"x": "é"}, None] if number % 3 else None}
    return row | {"s": struct if number % 4 else None, "m": {"k": "1.25"} if number % 2 else {}, "l": [number, None]}


COLUMNS = ", ".join([*(f"c{at} {kind}" for at, kind in enumerate(VALUES)), NESTED])


def land(lake: GivenLake, rows: Sequence[dict[str, Any]], **config: Any) -> None:
    """Land further records in one commit, after those that are there."""
    ledger = ledger_store.read_ledger(lake.iceberg(), GROUP) if lake.catalog().table_exists(lake.name) else None
    landed = sum(entry.landed.width for entry in ledger.topics.values()) if ledger else 0
    records = [json.dumps(row).encode() for row in rows]
    lake.land([b"{}"] * landed + records, **config)


def lake_of(folder: Path, runs: int = 4, schema: str = "n bigint, name string", **config: Any) -> GivenLake:
    """Return a lake of so many landings of three rows each."""
    lake = GivenLake(folder)
    for run in range(runs):
        numbers = range(run * 3, run * 3 + 3)
        land(lake, [{"n": n, "name": f"n{n}"} for n in numbers], schema=schema, **config)
    return lake


def live(lake: GivenLake) -> list[DataFile]:
    return [task.file for task in live_files(lake.iceberg())]


def assert_sound(lake: GivenLake, rows: Sequence[dict[str, Any]]) -> None:
    """Assert that both readers find the rows, that statistics hold, and that the audit is clean."""
    assert lake.rows() == rows
    table = lake.iceberg()
    assert narrow_bounds.wrong_bounds(table, ledger_store.head_of(table.metadata)) == []
    assert_totals_are_right(table)
    assert Audit(table=lake.name, consumer_group=GROUP).run(lake.catalog()).verdict is AuditVerdict.CLEAN


def compacted(lake: GivenLake, **arguments: Any) -> CompactionReport:
    return compact(lake.catalog(), lake.name, **{"rule": RULE, **arguments})


def test_rows_of_every_type_are_the_same_in_one_file_and_the_ledger_is_kept(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    for run in range(3):
        land(lake, [every_type(number) for number in range(run * 5, run * 5 + 5)], schema=COLUMNS)
    rows, ledger = lake.rows(), ledger_store.read_ledger(lake.iceberg(), GROUP)
    assert len(rows) == 15
    report = compacted(lake)
    assert (report.files, report.new, report.lost, report.is_whole) == (3, 1, 0, True)
    assert_sound(lake, rows)
    found = sorted(lake.by_duckdb(), key=lambda row: row["_kafka_offset"])
    assert [(row["c0"], row["c2"], row["c12"], row["l"]) for row in found] == [
        (row["c0"], row["c2"], row["c12"], row["l"]) for row in rows
    ]
    assert ledger_store.read_ledger(lake.iceberg(), GROUP) == ledger
    head = lake.iceberg().current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.operation is Operation.REPLACE
    assert head.summary["added-records"] == head.summary["deleted-records"] == "15"
    # By need: there is no more to gain, and no snapshot is made.
    assert compacted(lake).files == 0
    assert lake.iceberg().current_snapshot() == head
    assert_files_are_whole(lake.iceberg())
    land(lake, [every_type(99)], schema=COLUMNS)
    assert len(lake.rows()) == 16


def test_statistics_are_those_of_one_file_written_at_once(tmp_path: Path) -> None:
    lake, other = (GivenLake(tmp_path / name) for name in "ab")
    for one in (lake, other):
        one.folder.mkdir()
    rows = [every_type(number) for number in range(9)]
    for first in range(0, 9, 3):
        land(lake, rows[first : first + 3], schema=COLUMNS)
    land(other, rows, schema=COLUMNS)
    compacted(lake)
    (new,), (at_once,) = live(lake), live(other)
    for name in ("lower_bounds", "upper_bounds", "value_counts", "null_value_counts", "nan_value_counts"):
        assert getattr(new, name) == getattr(at_once, name), name
    assert new.record_count == at_once.record_count
    assert new.sort_order_id == at_once.sort_order_id


def test_rows_keep_the_order_of_the_landings_and_deleted_rows_go(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    table = lake.iceberg()
    first, second, *_ = (task.file.file_path for task in live_files(table))
    delete_positions(table, first, [1])
    delete_positions(lake.iceberg(), second, [0, 2])
    rows = lake.rows()
    report = compacted(lake)
    assert (report.files, report.new, report.deletes) == (4, 1, 2)
    assert lake.rows() == rows
    [file] = lake.files()
    offsets = pq.read_table(file)["_kafka_offset"].to_pylist()
    assert offsets == sorted(offsets)
    assert head_deletes(lake.iceberg()) == []


def head_deletes(table: Table) -> list[str]:
    head = table.current_snapshot()
    assert head is not None
    entries = itertools.chain.from_iterable(m.fetch_manifest_entry(table.io) for m in head.manifests(table.io))
    return [e.data_file.file_path for e in entries if e.data_file.content is not DataFileContent.DATA]


def test_equality_deletes_are_applied_and_go_with_the_last_file_that_they_are_for(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    delete_equal(lake.iceberg(), "n", [1, 5])
    delete_equal(lake.iceberg(), "name", ["n7", None])
    land(lake, [{"n": 5, "name": "again"}, {"n": 12}])
    with pytest.raises(ValueError, match="equality deletes"):
        lake.rows()
    compacted(lake)
    assert [(row["n"], row["name"]) for row in lake.rows()] == [
        *((n, f"n{n}") for n in (0, 2, 3, 4, 6, 8, 9, 10, 11)),
        (5, "again"),
        # Newer than the deletion of NULL.
        (12, None),
    ]
    assert head_deletes(lake.iceberg()) == []


def once(act: Callable[[], object]) -> Callable[[], bool]:
    """Return a question whether to end that is answered by no, and acts the first time: between plan and commit."""
    left = [act]

    def is_over() -> bool:
        if left:
            left.pop()()
        return False

    return is_over


def test_an_equality_delete_that_comes_in_the_middle_still_deletes(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    compacted(lake, is_over=once(lambda: delete_equal(lake.iceberg(), "n", [4])))
    [new] = data_files(lake.iceberg())
    assert new.record_count == 12
    assert len(head_deletes(lake.iceberg())) == 1
    assert compacted(lake).files == 1
    assert [row["n"] for row in lake.rows()] == [n for n in range(12) if n != 4]


def data_files(table: Table) -> list[DataFile]:
    head = table.current_snapshot()
    assert head is not None
    entries = itertools.chain.from_iterable(m.fetch_manifest_entry(table.io) for m in head.manifests(table.io))
    return [one.data_file for one in entries if one.data_file.content is DataFileContent.DATA]


def test_a_landing_in_the_middle_stays_and_its_ledger_too(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    report = compacted(lake, is_over=once(lambda: land(lake, [{"n": 99}])))
    assert (report.files, report.lost) == (4, 0)
    assert [row["n"] for row in lake.rows()] == [*range(12), 99]
    assert len(live(lake)) == 2
    assert_sound(lake, lake.rows())


def test_files_whose_rows_are_deleted_in_the_middle_are_left_and_planned_again(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)

    def delete() -> None:
        table = lake.iceberg()
        delete_positions(table, live_files(table)[0].file.file_path, [0])

    before = set(lake.files())
    report = compacted(lake, is_over=once(delete))
    assert (report.files, report.new, report.lost) == (0, 0, 1)
    assert set(lake.files()) == before
    assert_files_are_whole(lake.iceberg())
    rows = lake.rows()
    assert compacted(lake).files == 4
    assert lake.rows() == rows


@pytest.mark.parametrize("mode", [MergeMode.MERGE_ON_READ, MergeMode.COPY_ON_WRITE])
def test_a_merge_in_the_middle_wins_and_the_mirror_is_compacted_by_the_next_plan(
    tmp_path: Path, mode: MergeMode
) -> None:
    mirror, events = HandMirror(tmp_path, modes=[mode]), list[Event]()

    def change(commit: int, op: str, *keys: int) -> None:
        values = None if op == "d" else (f"n{commit}", "X")
        new = [Event(op, key, values, commit, key, offset=commit * 1000 + key) for key in keys]
        mirror.land(new)
        events.extend(new)

    for commit in range(1, 4):
        change(commit, "c", *range(commit * 100, commit * 100 + 50))
    files = len(live_files(mirror.table()))
    assert files > 1
    change(5, "u", 101)
    report = compact(mirror.catalog, TABLE, RULE, is_over=once(lambda: change(6, "u", 102, 203)))
    assert (report.files, report.lost) == (0, 1)
    assert mirror.rows() == come_to(events)
    assert compact(mirror.catalog, TABLE, RULE).files
    assert len(live_files(mirror.table())) == 1
    assert mirror.rows() == come_to(events)
    # A merge that was prepared before the compaction commits after it: it is decided anew.
    change(7, "c", 901, 902)
    late = [Event("u", 150, ("late", "X"), 8, 1, offset=8000)]
    sink = mirror.sink()
    sink.load("run")
    mirror.take(sink, rows_of(late, mirror.kind))
    assert compact(mirror.catalog, TABLE, RULE).files
    sink.commit(landing_of(late))
    assert mirror.rows() == come_to([*events, *late])
    assert_totals_are_right(mirror.table())


def test_files_of_older_columns_and_specs_keep_their_partition_and_get_the_new_columns(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 2)
    table = lake.iceberg()
    partition_by(table, ("name", BucketTransform(4)))
    with lake.iceberg().update_schema() as schema:
        schema.add_column("extra", IntegerType())
        schema.rename_column("name", "called")
    for run in range(4):
        land(lake, [{"n": n, "called": f"n{n}", "extra": n} for n in range(100 + run * 8, 108 + run * 8)])
    rows = lake.rows()
    report = compacted(lake)
    specs = Counter(file.spec_id for file in live(lake))
    assert specs[0] == 1
    assert report.new == specs.total() <= 5
    assert_partitions_are_right(lake.iceberg())
    assert_sound(lake, rows)


def test_a_table_born_of_version_1_whose_partition_column_was_dropped(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    made_of_version_1(lake)
    for run in range(3):
        land(lake, [{"n": n} for n in range(run * 3, run * 3 + 3)])
    table = lake.iceberg()
    first = live_files(table)[0].file
    delete_positions(table, first.file_path, [1], first)
    rows = lake.rows()
    assert len(rows) == 8
    compacted(lake)
    assert len(lake.files()) == 1
    assert lake.rows() == rows


def test_a_sorted_table_stays_sorted_however_little_memory_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_of(tmp_path, 6, sort_order=["name desc", "n"])
    land(lake, [{"n": n, "name": None if n % 2 else "n3"} for n in range(50)])
    rows = lake.rows()
    whole = sorted_rows.sorted_rows
    # Runs of a few rows, and batches of one.
    monkeypatch.setattr(sorted_rows, "BATCH_BYTES", 100)
    monkeypatch.setattr(compaction, "sorted_rows", lambda *given: whole(*given, 1000))
    compacted(lake)
    [file] = lake.files()
    found = [(row["name"], row["n"]) for row in pq.read_table(file).to_pylist()]
    by_name = sorted((pair for pair in found if pair[0] is not None), key=lambda one: one[1])
    by_name.sort(key=lambda one: one[0], reverse=True)
    assert found == [*by_name, *sorted((pair for pair in found if pair[0] is None), key=lambda one: one[1])]
    assert live(lake)[0].sort_order_id == lake.iceberg().sort_order().order_id != 0
    assert_sound(lake, rows)


def test_work_is_cut_into_commits_and_an_end_in_the_middle_leaves_whole_files(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, 3, partition_by=["name"])
    land(lake, [{"n": n, "name": f"n{n % 3}"} for n in range(6)])
    rows, done = lake.rows(), list[int]()
    rule = replace(RULE, part_bytes=1)
    answers = iter([False, False, True])
    report = compacted(lake, rule=rule, is_over=lambda: next(answers), report=lambda one: done.append(one.files))
    assert done == [2, 4]
    assert not report.is_whole
    assert_files_are_whole(lake.iceberg())
    assert compacted(lake, rule=rule).files == 2
    assert_sound(lake, rows)


def test_a_file_larger_than_the_target_is_cut_and_row_groups_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = GivenLake(tmp_path)
    land(lake, [{"n": n, "name": f"{n:050d}"} for n in range(3000)], schema="n bigint, name string")
    table = lake.iceberg()
    [task] = live_files(table)
    delete_positions(table, task.file.file_path, list(range(0, 3000, 10)))
    rows = lake.rows()
    monkeypatch.setattr(compaction, "ROW_GROUP_BYTES", 1)
    target = task.file.file_size_in_bytes // 2
    report = compacted(lake, rule=replace(RULE, target_bytes=target, most_deletes=1))
    assert (report.files, report.new) == (1, 2)
    assert {file.record_count for file in live(lake)} == {1500, 1200}
    assert lake.rows() == rows


def test_a_column_of_deleted_values_that_was_dropped_leaves_its_files_alone(tmp_path: Path) -> None:
    lake = lake_of(tmp_path)
    delete_equal(lake.iceberg(), "name", ["n1"])
    with lake.iceberg().update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("name")
    report = compacted(lake)
    assert (report.files, report.plan.unread) == (0, 4)


def test_nested_columns_of_deletes(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    for number in range(3):
        land(lake, [{"s": {"a": number}}, {"s": None}], schema="s struct<a: int>")
    delete_equal(lake.iceberg(), "s.a", [1])
    compacted(lake)
    assert [row["s"] for row in lake.rows()] == [{"a": 0}, None, None, {"a": 2}, None]


@pytest.mark.parametrize("error", [TimeoutError("no answer"), CommitFailedException("says the catalog")])
@pytest.mark.parametrize("is_applied", [True, False])
def test_files_are_there_once_whatever_the_catalog_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, is_applied: bool
) -> None:
    lake = lake_of(tmp_path, 2)
    rows, catalog = lake.rows(), lake.catalog()
    commit, left = catalog.commit_table, [error]

    def answer(*given: Any) -> Any:
        found = commit(*given) if is_applied or not left else None
        if left:
            raise left.pop()
        return found

    monkeypatch.setattr(catalog, "commit_table", answer)
    assert compacted(lake).files == 2
    assert len(lake.files()) == 1
    assert_files_are_whole(lake.iceberg())
    assert_sound(lake, rows)
