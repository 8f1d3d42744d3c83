"""Tables whose partitions PyIceberg itself can't write: each is written right, or refused by name before it is read."""

from __future__ import annotations

import itertools
import json
import threading
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, IsNull, LessThan
from pyiceberg.partitioning import PartitionKey
from pyiceberg.table import Table
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, SetDefaultSortOrderUpdate
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    VoidTransform,
)

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import Plan
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.write.files import write_data_files
from airflow_lakestream.tables import sink
from airflow_lakestream.tables.row_buffer import TableNotWritable
from tests.support.given_records import FORMATS, GivenLake, Record
from tests.support.partitioning import (
    VALUES,
    assert_avro_has_each_name_once,
    assert_partition_is_right,
    assert_partitions_are_right,
    made_of_version_1,
    partition_by,
    spec_of,
    transforms_of,
)

# PyIceberg filters by no UUID, and floats are partitions of their own.
NOT_FILTERED = ("uuid", "float")


def values(column: str, some: list[Any]) -> list[bytes]:
    return [json.dumps({column: one}).encode() for one in some]


def assert_filters_equal_a_full_scan(table: Table, column: str) -> None:
    full = table.scan(selected_fields=(column,)).to_arrow()[column].to_pylist()
    known = sorted({one for one in full if one is not None})
    filters: list[tuple[BooleanExpression, Any]] = [(IsNull(column), lambda one: one is None)]
    kind = type(known[0])
    for value in (known[0], known[-1]):
        filters.append((EqualTo(column, value), lambda one, value=value: one == value))
        if kind is not bool:
            filters.append((LessThan(column, value), lambda one, value=value: one is not None and one < value))
    if kind is not bool:
        low, high = known[0], known[-1]
        filters.append((In(column, known[:2]), lambda one: one in known[:2]))
        between = And(GreaterThanOrEqual(column, low), LessThan(column, high))
        filters.append((between, lambda one: one is not None and low <= one < high))
    for row_filter, fits in filters:
        found = table.scan(row_filter=row_filter, selected_fields=(column,)).to_arrow()[column].to_pylist()
        assert Counter(found) == Counter(one for one in full if fits(one)), row_filter


@pytest.mark.parametrize("kind", VALUES)
def test_two_partition_fields_of_a_column_are_written_whatever_their_transforms(tmp_path: Path, kind: str) -> None:
    lake, some = GivenLake(tmp_path), VALUES[kind]
    lake.land(values("v", some), schema=f"v {kind}")
    table = lake.iceberg()
    rows = table.scan().to_arrow()
    for pair in itertools.combinations(transforms_of(table.schema().find_field("v").field_type), 2):
        spec = spec_of(table, *(("v", one) for one in pair))
        specs = {"partition_specs": [*table.metadata.partition_specs, spec], "default_spec_id": spec.spec_id}
        files = write_data_files(table.metadata.model_copy(update=specs), table.io, rows, "pair")
        assert {file.spec_id for file in files} == {spec.spec_id}
        assert sum(assert_partition_is_right(file, table.schema(), spec) for file in files) == len(some)


def test_all_partition_fields_of_all_columns_at_once(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    names = {f"c{at}": kind for at, kind in enumerate(VALUES)}
    records = [
        json.dumps({name: VALUES[kind][at % len(VALUES[kind])] for name, kind in names.items()}).encode()
        for at in range(12)
    ]
    schema = ", ".join(f"{name} {kind}" for name, kind in names.items())
    lake.land(records[:1], schema=schema)
    table = lake.iceberg()
    terms = [(name, one) for name in names for one in transforms_of(table.schema().find_field(name).field_type)]
    partition_by(table, *terms)
    report = lake.land([*records, *records])
    assert (report.counts.written, report.counts.rejected) == (23, 0)
    table = lake.iceberg()
    # The first landing made one file; of the second, each two equal rows are in one.
    assert assert_partitions_are_right(table) == 13
    assert_avro_has_each_name_once(table)
    for name, kind in names.items():
        if kind not in NOT_FILTERED:
            assert_filters_equal_a_full_scan(table, name)


def test_partition_fields_inside_of_structs(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    records = [b'{"s": {"at": "2024-02-29T12:30:00Z", "n": 5}}', b'{"s": null}', b'{"s": {"n": null}}']
    lake.land(records[:1], schema="s struct<at: timestamp, n: bigint>")
    terms = (("s.at", DayTransform()), ("s.at", HourTransform()), ("s.n", BucketTransform(4)), ("s.n", VoidTransform()))
    partition_by(lake.iceberg(), *terms)
    assert lake.land(records).counts.written == 2
    # Without a value in any of the partition's columns two rows are one file.
    assert assert_partitions_are_right(lake.iceberg()) == 2


def test_a_replace_takes_out_files_of_a_null_partition_by_a_required_field(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    records = [b'{"s": {"n": 5}}', b'{"s": null}']
    lake.land(records[:1], schema="s struct<n: bigint not null>")
    partition_by(lake.iceberg(), ("s.n", IdentityTransform()))
    lake.land(records)
    assert lake.land(records, mode="ranges", ranges=[[0, 0, 2]], replace=True).counts.written == 2
    assert [row["s"] for row in lake.rows()] == [{"n": 5}, None]


@pytest.mark.parametrize("others", [(), ("n",)])
def test_a_table_that_was_made_of_version_1_and_whose_partitions_column_was_dropped(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    lake = GivenLake(tmp_path)
    made_of_version_1(lake, *others)
    for some in ([1, 2, None], [1, 2, None, 4]):
        assert lake.land(values("n", some)).counts.rejected == 0
    assert [row["n"] for row in lake.rows()] == [1, 2, None, 4]
    assert_partitions_are_right(lake.iceberg())
    assert_filters_equal_a_full_scan(lake.iceberg(), "n")
    assert lake.land(values("n", [1, 2, None, 4]), mode="ranges", ranges=[[0, 0, 4]], replace=True).counts.written == 4


def test_a_reject_table_is_written_whatever_its_partitions_are(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    bad = [Record(b"{", at_ms=at) for at in (0, 3_600_000)]
    lake.land([*bad, b'{"v": 1}'], schema="v int", max_rejected=1.0)
    table = lake.iceberg(f"{lake.name}__rejected")
    times = [
        (column, one) for column in ("_kafka_timestamp", "rejected_at") for one in (DayTransform(), HourTransform())
    ]
    partition_by(table, *times, ("error", VoidTransform()))
    lake.land([*bad, b'{"v": 1}', *bad], max_rejected=1.0)
    assert sorted(lake.rejected()) == [0, 1, 3, 4]
    assert_partitions_are_right(lake.iceberg(f"{lake.name}__rejected"))


class NoPlace(LocationProvider):
    """A place for no file."""

    def new_data_location(self, data_file_name: str, partition_key: PartitionKey | None = None) -> str:
        raise ValueError("there is no place for a file")


NO_PLACE = {"write.py-location-provider.impl": f"{NoPlace.__module__}.{NoPlace.__name__}"}


@pytest.mark.parametrize("count", [5, 50])
@pytest.mark.parametrize("which", ["", "__rejected"])
def test_a_table_for_which_no_file_can_be_made_is_refused_before_a_record_is_read(
    tmp_path: Path, count: int, which: str
) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b"{", *[b'{"v": 1}'] * 9], schema="v int")
    with lake.iceberg(lake.name + which).transaction() as change:
        change.set_properties(NO_PLACE)
    before = sorted(tmp_path.rglob("*"))
    job = replace(lake.job(values("v", [1] * (10 + count))), reader=Unread())
    with pytest.raises(TableNotWritable, match=rf"^lake\.events{which}: no file can be made .*there is no place"):
        land(job)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("schema", [None, "v int"])
def test_a_new_table_for_which_no_file_can_be_made_is_refused_and_not_made(tmp_path: Path, schema: str | None) -> None:
    lake = GivenLake(tmp_path)
    with pytest.raises(TableNotWritable, match=r"^lake\.events: no file can be made .*there is no place"):
        lake.land(values("v", [1] * 5), table_properties=NO_PLACE, **({} if schema is None else {"schema": schema}))
    assert not list(tmp_path.rglob("*.parquet"))
    assert not lake.catalog().list_namespaces()


def test_a_process_tries_a_table_once_until_something_of_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    monkeypatch.setattr(sink, "prove", lambda table, write: tried.append(table))
    lake, own = GivenLake(tmp_path), {"write.summary.partition-limit": "7"}
    for count in (1, 2, 3):
        lake.land(values("v", [1] * count), schema="v int", table_properties=own)
    assert tried == ["lake.events"]
    with lake.iceberg().update_spec() as spec:
        spec.add_field("v", BucketTransform(7))
    lake.land(values("v", [1] * 4))
    assert tried == ["lake.events"] * 2


def test_each_table_of_a_fan_out_is_tried_before_its_rows_are_written(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.catalog().create_namespace("lake")
    config: dict[str, Any] = {"table": "lake.{kind}", "new_tables": "create", "home_table": "lake.home"}
    records = [b'{"kind": "x", "v": 1}', b'{"kind": "y", "v": 1}']
    lake.land(records, schema="kind string, v int", **config)
    with lake.iceberg("lake.y").transaction() as change:
        change.set_properties(NO_PLACE)
    with pytest.raises(TableNotWritable, match=r"^lake\.y: no file can be made"):
        lake.land([*records, *records], **config)
    assert len(lake.rows("lake.x")) == 1
    assert not lake.catalog().table_exists("lake.home__rejected")


class Unread:
    """`core.ports.Reader` of a run that reads nothing."""

    def read(self, plan: Plan, cancelled: threading.Event) -> Generator[RecordChunk, None, None]:
        raise AssertionError("nothing was to be read")


def partitioned(source: int, transform: str) -> dict[str, Any]:
    fields = [{"source-id": source, "field-id": 1000, "transform": transform, "name": "odd"}]
    return {"partition-specs": [{"spec-id": 1, "fields": fields}], "default-spec-id": 1, "last-partition-id": 1000}


def ordered(source: int, transform: str) -> dict[str, Any]:
    field = {"source-id": source, "transform": transform, "direction": "asc", "null-order": "nulls-first"}
    return {"sort-orders": [{"order-id": 1, "fields": [field]}], "default-sort-order-id": 1}


V, W, D, ELEMENT = 1, 2, 4, 9
# What is changed in the table's metadata, and what the refusal says.
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown partition transform": (
        partitioned(W, "zorder"),
        r"^table: lake\.events is partitioned by unknown\(w\), of which nothing is known.* DROP PARTITION FIELD",
    ),
    "a partition whose column was dropped": (
        partitioned(V, "identity"),
        r"^table: lake\.events is partitioned by a dropped column \(1\)",
    ),
    "a partition whose column lies in a list": (
        partitioned(ELEMENT, "bucket[4]"),
        r"^table: lake\.events is partitioned by bucket\(4, l\.element\), .* is in a list or map",
    ),
    "a transform of a column that it does not take": (
        partitioned(W, "day"),
        r"^table: lake\.events is partitioned by day\(w\), which takes no int",
    ),
    "a double": (
        partitioned(D, "identity"),
        r"^table: lake\.events is partitioned by d, a double, of whose partitions",
    ),
    "buckets of which there are none": (partitioned(W, "bucket[0]"), r"^lake\.events: no file can be made for"),
    "an unknown transform in the order": (
        ordered(W, "zorder"),
        r"^table: lake\.events is sorted by unknown\(w\), of which nothing is known.* WRITE UNORDERED",
    ),
    "an order by a dropped column": (ordered(V, "identity"), r"^table: lake\.events is sorted by a dropped column"),
}


@pytest.mark.parametrize("case", ODD)
def test_a_layout_that_no_row_can_have_is_refused_by_name_before_a_record_is_read(tmp_path: Path, case: str) -> None:
    lake, (change, error) = GivenLake(tmp_path), ODD[case]
    lake.land([b'{"v": 1, "w": 1, "l": [1]}'], schema="v int, w int, l array<int>, d double")
    with lake.iceberg().update_schema(allow_incompatible_changes=True) as schema:
        schema.delete_column("v")
    file = Path(lake.iceberg().metadata_location.removeprefix("file://"))
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises((InvalidArgument, TableNotWritable), match=error):
        land(replace(lake.job(values("w", [1] * 60)), reader=Unread()))


def test_a_void_field_in_the_order_of_rows_sorts_nothing(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"v": 3, "w": 1}'], schema="v int, w int")
    order = SortOrder(SortField(1, VoidTransform()), SortField(2, IdentityTransform()), order_id=1)
    table = lake.iceberg()
    table.catalog.commit_table(table, (), (AddSortOrderUpdate(sort_order=order), SetDefaultSortOrderUpdate()))
    lake.land([json.dumps({"v": 0, "w": w}).encode() for w in (3, 2, 1)])
    assert [task.file.sort_order_id for task in lake.iceberg().scan().plan_files()].count(1) == 1
    assert sorted(row["w"] for row in lake.rows()) == [1, 1, 2]


@pytest.mark.parametrize("table_format", FORMATS)
def test_one_row_of_each_type_is_written_and_read(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    kinds = [one for one in VALUES if table_format == "iceberg" or one not in ("uuid", "time")]
    nested = [f"array<{kind}>" for kind in kinds] + [f"map<string, {kind}>" for kind in kinds]
    nested.append(f"struct<{', '.join(f'f{at}: {kind}' for at, kind in enumerate([*kinds, *nested]))}>")
    schema = ", ".join(f"c{at} {kind} not null" for at, kind in enumerate([*kinds, *nested]))
    # It lands nothing, and tries a row with a value in each column.
    report = lake.land([b"{}"], schema=schema, max_rejected=1.0)
    assert report.counts.rejected == 1
