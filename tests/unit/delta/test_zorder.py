"""Z-order of Delta tables by need: partitions with files written since the last Z-order, and the ledger stays."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from airflow_lakestream.config.maintenance import MaintenanceSection
from airflow_lakestream.delta import optimizing
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.optimizing import claimed
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.maintain import LakestreamMaintainOperator
from airflow_lakestream.run.maintenance.delta import DeltaUpkeep
from airflow_lakestream.run.maintenance.upkeep import TableUpkeep
from airflow_lakestream.spark.maintenance.config import MaintenanceConfig
from tests.support.delta_table import append_foreign_row, expected, land, landed, live_files, rows_of

BY = ("name",)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    name = tmp_path / "clicks"
    for start in range(0, 12, 3):
        land(name, start, start + 3)
    return name


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Return a table with three files in each of three partitions."""
    name = tmp_path / "parts"
    for start in range(0, 9, 3):
        for partition in range(3):
            land(name, start, start + 3, partition, partition_by=["_kafka_partition"])
    return name


def upkeep(table: Path, **compact: Any) -> DeltaUpkeep:
    compact = {"zorder_by": ["name"], **compact}
    return DeltaUpkeep(DeltaStorage(), MaintenanceSection.parse({"tables": [str(table)], "compact": compact}))


def zordered(table: Path, **compact: Any) -> TableUpkeep:
    [report] = upkeep(table, **compact).run()
    return report


def head_of(table: Path) -> DeltaTableHead:
    head = DeltaStorage().open(str(table))
    assert head is not None
    return head


def due(table: Path) -> list[optimizing.Values]:
    """Return the partitions with files out of order."""
    return [*optimizing.plan_of(DeltaStorage().store(str(table)), head_of(table), BY).partitions]


def opened(table: Path) -> DeltaTable:
    return DeltaTable(str(table))


def test_files_become_one_in_order_and_a_second_run_has_nothing_to_do(table: Path) -> None:
    report = zordered(table, zorder_by="name")
    assert (report.rewritten, report.new, report.lost, report.is_whole) == (4, 1, 0, True)
    assert report.compaction is not None
    assert report.compaction.startswith("1 partition with 4 files")
    [file] = live_files(table)
    names = pq.read_table(table / file)["name"].to_pylist()
    assert names == sorted(names) == sorted(f"n{n}" for n in range(12))
    assert rows_of(table) == expected((0, 12))
    version = opened(table).version()
    again = zordered(table)
    assert (again.rewritten, again.compaction) == (0, "No file was written since the last Z-order")
    assert opened(table).version() == version
    assert landed(table) == "clicks[0] [0,12)"
    land(table, 12, 14)
    assert landed(table) == "clicks[0] [0,14)"
    assert rows_of(table) == expected((0, 14))


def test_only_partitions_with_new_files_are_written_again(parts: Path) -> None:
    assert zordered(parts).new == 3
    land(parts, 9, 12, 1, partition_by=["_kafka_partition"])
    assert due(parts) == [("1",)]
    kept = {path for path, add in live_files(parts).items() if add["partitionValues"]["_kafka_partition"] != "1"}
    report = zordered(parts)
    assert (report.rewritten, report.new) == (2, 1)
    assert kept < live_files(parts).keys()
    assert len(live_files(parts)) == 3
    assert due(parts) == []


def compaction(table: Path) -> None:
    append_foreign_row(table)
    opened(table).optimize.compact()


def other_columns(table: Path) -> None:
    zordered(table, zorder_by=["id", "name"])


def restored(table: Path) -> None:
    opened(table).restore(3)


def landed_more(table: Path) -> None:
    land(table, 12, 15)


@pytest.mark.parametrize("act", [compaction, other_columns, restored, landed_more])
def test_a_table_with_files_of_another_commit_is_due_again(table: Path, act: Any) -> None:
    zordered(table)
    assert due(table) == []
    act(table)
    assert due(table) == [()]
    assert zordered(table).new == 1
    assert due(table) == []


def test_all_partitions_are_due_if_the_log_no_longer_has_the_last_z_order(parts: Path) -> None:
    zordered(parts)
    land(parts, 9, 12, 1, partition_by=["_kafka_partition"])
    shorten(parts)
    assert sorted(due(parts)) == [("0",), ("1",), ("2",)]
    assert zordered(parts).new == 3
    assert due(parts) == []


def test_a_landing_between_plan_and_commit_wins_and_the_table_is_due_in_the_next_run(table: Path) -> None:
    head, stale = head_of(table), opened(table)
    plan = optimizing.plan_of(DeltaStorage().store(str(table)), head, BY)
    land(table, 12, 14)
    report = optimizing.zorder(lambda: stale, head, plan, BY)
    assert (report.files, report.lost) == (0, 1)
    assert due(table) == [()]
    assert rows_of(table) == expected((0, 14))
    assert zordered(table).rewritten == 5
    assert rows_of(table) == expected((0, 14))


@pytest.mark.parametrize("compact", [{}, {"zorder_by": None}], ids=["Z-order", "OPTIMIZE"])
def test_of_two_runs_at_the_same_time_one_is_left_and_no_row_is_doubled(table: Path, compact: dict[str, Any]) -> None:
    before = head_of(table)
    mine = claimed(lambda: head_of(table), DeltaStorage().store(str(table)))
    # A feature more would make the table unfit for other engines, and for landings.
    after = head_of(table)
    assert (after.reader_features, after.writer_features) == (before.reader_features, before.writer_features)
    assert zordered(table, **compact).rewritten == 4
    with pytest.raises(CommitFailedError, match="Metadata changed"):
        mine.optimize.compact()
    mine = claimed(lambda: head_of(table), DeltaStorage().store(str(table)))
    claimed(lambda: head_of(table), DeltaStorage().store(str(table)))
    with pytest.raises(CommitFailedError, match="Metadata changed"):
        mine.optimize.z_order(BY)
    assert rows_of(table) == expected((0, 12))
    assert landed(table) == "clicks[0] [0,12)"


def test_a_partition_whose_rows_another_writer_deleted_is_left_to_the_next_run(parts: Path) -> None:
    head = head_of(parts)
    plan = optimizing.plan_of(DeltaStorage().store(str(parts)), head, BY)
    opened(parts).delete("_kafka_partition = 1 and id = 1001")
    turns = iter(plan.partitions)

    def open_table() -> DeltaTable:
        return DeltaTable(str(parts), version=head.version if next(turns) == ("1",) else None)

    report = optimizing.zorder(open_table, head, plan, BY)
    assert (report.lost, report.new) == (1, 2)
    assert due(parts) == [("1",)]
    assert zordered(parts).new == 1
    assert due(parts) == []
    assert opened(parts).to_pyarrow_table().num_rows == 26


def shorten(table: Path) -> None:
    """Delete all versions of the log but the newest, which a checkpoint replaces."""
    delta = opened(table)
    delta.create_checkpoint()
    for file in Path(table, "_delta_log").glob("0*.json"):
        if int(file.stem) < delta.version():
            file.unlink()


@pytest.mark.parametrize("is_short", [False, True], ids=["whole log", "short log"])
def test_the_next_run_goes_on_where_the_time_was_over(parts: Path, is_short: bool) -> None:
    head = head_of(parts)
    plan = optimizing.plan_of(DeltaStorage().store(str(parts)), head, BY)
    answers = iter([False, True])
    report = optimizing.zorder(lambda: opened(parts), head, plan, BY, is_over=lambda: next(answers))
    assert (report.new, report.is_whole) == (1, False)
    assert len(due(parts)) == 2
    if is_short:
        shorten(parts)
        assert len(due(parts)) == 2
    assert zordered(parts).new == 2
    assert due(parts) == []


@pytest.mark.parametrize("value", ["a/b c=%20é'", "2026-01-01", None])
def test_every_value_of_a_partition_is_found_again(tmp_path: Path, value: str | None) -> None:
    table = tmp_path / "values"
    rows = pa.table({"id": [3, 1, 2], "name": pa.array([value, value, "other"], pa.string())})
    for _ in range(2):
        write_deltalake(str(table), rows, mode="append", partition_by=["name"])
    assert zordered(table, zorder_by=["id"]).new == 2
    write_deltalake(str(table), rows.slice(0, 1), mode="append")
    report = zordered(table, zorder_by=["id"])
    assert (report.rewritten, report.new) == (2, 1)
    assert zordered(table, zorder_by=["id"]).rewritten == 0
    found = opened(table).to_pyarrow_table().sort_by("id")
    assert found["id"].to_pylist() == [1, 1, 2, 2, 3, 3, 3]


def test_a_partition_that_delta_rs_does_not_find_is_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = tmp_path / "values"
    for _ in range(2):
        write_deltalake(str(table), pa.table({"id": [1, 2], "name": ["", "x"]}), mode="append", partition_by=["name"])
    with caplog.at_level(logging.WARNING):
        assert zordered(table, zorder_by=["id"]).rewritten == 2
    assert "finds no file of the partition (None,)" in caplog.text
    assert opened(table).to_pyarrow_table().num_rows == 4


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("nme", r"has no column 'nme'.*name"),
        ("_kafka_partition", "is a partition column"),
        ("s", "which has no bounds in files"),
    ],
)
def test_columns_without_an_order_are_refused_before_any_work(tmp_path: Path, column: str, reason: str) -> None:
    table = tmp_path / "odd"
    settings = {"partition_by": ["_kafka_partition"], "schema": "id bigint, name string, s struct<a: int>"}
    land(table, 0, 3, **settings)
    version = opened(table).version()
    for dry_run in (True, False):
        section = MaintenanceSection.parse({"tables": [str(table)], "compact": {"zorder_by": ["id", column]}})
        with pytest.raises(Exception, match=rf"maintenance\.compact\.zorder_by: .*{reason}"):
            DeltaUpkeep(DeltaStorage(), section, dry_run).run()
    assert opened(table).version() == version


def test_a_dry_run_has_the_plan(table: Path) -> None:
    operator = LakestreamMaintainOperator(
        task_id="m", tables=str(table), compact={"zorder_by": ["name"]}, expire=False, dry_run=True
    )
    [report] = operator.execute({})
    assert report["rewritten"] == 4
    assert json.loads(json.dumps(report))["compaction"].startswith("1 partition with 4 files")
    assert opened(table).version() == 3


def test_iceberg_tables_are_refused_by_name_with_their_sort_order_as_the_way() -> None:
    works = {"tables": ["lake.clicks"], "compact": {"zorder_by": ["id"]}}
    text = r"compact\.zorder_by: 'lake.clicks' is the name of an Iceberg table; Z-orders are for Delta .*sort_order"
    with pytest.raises(InvalidArgument, match=text):
        MaintenanceSection.parse(works)
    with pytest.raises(InvalidArgument, match=r"zorder\(a, b\)"):
        MaintenanceConfig(catalog={"name": "c", "properties": {"type": "rest", "uri": "http://c"}}, maintenance=works)
