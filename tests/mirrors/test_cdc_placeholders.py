"""A real Debezium with a placeholder of its own for values that PostgreSQL keeps apart: mirrors, tables of events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.decode.connect.unavailable import ValuePlaceholder
from tests.support.cdc import Captured
from tests.support.delta_lake import DeltaLake
from tests.support.lake import Lake
from tests.support.mirror_lake import LAKES
from tests.support.parallel_run import ParallelRun
from tests.support.shared_run import SharedRun
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

# By column its type, and a value that PostgreSQL keeps apart.
COLUMNS = {
    "texts": ("text[]", "array(select repeat('y', 50) from generate_series(1, 200))"),
    "numbers": ("int[]", "array(select generate_series(1, 3000))"),
    "bytes": ("bytea[]", "array[decode(repeat('00ff', 3000), 'hex')]"),
    "big": ("text", "repeat('x', 5000)"),
    "data": ("bytea", "decode(repeat('00ff', 3000), 'hex')"),
}
LEFT_OUT = sorted(COLUMNS)
Run = Callable[[Lake, str, dict[str, Any], SparkSession], object]
EVENTS: dict[str, Run] = {
    "worker": lambda lake, topic, given, _: lake.land(topic, **given),
    "processes": lambda lake, topic, given, _: ParallelRun(lake, topic, given).land(),
    "group": lambda lake, topic, given, _: by_group(SharedRun(lake, topic, given)),
    "spark": lambda lake, topic, given, spark: SparkRun(lake, topic, given).run(spark),
}


def by_group(run: SharedRun) -> None:
    plan = run.plan()
    run.commit(plan, run.read_all(plan))


def rows_of(captured: Captured) -> dict[int, dict[str, Any]]:
    """Return the database's rows, as the tables have them."""
    names = ("id", "name", *LEFT_OUT)
    found = captured.rows(", ".join(names))
    return {key: dict(zip(names, row, strict=True)) for key, row in found.items()}


@pytest.mark.parametrize("setting", ["-left out-", "hex:ff80ff"])
def test_values_that_events_leave_out_are_known_by_the_connectors_own_placeholder(
    setting: str, captured: Captured, tmp_path: Path, spark: SparkSession
) -> None:
    sql, name = captured.sql, captured.name
    for column, (kind, _) in COLUMNS.items():
        if column not in ("big", "data"):
            sql.execute(f"alter table {name} add column {column} {kind}")
        sql.execute(f"alter table {name} alter column {column} set storage external")
    values = ", ".join(value for _, value in COLUMNS.values())
    rows = f"select n, 'a', {values} from generate_series(%s::int, %s::int) n"
    insert = f"insert into {name} (id, name, {', '.join(COLUMNS)}) {rows}"
    sql.execute(insert, (1, 4))
    captured.begin(unavailable_value_placeholder=setting)
    sql.execute(insert, (5, 8))
    sql.execute(f"update {name} set name = 'b' where id in (2, 6)")
    captured.await_all_sent()

    def lake_of(kind: type[Lake], folder: str) -> Lake:
        (tmp_path / folder).mkdir()
        return kind(tmp_path / folder, captured.kafka.client_config())

    told = {"unavailable_placeholder": setting}
    mirrors = {kind: lake_of(made, f"mirror-{kind}") for kind, made in LAKES.items()}
    for mirror in mirrors.values():
        mirror.land(captured.topic, **told)
        assert_same(mirror, captured)
    # Once more in a batch of their own: the values are in the table only.
    sql.execute(f"update {name} set name = 'c' where id in (3, 6)")
    captured.await_all_sent()
    for kind, mirror in mirrors.items():
        if kind == "iceberg":
            SparkRun(mirror, captured.topic, {"key": ["id"], **told}, {"app": LAKES[kind].app}).run(spark)
        else:
            mirror.land(captured.topic, **told)
        assert_same(mirror, captured)

    events = {"envelope": "debezium", "tombstones": "skip", **told, "unavailable_values": "null"}
    for kind, made in {"iceberg": Lake, "delta": DeltaLake}.items():
        for engine, run in EVENTS.items():
            lake = lake_of(made, f"{kind}-{engine}")
            run(lake, captured.topic, events, spark)
            updates = [row for row in lake.records() if row["_op"] == "u"]
            assert [row["id"] for row in updates] == [2, 6, 3, 6], (kind, engine)
            assert all(sorted(row["_unavailable"]) == LEFT_OUT for row in updates), (kind, engine)
            assert all(row[column] is None for row in updates for column in LEFT_OUT), (kind, engine)
            others = [row for row in lake.records() if row["_op"] in "cr" and row["id"] > 0]
            assert not any(row["_unavailable"] for row in others)
            assert all(row["big"] == "x" * 5000 for row in others)
            # A placeholder that the connector does not write is a value, as every text is.
            assert ValuePlaceholder(setting).text not in lake.column("big")

    rejecting = lake_of(Lake, "rejecting")
    rejecting.land(captured.topic, **events | {"unavailable_values": "reject"}, max_rejected=1.0)
    assert [row["_op"] for row in rejecting.records()].count("u") == 0
    assert len(rejecting.counting()) == 4


def assert_same(mirror: Lake, captured: Captured) -> None:
    """Assert that a mirror has the rows of the database."""
    names = ("id", "name", *LEFT_OUT)
    found = {row["id"]: {name: row[name] for name in names} for row in mirror.scan().to_pylist()}
    assert found == rows_of(captured)
