"""Records that choose their tables, read by executors: drivers that die between two tables, and tasks that fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.iceberg.write.files import list_files, referenced
from airflow_lakestream.run.topics import RunReport
from airflow_lakestream.spark import readers
from airflow_lakestream.spark.micro_batch import MicroBatches
from airflow_lakestream.spark.readers import SparkReaders
from tests.integration.test_fan_out_crashes import COMMITS, Died, acting, die, expected, found
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.flowing import IN_A_SOAK, flowing, kill_at_random
from tests.support.lake import GROUP, Lake, rows_of_events
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

EVENTS = ["a", "b", "a", "b", "c"]
LANDING: dict[str, Any] = {"table": "lake.{event}", "new_tables": "create", "schema": "n bigint, event string"}


@pytest.fixture
def name(topic_of: TopicOf) -> str:
    """Give a topic of two partitions, each with a record of each number."""
    return topic_of(records(0), records(100))


def records(first: int) -> list[str]:
    return [json.dumps({"n": first + i, "event": event}) for i, event in enumerate(EVENTS)]


def land(lake: Lake, name: str, spark: SparkSession, catalog: Any = None, **landing: Any) -> RunReport:
    """Land what is lacking, as a try of one batch."""
    batches = MicroBatches(SparkRun(lake, name, {**LANDING, **landing}).config(), spark)
    if catalog is not None:
        batches.__dict__["catalog"] = catalog
    return batches.land("query/1")


def assert_no_file_is_over(lake: Lake) -> None:
    for identifier in lake.catalog().list_tables("lake"):
        table = lake.table(".".join(identifier))
        there = set(list_files(table.io, f"{table.location()}/data"))
        assert there == referenced(table, there)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many offsets executors are asked for; two tasks read, although there are few."""
    monkeypatch.setattr(readers, "LEAST_WIDTH", 5)
    asked, run = list[int](), SparkReaders._run

    def noting(self: SparkReaders, job: Any, work: Any, shares: Any) -> Any:
        asked.append(sum(share.ranges.width for share in shares))
        return run(self, job, work, shares)

    monkeypatch.setattr(SparkReaders, "_run", noting)
    return asked


@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_a_batch_that_died_between_two_tables_is_finished_by_its_repetition(
    lake: Lake, name: str, spark: SparkSession, reads: list[int], number: int
) -> None:
    with pytest.raises(Died):
        land(lake, name, spark, acting(lake, number, die))
    # Once for the tables, once for the rows.
    assert reads == [10, 10]
    repeated = land(lake, name, spark)
    # Once a table has rows of its own of it, one process lands the batch.
    assert reads == ([10, 10, 10, 10] if number == 1 else [10] * 3 if number == 2 else [10] * 2)
    assert found(lake) == expected(EVENTS)
    assert repeated.tables == {"lake.a": 4, "lake.b": 4, "lake.c": 2}
    assert_no_file_is_over(lake)
    assert land(lake, name, spark).counts.read == 10
    assert found(lake) == expected(EVENTS)


def test_another_run_that_comes_in_between_costs_nothing(lake: Lake, name: str, spark: SparkSession) -> None:
    def other() -> None:
        MicroBatches(SparkRun(lake, name, LANDING).config(), spark).land("another")

    # Between its tables a and b.
    land(lake, name, spark, acting(lake, 3, other))
    assert found(lake) == expected(EVENTS)
    assert_no_file_is_over(lake)


def test_the_next_batch_knows_the_tables(
    lake: Lake, name: str, spark: SparkSession, produce: Producing, reads: list[int]
) -> None:
    batches = MicroBatches(SparkRun(lake, name, {**LANDING, "max_tables": 4}).config(), spark)
    batches.land("query/1")
    del reads[:]
    # One is refused in each batch, and one table is new.
    values = [json.dumps({"n": 500 + n, "event": event}) for n, event in enumerate(["a", "***", "d", "e", "a"])]
    produce(name, 0, values)
    batches.land("query/2")
    assert reads == [5, 5]
    produce(name, 0, [value for value in values if '"d"' not in value])
    report = batches.land("query/3")
    assert reads == [5, 5, 4]
    assert (report.counts.written, report.counts.rejected) == (2, 2)
    # Another driver has them from the home's books.
    produce(name, 0, records(900))
    MicroBatches(SparkRun(lake, name, {**LANDING, "max_tables": 4}).config(), spark).land("query/4")
    assert reads == [5, 5, 4, 5]
    assert lake.table("lake.d").scan().to_arrow()["n"].to_pylist() == [502]


def test_a_configuration_that_takes_over_is_landed_by_one_process(
    lake: Lake, name: str, spark: SparkSession, produce: Producing, reads: list[int]
) -> None:
    land(lake, name, spark)
    produce(name, 0, ['{"n": 7, "event": "a"}'])
    del reads[:]
    config = {**LANDING, "table": "lake.x_{event}"}
    MicroBatches(SparkRun(lake, name, config).config(), spark).land("query/2")
    assert reads == []
    assert found(lake) == {**expected(EVENTS), "lake.x_a": [7]}
    produce(name, 0, ['{"n": 8, "event": "a"}'])
    MicroBatches(SparkRun(lake, name, config).config(), spark).land("query/3")
    assert reads
    assert found(lake) == {**expected(EVENTS), "lake.x_a": [7, 8]}


def test_a_task_that_fails_leaves_no_file_of_any_table(
    lake: Lake, name: str, spark: SparkSession, produce: Any
) -> None:
    produce(name, 1, ["no JSON"])
    with pytest.raises(BadRecord):
        land(lake, name, spark, on_error="fail")
    assert not [path for path in lake.files() if path.endswith(".parquet")]


@IN_A_SOAK
def test_a_driver_that_is_killed_at_random_lands_each_record_once(
    lake: Lake, topic: Topics, produce: Producing
) -> None:
    name = topic(partitions=2)
    sql = """SELECT json_value(value, '$.id')::BIGINT AS id, json_value(value, '$.name') AS name,
        json_value(value, '$.score')::DOUBLE AS score, 't' || (json_value(value, '$.id')::BIGINT % 3) AS event
        FROM {{ input }}"""
    landing = {"table": "lake.{event}", "new_tables": "create", "sql": sql}
    run, log = SparkRun(lake, name, landing), lake.folder / "driver.log"
    home = f"lake.{name.replace('-', '_')}__{GROUP}__home"

    def commits() -> int:
        return len(lake.table(home).snapshots()) if lake.catalog().table_exists(home) else 0

    with flowing(produce, name) as counts:
        kill_at_random(lambda: run.start(trigger="200 milliseconds", max_offsets_per_trigger=2000), commits, log)
    assert run.start().wait(300) == 0, Path(log).read_text()[-3000:]
    expected = rows_of_events(counts)
    tables = [lake.table(f"lake.t{n}").scan().to_arrow() for n in range(3)]
    landed = sorted(row["id"] for table in tables for row in table.select(["id"]).to_pylist())
    assert landed == sorted(expected["id"].to_pylist())
    [entry] = read_ledger(lake.table(home), GROUP).topics.values()
    assert {r.partition: (r.from_offset, r.until_offset) for r in entry.landed} == {
        p: (0, n) for p, n in counts.items()
    }
