"""The same records by an extract task and by Spark: equal tables, equal rejects, equal counts."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession

from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from tests.support.broker import Producing, Topics
from tests.support.lake import TABLE, Lake
from tests.support.spark import SparkRun
from tests.unit.decode.json_schemas import JAVA, ORDERS

pytestmark = pytest.mark.integration

RECORDS = int(os.environ.get("LAKESTREAM_SAME_RECORDS", "3000"))
SCHEMA = "id bigint not null, name string, score double, at timestamp, tags array<string>, price decimal(9,2)"
EVERYTHING = ["topic", "partition", "offset", "timestamp", "key", "headers"]
SQL = """SELECT json_value(value, '$.id')::BIGINT AS id, upper(json_value(value, '$.name')) AS name
    FROM {{ input }} WHERE json_value(value, '$.id')::BIGINT % 3 > 0"""


def mixed(count: int) -> list[str | bytes | None]:
    """Return values of which some are bad in several ways, and some are none at all."""
    return [_value(n) for n in range(count)]


def _value(n: int) -> str | bytes | None:
    odd: dict[int, str | bytes | None] = {
        3: None,
        7: "no JSON",
        11: '{"name": "without id"}',
        13: f'{{"id": {n}.5}}',
        17: f'{{"id": {n}, "price": "123456789.00"}}',
        19: b'{"id": 1, "name": "\xff"}',
        23: f'{{"id": {n}, "unknown": [1, 2]}}',
        29: f'{{"id": {2**63}}}',
        31: f'{{"id": {n}, "at": "yesterday"}}',
        37: "",
    }
    if n % 41 in odd:
        return odd[n % 41]
    return json.dumps(
        {"id": n, "name": f"näme {n}", "score": n / 4, "at": "2026-11-20T05:06:07Z", "tags": ["a"] * (n % 3)}
    )


@pytest.fixture(scope="module")
def name(topic: Topics, produce: Producing) -> str:
    """Give a topic of mixed records, with keys and headers, in four partitions of unequal width."""
    name = topic(partitions=4)
    values = mixed(RECORDS)
    shares = [values[: RECORDS // 2], values[RECORDS // 2 : -RECORDS // 10], values[-RECORDS // 10 :], []]
    for partition, share in enumerate(shares):
        produce(
            name,
            partition,
            share,
            keys=[None if n % 5 == 0 else f"key-{n}" for n in range(len(share))],
            headers=[[("trace", b"%d" % n), ("empty", None)] if n % 4 == 0 else [] for n in range(len(share))],
        )
    return name


@pytest.mark.parametrize(
    "landing",
    [
        pytest.param(
            {"schema": SCHEMA, "metadata_columns": EVERYTHING, "partition_by": ["bucket(4, id)"]}, id="json-with-all"
        ),
        pytest.param({"schema": SCHEMA, "unknown_fields": "rescue", "tombstones": "skip"}, id="rescue"),
        pytest.param(
            {"schema": "id bigint, score timestamp from epoch_s, at timestamp, tags array<string>"},
            id="times of numbers",
        ),
        pytest.param({"schema": SCHEMA, "on_error": "skip", "sort_order": ["score", "id"]}, id="skip"),
        pytest.param(
            {"schema": "id bigint, name string, _key string", "key_format": "string", "tombstones": "reject"}, id="keys"
        ),
        pytest.param({"format": "raw", "metadata_columns": EVERYTHING}, id="raw"),
        pytest.param({"sql": SQL}, id="sql"),
        pytest.param(
            {"sql": SQL.replace("json_value(value, '$.", '("').replace("')", '")'), "sql_input": "decoded"}
            | {"schema": "id bigint, name string"},
            id="sql over columns",
        ),
        pytest.param({}, id="inferred"),
    ],
)
def test_json_in_every_way(
    tmp_path: Path, kafka: Kafka, name: str, spark: SparkSession, landing: dict[str, Any]
) -> None:
    assert_same(tmp_path, kafka, name, spark, landing, RECORDS)


def test_avro(tmp_path: Path, kafka: Kafka, topic: Topics, produce: Producing, registry: Registry, spark: Any) -> None:
    name = topic(partitions=2)
    fields = [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    schema_id = registry.register(f"{name}-value", text)
    good = [framed(schema_id, bytes([2 * n]) + b"\x02\x06abc") for n in range(60)]
    for partition in (0, 1):
        produce(name, partition, [*good, framed(schema_id, b"\x02"), b"unframed", None])
    landing = {"format": "avro", "schema_registry": registry.url}
    assert_same(tmp_path, kafka, name, spark, landing, 126)


def test_protobuf(
    tmp_path: Path, kafka: Kafka, topic: Topics, produce: Producing, registry: Registry, spark: Any
) -> None:
    name = topic(partitions=1)
    text = 'syntax = "proto3"; message Order { int64 id = 1; repeated string tags = 2; }'
    schema_id = registry.register(f"{name}-value", text, "PROTOBUF")
    kind = message_factory.GetMessageClass(protobuf_schema.compile_proto(text).descriptor((0,)))
    values = [framed(schema_id, b"\x00" + kind(id=n, tags=["x"] * (n % 3)).SerializeToString()) for n in range(50)]
    produce(name, 0, [*values, framed(schema_id, b"\x00\x08"), None])
    landing = {"format": "protobuf", "schema_registry": registry.url}
    assert_same(tmp_path, kafka, name, spark, landing, 52)


def test_json_schema(
    tmp_path: Path, kafka: Kafka, topic: Topics, produce: Producing, registry: Registry, spark: Any
) -> None:
    name = topic(partitions=1)
    schema_id = registry.register(f"{name}-value", json.dumps(JAVA), "JSON")
    finer = {"id": 3, "ratio": 1, "at": "1969-12-31T23:59:59.123456789Z"}
    values = [framed(schema_id, json.dumps(order).encode()) for order in (*(order for order, _ in ORDERS), finer)]
    # The last one looks like the first, and a header says that it is bare.
    headers: list[Any] = [[("trace", b"1")], *[[]] * 4, [("__value_schema_id", b"\1" + bytes(16))]]
    produce(name, 0, [*values, framed(schema_id, b"{"), b"{}", values[0]], headers=headers)
    landing = {"format": "json_schema", "schema_registry": registry.url, "timestamps_finer": "truncate"}
    assert_same(tmp_path, kafka, name, spark, landing, 6)


def test_csv(tmp_path: Path, kafka: Kafka, topic: Topics, produce: Producing, spark: Any) -> None:
    name = topic(partitions=1)
    odd: list[str | bytes | None] = [None, "", "1", '2,"a', "3,a,b,c", b"4,\xff,", "x,y,", '5,"",', "6,a\nb,"]
    produce(name, 0, [*(f'{n},"näme, {n}\n",{n / 4}\r\n' for n in range(60)), *odd])
    assert_same(tmp_path, kafka, name, spark, {"format": "csv", "schema": "id bigint, name string, score double"}, 69)


def test_what_the_registry_tells_the_driver_does_not_read(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry, spark: Any
) -> None:
    name = topic(partitions=2)
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    schema_id = registry.register(f"{name}-value", text)
    for partition in (0, 1):
        produce(name, partition, [framed(schema_id, bytes([2 * n])) for n in range(50)])
    SparkRun(lake, name, {"format": "avro", "schema_registry": registry.url}).run(spark)
    # One task has read so few; the first records, read by the driver for their columns, would be a file of their own.
    assert len(lake.table().inspect.data_files()) == 1
    assert lake.table().scan().count() == 100


def test_without_records_neither_makes_a_table(lake: Lake, topic: Topics, registry: Registry, spark: Any) -> None:
    name = topic(partitions=2)
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    registry.register(f"{name}-value", text)
    landing = {"format": "avro", "schema_registry": registry.url}
    SparkRun(lake, name, landing).run(spark)
    assert lake.has_nothing()
    lake.land(name, **landing)
    assert lake.has_nothing()


def framed(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + payload


def assert_same(
    folder: Path, kafka: Kafka, name: str, spark: SparkSession, landing: dict[str, Any], records: int
) -> None:
    """Land by both engines, each into a lake of its own, and compare all that is there."""
    config = kafka.client_config()
    by_extract, by_spark = (Lake(folder / engine, config) for engine in ("extract", "spark"))
    for lake in (by_extract, by_spark):
        lake.folder.mkdir()
    report = by_extract.land(name, **landing)
    assert report.counts.read == records
    SparkRun(by_spark, name, landing).run(spark)
    assert by_spark.entry(name).counts == by_extract.entry(name).counts == report.counts
    assert by_spark.landed(name) == by_extract.landed(name)
    for table in (TABLE, f"{TABLE}__rejected"):
        found, expected = rows(by_spark, table), rows(by_extract, table)
        assert found.schema.equals(expected.schema)
        assert found.equals(expected), table
        if table == TABLE:
            assert len(found) == report.counts.written
        else:
            assert len(found) == report.counts.rejected


def rows(lake: Lake, name: str) -> pa.Table:
    """Return a table's rows in order of their records, without what is another in each landing."""
    try:
        found = lake.table(name).scan().to_arrow()
    except NoSuchTableError:
        return pa.table({})
    own = [column for column in ("run_id", "rejected_at", "landing_id") if column in found.column_names]
    order = [("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")]
    return found.drop_columns(own).sort_by(order).combine_chunks()
