"""What another engine wrote to a branch gets on main with the ledger, each record once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

from airflow_lakestream.core.landing.job import MAX_CONFLICTS, Contention, Stopped
from airflow_lakestream.core.landing.plan import DataLoss
from airflow_lakestream.core.ledger import Counts, Landing, LandingEngine
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.publishing import publish as publishing
from airflow_lakestream.core.publishing.branch import BranchFile
from airflow_lakestream.core.publishing.publish import RowlessMeaning
from airflow_lakestream.core.publishing.refusals import (
    LandedAhead,
)
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit import committing
from airflow_lakestream.iceberg.commit.committing import CommitOutcomeUnknown
from airflow_lakestream.tables.schema.ddl import parse_schema
from tests.support.fault_log import Kind, PartitionLog
from tests.support.faults import FAILED, TIMEOUT, FaultyCatalog, applied, unapplied
from tests.support.lake import QUICK_RETRIES, compact
from tests.support.publishing import BRANCH, GROUP, TABLE, BegunWorld, World
from tests.support.replacing import ranges


@pytest.fixture
def world(begun: BegunWorld) -> World:
    return begun.again(20, 5)


def test_the_engine_begins_where_the_group_does_and_finds_table_and_branch(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.records(0, 3)
    world.log.trim(0, 2)
    assert world.begin() == {0: 2, 1: 0}
    assert world.table().refs()[BRANCH].snapshot_id == world.heads()
    assert world.entry().origin == {0: 2, 1: 0}
    # Again: nothing is landed, and what the group has moves the beginning.
    head = world.heads()
    world.step()
    world.publish()
    assert world.begin() == {0: 3, 1: 0}
    assert world.entry().origin == {0: 2, 1: 0}
    assert [s.snapshot_id for s in world.table().snapshots()].count(head) == 1


def test_an_engine_without_its_state_can_not_begin_below_what_is_landed(world: World) -> None:
    world.land_by_hand((0, 5, 8))
    with pytest.raises(LandedAhead, match="KafkaExtractOperator") as caught:
        world.begin_again()
    assert caught.value.ranges == ranges((0, 5, 8))
    world.land_by_hand((0, 0, 5))
    assert world.begin_again() == {0: 8, 1: 0}


@pytest.mark.parametrize("has_begun", [False, True], ids=["first start", "start without its state"])
def test_what_the_log_has_lost_before_an_engine_begins_is_lost_loudly(tmp_path: Path, has_begun: bool) -> None:
    world = World(tmp_path)
    if has_begun:
        world.begin()
    world.records(0, 20)
    world.land_by_hand((0, 0, 5))
    world.log.trim(0, 8)
    start = world.begin_again if has_begun else world.begin
    with pytest.raises(DataLoss, match=r"orders\[0\] \[5,8\)"):
        start()
    assert start(on_data_loss=OnDataLoss.RECORD) == {0: 8, 1: 0}
    assert (world.entry().lost, world.entry().origin) == (ranges((0, 5, 8)), {0: 0, 1: 0})
    world.step()
    world.publish()
    assert world.entry().held == ranges((0, 0, 20))


def test_what_the_branch_has_is_published_with_its_positions(world: World) -> None:
    snapshot = world.step()
    report = world.publish()
    world.assert_main_has_it_all()
    assert report.counts == Counts(25, 25)
    assert report.by_partition == {0: Counts(20, 20), 1: Counts(5, 5)}
    assert report.remaining_lag == 0
    assert world.log.committed == {0: 20, 1: 5}
    marker = world.entry().published[BRANCH]
    assert (marker.snapshot_id, marker.ends) == (snapshot, {0: 20, 1: 5})
    landed = ledger_store.landing_of(world.table().current_snapshot(), GROUP)
    assert landed is not None
    assert landed.engine is LandingEngine.FLINK


def test_each_publication_takes_what_came_since_the_last(world: World) -> None:
    world.step()
    world.publish()
    for _ in range(2):
        world.records(1, 4)
        world.step()
        world.records(0, 1)
        world.step()
        assert world.publish().counts == Counts(5, 5)
        head = world.heads()
        assert world.publish().snapshot_ids == []
        assert world.heads() == head
    world.assert_main_has_it_all()


def test_many_snapshots_go_in_several_commits_of_bounded_size(world: World) -> None:
    for end in range(4, 21, 4):
        world.write(world.read({0: end}))
    world.step()
    report = world.publish(most_rows=8)
    # 4 and 4, 4 and 4, 4, and the 5 of the other partition.
    assert len(report.snapshot_ids) == 4
    world.assert_main_has_it_all()


def test_a_retry_reports_what_an_earlier_try_published(world: World) -> None:
    world.step()
    first = world.publish(run_id="run")
    again = world.publish(run_id="run")
    assert again.counts == first.counts
    assert again.snapshot_ids == first.snapshot_ids


def test_markers_aborted_records_and_tombstones_are_counted_as_what_they_are(world: World) -> None:
    world.produce(0, Kind.MARKER, Kind.ABORTED, Kind.MARKER, Kind.HOLE, Kind.TOMBSTONE, Kind.DATA)
    world.step()
    assert world.publish().counts == Counts(27, 26, skipped=1)
    world.assert_main_has_it_all()


def test_a_landing_without_rows_when_only_markers_came(world: World) -> None:
    world.step()
    world.publish()
    world.produce(0, Kind.ABORTED, Kind.MARKER)
    world.read()
    world.write([])
    assert world.publish().counts == Counts()
    world.assert_main_has_it_all()


def test_a_landing_without_rows_when_all_was_filtered(world: World) -> None:
    world.read()
    world.write([])
    report = world.publish(rowless=RowlessMeaning.FILTERED)
    assert report.counts == Counts(25, filtered=25)
    assert world.rows() == []
    assert world.entry().landed == ranges((0, 0, 20), (1, 0, 5))


def test_an_orderly_stop_lands_what_no_snapshot_says(world: World) -> None:
    world.step()
    world.publish()
    world.produce(1, Kind.MARKER)
    world.read()
    assert world.publish().snapshot_ids == []
    world.positions.final = dict(world.at)
    assert len(world.publish().snapshot_ids) == 1
    world.assert_main_has_it_all()
    assert world.publish().snapshot_ids == []


def test_what_the_engine_lost_stays_to_be_landed_and_may_come_later(world: World) -> None:
    rows = world.read()
    lost = [(0, 3), (0, 4), (1, 0)]
    world.write([row for row in rows if row not in lost])
    assert world.publish().counts == Counts(22, 22)
    assert world.entry().landed == ranges((0, 0, 3), (0, 5, 20), (1, 1, 5))
    assert world.publish().snapshot_ids == []
    world.write(lost)
    world.publish()
    world.assert_main_has_it_all()


def test_a_snapshot_whose_position_is_gone_goes_with_the_next_one(world: World) -> None:
    world.write(world.read({0: 7}))
    world.positions.said.clear()
    world.step()
    assert len(world.publish(most_rows=1).snapshot_ids) == 1
    world.assert_main_has_it_all()


def test_main_rolled_back_gets_the_branchs_files_again(world: World) -> None:
    world.step()
    world.publish()
    before = world.heads()
    world.records(0, 5)
    world.step()
    world.publish()
    world.table().manage_snapshots().rollback_to_snapshot(before).commit()
    assert world.publish().counts == Counts(5, 5)
    world.assert_main_has_it_all()
    first = world.table().history()[0].snapshot_id
    world.table().manage_snapshots().set_current_snapshot(first).commit()
    world.publish()
    world.assert_main_has_it_all()


def test_the_extract_takes_over_and_the_engine_goes_on_behind_it(world: World) -> None:
    world.step()
    world.publish()
    world.records(0, 5)
    world.land_by_hand((0, 20, 25))
    assert world.begin() == {0: 25, 1: 5}
    world.records(0, 2)
    world.step()
    world.publish()
    world.assert_main_has_it_all()


def test_main_compacted_and_its_snapshots_expired(world: World) -> None:
    for _ in range(3):
        world.records(0, 2)
        world.step()
        world.publish()
    compact(world.table())
    table = world.table()
    named = {ref.snapshot_id for ref in table.refs().values()}
    for one in [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in named]:
        world.table().maintenance.expire_snapshots().by_id(one).commit()
    assert world.publish().snapshot_ids == []
    world.records(1, 2)
    world.step()
    assert world.publish().counts == Counts(2, 2)
    world.assert_main_has_it_all()


def test_snapshots_of_the_branch_that_expired_unpublished_are_published_all_the_same(world: World) -> None:
    world.write(world.read({0: 5}))
    world.write(world.read({0: 9}))
    head = world.step()
    table = world.table()
    for one in [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in {head, world.heads()}]:
        world.table().maintenance.expire_snapshots().by_id(one).commit()
    world.publish()
    world.assert_main_has_it_all()


def test_a_branch_made_anew_from_main_has_mains_files_and_they_are_no_news(world: World) -> None:
    world.step()
    world.publish()
    compact(world.table())
    world.table().manage_snapshots().remove_branch(BRANCH).commit()
    world.begin()
    fork = world.heads()
    world.records(0, 3)
    world.step()
    # Also where the snapshot that it came off has expired since.
    world.records(1, 1)
    world.land_by_hand((1, 5, 6))
    world.table().maintenance.expire_snapshots().by_id(fork).commit()
    assert world.publish().counts == Counts(3, 3)
    world.assert_main_has_it_all()


def test_a_schema_evolved_takes_files_of_both(world: World) -> None:
    world.step()
    with world.table().update_schema() as update:
        update.add_column("note", StringType())
        update.rename_column("n", "number")
    assert world.publish(schema=None).counts == Counts(25, 25)
    found = world.table().scan().to_arrow()
    assert sorted(found["number"].to_pylist()) == sorted(p * 1_000_000 + o for p, o in world.rows())
    assert found["note"].null_count == 25


def test_a_partitioning_changed_has_the_files_written_anew(world: World) -> None:
    world.step()
    with world.table().update_spec() as update:
        update.add_field("_kafka_offset", BucketTransform(4), "bucket")
    assert world.publish().counts == Counts(25, 25)
    world.assert_main_has_it_all()
    specs = {task.file.spec_id for task in world.table().scan().plan_files()}
    assert specs == {world.table().spec().spec_id}


def test_files_of_a_partitioned_table_are_taken_as_they_are(tmp_path: Path) -> None:
    world = World(tmp_path, partition_by=("bucket(4, n)", "_kafka_partition"))
    world.begin()
    world.records(0, 20)
    world.records(1, 9)
    world.step()
    world.publish()
    world.assert_main_has_it_all()
    table = world.table()
    files = {task.file.file_path for task in table.scan().plan_files()}
    assert files == set(table.inspect.files(table.refs()[BRANCH].snapshot_id)["file_path"].to_pylist())
    assert len(table.scan(row_filter="_kafka_partition == 1").to_arrow()) == 9


def test_two_publishers_at_once_publish_once(world: World) -> None:
    world.step()
    reports = []

    def other() -> None:
        reports.append(world.publish())

    job = world.job()
    real = job.sink.take_files

    def taking(files: list[BranchFile], identity: Any) -> None:
        if not reports:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
        real(files, identity)

    job.sink.take_files = taking  # type: ignore[method-assign]  # of this sink alone
    assert publishing.publish(job).snapshot_ids == []
    assert reports[0].counts == Counts(25, 25)
    world.assert_main_has_it_all()


def test_a_beginning_that_always_comes_second_ends_as_other_runs_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conflicts = MAX_CONFLICTS
    world = World(tmp_path)
    world.begin()
    world.records(0, conflicts + 5)
    world.log.trim(0, conflicts + 3)
    job, others = world.job(on_data_loss=OnDataLoss.RECORD), iter(range(conflicts + 2))
    real = job.sink.commit

    def second(landing: Landing) -> int:
        offset = next(others)
        world.land_by_hand((0, offset, offset + 1))
        return real(landing)

    monkeypatch.setattr(job.sink, "commit", second)
    with pytest.raises(Contention, match="max_active_runs=1"):
        publishing.begin_again(job)
    assert next(others) == conflicts
    assert world.begin_again(on_data_loss=OnDataLoss.RECORD) == {0: conflicts + 3, 1: 0}


def test_a_beginning_that_is_stopped_lands_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    job = world.job()
    job.stop.set()
    with pytest.raises(Stopped):
        publishing.begin(job)
    assert not world.catalog().table_exists(TABLE)


@pytest.mark.parametrize(
    "fault",
    [applied(TIMEOUT), unapplied(TIMEOUT), applied(FAILED), unapplied(FAILED)],
    ids=["applied-no-answer", "unapplied-no-answer", "applied-failed", "unapplied-failed"],
)
def test_a_commit_that_fails_loses_and_doubles_nothing(world: World, fault: Any) -> None:
    world.step()
    world.publish(catalog=FaultyCatalog(world.catalog(), fault))
    world.assert_main_has_it_all()


def test_a_commit_given_up_deletes_no_file_of_the_branch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committing, "COMMIT_TRIES", 2)
    world.step()
    there = world.rows(BRANCH)
    faults = [unapplied(TIMEOUT)] * 40
    with pytest.raises(CommitOutcomeUnknown):
        world.publish(catalog=FaultyCatalog(world.catalog(), *faults))
    assert world.rows(BRANCH) == there
    world.publish()
    world.assert_main_has_it_all()


def test_a_partition_added_begins_at_its_first_offset(world: World) -> None:
    world.step()
    world.publish()
    world.log.partitions.append(PartitionLog())
    world.records(2, 4)
    world.step()
    assert world.publish().counts == Counts(4, 4)
    world.assert_main_has_it_all()


def test_without_a_branch_there_is_nothing_to_publish(world: World) -> None:
    assert world.publish(branch="none").snapshot_ids == []


def test_files_whose_bounds_leave_values_out_get_right_ones_on_main(tmp_path: Path) -> None:
    # PyIceberg, which plays the engine, joins those of the row groups that have some.
    properties = QUICK_RETRIES | {"write.parquet.row-group-limit": "2"}
    world = World(tmp_path, schema=parse_schema("n bigint, s string"), properties=properties)
    world.begin()
    world.records(0, 4)
    head = world.step(s=pa.array(["z" * 5000, "z" * 5000, "a", "b"]))
    wanted = {"row_filter": "s > 'p'"}
    assert len(world.table().scan(snapshot_id=head, **wanted).to_arrow()) == 0
    world.publish()
    world.assert_main_has_it_all()
    assert len(world.table().scan(**wanted).to_arrow()) == 2
