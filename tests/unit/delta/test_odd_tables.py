"""Delta tables as other writers, and accidents, leave them: landed in, or refused by name before a record is read."""

from __future__ import annotations

import json
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_lakestream.delta import files
from airflow_lakestream.delta.protocol import UnfitTable
from airflow_lakestream.delta.storage import DamagedLog
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.stores.object_store import PlaceNotWritable
from airflow_lakestream.tables import sink
from airflow_lakestream.tables.row_buffer import TableNotWritable
from tests.support.given_records import GivenLake
from tests.support.odd_tables import EXTRACT, KINDS, Kind, assert_landed, assert_refused, land_or_refuse, make_odd

Action = dict[str, Any]
# Changes a table's folder. What it returns is written as the next version.
Change = Callable[[Path], Sequence[Action] | None]


def first(table: Path, kind: str) -> Any:
    """Return an action of the first version."""
    lines = (table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    return next(found[kind] for line in lines if kind in (found := json.loads(line)))


def protocol(reader: Any = 1, writer: Any = 2, **features: Sequence[str]) -> Change:
    return lambda _: [{"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **features}}]


def features(*names: str) -> Change:
    return protocol(3, 7, readerFeatures=names, writerFeatures=names)


def metadata(**values: Any) -> Change:
    return lambda table: [{"metaData": {**first(table, "metaData"), **values}}]


def with_column(**values: Any) -> Change:
    def change(table: Path) -> Sequence[Action]:
        schema = json.loads(first(table, "metaData")["schemaString"])
        schema["fields"].append({"name": "x", "type": "integer", "nullable": True, "metadata": {}, **values})
        return metadata(schemaString=json.dumps(schema))(table) or ()

    return change


def with_property(name: str, text: Any) -> Change:
    def change(table: Path) -> Sequence[Action]:
        kept = first(table, "metaData")["configuration"]
        return metadata(configuration={**kept, name: text})(table) or ()

    return change


def first_version(change: Callable[[list[Action]], object]) -> Change:
    """Change the actions of the first version."""

    def go(table: Path) -> None:
        file = table / "_delta_log" / f"{0:020}.json"
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        change(actions)
        file.write_text("\n".join(map(json.dumps, actions)))

    return go


def without(kind: str) -> Change:
    return first_version(lambda actions: actions.__setitem__(slice(None), [one for one in actions if kind not in one]))


def instead_of_log(table: Path) -> None:
    for file in sorted((table / "_delta_log").rglob("*"), reverse=True):
        file.unlink()
    (table / "_delta_log").rmdir()
    (table / "_delta_log").write_text("no folder")


def text(line: str) -> Change:
    def go(table: Path) -> None:
        (table / "_delta_log" / f"{1:020}.json").write_text(line)

    return go


REFUSED: dict[str, tuple[Change, type[LakestreamError], str]] = {
    "a reader version that nobody knows": (protocol(99, 7), UnfitTable, r"can't read it: .*Invalid protocol action"),
    "a writer version that nobody knows": (protocol(1, 99), UnfitTable, r"writer version 99, unknown here"),
    "a version that is a text": (protocol("x", 2), UnfitTable, r"can't read it: .*minReaderVersion"),
    "a feature of readers that nobody knows": (features("starGate"), UnfitTable, "starGate"),
    "a feature of writers that nobody knows": (
        protocol(1, 7, writerFeatures=["starGate"]),
        UnfitTable,
        "starGate",
    ),
    "features that are null": (
        lambda _: [{"protocol": {"minReaderVersion": 3, "minWriterVersion": 7}}],
        UnfitTable,
        r"can't read it: .*Reader features must be present",
    ),
    "commits of a catalog": (features("catalogManaged"), UnfitTable, "catalogManaged"),
    "row tracking": (protocol(1, 7, writerFeatures=["rowTracking", "domainMetadata"]), UnfitTable, "rowTracking"),
    "columns that are mapped": (with_property("delta.columnMapping.mode", "name"), UnfitTable, "maps columns"),
    "a constraint": (with_property("delta.constraints.c", "v > 0"), UnfitTable, "delta.constraints.c"),
    "a column that is generated": (
        with_column(metadata={"delta.generationExpression": "v + 1"}),
        UnfitTable,
        "delta.generationExpression",
    ),
    "a column that counts": (with_column(metadata={"delta.identity.start": 1}), UnfitTable, "delta.identity.start"),
    "a column with a rule": (with_column(metadata={"delta.invariants": "{}"}), UnfitTable, "delta.invariants"),
    "a byte": (with_column(type="byte"), InvalidArgument, "column 'x'"),
    "a short": (with_column(type="short"), InvalidArgument, "column 'x'"),
    "a variant": (with_column(type="variant"), UnfitTable, r"can't read it: .*'variantType'"),
    "a geometry": (with_column(type="geometry(OGC:CRS84)"), UnfitTable, r"can't read it: .*'geometry"),
    "a type that nobody knows": (with_column(type="whatever"), UnfitTable, r"can't read it: .*'whatever'"),
    "nothing but NULL": (with_column(type="void"), InvalidArgument, r"events: column 'x': .*null"),
    "a decimal that is too wide": (with_column(type="decimal(39,2)"), UnfitTable, r"can't read it: .*found: 39"),
    "a time without zone and its feature": (with_column(type="timestamp_ntz"), UnfitTable, "timestampNtz"),
    "a column without a name": (with_column(name=None), UnfitTable, r"can't read it: .*null, expected a string"),
    "a name that is there twice": (with_column(name="w"), UnfitTable, r"can't read it: .*Duplicate field name.*'w'"),
    "a name that differs in case only": (
        with_column(name="W"),
        UnfitTable,
        r"can't read it: .*Duplicate field name.*'W'",
    ),
    "columns that are no JSON": (metadata(schemaString="{"), UnfitTable, r"can't read it: .*EOF while parsing"),
    "columns that are a list": (metadata(schemaString="[]"), UnfitTable, r"can't read it: .*expected struct"),
    "columns that are null": (metadata(schemaString=None), UnfitTable, r"can't read it: .*schemaString"),
    "no columns": (
        metadata(schemaString='{"type": "struct", "fields": []}'),
        UnfitTable,
        r"can't read it: .*empty schema",
    ),
    "a partition without a column": (
        metadata(partitionColumns=["nowhere"]),
        UnfitTable,
        r"can't read it: .*'nowhere' not found",
    ),
    "partitions that are null": (metadata(partitionColumns=None), UnfitTable, r"can't read it: .*partitionColumns"),
    "properties that are null": (metadata(configuration=None), UnfitTable, r"can't read it: .*configuration"),
    "no metadata": (without("metaData"), DamagedLog, "no version with"),
    "no protocol": (without("protocol"), DamagedLog, r"none with its protocol"),
    "a log that is a file": (instead_of_log, DamagedLog, r"is a file and no folder"),
    "a version that is a page": (text("<html>"), DamagedLog, "was cut, or damaged"),
    "a version that is a list": (text("[]"), DamagedLog, "was cut, or damaged"),
    "a version that is empty": (text(""), DamagedLog, "is empty"),
    "a version that is zeroed": (text("\0" * 300), DamagedLog, "was cut, or damaged"),
    "a version of another encoding": (
        lambda table: (table / "_delta_log" / f"{1:020}.json").write_bytes('{"txn": 1}'.encode("utf-16")) and None,
        DamagedLog,
        "was cut, or damaged",
    ),
    "a file without a size": (lambda _: [{"add": {"path": "x.parquet"}}], UnfitTable, r"can't read it: .*'add'"),
    "a transaction without a number": (
        lambda _: [{"txn": {"appId": "x", "version": True}}],
        UnfitTable,
        r"can't read it: .*'version': expected primitive got true",
    ),
    "a transaction that is a text": (lambda _: [{"txn": "x"}], UnfitTable, r"can't read it: .*'txn': expected"),
    "a file without a path": (lambda _: [{"add": {"size": 5}}], UnfitTable, r"can't read it: .*path"),
}
# With the number of rows that the table has afterwards.
LANDED: dict[str, tuple[Change, int]] = {
    "an interval": (with_column(type="interval day to second"), 4),
    "a property that is a number": (with_property("a", 5), 4),
    "a log without versions": (lambda table: (table / "_delta_log" / f"{0:020}.json").unlink(), 4),
    "a time of keeping that is none": (with_property("delta.logRetentionDuration", "x"), 4),
    "an interval of checkpoints that is none": (with_property("delta.checkpointInterval", "x"), 4),
    "append-only or not": (with_property("delta.appendOnly", "maybe"), 4),
    "an action that nobody knows": (lambda _: [{"whatever": {"a": 1}}], 4),
    "blank lines": (text('\n\n{"commitInfo": {}}\n\n'), 4),
    "a property that nobody knows": (with_property("delta.whatever", "x"), 4),
    "a transaction of somebody": (lambda _: [{"txn": {"appId": "x", "version": 1}}], 4),
    "a metadata of somebody": (lambda _: [{"commitInfo": {"x": [1, {"y": None}]}}], 4),
    "a name with a dot": (with_column(name="a.b"), 4),
}


def changed(folder: Path, change: Change, kind: Kind = EXTRACT) -> GivenLake:
    """Return a lake whose table was landed in, and changed then."""
    lake = GivenLake(folder, "delta", kind=kind.config)
    lake.land(kind.first, schema="v int, w int", **kind.given)
    table = Path(lake.name)
    if actions := change(table):
        (table / "_delta_log" / f"{1:020}.json").write_text("\n".join(map(json.dumps, actions)))
    return lake


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_can_not_be_landed_in_is_refused_by_its_name(tmp_path: Path, case: str, kind: str) -> None:
    change, error, match = REFUSED[case]
    assert_refused(changed(tmp_path, change, KINDS[kind]), KINDS[kind], error, match)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["{}/file/events", "{}/file", "/proc/events", "nowhere://bucket/events"])
def test_a_place_that_takes_no_files_is_refused_by_the_tables_name(tmp_path: Path, place: str, kind: str) -> None:
    lake = GivenLake(tmp_path, "delta", kind=KINDS[kind].config)
    (tmp_path / "file").touch()
    table = place.format(tmp_path)
    with pytest.raises(PlaceNotWritable, match=rf"^{table}: no file can be written below {table} .*Nothing was read"):
        lake.land(KINDS[kind].then, table=table, **KINDS[kind].given)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("case", LANDED)
def test_a_table_that_can_be_landed_in_is(tmp_path: Path, case: str) -> None:
    change, rows = LANDED[case]
    assert_landed(changed(tmp_path, change), rows)


@settings(deadline=None)
@given(st.data())
def test_an_odd_part_of_a_version_is_landed_with_or_refused_by_name(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        land_or_refuse(changed(Path(folder), first_version(lambda actions: make_odd(data.draw, actions))))


@pytest.mark.parametrize("schema", ["v int, w int", None], ids=["there", "new"])
def test_a_table_for_which_no_file_can_be_made_is_refused_whatever_the_records_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str | None
) -> None:
    lake = GivenLake(tmp_path, "delta")
    if schema is not None:
        lake.land(EXTRACT.first, schema=schema)
    before = sorted(tmp_path.rglob("*"))

    def no_file(rows: object) -> None:
        raise pa.ArrowInvalid("there is no such file")

    monkeypatch.setattr(files, "_parquet", no_file)
    # Of this process's own tables, some may have the same columns.
    monkeypatch.setattr(sink, "_PROVEN", deque[object]())
    with pytest.raises(TableNotWritable, match=rf"^{lake.name}: no file can be made .*there is no such file"):
        lake.land(EXTRACT.then)
    assert sorted(tmp_path.rglob("*")) == before
