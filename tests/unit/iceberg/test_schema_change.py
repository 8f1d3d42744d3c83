"""A schema that changes in the commit of the rows: one snapshot or none, once, whoever else is busy."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import TableProperties
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.update import SetCurrentSchemaUpdate
from pyiceberg.types import StringType

from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.commit import committing
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from airflow_lakestream.tables import row_buffer
from tests.support.evolving import Evolving
from tests.support.faults import BeforeCommit, DyingCatalog, FaultyCatalog, LateCatalog, ReadTimeout, applied, unapplied
from tests.support.lake import assert_files_are_whole, compact

FAILED = CommitFailedException("somebody else was quicker")
TIMEOUT = ReadTimeout("no answer within 60 s")
ERRORS = pytest.mark.parametrize("error", [FAILED, TIMEOUT], ids=["reported as failed", "timed out"])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sink try again at once."""
    monkeypatch.setattr(committing, "RETRY_PAUSE", 0.0)


@pytest.fixture
def made(tmp_path: Path) -> Evolving:
    """Give a table with rows 0 to 2 of `id int, name string`."""
    table = Evolving(tmp_path)
    table.run("id int, name string").land(0, [{"id": n, "name": f"n{n}"} for n in range(3)])
    return table


def old(**more: Any) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"n{n}", **more} for n in range(3)]


def test_a_second_run_with_the_same_schema_changes_nothing(made: Evolving) -> None:
    made.run("id int, name string, score double", "add").land(3, [{"id": 3}])
    changes = made.run("id int, name string, score double", "add").land(4, [{"id": 4, "score": 1.5}])

    assert changes == []
    assert len(made.table().schemas()) == 2
    assert made.offsets() == [0, 1, 2, 3, 4]


CASES: list[tuple[str, str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    ("a int", "a bigint", {"a": 2**31 - 1}, "a bigint", {"a": 2**63 - 1}, {"a": 2**31 - 1}),
    ("a float", "a double", {"a": 0.5}, "a double", {"a": 0.1}, {"a": 0.5}),
    (
        "a decimal(5, 2)",
        "a decimal(30, 2)",
        {"a": Decimal("123.45")},
        "a decimal(30, 2)",
        {"a": Decimal("1" * 28 + ".01")},
        {"a": Decimal("123.45")},
    ),
    ("a int not null", "a int", {"a": 1}, "a int", {"a": None}, {"a": 1}),
    (
        "s struct<x: int>",
        "s struct<x: bigint, y: array<string>>",
        {"s": {"x": 1}},
        "s struct<x: bigint, y: array<string>>",
        {"s": {"x": 2**40, "y": ["z", None]}},
        {"s": {"x": 1, "y": None}},
    ),
    (
        "l array<struct<x: int>>",
        "l array<struct<x: int, y: struct<z: date not null>>>",
        {"l": [{"x": 1}, None]},
        "l array<struct<x: int, y: struct<z: date>>>",
        {"l": [{"x": 2, "y": {"z": dt.date(2026, 1, 1)}}]},
        {"l": [{"x": 1, "y": None}, None]},
    ),
    (
        "m map<string, struct<x: float>>",
        "m map<string, struct<x: double, y: int>>",
        {"m": [("k", {"x": 0.5})]},
        "m map<string, struct<x: double, y: int>>",
        {"m": [("k", {"x": 0.1, "y": 1})]},
        {"m": [("k", {"x": 0.5, "y": None})]},
    ),
    (
        "a int",
        "a int, b timestamp not null",
        {"a": 1},
        "a int, b timestamp",
        {"a": 2, "b": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
        {"a": 1, "b": None},
    ),
]


@pytest.mark.parametrize(("held", "wanted", "first", "schema", "second", "as_read"), CASES)
def test_each_kind_of_change_and_old_rows_read_back(
    tmp_path: Path,
    held: str,
    wanted: str,
    first: dict[str, Any],
    schema: str,
    second: dict[str, Any],
    as_read: dict[str, Any],
) -> None:
    made = Evolving(tmp_path)
    made.run(held).land(0, [first])
    made.run(wanted, "widen").land(1, [second])

    assert made.schema() == schema
    assert made.rows() == [as_read, second]
    assert len(made.table().snapshots()) == 2


def test_a_widened_column_that_is_partitioned_by_and_has_bounds_of_both_widths(tmp_path: Path) -> None:
    made = Evolving(tmp_path)
    made.run("a int, b int", partition_by=("a", "bucket(4, b)")).land(0, [{"a": 7, "b": 1}, {"a": 8, "b": 2}])
    made.run("a bigint, b bigint", "widen", partition_by=("a", "bucket(4, b)")).land(2, [{"a": 2**40, "b": 2**41}])

    scan = made.table().scan
    assert scan("a = 7").to_arrow()["_kafka_offset"].to_pylist() == [0]
    assert sorted(scan("a >= 8").to_arrow()["_kafka_offset"].to_pylist()) == [1, 2]
    assert scan(f"b = {2**41}").to_arrow()["_kafka_offset"].to_pylist() == [2]
    compact(made.table())
    assert made.offsets() == [0, 1, 2]


def test_columns_of_the_records_own_schema_are_added_where_none_is_given(made: Evolving) -> None:
    newest = pa.schema([("id", pa.int64()), ("name", pa.string()), pa.field("score", pa.float64(), nullable=False)])

    assert made.run(None, "none", incoming=lambda: newest).schema.names == ["id", "name"]
    with pytest.raises(InvalidArgument, match="would make it bigint"):
        made.run(None, "add", incoming=lambda: newest)
    run = made.run(None, "widen", incoming=lambda: newest)
    assert run.land(3, [{"id": 2**40, "score": 1.5}]) == [
        "widen column id from int to bigint",
        "add column score double",
    ]
    assert made.run(None, "widen", incoming=lambda: None).schema.names == ["id", "name", "score"]


def test_what_records_have_no_more_is_not_required_any_more(tmp_path: Path) -> None:
    made = Evolving(tmp_path)
    made.run("id int, old int not null").land(0, [{"id": 0, "old": 1}])

    run = made.run(None, "widen", incoming=lambda: pa.schema([("id", pa.int32())]))

    assert run.land(1, [{"id": 1}]) == ["make column old optional"]
    assert made.rows() == [{"id": 0, "old": 1}, {"id": 1, "old": None}]


def test_rows_that_bring_columns_of_their_own(made: Evolving) -> None:
    run = made.run(None, "add", grows=True)
    wider = run.schema.append(pa.field("x", pa.int64())).append(pa.field("s", pa.struct([("a", pa.string())])))
    widest = wider.set(3, pa.field("s", pa.struct([("a", pa.string()), ("b", pa.bool_())])))
    run.write(3, [{"id": 3}])
    run.write(4, [{"id": 4, "x": 1, "s": {"a": "q"}}], wider)
    run.write(5, [{"id": 5, "x": 2, "s": {"b": True}}], widest)
    run.write(6, [{"id": 6, "s": {"a": "r"}}], wider)
    run.write(7, [{"id": 7}])
    snapshot_id = run.commit(3, 5)

    assert run.sink.schema_changes(snapshot_id) == [
        "add column x bigint",
        "add column s struct<a: string>",
        "add column s.b boolean",
    ]
    assert [(row["id"], row["x"], row["s"]) for row in made.rows()] == [
        *((n, None, None) for n in range(4)),
        (4, 1, {"a": "q", "b": None}),
        (5, 2, {"a": None, "b": True}),
        (6, None, {"a": "r", "b": None}),
        (7, None, None),
    ]
    assert len(made.table().schemas()) == 2
    assert_files_are_whole(made.table())


def test_rows_that_bring_columns_of_their_own_in_several_files(made: Evolving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_buffer, "FILE_BYTES", 1)
    test_rows_that_bring_columns_of_their_own(made)
    assert len(made.table().current_snapshot().manifests(made.table().io)) >= 1


@pytest.mark.parametrize("late", [False, True], ids=["before the look of the commit", "in the commit"])
def test_a_type_that_another_widens_meanwhile_is_a_conflict_that_leaves_nothing(made: Evolving, late: bool) -> None:
    other = made.run("id bigint", "widen")
    catalog = BeforeCommit(made.catalog(), lambda: other.land(3, [{"id": 2**40}])) if late else made.catalog()
    run = made.run("id int, name string, score double", "add", catalog)
    if not late:
        other.land(3, [{"id": 2**40}])
    with pytest.raises(StaleFiles, match="the schema was changed"):
        run.land(4, [{"id": 4, "score": 4.5}])

    assert made.offsets() == [0, 1, 2, 3]
    assert_files_are_whole(made.table())


def test_one_widens_while_another_appends_in_the_middle_of_its_commit(made: Evolving) -> None:
    catalog = BeforeCommit(made.catalog(), lambda: made.run("id int, name string").land(3, [{"id": 3}]))

    assert made.run("id bigint, name string", "widen", catalog).land(4, [{"id": 2**40}]) == [
        "widen column id from int to bigint"
    ]
    assert [row["id"] for row in made.rows()] == [0, 1, 2, 3, 2**40]
    assert_files_are_whole(made.table())


@ERRORS
@pytest.mark.parametrize("fault", [applied, unapplied], ids=["applied", "not applied"])
def test_an_unknown_outcome_changes_the_schema_once(
    made: Evolving, error: Exception, fault: Callable[[Exception], Any]
) -> None:
    catalog = FaultyCatalog(made.catalog(), fault(error))

    changes = made.run("id bigint, name string, score double", "widen", catalog).land(3, [{"id": 3, "score": 0.5}])

    assert changes == ["widen column id from int to bigint", "add column score double"]
    assert made.rows() == [*old(score=None), {"id": 3, "name": None, "score": 0.5}]
    assert (len(made.table().schemas()), len(made.table().snapshots())) == (2, 2)
    assert_files_are_whole(made.table())


@ERRORS
@pytest.mark.parametrize("delay", [1, 2])
def test_a_commit_that_is_applied_late_changes_the_schema_once(made: Evolving, error: Exception, delay: int) -> None:
    catalog = LateCatalog(made.catalog(), error, delay)

    made.run("id int, name string, score double", "add", catalog).land(3, [{"id": 3, "score": 0.5}])
    catalog.apply_now()

    assert made.rows() == [*old(score=None), {"id": 3, "name": None, "score": 0.5}]
    assert len(made.table().schemas()) == 2
    assert_files_are_whole(made.table())


@pytest.mark.parametrize("applied_first", [True, False])
def test_a_catalog_that_dies_leaves_schema_and_rows_together(made: Evolving, applied_first: bool) -> None:
    catalog = DyingCatalog(made.catalog(), applied=applied_first)

    with pytest.raises(CommitOutcomeUnknown):
        made.run("id int, name string, score double", "add", catalog).land(3, [{"id": 3, "score": 0.5}])

    if applied_first:
        assert (made.schema(), made.offsets()) == ("id int, name string, score double", [0, 1, 2, 3])
    else:
        assert (made.schema(), made.offsets()) == ("id int, name string", [0, 1, 2])


def test_a_schema_set_back_by_hand_is_set_again(made: Evolving) -> None:
    made.run("id bigint, name string", "widen").land(3, [{"id": 3}])
    with made.table().transaction() as transaction:
        transaction._apply((SetCurrentSchemaUpdate.model_validate({"schema-id": 0}),))
    assert made.schema() == "id int, name string"

    made.run("id bigint, name string", "widen").land(4, [{"id": 2**40}])

    assert made.schema() == "id bigint, name string"
    assert len(made.table().schemas()) == 2
    assert made.rows()[4]["id"] == 2**40


def test_a_column_dropped_by_hand_and_added_again_is_another_one(made: Evolving) -> None:
    with made.table().update_schema() as update:
        update.delete_column("name")

    assert made.run("id int, name string", "add").land(3, [{"id": 3, "name": "x"}]) == ["add column name string"]
    assert [row["name"] for row in made.rows()] == [None, None, None, "x"]


def test_replace_over_a_table_that_it_evolves(made: Evolving) -> None:
    run = made.run("id bigint, name string, score double", "widen")
    changes = run.replace(1, [{"id": 2**40, "name": "new", "score": 1.5}])

    assert changes == ["widen column id from int to bigint", "add column score double"]
    assert made.rows() == [
        {"id": 0, "name": "n0", "score": None},
        {"id": 2**40, "name": "new", "score": 1.5},
        {"id": 2, "name": "n2", "score": None},
    ]
    assert len(made.table().snapshots()) == 2
    assert_files_are_whole(made.table())


def test_a_name_mapping_knows_the_new_column(made: Evolving) -> None:
    mapping = create_mapping_from_schema(made.table().schema()).model_dump_json()
    with made.table().transaction() as transaction:
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})

    made.run("id int, name string, s struct<x: int>", "add").land(3, [{"id": 3, "s": {"x": 1}}])

    names = made.table().name_mapping()
    assert names is not None
    assert names.root[-1] == create_mapping_from_schema(made.table().schema()).root[-1]


def test_a_foreign_change_that_only_adds_to_the_list_of_schemas_is_seen(made: Evolving) -> None:
    run = made.run("id int, name string, score double", "add")
    with made.table().update_schema() as update:
        update.add_column("score", StringType())
    with made.table().transaction() as transaction:
        transaction._apply((SetCurrentSchemaUpdate.model_validate({"schema-id": 0}),))

    with pytest.raises(StaleFiles):
        run.land(3, [{"id": 3, "score": 0.5}])
    assert made.run("id int, name string, score double", "add").land(3, [{"id": 3, "score": 0.5}])
    assert made.table().schema().find_field("score").field_id > 6
    assert made.rows()[3]["score"] == 0.5
