"""The runbook: each of its cases is played by a test, and its steps do what they say."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from airflow_lakestream.cli.app import run
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.plan import TopicReplaced
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.job import ExtractConfig, build_job
from dev.services.kafka import Kafka
from tests.support.airflow_home import CHECKOUT, Connections
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake_reading import numbers

TABLE = "lake.t"
PAGE = (CHECKOUT / "docs" / "runbook.md").read_text()
# Each case of the page, by its heading or the first words of its item, and the tests that play it.
CASES = {
    "Nothing lands": [
        "integration/test_status.py::test_a_slow_consumer_and_a_stopped_one",
        "integration/test_ledger_commands.py::test_a_plan_says_what_the_next_run_lands_and_writes_nothing",
    ],
    "It lands, but too slowly": [
        "integration/test_status.py::test_a_slow_consumer_and_a_stopped_one",
        "integration/test_status.py::test_a_late_partition_is_named",
        "integration/test_exactly_once.py::test_max_records_ends_each_run_exactly_there_and_the_next_goes_on",
    ],
    "The Spark query": [
        "spark/test_submit_stream.py::test_a_driver_that_fails_vanishes_or_stalls_is_restarted",
        "page/test_demo.py::test_a_stream_on_spark_links_to_its_pages_and_is_stopped_for_good",
    ],
    "failed": ["spark/test_submit_stream.py::test_a_driver_that_fails_vanishes_or_stalls_is_restarted"],
    "vanished": ["spark/test_submit_stream.py::test_a_driver_that_fails_vanishes_or_stalls_is_restarted"],
    "stuck": ["spark/test_submit_stream.py::test_a_driver_that_fails_vanishes_or_stalls_is_restarted"],
    "the checkpoint is damaged or lost": [
        "spark/test_spark_failures.py::test_a_damaged_checkpoint_is_refused_and_without_it_each_record_lands_once",
        "spark/test_spark_query.py::test_a_checkpoint_that_is_deleted_costs_nothing",
    ],
    "Records are gone from Kafka": [
        "integration/test_loss_and_recreation.py::"
        "test_offsets_lost_before_the_run_are_refused_with_the_exact_range_and_the_remedy",
        "integration/test_loss_and_recreation.py::"
        "test_a_recorded_loss_is_in_the_ledger_and_the_report_and_never_brought_up_again",
        "integration/test_audit.py::test_a_receipt_of_a_loss_is_shown_and_is_no_damage",
        "sensors/test_sensor_retention.py::test_it_fires_before_a_real_topic_loses_the_first_record",
    ],
    "An engine has made other values": [
        "engines/test_odd_values.py::test_by_connect",
        "engines/test_odd_values.py::test_by_flink",
    ],
    "A batch is damaged": [
        "integration/test_damaged_log.py::test_a_damaged_batch_is_given_up_by_a_receipt_and_the_stream_goes_on",
    ],
    "The group's offsets are another log's": [
        "integration/test_committed_offsets.py::"
        "test_a_refusal_that_can_not_be_noted_says_so_and_a_dry_look_notes_nothing",
    ],
    "No field of the records has a column": [
        "integration/test_silent_columns.py::test_records_of_which_no_field_has_a_column_land_nothing",
    ],
    "The topic was created again": [
        "integration/test_loss_and_recreation.py::test_a_topic_created_anew_is_refused_with_both_ids_and_the_remedy",
        "integration/test_runbook.py::test_a_topic_made_anew_goes_on_under_another_group_beside_the_old_ledger",
    ],
    "Another tool's rows": [
        "integration/test_foreign_rows.py::test_rows_of_another_tool_are_not_doubled",
        "integration/test_adopt.py::test_rows_with_positions_are_adopted_and_the_next_run_lands_what_they_lack",
    ],
    "The log is shorter than the table": [
        "integration/test_loss_and_recreation.py::test_a_log_shorter_than_the_ledger_is_refused",
    ],
    "Most records are bad": [
        "integration/test_mostly_bad.py::test_each_format_that_is_not_the_topics_fails_and_leaves_nothing",
        "integration/test_operator.py::test_a_run_that_would_reject_most_fails_without_a_retry_unless_it_is_told_to",
    ],
    "The schema does not fit": ["contract/test_schema_changes.py::test_what_a_table_can_not_become_is_refused"],
    "The records have a new field": [
        "integration/test_schema_changes.py::test_a_new_version_in_the_registry_adds_and_widens_columns",
        "integration/test_schema_changes.py::test_fields_without_a_column_become_columns",
    ],
    "A type became wider": [
        "integration/test_schema_changes.py::test_a_new_version_in_the_registry_adds_and_widens_columns",
    ],
    "A type became another type": [
        "contract/test_schema_changes.py::test_what_a_table_can_not_become_is_refused",
        "integration/test_runbook.py::test_a_type_that_became_another_one_lands_in_a_new_column_by_sql",
    ],
    "Somebody dropped or renamed a column of the table": [
        "integration/test_runbook.py::test_a_renamed_column_is_named_and_the_schema_of_now_lands",
    ],
    "The registry is down": [
        "integration/test_formats.py::test_a_registry_that_is_down_fails_the_run_and_no_record",
        "integration/test_formats_operator.py::test_a_registry_that_is_down_is_tried_again_and_one_that_refuses_is_not",
    ],
    "A column of the source is another one": [
        "integration/test_source_types.py::test_events_whose_column_is_another_one_are_refused_and_land_in_a_new_table",
    ],
    "Too many small files": ["dags/test_maintenance_dag.py::test_small_files_become_one_and_landings_go_on"],
    "The disk is full": ["unit/test_mistakes.py::test_60_a_full_disk"],
    "The store failed": ["unit/test_mistakes.py::test_errors_of_a_store_name_the_table"],
    "Prove it": [
        "integration/test_repair.py::test_each_damage_is_repaired",
        "integration/test_ledger_commands.py::test_history_says_which_landing_wrote_which_file",
    ],
}

Land = Callable[..., Sequence[int]]


def test_each_case_of_the_page_is_played_by_tests_that_are_there() -> None:
    spark, schema = (PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] for heading in SECTIONS_OF_ITEMS)
    items = re.findall(r"^- \**([^:*\n]+)", spark + schema, re.MULTILINE)
    assert set(CASES) == {*re.findall(r"^## (.*)$", PAGE, re.MULTILINE), *items}
    for test in (test for tests in CASES.values() for test in tests):
        file, _, name = test.partition("::")
        assert f"def {name}(" in Path(CHECKOUT, "tests", file).read_text(), test


SECTIONS_OF_ITEMS = ("The Spark query", "The schema does not fit")


@pytest.fixture
def land_it(connections: Connections, kafka: Kafka) -> Land:
    """Give `land_it(topic, run, group)`: a landing; the snapshots that it made."""

    def go(topic: str, run_id: str, group: str = "g", **options: object) -> Sequence[int]:
        config = ExtractConfig(topic=topic, table=TABLE, consumer_group=group, **options)
        return land(build_job(config, kafka.client_config(), connections.catalog, run_id=run_id)).snapshot_ids

    return go


def rows(connections: Connections, column: str) -> list[object]:
    return sorted(connections.catalog.load_table(TABLE).scan().to_arrow()[column].to_pylist(), key=str)


@pytest.mark.integration
def test_a_topic_made_anew_goes_on_under_another_group_beside_the_old_ledger(
    connections: Connections, land_it: Land, topic_of: TopicOf, topic: Topics, produce: Producing
) -> None:
    name = topic_of(numbers(3))
    land_it(name, "r1")
    topic.delete(name)
    topic(partitions=1, name=name)
    produce(name, 0, numbers(3, 100))
    with pytest.raises(TopicReplaced):
        land_it(name, "r2")
    land_it(name, "r3", "next")

    produce(name, 0, numbers(3, 200))
    assert land_it(name, "r4", "next")
    assert rows(connections, "n") == [0, 1, 100, 101, 102, 2, 200, 201, 202]
    assert run(["audit", "--table", TABLE, "--group", "next", "--full"]) == 0
    # The old ledger accounts for the old rows.
    assert run(["ledger", "reset", "--table", TABLE, "--group", "g", "--yes"]) == 0
    assert run(["audit", "--table", TABLE, "--group", "next", "--full"]) == 1


@pytest.mark.integration
def test_a_type_that_became_another_one_lands_in_a_new_column_by_sql(
    connections: Connections, land_it: Land, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of([b'{"size": 1}'])
    land_it(name, "r1", schema="size int")
    produce(name, 0, [b'{"size": "XL"}'])

    read = "json_value(value, '$.size')"
    sql = f"SELECT TRY_CAST({read} AS INT) AS size, {read} AS size_name FROM {{{{ input }}}}"
    assert land_it(name, "r2", sql=sql, schema_evolution="add")
    assert rows(connections, "size") == [1, None]
    assert rows(connections, "size_name") == [None, "XL"]


@pytest.mark.integration
def test_a_renamed_column_is_named_and_the_schema_of_now_lands(
    connections: Connections, land_it: Land, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of([b'{"id": 1, "name": "a"}'])
    land_it(name, "r1", schema="id int, name string")
    with connections.catalog.load_table(TABLE).update_schema() as update:
        update.rename_column("name", "title")
    produce(name, 0, [b'{"id": 2, "title": "b"}'])

    with pytest.raises(InvalidArgument, match="'name'"):
        land_it(name, "r2", schema="id int, name string")

    assert land_it(name, "r3", schema="id int, title string")
    assert rows(connections, "title") == ["a", "b"]
