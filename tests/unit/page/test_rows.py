"""The streams of one task: a row for each table that it lands in."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.serialization.serialized_objects import DagSerialization

from airflow_lakestream.pipelines.dags import broken_dag
from airflow_lakestream.pipelines.folder import BrokenFile
from airflow_lakestream.pipelines.reading import read_file
from airflow_lakestream.pipelines.yaml_file import FileProblem
from airflow_lakestream.ui.page.landings import TaskLanding
from airflow_lakestream.ui.page.newest import RunStates, TaskTry
from airflow_lakestream.ui.page.streams import PageStream, StreamDag, row_of, streams_of
from airflow_lakestream.ui.page.tasks import DagStreams, find_streams
from tests.unit.page.test_states import AT
from tests.unit.page.test_tasks import dag

PIPELINE = """\
metadata: {name: shop}
sources: {orders: {type: kafka, topic: orders}}
sinks: {lake: {type: iceberg, table: lake.orders}}
"""
KEY = ("shop", "land")
FORM = {"topic": "{{ params.topic }}", "table": "{{ params.table }}", "params": [["table", {"default": "lake.usual"}]]}


def landed(table: str | None, minutes: int = 0, rows: int = 1) -> TaskLanding:
    names = {"topic": "orders", "table": table} if table else {}
    return TaskLanding(AT + timedelta(minutes=minutes), f"run {minutes}", -1, rows=rows, names=names)


def rows(
    task: dict[str, Any], landings: list[TaskLanding], runs: RunStates | None = None
) -> dict[str | None, PageStream]:
    [stream] = find_streams(dag({"task_id": "land", "task_type": "KafkaExtractOperator", **task})).streams
    known = StreamDag("shop", True, "* * * * *", AT, DagStreams((stream,)))
    by_table = {one.names.get("table"): one for one in landings}
    return {one.table: one for one in streams_of(known, stream, by_table, runs or RunStates())}


def test_a_run_into_another_table_is_a_stream_of_its_own() -> None:
    runs = RunStates(
        tries={
            KEY: {"lake.usual": TaskTry("run 0", "success", AT, 1), "lake.other": TaskTry("run 5", "failed", AT, 2)}
        },
        confs={KEY: {"lake.usual": (), "lake.other": (("table", "lake.other"), ("topic", "orders"))}},
    )
    found = rows(FORM, [landed("lake.usual", rows=7)], runs)
    assert list(found) == ["lake.usual", "lake.other"]
    usual, other = row_of(found["lake.usual"]), row_of(found["lake.other"])
    # Neither takes the other's rows, state, pause or schedule.
    assert (usual["state"], usual["landing"]["rows"], usual["conf"], usual["next_run"]) == ("paused", 7, {}, None)
    assert (other["state"], other["landing"], other["schedule"]) == ("failing", None, None)
    assert (other["table"], other["written"]["topic"]) == ("lake.other", "orders")
    assert other["conf"] == {"table": "lake.other", "topic": "orders"}


def test_the_usual_stream_has_what_no_report_names_and_others_only_their_own() -> None:
    unnamed = RunStates(tries={KEY: {None: TaskTry("run 9", "running", AT, 9)}})
    found = rows(FORM, [landed("lake.other"), landed(None, 1)], unnamed)
    assert [(one.table, one.landing and one.landing.run_id) for one in found.values()] == [
        ("lake.usual", "run 1"),
        ("lake.other", "run 0"),
    ]
    assert [one.newest is not None for one in found.values()] == [True, False]
    assert [one.report_tables for one in found.values()] == [("lake.usual", None), ("lake.other",)]
    # What a run has to be given is not known: it can't be started from here.
    assert row_of(found["lake.other"])["conf"] is None


def test_the_tables_of_a_mapped_task_are_all_its_own() -> None:
    assert [one.table for one in rows({"_is_mapped": True}, []).values()] == [None]
    found = rows({"_is_mapped": True}, [landed("lake.a"), landed("lake.b", 1)])
    assert [(one.table, one.is_usual) for one in found.values()] == [("lake.b", True), ("lake.a", True)]


def test_tables_that_records_or_the_time_choose_are_one_stream() -> None:
    for table in ("lake.{event}", "lake.t_{{ ds_nodash }}"):
        [one] = rows({"table": table}, [landed("lake.a"), landed("lake.b", 1)]).values()
        assert (one.table, one.names["table"], one.report_tables) == (None, "lake.b", ())


def test_a_table_of_each_run_shows_the_newest_twenty() -> None:
    found = rows(FORM, [landed(f"lake.t{n}", n) for n in range(50)])
    assert list(found) == ["lake.usual", *(f"lake.t{n}" for n in range(49, 29, -1))]


@pytest.mark.parametrize("is_known", [True, False], ids=["with a last version", "that was never right"])
def test_a_broken_pipeline_has_rows_with_its_problem_in_place_of_a_schedule(is_known: bool, tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(PIPELINE)
    last = read_file(file, {}.__getitem__)
    problem = FileProblem("shop.yaml", 3, 1, "sinks: is missing.")
    more = (FileProblem("shop.yaml", 4, 1, "sources: is missing."),) * is_known
    made = broken_dag(BrokenFile("shop.yaml", "shop", (problem, *more), last if is_known else None))
    parsed = find_streams(DagSerialization.to_dict(made))
    [task] = parsed.streams
    [stream] = streams_of(StreamDag("shop", False, None, None, parsed), task, {}, RunStates())
    row = row_of(stream)
    assert row["state"] == "broken"
    assert str(problem) in row["why"][0]["text"]
    assert ("And 1 more, on the DAG's page." in row["why"][0]["text"]) is is_known
    assert (row["dag_id"], row["schedule"], row["table"]) == ("shop", None, "lake.orders" if is_known else None)
    assert row["engine"] == ("extract" if is_known else "")


def test_a_tag_of_the_users_does_not_make_a_dag_broken() -> None:
    document = dag({"task_id": "land", "task_type": "KafkaExtractOperator"})
    for description in (None, "Lands broken things", "It is Broken: see the log"):
        document["dag"] |= {"tags": ["broken"], "description": description}
        assert find_streams(document).broken is None
