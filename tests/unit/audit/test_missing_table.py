"""The error of a missing table suggests the nearest table of the namespace, and is no worse without a catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_lakestream.audit.run import TableMissing, load
from airflow_lakestream.audit.statistics import table_files
from airflow_lakestream.iceberg.fitness import UnreadableTable


@pytest.fixture
def catalog(tmp_path: Path) -> InMemoryCatalog:
    catalog = InMemoryCatalog("test", warehouse=str(tmp_path))
    catalog.create_namespace("lake")
    for name in ("shipments", "shipments__rejected"):
        catalog.create_table(f"lake.{name}", Schema(NestedField(1, "id", LongType(), required=False)))
    return catalog


@pytest.mark.parametrize(
    ("table", "hint"),
    [
        ("lake.shipmens", " Did you mean 'lake.shipments'?"),
        ("lake.shipments__rejecte", " Did you mean 'lake.shipments'?"),
        ("lake.xyz", ""),
        ("nowhere.shipments", ""),
    ],
)
def test_the_nearest_table_of_the_namespace_is_suggested(table: str, hint: str, catalog: InMemoryCatalog) -> None:
    with pytest.raises(TableMissing) as missing:
        load(catalog, table)
    assert str(missing.value) == (
        f"table: there is no table {table} in the catalog. Correct the name or the Iceberg connection.{hint}"
    )


def test_a_list_of_manifests_that_is_gone_is_named_with_the_table(catalog: InMemoryCatalog, tmp_path: Path) -> None:
    table = catalog.load_table("lake.shipments")
    table.append(pa.table({"id": [1]}))
    [manifest_list] = tmp_path.rglob("snap-*.avro")
    manifest_list.unlink()
    with pytest.raises(UnreadableTable, match=r"^lake\.shipments: a file of its metadata is gone .*Restore the file"):
        table_files(table, table.metadata.current_snapshot_id)


def test_a_catalog_that_lists_no_tables_changes_nothing(
    catalog: InMemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> list[Any]:
        raise PermissionError("not allowed")

    monkeypatch.setattr(catalog, "list_tables", refused)
    with pytest.raises(TableMissing, match=r"Iceberg connection\.$"):
        load(catalog, "lake.shipment")
