"""The catalog at its worst: commits that fail, or only seem to, or are applied when nobody waits for them any more.

Whatever happens: every record once, the table can be read, and no file is lost or left over.
"""

from collections.abc import Callable

import pytest
from pyiceberg.catalog import Catalog

from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.iceberg.commit import committing
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from tests.support.broker import Producing, Topics
from tests.support.faults import (
    ERRORS,
    FAILED,
    TIMEOUT,
    CatalogDown,
    DyingCatalog,
    FaultyCatalog,
    LateCatalog,
    applied,
    passed,
    unapplied,
)
from tests.support.lake import QUICK_RETRIES, Lake, assert_files_are_whole, assert_landed_once, events

pytestmark = pytest.mark.integration

BEFORE, MORE = 20, 30
CREATES = pytest.mark.parametrize("creates", [True, False], ids=["create", "append"])
# PyIceberg does not retry the creation of a table, whatever the number says.
KINDS = pytest.mark.parametrize(
    ("creates", "retries"),
    [(True, 4), (False, 0), (False, 4)],
    ids=["create", "append, no retries", "append, 4 retries"],
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sink try again at once."""
    monkeypatch.setattr(committing, "RETRY_PAUSE", 0.0)


class Case:
    """A topic with records to land, into a table that is there or, with `creates`, is not yet."""

    def __init__(self, lake: Lake, topic: str, produce: Producing, *, creates: bool, retries: int) -> None:
        self.lake = lake
        self.topic = topic
        self.properties = {**QUICK_RETRIES, "commit.retry.num-retries": str(retries)}
        self.creates = creates
        produce(topic, 0, events(0, 0, BEFORE))
        if not creates:
            self.run(lake.catalog())
        produce(topic, 0, events(0, BEFORE, MORE))

    def run(self, catalog: Catalog, run_id: str = "") -> LandingReport:
        return self.lake.land(self.topic, run_id, catalog=catalog, table_properties=self.properties)

    def assert_landed_once(self, report: LandingReport) -> None:
        """Assert it, and that the report tells of exactly the one snapshot of its run."""
        assert_landed_once(self.lake, self.topic, {0: BEFORE + MORE})
        snapshots = self.lake.snapshots()
        assert len(snapshots) == (1 if self.creates else 2)
        assert report.snapshot_ids == snapshots[-1:]
        assert report.counts.written == (BEFORE + MORE if self.creates else MORE)
        assert_files_are_whole(self.lake.table())


MakeCase = Callable[..., Case]


@pytest.fixture
def make_case(lake: Lake, topic: Topics, produce: Producing) -> MakeCase:
    """Give the maker of cases."""

    def make(*, creates: bool, retries: int) -> Case:
        return Case(lake, topic(1), produce, creates=creates, retries=retries)

    return make


@KINDS
@ERRORS
def test_a_commit_that_was_applied_all_the_same(
    make_case: MakeCase, error: Exception, retries: int, creates: bool
) -> None:
    # Not only the first: whatever is tried again meets the same fate.
    case = make_case(creates=creates, retries=retries)
    catalog = FaultyCatalog(case.lake.catalog(), then=applied(error))
    case.assert_landed_once(case.run(catalog))
    if error is FAILED:
        assert catalog.commits == 1, "the table itself says that it was applied"


@KINDS
@ERRORS
@pytest.mark.parametrize("last", [FAILED, TIMEOUT], ids=["the last said to have failed", "the last timed out"])
def test_only_the_last_try_is_applied_and_reported_otherwise(
    make_case: MakeCase, error: Exception, last: Exception, retries: int, creates: bool
) -> None:
    case = make_case(creates=creates, retries=retries)
    faults = [unapplied(error)] * (committing.COMMIT_TRIES - 1)
    case.assert_landed_once(case.run(FaultyCatalog(case.lake.catalog(), *faults, applied(last))))


@KINDS
@ERRORS
@pytest.mark.parametrize("delay", range(1, 5))
def test_a_commit_that_is_applied_late_while_it_is_tried_again(
    make_case: MakeCase, error: Exception, delay: int, retries: int, creates: bool
) -> None:
    case = make_case(creates=creates, retries=retries)
    catalog = LateCatalog(case.lake.catalog(), error, delay)
    report = case.run(catalog)
    catalog.apply_now()
    case.assert_landed_once(report)


@KINDS
@ERRORS
def test_a_commit_that_is_applied_after_the_run_gave_up(
    make_case: MakeCase, error: Exception, retries: int, creates: bool
) -> None:
    # None of the requests gets a good answer; then the first of them is applied after all.
    case = make_case(creates=creates, retries=retries)
    late = LateCatalog(case.lake.catalog(), error, delay=1_000_000)
    seen = "is not there so far" if creates else "is there, so far without it"
    with pytest.raises(CommitOutcomeUnknown, match=rf"The table {seen}.*left in place"):
        case.run(FaultyCatalog(late, passed, then=unapplied(error)), "r")
    late.apply_now()

    assert late.was_applied
    assert_landed_once(case.lake, case.topic, {0: BEFORE + MORE})
    assert case.run(case.lake.catalog(), "r").snapshot_ids == case.lake.snapshots()[-1:]
    assert_files_are_whole(case.lake.table(), leftovers_of_a_kill=True)


@CREATES
@pytest.mark.parametrize("applies", [True, False], ids=["applied", "not applied"])
def test_a_catalog_that_goes_down_with_the_commit_and_stays_down(
    make_case: MakeCase, applies: bool, creates: bool
) -> None:
    case = make_case(creates=creates, retries=4)
    lake = case.lake
    before = {path for path in lake.files() if path.endswith((".parquet", ".avro"))}

    with pytest.raises(CommitOutcomeUnknown, match=r"can't be read either.*1 data files were left in place") as caught:
        case.run(DyingCatalog(lake.catalog(), applied=applies), "r")

    assert isinstance(caught.value.__cause__, CatalogDown)
    kinds = {path.rsplit(".", 1)[1] for path in set(lake.files()) - before}
    assert {"parquet", "avro"} <= kinds, "what may have been committed was not deleted"
    assert lake.catalog().namespace_exists("lake")

    report = case.run(lake.catalog(), "r")
    assert report.recovered == (1 if applies else 0)
    assert report.snapshot_ids == lake.snapshots()[-1:]
    assert len(lake.snapshots()) == (1 if creates else 2)
    assert_landed_once(lake, case.topic, {0: BEFORE + MORE})
    assert_files_are_whole(lake.table(), leftovers_of_a_kill=not applies)


def test_a_catalog_that_goes_down_right_after_the_commit(make_case: MakeCase) -> None:
    case = make_case(creates=False, retries=4)
    case.lake.catalog()
    dying = DyingAfterCommit(case.lake.catalog())
    with pytest.raises(CatalogDown):
        case.run(dying, "r")
    assert_landed_once(case.lake, case.topic, {0: BEFORE + MORE})
    case.assert_landed_once(case.run(case.lake.catalog(), "r"))


class DyingAfterCommit(DyingCatalog):
    """Confirms the first commit, and is not there any more when asked for anything else."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(catalog, applied=True)

    def commit_table(self, *request: object) -> object:
        self._down = True
        return self.real.commit_table(*request)
