"""Bounds in manifests: right in each file that is written, found and mended where they are not."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import GreaterThan
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from airflow_lakestream.audit.result import AuditResult, AuditVerdict
from airflow_lakestream.audit.run import Audit
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.upkeep.narrow_bounds import SUMMARY_BOUNDS, mend, wrong_bounds
from airflow_lakestream.iceberg.write import parquet
from tests.support.faults import TIMEOUT, Fault, FaultyCatalog, applied, before, twice, unapplied
from tests.support.given_records import GROUP, GivenLake
from tests.support.table_formats import sqlite_catalog
from tests.unit.bounds.tables import FORMATS, iceberg_table, play, rows_of

LONG = b"z" * 5000
SMALL = {"table_properties": {"write.parquet.row-group-limit": "2"}, "max_rejected": 1.0}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = load_catalog("bounds", **sqlite_catalog(tmp_path))
    catalog.create_namespace("lake")
    return catalog


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Write bounds as they were written before: joined from the row groups that have some."""
    monkeypatch.setattr(parquet, "unbounded", lambda footer: {})
    return monkeypatch


def payloads(*texts: bytes) -> list[bytes]:
    return [b'{"id": %d, "s": "%s"}' % (number, text) for number, text in enumerate(texts)]


@pytest.fixture
def lake(tmp_path: Path, as_before: pytest.MonkeyPatch) -> GivenLake:
    """Give a table with one file as before, and one as today."""
    lake = GivenLake(tmp_path)
    lake.land(payloads(LONG, LONG, b"a", b"b"), **SMALL)
    as_before.undo()
    more = payloads(LONG, LONG, b"a", b"b", LONG, LONG, b"c")
    lake.land(more, **SMALL)
    return lake


def found_by(table: Table, where: str) -> int:
    return int(table.scan(row_filter=where).to_arrow().num_rows)


def ledger_of(table: Table) -> Ledger:
    return ledger_store.read_ledger(table, GROUP)


def audited(lake: GivenLake) -> AuditResult:
    return Audit(table=lake.name, consumer_group=GROUP).run(lake.catalog())


def described(table: Table) -> dict[str, Any]:
    """Return what the manifests say of each data file, but for its bounds and its manifest."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return {
        entry.data_file.file_path: (
            entry.snapshot_id,
            entry.sequence_number,
            entry.file_sequence_number,
            entry.data_file.record_count,
            entry.data_file.value_counts,
            entry.data_file.null_value_counts,
            entry.data_file.split_offsets,
            entry.data_file.partition,
            entry.data_file.spec_id,
        )
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status != ManifestEntryStatus.DELETED
    }


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_filter_by_any_column_finds_what_a_full_scan_finds(
    catalog: Catalog, tmp_path: Path, table_format: str
) -> None:
    assert sum(play(catalog, tmp_path, table_format, f"test {seed}") for seed in range(8)) > 60


def test_rows_and_rejected_records_with_long_values_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The reject table has no properties of the user's.
    monkeypatch.setattr(parquet.TableProperties, "PARQUET_ROW_GROUP_LIMIT_DEFAULT", 2)
    lake = GivenLake(tmp_path)
    lake.land([*payloads(LONG, LONG, b"a", b"b"), LONG, LONG, b"a", b"b"], max_rejected=1.0)
    rejects = lake.iceberg(f"{lake.name}__rejected")
    assert (
        found_by(lake.iceberg(), "s > 'p'"),
        rejects.scan(row_filter=GreaterThan("value", b"p")).to_arrow().num_rows,
    ) == (2, 2)
    assert audited(lake).verdict is AuditVerdict.CLEAN


def test_an_audit_finds_wrong_bounds_of_rows_and_rejected_records(
    tmp_path: Path, as_before: pytest.MonkeyPatch
) -> None:
    as_before.setattr(parquet.TableProperties, "PARQUET_ROW_GROUP_LIMIT_DEFAULT", 2)
    lake = GivenLake(tmp_path)
    lake.land([*payloads(LONG, LONG, b"a", b"b"), LONG, LONG, b"a", b"b"], max_rejected=1.0)
    result = audited(lake)
    assert (result.verdict, result.verdict.exit_code) == (AuditVerdict.DAMAGE, 1)
    rows, rejects = result.to_dict()["wrong_bounds"]
    assert re.fullmatch("wrong bounds: .* has values of s beyond them: filters skip rows", rows)
    assert re.fullmatch("reject table: wrong bounds: .* has values of value beyond them: filters skip rows", rejects)
    assert f"  damage: {rows}" in result.render()


def test_mended_manifests_describe_the_same_files(lake: GivenLake) -> None:
    table = lake.iceberg()
    assert found_by(table, "s > 'p'") == 2
    before_it, files, rows = ledger_of(table), described(table), lake.rows()
    wrong = wrong_bounds(table, ledger_store.head_of(table.metadata))
    assert [one.columns for one in wrong] == [("s",)]

    snapshot_id = mend(lake.catalog(), lake.name, wrong)

    table = lake.iceberg()
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.snapshot_id == snapshot_id
    assert head.summary.operation is Operation.REPLACE
    assert {name: head.summary[name] for name in ("total-data-files", "total-records")} == {
        "total-data-files": "2",
        "total-records": "7",
    }
    assert (found_by(table, "s > 'p'"), described(table), lake.rows()) == (4, files, rows)
    assert ledger_of(table) == before_it
    assert audited(lake).verdict is AuditVerdict.CLEAN
    assert wrong_bounds(table, snapshot_id) == []
    more = payloads(LONG, LONG, b"a", b"b", LONG, LONG, b"c", b"q")
    assert lake.land(more, **SMALL).counts.written == 1
    assert found_by(lake.iceberg(), "s > 'p'") == 5


def test_nothing_wrong_brings_no_snapshot(lake: GivenLake) -> None:
    assert mend(lake.catalog(), lake.name, []) is None
    assert len(lake.iceberg().snapshots()) == 2


@pytest.mark.parametrize("meanwhile", [False, True], ids=["before", "between look and commit"])
def test_files_that_are_no_longer_in_the_table_bring_no_snapshot(lake: GivenLake, meanwhile: bool) -> None:
    table = lake.iceberg()
    wrong = wrong_bounds(table, ledger_store.head_of(table.metadata))
    rewrite = before(lambda: table.overwrite(table.scan().to_arrow()))
    catalog = FaultyCatalog(lake.catalog(), rewrite) if meanwhile else lake.catalog()
    if not meanwhile:
        table.overwrite(table.scan().to_arrow())
    assert mend(catalog, lake.name, wrong) is None
    assert not [one for one in lake.iceberg().snapshots() if one.summary and one.summary[SUMMARY_BOUNDS]]


@pytest.mark.parametrize("fault", [twice, unapplied(TIMEOUT), applied(TIMEOUT), None])
def test_mending_beside_other_writers_and_lost_answers(lake: GivenLake, fault: Fault | None) -> None:
    table = lake.iceberg()
    wrong = wrong_bounds(table, ledger_store.head_of(table.metadata))
    more = payloads(LONG, LONG, b"a", b"b", LONG, LONG, b"c", b"q")
    other = before(lambda: lake.land(more, **SMALL))
    mend(FaultyCatalog(lake.catalog(), fault or other), lake.name, wrong)
    table = lake.iceberg()
    assert found_by(table, "s > 'p'") == (4 if fault else 5)
    assert len(table.snapshots()) == (3 if fault else 4)
    assert audited(lake).verdict is AuditVerdict.CLEAN


@pytest.mark.parametrize("seed", range(4))
def test_all_wrong_bounds_are_found_and_no_right_ones(
    catalog: Catalog, as_before: pytest.MonkeyPatch, seed: int
) -> None:
    rng = Random(seed)
    table = iceberg_table(catalog, rng, [rows_of(rng) for _ in range(6)])
    rows = table.scan().to_arrow()
    wrong = wrong_bounds(table, ledger_store.head_of(table.metadata))
    held = {}
    for task in table.scan().plan_files():
        file, some = task.file, rows.filter(_in_file(table, task))
        held[file.file_path] = {
            name
            for name in ("s", "t", "b", "f")
            for values in [[_bytes(one) for one in some[name].to_pylist() if one is not None]]
            for number in [table.schema().find_field(name).field_id]
            if number in (file.lower_bounds or {})
            and values
            and (
                min(values) < file.lower_bounds[number]
                or (number in (file.upper_bounds or {}) and max(values) > file.upper_bounds[number])
            )
        }
    top = {one.path: {name for name in one.columns if "." not in name} for one in wrong}
    assert {path: names for path, names in held.items() if names} == {
        path: names for path, names in top.items() if names
    }
    mend(catalog, ".".join(table.name()), wrong)
    table.refresh()
    assert wrong_bounds(table, ledger_store.head_of(table.metadata)) == []
    # NaN equals nothing.
    now, then = (one.drop_columns(["x", "d"]).sort_by("id") for one in (table.scan().to_arrow(), rows))
    assert now.equals(then)


def _in_file(table: Table, task: Any) -> Any:
    ids = pq.read_table(task.file.file_path.removeprefix("file://"), columns=["id"])["id"]
    return pc.field("id").isin(ids)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def test_uuids_have_no_bounds_since_engines_disagree_on_their_order(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    schema = "id bigint, u uuid, s struct<u: uuid, n: int>, l array<uuid>, m map<string, uuid>"
    one, other = ("00000000-0000-0000-0000-000000000001", "f0000000-0000-0000-ffff-ffffffffffff")
    record = '{{"id": 1, "u": "{0}", "s": {{"u": "{0}", "n": 1}}, "l": ["{0}"], "m": {{"k": "{0}"}}}}'
    lake.land([record.format(uuid).encode() for uuid in (one, other)], schema=schema)
    table = lake.catalog().load_table(lake.name)
    (file,) = (task.file for task in table.scan().plan_files())
    names = {table.schema().find_column_name(column) for column in {**file.lower_bounds, **file.upper_bounds}}
    assert {"id", "_kafka_offset"} <= names
    assert not [name for name in names if name and name.split(".")[-1] in ("u", "element", "value")]
    footer = pq.read_metadata(file.file_path.removeprefix("file://"))
    columns = [footer.row_group(0).column(number) for number in range(footer.num_columns)]
    without = {column.path_in_schema for column in columns if not column.is_stats_set}
    assert without == {"u", "s.u", "l.list.element", "m.key_value.value"}
