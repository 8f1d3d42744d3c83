"""What the maintenance decides by a mirror's metadata, before it asks Spark for anything."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from airflow_lakestream.config.maintenance import CompactionConfig
from airflow_lakestream.core.routing import MIRROR
from airflow_lakestream.spark.maintenance.work import needs_fewer_deletes, of_table
from tests.support.delete_files import delete_equal, delete_positions


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("lake")
    return catalog


def table(catalog: SqlCatalog, key: list[str] | None) -> Table:
    columns = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("odd `name`", pa.string())])
    properties = {} if key is None else {MIRROR: json.dumps({"key": key, "soft_delete": False})}
    return catalog.create_table("lake.t", columns, properties=properties)


@pytest.mark.parametrize(
    ("key", "strategy", "order"),
    [
        (["id"], "sort", "`id`"),
        (["odd `name`", "id"], "sort", "`odd ``name```, `id`"),
        # Whose bounds no merge can use.
        (["at", "id"], "binpack", None),
    ],
)
def test_a_mirror_is_sorted_by_its_key_if_bounds_of_it_are_of_use(
    key: list[str], strategy: str, order: str | None, catalog: SqlCatalog
) -> None:
    how = of_table(CompactionConfig(), table(catalog, key))
    assert (how.strategy, how.sort_order, how.partial_progress) == (strategy, order, True)


def test_it_is_sorted_by_an_order_of_its_own(catalog: SqlCatalog) -> None:
    with table(catalog, ["id"]).update_sort_order() as update:
        update.asc("at", IdentityTransform())
    how = of_table(CompactionConfig(), catalog.load_table("lake.t"))
    assert (how.strategy, how.sort_order) == ("sort", None)


def test_another_table_is_compacted_as_before(catalog: SqlCatalog) -> None:
    assert of_table(CompactionConfig(), table(catalog, None)) == CompactionConfig()


def test_delete_files_are_rewritten_if_that_leaves_fewer_to_open(catalog: SqlCatalog) -> None:
    one = table(catalog, None)
    rows = pa.table({"id": [1, 2], "at": [None, None], "odd `name`": ["a", "b"]}, schema=one.schema().as_arrow())
    assert not needs_fewer_deletes(one)
    one.append(rows)
    [task] = one.scan().plan_files()
    delete_positions(one, task.file.file_path, [0])
    # Of one data file, and that has no other.
    assert not needs_fewer_deletes(catalog.load_table("lake.t"))
    one = catalog.load_table("lake.t")
    one.append(rows)
    assert not needs_fewer_deletes(catalog.load_table("lake.t"))
    delete_positions(catalog.load_table("lake.t"), task.file.file_path, [1])
    assert needs_fewer_deletes(catalog.load_table("lake.t"))


def test_what_can_not_be_told_of_equality_deletes_iceberg_decides(catalog: SqlCatalog) -> None:
    one = table(catalog, None)
    one.append(pa.table({"id": [1], "at": [None], "odd `name`": ["a"]}, schema=one.schema().as_arrow()))
    delete_equal(one, "id", [1])
    assert needs_fewer_deletes(catalog.load_table("lake.t"))
