"""Replace beside other writers, and on a catalog that fails: one snapshot or none, no older rows over newer ones."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import StringType

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ports import CannotReplace, Conflict, RangesNotLanded, ReplacedMeanwhile
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg.commit import committing
from airflow_lakestream.iceberg.commit.guard import StaleFiles
from airflow_lakestream.iceberg.sink import CommitOutcomeUnknown, CommitRefused
from tests.support.delete_files import delete_positions
from tests.support.faults import (
    BeforeCommit,
    DyingCatalog,
    Fault,
    FaultyCatalog,
    LateCatalog,
    ReadTimeout,
    WrappedCatalog,
    applied,
    passed,
    unapplied,
)
from tests.support.lake import assert_files_are_whole, compact
from tests.support.replacing import (
    ORDERS,
    HandMade,
    Row,
    Run,
    append_foreign_rows,
    offsets_of,
    ranges,
)

FAILED = CommitFailedException("somebody else was quicker")
TIMEOUT = ReadTimeout("no answer within 60 s")
RETRIES = pytest.mark.parametrize("retries", ["0", "4"], ids=["no retries", "4 retries"])
ERRORS = pytest.mark.parametrize("error", [FAILED, TIMEOUT], ids=["reported as failed", "timed out"])

WHOLE = ranges((0, 0, 30))
# Of three files one lies inside, one reaches across, one is untouched.
PART = ranges((0, 5, 20))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sink try again at once."""
    monkeypatch.setattr(committing, "RETRY_PAUSE", 0.0)


@pytest.fixture
def retries() -> str:
    """Give the number of PyIceberg's own retries, which must not make a difference."""
    return "4"


@pytest.fixture
def made(tmp_path: Path, retries: str) -> HandMade:
    """Give a table of three files."""
    made = HandMade(tmp_path, properties={"commit.retry.num-retries": retries})
    run = made.run()
    for start in (0, 10, 20):
        run.land(ranges((0, start, start + 10)))
    return made


def versions(*parts: tuple[RangeSet, str], foreign: int = 0) -> list[Row]:
    """Return the table's rows: the last version given for a record counts."""
    rows: dict[tuple[int, int], str] = {}
    for these, version in parts:
        rows |= dict.fromkeys(offsets_of(these), version)
    strange = [(None, None, f"foreign-{n}") for n in range(foreign)]
    return sorted([*((*key, version) for key, version in rows.items()), *strange], key=repr)


def assert_replaced_once(made: HandMade, snapshots: int) -> None:
    assert made.rows() == versions((WHOLE, "old"), (PART, "new"))
    assert len(made.table().snapshots()) == snapshots
    assert made.ledger().counts == Counts(30, 30)
    assert_files_are_whole(made.table())


# Other writers


def foreign_append(made: HandMade) -> list[Row]:
    append_foreign_rows(made.table())
    return versions((WHOLE, "old"), (PART, "new"), foreign=2)


def compaction(made: HandMade) -> list[Row]:
    compact(made.table())
    return versions((WHOLE, "old"), (PART, "new"))


def positional_deletes(made: HandMade) -> list[Row]:
    for task in made.table().scan("_kafka_offset = 4 or _kafka_offset = 5").plan_files():
        delete_positions(made.table(), task.file.file_path, [4, 5])
    return [row for row in versions((WHOLE, "old"), (PART, "new")) if row[:2] != (0, 4)]


def another_landing(made: HandMade) -> list[Row]:
    made.land(ranges((1, 0, 5)), "other")
    return versions((WHOLE, "old"), (PART, "new"), (ranges((1, 0, 5)), "other"))


def another_replace(made: HandMade) -> list[Row]:
    made.replace(ranges((0, 0, 5), (0, 20, 21)), "other")
    return versions((WHOLE, "old"), (PART, "new"), (ranges((0, 0, 5), (0, 20, 21)), "other"))


CHANGES = pytest.mark.parametrize(
    "change", [foreign_append, compaction, positional_deletes, another_landing, another_replace]
)


@CHANGES
def test_a_change_between_the_look_and_the_replace(made: HandMade, change: Callable[[HandMade], list[Row]]) -> None:
    run = made.run()
    expected = change(made)
    run.replace(PART)
    assert made.rows() == expected
    assert_files_are_whole(made.table())


@RETRIES
@CHANGES
def test_a_change_right_before_the_commit(made: HandMade, change: Callable[[HandMade], list[Row]]) -> None:
    # PyIceberg would send the same deletions and remainders again, which the change has made stale.
    expected: list[Row] = []
    run = made.run(BeforeCommit(made.catalog(), lambda: expected.extend(change(made))))
    snapshot_id, landing = run.replace(PART)
    assert made.rows() == expected
    # With a row that others had deleted, and that is there again.
    assert landing.topics[ORDERS].removed.written == 15
    # The ledger counts what landings wrote and took out; what others deleted elsewhere is not theirs.
    gone = 1 if change is positional_deletes else 0
    assert made.ledger().counts.written == len([row for row in expected if row[0] is not None]) + gone
    head = made.table().current_snapshot()
    assert head is not None
    assert head.snapshot_id == snapshot_id
    assert_files_are_whole(made.table())


def test_files_that_stay_are_not_read_or_written_again(made: HandMade) -> None:
    # Others commit each time that the replace tries to, but for the last.
    catalog = BusyTable(made)
    made.run(catalog).replace(PART)
    assert catalog.commits == committing.COMMIT_TRIES
    assert not catalog.written
    assert made.rows() == versions((WHOLE, "old"), (PART, "new"), *catalog.landed)
    assert_files_are_whole(made.table())


class BusyTable(WrappedCatalog):
    """Lets another run land before each commit, and notes the data files that were written from the first one on."""

    def __init__(self, made: HandMade, quiet_after: int = committing.COMMIT_TRIES) -> None:
        super().__init__(made.catalog())
        self._made = made
        self._quiet_after = quiet_after
        self.commits = 0
        self.landed: list[tuple[RangeSet, str]] = []
        self.written: set[str] = set()
        self._before: set[str] = set()

    def commit_table(self, *request: Any) -> Any:
        there = {str(path) for path in (self._made.folder / "warehouse").rglob("*.parquet")}
        self.written |= there - self._before if self._before else set()
        self.commits += 1
        if self.commits < self._quiet_after:
            these = ranges((1, self.commits, self.commits + 1))
            self._made.land(these, "busy")
            self.landed.append((these, "busy"))
        self._before = {str(path) for path in (self._made.folder / "warehouse").rglob("*.parquet")}
        return self.real.commit_table(*request)


def test_a_changed_schema(made: HandMade) -> None:
    def change() -> None:
        with made.table().update_schema() as update:
            update.add_column("more", StringType())

    run = made.run(BeforeCommit(made.catalog(), change))
    with pytest.raises(StaleFiles, match="the schema was changed"):
        run.replace(PART)
    assert made.rows() == versions((WHOLE, "old"))
    assert_files_are_whole(made.table())
    # The caller plans anew.
    run.sink.load("run")
    run.replace(PART)
    assert made.rows() == versions((WHOLE, "old"), (PART, "new"))


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after planning anew"])
@pytest.mark.parametrize("moment", ["before the attempt", "before the commit"])
def test_the_same_ranges_replaced_meanwhile(made: HandMade, moment: str, again: bool) -> None:
    # Whatever made the run plan anew: its rows may still be older than those of the other.
    overlap = ranges((0, 19, 22))
    run = made.run() if moment == "before the attempt" else None
    if run is None:
        run = made.run(BeforeCommit(made.catalog(), lambda: made.replace(overlap, "newer")))
    else:
        made.replace(overlap, "newer")
    if again and moment == "before the attempt":
        run.sink.load("run")
    with pytest.raises(ReplacedMeanwhile) as caught:
        run.replace(PART)
    assert caught.value.ranges == ranges((0, 19, 20))
    assert not isinstance(caught.value, Conflict), "a conflict would be planned anew"
    assert made.rows() == versions((WHOLE, "old"), (overlap, "newer"))
    assert_files_are_whole(made.table())
    # A run that begins now knows of it.
    made.replace(PART)
    assert made.rows() == versions((WHOLE, "old"), (overlap, "newer"), (PART, "new"))


def test_one_run_replaces_one_range_after_the_other(made: HandMade) -> None:
    run = made.run()
    for these in (PART, ranges((0, 0, 7)), PART):
        run.replace(these)
    assert made.rows() == versions((WHOLE, "old"), (ranges((0, 0, 20)), "new"))


def test_a_replace_that_is_long_past_in_the_journal(made: HandMade) -> None:
    # More landings came than the journal holds; the snapshots still tell.
    run = made.run()
    made.replace(PART, "newer")
    other = made.run()
    for offset in range(20):
        other.land(ranges((1, offset, offset + 1)))
    with pytest.raises(ReplacedMeanwhile):
        run.replace(PART)


def test_a_replace_whose_snapshot_has_expired(made: HandMade) -> None:
    run = made.run()
    made.replace(PART, "newer")
    made.land(ranges((1, 0, 1)))
    expire_all(made)
    with pytest.raises(ReplacedMeanwhile):
        run.replace(PART)


def test_a_history_that_does_not_tell_any_more(made: HandMade) -> None:
    run = made.run()
    other = made.run()
    for offset in range(20):
        other.land(ranges((1, offset, offset + 1)))
    expire_all(made)
    with pytest.raises(CannotReplace, match="its history has expired since this run began"):
        run.replace(PART)
    assert len(made.rows()) == 50
    assert_files_are_whole(made.table(), leftovers_of_a_kill=True)
    made.replace(PART)


def expire_all(made: HandMade) -> None:
    """Expire all snapshots but the head."""
    table = made.table()
    head = table.current_snapshot()
    assert head is not None
    table.maintenance.expire_snapshots().by_ids(
        [s.snapshot_id for s in table.snapshots() if s.snapshot_id != head.snapshot_id]
    ).commit()


def test_two_replaces_of_disjoint_ranges_at_once(made: HandMade) -> None:
    parts = [ranges((0, 0, 15)), ranges((0, 15, 30))]
    barrier = threading.Barrier(2, timeout=30)
    runs = [made.run(BeforeCommit(made.catalog(), barrier.wait)) for _ in parts]
    errors = at_once(lambda n: runs[n].replace(parts[n], f"run {n}"))
    assert errors == [None, None]
    assert made.rows() == versions((parts[0], "run 0"), (parts[1], "run 1"))
    assert len(made.table().snapshots()) == 5
    assert_files_are_whole(made.table())


def test_two_replaces_of_the_same_ranges_at_once(made: HandMade) -> None:
    barrier = threading.Barrier(2, timeout=30)
    runs = [made.run(BeforeCommit(made.catalog(), barrier.wait)) for _ in range(2)]
    errors = at_once(lambda n: runs[n].replace(PART, f"run {n}"))
    (winner,) = [n for n, error in enumerate(errors) if error is None]
    assert isinstance(errors[1 - winner], ReplacedMeanwhile)
    assert made.rows() == versions((WHOLE, "old"), (PART, f"run {winner}"))
    assert len(made.table().snapshots()) == 4
    assert_files_are_whole(made.table())


def at_once(action: Callable[[int], object]) -> list[BaseException | None]:
    errors: list[BaseException | None] = [None, None]

    def run(n: int) -> None:
        try:
            action(n)
        except BaseException as e:  # noqa: BLE001  # handed to the test
            errors[n] = e

    threads = [threading.Thread(target=run, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return errors


def test_a_table_rolled_back_meanwhile(made: HandMade) -> None:
    run = made.run()
    table = made.table()
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[1].snapshot_id).commit()
    with pytest.raises(RangesNotLanded) as caught:
        run.replace(ranges((0, 5, 25)))
    assert caught.value.ranges == ranges((0, 20, 25))
    assert made.rows() == versions((ranges((0, 0, 20)), "old"))


# A failing catalog


@RETRIES
@ERRORS
def test_a_commit_that_was_not_applied(made: HandMade, error: Exception) -> None:
    made.run(FaultyCatalog(made.catalog(), unapplied(error))).replace(PART)
    assert_replaced_once(made, 4)


@RETRIES
@ERRORS
def test_a_commit_that_was_applied_all_the_same(made: HandMade, error: Exception) -> None:
    snapshot_id, landing = made.run(FaultyCatalog(made.catalog(), then=applied(error))).replace(PART)
    assert_replaced_once(made, 4)
    head = made.table().current_snapshot()
    assert head is not None
    assert head.snapshot_id == snapshot_id
    assert landing.topics[ORDERS].removed == Counts(15, 15)


@ERRORS
@pytest.mark.parametrize("last", [FAILED, TIMEOUT], ids=["the last said to have failed", "the last timed out"])
def test_only_the_last_try_is_applied_and_reported_otherwise(made: HandMade, error: Exception, last: Exception) -> None:
    faults = [unapplied(error)] * (committing.COMMIT_TRIES - 1)
    made.run(FaultyCatalog(made.catalog(), *faults, applied(last))).replace(PART)
    assert_replaced_once(made, 4)


@ERRORS
@pytest.mark.parametrize("delay", range(1, 5))
def test_a_commit_that_is_applied_late_while_it_is_tried_again(made: HandMade, error: Exception, delay: int) -> None:
    catalog = LateCatalog(made.catalog(), error, delay)
    made.run(catalog).replace(PART)
    catalog.apply_now()
    assert_replaced_once(made, 4)


@RETRIES
@ERRORS
@pytest.mark.parametrize("outcome", [applied, unapplied])
def test_a_foreign_commit_and_then_a_lost_answer(
    made: HandMade, outcome: Callable[[Exception], Fault], error: Exception
) -> None:
    faulty = FaultyCatalog(made.catalog(), passed, outcome(error))
    made.run(BeforeCommit(faulty, lambda: compact(made.table()))).replace(PART)
    assert_replaced_once(made, 5)


@pytest.mark.parametrize("applies", [True, False], ids=["applied", "not applied"])
def test_a_catalog_that_goes_down_with_the_commit_and_stays_down(made: HandMade, applies: bool) -> None:
    with pytest.raises(CommitOutcomeUnknown, match="left in place"):
        made.run(DyingCatalog(made.catalog(), applied=applies)).replace(PART)
    assert made.rows() == versions((WHOLE, "old"), (PART, "new" if applies else "old"))
    assert_files_are_whole(made.table(), leftovers_of_a_kill=not applies)


@ERRORS
def test_a_commit_that_is_applied_after_the_run_gave_up(made: HandMade, error: Exception) -> None:
    late = LateCatalog(made.catalog(), error, delay=1_000_000)
    with pytest.raises(CommitOutcomeUnknown, match="left in place"):
        made.run(FaultyCatalog(late, passed, then=unapplied(error))).replace(PART)
    late.apply_now()
    assert late.was_applied
    assert made.rows() == versions((WHOLE, "old"), (PART, "new"))
    assert_files_are_whole(made.table(), leftovers_of_a_kill=True)


def test_a_table_that_others_change_all_the_time(made: HandMade) -> None:
    catalog = BusyTable(made, quiet_after=1_000)
    with pytest.raises(CommitRefused):
        made.run(catalog).replace(PART)
    assert made.rows() == versions((WHOLE, "old"), *catalog.landed)
    assert_files_are_whole(made.table())


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["an error", "an interrupt"])
@pytest.mark.parametrize("loads", [1, 2])
def test_a_failure_before_the_catalog_is_asked_leaves_nothing(made: HandMade, loads: int, error: BaseException) -> None:
    catalog = FailingToLoad(made.catalog(), error)
    run = made.run(catalog)
    catalog.loads_left = loads - 1
    run_and_expect(run, error)
    assert made.rows() == versions((WHOLE, "old"))
    assert_files_are_whole(made.table())


def run_and_expect(run: Run, error: BaseException) -> None:
    try:
        run.replace(PART)
    except BaseException as e:  # noqa: BLE001  # an interrupt must not end the test run
        assert e is error  # noqa: PT017  # as above
    else:
        pytest.fail("the catalog was not asked so often")


class FailingToLoad(WrappedCatalog):
    """Raises once the table has been loaded so many times more."""

    def __init__(self, catalog: Catalog, error: BaseException) -> None:
        super().__init__(catalog)
        self._error = error
        self.loads_left = 1_000

    def load_table(self, identifier: Any) -> Any:
        if self.loads_left == 0:
            self.loads_left = 1_000
            raise self._error
        self.loads_left -= 1
        return self.real.load_table(identifier)
