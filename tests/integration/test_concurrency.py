"""Several runs of one group at once, and other writers between a run's plan and its commit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import IdentityTransform

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.report import LandingReport
from airflow_lakestream.iceberg.commit.guard import CommitGuard
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.faults import InterposedSink, OnlyPartitions, SmallChunks, before
from tests.support.lake import Lake, assert_landed_once, events

pytestmark = pytest.mark.integration

RUNS = 3
EACH = 20


def at_once(jobs: list[LandingJob]) -> list[LandingReport]:
    """Run the jobs in threads."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(land, jobs))


def meeting_jobs(lake: Lake, topic: str, runs: int = RUNS, **config: Any) -> list[LandingJob]:
    """Return runs that come to their first commit together."""
    barrier = threading.Barrier(runs, timeout=60)
    return [lake.job(topic, f"run-{n}", catalog=lake.failing(before(barrier.wait)), **config) for n in range(runs)]


@pytest.fixture
def filled(topic: Topics, produce: Producing) -> str:
    """Give a topic of as many partitions as runs, with records in each."""
    name = topic(RUNS)
    for partition in range(RUNS):
        produce(name, partition, events(partition, 0, EACH))
    return name


ALL = dict.fromkeys(range(RUNS), EACH)


@pytest.fixture(params=["no table yet", "group's first landing", "group has landed before"])
def base(request: pytest.FixtureRequest, lake: Lake, topic_of: TopicOf, produce: Producing, filled: str) -> int:
    """Prepare what the runs find; return how many records of each partition have landed already."""
    if request.param == "no table yet":
        return 0
    if request.param == "group's first landing":
        other = topic_of(events(0, 0, 1))
        lake.land(other, consumer_group="other")
        return 0
    lake.land(filled)
    for partition in range(RUNS):
        produce(filled, partition, events(partition, EACH, EACH))
    return EACH


@EACH_FORMAT
@pytest.mark.parametrize(
    ("partitions", "commits"),
    [([[0, 1, 2]] * RUNS, 1), ([[0], [1], [2]], RUNS), ([[0, 1], [1, 2], [2, 0]], None)],
    ids=["the same ranges", "different ranges", "ranges that overlap in part"],
)
def test_three_runs_at_once(
    lake: Lake, filled: str, base: int, partitions: list[list[int]], commits: int | None
) -> None:
    there = len(lake.snapshots())
    jobs = [
        replace(job, reader=OnlyPartitions(job.reader, some))
        for job, some in zip(meeting_jobs(lake, filled), partitions, strict=True)
    ]

    reports = at_once(jobs)

    assert sum(report.counts.written for report in reports) == RUNS * EACH
    assert commits in (None, len(lake.snapshots()) - there)
    if commits == RUNS:
        assert [report.to_dict()["ranges"] for report in reports] == [[[n, base, base + EACH]] for n in range(RUNS)]
    assert_landed_once(lake, filled, dict.fromkeys(range(RUNS), base + EACH))
    lake.assert_whole()


@EACH_FORMAT
def test_three_runs_at_once_of_different_sizes_and_several_commits(lake: Lake, filled: str, base: int) -> None:
    sizes = [3, 5, 7]
    jobs = [
        replace(job, reader=SmallChunks(job.reader, size))
        for job, size in zip(meeting_jobs(lake, filled, checkpoint_interval=0), sizes, strict=True)
    ]

    reports = at_once(jobs)

    assert sum(report.counts.written for report in reports) == RUNS * EACH
    assert_landed_once(lake, filled, dict.fromkeys(range(RUNS), base + EACH))
    lake.assert_whole()


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
    lake.assert_whole()


@pytest.mark.parametrize("retries", [0, 4], ids=["no retries", "4 retries"])
@pytest.mark.parametrize("change", [Lake.append_foreign, Lake.compact], ids=["append", "compaction"])
def test_another_writer_between_plan_and_commit(
    lake: Lake, filled: str, produce: Producing, change: Callable[[Lake], None], retries: int
) -> None:
    lake.land(filled)
    produce(filled, 0, events(0, EACH, EACH))
    lake.table().transaction().set_properties({"commit.retry.num-retries": str(retries)}).commit_transaction()
    job = lake.job(filled, catalog=lake.failing(before(lambda: change(lake))))

    report = land(job)

    assert report.to_dict()["ranges"] == [[0, EACH, 2 * EACH]]
    assert len(lake.snapshots()) == 3, "rebased, not read again"
    assert_landed_once(lake, filled, ALL | {0: 2 * EACH})
    lake.assert_whole()
    assert lake.land(filled).snapshot_ids == []


def test_the_base_expires_between_plan_and_commit(lake: Lake, filled: str, produce: Producing) -> None:
    lake.land(filled)
    produce(filled, 0, events(0, EACH, EACH))

    def append_and_expire() -> None:
        (base,) = lake.snapshots()
        lake.append_foreign()
        lake.table().maintenance.expire_snapshots().by_id(base).commit()

    lake.land(filled, catalog=lake.failing(before(append_and_expire)))
    assert_landed_once(lake, filled, ALL | {0: 2 * EACH})
    assert lake.land(filled).snapshot_ids == []


def test_the_table_is_rolled_back_between_plan_and_commit(lake: Lake, filled: str, produce: Producing) -> None:
    (first,) = lake.land(filled).snapshot_ids
    produce(filled, 0, events(0, EACH, EACH))
    lake.land(filled)
    produce(filled, 0, events(0, 2 * EACH, EACH))

    def roll_back() -> None:
        lake.roll_back(first)

    report = lake.land(filled, catalog=lake.failing(before(roll_back)))

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
            lake.append_foreign()
            lake.roll_back(base)
        return commit(guard, *request)

    monkeypatch.setattr(CommitGuard, "commit_table", disturb)
    with caplog.at_level("WARNING"):
        report = lake.land(filled)

    assert report.to_dict()["ranges"] == [[0, EACH, 2 * EACH]]
    assert_landed_once(lake, filled, ALL | {0: 2 * EACH})
    assert "did not report whether it was applied" not in caplog.text


def add_a_column(lake: Lake) -> None:
    lake.add_column("remark")


def partition_by_name(lake: Lake) -> None:
    with lake.table().update_spec() as update:
        update.add_field("name", IdentityTransform())


@pytest.mark.parametrize("change", [add_a_column, partition_by_name])
@pytest.mark.parametrize("when", ["before the files", "before the commit"])
def test_schema_or_partitioning_is_changed_between_plan_and_commit(
    lake: Lake, topic_of: TopicOf, produce: Producing, change: Callable[[Lake], None], when: str
) -> None:
    name = topic_of(events(0, 0, EACH))
    lake.land(name)
    produce(name, 0, events(0, EACH, EACH))

    def action() -> None:
        change(lake)

    catalog = lake.failing(before(action)) if when == "before the commit" else None
    job = lake.job(name, catalog=catalog)
    report = land(job if catalog else replace(job, sink=InterposedSink(job.sink, action)))

    assert report.counts.written == EACH
    assert_landed_once(lake, name, {0: 2 * EACH})
    lake.assert_whole()
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

    catalog = lake.failing(before(make_anew))
    report = lake.land(filled, catalog=catalog, consumer_group="h", allow_group_overlap=True)
    assert report.counts.written == RUNS * EACH
    assert_landed_once(lake, filled, ALL, "h")
    lake.assert_whole()


def test_a_run_that_plans_anew_keeps_the_ends_of_its_first_look(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    # Else a topic that keeps growing could keep a run from ending, one conflict after the other.
    name = topic_of(events(0, 0, EACH))
    lake.land(name)
    produce(name, 0, events(0, EACH, EACH))

    def change_and_grow() -> None:
        add_a_column(lake)
        produce(name, 0, events(0, 2 * EACH, EACH))

    report = lake.land(name, catalog=lake.failing(before(change_and_grow)))

    assert report.to_dict()["ranges"] == [[0, EACH, 2 * EACH]]
    assert report.remaining_lag == EACH
    assert_landed_once(lake, name, {0: 2 * EACH})
