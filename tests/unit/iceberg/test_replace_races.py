"""Replace beside other writers, and on a catalog that fails: one snapshot or none, no older rows over newer ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ports import CannotReplace, ReplacedMeanwhile
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg.commit import committing
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
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


def test_positional_deletes_between_the_look_and_the_replace(made: HandMade) -> None:
    run = made.run()
    expected = positional_deletes(made)
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
