"""Tables that records choose, and columns that come up, by Spark's executors: the same as by one process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.kafka.reader import KafkaReader
from airflow_lakestream.run.topics import land_run
from airflow_lakestream.spark import readers
from dev.services.kafka import Kafka
from tests.support.broker import Producing, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import GROUP, Lake, assert_files_are_whole
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

RECORDS = int(os.environ.get("LAKESTREAM_SAME_RECORDS", "3000"))
EVERYTHING = ["topic", "partition", "offset", "timestamp", "key", "headers"]


EVENT = "id bigint, event string, note string"


def routed(n: int) -> str | bytes | None:
    odd: dict[int, str | bytes | None] = {
        3: None,
        5: "no JSON",
        7: json.dumps({"id": n}),
        11: json.dumps({"id": n, "event": "***"}),
        13: json.dumps({"id": n, "event": f"stranger {n}"}),
        # Names the table of another route.
        17: json.dumps({"id": n, "event": "e-1"}),
        19: json.dumps({"id": n, "event": "taken"}),
        23: json.dumps({"id": n, "event": f"late {n // (RECORDS // 3)}"}),
    }
    if n % 29 in odd:
        return odd[n % 29]
    return json.dumps({"id": n, "event": f"e {n % 5}", "note": "x" * (n % 40)})


@pytest.fixture(scope="module")
def events(topic: Topics, produce: Producing) -> str:
    """Give a topic whose records choose tables, some of which can't be had."""
    name = topic(partitions=1)
    produce(name, 0, [routed(n) for n in range(RECORDS)])
    return name


@pytest.mark.parametrize(
    "landing",
    [
        pytest.param({"schema": EVENT, "new_tables": "create", "max_tables": 8}, id="to the limit"),
        pytest.param({"new_tables": "create", "max_tables": 200, "on_error": "skip"}, id="inferred"),
        pytest.param(
            {"schema": EVENT, "new_tables": "fail", "metadata_columns": EVERYTHING, "partition_by": ["bucket(2, id)"]},
            id="those that exist",
        ),
    ],
)
def test_records_that_choose_their_tables(
    tmp_path: Path, kafka: Kafka, events: str, spark: SparkSession, monkeypatch: Any, landing: dict[str, Any]
) -> None:
    # Two tasks, although there are few records.
    monkeypatch.setattr(readers, "LEAST_WIDTH", 500)
    config = kafka.client_config()
    by_extract, by_spark = (Lake(tmp_path / engine, config) for engine in ("extract", "spark"))
    landing = {"table": "lake.{event}", **landing}
    for lake in (by_extract, by_spark):
        lake.folder.mkdir()
        # A table of somebody else.
        lake.catalog().create_namespace("lake")
        lake.catalog().create_table("lake.taken", pa.schema([("x", pa.int64())])).append(pa.table({"x": [1]}))
        if landing["new_tables"] == "fail":
            land_run(
                lake.settings(events, **{**landing, "new_tables": "create", "max_tables": 4}),
                config,
                lake.catalog(),
                run_id="first",
                # The first records alone.
                prepare=lambda job: replace(job, within=RangeSet.of(events, 0, 0, 100)),
            )
    report = land_run(by_extract.settings(events, **landing), config, by_extract.catalog(), run_id="r")
    read = count_driver_reads(monkeypatch)
    SparkRun(by_spark, events, landing).run(spark)
    assert read() <= (RECORDS if "schema" not in landing else 0)
    tables = [table_names(lake) for lake in (by_extract, by_spark)]
    assert tables[0] == tables[1]
    assert len(tables[0]) > 5
    for table in tables[0]:
        found, expected = (by_offset(lake.table(table).scan().to_arrow()) for lake in (by_spark, by_extract))
        assert found.schema.equals(expected.schema), table
        assert found.equals(expected), table
        if table != "lake.taken":
            assert_files_are_whole(by_spark.table(table))
            found_in, expected_in = (read_ledger(lake.table(table), GROUP) for lake in (by_spark, by_extract))
            assert {of: one.landed for of, one in found_in.topics.items()} == {
                of: one.landed for of, one in expected_in.topics.items()
            }
    home = next(table for table in tables[0] if table.endswith("__home"))
    [entry] = read_ledger(by_spark.table(home), GROUP).topics.values()
    [one] = read_ledger(by_extract.table(home), GROUP).topics.values()
    assert entry.counts == one.counts
    assert report.counts.read > RECORDS - 200
    # The second landing knows the tables by the home's books.
    for lake in (by_extract, by_spark):
        assert json.loads(lake.table(home).properties["lakestream.fan-out"])["tables"]


def table_names(lake: Lake) -> list[str]:
    return sorted(".".join(name) for name in lake.catalog().list_tables("lake"))


def count_driver_reads(monkeypatch: Any) -> Callable[[], int]:
    """Count the offsets that this process reads itself."""
    counted: list[int] = []
    whole = KafkaReader.read

    def read(self: KafkaReader, plan: Any, cancelled: Any) -> Any:
        for chunk in whole(self, plan, cancelled):
            counted.append(len(chunk.covers))
            yield chunk

    monkeypatch.setattr(KafkaReader, "read", read)
    return lambda: sum(counted)


def growing(n: int) -> str | bytes | None:
    document: dict[str, Any] = {"id": n, "s": {"a": 1}}
    if n % 7 == 3:
        document["more"] = n
    if n % 11 == 3:
        document["s"]["b"] = f"text {n}"
    if n > RECORDS // 2:
        document["late"] = [{"x": n / 2}]
    if n % 13 == 5:
        document["ID"] = "no column"
    if n % 17 == 5:
        return None
    return "{" if n % 19 == 5 else json.dumps(document)


EVOLVE = {"unknown_fields": "evolve", "schema_evolution": "add"}


@EACH_FORMAT
@pytest.mark.parametrize("schema", ["id bigint, s struct<a: bigint>", None])
def test_columns_that_come_up(
    lake: Lake,
    topic: Topics,
    produce: Producing,
    spark: SparkSession,
    monkeypatch: Any,
    tmp_path_factory: pytest.TempPathFactory,
    schema: str | None,
) -> None:
    monkeypatch.setattr(readers, "LEAST_WIDTH", 500)
    name = topic(partitions=1)
    produce(name, 0, [growing(n) for n in range(RECORDS)])
    landing = {**EVOLVE, **({} if schema is None else {"schema": schema})}
    SparkRun(lake, name, landing).run(spark)
    one = type(lake)(tmp_path_factory.mktemp("one"), lake.kafka)
    report = one.land(name, **landing)
    assert lake.entry(name).counts == one.entry(name).counts == report.counts
    assert report.counts.rejected > RECORDS // 20
    for behind in ("", "__rejected"):
        found, expected = (by_offset(some.scan(behind)) for some in (lake, one))
        assert found.schema.equals(expected.schema), behind
        assert found.equals(expected), behind
    lake.assert_whole()
    assert len(lake.snapshots()) == 1


def by_offset(found: pa.Table) -> pa.Table:
    """Return rows in order of their records, without what is another in each landing."""
    own = [column for column in ("run_id", "rejected_at", "landing_id") if column in found.column_names]
    order = [(column, "ascending") for column in ("_kafka_partition", "_kafka_offset") if column in found.column_names]
    found = found.drop_columns(own).sort_by(order or [("x", "ascending")])
    return found.select(sorted(found.column_names)).combine_chunks()
