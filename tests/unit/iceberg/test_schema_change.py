"""What changes of schema in the commit of the rows are in Iceberg alone; the rest is in tests/contract."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import TableProperties
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.update import SetCurrentSchemaUpdate
from pyiceberg.types import StringType

from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from airflow_lakestream.tables.schema.types import schema_text
from tests.support.faults import ERRORS, DyingCatalog, LateCatalog
from tests.support.table_formats import IcebergTable


@pytest.fixture
def made(empty: IcebergTable) -> IcebergTable:
    """Give a table with rows 0 to 2 of `id int, name string`."""
    empty.evolving("id int, name string").land(0, [{"id": n, "name": f"n{n}"} for n in range(3)])
    return empty


def schema_of(made: IcebergTable) -> str:
    """Return the payload's columns as DDL."""
    whole = made.table().schema()
    return schema_text(type(whole)(*(f for f in whole.fields if not f.name.startswith("_kafka_"))))


def offsets(made: IcebergTable) -> list[int]:
    return sorted(made.read()["_kafka_offset"].to_pylist())


def old(**more: Any) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"n{n}", **more} for n in range(3)]


CASES: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("a int", "a bigint", {"a": 2**31 - 1}, {"a": 2**63 - 1}, {"a": 2**31 - 1}),
    ("a float", "a double", {"a": 0.5}, {"a": 0.1}, {"a": 0.5}),
    (
        "a decimal(5, 2)",
        "a decimal(30, 2)",
        {"a": Decimal("123.45")},
        {"a": Decimal("1" * 28 + ".01")},
        {"a": Decimal("123.45")},
    ),
    ("a int not null", "a int", {"a": 1}, {"a": None}, {"a": 1}),
    (
        "s struct<x: int>",
        "s struct<x: bigint, y: array<string>>",
        {"s": {"x": 1}},
        {"s": {"x": 2**40, "y": ["z", None]}},
        {"s": {"x": 1, "y": None}},
    ),
    (
        "m map<string, struct<x: float>>",
        "m map<string, struct<x: double, y: int>>",
        {"m": [("k", {"x": 0.5})]},
        {"m": [("k", {"x": 0.1, "y": 1})]},
        {"m": [("k", {"x": 0.5, "y": None})]},
    ),
]


@pytest.mark.parametrize(("held", "wanted", "first", "second", "as_read"), CASES)
def test_each_kind_of_change_and_old_rows_read_back(
    empty: IcebergTable,
    held: str,
    wanted: str,
    first: dict[str, Any],
    second: dict[str, Any],
    as_read: dict[str, Any],
) -> None:
    empty.evolving(held).land(0, [first])
    empty.evolving(wanted, "widen").land(1, [second])

    assert schema_of(empty) == wanted
    assert empty.payload() == [as_read, second]
    assert len(empty.commits()) == 2


def test_a_widened_column_that_is_partitioned_by_and_has_bounds_of_both_widths(empty: IcebergTable) -> None:
    by = ("a", "bucket(4, b)")
    empty.evolving("a int, b int", partition_by=by).land(0, [{"a": 7, "b": 1}, {"a": 8, "b": 2}])
    empty.evolving("a bigint, b bigint", "widen", partition_by=by).land(2, [{"a": 2**40, "b": 2**41}])

    scan = empty.table().scan
    assert scan("a = 7").to_arrow()["_kafka_offset"].to_pylist() == [0]
    assert sorted(scan("a >= 8").to_arrow()["_kafka_offset"].to_pylist()) == [1, 2]
    assert scan(f"b = {2**41}").to_arrow()["_kafka_offset"].to_pylist() == [2]
    empty.compact()
    assert offsets(empty) == [0, 1, 2]


def test_columns_become_as_wide_as_in_the_records_own_schema(made: IcebergTable) -> None:
    newest = pa.schema([("id", pa.int64()), ("name", pa.string()), pa.field("score", pa.float64(), nullable=False)])
    with pytest.raises(InvalidArgument, match="would make it bigint"):
        made.evolving(None, "add", incoming=lambda held: newest)
    run = made.evolving(None, "widen", incoming=lambda held: newest)
    assert run.land(3, [{"id": 2**40, "score": 1.5}]) == [
        "widen column id from int to bigint",
        "add column score double",
    ]


def test_what_records_have_no_more_is_not_required_any_more(empty: IcebergTable) -> None:
    empty.evolving("id int, old int not null").land(0, [{"id": 0, "old": 1}])

    run = empty.evolving(None, "widen", incoming=lambda held: pa.schema([("id", pa.int32())]))

    assert run.land(1, [{"id": 1}]) == ["make column old optional"]
    assert empty.payload() == [{"id": 0, "old": 1}, {"id": 1, "old": None}]


@ERRORS
@pytest.mark.parametrize("delay", [1, 2])
def test_a_commit_that_is_applied_late_changes_the_schema_once(
    made: IcebergTable, error: Exception, delay: int
) -> None:
    catalog = LateCatalog(made.catalog(), error, delay)

    made.through(catalog).evolving("id int, name string, score double", "add").land(3, [{"id": 3, "score": 0.5}])
    catalog.apply_now()

    assert made.payload() == [*old(score=None), {"id": 3, "name": None, "score": 0.5}]
    assert made.schemas() == 2
    made.assert_whole()


@pytest.mark.parametrize("applied_first", [True, False])
def test_a_catalog_that_dies_leaves_schema_and_rows_together(made: IcebergTable, applied_first: bool) -> None:
    catalog = DyingCatalog(made.catalog(), applied=applied_first)

    with pytest.raises(CommitOutcomeUnknown):
        made.through(catalog).evolving("id int, name string, score double", "add").land(3, [{"id": 3, "score": 0.5}])

    if applied_first:
        assert (schema_of(made), offsets(made)) == ("id int, name string, score double", [0, 1, 2, 3])
    else:
        assert (schema_of(made), offsets(made)) == ("id int, name string", [0, 1, 2])


def test_a_schema_set_back_by_hand_is_set_again(made: IcebergTable) -> None:
    made.evolving("id bigint, name string", "widen").land(3, [{"id": 3}])
    with made.table().transaction() as transaction:
        transaction._apply((SetCurrentSchemaUpdate.model_validate({"schema-id": 0}),))
    assert schema_of(made) == "id int, name string"

    made.evolving("id bigint, name string", "widen").land(4, [{"id": 2**40}])

    assert schema_of(made) == "id bigint, name string"
    assert made.schemas() == 2
    assert made.payload()[4]["id"] == 2**40


def test_a_column_dropped_by_hand_and_added_again_is_another_one(made: IcebergTable) -> None:
    with made.table().update_schema() as update:
        update.delete_column("name")

    assert made.evolving("id int, name string", "add").land(3, [{"id": 3, "name": "x"}]) == ["add column name string"]
    assert [row["name"] for row in made.payload()] == [None, None, None, "x"]


def test_a_name_mapping_knows_the_new_column(made: IcebergTable) -> None:
    mapping = create_mapping_from_schema(made.table().schema()).model_dump_json()
    with made.table().transaction() as transaction:
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})

    made.evolving("id int, name string, s struct<x: int>", "add").land(3, [{"id": 3, "s": {"x": 1}}])

    names = made.table().name_mapping()
    assert names is not None
    assert names.root[-1] == create_mapping_from_schema(made.table().schema()).root[-1]


def test_a_foreign_change_that_only_adds_to_the_list_of_schemas_is_seen(made: IcebergTable) -> None:
    run = made.evolving("id int, name string, score double", "add")
    with made.table().update_schema() as update:
        update.add_column("score", StringType())
    with made.table().transaction() as transaction:
        transaction._apply((SetCurrentSchemaUpdate.model_validate({"schema-id": 0}),))

    with pytest.raises(StaleFiles):
        run.land(3, [{"id": 3, "score": 0.5}])
    assert made.evolving("id int, name string, score double", "add").land(3, [{"id": 3, "score": 0.5}])
    assert made.table().schema().find_field("score").field_id > 6
    assert made.payload()[3]["score"] == 0.5
