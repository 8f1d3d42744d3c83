"""KafkaMirrorOperator on a real Airflow and a real broker, and a real PostgreSQL with Debezium behind it."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, Asset

from airflow_lakestream.cli.app import run as lakestream
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor
from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor
from tests.support.airflow_home import AirflowHome, Connections, FailsOnce
from tests.support.broker import Producing, Topics
from tests.support.cdc import Captured, Source, change
from tests.support.delta_table import live_files

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

TABLE, TASK = "lake.orders", "mirror"
COLUMNS = "id, name, amount, day, flag, data, big"
BIG = "x" * 9_000


def mirror_dag(dag_id: str, *, params: dict[str, Any] | None = None, **options: Any) -> DAG:
    """Return a DAG of one mirror, whose topic comes from its params."""
    with DAG(dag_id, schedule=None, params={"topic": "", **(params or {})}) as dag:
        told = {"topic": "{{ params.topic }}", "table": TABLE, "key": ["id"], "retry_delay": timedelta(0), **options}
        KafkaMirrorOperator(task_id=TASK, **told)
    return dag


def rows(connections: Connections, columns: str = "id, total", table: str = TABLE) -> dict[Any, tuple[Any, ...]]:
    """Return a mirror's rows by their key; each key once, or it is an error."""
    names = columns.split(", ")
    return by_key(connections.catalog.load_table(table).scan().to_arrow().select(names).to_pylist())


def by_key(found: list[dict[str, Any]]) -> dict[Any, tuple[Any, ...]]:
    rows = {row["id"]: tuple(row.values()) for row in found}
    assert len(rows) == len(found), "a key is there twice"
    return rows


def as_rows(source: Source) -> dict[Any, tuple[Any, ...]]:
    return {key: (key, total) for key, total in source.rows.items()}


def test_mirrors_in_both_formats_follow_a_real_table(
    airflow: AirflowHome, connections: Connections, captured: Captured, tmp_path: Path
) -> None:
    sql, table, place = captured.sql, captured.name, str(tmp_path / "orders")
    # Some commits in each run: batches end anywhere.
    told = {"topic": captured.topic, "max_batch_bytes": "30KB", "retry_delay": timedelta(0)}
    with DAG(f"follow_{table}", schedule=None) as dag:
        KafkaMirrorOperator(task_id="iceberg", table=TABLE, **told)
        KafkaMirrorOperator(task_id="delta", table=place, table_format="delta", **told)

    def assert_same(columns: str = COLUMNS) -> None:
        run = airflow.run(dag)
        assert (run.state, run.errors) == ("success", [])
        assert [run.task(task).xcom["remaining_lag"] for task in ("iceberg", "delta")] == [0, 0]
        assert rows(connections, columns) == captured.rows(columns)
        paths = [str(Path(place, path)) for path in live_files(place)]
        query = f"select {columns} from read_parquet($paths, union_by_name=true, hive_partitioning=false)"
        assert by_key(duckdb.sql(query, params={"paths": paths}).to_arrow_table().to_pylist()) == captured.rows(columns)

    fill = (
        f"insert into {table} (id, name, amount, day, flag, data, big) select i, 'n' || i, i * 1.25, "
        "date '2026-01-02' + i, i %% 2 = 0, '\\xdeadbeef', %s || i from generate_series(%s::int, %s::int) i"
    )
    sql.execute(fill, (BIG, 1, 20))
    captured.begin()
    captured.await_all_sent()
    assert_same()

    # What is kept apart is left out of the events of an update, and of a row that gets another key.
    sql.execute(f"update {table} set name = 'new' where id in (1, 2)")
    sql.execute(f"update {table} set id = 100 where id = 3")
    sql.execute(f"delete from {table} where id > 15 and id < 100")
    sql.execute(f"alter table {table} add column extra int")
    sql.execute(f"update {table} set extra = id where id = 4")
    captured.await_all_sent()
    assert_same(f"{COLUMNS}, extra")

    sql.execute(f"truncate {table}")
    sql.execute(fill, (BIG, 15, 18))
    captured.await_all_sent()
    assert_same(f"{COLUMNS}, extra")


def test_every_argument_that_a_run_may_vary_is_a_template(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, [change("c", {"id": n, "_op": "x", "at": "1"}, n) for n in range(1, 11)])
    given = {
        "topic": name,
        "table": "other.place",
        "consumer_group": "a-group",
        "key": ["id"],
        "soft_delete": "True",
        "out_of_range": "null",
        "timestamps_finer": "truncate",
        "rename_columns": {"_op": "operation"},
        "unavailable_placeholder": "__debezium_unavailable_value",
        "source_tables": "",
        "merge_mode": "copy-on-write",
        "envelope": "debezium",
        "sql": "",
        "sql_input": "raw",
        "sequence_by": "",
        "delete_when": "",
        "insert_only": "False",
        "history": "False",
        "history_columns": "",
        "merge": "replace",
        "within": "",
        "tombstones": "",
        "key_format": "",
        "csv_delimiter": ",",
        "format": "json",
        "schema_registry": "",
        "writer_schemas": "",
        "schema": "at string",
        "kafka_conn_id": "kafka_default",
        "iceberg_conn_id": "iceberg_default",
        "table_format": "iceberg",
        "storage_conn_id": "",
        "max_records": "7",
        "max_batch_bytes": "1MiB",
        "max_bytes_per_second": "1GiB",
        "checkpoint_interval": "5s",
        "poll_timeout": "20s",
        "idle_timeout": "0",
        "partition_by": ["bucket(2, id)"],
        "sort_order": ["id desc"],
        "table_properties": {"comment": "made by a template"},
        "on_error": "reject",
        "max_rejected": "5",
        "on_data_loss": "record",
        "checks": {"not_null": "id"},
        "on_empty": "skip",
        "allow_group_overlap": "False",
        "topic_url": "",
        "table_url": "",
    }
    assert set(given) == set(KafkaMirrorOperator.template_fields)
    dag = mirror_dag("mirror_templates", params=given, **{field: _template(field, given[field]) for field in given})

    run = airflow.run(dag)

    assert run.errors == []
    assert run.task(TASK).rendered == given
    assert run.task(TASK).xcom["ranges"] == [[0, 0, 7]]
    table = connections.catalog.load_table("other.place")
    assert table.properties["comment"] == "made by a template"
    assert {"id", "operation", "at", "_is_deleted"} < set(table.schema().column_names)
    assert str(table.spec().fields[0].transform) == "bucket[2]"


def _template(field: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: f"{{{{ params.{field}[{key!r}] }}}}" for key in value}
    if isinstance(value, list):
        return [f"{{{{ params.{field}[{n}] }}}}" for n in range(len(value))]
    return f"{{{{ params.{field} }}}}"


def test_retries_and_clears_apply_each_event_once_and_report_all(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing
) -> None:
    name, source, fails = topic(1), Source(), FailsOnce()
    first = len(produce(name, 0, source.changes(60)))
    dag = mirror_dag("mirror_retried", retries=1, post_execute=fails, outlets=[Asset("iceberg://lake/orders")])

    run = airflow.run(dag, {"topic": name})

    report = run.task(TASK).xcom
    assert (run.state, run.task(TASK).tries, fails.calls) == ("success", 2, 2)
    assert (report["ranges"], report["read"], report["remaining_lag"]) == ([[0, 0, first]], first, 0)
    assert run.asset_events == [("iceberg://lake/orders", report)]
    assert rows(connections) == as_rows(source)

    count = len(produce(name, 0, source.changes(30)))
    airflow.clear_and_run(dag, run, TASK)
    assert run.task(TASK).xcom["ranges"] == [[0, 0, first + count]]
    assert rows(connections) == as_rows(source)
    assert len(connections.catalog.load_table(TABLE).snapshots()) == 2


def test_a_run_with_nothing_to_apply_can_be_skipped(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    dag = mirror_dag("mirror_skips", on_empty="skip")
    assert airflow.run(dag, {"topic": name}).task(TASK).state == "skipped"
    assert connections.catalog.list_namespaces() == []
    produce(name, 0, [change("c", {"id": 1, "total": 1}, 1)])
    assert [airflow.run(dag, {"topic": name}).task(TASK).state for _ in range(2)] == ["success", "skipped"]


def test_a_mirror_that_stops_fails_without_a_retry_and_lands_nothing(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, [change("c", {"id": 1, "total": 1}, 1)], keys=['{"id":1}'])
    dag = mirror_dag("mirror_stops", key=None, retries=2)
    assert airflow.run(dag, {"topic": name}).state == "success"
    before = connections.catalog.load_table(TABLE).metadata_location
    files = {path for path in connections.warehouse.rglob("*") if path.is_file()}
    produce(name, 0, [change("c", {"id": 2, "total": 2}, 2)], keys=['{"id":2,"total":2}'])

    run = airflow.run(dag, {"topic": name})

    assert (run.state, run.task(TASK).tries) == ("failed", 1)
    [error] = run.errors
    assert isinstance(error, AirflowFailException)
    assert f"{name}[0] offset 1: the record's key has id, total" in str(error)
    assert "[key-changed]" in str(error)
    assert connections.catalog.load_table(TABLE).metadata_location == before
    assert {path for path in connections.warehouse.rglob("*") if path.is_file()} == files


def test_topics_of_a_regex_have_a_mirror_each_and_bad_records_are_kept_beside_them(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing
) -> None:
    prefix = f"shop{uuid.uuid4().hex[:8]}"
    orders, people = topic(1, name=f"{prefix}.orders"), topic(1, name=f"{prefix}.people")
    produce(orders, 0, [change("c", {"id": n, "total": n}, n) for n in (1, 2)])
    produce(people, 0, [change("c", {"id": 1, "total": 9}, 1), b"no event"])
    dag = mirror_dag("mirror_regex", topic=f"^{prefix}\\..*", table="lake.{topic}", on_error="reject")

    run = airflow.run(dag)

    assert run.errors == []
    assert rows(connections, table=f"lake.{prefix}_orders") == {1: (1, 1), 2: (2, 2)}
    assert rows(connections, table=f"lake.{prefix}_people") == {1: (1, 9)}
    assert run.task(TASK).xcom["tables"] == {f"lake.{prefix}_orders": 2, f"lake.{prefix}_people": 1}
    kept = connections.catalog.load_table(f"lake.{prefix}_people__rejected").scan().to_arrow()
    assert kept["value"].to_pylist() == [b"no event"]


def test_commands_and_sensors_see_the_mirror(
    airflow: AirflowHome,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, source = topic(1), Source()
    dag = mirror_dag("mirror_seen", consumer_group="g")
    with dag:
        IcebergSnapshotFreshnessSensor(task_id="fresh", table=TABLE, consumer_group="g", max_age=timedelta(hours=1))
        CheckpointLagSensor(task_id="lag", table=TABLE, consumer_group="g", max_lag_records=0)
    dag.get_task(TASK) >> [dag.get_task("fresh"), dag.get_task("lag")]
    count = len(produce(name, 0, source.changes(30)))
    run = airflow.run(dag, {"topic": name})
    assert run.errors == []
    assert [run.task(task).state for task in ("fresh", "lag")] == ["success", "success"]
    more = len(produce(name, 0, source.changes(5)))

    def told(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        code = lakestream(arguments)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    on = ("--table", TABLE, "--group", "g")
    _, plan = told("plan", *on, "--topic", name, "--json")
    assert json.loads(plan)["ranges"] == [[0, count, count + more]]
    _, status = told("status", "--table", TABLE, "--json")
    [stream] = json.loads(status)["streams"]
    assert (stream["topic"], stream["engine"], stream["lag"]) == (name, "extract", more)
    assert f"landed [0,{count})" in told("ledger", "show", *on)[1]
    code, said = told("audit", "--full", *on, "--landing", '{"key": ["id"]}')
    assert (code, "CLEAN" in said) == (0, True), said
