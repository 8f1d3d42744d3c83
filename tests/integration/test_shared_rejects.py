"""Rejected records of a run that several workers share: kept once, by the one commit, whoever dies on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.names import REJECTED
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from tests.integration.test_rejects import FailingMain
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.faults import InterposedReader, SmallChunks
from tests.support.lake import Lake, events
from tests.support.shared_run import SharedRun, read, read_until_killed

pytestmark = pytest.mark.integration

CONFIG = {"schema": "id bigint, name string, score double"}
BAD = list(range(0, 1000, 50))
COUNTS = Counts(read=1000, written=1000 - len(BAD), rejected=len(BAD))


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    made = topic(1)
    values = events(0, 0, 1000)
    for n in BAD:
        values[n] = "not json"
    produce(made, 0, values)
    return made


def assert_kept_once(lake: Lake, run: SharedRun) -> None:
    assert sorted(lake.scan()["_kafka_offset"].to_pylist()) == [n for n in range(1000) if n not in BAD]
    assert sorted(lake.scan(REJECTED)["_kafka_offset"].to_pylist()) == BAD
    assert sorted(row["_kafka_offset"] for row in lake.counting()) == BAD
    [entry] = lake.ledger().topics.values()
    assert entry.counts == COUNTS
    # What was handed over is swept: the records are in the reject table.
    assert not [path for path in run.files() if path.endswith(".arrows")]


@EACH_FORMAT
def test_those_of_all_workers_land_once(lake: Lake, name: str) -> None:
    run, plan, pieces = read(SharedRun(lake, name, {**CONFIG, "partition_by": ["_kafka_partition"]}), 3)
    assert [path for path in run.files() if path.endswith(".arrows")]
    report = run.commit(plan, pieces)
    assert report.counts == COUNTS
    assert_kept_once(lake, run)
    # Another try of the commit finds its landing.
    assert run.commit(plan, pieces).counts == COUNTS
    assert_kept_once(lake, run)


def test_a_worker_that_is_killed_and_one_that_reads_twice_change_nothing(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name, CONFIG)
    plan = run.plan(3)
    read_until_killed(run, plan.shares[0])
    run.read(plan.shares[1])
    run.commit(plan, run.read_all(plan))
    assert_kept_once(lake, run)


def test_a_worker_that_fails_takes_its_rejected_records_along(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name, CONFIG)
    plan = run.plan(1)

    def fail() -> None:
        raise OSError("no space left")

    def failing(job: LandingJob) -> LandingJob:
        return replace(job, reader=InterposedReader(SmallChunks(job.reader, 50), fail, 10))

    with pytest.raises(OSError, match="no space"):
        run.read(plan.shares[0], failing)
    assert run.files() == set()


@pytest.mark.parametrize("applies", [False, True])
def test_a_commit_whose_outcome_is_unknown(lake: Lake, name: str, applies: bool) -> None:
    lake.land(name, mode="ranges", ranges=[[0, 1, 2]], **CONFIG)
    run, plan, pieces = read(SharedRun(lake, name, CONFIG), 3)
    dying = SharedRun(lake, name, {**CONFIG, "catalog": FailingMain(lake.catalog(), applies=applies)}, run.run_id)
    with pytest.raises(CommitOutcomeUnknown):
        dying.commit(plan, pieces)
    run.commit(plan, pieces)
    assert_kept_once(lake, run)
