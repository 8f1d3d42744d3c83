"""Mistakes in a DAG file's own values: seen where the file is parsed; templates and other tasks' results are not."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_lakestream.config.literals import check_literals
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.audit import LakestreamAuditOperator
from airflow_lakestream.operators.flink_sql import FlinkSqlOperator
from airflow_lakestream.operators.kafka_connect import KafkaConnectOperator
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator
from airflow_lakestream.operators.replay import LakestreamReplayOperator
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator
from airflow_lakestream.operators.table_contents import TableContentsOperator
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor
from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor
from airflow_lakestream.sensors.retention_risk import RetentionRiskSensor


def extract(**more: Any) -> object:
    return KafkaExtractOperator(**{"task_id": "land", "topic": "orders", "table": "lake.orders", **more})


def mirror(**more: Any) -> object:
    return KafkaMirrorOperator(**{"task_id": "mirror", "topic": "orders", "table": "lake.orders", **more})


def group(**more: Any) -> object:
    return kafka_extract_group("land", **{"topic": "orders", "table": "lake.orders", **more})


def stream(**more: Any) -> object:
    config = {"topic": "orders", "table": "lake.orders", **more.pop("app_config", {})}
    given = {"task_id": "stream", "app": "kafka_to_iceberg", "app_config": config, **more}
    return SparkStreamingSubmitOperator(**given)


def flink(**more: Any) -> object:
    given = {"task_id": "land", "topic": "orders", "table": "lake.orders", "columns": "id bigint", **more}
    return FlinkSqlOperator(**given)


def audit(**more: Any) -> object:
    return LakestreamAuditOperator(**{"task_id": "audit", "table": "lake.orders", **more})


def contents(**more: Any) -> object:
    return TableContentsOperator(**{"task_id": "look", "table": "lake.orders", **more})


def lag(**more: Any) -> object:
    return CheckpointLagSensor(task_id="wait", table="lake.orders", **more)


def connect(**more: Any) -> object:
    given = {"task_id": "land", "connector": "c", "kind": "sink", "config": {"connector.class": "x"}, **more}
    return KafkaConnectOperator(**given)


# More of the extract's are in tests/unit/test_mistakes.py.
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (
        extract,
        {"table": "hdfs://names/lake/orders", "table_format": "delta"},
        "table: 'hdfs://names/lake/orders': a version of a Delta table's log can't be written to HDFS",
    ),
    (extract, {"on_empty": "fail"}, "on_empty: 'fail' is not one of 'success', 'skip'"),
    (extract, {"new_tables": "yes"}, "new_tables: 'yes' is not one of"),
    (extract, {"max_records": 0}, "max_records: 0 is not a number of records above 0"),
    (extract, {"replace": "yes"}, "replace: 'yes' is neither true nor false"),
    (extract, {"start_timestamp": datetime(2026, 1, 1)}, "start_timestamp: 2026-01-01 00:00:00 has no time zone"),
    (extract, {"partition_by": {"day": "at"}}, "partition_by: {'day': 'at'} is not a list of texts"),
    (extract, {"timestamps_finer": "round"}, "timestamps_finer: 'round' is not one of 'reject', 'truncate'"),
    (extract, {"home_table": "home"}, "home_table: 'home' is not of the form namespace.table"),
    (extract, {"checks": {"notnull": ["id"]}}, "checks: 'notnull' is not one of 'sql', 'not_null', 'unique'"),
    (extract, {"checks": {"row_count": {"min": "few"}}}, "checks.row_count.min: 'few' is not a whole number from 0"),
    (extract, {"checks": {"freshness": "soon"}}, "checks.freshness: 'soon' is not a number of seconds"),
    (extract, {"checks": {"unique": "id"}, "table": "lake.{key}"}, "checks: table='lake.{key}' does not go with"),
    (mirror, {"table": "orders"}, "table: 'orders' is not of the form namespace.table"),
    (mirror, {"table": "lake.{header:kind}"}, "table: 'lake.{header:kind}': each topic has one mirror. Write"),
    (mirror, {"table_format": "delta"}, "table: 'lake.orders' is not a place of a Delta table"),
    (mirror, {"key": {"id": 1}}, "key: {'id': 1} is not a list of texts"),
    (mirror, {"soft_delete": "maybe"}, "soft_delete: 'maybe' is neither true nor false"),
    (mirror, {"out_of_range": "keep"}, "out_of_range: 'keep' is not one of 'reject', 'clamp', 'null'"),
    (mirror, {"rename_columns": "id"}, "rename_columns: 'id' is not a mapping of names"),
    (mirror, {"source_tables": "shop.("}, "source_tables: 'shop.(' is not a regular expression"),
    (mirror, {"mode": "resume"}, "mode: is not for a mirror: all events are applied, from the topic's begin"),
    (mirror, {"start_timestamp": 1}, "start_timestamp: is not for a mirror: all events are applied"),
    (mirror, {"replace": True}, "replace: is not for a mirror: rows of a mirror are states, not records."),
    (mirror, {"sql": "select 1"}, "sql: is not for a mirror: a mirror has the rows of the database's table."),
    (
        mirror,
        {"checks": {"freshness": "1h"}},
        "checks.freshness: is not for a mirror: its rows keep no time of Kafka's.",
    ),
    (extract, {"envelope": "flattened"}, "envelope: 'flattened' is not one of 'connect', 'debezium'."),
    (group, {"envelope": "flattened"}, "envelope: 'flattened' is not one of 'connect', 'debezium'."),
    (stream, {"app_config": {"envelope": "flattened"}}, "envelope: 'flattened' is not one of 'connect', 'debezium'."),
    (extract, {"envelope": "maxwell"}, "envelope: 'maxwell' is not one of 'connect', 'debezium'."),
    (mirror, {"envelope": "ticdc"}, "envelope: 'ticdc' is not one of 'connect', 'debezium', 'flattened', 'maxwell', "),
    (mirror, {"envelope": "canal", "format": "avro"}, "envelope: 'canal' goes with format=\"json\", not with 'avro'."),
    (stream, {"app_config": {"checks": {"notnull": "id"}}}, "checks: 'notnull' is not one of 'sql', 'not_null'"),
    (flink, {"checks": {"notnull": ["id"]}}, "checks: 'notnull' is not one of 'sql', 'not_null', 'unique'"),
    (connect, {"checks": {"notnull": ["id"]}}, "checks: 'notnull' is not one of 'sql', 'not_null', 'unique'"),
    (flink, {"prove": "some"}, "prove: 'some' is not a share of the records"),
    (connect, {"prove": 5}, "prove: 5 is not a share of the records"),
    (
        connect,
        {"checks": {"unique": "id"}},
        "checks: go with kind='iceberg_sink': only this kind has a branch to publish.",
    ),
    (group, {"checks": {"row_count": 1}}, "checks.row_count: 1 has no bounds"),
    (group, {"mode": "append"}, "mode: 'append' is not one of"),
    (
        group,
        {"topic": "^orders-.*"},
        "topic: is not for a group of tasks: a regex has several topics. Use KafkaExtractOperator",
    ),
    (group, {"table": "lake.{key}"}, "table: is not for a group of tasks: each record chooses its table."),
    (
        group,
        {"unknown_fields": "evolve"},
        'unknown_fields: is not for a group of tasks: with "evolve" each task would name other columns.',
    ),
    (
        group,
        {"parallelism": 2},
        "parallelism: is not for a group of tasks: several tasks read. Set the number of readers with `tasks`.",
    ),
    (
        group,
        {"replace": True},
        "replace: is not for a group of tasks: one task replaces rows. Use KafkaExtractOperator, in one task.",
    ),
    (
        group,
        {"idle_timeout": "5m"},
        "idle_timeout: is not for a group of tasks: its plan is fixed. Use KafkaExtractOperator",
    ),
    (audit, {"full": "deep"}, "full: 'deep' is neither true nor false"),
    (audit, {"table": "orders"}, "table: 'orders' is not of the form namespace.table"),
    (
        lambda **more: LakestreamReplayOperator(task_id="replay", **{"table": "lake.orders", **more}),
        {"limit": "some"},
        "limit: 'some' is not a number of records above 0",
    ),
    (contents, {"samples": "few"}, "samples: 'few' is not a number from 0 on"),
    (contents, {"table": "orders"}, "table: 'orders' is not of the form namespace.table"),
    (
        stream,
        {"app_config": {"transform": "sessions.by_user"}},
        "transform: 'sessions.by_user' is not of the form module:function. Write such as",
    ),
    (stream, {"app": "kafka_to_iceburg"}, "app: 'kafka_to_iceburg' is not a bundled app. Did you mean"),
    (stream, {"trigger": "now"}, "trigger: 'now' is neither \"available_now\" nor a time between two batches"),
    (stream, {"stall_timeout": "a while"}, "stall_timeout: 'a while' is not a number of seconds"),
    (stream, {"max_restarts": -1}, "max_restarts: -1 is not a number from 0 on"),
    (stream, {"on_kill_action": "stop"}, "on_kill_action: 'stop' is not one of 'graceful', 'kill', 'leave'"),
    (stream, {"app_config": {"format": "xml"}}, "format: 'xml' is not one of"),
    (stream, {"app_config": {"table": "orders"}}, "table: 'orders' is not of the form namespace.table"),
    (stream, {"app": "kafka_to_delta"}, "table: 'lake.orders' is not a place of a Delta table"),
    (lag, {"max_lag_records": "few"}, "max_lag_records: 'few' is not a number from 0 on"),
    (lag, {"missing": "ignore"}, "missing: 'ignore' is not one of 'wait', 'fail'"),
    (
        lambda **more: IcebergSnapshotFreshnessSensor(task_id="wait", table="lake.orders", **more),
        {"max_age": "a day"},
        "max_age: 'a day' is not a number of seconds",
    ),
    (
        lambda **more: RetentionRiskSensor(task_id="wait", table="lake.orders", **more),
        {"min_time_left": "six hours"},
        "min_time_left: 'six hours' is not a number of seconds",
    ),
]


@pytest.mark.parametrize(("make", "given", "said"), WRONG)
def test_a_mistake_is_told_where_the_dag_is_parsed(make: Any, given: dict[str, Any], said: str) -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidArgument) as caught:
        make(**given)
    assert str(caught.value).startswith(said)


def test_templates_and_other_tasks_results_are_left_to_the_run() -> None:
    @task
    def chosen() -> str:
        return "resume"

    with DAG("d", schedule=None, params={"rows": 5}):
        extract(
            topic="{{ params.topic }}",
            table="{{ params.table }}",
            mode=chosen(),
            max_records="{{ params.rows }}",
            max_batch_bytes="{% if params.big %}1GiB{% endif %}",
            partition_by=["{{ params.by }}"],
            table_format="{{ params.kind }}",
            interval_start=None,
            max_rejected="",
        )
        stream(app_config={"table": "{{ params.table }}"}, trigger="{{ params.every }}")


def test_values_of_every_kind_that_a_run_takes_are_taken() -> None:
    with DAG("d", schedule=None):
        extract(topic="^orders-.*", table="lake.{topic}", max_rejected="1%", ranges="[[0, 1, 2]]", mode="ranges")
        extract(task_id="by_record", table="lake.{header:type}", start_timestamp="2026-01-01T00:00:00Z")
        extract(task_id="delta", table="s3://bucket/orders", table_format="delta", schema_registry="registry_conn")
        mirror(table="lake.{topic}", topic="^shop.*", key="id", rename_columns='{"_op": "op"}', soft_delete="true")
        mirror(task_id="as_delta", table="s3://bucket/orders", table_format="delta", source_tables=r"a\.b\.c_\d+")
        IcebergSnapshotFreshnessSensor(task_id="fresh", table="lake.orders", max_age=timedelta(hours=1))
        CheckpointLagSensor(task_id="lag", group_id="g", topic=["a", "b"], max_lag_records=0)


# Arguments that any text may be right for: names, DDL and SQL; the run finds out. `table_format` is tried above.
OF_ANY_TEXT = {"kafka_conn_id", "iceberg_conn_id", "storage_conn_id", "schema", "sql", "schema_registry"}
OF_ANY_TEXT |= {"writer_schemas", "partition_by", "sort_order", "table_format", "topic_url", "table_url"}
# A key, a sequence, a condition and a placeholder may be any text, and the tables any regex; others have own tests.
OF_ANY_TEXT |= {"key", "sequence_by", "history_columns", "delete_when", "source_tables", "unavailable_placeholder"}


def test_every_other_argument_of_a_landing_is_checked() -> None:
    for name in {*KafkaExtractOperator.template_fields, *KafkaMirrorOperator.template_fields} - OF_ANY_TEXT:
        with pytest.raises(InvalidArgument, match=f"^{name}: "):
            check_literals({name: "no such value, and no number: /"})
