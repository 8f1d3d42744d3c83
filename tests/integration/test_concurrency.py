"""Several runs of one group at once, and other writers between a run's plan and its commit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import Job
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.iceberg.commit.guard import CommitGuard
from tests.support.broker import Producing, Topics
from tests.support.faults import BeforeCommit, InterposedSink, OnlyPartitions, SmallChunks, WrappedCatalog
from tests.support.lake import (
    Lake,
    append_foreign_rows,
    assert_files_are_whole,
    assert_landed_once,
    compact,
    events,
)

pytestmark = pytest.mark.integration

RUNS = 3
EACH = 20


class MeetingCatalog(WrappedCatalog):
    """Lets each run's first commit wait, all made, until those of the others are there as well: one base for all."""

    def __init__(self, lake: Lake, barrier: threading.Barrier) -> None:
        super().__init__(lake.catalog())
        self._barrier: threading.Barrier | None = barrier

    def commit_table(self, *request: Any) -> Any:
        barrier, self._barrier = self._barrier, None
        if barrier is not None:
            barrier.wait()
        return self.real.commit_table(*request)


def at_once(jobs: list[Job]) -> list[LandingReport]:
    """Run the jobs in threads."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(land, jobs))


def meeting_jobs(lake: Lake, topic: str, runs: int = RUNS, **config: Any) -> list[Job]:
    """Return runs that come to their first commit together."""
    barrier = threading.Barrier(runs, timeout=60)
    return [lake.job(topic, f"run-{n}", catalog=MeetingCatalog(lake, barrier), **config) for n in range(runs)]


@pytest.fixture
def filled(topic: Topics, produce: Producing) -> str:
    """Give a topic of as many partitions as runs, with records in each."""
    name = topic(RUNS)
    for partition in range(RUNS):
        produce(name, partition, events(partition, 0, EACH))
    return name


ALL = dict.fromkeys(range(RUNS), EACH)


@pytest.fixture(params=["no table yet", "group's first landing", "group has landed before"])
def base(request: pytest.FixtureRequest, lake: Lake, topic: Topics, produce: Producing, filled: str) -> int:
    """Prepare what the runs find; return how many records of each partition have landed already."""
    if request.param == "no table yet":
        return 0
    if request.param == "group's first landing":
        other = topic(1)
        produce(other, 0, events(0, 0, 1))
        lake.land(other, consumer_group="other")
        return 0
    lake.land(filled)
    for partition in range(RUNS):
        produce(filled, partition, events(partition, EACH, EACH))
    return EACH


def test_three_runs_at_once_that_read_the_same_ranges(lake: Lake, filled: str, base: int) -> None:
    before = len(lake.snapshots()) if lake.catalog().table_exists("lake.events") else 0

    reports = at_once(meeting_jobs(lake, filled))

    assert sorted(report.counts.written for report in reports) == [0, 0, RUNS * EACH]
    assert len(lake.snapshots()) == before + 1
    assert_landed_once(lake, filled, dict.fromkeys(range(RUNS), base + EACH))
    assert_files_are_whole(lake.table())


def test_three_runs_at_once_that_read_different_ranges(lake: Lake, filled: str, base: int) -> None:
    before = len(lake.snapshots()) if lake.catalog().table_exists("lake.events") else 0
    jobs = [replace(job, reader=OnlyPartitions(job.reader, [n])) for n, job in enumerate(meeting_jobs(lake, filled))]

    reports = at_once(jobs)

    assert [report.to_dict()["ranges"] for report in reports] == [[[n, base, base + EACH]] for n in range(RUNS)]
    assert len(lake.snapshots()) == before + RUNS
    assert_landed_once(lake, filled, dict.fromkeys(range(RUNS), base + EACH))
    assert_files_are_whole(lake.table())


def test_three_runs_at_once_whose_ranges_overlap_in_part(lake: Lake, filled: str, base: int) -> None:
    readers = [[0, 1], [1, 2], [2, 0]]
    jobs = [
        replace(job, reader=OnlyPartitions(job.reader, partitions))
        for job, partitions in zip(meeting_jobs(lake, filled), readers, strict=True)
    ]

    reports = at_once(jobs)

    assert sum(report.counts.written for report in reports) == RUNS * EACH
    assert_landed_once(lake, filled, dict.fromkeys(range(RUNS), base + EACH))
    assert_files_are_whole(lake.table())


def test_three_runs_at_once_of_different_sizes_and_several_commits(lake: Lake, filled: str, base: int) -> None:
    sizes = [3, 5, 7]
    jobs = [
        replace(job, reader=SmallChunks(job.reader, size))
        for job, size in zip(meeting_jobs(lake, filled, checkpoint_interval=0), sizes, strict=True)
    ]

    reports = at_once(jobs)

    assert sum(report.counts.written for report in reports) == RUNS * EACH
    assert_landed_once(lake, filled, dict.fromkeys(range(RUNS), base + EACH))
    assert_files_are_whole(lake.table())


def test_two_runs_that_both_make_the_namespace(lake: Lake, filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Both have looked twice, and found none: once for us, and once inside of PyIceberg.
    barrier = threading.Barrier(2, timeout=60)

    def meeting() -> Catalog:
        catalog = lake.catalog()
        looks = iter(range(2))
        look = catalog.namespace_exists

        def namespace_exists(namespace: Any) -> bool:
            found = look(namespace)
            if next(looks, None) is not None:
                barrier.wait()
            return found

        monkeypatch.setattr(catalog, "namespace_exists", namespace_exists)
        return catalog

    reports = at_once([lake.job(filled, catalog=meeting()) for _ in range(2)])
    assert sorted(report.counts.written for report in reports) == [0, RUNS * EACH]
    assert_landed_once(lake, filled, ALL)
    assert_files_are_whole(lake.table())


@pytest.mark.parametrize("retries", [0, 4], ids=["no retries", "4 retries"])
@pytest.mark.parametrize("change", [append_foreign_rows, compact], ids=["append", "compaction"])
def test_another_writer_between_plan_and_commit(
    lake: Lake, filled: str, produce: Producing, change: Callable[[Table], None], retries: int
) -> None:
    lake.land(filled)
    produce(filled, 0, events(0, EACH, EACH))
    lake.table().transaction().set_properties({"commit.retry.num-retries": str(retries)}).commit_transaction()
    job = lake.job(filled, catalog=BeforeCommit(lake.catalog(), lambda: change(lake.table())))

    report = land(job)

    assert report.to_dict()["ranges"] == [[0, EACH, 2 * EACH]]
    assert len(lake.snapshots()) == 3, "rebased, not read again"
    assert_landed_once(lake, filled, ALL | {0: 2 * EACH})
    assert_files_are_whole(lake.table())
    assert lake.land(filled).snapshot_ids == []


def test_the_base_expires_between_plan_and_commit(lake: Lake, filled: str, produce: Producing) -> None:
    lake.land(filled)
    produce(filled, 0, events(0, EACH, EACH))

    def append_and_expire() -> None:
        (base,) = lake.snapshots()
        append_foreign_rows(lake.table())
        lake.table().maintenance.expire_snapshots().by_id(base).commit()

    lake.land(filled, catalog=BeforeCommit(lake.catalog(), append_and_expire))
    assert_landed_once(lake, filled, ALL | {0: 2 * EACH})
    assert lake.land(filled).snapshot_ids == []


def test_the_table_is_rolled_back_between_plan_and_commit(lake: Lake, filled: str, produce: Producing) -> None:
    (first,) = lake.land(filled).snapshot_ids
    produce(filled, 0, events(0, EACH, EACH))
    lake.land(filled)
    produce(filled, 0, events(0, 2 * EACH, EACH))

    def roll_back() -> None:
        lake.table().manage_snapshots().rollback_to_snapshot(first).commit()

    report = lake.land(filled, catalog=BeforeCommit(lake.catalog(), roll_back))

    # What it had read first, then the hole that the rollback made: a run ends when nothing is left up to its ends.
    assert report.to_dict()["ranges"] == [[0, EACH, 3 * EACH]]
    assert len(report.snapshot_ids) == 2
    assert_landed_once(lake, filled, ALL | {0: 3 * EACH})


def test_the_table_moves_and_is_rolled_back_to_the_base_before_the_commit(
    lake: Lake, filled: str, produce: Producing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (base,) = lake.land(filled).snapshot_ids
    produce(filled, 0, events(0, EACH, EACH))
    commit, disturbed = CommitGuard.commit_table, []

    def disturb(guard: CommitGuard, *request: Any) -> Any:
        if not disturbed:
            disturbed.append(True)
            append_foreign_rows(lake.table())
            lake.table().manage_snapshots().rollback_to_snapshot(base).commit()
        return commit(guard, *request)

    monkeypatch.setattr(CommitGuard, "commit_table", disturb)
    with caplog.at_level("WARNING"):
        report = lake.land(filled)

    assert report.to_dict()["ranges"] == [[0, EACH, 2 * EACH]]
    assert_landed_once(lake, filled, ALL | {0: 2 * EACH})
    assert "did not say whether it was applied" not in caplog.text


def add_a_column(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("remark", StringType())


def partition_by_name(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("name", IdentityTransform())


@pytest.mark.parametrize("change", [add_a_column, partition_by_name])
@pytest.mark.parametrize("when", ["before the files", "before the commit"])
def test_schema_or_partitioning_is_changed_between_plan_and_commit(
    lake: Lake, topic: Topics, produce: Producing, change: Callable[[Table], None], when: str
) -> None:
    name = topic(1)
    produce(name, 0, events(0, 0, EACH))
    lake.land(name)
    produce(name, 0, events(0, EACH, EACH))

    def action() -> None:
        change(lake.table())

    catalog = BeforeCommit(lake.catalog(), action) if when == "before the commit" else None
    job = lake.job(name, catalog=catalog)
    report = land(job if catalog else replace(job, sink=InterposedSink(job.sink, action)))

    assert report.counts.written == EACH
    assert_landed_once(lake, name, {0: 2 * EACH})
    assert_files_are_whole(lake.table())
    files = list(lake.table().scan().plan_files())
    spec: PartitionSpec = lake.table().spec()
    fitting = [task for task in files if task.file.spec_id == spec.spec_id]
    assert len(fitting) == (EACH if change is partition_by_name else 2), "written anew for the new layout"


def test_the_table_is_dropped_and_made_anew_between_plan_and_commit(lake: Lake, filled: str) -> None:
    lake.land(filled)

    def make_anew() -> None:
        table = lake.table()
        lake.catalog().drop_table("lake.events")
        lake.catalog().create_table("lake.events", table.schema(), location=table.location() + "-anew")

    catalog = BeforeCommit(lake.catalog(), make_anew)
    report = lake.land(filled, catalog=catalog, consumer_group="h", allow_group_overlap=True)
    assert report.counts.written == RUNS * EACH
    assert_landed_once(lake, filled, ALL, "h")
    assert_files_are_whole(lake.table())


def test_a_run_that_plans_anew_keeps_the_ends_of_its_first_look(lake: Lake, topic: Topics, produce: Producing) -> None:
    # Else a topic that keeps growing could keep a run from ending, one conflict after the other.
    name = topic(1)
    produce(name, 0, events(0, 0, EACH))
    lake.land(name)
    produce(name, 0, events(0, EACH, EACH))

    def change_and_grow() -> None:
        add_a_column(lake.table())
        produce(name, 0, events(0, 2 * EACH, EACH))

    report = lake.land(name, catalog=BeforeCommit(lake.catalog(), change_and_grow))

    assert report.to_dict()["ranges"] == [[0, EACH, 2 * EACH]]
    assert report.remaining_lag == EACH
    assert_landed_once(lake, name, {0: 2 * EACH})
