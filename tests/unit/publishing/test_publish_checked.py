"""What another engine wrote to a branch is checked there before it shows: main has none of what did not pass."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import StringType

from airflow_lakestream.core.checks import ChecksFailed
from airflow_lakestream.core.ledger import Landing, TopicEntry
from airflow_lakestream.core.publishing.publish import RowlessMeaning, publish
from airflow_lakestream.core.publishing.refusals import BranchFileGone
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import checked as branches
from tests.support.fault_log import Kind
from tests.support.faults import TIMEOUT, FaultyCatalog, after, applied, before
from tests.support.killed_process import kill, run_until_killed
from tests.support.publishing import BRANCH, GROUP, ORDERS, TOPIC, World
from tests.support.replacing import ranges

NO_BAD = {"not_null": "n"}


def failed(world: World, checks: dict[str, Any], **job: Any) -> ChecksFailed:
    """Publish, and return which checks failed; main, the ledger and the branch are as they were."""
    head, held, there = world.heads(), world.entry().held, world.rows(BRANCH)
    with pytest.raises(ChecksFailed) as caught:
        world.publish(checks=checks, **job)
    assert (world.heads(), world.entry().held, world.rows(BRANCH)) == (head, held, there)
    return caught.value


def test_rows_that_do_not_pass_stay_on_the_engines_branch(world: World) -> None:
    world.step()
    world.publish(checks=NO_BAD)
    world.assert_main_has_it_all()
    world.records(1, 2)
    world.step(n=pa.array([None, 1_000_004], pa.int64()))
    error = failed(world, NO_BAD)
    assert error.branch == BRANCH
    told = str(error)
    assert f"lake.orders: the rows of {TOPIC}[1] [3,5) did not pass 1 of the checks" in told
    assert f"{TOPIC}[1] offset 3: n=NULL" in told
    assert "the branch is checked again" in told
    # The engine goes on; what is bad holds back what came after it.
    world.records(0, 5)
    world.step()
    assert "offset 3" in str(failed(world, NO_BAD))
    # The check is loosened: one commit has it all.
    snapshots = len(world.table().snapshots())
    world.publish(checks={"unique": "n"})
    world.assert_main_has_it_all()
    assert len(world.table().snapshots()) == snapshots + 1


def test_a_branch_that_is_dropped_is_read_anew(world: World) -> None:
    world.step()
    failed(world, {"row_count": {"max": 2}})
    world.table().manage_snapshots().remove_branch(BRANCH).commit()
    assert world.begin_again() == {0: 0, 1: 0}
    world.write(world.read({0: 2}))
    world.publish(checks={"row_count": {"max": 2}})
    world.step()
    world.publish(checks={"row_count": {"max": 21}})
    world.assert_main_has_it_all()


def test_each_kind_of_check(world: World) -> None:
    rows = world.read()
    values = [None if at == (0, 7) else 4 if at == (0, 3) else p * 1_000_000 + o for at in rows for p, o in [at]]
    world.write(rows, n=pa.array(values, pa.int64()))
    checks = {
        "row_count": {"min": 24},
        "not_null": "n",
        "unique": "n",
        "sql": "SELECT _kafka_offset FROM landing WHERE n > 1000001",
    }
    count, null, twice, statement = map(str, failed(world, checks).findings)
    assert "row_count: 23 rows, fewer than 24" in count
    assert "not_null: n: NULL in 1 of the rows\n    orders[0] offset 7: n=NULL" in null
    assert "unique: n: equal values in 2 of the rows\n    orders[0] offset 3: n=4" in twice
    assert "it returned rows\n    _kafka_offset=2" in statement


def test_a_branch_that_the_extract_has_kept_goes_when_its_offsets_land(world: World) -> None:
    world.step()
    files = [
        task.file for task in world.table().scan(snapshot_id=world.table().refs()[BRANCH].snapshot_id).plan_files()
    ]
    landing = Landing("a" * 32, "run", {ORDERS: TopicEntry(landed=ranges((0, 0, 3)))})
    branches.stage(world.catalog(), world.table(), GROUP, landing, files, handed=True)
    failed(world, {"row_count": {"max": 1}})
    assert len(list(branches.kept_branches(world.table(), GROUP))) == 1
    world.publish(checks={"unique": "n"})
    assert list(branches.kept_branches(world.table(), GROUP)) == []
    world.assert_main_has_it_all()


def test_the_last_weeks_publications_tell_how_many_rows_are_usual(world: World) -> None:
    checks = {"row_count": {"max_of_week": 2}}
    world.step()
    world.publish(checks=checks)
    world.records(0, 47)
    world.step()
    assert "47 rows, more than 2 times the last week's mean of 23" in str(failed(world, checks))


def test_records_that_became_no_row_are_counted_only(world: World) -> None:
    world.read()
    world.write([])
    told = str(failed(world, {"row_count": {"min": 1}, "not_null": "n"}, rowless=RowlessMeaning.FILTERED))
    assert "0 rows, fewer than 1" in told
    assert "there are no rows to look at" in told
    world.publish(checks={"not_null": "n"}, rowless=RowlessMeaning.FILTERED)
    assert world.entry().counts.filtered == 23


def test_where_nothing_was_read_nothing_is_checked(world: World) -> None:
    world.step()
    world.publish()
    world.produce(0, Kind.MARKER)
    world.read()
    world.positions.final = dict(world.at)
    report = world.publish(checks={"row_count": {"min": 1}})
    assert (len(report.snapshot_ids), report.counts.read) == (1, 0)


def test_columns_that_were_renamed_and_added_meanwhile_are_checked_by_their_names_of_today(world: World) -> None:
    world.step()
    with world.table().update_schema() as change:
        change.rename_column("n", "number")
        change.add_column("more", StringType())
    statements = ["SELECT number FROM landing WHERE number = 1000001", "SELECT * FROM landing WHERE more IS NOT NULL"]
    wrong = {"not_null": ["number", "more"], "sql": statements}
    told = str(failed(world, wrong, schema=None))
    assert "did not pass 2 of the checks" in told
    assert "number=1000001" in told
    assert "more: NULL in 23 of the rows" in told
    world.publish(checks={"unique": "number"}, schema=None)
    assert world.rows() == world.expected()


def test_a_column_that_is_not_there_is_said_before_anything_is_read(world: World) -> None:
    world.step()
    head = world.heads()
    with pytest.raises(InvalidArgument, match=r"checks\.not_null: there is no column 'm'"):
        world.publish(checks={"not_null": "m"})
    assert world.heads() == head


def test_a_file_that_goes_while_it_is_checked_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.step()
    job = world.job(checks={"not_null": "n"})
    took = job.sink.take_files

    def take(*given: Any) -> None:
        took(*given)
        for path in (world.folder / "warehouse").rglob("*.parquet"):
            path.unlink()

    monkeypatch.setattr(job.sink, "take_files", take)
    with pytest.raises(BranchFileGone, match=r"\.parquet"):
        publish(job)


def _die(folder: str, kind: Callable[..., Any]) -> None:
    world = World(Path(folder))
    world.begin()
    world.records(0, 4)
    world.step()
    world.publish(catalog=FaultyCatalog(world.catalog(), kind(kill)), checks={"unique": "n"})


@pytest.mark.long
@pytest.mark.parametrize(("kind", "by_then"), [(before, 0), (after, 4)], ids=["before", "after"])
def test_killed_between_audit_and_publish(tmp_path: Path, kind: Callable[..., Any], by_then: int) -> None:
    run_until_killed(_die, str(tmp_path), kind)
    world = World(tmp_path)
    world.records(0, 4)
    assert len(world.rows()) == by_then
    world.positions.final = {0: 4}
    world.publish(checks={"unique": "n"})
    assert world.rows() == [(0, o) for o in range(4)]
    assert world.entry().counts.written == 4


def test_a_lost_answer_doubles_nothing(world: World) -> None:
    world.step()
    world.publish(catalog=FaultyCatalog(world.catalog(), applied(TIMEOUT)), checks={"unique": "n"})
    world.assert_main_has_it_all()


# Each publication: so many records more, whether one of them is bad, and whether the check is on.
STEPS = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=3)


@pytest.mark.long
@settings(max_examples=6)
@given(STEPS)
def test_main_never_has_a_row_of_a_failed_publication(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool, bool]]
) -> None:
    world = World(tmp_path_factory.mktemp("world"))
    world.begin()
    on_main, waits = 0, False
    for count, is_bad, is_checked in steps:
        world.records(0, count)
        values = [None if is_bad and not n else n for n in range(count)]
        world.write(world.read(), n=pa.array(values, pa.int64()))
        waits = waits or None in values
        if is_checked and waits:
            failed(world, NO_BAD)
        else:
            world.publish(checks=NO_BAD if is_checked else {"not_null": "_kafka_offset"})
            on_main, waits = len(world.log.partitions[0].entries), False
        assert world.rows() == [(0, o) for o in range(on_main)]
    world.publish()
    world.assert_main_has_it_all()
