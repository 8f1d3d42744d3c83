"""Tables as other writers, and accidents, leave them: landed in, or refused by name before a record is read."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lakestream.audit.run import load
from airflow_lakestream.decode.metadata import metadata_schema
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.iceberg.fitness import FormatVersionTooNew, NoTableId, UnreadableTable
from airflow_lakestream.iceberg.ledger_store import FormatVersionTooOld
from airflow_lakestream.iceberg.publishing.sink import PublishingSink, open_branch
from airflow_lakestream.iceberg.upkeep.ledger_edit import restate_ledgers
from airflow_lakestream.run.storage import StorageFailed, storage_errors_named
from airflow_lakestream.stores.object_store import PlaceNotWritable
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.row_buffer import TableNotWritable
from airflow_lakestream.watching.streams.landings import IcebergStreams
from tests.support.given_records import GivenLake
from tests.support.odd_tables import EXTRACT, KINDS, Kind, assert_landed, assert_refused, land_or_refuse, make_odd

Metadata = dict[str, Any]
# Changes a table's metadata, or returns what its file is to hold instead.
Change = Callable[[Metadata], object]


def having(**values: object) -> Change:
    return lambda metadata: metadata.update({name.replace("_", "-"): value for name, value in values.items()})


def without(name: str) -> Change:
    return lambda metadata: metadata.pop(name) and None


def with_column(**values: object) -> Change:
    def change(metadata: Metadata) -> None:
        column = {"id": 99, "name": "x", "required": False, "type": "int", **values}
        metadata["schemas"][-1]["fields"].append({name.replace("_", "-"): value for name, value in column.items()})
        metadata["last-column-id"] = 99

    return change


def partitioned(**values: object) -> Change:
    field = {"source-id": 1, "field-id": 1000, "transform": "identity", "name": "odd"}
    field |= {name.replace("_", "-"): value for name, value in values.items()}
    spec = {"spec-id": 1, "fields": [{name: value for name, value in field.items() if value is not None}]}

    def change(metadata: Metadata) -> None:
        metadata["partition-specs"].append(spec)
        metadata |= {"default-spec-id": 1, "last-partition-id": 1000}

    return change


def identified_by(*columns: int) -> Change:
    return lambda metadata: metadata["schemas"][-1].update({"identifier-field-ids": [*columns]})


def off_main(**refs: object) -> Change:
    def change(metadata: Metadata) -> None:
        main = metadata["refs"].pop("main")
        metadata["refs"] |= {name: {**main, "type": kind} for name, kind in refs.items()}
        metadata["current-snapshot-id"] = None

    return change


def placed(**places: str) -> Change:
    """Have its files elsewhere, below the table's own place."""

    def change(metadata: Metadata) -> None:
        for name, place in places.items():
            told = metadata if name == "location" else metadata["properties"]
            told[name.replace("_", ".")] = place.format(there=metadata["location"])

    return change


def in_snapshots(**values: object) -> Change:
    def change(metadata: Metadata) -> None:
        for one in metadata["snapshots"]:
            one.update({name.replace("_", "-"): value for name, value in values.items()})

    return change


UNREADABLE = r"^lake\.events: PyIceberg can not read its metadata \("
NOT_WRITABLE = r"^lake\.events: no file can be written below "
REFUSED: dict[str, tuple[Change, type[LakestreamError], str]] = {
    "buckets without a number": (
        partitioned(transform="bucket[]"),
        UnreadableTable,
        rf"{UNREADABLE}Could not match bucket\[\]",
    ),
    "a transform of two columns": (
        partitioned(source_id=None, source_ids=[1, 2]),
        UnreadableTable,
        rf"{UNREADABLE}.*Multi argument transforms",
    ),
    "a partition without a column": (
        partitioned(source_id=None),
        UnreadableTable,
        rf"{UNREADABLE}.*fields\.0\.source-id Field required",
    ),
    "no bucket": (partitioned(transform="bucket[0]"), TableNotWritable, r"^lake\.events: no file can be made"),
    "a truncation to nothing": (
        partitioned(transform="truncate[0]"),
        TableNotWritable,
        r"^lake\.events: no file can be made",
    ),
    "no such spec": (having(default_spec_id=7), UnreadableTable, rf"{UNREADABLE}default-spec-id 7"),
    "no such order": (having(default_sort_order_id=7), UnreadableTable, rf"{UNREADABLE}default-sort-order-id 7"),
    "no orders": (having(sort_orders=[]), UnreadableTable, rf"{UNREADABLE}default-sort-order-id is 0, and"),
    "orders that are not there": (
        without("sort-orders"),
        UnreadableTable,
        rf"{UNREADABLE}default-sort-order-id is 0, and",
    ),
    "an order that is null": (
        having(sort_orders=[{"order-id": 0, "fields": [None]}]),
        UnreadableTable,
        rf"{UNREADABLE}sort-orders: null where an object",
    ),
    "no such schema": (having(current_schema_id=7), UnreadableTable, rf"{UNREADABLE}current-schema-id 7"),
    "version 1": (
        lambda metadata: metadata.update({"format-version": 1, "schema": metadata["schemas"][0], "partition-spec": []}),
        FormatVersionTooOld,
        r"format version 1.*Upgrade it",
    ),
    "version 3": (having(format_version=3, next_row_id=0), FormatVersionTooNew, r"format version 3"),
    "version 4": (having(format_version=4), UnreadableTable, rf"{UNREADABLE}.*'4'"),
    "a version that is none": (
        having(format_version="x"),
        UnreadableTable,
        rf"{UNREADABLE}.*Input tag 'x' found using 'format_version'",
    ),
    "a type that nobody knows": (with_column(type="whatever"), UnreadableTable, rf"{UNREADABLE}.*'whatever'"),
    "a variant": (with_column(type="variant"), UnreadableTable, rf"{UNREADABLE}.*'variant'"),
    "nanoseconds": (with_column(type="timestamp_ns"), InvalidArgument, r"column 'x' has the type timestamp_ns"),
    "a column without a type": (with_column(type="unknown"), InvalidArgument, r"column 'x'"),
    "an identifier that may be NULL": (identified_by(2), UnreadableTable, rf"{UNREADABLE}.*Identifier field 2"),
    "an identifier that is not there": (identified_by(77), UnreadableTable, rf"{UNREADABLE}.*77"),
    "a name that is there twice": (
        with_column(name="w"),
        UnreadableTable,
        rf"{UNREADABLE}.*multiple fields for name w",
    ),
    "no place": (without("location"), UnreadableTable, rf"{UNREADABLE}.*location"),
    "no properties": (having(properties=None), UnreadableTable, rf"{UNREADABLE}properties: null where an object"),
    "properties that are a list": (having(properties=[]), UnreadableTable, rf"{UNREADABLE}properties: \[\] where an"),
    "a property without a value": (having(properties={"a": None}), UnreadableTable, rf"{UNREADABLE}.*properties"),
    "no id": (without("table-uuid"), NoTableId, r"^lake\.events: its metadata have no table-uuid.*Register"),
    "an id that is null": (having(table_uuid=None), UnreadableTable, rf"{UNREADABLE}.*table-uuid"),
    "an id that is none": (having(table_uuid="x"), UnreadableTable, rf"{UNREADABLE}.*table-uuid"),
    "a geometry": (with_column(type="geometry"), InvalidArgument, r"column 'x' has the type geometry"),
    "a geography": (with_column(type="geography"), InvalidArgument, r"column 'x' has the type geography"),
    "a geography of another form": (
        with_column(type="geography(srid:4269)"),
        UnreadableTable,
        rf"{UNREADABLE}Could not parse geography",
    ),
    "a list of geometries": (
        with_column(type={"type": "list", "element-id": 98, "element-required": False, "element": "geometry"}),
        InvalidArgument,
        r"column 'x.element' has the type geometry",
    ),
    "a geometry in version 3": (
        lambda metadata: (with_column(type="geometry")(metadata), metadata.update({"format-version": 3})),
        FormatVersionTooNew,
        r"format version 3",
    ),
    "a place that is null": (having(location=None), UnreadableTable, rf"{UNREADABLE}.*location"),
    "a place that is a number": (having(location=5), UnreadableTable, rf"{UNREADABLE}.*location"),
    "a place below a file": (placed(location="{there}/metadata/file/t"), PlaceNotWritable, NOT_WRITABLE),
    "a place that takes no files": (having(location="file:///proc/t"), PlaceNotWritable, NOT_WRITABLE),
    "a place of an unknown store": (having(location="nowhere://bucket/t"), PlaceNotWritable, NOT_WRITABLE),
    "data below a file": (placed(write_data_path="{there}/metadata/file/t"), PlaceNotWritable, NOT_WRITABLE),
    "metadata of an unknown store": (placed(write_metadata_path="nowhere://b/t"), PlaceNotWritable, NOT_WRITABLE),
    "no schemas": (having(schemas=[]), UnreadableTable, rf"{UNREADABLE}current-schema-id 0"),
    "schemas that are null": (
        having(schemas=None),
        UnreadableTable,
        rf"{UNREADABLE}.*schemas Input should be a valid array",
    ),
    "a column without an id": (with_column(id=None), UnreadableTable, rf"{UNREADABLE}.*fields\.6\.id Input should be"),
    "an id that two columns have": (with_column(id=2), UnreadableTable, rf"{UNREADABLE}several columns have the id 2"),
    "an id that a part of a column has": (
        with_column(type={"type": "list", "element-id": 2, "element-required": False, "element": "int"}),
        UnreadableTable,
        rf"{UNREADABLE}several columns have the id 2",
    ),
    "an id below zero": (with_column(id=-1), UnreadableTable, rf"{UNREADABLE}a column has the id -1"),
    "a total that is not a number": (
        in_snapshots(summary={"operation": "append", "total-records": "many"}),
        UnreadableTable,
        rf"{UNREADABLE}total-records in the summary of snapshot \d+ is 'many'",
    ),
    "a last id of a column that is too low": (
        having(last_column_id=1),
        UnreadableTable,
        rf"{UNREADABLE}last-column-id is 1, and a column has the id",
    ),
    "no last id of a column": (
        without("last-column-id"),
        UnreadableTable,
        rf"{UNREADABLE}.*last-column-id Field required",
    ),
    "snapshots that are null": (having(snapshots=None), UnreadableTable, rf"{UNREADABLE}.*snapshots Input should be"),
    "branches that are null": (having(refs=None), UnreadableTable, rf"{UNREADABLE}.*refs Input should be"),
    "a main that is nowhere": (
        lambda metadata: metadata["refs"]["main"].update({"snapshot-id": 7}),
        UnreadableTable,
        rf"{UNREADABLE}a branch or a tag is at the snapshot 7",
    ),
    "a snapshot that is not there": (having(snapshots=[]), UnreadableTable, rf"{UNREADABLE}a branch or a tag is at"),
    "a snapshot without a list of manifests": (
        in_snapshots(manifest_list=None),
        UnreadableTable,
        rf"{UNREADABLE}.*manifest-list Input should",
    ),
    "a last number that is too low": (
        having(last_sequence_number=0),
        UnreadableTable,
        rf"{UNREADABLE}last-sequence-number is 0, and a snapshot has 1",
    ),
    "statistics that are null": (
        having(statistics=None),
        UnreadableTable,
        rf"{UNREADABLE}.*statistics Input should be",
    ),
    "no specs": (having(partition_specs=[]), UnreadableTable, rf"{UNREADABLE}default-spec-id 0"),
    "specs that are null": (
        having(partition_specs=None),
        UnreadableTable,
        rf"{UNREADABLE}.*partition-specs Input should be",
    ),
    "a partition of a column that is gone": (
        partitioned(source_id=77),
        InvalidArgument,
        r"lake\.events is partitioned by a dropped column \(77\).*DROP PARTITION FIELD",
    ),
    "a transform that nobody knows": (
        partitioned(transform="zorder"),
        InvalidArgument,
        r"lake\.events is partitioned by unknown\(v\).*DROP PARTITION FIELD",
    ),
    "an hour of a number": (
        partitioned(transform="hour"),
        InvalidArgument,
        r"lake\.events is partitioned by hour\(v\), which takes no int.*DROP PARTITION FIELD",
    ),
    "an order by a column that is gone": (
        lambda metadata: metadata.update(
            {
                "sort-orders": [
                    {
                        "order-id": 1,
                        "fields": [
                            {"transform": "identity", "source-id": 77, "direction": "asc", "null-order": "nulls-first"}
                        ],
                    }
                ],
                "default-sort-order-id": 1,
            }
        ),
        InvalidArgument,
        r"lake\.events is sorted by a dropped column \(77\).*WRITE UNORDERED",
    ),
    "a version in quotes": (having(format_version="2"), UnreadableTable, rf"{UNREADABLE}.*Input tag '2' found"),
    "no version": (
        without("format-version"),
        UnreadableTable,
        rf"{UNREADABLE}.*Unable to extract tag .*'format-version'",
    ),
    "metadata that are empty": (lambda _: "", UnreadableTable, rf"{UNREADABLE}.*EOF while parsing"),
    "metadata of another encoding": (
        lambda metadata: json.dumps(metadata).encode("utf-16"),
        UnreadableTable,
        rf"{UNREADABLE}'utf-8' codec can't decode",
    ),
    "metadata that are zeroed": (
        lambda metadata: b"\0" * 500,
        UnreadableTable,
        rf"{UNREADABLE}.*expected value at line 1 column 1",
    ),
    "metadata that are deep": (lambda _: "[" * 100_000, UnreadableTable, rf"{UNREADABLE}.*recursion limit exceeded"),
    "metadata that are packed and named as if not": (
        lambda metadata: gzip.compress(json.dumps(metadata).encode()),
        UnreadableTable,
        rf"{UNREADABLE}'utf-8' codec can't decode",
    ),
    "metadata that are cut": (
        lambda metadata: json.dumps(metadata)[:300],
        UnreadableTable,
        rf"{UNREADABLE}.*EOF while parsing",
    ),
    "metadata that are a page": (
        lambda _: "<html>",
        UnreadableTable,
        rf"{UNREADABLE}.*expected value at line 1 column 1",
    ),
    "metadata that are a list": (lambda _: "[]", UnreadableTable, rf"{UNREADABLE}.*Input should be an object"),
}
# With the number of rows that the table has afterwards.
LANDED: dict[str, tuple[Change, int]] = {
    "a column with a default": (with_column(initial_default=1, write_default=1), 4),
    "a column without a name": (with_column(name=""), 4),
    "a name with a dot": (with_column(name="a.b"), 4),
    "no snapshot": (off_main(), 4),
    "a branch only": (off_main(other="branch"), 4),
    "a tag only": (off_main(other="tag"), 4),
    "a property that is a number": (having(properties={"a": 5}), 4),
    "keys that nobody knows": (having(encryption_keys=[], whatever={}), 4),
    "no history": (having(snapshot_log=[], metadata_log=[]), 4),
    "a void partition": (partitioned(transform="void"), 4),
    "a partition with a name of its own": (partitioned(name="a/b c=d"), 4),
}


def landed(folder: Path, kind: Kind = EXTRACT) -> GivenLake:
    """Return a lake whose table was landed in."""
    lake = GivenLake(folder, kind=kind.config)
    lake.land(kind.first, schema="v int, w int", **kind.given)
    (metadata_file(lake).parent / "file").touch()
    return lake


def metadata_file(lake: GivenLake) -> Path:
    return Path(lake.iceberg().metadata_location.removeprefix("file://"))


@contextmanager
def changed(lake: GivenLake, change: Change) -> Iterator[None]:
    """Have the table's metadata changed within the block."""
    file = metadata_file(lake)
    before = file.read_bytes()
    metadata = json.loads(before)
    told = change(metadata)
    kept = told if isinstance(told, str | bytes) else json.dumps(metadata)
    file.write_bytes(kept if isinstance(kept, bytes) else kept.encode())
    try:
        yield
    finally:
        file.write_bytes(before)


# One for all cases that change no file.
@pytest.fixture(scope="module", params=KINDS)
def kind_and_lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Kind, GivenLake]:
    kind = KINDS[request.param]
    return kind, landed(tmp_path_factory.mktemp(request.param), kind)


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_can_not_be_landed_in_is_refused_by_its_name(
    case: str, kind_and_lake: tuple[Kind, GivenLake]
) -> None:
    (change, error, match), (kind, lake) = REFUSED[case], kind_and_lake
    with changed(lake, change):
        assert_refused(lake, kind, error, match)


@pytest.mark.parametrize("case", LANDED)
def test_a_table_that_can_be_landed_in_is(tmp_path: Path, case: str) -> None:
    (change, rows), lake = LANDED[case], landed(tmp_path)
    with changed(lake, change):
        assert_landed(lake, rows)


@settings(deadline=None)
@given(st.data())
def test_an_odd_part_of_the_metadata_is_landed_with_or_refused_by_name(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake = landed(Path(folder))
        metadata = json.loads(metadata_file(lake).read_text())
        make_odd(data.draw, metadata)
        with changed(lake, lambda _: json.dumps(metadata)):
            land_or_refuse(lake)


def test_a_table_whose_metadata_are_gone_is_refused_by_its_name(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"v": 1}'], schema="v int")
    metadata_file(lake).unlink()
    with pytest.raises(UnreadableTable, match=r"^lake\.events: a file of its metadata is gone \(.*metadata\.json"):
        lake.land([b'{"v": 1}'] * 2)


def test_a_list_of_manifests_that_is_gone_is_named_with_its_table(tmp_path: Path) -> None:
    lake = landed(tmp_path)
    with (
        changed(lake, in_snapshots(manifest_list="file:///no/such/file")),
        pytest.raises(StorageFailed, match=r"^lake\.events: .*/no/such/file"),
        storage_errors_named("lake.events", None),
    ):
        lake.land([b'{"v": 1}'] * 2)
    assert len(lake.iceberg().metadata.snapshots) == 1


def test_an_entry_of_the_catalog_that_names_no_metadata_is_refused_by_the_tables_name(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"v": 1}'], schema="v int")
    with sqlite3.connect(tmp_path / "catalog.db") as catalog:
        catalog.execute("update iceberg_tables set metadata_location = null")
    with pytest.raises(UnreadableTable, match=rf"{UNREADABLE}.*metadata_location is missing"):
        lake.land([b'{"v": 1}'] * 2)


# Of each way to look at a table one.
LOOKED_AT = ["no properties", "no id", "a geometry", "a place below a file", "a snapshot that is not there"]


@pytest.mark.parametrize("case", LOOKED_AT)
def test_a_publication_and_an_edit_of_the_ledger_refuse_it_the_same(tmp_path: Path, case: str) -> None:
    (change, error, match), lake = REFUSED[case], landed(tmp_path)
    design = TableDesign(metadata_schema(("topic", "partition", "offset")))
    looks: list[Callable[[], object]] = [lambda: PublishingSink(lake.catalog(), "lake.events", "g", design).load("run")]
    if error is UnreadableTable and case == "no properties":
        looks += [
            lambda: open_branch(lake.catalog(), "lake.events", "b"),
            lambda: load(lake.catalog(), "lake.events"),
            lambda: IcebergStreams.at(lake.catalog(), "lake.events"),
        ]
    if error is not PlaceNotWritable:
        looks.append(lambda: restate_ledgers(lake.catalog(), "lake.events", lambda _: {}))
    with changed(lake, change):
        for look in looks:
            with pytest.raises(error, match=match):
                look()
