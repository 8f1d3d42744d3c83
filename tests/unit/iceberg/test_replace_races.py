"""Replace beside what only Iceberg has: positional deletes, and a catalog that fails. See also tests/contract."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.ports import ReplacedMeanwhile
from airflow_lakestream.iceberg.commit import committing
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from tests.support.delete_files import delete_positions
from tests.support.faults import (
    ERRORS,
    FAILED,
    TIMEOUT,
    DyingCatalog,
    FaultyCatalog,
    LateCatalog,
    WrappedCatalog,
    applied,
    before,
    passed,
    unapplied,
)
from tests.support.lake import assert_files_are_whole
from tests.support.replacing import ORDERS, Row, Run, ranges, versions
from tests.support.table_formats import VARIANTS, IcebergTable

WHOLE = ((0, 0, 30), "old")
# Of three files one lies inside, one reaches across, one is untouched.
PART = (0, 5, 20)


@pytest.fixture
def made(empty: IcebergTable) -> IcebergTable:
    """Give a table of three files."""
    run = empty.run()
    for start in (0, 10, 20):
        run.land(ranges((0, start, start + 10)))
    return empty


def assert_replaced_once(made: IcebergTable) -> None:
    assert made.rows() == versions(WHOLE, (PART, "new"))
    assert len(made.commits()) == 4
    assert made.ledger().entry(ORDERS).counts == Counts(30, 30)
    made.assert_whole()


# Other writers


def positional_deletes(made: IcebergTable) -> list[Row]:
    for task in made.table().scan("_kafka_offset = 4 or _kafka_offset = 5").plan_files():
        delete_positions(made.table(), task.file.file_path, [4, 5])
    return [row for row in versions(WHOLE, (PART, "new")) if row[:2] != (0, 4)]


@pytest.mark.parametrize("empty", [name for name in VARIANTS if "iceberg" in name], indirect=True)
@pytest.mark.parametrize("late", [False, True], ids=["before the attempt", "before the commit"])
def test_positional_deletes_between_the_look_and_the_replace(made: IcebergTable, late: bool) -> None:
    # PyIceberg would send the same deletions and remainders again, which the change has made stale.
    expected: list[Row] = []
    if late:
        made.meet(before(lambda: expected.extend(positional_deletes(made))))
    run = made.run()
    if not late:
        expected = positional_deletes(made)
    snapshot_id, landing = run.replace(ranges(PART))
    assert made.rows() == expected
    # With a row that others had deleted, and that is there again.
    assert landing.topics[ORDERS].removed.written == 15
    # The ledger counts what landings wrote and took out; what others deleted elsewhere is not theirs.
    assert made.ledger().entry(ORDERS).counts.written == len(expected) + 1
    assert made.commits()[-1] == snapshot_id
    made.assert_whole()


def test_a_replace_whose_snapshot_has_expired(made: IcebergTable) -> None:
    run = made.run()
    made.replace(ranges(PART), "newer")
    made.land(ranges((1, 0, 1)))
    made.forget_history()
    with pytest.raises(ReplacedMeanwhile):
        run.replace(ranges(PART))


# A failing catalog


@ERRORS
@pytest.mark.parametrize("last", [FAILED, TIMEOUT], ids=["the last said to have failed", "the last timed out"])
def test_only_the_last_try_is_applied_and_reported_otherwise(
    made: IcebergTable, error: Exception, last: Exception
) -> None:
    faults = [unapplied(error)] * (committing.COMMIT_TRIES - 1)
    made.meet(*faults, applied(last))
    made.replace(ranges(PART))
    assert_replaced_once(made)


@ERRORS
@pytest.mark.parametrize("delay", range(1, 5))
def test_a_commit_that_is_applied_late_while_it_is_tried_again(
    made: IcebergTable, error: Exception, delay: int
) -> None:
    catalog = LateCatalog(made.catalog(), error, delay)
    made.through(catalog).replace(ranges(PART))
    catalog.apply_now()
    assert_replaced_once(made)


@pytest.mark.parametrize("applies", [True, False], ids=["applied", "not applied"])
def test_a_catalog_that_goes_down_with_the_commit_and_stays_down(made: IcebergTable, applies: bool) -> None:
    with pytest.raises(CommitOutcomeUnknown, match="left in place"):
        made.through(DyingCatalog(made.catalog(), applied=applies)).replace(ranges(PART))
    assert made.rows() == versions(WHOLE, (PART, "new" if applies else "old"))
    assert_files_are_whole(made.table(), leftovers_of_a_kill=not applies)


@ERRORS
def test_a_commit_that_is_applied_after_the_run_gave_up(made: IcebergTable, error: Exception) -> None:
    late = LateCatalog(made.catalog(), error, delay=1_000_000)
    with pytest.raises(CommitOutcomeUnknown, match="left in place"):
        made.through(FaultyCatalog(late, passed, then=unapplied(error))).replace(ranges(PART))
    late.apply_now()
    assert late.was_applied
    assert made.rows() == versions(WHOLE, (PART, "new"))
    assert_files_are_whole(made.table(), leftovers_of_a_kill=True)


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["an error", "an interrupt"])
@pytest.mark.parametrize("loads", [1, 2])
def test_a_failure_before_the_catalog_is_asked_leaves_nothing(
    made: IcebergTable, loads: int, error: BaseException
) -> None:
    catalog = FailingToLoad(made.catalog(), error)
    run = made.through(catalog).run()
    catalog.loads_left = loads - 1
    run_and_expect(run, error)
    assert made.rows() == versions(WHOLE)
    made.assert_whole()


def run_and_expect(run: Run, error: BaseException) -> None:
    try:
        run.replace(ranges(PART))
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
