"""A landing into a Delta table that several processes, or several tasks, share."""

import multiprocessing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.core.sharing import side_by_side
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.run.processes import reader_processes
from airflow_lakestream.run.topics import land_run
from tests.support.broker import Producing
from tests.support.delta_lake import DeltaLake, config_of
from tests.support.lake import assert_landed_once
from tests.support.shared_run import SharedRun

pytestmark = pytest.mark.integration

EACH = 60
ALL = {0: EACH, 1: EACH}


def test_tasks_hand_over_files_and_one_commits_them(lake: DeltaLake, filled: str, produce: Producing) -> None:
    produce(filled, 0, ["bad"])
    run = SharedRun(
        lake, filled, {"partition_by": ["_kafka_partition"], "schema": "id long, name string, score double"}
    )
    plan = run.plan()
    pieces = run.read_all(plan)
    assert sum(piece.counts.read for piece in pieces) == 2 * EACH + 1

    report = run.commit(plan, pieces)

    assert (report.counts.written, report.counts.rejected) == (2 * EACH, 1)
    rows = lake.all_rows()
    assert sorted(rows["id"].to_pylist()) == [p * 10_000_000 + n for p in (0, 1) for n in range(EACH)]
    assert lake.landed(filled) == {0: [(0, EACH + 1)], 1: [(0, EACH)]}
    assert lake.rejected("value") == [(b"bad",)]
    assert not lake.stray()
    assert not list(Path(lake.place, run.folder).rglob("*.arrows"))
    # Once more: nothing is doubled.
    assert run.commit(plan, pieces).to_dict() == report.to_dict()
    assert len(lake.all_rows()) == 2 * EACH


def test_files_of_a_try_that_nobody_commits_are_swept(lake: DeltaLake, filled: str) -> None:
    run = SharedRun(lake, filled)
    plan = run.plan()
    run.read_all(plan)
    run.commit(plan, run.read_all(plan))
    assert_landed_once(lake, filled, ALL)
    assert not lake.stray()


def test_a_schema_that_changed_since_they_were_written_has_files_read_anew(
    lake: DeltaLake, filled: str, produce: Producing
) -> None:
    run = SharedRun(lake, filled)
    plan = run.plan()
    pieces = run.read_all(plan)
    produce(filled, 0, ['{"id":0,"more":1}'])
    lake.land(
        filled, "other", mode="ranges", ranges=[[0, EACH, EACH + 1]], unknown_fields="evolve", schema_evolution="add"
    )
    run.commit(plan, pieces)
    assert len(lake.all_rows()) == 2 * EACH + 1
    assert lake.landed(filled) == {0: [(0, EACH + 1)], 1: [(0, EACH)]}


def land_by_processes(made: Mapping[str, Any], topic: str, answer: Any) -> None:
    side_by_side.LEAST_WIDTH = 1
    lake = DeltaLake(Path(made["folder"]), made["kafka"])
    config = lake.settings(topic, parallelism=2)
    with reader_processes(config, lake.kafka) as children:
        report = land_run(config, lake.kafka, DeltaStorage(), run_id="r", children=children)
    answer.send((children is not None, report.to_dict()["rows"]))


def test_processes_of_one_worker_read_side_by_side(lake: DeltaLake, filled: str, produce: Producing) -> None:
    produce(filled, 1, ["bad"])
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    process = context.Process(target=land_by_processes, args=(config_of(lake), filled, there))
    process.start()
    there.close()
    try:
        assert here.poll(120), "the run has neither ended nor failed"
        assert here.recv() == (True, 2 * EACH)
    finally:
        process.kill()
    assert len(lake.all_rows()) == 2 * EACH
    assert lake.landed(filled) == {0: [(0, EACH)], 1: [(0, EACH + 1)]}
    assert lake.rejected("value") == [(b"bad",)]
    assert not lake.stray()
