"""SQL of the common subset by a real Flink: the same rows, rejects and counts as by extract, group and Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from dev.services.kafka import Kafka
from dev.services.registry import Registry
from tests.support.avro_records import written
from tests.support.broker import Producing
from tests.support.common_sql import DECODED, ROW, Statements
from tests.support.flink import FlinkLanding
from tests.support.lake import TABLE, Lake
from tests.support.one_topic import rows
from tests.support.shared_run import SharedRun, read
from tests.support.spark import SparkRun

pytestmark = pytest.mark.integration

_FIRST = int(os.environ.get("LAKESTREAM_SEED", "0"))
SEEDS = range(_FIRST, _FIRST + int(os.environ.get("LAKESTREAM_STATEMENTS", "1")))

# Documents that engines read in ways of their own, among plain ones.
ODD: Sequence[bytes | str | None] = (
    '{"user_id":"u1","n":"7","price":"12.50","at":"2026-01-02T03:04:05Z","ok":"true","day":"2026-02-28"}',
    '{"user_id":"u2","n":8,"price":12.5,"at":"2026-01-02 03:04:05.123456","ok":true}',
    '{"user_id":"Zoë","n":-3,"price":0.10,"ok":false,"day":"2024-02-29"}',
    '{"user_id":{"a":1},"n":null}',
    '{"user_id":"x","n":1.5}',
    '{"user_id":"x","n":"many"}',
    '{"user_id":"x","n":99999999999999999999}',
    '{"user_id":"x","day":"2026-02-30"}',
    '{"user_id":"x","at":"2026-01-02T03:04:05+02:00"}',
    '{"user_id":"x","price":"1e2"}',
    '{"user_id":"\\ud83d\\ude00","n":2}',
    '{"user_id":1.0,"n":3}',
    '{"user_id":1e3,"n":4}',
    "no document",
    '{"user_id":"cut',
    '{"user_id":"two"} {"user_id":"documents"}',
    b'{"user_id":"\xff"}',
    None,
    "{}",
    "[1]",
    "",
    '{"user_id":"left out","n":-100}',
)
SELECT = """
    SELECT json_value(value, '$.user_id') AS user_id,
           CAST(json_value(value, '$.n') AS BIGINT) AS n,
           CAST(json_value(value, '$.price') AS DECIMAL(10, 2)) AS price,
           TRY_CAST(json_value(value, '$.at') AS TIMESTAMPTZ) AS at,
           CAST(json_value(value, '$.day') AS DATE) AS day,
           CASE WHEN CAST(json_value(value, '$.ok') AS BOOLEAN) THEN upper(key) ELSE coalesce(key, 'none') END AS kind,
           event_timestamp
    FROM {{ input }}
    WHERE coalesce(CAST(json_value(value, '$.n') AS BIGINT), 0) > -100
"""


def rejected(lake: Lake) -> list[tuple[Any, ...]]:
    """Return where the rejected records are, and why."""
    try:
        found = lake.counting()
    except NoSuchTableError:
        return []
    names = ("_kafka_partition", "_kafka_offset", "reason")
    return sorted(tuple(row[name] for name in names if name in row) for row in found)


def compared(lake: Lake, other: Lake, topic: str) -> None:
    """Assert that both lakes have the same rows, rejects and counts."""
    assert rows(other, TABLE) == rows(lake, TABLE)
    assert rejected(other) == rejected(lake)
    assert other.landed(topic) == lake.landed(topic)
    assert other.entry(topic).counts == lake.entry(topic).counts


@dataclass
class Engines:
    """A topic's landings by all engines, each into a lake of its own; `config` is what the extract is told."""

    landing: FlinkLanding
    kafka: Kafka
    folder: Path
    config: dict[str, Any]

    def lake(self, engine: str) -> Lake:
        """Return an engine's lake."""
        lake = Lake(self.folder / engine, self.kafka.client_config())
        lake.folder.mkdir()
        return lake

    def by_flink_and_extract(self, ends: dict[int, int]) -> Lake:
        """Land by Flink what is there, and then by the extract; compare, and return the extract's lake."""
        told = dict(self.config)
        # What Flink calls otherwise.
        registry = {"registry": {"url": told.pop("schema_registry")}} if "schema_registry" in told else {}
        self.landing.config = {"columns": told.pop("schema", ""), **told, **registry}
        self.landing.start()
        self.landing.await_running()
        self.landing.await_landed(ends)
        self.landing.stop()
        return self.by_extract()

    def by_extract(self) -> Lake:
        """Land by the extract; compare with what Flink has landed."""
        lake = self.lake("extract")
        lake.land(self.landing.topic, **self.config)
        compared(lake, self.landing.lake, self.landing.topic)
        return lake

    def by_group_and_spark(self, lake: Lake, spark: SparkSession) -> None:
        """Land by both; compare with the extract's lake."""
        group, by_spark = self.lake("group"), self.lake("spark")
        run, plan, pieces = read(SharedRun(group, self.landing.topic, self.config), 3)
        run.commit(plan, pieces)
        compared(lake, group, self.landing.topic)
        SparkRun(by_spark, self.landing.topic, self.config).run(spark)
        compared(lake, by_spark, self.landing.topic)


@pytest.fixture
def engines(landing: FlinkLanding, kafka: Kafka, tmp_path: Path) -> Engines:
    """Give the topic of `landing` to all engines."""
    return Engines(landing, kafka, tmp_path, {"max_rejected": "1.0"})


def test_odd_records_come_to_the_rows_rejects_and_counts_of_the_extract(engines: Engines, produce: Producing) -> None:
    landing = engines.landing
    values = [*ODD, *(f'{{"user_id":"u{n}","n":{n},"price":"{n}.25"}}' for n in range(300))]
    keys = [None if n % 3 else f"k{n}" for n in range(len(values))]
    produce(landing.topic, 0, values, keys=keys)
    produce(landing.topic, 1, [*ODD[:5], *(f'{{"user_id":"v{n}","ok":"false"}}' for n in range(100))])
    engines.config |= {"sql": SELECT, "partition_by": ["day(event_timestamp)"]}
    landing.config = {"columns": "", **engines.config}
    landing.start()
    landing.await_running()
    landing.await_landed({0: len(values), 1: 105})
    assert "other values than the extract makes" not in landing.log
    # Flink takes the last of two values, DuckDB the first.
    produce(landing.topic, 1, ['{"user_id":"a","user_id":"b","n":1}'])
    landing.await_landed({0: len(values), 1: 106})
    assert f"1 row has other values than the extract makes of the records ({landing.topic}[1] offset 105" in landing.log
    produce(landing.topic, 1, ["no document", '{"user_id":"last"}'])
    landing.await_landed({0: len(values), 1: 108})
    landing.stop()
    engines.by_extract()
    assert "The extract landed records that Flink left out" in landing.log


# `LAKESTREAM_STATEMENTS=200` is a soak, and `LAKESTREAM_SEED` its first seed.
@pytest.mark.parametrize("seed", SEEDS)
def test_random_statements_make_of_random_records_what_the_extract_makes(
    engines: Engines, produce: Producing, spark: SparkSession, seed: int
) -> None:
    made = Statements(seed)
    values = [made.value() for _ in range(400)]
    produce(engines.landing.topic, 0, values, keys=[made.key() for _ in values])
    engines.config["sql"] = made.statement(8)
    # A failure shows it.
    print(engines.config["sql"])
    lake = engines.by_flink_and_extract({0: len(values)})
    # What Flink made was right, and not only what the extract has made in its place.
    assert "other values than the extract makes" not in engines.landing.log
    engines.by_group_and_spark(lake, spark)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_statements_over_columns_in_avro_make_what_the_extract_makes(
    engines: Engines, produce: Producing, registry: Registry, spark: SparkSession, seed: int
) -> None:
    made, topic = Statements(seed, decoded=True), engines.landing.topic
    schema_id = registry.register(f"{topic}-value", json.dumps(ROW))
    values = [made.row() for _ in range(400)]
    produce(topic, 0, [None if row is None else written(ROW, schema_id, row) for row in values])
    engines.config |= {"sql": made.statement(8), "sql_input": "decoded", "format": "avro"}
    engines.config |= {"schema": DECODED, "schema_registry": registry.url}
    print(engines.config["sql"])
    lake = engines.by_flink_and_extract({0: len(values)})
    assert "other values than the extract makes" not in engines.landing.log
    engines.by_group_and_spark(lake, spark)


def test_columns_that_flink_has_decoded_are_compared_too(engines: Engines, produce: Producing) -> None:
    values = [f'{{"id":{n},"name":"n{n}","price":{n}.25}}' for n in range(200)]
    values[50:50] = ['{"id":"no number"}', "no document", '{"id":1.5}', '{"id":1,"price":123456789.5}', '{"id":7}']
    produce(engines.landing.topic, 0, [*values, None])
    sql = "SELECT id, upper(name) AS name, price * 2 AS twice FROM {{ input }} WHERE id <> 7"
    engines.config |= {"sql": sql, "sql_input": "decoded", "schema": "id bigint, name string, price decimal(9, 2)"}
    engines.by_flink_and_extract({0: len(values) + 1})


def test_the_first_records_tell_the_columns_where_nobody_does(engines: Engines, produce: Producing) -> None:
    values = [f'{{"id":{n},"name":"n{n}","at":"2026-01-02T03:04:05Z"}}' for n in range(100)]
    produce(engines.landing.topic, 0, [*values, "no document", None])
    engines.config["on_error"] = "reject"
    engines.by_flink_and_extract({0: 102})
