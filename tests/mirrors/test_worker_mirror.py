"""Mirrors in the worker, in Iceberg and Delta: killed runs, runs at once, and Spark on the same mirror."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.ledger import LandingEngine
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError
from airflow_lakestream.spark.micro_batch import MicroBatches
from tests.support.broker import Producing, Topics
from tests.support.cdc import Source, change
from tests.support.faults import InterposedSink, SmallChunks, before, passed
from tests.support.killed_run import DEADLY, POINTS, run_until_killed
from tests.support.mirror_lake import MirrorLake
from tests.support.spark import InterposedReaders, SparkRun

pytestmark = pytest.mark.integration

# Commits each few hundred bytes: batches end within what belongs together.
SMALL = {"max_batch_bytes": 3_000}
CHUNK = 10


@pytest.fixture
def source() -> Source:
    """Give a table of a database."""
    return Source()


CASES = [("iceberg", point, number) for point in POINTS for number in (1, 2, 3)]
CASES += [("delta", point, number) for point in DEADLY for number in (1, 2)]
for once in ("after the plan", "before the mirror"):
    CASES.remove(("iceberg", once, 2))
    CASES.remove(("iceberg", once, 3))
# Two commits of the mirror, and one of its memory before the second.
CASES.remove(("iceberg", "while reading", 3))


@pytest.mark.parametrize(("mirror_lake", "point", "number"), CASES, indirect=["mirror_lake"])
def test_a_killed_run_tried_again_applies_each_event_once(
    point: str, number: int, mirror_lake: MirrorLake, topic: Topics, produce: Producing, source: Source
) -> None:
    lake, name = mirror_lake, topic(1)
    end = len(produce(name, 0, source.changes(60)))
    lake.land(name)
    there = len(lake.snapshots())
    end += len(produce(name, 0, source.changes(60)))
    run_until_killed(lake, topic=name, run_id="r", config=SMALL, chunk=CHUNK, point=point, number=number)
    landed = len(lake.snapshots()) - there

    report = lake.land(name, "r", **SMALL)

    lake.assert_is(source)
    lake.assert_whole(leftovers_of_a_kill=True)
    assert lake.landed(name) == {0: [(0, end)]}
    assert (report.recovered, report.remaining_lag) == (landed, 0)


def test_an_error_before_a_commit_leaves_no_file(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, source: Source
) -> None:
    lake, name = mirror_lake, topic(1)
    produce(name, 0, source.changes(60))
    lake.land(name)
    produce(name, 0, [*source.changes(60), change("d", {"no": 1}, 1_000)])
    with pytest.raises(LakestreamError, match="offset"):
        lake.land(name)
    lake.assert_whole()
    assert len(lake.snapshots()) == 1


def test_a_run_whose_events_another_one_has_applied_meanwhile_applies_the_rest(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, source: Source
) -> None:
    lake, name = mirror_lake, topic(1)
    begin = len(produce(name, 0, source.changes(60)))
    lake.land(name)
    end = begin + len(produce(name, 0, source.changes(60)))
    job = lake.job(name)

    def other() -> None:
        assert lake.land(name, max_records=30).counts.read == 30

    report = land(replace(job, sink=InterposedSink(job.sink, other)))

    assert report.to_dict()["ranges"] == [[0, begin + 30, end]]
    lake.assert_is(source)
    lake.assert_whole()


def test_events_that_come_again_take_no_row_back(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, source: Source
) -> None:
    lake, name = mirror_lake, topic(1)
    events = source.changes(90)
    produce(name, 0, events)
    lake.land(name)
    # As of a connector that was killed: it begins where it has last said how far it is.
    produce(name, 0, events[30:])

    while lake.land(name, max_records=10).counts.read:
        lake.assert_is(source)

    lake.assert_whole()


class Died(BaseException):
    """The end of a process, for nobody to handle."""


def die() -> None:
    raise Died


@pytest.mark.parametrize("wins", ["the first", "the second"])
def test_two_first_runs_at_once_forget_no_deletion(
    wins: str, mirror_lake: MirrorLake, topic: Topics, produce: Producing
) -> None:
    lake, name = mirror_lake, topic(1)
    created = [change("c", {"id": n, "total": n}, n) for n in (1, 2)]
    produce(name, 0, [*created, change("d", {"id": 1}, 3)])

    def other() -> None:
        if wins == "the second":
            lake.land(name)
            return
        # It has written its deletions down, and dies before its commit.
        with pytest.raises(Died):
            lake.land(name, catalog=lake.failing(*[passed] * lake.commits_before_main, before(die)))

    if wins == "the second":
        job = lake.job(name)
        land(replace(job, sink=InterposedSink(job.sink, other)))
    else:
        lake.land(name, catalog=lake.failing(*[passed] * lake.commits_before_main, before(other)))

    # Older than its row's deletion.
    produce(name, 0, [change("u", {"id": 1, "total": 7}, 2)])
    lake.land(name)
    assert [row["id"] for row in lake.scan().to_pylist()] == [2]


def test_a_new_mirror_is_partitioned_by_a_column_that_no_given_type_is_for(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, [change("c", {"id": n, "total": n, "day": "2026-01-01"}, n) for n in (1, 2)])
    mirror_lake.land(name, schema="day string", partition_by=["total"], sort_order=["id"])
    assert sorted(row["id"] for row in mirror_lake.scan().to_pylist()) == [1, 2]


def truncation(place: int) -> bytes:
    return change("t", {}, place).replace(b'"after":{}', b'"after":null')


OF_NO_ROW = [None, b'{"ts_ms":1700000000000}', None]


@pytest.mark.parametrize("given", [{}, {"key": None}])
def test_a_topic_that_begins_with_tombstones_and_heartbeats_waits_for_a_row(
    given: dict[str, Any], mirror_lake: MirrorLake, topic: Topics, produce: Producing, source: Source
) -> None:
    lake, name = mirror_lake, topic(1)
    produce(name, 0, OF_NO_ROW, keys=['{"id":1}'] * 3)
    for _ in range(2):
        report = lake.land(name, max_records=2, **given)
        assert (report.snapshot_ids, report.lacks_columns, report.remaining_lag) == ([], True, 3)
    assert lake.has_nothing()
    changes = source.changes(5)
    produce(name, 0, changes, keys=['{"id":1}'] * len(changes))
    report = lake.land(name, **given)
    assert (report.counts.read, report.counts.skipped) == (8, 3)
    lake.assert_is(source)
    assert lake.landed(name) == {0: [(0, 8)]}


@pytest.mark.parametrize("given", [{}, {"key": None}])
def test_a_topic_that_begins_with_truncations_waits_for_a_row_and_drops_what_is_older(
    given: dict[str, Any], mirror_lake: MirrorLake, topic: Topics, produce: Producing
) -> None:
    lake, name = mirror_lake, topic(2)
    produce(name, 0, [truncation(9), truncation(10)])
    for _ in range(2):
        report = lake.land(name, max_records=1, **given)
        assert (report.snapshot_ids, report.lacks_columns, report.remaining_lag) == ([], True, 2)
    assert lake.has_nothing()
    # The older of them was in the table when it was truncated.
    created = [change("c", {"id": n, "total": n}, place) for n, place in ((1, 5), (2, 15))]
    produce(name, 1, created, keys=['{"id":1}', '{"id":2}'])
    report = lake.land(name, **given)
    assert (report.counts.read, report.counts.skipped) == (4, 0)
    assert [row["id"] for row in lake.scan().to_pylist()] == [2]
    assert lake.landed(name) == {0: [(0, 2)], 1: [(0, 2)]}


def test_a_new_mirror_whose_records_have_no_key_is_refused_by_name(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, [change("c", {"id": 1, "total": 1}, 1)])
    with pytest.raises(InvalidArgument, match=r"key: .*events is new, and the keys of its records do not contain"):
        mirror_lake.land(name, key=None)
    assert mirror_lake.has_nothing()


def test_with_columns_and_key_given_tombstones_alone_make_the_mirror(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, OF_NO_ROW)
    assert mirror_lake.land(name, schema="id bigint, total bigint").counts.skipped == 3
    assert mirror_lake.scan().num_rows == 0


def test_executors_wait_for_a_row_too(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, source: Source, spark: SparkSession
) -> None:
    lake, name = mirror_lake, topic(1)
    run = SparkRun(lake, name, {"key": ["id"]}, {"app": lake.app})
    produce(name, 0, [*OF_NO_ROW, truncation(0)])
    run.run(spark)
    assert lake.has_nothing()
    produce(name, 0, source.changes(5))
    run.run(spark)
    lake.assert_is(source)
    assert lake.landed(name) == {0: [(0, 9)]}


def test_runs_at_once_apply_each_event_once(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, source: Source
) -> None:
    lake, name = mirror_lake, topic(1)
    first = len(produce(name, 0, source.changes(60)))
    lake.land(name)
    count = len(produce(name, 0, source.changes(200)))
    barrier = threading.Barrier(3, timeout=60)
    jobs = [
        lake.job(name, f"run-{n}", catalog=lake.failing(before(barrier.wait)), checkpoint_interval=0) for n in range(3)
    ]
    jobs = [replace(job, reader=SmallChunks(job.reader, 30 + 20 * n)) for n, job in enumerate(jobs)]

    with ThreadPoolExecutor(3) as pool:
        reports = list(pool.map(land, jobs))

    assert sum(report.counts.read for report in reports) == count
    assert lake.landed(name) == {0: [(0, first + count)]}
    lake.assert_is(source)
    lake.assert_whole()


def test_spark_and_worker_take_over_from_each_other(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, source: Source, spark: SparkSession
) -> None:
    lake, name = mirror_lake, topic(1)
    run = SparkRun(lake, name, {"key": ["id"]}, {"app": lake.app})
    end = 0
    # By turns, each after itself, and each as the one that makes the table or finds it.
    for engine in (
        LandingEngine.EXTRACT,
        LandingEngine.SPARK,
        LandingEngine.SPARK,
        LandingEngine.EXTRACT,
        LandingEngine.EXTRACT,
        LandingEngine.SPARK,
    ):
        begin, end = end, end + len(produce(name, 0, source.changes(40)))
        if engine is LandingEngine.SPARK:
            run.run(spark)
        else:
            assert lake.land(name).to_dict()["ranges"] == [[0, begin, end]]
        lake.assert_is(source)
        assert lake.landed(name) == {0: [(0, end)]}

    # The worker applies a part of what Spark has read, before Spark commits.
    begin, end = end, end + len(produce(name, 0, source.changes(40)))
    batches = MicroBatches(run.config(), spark)
    batches.readers = InterposedReaders(batches.readers, lambda: lake.land(name, max_records=20))
    assert batches.land(uuid.uuid4().hex).to_dict()["ranges"] == [[0, begin + 20, end]]
    lake.assert_is(source)
    lake.assert_whole()
