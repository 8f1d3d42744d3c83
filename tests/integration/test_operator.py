"""KafkaExtractOperator on a real Airflow and a real broker: templates, retries, stops, connections, secrets."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Asset, AssetAlias, task
from airflow.sdk.exceptions import AirflowTaskTimeout
from airflow.serialization.serialized_objects import DagSerialization
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_lakestream.core.landing.job import Stopped
from airflow_lakestream.kafka import requests
from airflow_lakestream.kafka.errors import KafkaUnavailable
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from dev.services.kafka import Kafka
from tests.support.airflow_home import AirflowHome, Connections, FailsOnce
from tests.support.broker import poll_until

TABLE = "lake.t"
NOW = timedelta(0)


@pytest.fixture(autouse=True)
def _jobs_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what the DAG files of these tests patch: Airflow parses them in this process, too."""
    from airflow_lakestream.run import job as extract

    monkeypatch.setattr(extract, "build_job", extract.build_job)


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b'{"n":%d}' % n for n in range(start, start + count)]


def extract_dag(
    dag_id: str,
    *,
    params: dict[str, Any] | None = None,
    native: bool = False,
    schedule: str | None = None,
    **options: Any,
) -> DAG:
    """Return a DAG of one landing, whose topic and table come from its params."""
    with DAG(
        dag_id, schedule=schedule, params={"topic": "", **(params or {})}, render_template_as_native_obj=native
    ) as dag:
        arguments = {"topic": "{{ params.topic }}", "table": TABLE, "retry_delay": NOW, **options}
        KafkaExtractOperator(task_id="land", **arguments)
    return dag


def landed(connections: Connections, table: str = TABLE) -> list[tuple[int, int]]:
    """Return (partition, offset) of every row, sorted; a doubled row stands twice."""
    rows = connections.catalog.load_table(table).scan().to_arrow()
    return sorted(zip(rows["_kafka_partition"].to_pylist(), rows["_kafka_offset"].to_pylist(), strict=True))


def assert_nothing_is_left(connections: Connections) -> None:
    assert connections.catalog.list_namespaces() == []
    assert not [path for path in connections.warehouse.rglob("*") if path.is_file()]


# Intervals


def test_a_plain_cron_schedule_has_no_interval_and_says_what_to_do(airflow: AirflowHome, topic) -> None:
    name = topic(1)
    dag = extract_dag("plain_cron", params={"topic": name}, schedule="0 * * * *", mode="interval")
    run = airflow.run(dag)
    assert run.state == "failed"
    (error,) = run.errors
    assert isinstance(error, AirflowFailException)
    assert "plain cron" in str(error)
    assert "CronDataIntervalTimetable" in str(error)


# Templates


def test_every_argument_that_a_run_may_vary_is_a_template(
    airflow: AirflowHome, connections: Connections, topic_of
) -> None:
    name = topic_of(numbers(10))
    given = {
        "topic": name,
        "table": "other.place",
        "consumer_group": "a-group",
        "format": "json",
        "key_format": "",
        "envelope": "",
        "schema_registry": "",
        "writer_schemas": "",
        "kafka_conn_id": "kafka_default",
        "iceberg_conn_id": "iceberg_default",
        "table_format": "iceberg",
        "storage_conn_id": "",
        "topic_url": "",
        "table_url": "",
        "mode": "resume",
        "interval_start": "",
        "interval_end": "",
        "ranges": "",
        "replace": "False",
        "start_offset": "timestamp",
        "start_timestamp": "2020-01-01T00:00:00Z",
        "max_records": "7",
        "max_batch_bytes": "1MiB",
        "max_bytes_per_second": "1GiB",
        "checkpoint_interval": "5s",
        "poll_timeout": "20s",
        "idle_timeout": "0",
        "parallelism": "1",
        "schema": "n bigint",
        "schema_evolution": "add",
        "unknown_fields": "fail",
        "sql": "",
        "sql_input": "raw",
        "csv_delimiter": ",",
        "rename_columns": {"x": "y"},
        "timestamps_finer": "truncate",
        "unavailable_placeholder": "__debezium_unavailable_value",
        "unavailable_values": "reject",
        "metadata_columns": ["partition", "offset", "key"],
        "partition_by": ["bucket(2, n)"],
        "sort_order": ["n desc"],
        "table_properties": {"comment": "made by a template"},
        "maintain": "never",
        "new_tables": "create",
        "max_tables": "7",
        "home_table": "",
        "on_error": "reject",
        "max_rejected": "5",
        "tombstones": "keep",
        "on_data_loss": "record",
        "on_empty": "skip",
        "allow_group_overlap": "False",
        "checks": {"not_null": "n"},
    }
    assert set(given) == set(KafkaExtractOperator.template_fields)
    as_templates = {
        field: _param(field) if isinstance(value, str) else _each(value, field) for field, value in given.items()
    }
    dag = extract_dag("all_templates", params=given, **as_templates)
    run = airflow.run(dag)
    assert run.errors == []
    assert run.task().rendered == given
    assert run.task().xcom["ranges"] == [[0, 0, 7]]
    table = connections.catalog.load_table("other.place")
    assert table.properties["comment"] == "made by a template"
    assert [field.name for field in table.schema().fields] == ["n", "_kafka_partition", "_kafka_offset", "_kafka_key"]
    assert str(table.spec().fields[0].transform) == "bucket[2]"


def _param(field: str, item: str = "") -> str:
    return "{{ params." + field + item + " }}"


def _each(value: Any, field: str) -> Any:
    """Make a template of each element of a list, or each value of a dictionary."""
    if isinstance(value, dict):
        return {key: _param(field, f"[{key!r}]") for key in value}
    return [_param(field, f"[{n}]") for n in range(len(value))]


@pytest.mark.parametrize("native", [False, True], ids=["as text", "as native objects"])
def test_params_left_empty_are_as_if_not_given(
    native: bool, airflow: AirflowHome, connections: Connections, topic_of
) -> None:
    name = topic_of(numbers(10))
    optional = ("max_records", "start_timestamp", "schema", "partition_by", "sort_order")
    dag = extract_dag(
        f"empty_params_{native}",
        params=dict.fromkeys(optional),
        native=native,
        **{field: _param(field) for field in optional},
    )
    run = airflow.run(dag, {"topic": name})
    assert run.errors == []
    assert run.task().xcom["rows"] == 10


def arrow_schema() -> Any:
    return pa.schema({"n": pa.int64()})


def iceberg_schema() -> Any:
    return Schema(NestedField(1, "n", LongType(), required=False))


@pytest.mark.parametrize("make", [arrow_schema, iceberg_schema])
def test_a_schema_may_be_an_object(
    make: Callable[[], Any], airflow: AirflowHome, connections: Connections, topic_of
) -> None:
    name = topic_of(numbers(3))
    run = airflow.run(extract_dag("schema_object", schema=make()), {"topic": name})
    assert run.errors == []
    assert run.task().rendered["schema"] == "table {\n  1: n: optional long\n}"
    assert connections.catalog.load_table(TABLE).schema().find_type("n") == LongType()


@pytest.mark.parametrize("make", [arrow_schema, iceberg_schema])
def test_a_schema_object_gives_the_same_dag_at_each_parse(make: Callable[[], Any]) -> None:
    # Airflow makes a new version of a DAG whenever what it serializes has changed.
    def serialized() -> str:
        return json.dumps(DagSerialization.serialize_dag(extract_dag("schemas", schema=make())), sort_keys=True)

    assert serialized() == serialized()


# Tries, clears, skips


def test_a_retry_whose_earlier_try_landed_returns_that_report(
    airflow: AirflowHome, connections: Connections, topic, produce
) -> None:
    name, fails = topic(1), FailsOnce()
    produce(name, 0, numbers(10))
    dag = extract_dag("landed_then_lost", retries=1, post_execute=fails, outlets=[Asset("iceberg://lake/t")])
    run = airflow.run(dag, {"topic": name})
    assert (run.state, run.task().tries, fails.calls) == ("success", 2, 2)
    report = run.task().xcom
    assert (report["rows"], report["ranges"]) == (10, [[0, 0, 10]])
    assert run.asset_events == [("iceberg://lake/t", report)]
    table = connections.catalog.load_table(TABLE)
    assert report["snapshot_ids"] == [str(snapshot.snapshot_id) for snapshot in table.snapshots()]
    assert landed(connections) == [(0, n) for n in range(10)]


def test_a_run_that_is_cleared_lands_nothing_again(
    airflow: AirflowHome, connections: Connections, topic_of, produce
) -> None:
    name = topic_of(numbers(10))
    dag = extract_dag("cleared", outlets=[Asset("iceberg://lake/t")])
    run = airflow.run(dag, {"topic": name})
    first = run.task()
    airflow.clear_and_run(dag, run)
    again = run.task()
    assert (again.state, again.tries) == ("success", 2)
    assert again.xcom == first.xcom
    assert again.xcom["rows"] == 10
    assert len(connections.catalog.load_table(TABLE).snapshots()) == 1
    assert landed(connections) == [(0, n) for n in range(10)]
    produce(name, 0, numbers(5, start=10))
    airflow.clear_and_run(dag, run)
    assert (run.task().xcom["rows"], len(run.task().xcom["snapshot_ids"])) == (15, 2)
    assert landed(connections) == [(0, n) for n in range(15)]


def test_a_run_with_nothing_to_land_can_be_skipped(airflow: AirflowHome, connections: Connections, topic_of) -> None:
    name = topic_of(numbers(3))
    dag = extract_dag("skips_when_empty", on_empty="skip", outlets=[AssetAlias("skips_when_empty")])
    assert airflow.run(dag, {"topic": name}).task().state == "success"
    empty = airflow.run(dag, {"topic": name})
    assert (empty.state, empty.task().state, empty.asset_events) == ("success", "skipped", [])


def test_what_may_pass_is_retried(
    airflow: AirflowHome, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "REQUEST_TIMEOUT", 1.0)
    connections.kafka({"bootstrap.servers": "127.0.0.1:1"})
    run = airflow.run(extract_dag("no_broker", retries=1), {"topic": "any"})
    assert (run.state, run.task().tries) == ("failed", 2)
    assert [type(error) for error in run.errors] == [KafkaUnavailable, KafkaUnavailable]
    assert "Kafka connection 'kafka_default'" in str(run.errors[0])
    assert_nothing_is_left(connections)


def test_a_schema_that_contradicts_the_table_fails_without_a_retry(
    airflow: AirflowHome, connections: Connections, topic_of
) -> None:
    name = topic_of(numbers(3))
    airflow.run(extract_dag("contradiction"), {"topic": name})
    before = connections.catalog.load_table(TABLE).metadata
    run = airflow.run(extract_dag("contradiction", schema="n string", retries=2), {"topic": name})
    assert (run.state, run.task().tries) == ("failed", 1)
    [error] = run.errors
    assert isinstance(error, AirflowFailException)
    assert "schema" in str(error)
    assert TABLE in str(error)
    assert connections.catalog.load_table(TABLE).metadata == before


def test_a_failed_check_fails_without_a_retry_and_the_mended_one_lands_each_record(
    airflow: AirflowHome, connections: Connections, topic_of
) -> None:
    name = topic_of(numbers(5))
    checks = {"sql": "SELECT * FROM landing WHERE n >= {{ params.most }}", "row_count": {"max": "{{ params.rows }}"}}
    dag = extract_dag("checked", checks=checks, retries=2, params={"most": 4, "rows": 5})
    run = airflow.run(dag, {"topic": name})
    assert (run.state, run.task().tries) == ("failed", 1)
    [error] = run.errors
    assert isinstance(error, AirflowFailException)
    assert f"{name}[0] offset 4: n=4" in str(error)
    assert landed(connections) == []
    report = airflow.run(dag, {"topic": name, "most": 5}).task().xcom
    assert report["rows"] == 5
    assert landed(connections) == [(0, n) for n in range(5)]
    assert list(connections.catalog.load_table(TABLE).metadata.refs) == ["main"]


def test_a_run_that_would_reject_most_fails_without_a_retry_unless_it_is_told_to(
    airflow: AirflowHome, connections: Connections, topic_of
) -> None:
    name = topic_of([b'{"N": 1}'] * 20)
    most = {"max_rejected": "{{ params.most }}", "params": {"most": None}}
    dag = extract_dag("mostly_bad", schema="n bigint not null", retries=2, **most)
    dag_again = extract_dag("mostly_bad", schema="n bigint not null", on_error="skip", max_rejected="1.0")
    run = airflow.run(dag, {"topic": name})
    assert (run.state, run.task().tries) == ("failed", 1)
    [error] = run.errors
    assert isinstance(error, AirflowFailException)
    assert "20 of 20 records of this run are bad" in str(error)
    assert "names match exactly" in str(error)
    assert_nothing_is_left(connections)
    report = airflow.run(dag_again, {"topic": name}).task().xcom
    assert (report["read"], report["rows"], report["skipped"], report["bad"]) == (20, 0, 20, 20)


def test_the_report_goes_to_tasks_behind_it(airflow: AirflowHome, connections: Connections, topic, produce) -> None:
    name, seen = topic(1), []
    produce(name, 0, numbers(4))

    @task
    def look(report: dict[str, Any]) -> int:
        seen.append(report)
        return int(report["rows"])

    dag = extract_dag("hands_on")
    with dag:
        look(dag.get_task("land").output)
    run = airflow.run(dag, {"topic": name})
    assert run.state == "success"
    assert run.task("look").xcom == 4
    assert seen == [run.task("land").xcom]


# Stops

_FILE = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_lakestream.operators import kafka_extract
{extra}
with DAG("{dag_id}", schedule=None, params={{"topic": ""}}) as dag:
    kafka_extract.KafkaExtractOperator(
        task_id="land", topic="{{{{ params.topic }}}}", table="lake.t", {options}
    )
"""
# Only in the task's own process: `dag.test()` of any later test parses this file again.
_LINGER = "import sys\nfrom tests.support import lingering\nif 'task_process' in sys.argv[0]: lingering.install()"


def _data_files(connections: Connections) -> list[Path]:
    return list(connections.warehouse.rglob("*.parquet"))


def test_a_worker_that_is_drained_stops_the_landing_and_leaves_nothing(
    airflow: AirflowHome, connections: Connections, topic_of
) -> None:
    name = topic_of(numbers(1000))
    file = airflow.write("drained", _FILE.format(dag_id="drained", extra=_LINGER, options="retries=1"))
    run = airflow.start(airflow.dag(file), {"topic": name})
    with airflow.process(run, file) as process:
        poll_until(lambda: bool(_data_files(connections)), "rows to be written", 180)
        process.terminate()
        process.wait(60)
    assert run.task().state == "up_for_retry", process.log
    assert Stopped.__name__ in process.log
    assert_nothing_is_left(connections)


def test_a_run_that_follows_a_topic_ends_well_when_it_is_stopped(
    airflow: AirflowHome, connections: Connections, topic_of
) -> None:
    name = topic_of(numbers(10))
    file = airflow.write("followed", _FILE.format(dag_id="followed", extra="", options="idle_timeout=600"))
    run = airflow.start(airflow.dag(file), {"topic": name})
    with airflow.process(run, file) as process:
        poll_until(lambda: "Committed 10 rows" in process.log, "the first landing", 180)
        process.terminate()
        process.wait(60)
    assert (run.task().state, run.task().xcom["rows"]) == ("success", 10), process.log
    assert landed(connections) == [(0, n) for n in range(10)]


def test_a_landing_that_takes_too_long_leaves_nothing(
    airflow: AirflowHome, connections: Connections, topic_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_lakestream.run import job as extract
    from airflow_lakestream.tables import row_buffer
    from tests.support import lingering

    # What is installed is taken back: other tests run in this process.
    monkeypatch.setattr(extract, "build_job", extract.build_job)
    monkeypatch.setattr(row_buffer, "FILE_BYTES", row_buffer.FILE_BYTES)
    lingering.install()
    name = topic_of(numbers(1000))
    run = airflow.run(extract_dag("takes_too_long", execution_timeout=timedelta(seconds=3)), {"topic": name})
    assert run.state == "failed"
    assert [type(error) for error in run.errors] == [AirflowTaskTimeout]
    assert_nothing_is_left(connections)


# Connections and secrets


def test_lands_through_sasl_ssl_and_shows_no_secret_anywhere(
    airflow: AirflowHome, connections: Connections, kafka: Kafka, topic_of
) -> None:
    name = topic_of(numbers(10))
    connections.kafka(kafka.secure_client_config())
    file = airflow.write("secure", _FILE.format(dag_id="secure", extra=_TELL_TALE, options=""))
    run = airflow.start(airflow.dag(file), {"topic": name})
    with airflow.process(run, file) as process:
        process.wait()
    result = run.task()
    assert (result.state, result.xcom["rows"]) == ("success", 10), process.log
    assert "the configuration is" in process.log
    for shown in (process.log, json.dumps(result.rendered), json.dumps(result.xcom)):
        assert kafka.password not in shown


# Somebody who logs what must not be logged.
_TELL_TALE = """
import logging, sys
from airflow_lakestream.run import job
real = job.build_job
def build_job(config, kafka, *args, **options):
    logging.getLogger("tell.tale").warning("the configuration is %s", dict(kafka))
    return real(config, kafka, *args, **options)
if "task_process" in sys.argv[0]:
    job.build_job = build_job
"""


def test_a_wrong_password_fails_soon_and_is_not_shown(
    airflow: AirflowHome, connections: Connections, kafka: Kafka, topic, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = "a-wrong-passphrase-4711"
    connections.kafka({**kafka.secure_client_config(), "sasl.password": wrong})
    run = airflow.run(extract_dag("wrong_password", retries=2), {"topic": topic(1)})
    assert (run.state, run.task().tries) == ("failed", 1)
    [error] = run.errors
    assert isinstance(error, AirflowFailException)
    assert "Kafka connection 'kafka_default'" in str(error)
    assert "sasl.password" in str(error)
    output = "".join(capfd.readouterr())
    assert "Task failed with exception" in output
    for shown in (output, str(error), repr(error.__cause__), json.dumps(run.task().rendered)):
        assert wrong not in shown
    assert_nothing_is_left(connections)


def test_a_broken_catalog_is_named_and_its_secrets_are_not(
    airflow: AirflowHome, connections: Connections, topic, produce, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = "catalog-passphrase-0815"
    name = topic(1)
    connections.iceberg({"type": "rest", "uri": f"http://user:{secret}@127.0.0.1:1/", "credential": f"id:{secret}"})
    run = airflow.run(extract_dag("broken_catalog", retries=1), {"topic": name})
    assert (run.state, run.task().tries) == ("failed", 2)
    assert "Iceberg connection 'iceberg_default'" in str(run.errors[0])
    output = "".join(capfd.readouterr())
    assert "Task failed with exception" in output
    assert secret not in output
