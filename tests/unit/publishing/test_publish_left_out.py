"""Records without a row are left out on purpose where something shows it: no lost ones, none that the branch lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.core.landing.plan import DataLoss
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.publishing.branch import EngineJobLine
from airflow_lakestream.core.publishing.publish import RowlessMeaning
from airflow_lakestream.core.publishing.refusals import BranchCut, BranchRewritten, LeftOutUnproven, LostOrLeftOut
from tests.support.publishing import BRANCH, TOPIC, World
from tests.support.replacing import ranges

FILTERED = {"rowless": RowlessMeaning.FILTERED}
RECORD = {"on_data_loss": OnDataLoss.RECORD}


def cut(world: World, snapshot_id: int | None) -> None:
    """Set the branch to a snapshot, or to main's head, as a person may; the engine goes on with it."""
    to = world.heads() if snapshot_id is None else snapshot_id
    assert to is not None
    world.table().manage_snapshots().remove_branch(BRANCH).commit()
    world.table().manage_snapshots().create_branch(to, BRANCH).commit()


def expire(world: World, *, logs: bool) -> None:
    """Expire all snapshots that no branch has, and, if `logs`, remove the older metadata files."""
    table = world.table()
    named = {ref.snapshot_id for ref in table.refs().values()}
    for one in [s.snapshot_id for s in table.snapshots() if s.snapshot_id not in named]:
        world.table().maintenance.expire_snapshots().by_id(one).commit()
    for entry in world.table().metadata.metadata_log if logs else ():
        Path(entry.metadata_file.removeprefix("file://")).unlink(missing_ok=True)


def refused(world: World, error: type[Exception], **job: Any) -> Any:
    """Publish, and return why it is refused; main and ledger are as they were."""
    head, held = world.heads(), world.entry().held
    with pytest.raises(error) as caught:
        world.publish(**job)
    assert (world.heads(), world.entry().held) == (head, held)
    return caught.value


def remedy(world: World, **job: Any) -> None:
    """Do what the errors of a branch say: drop it, and start the job without state, where the ledger ends."""
    if world.has_branch():
        world.table().manage_snapshots().remove_branch(BRANCH).commit()
    world.begin_again(**job)
    world.step()
    world.publish(**FILTERED, **job)


def test_what_retention_took_before_the_engine_read_it_is_lost_and_not_left_out(world: World) -> None:
    world.log.trim(0, 5)
    world.step()
    error = refused(world, LostOrLeftOut, **FILTERED)
    assert error.ranges == ranges((0, 0, 5))
    assert 'on_data_loss="record"' in str(error)
    assert world.publish(**FILTERED, **RECORD).counts == Counts(18, 18)
    assert (world.entry().lost, world.entry().counts.filtered) == (ranges((0, 0, 5)), 0)


def test_what_a_checkpoint_had_behind_it_while_kafka_had_it_was_left_out(world: World) -> None:
    world.write([one for one in world.read() if one[1] > 9])
    # One was looked at when the log began at 3.
    world.positions.line = EngineJobLine(world.positions.line.since, {}, ranges((0, 3, 8)))  # type: ignore[union-attr]  # it is there
    world.log.trim(0, 9)
    assert refused(world, DataLoss, **FILTERED).ranges == ranges((0, 0, 3), (0, 8, 9))
    world.publish(**FILTERED, **RECORD)
    entry = world.entry()
    assert entry.lost == ranges((0, 0, 3), (0, 8, 9))
    # How many records there were at the others is not known.
    assert entry.counts == Counts(14, 10, filtered=4)
    assert entry.held.first_missing(TOPIC, 0, 0) == 20


@pytest.mark.parametrize("rowless", list(RowlessMeaning))
@pytest.mark.parametrize("is_published", [False, True], ids=["never published", "published before"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["nothing more", "job goes on"])
@pytest.mark.parametrize("to_main", [False, True], ids=["set back", "set to main"])
def test_a_branch_that_has_lost_rows_is_refused(
    world: World, rowless: RowlessMeaning, is_published: bool, goes_on: bool, to_main: bool
) -> None:
    first = world.write(world.read({0: 4}))
    if is_published:
        world.publish(rowless=rowless)
    world.write(world.read({0: 9}))
    cut(world, None if to_main else first)
    if goes_on:
        world.step()
    else:
        world.positions.final = dict(world.at)
    refused(world, BranchCut, rowless=rowless)
    world.positions.final = None
    remedy(world)
    world.assert_main_has_it_all()


def test_a_branch_set_to_main_that_has_lost_nothing_is_refused_too(world: World) -> None:
    world.step()
    world.publish(**FILTERED)
    cut(world, None)
    world.records(0, 3)
    world.step()
    refused(world, BranchCut, **FILTERED)
    remedy(world)
    world.assert_main_has_it_all()


@pytest.mark.parametrize("is_published", [False, True], ids=["never published", "published before"])
def test_snapshots_that_left_the_branch_are_found_in_older_metadata_once_they_expired(
    world: World, is_published: bool
) -> None:
    first = world.write(world.read({0: 4}))
    if is_published:
        world.publish(**FILTERED)
    lost = world.write(world.read({0: 9}))
    cut(world, first)
    world.step()
    expire(world, logs=False)
    assert world.table().snapshot_by_id(lost) is None
    assert refused(world, BranchCut, **FILTERED).snapshot_id == lost


def test_where_nothing_shows_what_snapshots_there_were_nothing_counts_as_left_out(world: World) -> None:
    first = world.write(world.read({0: 4}))
    world.publish(**FILTERED)
    world.write(world.read({0: 9}))
    cut(world, first)
    world.step()
    expire(world, logs=True)
    error = refused(world, LeftOutUnproven, **FILTERED)
    assert error.ranges == ranges((0, 4, 9))
    # Without a condition Kafka shows what has no row.
    world.publish()
    assert world.entry().landed == ranges((0, 0, 4), (0, 9, 20), (1, 0, 3))


def test_an_expired_history_that_is_whole_is_published(world: World) -> None:
    world.write(world.read({0: 4}))
    world.publish(**FILTERED)
    world.write([one for one in world.read({0: 9}) if one[1] % 2])
    world.write([one for one in world.read() if one[1] % 2])
    expire(world, logs=False)
    assert world.publish(**FILTERED).counts == Counts(19, 9, filtered=10)


def test_main_rolled_back_to_before_the_job_began_is_refused(world: World) -> None:
    world.write(world.read({0: 4}))
    world.publish(**FILTERED)
    before = world.heads()
    assert before is not None
    world.write(world.read({0: 9}))
    world.publish(**FILTERED)
    world.begin_again()
    world.table().manage_snapshots().rollback_to_snapshot(before).commit()
    world.step()
    assert refused(world, LeftOutUnproven, **FILTERED).ranges == ranges((0, 4, 9))
    remedy(world)
    world.assert_main_has_it_all()


def test_rows_of_a_job_that_is_not_in_the_line_are_refused(world: World) -> None:
    world.write(world.read({0: 4}))
    world.positions.commits.clear()
    world.step()
    refused(world, BranchRewritten, **FILTERED)
    remedy(world)
    world.assert_main_has_it_all()


@pytest.mark.parametrize("died", ["before the branch was set back", "before a job was there"])
def test_what_the_branch_had_when_a_job_began_anew_counts_for_nothing(world: World, died: str) -> None:
    world.write(world.read({0: 9}))
    world.positions.final = dict(world.at)

    def begin_line(starts: Any) -> None:
        begin(starts)
        if died.startswith("before the branch"):
            raise KeyboardInterrupt

    begin: Callable[..., None] = world._begin_line
    world._begin_line = begin_line  # type: ignore[method-assign]  # of this world alone
    if died.startswith("before the branch"):
        with pytest.raises(KeyboardInterrupt):
            world.begin_again()
    else:
        world.begin_again()
    world.positions.final = None
    assert world.publish(**FILTERED).snapshot_ids == []
    world._begin_line = begin  # type: ignore[method-assign]  # as above
    world.begin_again()
    world.step()
    world.publish(**FILTERED)
    world.assert_main_has_it_all()
