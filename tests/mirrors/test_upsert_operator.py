"""KafkaMirrorOperator with plain records, on a real Airflow and a real broker: a table by key."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_lakestream.cli.app import run as lakestream
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator
from tests.support.airflow_home import AirflowHome, Connections, FailsOnce
from tests.support.broker import Producing, Topics
from tests.support.delta_table import live_files

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

TABLE, ONCE = "lake.customers", "lake.first_customers"


def row(key: int, name: str) -> str:
    return json.dumps({"id": key, "name": name})


def names_in(found: list[dict[str, Any]]) -> dict[int, str]:
    """Return the name of each row; each key once, or it is an error."""
    rows = {one["id"]: one["name"] for one in found}
    assert len(rows) == len(found), "a key is there twice"
    return rows


def test_tables_by_key_in_both_formats_follow_a_topic_and_stop_where_the_order_is_unknown(
    airflow: AirflowHome,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, place, fails = topic(2), str(tmp_path / "customers"), FailsOnce()
    arguments: dict[str, Any] = {"topic": name, "envelope": None, "key": ["id"], "retry_delay": timedelta(0)}
    with DAG("by_key", schedule=None) as dag:
        KafkaMirrorOperator(task_id="once", table=ONCE, insert_only=True, consumer_group="once", **arguments)
        arguments |= {"delete_when": "name = 'gone'"}
        # The first try lands and fails afterwards, in several commits.
        KafkaMirrorOperator(
            task_id="iceberg", table=TABLE, retries=1, post_execute=fails, max_batch_bytes="10KB", **arguments
        )
        KafkaMirrorOperator(task_id="delta", table=place, table_format="delta", **arguments)
    expected, first = dict[int, str](), dict[int, str]()

    def write(partition: int, *changes: tuple[int, str | None]) -> int:
        for key, value in changes:
            expected.pop(key, None)
            if value is not None:
                first.setdefault(key, value)
            expected.update({} if value in (None, "gone") else {key: value})
        values = [None if value is None else row(key, value) for key, value in changes]
        return len(produce(name, partition, values, keys=[json.dumps({"id": key}) for key, _ in changes]))

    def assert_same() -> None:
        run = airflow.run(dag)
        assert run.state == "success", run.errors
        assert [run.task(task).xcom["remaining_lag"] for task in ("iceberg", "delta")] == [0, 0]
        assert names_in(connections.catalog.load_table(TABLE).scan().to_arrow().to_pylist()) == expected
        assert names_in(connections.catalog.load_table(ONCE).scan().to_arrow().to_pylist()) == first
        found = [one for path in live_files(place) for one in pq.read_table(Path(place, path)).to_pylist()]
        assert names_in(found) == expected

    for partition in (0, 1):
        write(partition, *((key * 2 + partition, f"v{turn}") for turn in range(20) for key in range(30)))
    write(0, (2, None), (4, None), (4, "again"), (8, "gone"), (10, "gone"), (10, "again"))
    assert_same()
    assert fails.calls == 2

    write(0, (2, "back"), (6, None))
    write(1, (1, None), (101, "new"), (3, "gone"), (103, "gone"))
    assert_same()

    before = connections.catalog.load_table(TABLE).metadata_location
    write(1, (6, "in another partition"))
    run = airflow.run(dag)
    assert run.state == "failed"
    for error in run.errors:
        assert isinstance(error, AirflowFailException)
        assert "the same key (id=6): records of two partitions have no order" in str(error)
    assert connections.catalog.load_table(TABLE).metadata_location == before
    consumer_group = ("--group", "by_key")
    audit = ["audit", "--table", TABLE, *consumer_group, "--full"]
    assert lakestream([*audit, "--landing", """{"delete_when": "name = 'gone'"}"""]) == 0, capsys.readouterr()
    # Without the condition, deleted rows would come back.
    for landing, said in (([], "landing: is missing"), (["--landing", "{}"], "and deleted its key when it was landed")):
        assert lakestream([*audit, "--repair", *landing]) == 2
        assert said in capsys.readouterr().err
    assert connections.catalog.load_table(TABLE).metadata_location == before
    assert lakestream(["mirror", "resnapshot", "--table", TABLE, "--topic", name, *consumer_group]) == 2
    assert "which no database can send again" in capsys.readouterr().err


def test_repeats_fields_versions_and_statements_follow_a_topic(
    airflow: AirflowHome, connections: Connections, topic: Topics, produce: Producing
) -> None:
    name = topic(2)
    common: dict[str, Any] = {"topic": name, "envelope": None, "schema": "at timestamptz", "max_batch_bytes": "2KB"}
    by_time = common | {"key": ["user.id"], "sequence_by": ["at"]}
    sql = """SELECT (value->>'$.user.id')::BIGINT AS id, value->>'$.name' AS name
        FROM {{ input }} WHERE value->>'$.op' IS NULL"""
    with DAG("by_strategy", schedule=None) as dag:
        KafkaMirrorOperator(
            task_id="recent", table="lake.recent", insert_only=True, within="7 days", consumer_group="r", **by_time
        )
        KafkaMirrorOperator(task_id="given", table="lake.given", merge="given", consumer_group="g", **by_time)
        KafkaMirrorOperator(
            task_id="history", table="lake.history", history=True, delete_when="op = 'D'", consumer_group="h",
            **by_time | {"schema": "at timestamptz, op string"},
        )  # fmt: skip
        common.pop("schema")
        KafkaMirrorOperator(task_id="sql", table="lake.by_sql", key=["id"], sql=sql, consumer_group="s", **common)
    records: list[dict[str, Any]] = []

    def write(*new: tuple[int, int, dict[str, Any]]) -> None:
        for key, day, more in new:
            records.append({"user": {"id": key}, "at": f"2026-01-{day:02}T00:00:00Z"} | more)
            produce(name, key % 2, [json.dumps(records[-1])])

    def rows_of(table: str, *columns: str) -> list[tuple[Any, ...]]:
        found = connections.catalog.load_table(f"lake.{table}").scan().to_arrow().to_pylist()
        return sorted(
            tuple(row[one].day if isinstance(row[one], datetime) else row[one] for one in columns) for row in found
        )

    write(*((key, 1, {"name": f"a{key}", "size": 1}) for key in range(20)))
    assert airflow.run(dag).state == "success"
    write((1, 3, {"name": None}), (2, 9, {"size": 2}), (3, 5, {"op": "D"}), (1, 2, {"name": "late", "size": 7}))
    run = airflow.run(dag)
    assert (run.state, run.errors) == ("success", [])
    assert [row for row in rows_of("recent", "user_id", "at") if row[0] < 4] == [(0, 1), (1, 1), (2, 1), (2, 9), (3, 1)]
    changed = {row[0]: row[1:] for row in rows_of("given", "user_id", "name", "size")}
    assert [changed[key] for key in range(4)] == [("a0", 1), (None, 1), ("a2", 2), ("a3", 1)]
    history = [row for row in rows_of("history", "user_id", "_valid_from", "_valid_to", "_is_current") if row[0] < 4]
    assert history == [
        (0, 1, None, True), (1, 1, 2, False), (1, 2, 3, False), (1, 3, None, True),
        (2, 1, 9, False), (2, 9, None, True), (3, 1, 5, False),
    ]  # fmt: skip
    assert dict(rows_of("by_sql", "id", "name"))[1] == "late"
    assert run.task("sql").xcom["filtered"] == 1
