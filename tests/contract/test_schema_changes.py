"""A schema that changes in the commit of the rows: with them or not at all, once, whoever else is busy."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables import row_buffer
from tests.contract.conftest import FAULTS
from tests.support.faults import Fault, before
from tests.support.table_formats import FORMATS, FormatTable

WITH_SCORE = "id int, name string, score double"


@dataclass(frozen=True)
class Step:
    """What a run asks for, what that changes, and a number that the column `id` has room for afterwards."""

    schema: str
    evolution: str
    changes: tuple[str, ...]
    number: int


ADDS = Step(WITH_SCORE, "add", ("add column score double",), 3)
WIDENS = Step("id bigint, name string", "widen", ("widen column id from int to bigint",), 2**40)
BOTH = Step(f"id bigint{WITH_SCORE[6:]}", "widen", WIDENS.changes + ADDS.changes, 2**40)
WIDENING = [name for name, table in FORMATS.items() if table.widens]
EACH_STEP = pytest.mark.parametrize(
    ("empty", "step"),
    [
        *(pytest.param(name, ADDS, id=f"{name}-a column") for name in FORMATS),
        *(pytest.param(name, BOTH, id=f"{name}-a wider type and a column") for name in WIDENING),
    ],
    indirect=["empty"],
)


@pytest.fixture
def made(empty: FormatTable) -> FormatTable:
    """Give a table of each format with rows 0 to 2 of `id int, name string`."""
    empty.evolving("id int, name string").land(0, [{"id": n, "name": f"n{n}"} for n in range(3)])
    return empty


def old(**more: Any) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"n{n}", **more} for n in range(3)]


def names(made: FormatTable) -> list[str]:
    return [name for name in made.read().schema.names if not name.startswith("_kafka_")]


@EACH_STEP
def test_a_change_comes_with_the_rows_in_one_commit_and_once(made: FormatTable, step: Step) -> None:
    row = {"id": step.number, "name": "n3", "score": 0.5}
    changes = made.evolving(step.schema, step.evolution).land(3, [row])

    assert changes == list(step.changes)
    assert made.payload() == [*old(score=None), row]
    assert (len(made.commits()), made.schemas()) == (2, 2)
    made.assert_whole()

    assert made.evolving(step.schema, step.evolution).land(4, [{"id": 4, "score": 1.5}]) == []
    assert [row["id"] for row in made.payload()] == [0, 1, 2, step.number, 4]
    assert made.schemas() == 2


AT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
ADDED: list[tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "s struct<x: int>",
        "s struct<x: int, y: array<string>>",
        {"s": {"x": 1}},
        {"s": {"x": 2, "y": ["z", None]}},
        {"s": {"x": 1, "y": None}},
    ),
    (
        "l array<struct<x: int>>",
        "l array<struct<x: int, y: struct<z: date not null>>>",
        {"l": [{"x": 1}, None]},
        {"l": [{"x": 2, "y": {"z": dt.date(2026, 1, 1)}}]},
        {"l": [{"x": 1, "y": None}, None]},
    ),
    (
        "m map<string, struct<x: float>>",
        "m map<string, struct<x: float, y: int>>",
        {"m": [("k", {"x": 0.5})]},
        {"m": [("k", {"x": 0.25, "y": 1})]},
        {"m": [("k", {"x": 0.5, "y": None})]},
    ),
    ("a int", "a int, b timestamp not null", {"a": 1}, {"a": 2, "b": AT}, {"a": 1, "b": None}),
    # In Delta a feature of its own, which comes with the column.
    ("a int", "a int, b timestamp_ntz", {"a": 1}, {"a": 2, "b": AT.replace(tzinfo=None)}, {"a": 1, "b": None}),
]


@pytest.mark.parametrize(("held", "wanted", "first", "second", "as_read"), ADDED, ids=[case[1] for case in ADDED])
def test_each_kind_of_addition_and_old_rows_read_back(
    empty: FormatTable,
    held: str,
    wanted: str,
    first: dict[str, Any],
    second: dict[str, Any],
    as_read: dict[str, Any],
) -> None:
    empty.evolving(held).land(0, [first])
    empty.evolving(wanted, "add").land(1, [second])
    assert empty.payload() == [as_read, second]


def test_a_wider_type_is_refused_by_name_where_the_format_has_none(made: FormatTable) -> None:
    if made.widens:
        assert made.evolving("id bigint, name string", "widen").land(3, [{"id": 2**40}]) == list(WIDENS.changes)
    else:
        with pytest.raises(InvalidArgument, match="a wider type is a table feature"):
            made.evolving("id bigint, name string", "widen")


@pytest.mark.parametrize(
    ("schema", "evolution", "problem"),
    [
        ("id string, name string", "add", "'id' is int in the table and string is given"),
        ("id bigint, name string", "add", 'schema_evolution="widen" would make it bigint'),
        (WITH_SCORE, "none", 'schema_evolution="add" adds columns'),
    ],
    ids=["another type", "adding alone widens nothing", "without evolution"],
)
def test_what_a_table_can_not_become_is_refused(made: FormatTable, schema: str, evolution: str, problem: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        made.evolving(schema, evolution)
    assert problem in str(error.value)
    assert "events" in str(error.value)
    assert names(made) == ["id", "name"]


def test_columns_left_out_are_not_dropped(made: FormatTable) -> None:
    made.evolving("id int, score double", "add").land(3, [{"id": 3, "score": 0.5}])
    assert names(made) == ["id", "name", "score"]
    assert made.payload()[3] == {"id": 3, "name": None, "score": 0.5}


def test_metadata_columns_are_added_too(made: FormatTable) -> None:
    more = ("topic", "partition", "offset", "key")
    with pytest.raises(InvalidArgument, match='set schema_evolution="add" to add the missing ones'):
        made.evolving(None, metadata=more)

    assert made.evolving(None, "add", metadata=more).land(3, [{"id": 3}]) == ["add column _kafka_key binary"]
    assert made.read().sort_by("_kafka_offset")["_kafka_key"].to_pylist() == [None] * 3 + [b"key"]


def test_columns_of_the_records_own_schema_are_added_where_none_is_given(made: FormatTable) -> None:
    newest = pa.schema([("id", pa.int32()), ("name", pa.string()), pa.field("score", pa.float64(), nullable=False)])

    assert made.evolving(None, incoming=lambda held: newest).schema.names == ["id", "name"]
    run = made.evolving(None, "add", incoming=lambda held: newest)
    assert run.land(3, [{"id": 3, "score": 1.5}]) == ["add column score double"]
    assert made.evolving(None, "add", incoming=lambda held: None).schema.names == ["id", "name", "score"]


def test_the_rescued_column_is_added_whatever_the_policy(made: FormatTable) -> None:
    run = made.evolving(None, rescues=True)
    assert run.schema.names == ["id", "name", RESCUED]

    assert run.land(3, [{"id": 3, RESCUED: '{"x":1}'}]) == ["add column _rescued string"]
    assert made.payload() == [*old(**{RESCUED: None}), {"id": 3, "name": None, RESCUED: '{"x":1}'}]


def test_a_rescued_column_of_another_type_is_refused(empty: FormatTable) -> None:
    empty.evolving("id int, _rescued int").land(0, [{"id": 0}])
    with pytest.raises(InvalidArgument, match="'_rescued' is int in the table and string is given"):
        empty.evolving(None, rescues=True)


@pytest.mark.parametrize("in_files", [False, True], ids=["in one file", "in several files"])
def test_rows_that_bring_columns_of_their_own(
    made: FormatTable, in_files: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_files:
        monkeypatch.setattr(row_buffer, "FILE_BYTES", 1)
    run = made.evolving(None, "add", grows=True)
    wider = run.schema.append(pa.field("x", pa.int64())).append(pa.field("s", pa.struct([("a", pa.string())])))
    widest = wider.set(3, pa.field("s", pa.struct([("a", pa.string()), ("b", pa.bool_())])))
    run.write(3, [{"id": 3}])
    run.write(4, [{"id": 4, "x": 1, "s": {"a": "q"}}], wider)
    run.write(5, [{"id": 5, "x": 2, "s": {"b": True}}], widest)
    run.write(6, [{"id": 6, "s": {"a": "r"}}], wider)
    run.write(7, [{"id": 7}])

    assert run.sink.schema_changes(run.commit(3, 5)) == [
        "add column x bigint",
        "add column s struct<a: string>",
        "add column s.b boolean",
    ]
    assert [(row["id"], row["x"], row["s"]) for row in made.payload()] == [
        *((n, None, None) for n in range(4)),
        (4, 1, {"a": "q", "b": None}),
        (5, 2, {"a": None, "b": True}),
        (6, None, {"a": "r", "b": None}),
        (7, None, None),
    ]
    assert made.schemas() == 2
    made.assert_whole()


def test_a_table_that_is_created_grows_before_it_is_there(empty: FormatTable) -> None:
    run = empty.evolving(None, "add", grows=True)
    first = pa.schema([("id", pa.int64())])
    run.write(0, [{"id": 0}], first)
    run.write(1, [{"id": 1, "x": "y"}], first.append(pa.field("x", pa.string())))
    run.commit(0, 2)

    assert empty.payload() == [{"id": 0, "x": None}, {"id": 1, "x": "y"}]
    assert len(empty.commits()) == 1
    empty.assert_whole()


@pytest.mark.parametrize("late", [False, True], ids=["before the look of the commit", "in the commit"])
def test_two_runs_that_add_the_same_column_both_land(made: FormatTable, late: bool) -> None:
    other = made.evolving(WITH_SCORE, "add")
    if late:
        made.meet(before(lambda: other.land(3, [{"id": 3, "score": 3.5}])))
    run = made.evolving(WITH_SCORE, "add")
    if not late:
        assert other.land(3, [{"id": 3, "score": 3.5}]) == ["add column score double"]

    # Files of the second have the very columns that the first has made: nothing is to be read again.
    assert run.land(4, [{"id": 4, "score": 4.5}]) == []
    assert [row["score"] for row in made.payload()] == [None, None, None, 3.5, 4.5]
    made.assert_whole()


CONFLICTS: dict[str, Callable[[FormatTable], object]] = {
    "a wider type": lambda made: made.evolving("id bigint", "widen").land(3, [{"id": 2**40}]),
    "another column": lambda made: made.evolving("id int, other string", "add").land(3, [{"id": 3, "other": "o"}]),
    "the same column of another type": lambda made: made.evolving("score string", "add").land(3, [{"score": "s"}]),
}


@pytest.mark.parametrize(
    ("empty", "other"),
    [(name, other) for name in FORMATS for other in CONFLICTS if name in WIDENING or other != "a wider type"],
    indirect=["empty"],
)
@pytest.mark.parametrize("late", [False, True], ids=["before the look of the commit", "in the commit"])
def test_another_schema_change_meanwhile_is_a_conflict_that_leaves_nothing(
    made: FormatTable, other: str, late: bool
) -> None:
    if late:
        made.meet(before(lambda: CONFLICTS[other](made)))
    run = made.evolving(WITH_SCORE, "add")
    if not late:
        CONFLICTS[other](made)
    with pytest.raises(StaleFiles, match="the schema was changed"):
        run.land(4, [{"id": 4, "score": 4.5}])

    assert len(made.payload()) == 4
    made.assert_whole()


def test_one_adds_while_another_appends(made: FormatTable) -> None:
    """The one that appends wrote its files for a schema that is no more: it plans anew. The other way both land."""
    appends = made.evolving("id int, name string")
    adds, later = made.evolving(WITH_SCORE, "add"), made.evolving(WITH_SCORE, "add")

    made.evolving("id int, name string").land(3, [{"id": 3}])
    assert adds.land(4, [{"id": 4, "score": 4.5}]) == ["add column score double"]
    with pytest.raises(StaleFiles):
        appends.land(5, [{"id": 5}])
    assert later.land(6, [{"id": 6}]) == []
    assert [row["id"] for row in made.payload()] == [0, 1, 2, 3, 4, 6]
    made.assert_whole()


@EACH_STEP
def test_another_appends_right_before_a_commit_that_changes_the_schema(made: FormatTable, step: Step) -> None:
    made.meet(before(lambda: made.evolving("id int, name string").land(3, [{"id": 3}])))
    changes = made.evolving(step.schema, step.evolution).land(4, [{"id": step.number + 1}])
    assert changes == list(step.changes)
    assert [row["id"] for row in made.payload()] == [0, 1, 2, 3, step.number + 1]
    made.assert_whole()


@EACH_STEP
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_an_unknown_outcome_changes_the_schema_once(made: FormatTable, step: Step, fault: Fault) -> None:
    made.meet(fault)
    assert made.evolving(step.schema, step.evolution).land(3, [{"id": 3, "score": 0.5}]) == list(step.changes)
    assert made.payload() == [*old(score=None), {"id": 3, "name": None, "score": 0.5}]
    assert (len(made.commits()), made.schemas()) == (2, 2)
    made.assert_whole()


def test_an_error_before_the_commit_leaves_no_trace(made: FormatTable) -> None:
    run = made.evolving(WITH_SCORE, "add")
    run.write(3, [{"id": 3, "score": 0.5}])
    run.sink.hand_over()
    run.sink.discard()
    assert names(made) == ["id", "name"]
    made.assert_whole()


@EACH_STEP
def test_replace_over_a_table_that_it_evolves(made: FormatTable, step: Step) -> None:
    row = {"id": step.number, "name": "new", "score": 1.5}
    changes = made.evolving(step.schema, step.evolution).replace(1, [row])
    assert changes == list(step.changes)
    first, _, last = old(score=None)
    assert made.payload() == [first, row, last]
    assert len(made.commits()) == 2
    made.assert_whole()


def test_replace_over_rows_of_both_schemas(made: FormatTable) -> None:
    made.evolving(WITH_SCORE, "add").land(3, [{"id": n, "score": 0.5} for n in (3, 4)])
    made.evolving(None).replace(2, [{"id": 22, "score": 2.5}, {"id": 33, "score": 3.5}])
    rows = [(row["id"], row["score"]) for row in made.payload()]
    assert rows == [(0, None), (1, None), (22, 2.5), (33, 3.5), (4, 0.5)]
    made.assert_whole()


def test_files_of_another_worker_fit_a_change_that_is_still_to_be_made(made: FormatTable) -> None:
    worker, committer = made.evolving(WITH_SCORE, "add"), made.evolving(WITH_SCORE, "add")
    worker.write(3, [{"id": 3, "score": 0.5}])
    handed = json.loads(json.dumps(worker.sink.hand_over()))

    another = "id int, name string, x int"
    assert made.evolving(another, "add").sink.misfit(handed) is not None
    assert made.evolving("id int, name string", "add").sink.misfit(handed) is not None
    assert committer.sink.misfit(handed) is None
    committer.sink.adopt(handed)
    committer.commit(3, 1)
    assert made.payload() == [*old(score=None), {"id": 3, "name": None, "score": 0.5}]
    assert made.evolving(another, "add").sink.misfit(handed) is not None
