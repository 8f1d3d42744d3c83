"""Which tasks of a serialized DAG are streams, what a report says of a landing, and its offsets by partition."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_lakestream.ui.page.landings import landing_of
from airflow_lakestream.ui.page.streams import offsets_of
from airflow_lakestream.ui.page.tasks import RESUMES, find_streams, of_mode
from tests.unit.page.test_states import AT

OURS = {"_task_module": "airflow_lakestream.operators.x"}


def dag(*tasks: dict[str, Any]) -> dict[str, Any]:
    return {"dag": {"tasks": [{"__type": "operator", "__var": {**OURS, **task}} for task in tasks]}}


@pytest.mark.parametrize(
    ("task", "named"),
    [
        (
            {"task_type": "KafkaExtractOperator", "topic": "orders", "table": "lake.orders", "consumer_group": "g"},
            ("extract", "orders", "lake.orders", "g"),
        ),
        (
            {"task_type": "KafkaMirrorOperator", "topic": "{{ params.topic }}", "table": "lake.orders"},
            ("mirror", None, "lake.orders", None),
        ),
        (
            {
                "task_type": "SparkStreamingSubmitOperator",
                "app": "kafka_to_iceberg",
                "app_config": {"__type": "dict", "__var": {"topic": "t", "table": "lake.t"}},
            },
            ("spark", "t", "lake.t", None),
        ),
        (
            {"task_type": "KafkaConnectOperator", "config": {"topics": "t", "iceberg.tables": "lake.t"}},
            ("connect", "t", "lake.t", None),
        ),
        (
            {
                "task_type": "KafkaExtractOperator",
                "_is_mapped": True,
                "partial_kwargs": {"__type": "dict", "__var": {"table": "lake.all"}},
            },
            ("extract", None, "lake.all", None),
        ),
    ],
    ids=["extract", "template", "spark", "connect", "mapped"],
)
def test_a_stream_is_found_with_the_names_that_are_written_out(task: dict[str, Any], named: tuple[Any, ...]) -> None:
    [one] = find_streams(dag({"task_id": "land", **task})).streams
    assert (one.engine, one.topic, one.table, one.consumer_group) == named


def test_before_its_first_report_a_stream_has_the_names_of_the_forms_defaults() -> None:
    params = [["topic", {"default": "orders"}], ["table", {"default": None}]]
    task = {"topic": "{{ params.topic }}", "table": "{{params.table}}", "consumer_group": "{{ dag.dag_id }}-{{ ds }}"}
    found = dag({"task_id": "land", "task_type": "KafkaExtractOperator", "params": params, **task})
    [one] = find_streams({"dag": {**found["dag"], "dag_id": "shop"}}).streams
    # A run may get others: as names of the stream they are not known.
    assert (one.topic, one.table, one.consumer_group) == (None, None, None)
    assert one.written({}) == {"topic": "orders", "table": "{{params.table}}", "consumer_group": "shop-{{ ds }}"}

    # The form may choose another table.
    assert (one.table_of({}), one.table_of({"table": "lake.other"})) == (None, "lake.other")
    assert (one.has_table_by_form, one.has_table_by_run) == (True, False)


@pytest.mark.parametrize("table", ["lake.{event}", "lake.t_{{ ds_nodash }}", "lake.{{ params.a or params.b }}"])
def test_tables_that_only_a_run_knows_are_one_stream(table: str) -> None:
    [one] = find_streams(dag({"task_id": "land", "task_type": "KafkaExtractOperator", "table": table})).streams
    assert (one.has_table_by_run, one.table_of({})) == (True, None)


@pytest.mark.parametrize(
    "task",
    [
        {"task_type": "SparkStreamingSubmitOperator", "app": "maintain_iceberg", "app_config": {"tables": ["lake.t"]}},
        {"task_type": "SparkStreamingSubmitOperator", "application": "own.py"},
        {"task_type": "ReadShareOperator", "topic": "t", "table": "lake.t"},
        {"task_type": "KafkaExtractOperator", "topic": "t", "table": "lake.t", "_task_module": "of.others"},
    ],
    ids=["maintenance", "own program", "a share", "another's"],
)
def test_what_is_no_stream(task: dict[str, Any]) -> None:
    assert find_streams(dag({"task_id": "t", **task})).streams == ()


def test_what_is_no_landing() -> None:
    for report in (None, "null", {}, {"read": 0}, {"rows": 5}, {"read": None, "lost": []}):
        assert landing_of(AT, "r", -1, report) is None
    # As `XCom.set` writes it.
    told = landing_of(AT, "r", None, '{"read": 2, "rows": 2}')
    assert told is not None
    assert (told.rows, told.map_index) == (2, -1)


def test_offsets_of_several_topics_with_holes_and_losses() -> None:
    reports = [
        {"topic": "a", "ranges": [[0, 0, 10], [1, 5, 7]], "lost": []},
        {"topic": "a", "ranges": [[0, 10, 12], [0, 15, 20]], "lost": [[0, 12, 14]]},
        {"topics": {"b": {"ranges": [[0, 1, 2]]}}},
    ]
    landings = [landing_of(AT, "r", -1, {"read": 1, **report}) for report in reports]
    bars = offsets_of(one for one in landings if one is not None)
    assert [(one["topic"], one["partition"], one["landed"], one["lost"], one["holes"]) for one in bars] == [
        ("a", 0, [[0, 12], [15, 20]], [[12, 14]], [[14, 15]]),
        ("a", 1, [[5, 7]], [], []),
        ("b", 0, [[1, 2]], [], []),
    ]


@pytest.mark.parametrize(
    ("engine", "given", "app", "reason"),
    [
        ("extract", {}, {}, RESUMES),
        ("extract", {"mode": "interval"}, {}, None),
        ("spark", {}, {"topic": "t"}, RESUMES),
        ("spark", {}, {"topic": "t", "mode": "interval"}, None),
        ("group", {}, {}, None),
        ("flink", {}, {}, RESUMES),
    ],
)
def test_a_task_whose_runs_land_intervals_has_them_to_backfill(
    engine: str, given: dict[str, Any], app: dict[str, Any], reason: str | None
) -> None:
    assert of_mode(engine, given, app) == reason
