"""Tables as other writers, and accidents, leave them: landed in, or refused by name before a record is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.iceberg.fitness import FormatVersionTooNew, UnreadableTable
from airflow_lakestream.iceberg.ledger_store import FormatVersionTooOld
from airflow_lakestream.tables.row_buffer import TableNotWritable
from tests.support.given_records import GivenLake

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


UNREADABLE = r"^lake\.events: PyIceberg can not read its metadata \("
REFUSED: dict[str, tuple[Change, type[LakestreamError], str]] = {
    "buckets without a number": (partitioned(transform="bucket[]"), UnreadableTable, UNREADABLE),
    "a transform of two columns": (
        partitioned(source_id=None, source_ids=[1, 2]),
        UnreadableTable,
        rf"{UNREADABLE}.*Multi argument transforms",
    ),
    "a partition without a column": (partitioned(source_id=None), UnreadableTable, UNREADABLE),
    "no bucket": (partitioned(transform="bucket[0]"), TableNotWritable, r"^lake\.events: no file can be made"),
    "a truncation to nothing": (
        partitioned(transform="truncate[0]"),
        TableNotWritable,
        r"^lake\.events: no file can be made",
    ),
    "no such spec": (having(default_spec_id=7), UnreadableTable, rf"{UNREADABLE}default-spec-id 7"),
    "no such order": (having(default_sort_order_id=7), UnreadableTable, rf"{UNREADABLE}default-sort-order-id 7"),
    "no such schema": (having(current_schema_id=7), UnreadableTable, rf"{UNREADABLE}current-schema-id 7"),
    "version 1": (
        lambda metadata: metadata.update({"format-version": 1, "schema": metadata["schemas"][0], "partition-spec": []}),
        FormatVersionTooOld,
        r"format version 1.*Upgrade it",
    ),
    "version 3": (having(format_version=3, next_row_id=0), FormatVersionTooNew, r"format version 3"),
    "version 4": (having(format_version=4), UnreadableTable, rf"{UNREADABLE}.*'4'"),
    "a version that is none": (having(format_version="x"), UnreadableTable, UNREADABLE),
    "a type that nobody knows": (with_column(type="whatever"), UnreadableTable, rf"{UNREADABLE}.*'whatever'"),
    "a variant": (with_column(type="variant"), UnreadableTable, rf"{UNREADABLE}.*'variant'"),
    "nanoseconds": (with_column(type="timestamp_ns"), InvalidArgument, r"column 'x'.*Use microseconds"),
    "a column without a type": (with_column(type="unknown"), InvalidArgument, r"column 'x'"),
    "an identifier that may be NULL": (identified_by(2), UnreadableTable, rf"{UNREADABLE}.*Identifier field 2"),
    "an identifier that is not there": (identified_by(77), UnreadableTable, rf"{UNREADABLE}.*77"),
    "a name that is there twice": (
        with_column(name="w"),
        UnreadableTable,
        rf"{UNREADABLE}.*multiple fields for name w",
    ),
    "no place": (without("location"), UnreadableTable, rf"{UNREADABLE}.*location"),
    "metadata that are cut": (lambda metadata: json.dumps(metadata)[:300], UnreadableTable, UNREADABLE),
    "metadata that are a page": (lambda _: "<html>", UnreadableTable, UNREADABLE),
    "metadata that are a list": (lambda _: "[]", UnreadableTable, UNREADABLE),
}
# With the number of rows that the table has afterwards.
LANDED: dict[str, tuple[Change, int]] = {
    "a column with a default": (with_column(initial_default=1, write_default=1), 4),
    "a column without a name": (with_column(name=""), 4),
    "a name with a dot": (with_column(name="a.b"), 4),
    "no snapshot": (off_main(), 4),
    "a branch only": (off_main(other="branch"), 4),
    "a tag only": (off_main(other="tag"), 4),
    "no history": (having(snapshot_log=[], metadata_log=[]), 4),
    "a void partition": (partitioned(transform="void"), 4),
    "a partition with a name of its own": (partitioned(name="a/b c=d"), 4),
}


def changed(folder: Path, change: Change) -> GivenLake:
    lake = GivenLake(folder)
    lake.land([b'{"v": 1, "w": 1}'], schema="v int, w int")
    file = Path(lake.iceberg().metadata_location.removeprefix("file://"))
    metadata = json.loads(file.read_text())
    told = change(metadata)
    file.write_text(told if isinstance(told, str) else json.dumps(metadata))
    return lake


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_can_not_be_landed_in_is_refused_by_its_name(tmp_path: Path, case: str) -> None:
    change, kind, error = REFUSED[case]
    lake = changed(tmp_path, change)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(kind, match=error) as caught:
        lake.land([b'{"v": 1, "w": 1}', *[b'{"v": 2}'] * 59])
    assert isinstance(caught.value, Terminal)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", LANDED)
def test_a_table_that_can_be_landed_in_is(tmp_path: Path, case: str) -> None:
    change, rows = LANDED[case]
    lake = changed(tmp_path, change)
    assert lake.land([b'{"v": 1, "w": 1}', *[b'{"v": 2}'] * 3]).counts.rejected == 0
    assert len(lake.rows()) == rows


def test_a_table_whose_metadata_are_gone_is_refused_by_its_name(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.land([b'{"v": 1}'], schema="v int")
    Path(lake.iceberg().metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(UnreadableTable, match=r"^lake\.events: a file of its metadata is gone \(.*metadata\.json"):
        lake.land([b'{"v": 1}'] * 2)
