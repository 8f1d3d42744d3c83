"""Replace at the table's side: rows out, rows in, one snapshot, and the ledger with it."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import IntegerType, LongType, StringType

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.tables import takeout
from airflow_lakestream.tables.schema.ddl import parse_schema
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.replacing import ORDERS, offsets_of, ranges, versions
from tests.support.table_formats import IcebergTable


@pytest.fixture
def made(empty: IcebergTable) -> IcebergTable:
    return empty


def files(made: IcebergTable) -> set[str]:
    return {task.file.file_path for task in made.table().scan().plan_files()}


def test_files_in_the_ranges_go_files_across_their_ends_are_rewritten_others_stay(made: IcebergTable) -> None:
    added = []
    for start in (0, 10, 20, 30):
        before = files(made) if start else set()
        made.land(ranges((0, start, start + 10), (1, start, start + 10)))
        added.append(files(made) - before)
    inside, across, elsewhere = added[1], added[2], added[0] | added[3]
    snapshot_id, landing = made.replace(ranges((0, 10, 25), (1, 10, 20)))

    table = made.table()
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.snapshot_id == snapshot_id
    assert head.summary.operation is Operation.OVERWRITE
    assert len(table.snapshots()) == 5
    landed, replaced = ((0, 0, 40), (1, 0, 40)), ((0, 10, 25), (1, 10, 20))
    assert made.rows() == versions(*((part, "old") for part in landed), *((part, "new") for part in replaced))
    assert elsewhere <= files(made)
    assert not files(made) & (inside | across)
    assert head.summary["deleted-data-files"] == "2"
    assert head.summary["total-records"] == "80"
    assert landing.topics[ORDERS].removed == Counts(read=25, written=25)
    made.assert_whole()


@pytest.mark.parametrize(
    "partition_by",
    [
        ("_kafka_partition",),
        ("_kafka_topic", "day(at)"),
        ("bucket(3, _kafka_offset)", "truncate(2, version)"),
        ("hour(at)", "version", "truncate(10, _kafka_offset)"),
    ],
)
def test_a_partitioned_and_sorted_table(made: IcebergTable, partition_by: tuple[str, ...]) -> None:
    design: dict[str, Any] = {"partition_by": partition_by, "sort_order": ("_kafka_offset desc",)}
    made.run(**design).land(ranges((0, 0, 20), (1, 0, 20)))
    made.append_foreign("foreign")
    made.run(**design).replace(ranges((0, 3, 14), (1, 19, 20)))

    rows = [((p, 0, 20), "old") for p in (0, 1)]
    assert made.rows() == versions(*rows, ((0, 3, 14), "new"), ((1, 19, 20), "new"), foreign=("foreign",))
    made.assert_whole()
    landed = [task.file for task in made.table().scan("_kafka_offset >= 0").plan_files()]
    assert {file.sort_order_id for file in landed} == {made.table().sort_order().order_id}
    for file in landed:
        offsets = pq.read_table(file.file_path.removeprefix("file://"))["_kafka_offset"].to_pylist()
        assert offsets == sorted(offsets, reverse=True)


@pytest.mark.parametrize("column", ["_kafka_partition", "version"])
def test_files_of_an_earlier_partition_spec(made: IcebergTable, column: str) -> None:
    made.land(ranges((0, 0, 10)))
    with made.table().update_spec() as update:
        update.add_identity(column)
    made.land(ranges((0, 10, 20)))
    made.replace(ranges((0, 5, 15)))
    assert made.rows() == versions(((0, 0, 20), "old"), ((0, 5, 15), "new"))
    made.assert_whole()


def test_files_without_statistics_are_read(made: IcebergTable) -> None:
    for start in (0, 10):
        made.run(properties={"write.metadata.metrics.default": "none"}).land(ranges((0, start, start + 10)))
    made.append_foreign("foreign")
    assert not any(task.file.value_counts for task in made.table().scan().plan_files())
    made.replace(ranges((0, 8, 12)))
    assert made.rows() == versions(((0, 0, 20), "old"), ((0, 8, 12), "new"), foreign=("foreign",))


def test_deleted_rows_do_not_come_back(made: IcebergTable) -> None:
    made.land(ranges((0, 0, 10)))
    made.land(ranges((0, 10, 20)))
    first, second = sorted(made.table().scan().plan_files(), key=lambda task: task.file.file_path)
    starts = {
        pq.read_table(t.file.file_path.removeprefix("file://"))["_kafka_offset"][0].as_py(): t for t in (first, second)
    }
    delete_positions(made.table(), starts[0].file.file_path, [0, 1, 6])
    delete_positions(made.table(), starts[10].file.file_path, [0])
    gone = {(0, 0), (0, 1), (0, 6), (0, 10)}
    assert len(made.rows()) == 16

    # Of the second file all rows that are left are hits: dropped whole.
    _, landing = made.replace(ranges((0, 5, 20)))

    replaced = set(offsets_of(ranges((0, 5, 20))))
    rows = versions(((0, 0, 20), "old"), ((0, 5, 20), "new"))
    assert made.rows() == [row for row in rows if row[:2] not in gone - replaced]
    # The ledger counted two rows more, which had been deleted, and are there again.
    assert landing.topics[ORDERS].removed == Counts(read=15, written=15)


def test_a_remainder_larger_than_memory_is_written_in_pieces(
    made: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeout, "REMAINDER_BYTES", 1)
    made.run(properties={"write.parquet.row-group-limit": "10"}).land(ranges((0, 0, 40)))
    made.replace(ranges((0, 10, 21)))
    assert made.rows() == versions(((0, 0, 40), "old"), ((0, 10, 21), "new"))
    assert len(files(made)) == 4
    made.assert_whole()


# What can't be replaced


def test_rows_that_were_landed_before_the_table_had_the_columns(made: IcebergTable) -> None:
    made.run(metadata=()).land(ranges((0, 0, 10)))
    with made.table().update_schema() as update:
        update.add_column("_kafka_topic", StringType())
        update.add_column("_kafka_partition", IntegerType())
        update.add_column("_kafka_offset", LongType())
    made.land(ranges((0, 10, 20)))
    with pytest.raises(CannotReplace, match="20 rows were landed and 10 rows have values"):
        made.replace(ranges((0, 0, 15)))
    assert len(made.rows()) == 20


def test_a_table_with_equality_deletes(made: IcebergTable) -> None:
    made.land(ranges((0, 0, 10)))
    delete_equal(made.table(), "_kafka_offset", [3])
    location = made.table().metadata_location
    with pytest.raises(CannotReplace, match="equality deletes, such as file:"):
        made.replace(ranges((0, 0, 5)))
    assert made.table().metadata_location == location


def test_all_types_of_columns_come_through_a_remainder_unchanged(made: IcebergTable) -> None:
    made.land(ranges((0, 0, 10)))
    wide = parse_schema(
        "b binary, u uuid, t time, d date, n decimal(20,3), l array<struct<a int, m map<string, long>>>, f float, "
        "ts timestamp_ntz"
    )
    with made.table().update_schema() as update:
        for field in wide.fields:
            update.add_column(field.name, field.field_type)
    table = made.table()
    row = {
        "version": "wide",
        "b": b"\x00\xff",
        "u": uuid.UUID(int=5).bytes,
        "t": dt.time(1, 2, 3, 4),
        "d": dt.date(1969, 1, 1),
        "n": Decimal("-1.125"),
        "l": [None, {"a": None, "m": [("k", None)]}, {"a": 1, "m": []}],
        "f": float("nan"),
        "ts": dt.datetime(1950, 1, 1),
        "_kafka_topic": "orders",
        "_kafka_partition": 0,
        "_kafka_offset": 100,
    }
    table.append(pa.Table.from_pylist([row, {"version": "empty"}], schema=table.schema().as_arrow()))
    made.compact()
    keep = "version = 'wide' or version = 'empty'"
    before = repr(made.table().scan(keep).to_arrow().sort_by("version").to_pylist())
    made.replace(ranges((0, 0, 10)))
    assert repr(made.table().scan(keep).to_arrow().sort_by("version").to_pylist()) == before
    assert "Decimal('-1.125')" in before
