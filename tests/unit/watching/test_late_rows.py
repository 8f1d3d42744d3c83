"""Rows that landed late, in a real Iceberg table: by their positions and times, whatever became of their files."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.audit.rows import NoPositions, UnreadableRows
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.coordinates import COORDINATES
from airflow_lakestream.watching import partitions
from airflow_lakestream.watching.partition_emission import EmittedPartitions, PartitionLength
from airflow_lakestream.watching.partitions import check_columns, late_rows

HOUR = PartitionLength.HOUR.width_ms
BEGIN = 491_000 * HOUR
# How a record's time stands in a column of each type, as Arrow takes it: microseconds, days.
TYPES = {"at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "day": pa.date32()}
SCHEMA = pa.schema(
    [
        *zip(COORDINATES, (pa.string(), pa.int32(), pa.int64()), strict=True),
        *TYPES.items(),
        ("nested", pa.struct([("at", pa.timestamp("us"))])),
        ("word", pa.string()),
    ]
)
Record = tuple[str, int, int, int | None]


def rows(records: list[Record]) -> pa.Table:
    topics, partitions, offsets, times = (list(column) for column in zip(*records, strict=True))
    micros = [None if at is None else at * 1000 + 7 for at in times]
    days = pa.array([None if at is None else at // (24 * HOUR) for at in times], pa.int32())
    columns = [topics, partitions, offsets, micros, micros, days.cast(pa.date32())]
    arrays = [pa.array(column, SCHEMA.field(n).type) for n, column in enumerate(columns)]
    rest = [pa.nulls(len(records), SCHEMA.field(name).type) for name in ("nested", "word")]
    return pa.Table.from_arrays([*arrays, *rest], schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("lake")
    return catalog.create_table("lake.t", SCHEMA, properties={"format-version": "2"})


@pytest.mark.parametrize("column", TYPES)
def test_late_rows_are_those_of_unseen_offsets_in_partitions_that_were_told(table: Table, column: str) -> None:
    rng, every = random.Random(3), PartitionLength.DAY if column == "day" else PartitionLength.HOUR
    records: list[Record] = []
    for n in range(6):
        at = [
            None if rng.random() < 0.1 else BEGIN + rng.randint(-30, 30) * HOUR + rng.randrange(HOUR) for _ in "x" * 20
        ]
        these = [(rng.choice("ab"), rng.randrange(2), 20 * n + k, one) for k, one in enumerate(at)]
        records += these
        table.append(rows(these))
    # A delete in place, which stays in its file; and files made anew by somebody else.
    table.delete("_kafka_offset == 55")
    records = [one for one in records if one[2] != 55]
    unseen = RangeSet([OffsetRange("a", 0, 50, 115), OffsetRange("b", 1, 0, 30), OffsetRange("c", 0, 0, 99)])
    width = every.width_ms
    begin = BEGIN // width * width
    before = EmittedPartitions(spans=((begin - 20 * width, begin - 3 * width), (begin, begin + 9 * width)))
    expected = Counter(
        at // width * width
        for topic, p, offset, at in records
        if at is not None
        and any(r.from_offset <= offset < r.until_offset for r in unseen.of_partition(topic, p))
        and before.has((at // width * width, at // width * width + width))
    )
    assert sum(expected.values()) > 5
    assert late_rows(table, column, every, before, unseen) == expected
    assert late_rows(table, column, every, before, RangeSet()) == {}


def test_only_files_that_may_hold_unseen_offsets_are_read(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        table.append(rows([("a", 0, 10 * n + k, BEGIN) for k in range(10)]))
    read: list[str] = []
    real = partitions.read_rows

    def counted(*args: Any, **named: Any) -> Any:
        read.append("a file")
        return real(*args, **named)

    monkeypatch.setattr(partitions, "read_rows", counted)
    before = EmittedPartitions(spans=((BEGIN, BEGIN + HOUR),))
    assert late_rows(table, "at", PartitionLength.HOUR, before, RangeSet.of("a", 0, 35, 99)) == {BEGIN: 15}
    assert len(read) == 2


@pytest.mark.parametrize(
    ("column", "problem"),
    [("when", "is not a column"), ("word", "not a timestamp"), ("nested.at", "within a struct"), ("day", "a date")],
)
def test_a_column_that_says_no_hour_is_refused(table: Table, column: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^event_time_column: .*{problem}"):
        check_columns(table, column, PartitionLength.HOUR)
    check_columns(table, "at", PartitionLength.HOUR)
    check_columns(table, "day", PartitionLength.DAY)


def test_a_table_without_positions_is_refused(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("_kafka_offset")
    with pytest.raises(NoPositions, match="_kafka_offset"):
        check_columns(table, "at", PartitionLength.HOUR)


def test_files_that_are_gone_are_an_error_of_ours(table: Table) -> None:
    table.append(rows([("a", 0, 0, BEGIN)]))
    for task in table.scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(UnreadableRows, match=r"rows of lake\.t can't be read"):
        late_rows(
            table,
            "at",
            PartitionLength.HOUR,
            EmittedPartitions(spans=((BEGIN, BEGIN + HOUR),)),
            RangeSet.of("a", 0, 0, 1),
        )
