"""Files that several workers write for one commit: handed over, adopted, or nobody's and swept."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.noop import NoopCatalog

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.core.ports import NotShared
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.job import build_job
from tests.support.replacing import ORDERS, Run, offsets_of, ranges, versions
from tests.support.table_formats import FormatTable

WHOLE = ((0, 0, 30), "old")
PART = (0, 30, 35)


def files(made: FormatTable) -> set[Path]:
    return set(made.folder.rglob("*.parquet")) - set(made.folder.rglob("_delta_log/*"))


def handed(run: Run, part: tuple[int, int, int] = PART, version: str = "handed") -> Any:
    """Return what a worker hands over, as Airflow passes it on."""
    run.write(offsets_of(ranges(part)), version, ORDERS)
    return json.loads(json.dumps(run.sink.hand_over(), allow_nan=False))


@pytest.mark.parametrize("partition_by", [None, ("_kafka_partition", "version")], ids=["plain", "partitioned"])
def test_what_one_hands_over_another_commits_with_its_own(
    empty: FormatTable, partition_by: tuple[str, ...] | None
) -> None:
    empty.run(partition_by=partition_by).land(ranges((0, 0, 30)))
    worker, committer = empty.run(), empty.run()
    piece = handed(worker)
    worker.sink.let_go()
    worker.sink.discard()
    assert committer.sink.misfit(piece) is None
    committer.sink.adopt(piece)
    committer.land(ranges((0, 30, 38)), "own", without=offsets_of(ranges(PART)))
    assert empty.rows() == versions(WHOLE, (PART, "handed"), ((0, 35, 38), "own"))
    empty.assert_whole()


def test_only_what_is_new_is_handed_over(made: FormatTable) -> None:
    worker, committer = made.run(), made.run()
    first, second = handed(worker, (0, 30, 33)), handed(worker, (0, 33, 35), "second")
    worker.sink.let_go()
    for piece in (first, second):
        committer.sink.adopt(piece)
    committer.land(ranges(PART), without=offsets_of(ranges(PART)))
    assert made.rows() == versions(WHOLE, ((0, 30, 33), "handed"), ((0, 33, 35), "second"))
    made.assert_whole()


def test_until_they_are_let_go_handed_files_are_the_workers_to_delete(made: FormatTable) -> None:
    before, worker = files(made), made.run()
    handed(worker)
    assert files(made) > before
    worker.sink.discard()
    assert files(made) == before


def test_what_was_adopted_is_not_deleted_by_who_fails_to_commit_it(made: FormatTable) -> None:
    worker, committer = made.run(), made.run()
    piece = handed(worker)
    committer.sink.adopt(piece)
    there = files(made)
    committer.sink.discard()
    assert files(made) == there
    # And is not committed by a later landing.
    committer.land(ranges((0, 40, 41)))
    assert made.rows() == versions(WHOLE, ((0, 40, 41), "old"))
    worker.sink.discard()
    made.assert_whole()


def test_what_was_taken_over_is_the_sinks_own(made: FormatTable) -> None:
    before, worker, run = files(made), made.run(), made.run()
    run.sink.take_over(handed(worker))
    worker.sink.let_go()
    run.sink.discard()
    assert files(made) == before


def test_files_lie_below_a_folder_of_the_run_and_those_of_nobody_are_swept(made: FormatTable) -> None:
    nobody, worker, run = made.run(), made.run(), made.run()
    for one in (nobody, worker):
        one.sink.write_below("runs/r1")
    handed(nobody, version="nobody's")
    nobody.sink.let_go()
    piece = handed(worker)
    assert len([path for path in files(made) if "runs/r1" in str(path)]) == 2
    run.sink.adopt(piece)
    run.land(ranges(PART), without=offsets_of(ranges(PART)))
    run.sink.sweep("runs/r1")
    assert made.rows() == versions(WHOLE, (PART, "handed"))
    made.assert_whole()


def test_a_sweep_leaves_what_the_table_can_be_rolled_back_to(made: FormatTable) -> None:
    before = made.commits()[-1]
    run = made.run()
    run.sink.write_below("runs/r1")
    landed = run.land(ranges(PART))
    made.roll_back(before)
    run.sink.sweep("runs/r1")
    made.roll_back(landed)
    assert made.rows() == versions(WHOLE, (PART, "old"))


def test_nothing_is_swept_for_a_table_that_is_not_there(empty: FormatTable) -> None:
    run = empty.run()
    run.sink.sweep("runs/r1")
    empty.assert_whole()


@pytest.mark.parametrize("change", ["schema", "table", "files"])
def test_files_that_no_longer_fit_are_told(made: FormatTable, change: str) -> None:
    worker = made.run()
    piece = handed(worker)
    if change == "schema":
        made.add_column("more")
    elif change == "table":
        made.drop()
        made.land(ranges((0, 0, 5)))
    else:
        worker.sink.discard()
    problem = {
        "schema": "the table's schema was changed",
        "table": "the table was dropped and created again",
        "files": "they are gone, such as",
    }
    assert problem[change] in str(made.run().sink.misfit(piece))


def test_files_for_a_table_that_is_gone_do_not_fit(made: FormatTable) -> None:
    piece = handed(made.run())
    made.drop()
    assert "the table is not there" in str(made.run(schema=None).sink.misfit(piece))


def test_another_process_writes_for_a_table_that_is_still_to_be_created(empty: FormatTable) -> None:
    run = empty.run()
    run.write(offsets_of(ranges((0, 0, 3))), "own", ORDERS)
    target = pickle.loads(pickle.dumps(run.sink.outline()))
    run.sink.take_over(handed(empty.elsewhere(target), (0, 3, 6)))
    entry = ranges((0, 0, 6))
    run.land(entry, without=offsets_of(entry))
    assert empty.rows() == versions(((0, 0, 3), "own"), ((0, 3, 6), "handed"))
    empty.assert_whole()


def test_offsets_of_records_without_a_row_are_handed_over_as_ranges(made: FormatTable) -> None:
    worker, run = made.run(), made.run()
    worker.write(offsets_of(ranges((0, 3, 5))), "new", ORDERS)
    for offset in (5, 6, 7, 9):
        worker.pass_over(0, offset)
    piece = json.loads(json.dumps(worker.sink.hand_over()))
    worker.sink.let_go()
    run.sink.take_over(piece)
    run.replace(ranges((0, 3, 8)), again=[])
    assert made.rows() == [row for row in versions(WHOLE, ((0, 3, 5), "new")) if row[1] not in (5, 6, 7)]
    made.assert_whole()


@pytest.mark.parametrize("rejects", [False, True])
def test_workers_share_the_sinks_of_all_formats(empty: FormatTable, rejects: bool) -> None:
    empty.run(rejects=rejects).sink.check_shared()


def test_tables_that_records_choose_are_written_by_one_worker() -> None:
    config = ExtractConfig(topic="t", table="lake.events_{kind}", consumer_group="g", schema="kind string")
    job = build_job(config, {}, NoopCatalog("none"), run_id="r")
    with pytest.raises(InvalidArgument, match="are written by one worker"):
        _ = job.shared
    calls: list[Callable[[], object]] = [
        lambda: job.sink.write_below("folder"),
        job.sink.hand_over,
        job.sink.let_go,
        lambda: job.sink.misfit({}),
        lambda: job.sink.adopt({}),
    ]
    for call in calls:
        with pytest.raises(NotShared):
            call()
