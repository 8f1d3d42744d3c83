"""A commit as a value: a kind of commit that nobody had is one function, with a check that sees the real head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table

from airflow_lakestream.core.ports import HeadMoved, StaleFiles
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, RequestPart, TableCommit, head_is, property_part
from tests.support.faults import TIMEOUT, before, unapplied
from tests.support.lake import TABLE, assert_files_are_whole
from tests.support.replacing import ORDERS, ranges
from tests.support.table_formats import IcebergTable

FIRST = (0, 0, 10)
NEXT = (0, 10, 20)


class Unreadable(LakestreamError):
    """What a check of these tests can't read."""


def noted(commit: TableCommit, text: str, landed: RangeSet) -> TableCommit:
    """Return the commit with a note, which applies only while the ledger has these offsets."""

    def ledger_is_at(commit: TableCommit, head: Table) -> None:
        if ledger_store.read_ledger(head, commit.group).entry(ORDERS).landed != landed:
            raise RefusalCarrier(HeadMoved(ledger_store.name_of(head)))

    def note(_: Table | None, __: int) -> RequestPart:
        return property_part({"note": text})

    return replace(commit, checks=(*commit.checks, ledger_is_at), additions=(*commit.additions, note))


@pytest.fixture
def made(empty: IcebergTable) -> IcebergTable:
    """Give a table of one file."""
    empty.run().land(ranges(FIRST))
    return empty


def test_a_new_kind_of_commit_is_a_function_and_a_check(made: IcebergTable) -> None:
    run = made.run()
    run.sink.builders = [partial(noted, text="hello", landed=ranges(FIRST))]
    run.land(ranges(NEXT))
    assert made.table().properties["note"] == "hello"
    assert made.ledger().entry(ORDERS).landed == ranges(FIRST, NEXT)
    made.assert_whole()


def test_a_check_sees_the_head_at_which_the_commit_is_applied(made: IcebergTable) -> None:
    made.meet(before(lambda: made.run().land(ranges((1, 0, 5)))))
    run = made.run()
    run.sink.builders = [partial(noted, text="hello", landed=ranges(FIRST))]
    with pytest.raises(HeadMoved):
        run.land(ranges(NEXT))
    assert "note" not in made.table().properties
    assert made.ledger().entry(ORDERS).landed == ranges(FIRST, (1, 0, 5))
    # A refusal is certain: no file is left.
    made.assert_whole()


def test_a_commit_for_a_head_is_refused_at_another(made: IcebergTable) -> None:
    head = ledger_store.head_of(made.table().metadata)
    made.run().land(ranges(NEXT))
    run = made.run()
    run.sink.builders = [lambda commit: replace(commit, fits=(*commit.fits, head_is(head, HeadMoved)))]
    with pytest.raises(HeadMoved):
        run.land(ranges((0, 20, 30)))
    made.assert_whole()


def test_an_error_of_a_check_that_is_no_refusal_keeps_the_files_while_an_outcome_is_open(made: IcebergTable) -> None:
    looks = 0

    def check(_: TableCommit, __: Table) -> None:
        nonlocal looks
        looks += 1
        if looks > 1:
            raise Unreadable

    made.meet(unapplied(TIMEOUT))
    run = made.run()
    run.sink.builders = [lambda commit: replace(commit, checks=(*commit.checks, check))]
    with pytest.raises(made.unknown, match="left in place"):
        run.land(ranges(NEXT))
    assert looks > 1
    assert_files_are_whole(made.table(), leftovers_of_a_kill=True)


def test_an_error_of_a_check_before_the_first_request_leaves_nothing(made: IcebergTable) -> None:
    def check(_: TableCommit, __: Table) -> None:
        raise Unreadable

    run = made.run()
    run.sink.builders = [lambda commit: replace(commit, checks=(*commit.checks, check))]
    with pytest.raises(Unreadable):
        run.land(ranges(NEXT))
    made.assert_whole()


def test_the_order_is_fit_then_ledger_then_checks_then_additions_then_what_comes_after(made: IcebergTable) -> None:
    steps = list[str]()

    def noting(commit: TableCommit) -> TableCommit:
        ledger = commit.ledger
        assert ledger is not None

        def look(commit: TableCommit, head: Table) -> None:
            steps.append("ledger")
            ledger(commit, head)

        def add(_: Table | None, __: int) -> RequestPart:
            steps.append("addition")
            return RequestPart()

        return replace(
            commit,
            ledger=look,
            fits=(*commit.fits, lambda *_: steps.append("fit")),
            checks=(lambda *_: steps.append("check"),),
            additions=(add,),
            after=(lambda *_: steps.append("after"),),
        )

    run = made.run()
    run.sink.builders = [noting]
    run.land(ranges(NEXT))
    # Once before the files are staged, and all in the request.
    assert steps == ["fit", "fit", "ledger", "check", "addition", "after"]


def test_a_table_that_is_dropped_right_after_the_commit_is_looked_at_again(made: IcebergTable) -> None:
    def then_dropped(apply: Callable[[], Any]) -> Any:
        response = apply()
        made.catalog().drop_table(TABLE)
        return response

    made.meet(then_dropped)
    run = made.run()
    with pytest.raises(StaleFiles, match="dropped"):
        run.land(ranges(NEXT))
    assert not run.sink.load("run").exists


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_namespace_that_another_run_drops_is_made_again(
    empty: IcebergTable, monkeypatch: pytest.MonkeyPatch, is_staged: bool
) -> None:
    """Catalogs of servers refuse a table without its namespace; the one of the tests does not."""

    def refused(*_: Any, **__: Any) -> Any:
        raise NoSuchNamespaceError("lake")

    with monkeypatch.context() as patch:
        if is_staged:
            empty.meet(refused)
        else:
            patch.setattr(SqlCatalog, "create_table_transaction", refused)
        run = empty.run()
        with pytest.raises(StaleFiles, match="another run dropped the namespace"):
            run.land(ranges(FIRST))
    run.sink.load("run")
    run.land(ranges(FIRST))
    assert empty.ledger().entry(ORDERS).landed == ranges(FIRST)
    empty.assert_whole()
