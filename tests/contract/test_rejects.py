"""Records that became no row: kept beside the table, and counting only where their landing is in the ledger."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from airflow_lakestream.core.ledger import Counts, Landing
from airflow_lakestream.core.ports import Conflict, LedgerConflict, RejectsCondemned
from tests.support.faults import Fault, ReadTimeout, applied, unapplied
from tests.support.replacing import ORDERS, Run, ranges, versions
from tests.support.table_formats import FormatTable

WHOLE = ((0, 0, 30), "old")
# `LAKESTREAM_HISTORIES=20 pytest tests/contract/test_rejects.py` plays more; a failure names its seed.
HISTORIES = int(os.environ.get("LAKESTREAM_HISTORIES", "8"))


def test_without_a_rejected_record_there_is_no_table_for_them(made: FormatTable) -> None:
    made.run(rejects=True).land(ranges((0, 30, 31)))
    assert made.rejected() == []
    assert not [path for path in made.folder.rglob("*__rejected*") if path.is_dir()]


def test_rejected_records_are_written_with_the_landing_and_counted(made: FormatTable) -> None:
    made.run(rejects=True).land(ranges((0, 30, 35)), "new", bad=[(0, 31), (0, 33)])
    assert made.rejected() == [(0, 31, "new"), (0, 33, "new")]
    assert [row[1] for row in made.rows() if row[2] == "new"] == [30, 32, 34]
    assert made.ledger().entry(ORDERS).counts == Counts(35, 33, rejected=2)
    made.assert_whole()


@pytest.mark.parametrize("fault", [applied(ReadTimeout()), unapplied(ReadTimeout())], ids=["applied", "not applied"])
def test_a_commit_without_an_answer_has_its_rejected_records_once(made: FormatTable, fault: Fault) -> None:
    made.meet(fault)
    made.run(rejects=True).land(ranges((0, 30, 35)), "new", bad=[(0, 31)])
    made.run(rejects=True)
    assert made.rejected() == [(0, 31, "new")]
    assert made.ledger().entry(ORDERS).counts == Counts(35, 34, rejected=1)


def test_of_two_runs_with_the_same_offsets_only_the_rejected_records_of_one_stay(made: FormatTable) -> None:
    made.run(rejects=True).land(ranges((1, 0, 1)), bad=[(1, 0)])
    first, second = made.run(rejects=True), made.run(rejects=True)
    first.land(ranges((0, 30, 35)), "first", bad=[(0, 31)])
    with pytest.raises(LedgerConflict):
        second.land(ranges((0, 30, 35)), "second", bad=[(0, 31), (0, 32)])
    # Left for whoever comes next, who sees that they came to nothing.
    made.run(rejects=True)
    assert made.rejected() == [(0, 31, "first"), (1, 0, "old")]
    assert made.ledger().entry(ORDERS).counts == Counts(36, 34, rejected=2)


def test_a_landing_that_never_lands_is_superseded_by_the_one_that_does(made: FormatTable) -> None:
    made.meet(*[unapplied(ReadTimeout())] * made.commit_tries)
    with pytest.raises(made.unknown):
        made.run(rejects=True).land(ranges((0, 30, 35)), "never", bad=[(0, 30)])
    # It may still land, so its rows are left alone.
    made.run(rejects=True)
    assert made.rejected() == [(0, 30, "never")]
    made.run(rejects=True).land(ranges((0, 30, 35)), "new", bad=[(0, 31)])
    made.run(rejects=True)
    assert made.rejected() == [(0, 31, "new")]


def held_up(run: Run, meanwhile: Callable[[], object]) -> Run:
    """Do something between the commit of a run's rejected records and that of its table."""
    commit = run.sink.inner.commit

    def later(landing: Landing) -> int:
        meanwhile()
        return commit(landing)

    run.sink.inner.commit = later
    return run


def test_a_landing_that_was_taken_for_dead_does_not_land_after_a_rollback(made: FormatTable) -> None:
    made.run(rejects=True).land(ranges((1, 0, 1)), bad=[(1, 0)])
    before = made.commits()[-1]

    def others() -> None:
        made.run(rejects=True).land(ranges((0, 30, 35)), "other", bad=[(0, 32)])
        made.run(rejects=True)
        assert made.rejected() == [(0, 32, "other"), (1, 0, "old")]
        made.roll_back(before)

    with pytest.raises(RejectsCondemned, match=r"took landing .* for dead"):
        held_up(made.run(rejects=True), others).land(ranges((0, 30, 35)), "late", bad=[(0, 31)])
    assert made.rows() == versions(WHOLE)
    # It plans again.
    made.run(rejects=True).land(ranges((0, 30, 35)), "again", bad=[(0, 31)])
    assert (0, 31, "again") in made.rejected()
    made.assert_whole()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_happens_while_a_commit_waits_what_landed_has_its_rejected_records(
    made: FormatTable, seed: int
) -> None:
    rng = random.Random(seed)
    made.run(rejects=True).land(ranges((1, 0, 1)), bad=[(1, 0)])
    before = made.commits()[-1]
    counted = itertools.count()

    def land(meanwhile: Callable[[], object]) -> None:
        version = f"v{next(counted)}"
        with suppress(Conflict):
            held_up(made.run(rejects=True), meanwhile).land(ranges((0, 30, 33)), version, bad=[(0, 31)])

    def others(depth: int = 0) -> None:
        steps = [
            lambda: land(lambda: others(depth + 1) if depth < 2 else None),
            lambda: made.run(rejects=True),
            lambda: None if made.rows() == versions(WHOLE) else made.roll_back(before),
        ]
        for step in rng.choices(steps, [2, 3, 2], k=rng.randint(1, 4)):
            step()

    land(others)
    land(lambda: None)
    made.run(rejects=True)
    [landed] = {row[2] for row in made.rows()} - {"old"}
    assert [row for row in made.rejected() if row[2] == landed] == [(0, 31, landed)]
    assert made.ledger().entry(ORDERS).counts == Counts(34, 32, rejected=2)


def test_a_replace_takes_the_rejected_records_of_its_ranges_out(made: FormatTable) -> None:
    run = made.run(rejects=True)
    run.land(ranges((0, 30, 40)), bad=[(0, 31), (0, 38)])
    _, landing = made.run(rejects=True).replace(ranges((0, 28, 35)), bad=[(0, 32)])
    assert landing.topics[ORDERS].removed == Counts(7, 6, rejected=1)
    assert made.ledger().entry(ORDERS).counts == Counts(40, 38, rejected=2)
    assert made.rejected() == [(0, 32, "new"), (0, 38, "old")]
    replaced = versions(WHOLE, ((0, 35, 40), "old"), ((0, 28, 35), "new"))
    assert made.rows() == [row for row in replaced if row[1] not in (32, 38)]


def test_a_replace_that_rejects_none_leaves_none(made: FormatTable) -> None:
    made.run(rejects=True).land(ranges((0, 30, 40)), bad=[(0, 31)])
    made.run(rejects=True).replace(ranges((0, 30, 40)))
    assert made.rejected() == []
    assert made.ledger().entry(ORDERS).counts == Counts(40, 40)


def test_what_was_rolled_back_and_lands_anew_has_its_rejected_records_anew(made: FormatTable) -> None:
    before = made.commits()[-1]
    made.run(rejects=True).land(ranges((0, 30, 35)), "taken back", bad=[(0, 31), (0, 32)])
    made.roll_back(before)
    made.run(rejects=True).land(ranges((0, 30, 35)), "new", bad=[(0, 32)])
    made.run(rejects=True)
    assert [row[1:] for row in made.rejected() if row[2] == "new"] == [(32, "new")]
    assert made.ledger().entry(ORDERS).counts == Counts(35, 34, rejected=1)
    # Their rows do not count: a replace takes out of the books what the ledger has.
    made.run(rejects=True).replace(ranges((0, 30, 35)))
    assert made.ledger().entry(ORDERS).counts == Counts(35, 35)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_whatever_is_replaced_and_rolled_back_a_replace_makes_the_books_right(made: FormatTable, seed: int) -> None:
    """A replace removes the rejected records before it for good; after its rollback the ledger counts them still."""
    rng = random.Random(seed)
    made.run(rejects=True).land(
        ranges((0, 30, 36)), bad=[(0, offset) for offset in range(30, 36) if rng.random() < 0.5]
    )
    for _ in range(rng.randint(1, 3)):
        before = made.commits()[-1]
        first, end = sorted(rng.sample(range(28, 37), 2))
        bad = [(0, offset) for offset in range(first, end) if rng.random() < 0.5]
        made.run(rejects=True).replace(ranges((0, first, end)), "back", bad=bad)
        made.run(rejects=True)
        if rng.random() < 0.8:
            made.roll_back(before)
    bad = [(0, offset) for offset in range(28, 36) if rng.random() < 0.3]
    made.run(rejects=True).replace(ranges((0, 28, 36)), bad=bad)
    made.run(rejects=True)
    counted = [row for row in made.rejected() if row[2] == "new"]
    assert [row[:2] for row in counted] == bad
    assert made.ledger().entry(ORDERS).counts == Counts(36, len(made.rows()), rejected=len(bad))


def test_another_group_keeps_its_own_rejected_records(made: FormatTable) -> None:
    for group in ("one", "two"):
        made.run(group, overlap=True, rejects=True).land(ranges((1, 0, 5)), group, bad=[(1, 3)])
    made.run("one", rejects=True)
    assert made.rejected() == [(1, 3, "one"), (1, 3, "two")]
    assert made.ledger("two").entry(ORDERS).counts == Counts(5, 4, rejected=1)


def test_rejected_records_are_handed_over_with_the_files(made: FormatTable) -> None:
    worker, committer = made.run(rejects=True), made.run(rejects=True)
    for run in (worker, committer):
        run.sink.write_below("runs/r1")
    worker.reject([(0, 31)], "handed")
    piece = json.loads(json.dumps(worker.sink.hand_over()))
    worker.sink.let_go()
    worker.sink.discard()
    assert committer.sink.misfit(piece) is None
    committer.sink.adopt(piece)
    committer.land(ranges((0, 30, 35)), "own", bad=[(0, 33)], without=[(0, 31)])
    committer.sink.sweep("runs/r1")
    assert made.rejected() == [(0, 31, "handed"), (0, 33, "own")]
    assert not list(made.folder.rglob("*.arrows"))


def test_rejected_records_of_a_worker_that_fails_are_gone(made: FormatTable) -> None:
    worker = made.run(rejects=True)
    worker.reject([(0, 31)], "handed")
    piece = worker.sink.hand_over()
    worker.sink.discard()
    assert not list(made.folder.rglob("*.arrows"))
    assert "the records that were rejected are gone" in str(made.run(rejects=True).sink.misfit(piece))


def test_rejected_records_of_a_process_of_this_run_are_deleted_when_they_are_read(made: FormatTable) -> None:
    worker, run = made.run(rejects=True), made.run(rejects=True)
    worker.reject([(0, 31)], "process")
    run.write([(0, 30)], "own", ORDERS)
    run.sink.outline()
    run.sink.take_over(worker.sink.hand_over())
    worker.sink.let_go()
    assert not list(made.folder.rglob("*.arrows"))
    run.land(ranges((0, 30, 32)), without=[(0, 30), (0, 31)])
    assert made.rejected() == [(0, 31, "process")]
