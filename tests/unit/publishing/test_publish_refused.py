"""What can not be on main with the ledger is refused: main and the branch stay as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import LongType

from airflow_lakestream.core.landing.plan import DataLoss, LandedByAnotherGroup
from airflow_lakestream.core.landing.unaccounted import RowsUnaccounted
from airflow_lakestream.core.policies import OnDataLoss
from airflow_lakestream.core.publishing.refusals import (
    BeyondTheLog,
    BranchFileGone,
    BranchHistoryLost,
    BranchRewritten,
    ColumnsMoved,
    MainHasBranch,
    PositionsUnknown,
    RowsOnMain,
    RowsTwice,
    RowsUnproven,
    RowsWithoutPosition,
)
from airflow_lakestream.tables.schema.ddl import parse_schema
from tests.support.publishing import BRANCH, BegunWorld, World
from tests.support.replacing import ranges


@pytest.fixture
def world(begun: BegunWorld) -> World:
    return begun.again(20, 5)


def refused(world: World, error: type[Exception], **job: Any) -> Any:
    """Publish, and return why it is refused; main is as it was, and all files of the branch are there."""
    head, there = world.heads(), world.rows(BRANCH)
    with pytest.raises(error) as caught:
        world.publish(**job)
    assert world.heads() == head
    assert world.rows(BRANCH) == there
    return caught.value


def test_an_engine_without_its_state_reads_again_what_was_not_published(world: World) -> None:
    world.write(world.read({0: 10}))
    world.publish()
    world.step()
    lost, world.positions.said = world.positions.said, {}
    refused(world, PositionsUnknown)
    assert lost
    assert world.begin_again() == {0: 10, 1: 0}
    assert world.table().refs()[BRANCH].snapshot_id == world.heads()
    world.step()
    world.publish()
    world.assert_main_has_it_all()


def test_what_left_kafka_without_a_row_is_lost_loudly(world: World) -> None:
    world.write(world.read()[2:])
    world.log.trim(0, 1)
    assert refused(world, DataLoss).ranges == ranges((0, 0, 1))
    world.publish(on_data_loss=OnDataLoss.RECORD)
    assert world.entry().lost == ranges((0, 0, 1))
    # The other one is still there: the next run of the extract lands it.
    assert world.entry().landed == ranges((0, 2, 20), (1, 0, 5))


def test_an_older_checkpoint_restored_is_refused(world: World) -> None:
    world.write(world.read({0: 10}))
    old = dict(world.at)
    world.step()
    world.publish()
    world.at = old
    world.records(0, 3)
    world.step()
    error = refused(world, RowsOnMain)
    assert error.ranges == ranges((0, 10, 20), (1, 0, 5))
    assert "the branch begins again" in str(error)
    # The way out that the error names.
    world.begin_again()
    world.step()
    world.publish()
    world.assert_main_has_it_all()


def test_an_older_checkpoint_restored_before_its_rows_are_published_is_refused(world: World) -> None:
    world.write(world.read({0: 10}))
    old = dict(world.at)
    world.step()
    world.at = old
    world.step()
    assert refused(world, RowsTwice).rows == 15


def test_a_row_twice_within_one_file_is_refused(world: World) -> None:
    world.write([*world.read(), (1, 4), (1, 4)])
    assert refused(world, RowsTwice).rows == 2


def test_a_file_twice_on_the_branch_is_refused(world: World) -> None:
    world.step()
    table = world.table()
    path = next(iter(table.inspect.files(table.refs()[BRANCH].snapshot_id)["file_path"].to_pylist()))
    commit = next(iter(world.positions.said))
    properties = {"engine.commit": commit}
    table.add_files([path], snapshot_properties=properties, check_duplicate_files=False, branch=BRANCH)
    assert refused(world, RowsTwice).rows == 25


def test_rows_beyond_what_the_engine_says_are_refused(world: World) -> None:
    rows = world.read()
    world.at[1] = 3
    world.write(rows)
    assert refused(world, RowsUnproven).ranges == ranges((1, 3, 5))


def test_rows_below_the_groups_beginning_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.records(0, 5)
    world.log.trim(0, 2)
    world.begin()
    world.at[0] = 5
    world.write([(0, 1), (0, 2)])
    assert refused(world, RowsUnproven).ranges == ranges((0, 1, 2))


def test_positions_beyond_the_log_are_refused(world: World) -> None:
    rows = world.read()
    world.at |= {0: 21, 7: 1}
    world.write(rows)
    assert "orders[0] 21 (log: 20), orders[7] 1 (log: no such partition)" in str(refused(world, BeyondTheLog))


def test_rows_of_another_topic_are_refused(world: World) -> None:
    world.write(world.read(), topic="invoices")
    assert "25 rows of" in str(refused(world, RowsWithoutPosition))


def test_without_the_engines_position_nothing_is_published_until_it_is_there(world: World) -> None:
    world.step()
    said, world.positions.said = world.positions.said, {}
    refused(world, PositionsUnknown)
    world.positions.said = said
    world.publish()
    world.assert_main_has_it_all()


@pytest.mark.parametrize("change", ["delete", "overwrite", "foreign append"])
def test_a_branch_that_was_rewritten_is_refused(world: World, change: str) -> None:
    world.step()
    table = world.table()
    if change == "delete":
        table.delete("_kafka_offset == 3", branch=BRANCH)
    elif change == "overwrite":
        table.overwrite(table.scan(snapshot_id=table.refs()[BRANCH].snapshot_id).to_arrow(), branch=BRANCH)
    else:
        table.append(table.scan().to_arrow().slice(0, 0), branch=BRANCH)
    world.records(0, 1)
    world.step()
    refused(world, BranchRewritten)


def test_a_file_that_is_gone_is_named(world: World) -> None:
    world.step()
    table = world.table()
    path = table.inspect.files(table.refs()[BRANCH].snapshot_id)["file_path"].to_pylist()[0]
    Path(path.removeprefix("file://")).unlink()
    with pytest.raises(BranchFileGone, match=path):
        world.publish()
    assert world.rows() == []


def test_what_was_landed_another_way_after_a_roll_back_is_not_doubled(world: World) -> None:
    world.step()
    before = world.heads()
    world.publish()
    world.table().manage_snapshots().set_current_snapshot(before).commit()
    world.land_by_hand((0, 0, 4))
    assert refused(world, RowsOnMain).ranges == ranges((0, 0, 4))


# What is done to the column n, one change after the other.
MOVED: dict[str, list[Callable[[UpdateSchema], object]]] = {
    "dropped and added again": [lambda u: u.delete_column("n"), lambda u: u.add_column("n", LongType())],
    "renamed, and a new one": [lambda u: u.rename_column("n", "k"), lambda u: u.add_column("n", LongType())],
    "renamed, and another": [lambda u: u.rename_column("n", "k"), lambda u: u.rename_column("m", "n")],
}


@pytest.mark.parametrize("changes", MOVED.values(), ids=MOVED)
def test_files_with_columns_whose_names_others_have_now_are_refused(
    tmp_path: Path, changes: list[Callable[[UpdateSchema], object]]
) -> None:
    world = World(tmp_path, schema=parse_schema("n bigint, m bigint"))
    world.begin()
    world.records(0, 5)
    world.step()
    for change in changes:
        with world.table().update_schema() as update:
            change(update)
    checks = {"unique": "n"}
    assert refused(world, ColumnsMoved, schema=None).columns == ("n",)
    assert refused(world, ColumnsMoved, schema=None, checks=checks).columns == ("n",)
    # The way out that the error names.
    world.table().manage_snapshots().remove_branch(BRANCH).commit()
    world.begin_again(schema=None)
    world.step()
    world.publish(schema=None, checks=checks)
    assert world.rows() == world.expected()
    assert world.table().scan().to_arrow()["n"].to_pylist() == [*range(5)]


def test_a_struct_whose_field_was_dropped_and_added_again_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, schema=parse_schema("n bigint, s struct<a: bigint, b: bigint>"))
    world.begin()
    world.records(0, 1)
    world.step(s=pa.array([{"a": 1, "b": 2}], pa.struct([("a", pa.int64()), ("b", pa.int64())])))
    with world.table().update_schema() as update:
        update.delete_column("s.a")
    with world.table().update_schema() as update:
        update.add_column(("s", "a"), LongType())
    assert refused(world, ColumnsMoved, schema=None).columns == ("s.a",)


def test_main_set_to_the_branch_by_hand_is_refused(world: World) -> None:
    snapshot = world.step()
    world.table().manage_snapshots().set_current_snapshot(snapshot).commit()
    refused(world, MainHasBranch)


def test_another_groups_offsets_are_refused(world: World) -> None:
    world.land_by_hand((0, 2, 4), group="other")
    world.step()
    refused(world, LandedByAnotherGroup)


def test_rows_without_a_ledger_on_main_are_refused(world: World) -> None:
    world.write([(0, 1)], branch="main")
    world.step()
    refused(world, RowsUnaccounted)


def test_the_history_of_a_branch_that_is_partly_on_main_is_refused_when_it_expired(world: World) -> None:
    world.write(world.read({0: 5}))
    head = world.step()
    world.land_by_hand((0, 3, 7))
    for one in [s.snapshot_id for s in world.table().snapshots() if s.snapshot_id not in {head, world.heads()}]:
        world.table().maintenance.expire_snapshots().by_id(one).commit()
    with pytest.raises((BranchHistoryLost, RowsOnMain)):
        world.publish()
