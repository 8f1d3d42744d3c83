"""A landing beside other writers, and with commits that get no answer: it lands once, or leaves no trace."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ports import Conflict, LedgerConflict, StaleFiles
from tests.contract.conftest import FAULTS, WITH_AND_WITHOUT_RETRIES
from tests.support.faults import TIMEOUT, Fault, before, unapplied
from tests.support.replacing import ORDERS, ranges, versions
from tests.support.table_formats import FormatTable


def test_of_two_runs_that_saw_the_same_head_one_lands_the_same_offsets(made: FormatTable) -> None:
    first, second = made.run(), made.run()
    first.land(ranges((0, 30, 35)), "first")
    with pytest.raises(LedgerConflict) as caught:
        second.land(ranges((0, 33, 40)), "second")
    assert caught.value.ranges == ranges((0, 33, 35))
    assert made.rows() == versions(((0, 0, 30), "old"), ((0, 30, 35), "first"))
    made.assert_whole()


def test_of_two_runs_that_saw_no_table_one_creates_it(empty: FormatTable) -> None:
    first, second = empty.run(), empty.run()
    first.land(ranges((0, 0, 5)), "first")
    with pytest.raises(Conflict):
        second.land(ranges((0, 5, 9)), "second")
    second.sink.load("run")
    second.land(ranges((0, 5, 9)), "second")
    assert empty.rows() == versions(((0, 0, 5), "first"), ((0, 5, 9), "second"))
    empty.assert_whole()


def test_two_runs_with_other_offsets_both_land(made: FormatTable) -> None:
    first, second = made.run(), made.run()
    first.land(ranges((0, 30, 35)), "first")
    second.land(ranges((1, 0, 5)), "second")
    assert made.rows() == versions(((0, 0, 30), "old"), ((0, 30, 35), "first"), ((1, 0, 5), "second"))
    assert made.ledger().entry(ORDERS).landed == ranges((0, 0, 35), (1, 0, 5))


def test_of_runs_at_once_with_the_same_offsets_one_lands(either: FormatTable) -> None:
    runs, barrier = [either.run() for _ in range(3)], threading.Barrier(3)
    old = either.rows()

    def land(number: int) -> bool:
        barrier.wait(60)
        try:
            runs[number].land(ranges((0, 0, 5)), "new")
        except (LedgerConflict, StaleFiles):
            return False
        return True

    with ThreadPoolExecutor(3) as pool:
        assert sorted(pool.map(land, range(3))) == [False, False, True]
    assert either.rows() == sorted([*old, *versions(((0, 0, 5), "new"))], key=repr)
    either.assert_whole()


def test_runs_at_once_with_other_offsets_all_land_with_the_whole_ledger(made: FormatTable) -> None:
    runs, barrier = [made.run() for _ in range(3)], threading.Barrier(3)

    def land(number: int) -> object:
        barrier.wait(60)
        return runs[number].land(ranges((number + 1, 0, 3)), "new")

    with ThreadPoolExecutor(3) as pool:
        assert len(set(pool.map(land, range(3)))) == 3
    assert made.ledger().entry(ORDERS).landed == ranges((0, 0, 30), *((p, 0, 3) for p in (1, 2, 3)))
    assert made.ledger().entry(ORDERS).counts == Counts(39, 39)
    assert len(made.rows()) == 39
    made.assert_whole()


@WITH_AND_WITHOUT_RETRIES
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_first_commit_without_an_answer_lands_once(empty: FormatTable, fault: Fault) -> None:
    empty.meet(fault)
    commit = empty.land(ranges((0, 0, 5)), "new")
    assert empty.commits()[-1] == commit
    assert empty.rows() == versions(((0, 0, 5), "new"))
    assert empty.ledger().entry(ORDERS).landed == ranges((0, 0, 5))
    empty.assert_whole()


@WITH_AND_WITHOUT_RETRIES
def test_commits_without_an_answer_land_once(made: FormatTable) -> None:
    landed = [((0, 0, 30), "old")]
    for start, (name, fault) in zip(itertools.count(30, 5), FAULTS.items(), strict=False):
        made.meet(fault)
        landed.append(((0, start, start + 5), name))
        assert made.land(ranges(landed[-1][0]), name) == made.commits()[-1], name
    assert made.rows() == versions(*landed)
    assert made.ledger().entry(ORDERS).landed == ranges((0, 0, 55))
    assert len(made.commits()) == 3 + len(FAULTS)
    made.assert_whole()


@WITH_AND_WITHOUT_RETRIES
def test_foreign_commits_and_then_lost_answers(made: FormatTable) -> None:
    # It is the rebased commit that nobody confirms.
    landed = [((0, 0, 30), "old")]
    for start, (name, fault) in zip(itertools.count(30, 5), FAULTS.items(), strict=False):
        made.meet(before(partial(made.append_foreign, name)), fault)
        landed.append(((0, start, start + 5), name))
        assert made.land(ranges(landed[-1][0]), name) == made.commits()[-1], name
    assert made.rows() == versions(*landed, foreign=tuple(FAULTS))
    assert len(made.commits()) == 3 + 2 * len(FAULTS)
    made.assert_whole()


def test_no_answer_at_all_leaves_the_files_since_the_commit_may_be_there(made: FormatTable) -> None:
    made.meet(*[unapplied(TIMEOUT)] * made.commit_tries)
    files = set(made.folder.rglob("*.parquet"))
    with pytest.raises(made.unknown, match="left in place"):
        made.land(ranges((0, 30, 35)), "new")
    assert set(made.folder.rglob("*.parquet")) > files
    assert made.rows() == versions(((0, 0, 30), "old"))
    made.land(ranges((0, 30, 35)), "again")
    assert made.rows() == versions(((0, 0, 30), "old"), ((0, 30, 35), "again"))


def test_a_writer_that_is_always_first_ends_in_an_error_without_a_trace(empty: FormatTable) -> None:
    # Else Iceberg's client would rebase four times in each try.
    empty.run(properties={"commit.retry.num-retries": "0"}).land(ranges((0, 0, 5)))
    empty.meet(*[before(lambda: empty.append_foreign("busy"))] * empty.commit_tries)
    with pytest.raises(empty.refused):
        empty.land(ranges((0, 5, 9)), "new")
    assert {row[2] for row in empty.rows()} == {"old", "busy"}
    empty.assert_whole()


def test_a_foreign_append_before_the_commit_stays_and_the_landing_goes_on_top(made: FormatTable) -> None:
    made.meet(before(lambda: made.append_foreign("foreign")))
    made.land(ranges((0, 30, 35)))
    assert made.rows() == versions(((0, 0, 35), "old"), foreign=("foreign",))
    made.assert_whole()


def test_another_landing_before_the_commit_is_seen(made: FormatTable) -> None:
    made.meet(before(lambda: made.land(ranges((0, 30, 33)), "other")))
    with pytest.raises(LedgerConflict) as caught:
        made.land(ranges((0, 31, 35)), "new")
    assert caught.value.ranges == ranges((0, 31, 33))
    assert made.rows() == versions(((0, 0, 30), "old"), ((0, 30, 33), "other"))
    made.assert_whole()


@pytest.mark.parametrize("late", [False, True], ids=["before the look of the commit", "in the commit"])
def test_a_schema_that_another_changed_between_look_and_commit_is_refused(made: FormatTable, late: bool) -> None:
    if late:
        made.meet(before(lambda: made.add_column("more")))
    run = made.run()
    if not late:
        made.add_column("more")
    with pytest.raises(StaleFiles, match="the schema was changed"):
        run.land(ranges((0, 30, 35)))
    made.assert_whole()
    made.land(ranges((0, 30, 35)))
    assert len(made.rows()) == 35


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "created anew"])
def test_a_table_that_was_dropped_after_the_look_is_refused(made: FormatTable, anew: bool) -> None:
    run = made.run()
    made.drop()
    if anew:
        made.land(ranges((5, 0, 1)), "anew")
    with pytest.raises(StaleFiles, match="dropped"):
        run.land(ranges((0, 30, 35)))
    assert made.rows() == (versions(((5, 0, 1), "anew")) if anew else [])
    if anew:
        made.assert_whole()
