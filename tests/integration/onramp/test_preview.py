"""`lakestream preview` on real topics: what it guesses and shows is what a landing makes, and nothing is touched."""

from __future__ import annotations

import io
import json
import os
import random
from dataclasses import dataclass
from typing import Any

import avro.io
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from google.protobuf import message_factory
from pyiceberg.schema import Schema

from airflow_lakestream.cli.app import run
from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from airflow_lakestream.onramp import samples
from airflow_lakestream.run.job import ExtractConfig
from airflow_lakestream.run.topics import land_run
from airflow_lakestream.tables.schema.types import schema_text
from dev.services.kafka import Kafka
from dev.services.registry import Registry
from tests.integration.test_formats import framed, record
from tests.support.airflow_home import Connections
from tests.support.broker import Producing, Topics
from tests.unit.decode import avro_oracle

pytestmark = pytest.mark.integration

MINUTE = 60_000
NOW = 1_790_000_000_000


@dataclass
class Previewing:
    """Runs the command, and reads its JSON."""

    kafka: Kafka
    capsys: pytest.CaptureFixture[str]

    def __call__(self, topic: str, *options: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text(topic, *options, "--json"))
        return found

    def text(self, topic: str, *options: str, code: int = 0) -> str:
        self.capsys.readouterr()
        done = run(["preview", topic, "--bootstrap-servers", self.kafka.bootstrap, *options])
        said = self.capsys.readouterr()
        assert done == code, said
        return said.out if code == 0 else said.err


@pytest.fixture
def preview(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> Previewing:
    return Previewing(kafka, capsys)


def avro_of(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    avro.io.DatumWriter(avro_oracle.official(schema)).write(value, avro.io.BinaryEncoder(stream))
    return stream.getvalue()


def in_avro(registry: Registry, name: str) -> list[bytes]:
    schema = record("Order", id="long", label="string")
    number = registry.register(f"{name}-value", json.dumps(schema))
    return [framed(number, avro_of(schema, {"id": n, "label": "x"})) for n in range(4)]


def in_protobuf(registry: Registry, name: str) -> list[bytes]:
    text = 'syntax = "proto3"; message Order { int64 id = 1; string label = 2; }'
    number = registry.register(f"{name}-value", text, "PROTOBUF")
    kind = message_factory.GetMessageClass(protobuf_schema.compile_proto(text).descriptor((0,)))
    return [framed(number, b"\x00" + kind(id=n, label="x").SerializeToString()) for n in range(4)]


def in_json_schema(registry: Registry, name: str) -> list[bytes]:
    text = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}, "label": {"type": "string"}}})
    number = registry.register(f"{name}-value", text, "JSON")
    return [framed(number, json.dumps({"id": n, "label": "x"}).encode()) for n in range(4)]


def in_json(registry: Registry, name: str) -> list[bytes]:
    return [json.dumps({"id": n, "label": "x"}).encode() for n in range(4)]


@pytest.mark.parametrize(
    ("format_name", "made", "columns"),
    [
        ("avro", in_avro, "id bigint not null, label string not null"),
        ("protobuf", in_protobuf, "id bigint, label string"),
        ("json_schema", in_json_schema, "id bigint, label string"),
        ("json", in_json, "id bigint, label string"),
    ],
)
def test_the_format_is_guessed_and_rows_and_columns_are_those_of_a_landing(
    format_name: str,
    made: Any,
    columns: str,
    preview: Previewing,
    connections: Connections,
    topic: Topics,
    produce: Producing,
    registry: Registry,
) -> None:
    name = topic(1)
    produce(name, 0, made(registry, name))
    found = preview(name, "--schema-registry", registry.url)
    assert (found["format"], found["columns"], found["problem"]) == (format_name, columns, None)
    shown = [(row["id"], row["label"], row["_kafka_offset"]) for row in found["rows"]]
    assert shown == [(n, "x", n) for n in range(4)]
    told = {} if format_name == "json" else {"schema_registry": registry.url}
    config = ExtractConfig(topic=name, table="lake.t", consumer_group="g", format=format_name, **told)
    land_run(config, preview.kafka.client_config(), connections.catalog, run_id="r")
    made_columns = connections.catalog.load_table("lake.t").schema().fields[:2]
    assert schema_text(Schema(*made_columns)) == columns
    landed = connections.catalog.load_table("lake.t").scan().to_arrow().sort_by("_kafka_offset")
    assert [(r["id"], r["label"], r["_kafka_offset"]) for r in landed.to_pylist()] == shown


def test_csv_is_guessed_with_its_delimiter_and_the_types_of_its_fields(
    preview: Previewing, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, ['1;"a, b";2.5;2026-11-20T05:05:00Z;', "2;c;3;2026-11-20T05:06:00Z;true", "3;;4;;false"])
    found = preview(name)
    assert (found["format"], found["decoding"]["csv_delimiter"]) == ("csv", ";")
    assert found["columns"] == (
        "column_1 bigint, column_2 string, column_3 double, column_4 timestamp, column_5 boolean"
    )
    assert [row["column_2"] for row in found["rows"]] == ["a, b", "c", None]
    assert found["rejected"] == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([{"before": None, "after": {"id": 1}, "op": "c", "source": {"lsn": 7}, "ts_ms": 5}], "debezium"),
        ([{"schema": {"type": "int32", "optional": False}, "payload": {"id": 1}}], "connect"),
    ],
)
def test_an_envelope_is_guessed(
    values: list[Any], expected: str, preview: Previewing, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, map(json.dumps, values))
    assert preview(name)["decoding"].get("envelope") == expected


def test_what_is_neither_is_raw(preview: Previewing, topic: Topics, produce: Producing) -> None:
    name = topic(2)
    bytes_of = random.Random(7)
    produce(name, 0, [bytes_of.randbytes(n) for n in range(200)])
    produce(name, 1, ["just, some text", "and more of it"])
    found = preview(name, "--limit", "300")
    assert (found["format"], found["columns"]) == ("raw", "key binary, value binary")
    assert (len(found["rows"]), found["rejected"]) == (202, [])


def test_records_of_a_registry_without_one_say_what_to_give(
    preview: Previewing, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, [framed(1, b"\x02\x04ab")])
    found = preview(name)
    assert found["format"] is None
    assert "--schema-registry http://registry:8081" in found["problem"]
    assert [one["offset"] for one in found["undecoded"]] == [0]


def test_records_that_a_landing_would_reject_are_shown_with_stage_and_reason(
    preview: Previewing, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, ['{"id": 1}', "no JSON", '{"id": "x"}', None])
    found = preview(name, "--schema", "id bigint not null", "--format", "json")
    assert [row["id"] for row in found["rows"]] == [1]
    assert [(one["offset"], one["stage"], one["value"]) for one in found["rejected"]] == [
        (1, "decode", "no JSON"),
        (2, "decode", '{"id": "x"}'),
        (3, "decode", None),
    ]
    text = preview.text(name, "--schema", "id bigint not null", "--format", "json")
    assert "3 rejected:" in text
    assert "(value 'no JSON')" in text
    assert "1 of 4 records have no value" in text


def test_sql_shows_what_the_statement_makes(preview: Previewing, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    produce(name, 0, ['{"id": 1}', '{"id": 2}'])
    found = preview(name, "--sql", "SELECT length(value) AS size FROM {{ input }} WHERE _kafka_offset > 0")
    assert [(row["size"], row["_kafka_offset"]) for row in found["rows"]] == [(9, 1)]
    assert (found["columns"], found["skipped"]) == ("size bigint", 1)


def test_the_heading_names_the_source_of_the_columns_and_inner_values_are_as_in_json(
    preview: Previewing, topic: Topics, produce: Producing
) -> None:
    name = topic(1)
    produce(name, 0, ['{"o": {"at": "2026-11-20T05:05:00Z", "n": [1, null]}}'] * 3)
    text = preview.text(name)
    assert "Columns guessed from 3 records; a first run guesses from its own first batch:" in text
    assert 'o={"at": "2026-11-20T05:05:00+00:00", "n": [1, null]}' in text
    assert "Columns of the given schema:" in preview.text(name, "--schema", "o string")
    assert "Columns that the statement makes:" in preview.text(name, "--sql", "SELECT value FROM {{ input }}")
    assert "by the format" in preview.text(name, "--format", "raw")


def test_the_newest_records_of_all_partitions_an_offset_and_a_time(
    preview: Previewing, topic: Topics, produce: Producing
) -> None:
    # The times are long ago.
    name = topic(3, retention_ms=-1)
    for p in range(3):
        produce(name, p, [f'{{"n": {p}}}'] * 5, timestamps=[NOW + MINUTE * (3 * n + p) for n in range(5)])

    def places(*options: str) -> list[tuple[int, int]]:
        rows = preview(name, "--limit", "4", *options)["rows"]
        return sorted((row["_kafka_partition"], row["_kafka_offset"]) for row in rows)

    assert places() == [(0, 4), (1, 4), (2, 3), (2, 4)]
    assert places("--from-offset", "1:1") == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert places("--from-timestamp", str(NOW + 2 * MINUTE)) == [(0, 1), (1, 1), (2, 0), (2, 1)]
    assert preview(name)["records_a_minute"] == pytest.approx(15 / 14, rel=0.01)


def test_wrong_places_are_refused(preview: Previewing, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    produce(name, 0, ["{}"])
    assert "has no partition 5" in preview.text(name, "--from-offset", "5:0", code=2)
    assert "[0,1) now" in preview.text(name, "--from-offset", "0:7", code=2)
    assert 'Write "0:1200"' in preview.text(name, "--from-offset", "x", code=2)
    assert "Give one of them" in preview.text(name, "--from-offset", "0:0", "--from-timestamp", "5", code=2)
    assert "above 0" in preview.text(name, "--limit", "0", code=2)
    assert "no-such-topic" in preview.text("no-such-topic", code=2)
    missing = preview.text(f"{name}s", code=2)
    assert f"Did you mean '{name}'?" in missing
    assert "argument" not in missing


def test_no_group_is_made_and_no_offset_committed(
    preview: Previewing, topic: Topics, produce: Producing, admin: AdminClient
) -> None:
    name = topic(1)
    produce(name, 0, ['{"id": 1}'])
    preview(name)
    groups = {group.group_id for group in admin.list_consumer_groups().result(timeout=20).valid}
    assert "lakestream-preview" not in groups
    end = admin.list_offsets({TopicPartition(name, 0): OffsetSpec.latest()})
    assert end[TopicPartition(name, 0)].result(timeout=20).offset == 1


def test_an_empty_topic_and_one_of_tombstones_say_what_to_do(
    preview: Previewing, topic: Topics, produce: Producing
) -> None:
    name = topic(2)
    found = preview(name)
    assert "The topic is empty" in found["problem"]
    assert "No record there." in preview.text(name)
    produce(name, 0, [None] * 30, keys=["k"] * 30)
    found = preview(name)
    assert "tombstones only" in found["problem"]
    assert [one["value"] for one in found["undecoded"]] == [None] * 10
    # With columns they are what a landing makes of them.
    found = preview(name, "--format", "json", "--schema", "id bigint", "--tombstones", "keep")
    assert [row["id"] for row in found["rows"]] == [None] * 10
    assert preview(name, "--format", "json", "--schema", "id bigint", "--tombstones", "skip")["skipped"] == 10


def test_compacted_holes_do_not_hide_the_last_records(
    preview: Previewing, topic: Topics, produce: Producing, kafka: Kafka
) -> None:
    name = topic(1)
    produce(name, 0, ['{"id": 1}'])
    # An aborted transaction leaves offsets without records.
    from confluent_kafka import Producer

    producer = Producer({**kafka.client_config(), "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for n in range(100):
        producer.produce(name, str(n), partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    found = preview(name, "--limit", "1")
    assert [row["_kafka_offset"] for row in found["rows"]] == [0]


def test_values_of_ten_mebibytes_are_read_up_to_a_bound_and_cut_on_the_screen(
    preview: Previewing, topic: Topics, kafka: Kafka
) -> None:
    from confluent_kafka import Producer

    name = topic(1, max_message_bytes=20 * 2**20)
    producer = Producer({**kafka.client_config(), "message.max.bytes": 20 * 2**20})
    for n in range(9):
        producer.produce(name, json.dumps({"id": n, "blob": "x" * 10 * 2**20}), partition=0)
    assert producer.flush(60) == 0
    text = preview.text(name)
    assert f"reading ended after {samples.MOST_BYTES >> 20} MiB" in text
    assert max(map(len, text.splitlines())) < 400
    assert "id bigint" in text
    assert "blob string" in text


def test_any_bytes_are_shown_on_one_line_each(preview: Previewing, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    odd = ['{"a\\u001b[31m": "\\u0007\\n"}', b"\x00\x00\x00\x00\x01", b"\xff\xfe", "\x1b[2J", b"", os.urandom(300)]
    produce(name, 0, odd)
    for options in ((), ("--format", "json"), ("--format", "json", "--schema", "id bigint")):
        text = preview.text(name, *options)
        assert all(line.isprintable() for line in text.splitlines())
        preview(name, *options)
