"""A run that several workers share: one snapshot, each record once, whatever fails, runs twice or comes in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from threading import Event
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.transforms import BucketTransform

from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.landing.plan import DataLoss, Plan, TopicReplaced
from airflow_lakestream.core.ports import RecordChunk, RecordReader
from airflow_lakestream.core.ranges import OffsetRange
from airflow_lakestream.core.sharing.parallel import TableGone, plan_shares
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from airflow_lakestream.tables import row_buffer
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.faults import FAILED, DyingCatalog, InterposedReader, SmallChunks, before, unapplied
from tests.support.lake import Lake, assert_landed_once, events
from tests.support.shared_run import SharedRun, read, read_until_killed

pytestmark = pytest.mark.integration

COUNTS = {0: 900, 1: 40, 2: 60}
HOUR = 3_600_000
# Some whole hours ago: older records would fall to retention.
START = int(time.time() * 1000) // HOUR * HOUR - 6 * HOUR


class Broken(Exception):
    """What a test breaks a reader with."""


class Unread:
    """A reader that must not be needed."""

    def read(self, plan: Plan, cancelled: Event) -> Iterator[RecordChunk]:
        assert not plan.ranges, f"read again: {plan.ranges}"
        return
        yield


class Recorded:
    """A reader that notes the ranges that it is asked for."""

    def __init__(self, reader: RecordReader) -> None:
        self._reader = reader
        self.asked: list[OffsetRange] = []

    def read(self, plan: Plan, cancelled: Event) -> Iterator[RecordChunk]:
        self.asked += plan.ranges
        return self._reader.read(plan, cancelled)


def without_reading(job: LandingJob) -> LandingJob:
    return replace(job, reader=Unread())


@pytest.fixture
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic whose first partition holds nearly all."""
    made = topic(3)
    for partition, count in COUNTS.items():
        produce(made, partition, events(partition, 0, count))
    return made


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sink write its rows out at once, as it does with large chunks."""
    monkeypatch.setattr(row_buffer, "FILE_BYTES", 1)


@EACH_FORMAT
def test_all_shares_land_in_one_snapshot_and_nothing_is_read_again(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name)
    plan = run.plan(4)
    assert [share.ranges.width for share in plan.shares] == [250] * 4
    founded = lake.snapshots()

    pieces = run.read_all(plan)
    assert lake.snapshots() == founded
    report = run.commit(plan, pieces, without_reading)

    assert_landed_once(lake, name, COUNTS)
    assert lake.snapshots() == [*founded, *report.snapshot_ids]
    assert len(report.snapshot_ids) == 1
    assert (report.counts.read, report.remaining_lag) == (1000, 0)
    assert lake.live_files() == run.files()
    lake.assert_whole()
    assert lake.committed_offsets(name) == COUNTS


def test_a_share_becomes_several_pieces_as_the_limits_ask(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name, {"max_batch_bytes": 3000})
    plan = run.plan(1)
    pieces = run.read(plan.shares[0], lambda job: replace(job, reader=SmallChunks(job.reader, 20)))
    assert len(pieces) > 10
    assert len(run.commit(plan, pieces, without_reading).snapshot_ids) == 1
    assert_landed_once(lake, name, COUNTS)


@EACH_FORMAT
def test_what_was_read_twice_lands_once_and_the_other_files_go(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name)
    plan = run.plan(2)
    run.read(plan.shares[0])
    pieces = run.read_all(plan)
    assert len(run.files()) > len(pieces)
    # The first share once more, as if both tries had been heard of.
    run.commit(plan, [*pieces, *run.read(plan.shares[0])], without_reading)
    assert_landed_once(lake, name, COUNTS)
    assert lake.live_files() == run.files()


@pytest.mark.usefixtures("small_files")
def test_a_share_that_fails_leaves_no_file_and_lands_nothing(lake: Lake, name: str) -> None:
    def fail() -> None:
        raise Broken

    run = SharedRun(lake, name, {"max_batch_bytes": 500})
    plan = run.plan(2)
    before = lake.snapshots()
    others = run.read(plan.shares[1])
    files = run.files()
    with pytest.raises(Broken):
        run.read(
            plan.shares[0],
            lambda job: replace(job, reader=InterposedReader(SmallChunks(job.reader, 5), fail, 30)),
        )
    assert run.files() == files
    assert lake.snapshots() == before
    # Whoever commits all the same lands all: what was not handed over it reads itself.
    report = run.commit(plan, others)
    assert len(report.snapshot_ids) == 1
    assert_landed_once(lake, name, COUNTS)


def test_files_of_a_killed_reader_are_swept_by_the_commit(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name)
    plan = run.plan(2)
    read_until_killed(run, plan.shares[0])
    left = run.files()
    assert left
    run.commit(plan, run.read_all(plan), without_reading)
    assert_landed_once(lake, name, COUNTS)
    assert not left & run.files()
    assert lake.live_files() == run.files()


def test_a_piece_overlapped_meanwhile_is_dropped_and_the_rest_is_kept(lake: Lake, name: str) -> None:
    run, plan, pieces = read(SharedRun(lake, name), 4)
    lake.land(name, mode="ranges", ranges=[[0, 300, 310]])
    others = lake.live_files()
    reading: list[Recorded] = []

    def recorded(job: LandingJob) -> LandingJob:
        reading.append(Recorded(job.reader))
        return replace(job, reader=reading[0])

    run.commit(plan, pieces, recorded)
    assert_landed_once(lake, name, COUNTS)
    assert reading[0].asked == [OffsetRange(name, 0, 250, 300), OffsetRange(name, 0, 310, 500)]
    assert others <= lake.live_files()
    assert run.files() <= lake.live_files()
    lake.assert_whole()


def test_another_landing_at_the_moment_of_the_commit_changes_nothing(lake: Lake, name: str) -> None:
    run, plan, pieces = read(SharedRun(lake, name), 4)

    def raced(job: LandingJob) -> LandingJob:
        land = lake.failing(before(lambda: lake.land(name, mode="ranges", ranges=[[0, 300, 310]])))
        return replace(job, sink=lake.job(name, run.run_id, catalog=land).sink)

    run.commit(plan, pieces, raced)
    assert_landed_once(lake, name, COUNTS)
    assert run.files() <= lake.live_files()
    assert len(run.files()) >= 3


def partition_anew(lake: Lake) -> None:
    lake.table().update_spec().add_field("id", BucketTransform(4)).commit()


def add_a_column(lake: Lake) -> None:
    lake.add_column("more")


@pytest.mark.parametrize(
    ("lake", "change"),
    [("iceberg", add_a_column), ("iceberg", partition_anew), ("delta", add_a_column)],
    indirect=["lake"],
)
def test_files_for_another_schema_or_spec_are_not_used(
    lake: Lake, name: str, change: Callable[[Lake], None], caplog: pytest.LogCaptureFixture
) -> None:
    run, plan, pieces = read(SharedRun(lake, name), 2)
    change(lake)
    with caplog.at_level(logging.WARNING):
        run.commit(plan, pieces)
    assert "was changed since they were written" in caplog.text
    assert_landed_once(lake, name, COUNTS)
    assert run.files() == set()
    lake.assert_whole()


def test_a_table_dropped_meanwhile_gets_none_of_the_files(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name)
    plan = run.plan(2)
    pieces = run.read(plan.shares[0])
    lake.catalog().drop_table("lake.events")
    with pytest.raises(TableGone):
        run.read(plan.shares[1])
    # Made anew, with the same ids of schema and spec, and at the same place.
    lake.land(name, mode="ranges", ranges=[[2, 0, 1]])
    run.commit(plan, pieces)
    assert_landed_once(lake, name, COUNTS)
    assert run.files() == set()


@EACH_FORMAT
def test_a_commit_run_again_keeps_what_it_landed_and_says_so_again(lake: Lake, name: str) -> None:
    run, plan, pieces = read(SharedRun(lake, name), 2)
    first = run.commit(plan, pieces)
    again = run.commit(plan, pieces, without_reading)
    assert again.snapshot_ids == first.snapshot_ids
    assert again.counts == first.counts
    assert_landed_once(lake, name, COUNTS)
    assert lake.live_files() == run.files()


def test_a_rolled_back_landing_lands_again_from_its_files(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name)
    plan = run.plan(2)
    founded = lake.snapshots()[-1]
    pieces = run.read_all(plan)
    run.commit(plan, pieces)
    lake.roll_back(founded)
    run.commit(plan, pieces, without_reading)
    assert_landed_once(lake, name, COUNTS)
    assert lake.live_files() == run.files()


def test_files_in_a_snapshot_that_was_rolled_back_are_never_swept(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name)
    plan = run.plan(2)
    founded = lake.snapshots()[-1]
    run.commit(plan, run.read_all(plan))
    landed, files = lake.snapshots()[-1], run.files()
    lake.roll_back(founded)
    run.commit(plan, run.read_all(plan))
    assert files < run.files()
    lake.table().manage_snapshots().set_current_snapshot(landed).commit()
    assert_landed_once(lake, name, COUNTS)


class NeverSwept:
    """A sink of which nothing may be swept; the catalog of the test is too dead for it, a real one may be back."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def sweep(self, folder: str) -> None:
        pytest.fail(f"{folder} was swept")


@pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])
def test_an_unknown_outcome_deletes_nothing_and_the_next_try_finds_out(lake: Lake, name: str, applied: bool) -> None:
    run = SharedRun(lake, name)
    plan = run.plan(2)
    orphans = run.read(plan.shares[0])
    pieces = run.read_all(plan)
    files = run.files()
    assert orphans

    def dying(job: LandingJob) -> LandingJob:
        catalog = DyingCatalog(lake.catalog(), applied=applied)
        return replace(job, sink=NeverSwept(lake.job(name, run.run_id, catalog=catalog).sink))

    with pytest.raises(CommitOutcomeUnknown):
        run.commit(plan, pieces, dying)
    assert run.files() == files
    run.commit(plan, pieces, without_reading)
    assert_landed_once(lake, name, COUNTS)
    assert lake.live_files() == run.files()


def test_a_refused_commit_is_tried_again_with_the_same_files(lake: Lake, name: str) -> None:
    run, plan, pieces = read(SharedRun(lake, name), 2)

    def refused(job: LandingJob) -> LandingJob:
        catalog = lake.failing(*[unapplied(FAILED)] * 3)
        return replace(job, sink=lake.job(name, run.run_id, catalog=catalog).sink)

    run.commit(plan, pieces, lambda job: without_reading(refused(job)))
    assert_landed_once(lake, name, COUNTS)
    assert lake.live_files() == run.files()


def test_offsets_that_kafka_lost_after_they_were_read_land_all_the_same(
    lake: Lake, name: str, admin: AdminClient
) -> None:
    run, plan, pieces = read(SharedRun(lake, name), 2)
    for future in admin.delete_records([TopicPartition(name, p, count) for p, count in COUNTS.items()]).values():
        future.result(30)
    report = run.commit(plan, pieces, without_reading)
    assert not report.entry.lost
    assert_landed_once(lake, name, COUNTS)


def test_an_interval_completes(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(2)
    for partition in (0, 1):
        produce(name, partition, events(partition, 0, 300), timestamps=[START + n * 20_000 for n in range(300)])
    config = {"mode": "interval", "interval_start": START, "interval_end": START + HOUR}
    run = SharedRun(lake, name, config)
    plan = run.plan(3)
    assert sum(share.ranges.width for share in plan.shares) == 2 * 180
    report = run.commit(plan, run.read_all(plan), without_reading)
    assert (report.completes, report.remaining_lag, report.counts.read) == (True, 0, 360)
    assert len(report.snapshot_ids) == 1
    assert_landed_once(lake, name, {0: 180, 1: 180})


def test_an_open_interval_is_covered_and_its_seam_is_closed(lake: Lake, topic_of: TopicOf, produce: Producing) -> None:
    name = topic_of(events(0, 0, 100), timestamps=[START + n for n in range(100)])
    first = SharedRun(lake, name, {"mode": "interval", "interval_start": START, "interval_end": START + HOUR})
    plan = first.plan(2)
    pieces = first.read_all(plan)
    # After the plan: the first interval's end was open, and its run looks once more.
    produce(name, 0, events(0, 100, 50), timestamps=[START + n for n in range(100, 150)])
    report = first.commit(plan, pieces)
    assert not report.completes
    assert_landed_once(lake, name, {0: 150})
    produce(name, 0, events(0, 150, 50), timestamps=[START + n for n in range(150, 200)])
    produce(name, 0, events(0, 200, 50), timestamps=[START + HOUR + n for n in range(50)])
    produce(name, 0, events(0, 250, 1), timestamps=[START + 2 * HOUR])
    second = SharedRun(
        lake, name, {"mode": "interval", "interval_start": START + HOUR, "interval_end": START + 2 * HOUR}
    )
    plan = second.plan(2)
    assert second.commit(plan, second.read_all(plan), without_reading).completes
    assert_landed_once(lake, name, {0: 250})


def test_most_records_bound_the_plan_and_the_rest_stays(lake: Lake, name: str, produce: Producing) -> None:
    run = SharedRun(lake, name, {"max_records": 500})
    plan = run.plan(4)
    assert sum(share.ranges.width for share in plan.shares) == 500
    report = run.commit(plan, run.read_all(plan), without_reading)
    assert (report.counts.read, report.remaining_lag) == (500, 500)
    assert lake.landed(name) == {0: [(0, 450)], 1: [(0, 20)], 2: [(0, 30)]}
    # The run has had its records: cleared, it lands no more.
    again = run.plan(4)
    assert again.shares == []
    assert run.commit(again, []).snapshot_ids == report.snapshot_ids
    rest = SharedRun(lake, name)
    plan = rest.plan(4)
    rest.commit(plan, rest.read_all(plan))
    assert_landed_once(lake, name, COUNTS)


def test_what_comes_after_the_plan_stays_for_the_next_run(lake: Lake, name: str, produce: Producing) -> None:
    run, plan, pieces = read(SharedRun(lake, name), 2)
    produce(name, 1, events(1, COUNTS[1], 5))
    assert run.commit(plan, pieces, without_reading).remaining_lag == 5
    assert_landed_once(lake, name, COUNTS)


def test_the_plan_writes_down_where_the_group_begins(lake: Lake, name: str, produce: Producing) -> None:
    first = SharedRun(lake, name, {"start_offset": "latest", "schema": "id bigint, name string, score double"})
    plan = first.plan(2)
    assert (plan.shares, first.commit(plan, []).counts.read) == ([], 0)
    produce(name, 1, events(1, COUNTS[1], 5))
    second = SharedRun(lake, name, {"start_offset": "latest"})
    plan = second.plan(2)
    second.commit(plan, second.read_all(plan), without_reading)
    assert lake.landed(name) == {1: [(40, 45)]}


def test_what_kafka_lost_between_plan_and_commit_is_loud_though_nobody_landed_before(
    lake: Lake, name: str, topic_of: TopicOf, admin: AdminClient
) -> None:
    # The table is there, the topic's beginning is not written down in it yet.
    other = topic_of(events(0, 0, 5))
    lake.land(other)
    run = SharedRun(lake, name)
    plan = run.plan(2)
    for future in admin.delete_records([TopicPartition(name, 0, 50)]).values():
        future.result(30)
    with pytest.raises(DataLoss) as caught:
        run.commit(plan, [])
    assert list(caught.value.ranges) == [OffsetRange(name, 0, 0, 50)]


def test_another_run_that_creates_the_table_first_is_no_obstacle(lake: Lake, name: str) -> None:
    run = SharedRun(lake, name)
    catalog = lake.failing(before(lambda: lake.land(name, mode="ranges", ranges=[[0, 0, 100]])))
    plan = plan_shares(lake.job(name, run.run_id, catalog=catalog), 3, least_width=1)
    assert sum(share.ranges.width for share in plan.shares) == 900
    run.commit(plan, run.read_all(plan), without_reading)
    assert_landed_once(lake, name, COUNTS)
    lake.assert_whole()


def test_a_record_that_fits_no_row_leaves_nothing_of_its_share(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of([*events(0, 0, 100), "not json"])
    run = SharedRun(lake, name, {"schema": "id bigint, name string, score double", "on_error": "fail"})
    plan = run.plan(1)
    with pytest.raises(BadRecord):
        run.read(plan.shares[0])
    assert run.files() == set()


def test_nothing_to_read_makes_no_shares_and_no_table(lake: Lake, topic: Topics) -> None:
    run = SharedRun(lake, topic(1))
    plan = run.plan(4)
    assert plan.shares == []
    assert run.commit(plan, []).snapshot_ids == []
    assert lake.has_nothing()


@pytest.mark.parametrize(
    "config",
    [{"idle_timeout": 5}, {"mode": "ranges", "ranges": [[0, 0, 10]], "replace": True}],
    ids=["idle_timeout", "replace"],
)
def test_what_belongs_to_one_task_is_refused(lake: Lake, name: str, config: dict[str, object]) -> None:
    run = SharedRun(lake, name, config)
    with pytest.raises(InvalidArgument, match="Use KafkaExtractOperator"):
        run.plan(2)
    assert lake.has_nothing()


def test_a_share_of_a_topic_made_anew_is_not_read(lake: Lake, name: str, topic: Topics, produce: Producing) -> None:
    run = SharedRun(lake, name)
    plan = run.plan(2)
    topic.delete(name)
    topic(3, name=name)
    produce(name, 0, events(0, 0, 1000))
    with pytest.raises(TopicReplaced):
        run.read(plan.shares[0])
    assert run.files() == set()
