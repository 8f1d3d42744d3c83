"""Every format from the broker to the table: several schemas in one topic, keys, columns that the registry tells."""

from __future__ import annotations

import io
import json
import logging
import struct
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import avro.io
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf import message_factory

from airflow_lakestream.core.bad_records import TooManyRejected
from airflow_lakestream.decode.avro.schema import fingerprint
from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from airflow_lakestream.exceptions import BadRecord, InvalidArgument, Transient
from airflow_lakestream.registry.client import RegistryUnavailable
from dev.ports import LOOPBACK, free_ports
from dev.services.registry import Registry
from dev.sources.flights import TOTAL, read_flights
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.delta_lake import EACH_FORMAT
from tests.support.lake import Lake
from tests.unit.decode import avro_oracle
from tests.unit.decode.json_schemas import JAVA, ORDERS

pytestmark = pytest.mark.integration


def framed(schema_id: int, payload: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + payload


def avro_bytes(schema: Any, value: Any) -> bytes:
    """Write a value with the official package; logical types as the numbers and bytes that they are."""
    stream = io.BytesIO()
    avro.io.DatumWriter(avro_oracle.official(schema)).write(value, avro.io.BinaryEncoder(stream))
    return stream.getvalue()


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


def rows(lake: Lake, *columns: str) -> list[dict[str, Any]]:
    """Return the table's rows without metadata, by offset."""
    found = lake.table().scan().to_arrow().sort_by("_kafka_offset")
    names = columns or [name for name in found.column_names if not name.startswith("_kafka_")]
    return found.select(names).to_pylist()


def test_avro_of_two_schemas_with_keys(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "airflow_lakestream")
    name = topic(1)
    old = record("Order", id="long", price={"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})
    new = {**old, "fields": [*old["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}
    key = record("Key", id="long")
    first, second = (registry.register(f"{name}-value", json.dumps(schema)) for schema in (old, new))
    key_id = registry.register(f"{name}-key", json.dumps(key))
    keys = [framed(key_id, avro_bytes(key, {"id": number})) for number in (1, 2)]
    values = [
        framed(first, avro_bytes(old, {"id": 1, "price": b"\x30\x39"})),
        framed(second, avro_bytes(new, {"id": 2, "price": b"\x30\x39", "note": "gift"})),
        framed(2_000_000_000, b""),
    ]
    produce(name, 0, values[:2], keys=keys)
    lake.land(name, format="avro", key_format="avro", schema_registry=registry.url)
    assert rows(lake) == [
        {"id": 1, "price": Decimal("123.45"), "note": None, "_key": {"id": 1}},
        {"id": 2, "price": Decimal("123.45"), "note": "gift", "_key": {"id": 2}},
    ]
    assert f"schema {second}, the latest of subject {name}-value" in caplog.text
    # A key that is none of its schema makes a bad record, and says so.
    (offset,) = produce(name, 0, values[:1], keys=[framed(key_id, b"")])
    with pytest.raises(BadRecord, match=rf"offset {offset}: the key: _key\.id: the value ends early"):
        lake.land(name, format="avro", key_format="avro", schema_registry=registry.url, on_error="fail")


def test_csv_has_its_columns_in_the_order_of_the_schema_whatever_that_of_the_table(
    lake: Lake, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(['1,"a ""b"",\n",2026-11-20T05:05:00Z', '2,"",', "3,c"], keys=["k", None, "l"])
    csv = {"format": "csv", "key_format": "string", "schema_evolution": "add", "max_rejected": 100}
    lake.land(name, **csv, schema="id bigint not null, name string, at timestamp, _key string")
    produce(name, 0, ["x,4,7"], keys=["m"])
    lake.land(name, **csv, schema="name string, id bigint not null, size int, _key string")
    assert rows(lake, "id", "name", "size", "_key") == [
        {"id": 1, "name": 'a "b",\n', "size": None, "_key": "k"},
        {"id": 2, "name": "", "size": None, "_key": None},
        {"id": 4, "name": "x", "size": 7, "_key": "m"},
    ]
    produce(name, 0, ["5,y,2026-11-20T05:05:00Z,8"], keys=["n"])
    # Without a schema the fields are the table's columns.
    lake.land(name, format="csv", key_format="string")
    assert rows(lake, "id", "size")[-1] == {"id": 5, "size": 8}
    with pytest.raises(
        InvalidArgument, match=r"the columns of the value of .* are unknown.*Give the columns as schema"
    ):
        lake.land(name, format="csv", table="lake.other", consumer_group="other")


def test_protobuf_whose_columns_the_registry_tells(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry
) -> None:
    name = topic(1)
    text = 'syntax = "proto3"; message First { int32 a = 1; } message Order { int64 id = 1; repeated string tags = 2; }'
    schema_id = registry.register(f"{name}-value", text, "PROTOBUF")
    kind = message_factory.GetMessageClass(protobuf_schema.compile_proto(text).descriptor((1,)))
    # The second message of the file: the index 1, behind how many indexes there are.
    values = [framed(schema_id, b"\x02\x02" + kind(id=n, tags=["x"] * n).SerializeToString()) for n in range(3)]
    produce(name, 0, values, keys=["a", None, "c"])
    lake.land(name, format="protobuf", key_format="string", schema_registry={"url": registry.url, "timeout": "5"})
    assert rows(lake) == [
        {"id": 0, "tags": [], "_key": "a"},
        {"id": 1, "tags": ["x"], "_key": None},
        {"id": 2, "tags": ["x", "x"], "_key": "c"},
    ]


def test_json_schema_by_the_ids_in_the_records(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry
) -> None:
    name = topic(1)
    properties = {"id": {"type": "integer"}, "at": {"type": "string", "format": "date"}}
    text = json.dumps({"type": "object", "properties": properties, "required": ["id"]})
    # Another subject than the topic's: the ids in the records lead to it.
    schema_id = registry.register(f"{name}-by-another-name", text, "JSON")
    produce(name, 0, [framed(schema_id, b'{"id": 7, "at": "2026-11-20"}')], keys=[b'{"k": "x"}'])
    lake.land(name, format="json_schema", key_format="json", schema_registry=registry.url)
    assert rows(lake) == [{"id": 7, "at": date(2026, 11, 20), "_key": {"k": "x"}}]


@EACH_FORMAT
def test_json_schema_as_the_java_serializer_registers_it(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry
) -> None:
    name = topic(1)
    schema_id = registry.register(f"{name}-value", json.dumps(JAVA), "JSON")
    produce(name, 0, [framed(schema_id, json.dumps(order).encode()) for order, _ in ORDERS])
    lake.land(name, format="json_schema", schema_registry=registry.url)
    assert [{name: row[name] for name in JAVA["properties"]} for row in lake.records()] == [row for _, row in ORDERS]


def test_ids_in_headers_are_named_and_no_registry_is_asked_for_others(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry
) -> None:
    name = topic(1)
    schema_id = registry.register(f"{name}-value", json.dumps(record("Order", id="long")))
    header = [("__value_schema_id", b"\1" + bytes(16))]
    # The bare ones look like the first one, whose id is in its value.
    values = [framed(schema_id, bytes([2 * n])) for n in range(4)]
    produce(name, 0, values, headers=[[("trace", b"1")], header, header, []])
    lake.land(name, format="avro", schema_registry=registry.url, on_error="reject")
    assert rows(lake) == [{"id": 0}, {"id": 3}]
    produce(name, 0, [struct.pack(">bI", 0, n) + b"x" for n in range(10)], headers=[header] * 10)
    with pytest.raises(TooManyRejected, match="__value_schema_id, which is not read"):
        lake.land(name, format="avro", schema_registry=registry.url, on_error="reject")
    with pytest.raises(BadRecord, match=r"set value[.]schema[.]id[.]serializer="):
        lake.land(name, format="avro", schema_registry=registry.url, on_error="fail")


def test_raw_records_and_keys_as_they_are(lake: Lake, topic_of: TopicOf) -> None:
    name = topic_of([b"\xff", None, b"{}"], keys=[b"k", b"\xfe", None])
    lake.land(name, format="raw")
    assert rows(lake) == [
        {"key": b"k", "value": b"\xff"},
        {"key": b"\xfe", "value": None},
        {"key": None, "value": b"{}"},
    ]


def test_single_object_encoding_by_the_schemas_that_are_given(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    schemas = [record("Order", id="long"), record("Order", id="long", note="string")]
    texts = [json.dumps(schema) for schema in schemas]
    orders: list[dict[str, Any]] = [{"id": 0}, {"id": 1, "note": "x"}]
    values = [
        b"\xc3\x01" + fingerprint(text).to_bytes(8, "little") + avro_bytes(schema, order)
        for schema, text, order in zip(schemas, texts, orders, strict=True)
    ]
    produce(name, 0, values)
    lake.land(name, format="avro", writer_schemas=texts, schema="id bigint, note string")
    assert rows(lake) == [{"id": 0, "note": None}, {"id": 1, "note": "x"}]


def test_a_registry_that_is_down_fails_the_run_and_no_record(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry
) -> None:
    name = topic(1)
    schema = record("Order", id="long")
    schema_id = registry.register(f"{name}-value", json.dumps(schema))
    produce(name, 0, [framed(schema_id, avro_bytes(schema, {"id": 1}))])
    nobody = {"url": f"http://{LOOPBACK}:{free_ports(1)[0]}", "retries": 0}
    for given in ({}, {"schema": "id bigint"}):
        with pytest.raises(RegistryUnavailable, match="could not be asked") as caught:
            lake.land(name, format="avro", schema_registry=nobody, **given)
        assert isinstance(caught.value, Transient)
        assert lake.has_nothing()
    lake.land(name, format="avro", schema_registry=registry.url)
    assert rows(lake) == [{"id": 1}]


def test_nothing_says_the_columns(lake: Lake, topic_of: TopicOf, registry: Registry) -> None:
    name = topic_of([framed(2_000_000_001, b"\x02")])
    with pytest.raises(InvalidArgument, match=f"neither a subject {name}-value nor, of type AVRO"):
        lake.land(name, format="avro", schema_registry=registry.url)
    registry.register(f"{name}-value", json.dumps({"type": "object", "properties": {"a": {"type": "string"}}}), "JSON")
    with pytest.raises(InvalidArgument, match=rf"format: .*subject {name}-value .* of type JSON"):
        lake.land(name, format="avro", schema_registry=registry.url)
    assert lake.has_nothing()


ROW = {"id": 1, "at": 20_000}
DELETED = {"id": 1, "at": None}
EVENTS: list[dict[str, Any]] = [
    {"before": None, "after": ROW, "source": {"lsn": 5}, "op": "c", "ts_ms": 1700},
    {"before": ROW, "after": {**ROW, "at": 20_001}, "source": {"lsn": 6}, "op": "u", "ts_ms": 1701},
    {"before": DELETED, "after": None, "source": {"lsn": 7}, "op": "d", "ts_ms": 1702},
]
LANDED = [
    {"id": 1, "at": date(2024, 10, 4), "_op": "c", "_ts_ms": 1700, "_source": {"lsn": 5}, "_before": None},
    {
        **{"id": 1, "at": date(2024, 10, 5), "_op": "u", "_ts_ms": 1701, "_source": {"lsn": 6}},
        "_before": {"id": 1, "at": date(2024, 10, 4)},
    },
    {
        **{"id": 1, "at": None, "_op": "d", "_ts_ms": 1702, "_source": {"lsn": 7}},
        "_before": {"id": 1, "at": None},
    },
]
TOMBSTONE = dict.fromkeys(LANDED[0])


def connect_schema() -> dict[str, Any]:
    """Return the schema that Connect's JSON converter writes beside each event."""
    fields = [
        {"field": "id", "type": "int64", "optional": False},
        {"field": "at", "type": "int32", "optional": True, "name": "io.debezium.time.Date", "version": 1},
    ]
    row = {"type": "struct", "optional": True, "fields": fields}
    source = {"type": "struct", "fields": [{"field": "lsn", "type": "int64", "optional": True}], "optional": False}
    members = {"before": row, "after": row, "source": source, "op": {"type": "string"}, "ts_ms": {"type": "int64"}}
    listed = [{**shape, "field": name} for name, shape in members.items()]
    return {"type": "struct", "fields": listed, "optional": False, "name": "shop.Envelope"}


def test_debezium_as_json_with_and_without_its_schema(lake: Lake, topic: Topics, produce: Producing) -> None:
    name = topic(1)
    key = {"type": "struct", "fields": [{"field": "id", "type": "int64"}], "optional": False}
    wrapped = [json.dumps({"schema": connect_schema(), "payload": event}) for event in EVENTS]
    keys = [json.dumps({"schema": key, "payload": {"id": 1}})] * 4
    produce(name, 0, [*wrapped, None], keys=keys)
    lake.land(name, envelope="debezium", key_format="json")
    keyed = [{**row, "_key": {"id": 1}} for row in (*LANDED, TOMBSTONE)]
    assert rows(lake) == keyed
    # Without its schema, a number in a column of dates is what Debezium means by it: days since 1970.
    produce(name, 0, [json.dumps(EVENTS[0])], keys=keys)
    lake.land(name, envelope="debezium", key_format="json", on_error="fail")
    assert rows(lake) == [*keyed, {**LANDED[0], "_key": {"id": 1}}]
    (offset,) = produce(name, 0, [json.dumps({**EVENTS[0], "after": {**ROW, "at": 20_000.5}})], keys=keys)
    with pytest.raises(BadRecord, match=rf"offset {offset}: after\.at"):
        lake.land(name, envelope="debezium", key_format="json", on_error="fail")


def test_debezium_as_avro(lake: Lake, topic: Topics, produce: Producing, registry: Registry) -> None:
    name = topic(1)
    at = {"type": "int", "connect.version": 1, "connect.name": "io.debezium.time.Date"}
    row = record("Value", id="long", at=["null", at])
    members = {"before": ["null", row], "after": ["null", "Value"], "source": record("Source", lsn=["null", "long"])}
    envelope = record("Envelope", **members, op="string", ts_ms=["null", "long"])
    schema_id = registry.register(f"{name}-value", json.dumps(envelope))
    values = [framed(schema_id, avro_bytes(envelope, event)) for event in EVENTS]
    produce(name, 0, [*values, None])
    lake.land(name, format="avro", envelope="debezium", schema_registry=registry.url)
    assert rows(lake) == [*LANDED, TOMBSTONE]


def test_the_flights_in_json_and_avro_are_the_flights_of_the_csv(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry
) -> None:
    flights = list(read_flights())
    assert len(flights) == TOTAL
    as_json, as_avro = topic(2), topic(2)
    numbers = [column for column, value in flights[0].items() if isinstance(value, int)]
    kinds = {column: ["null", "long" if column in numbers else "string"] for column in flights[0]}
    kinds["time_hour"] = ["null", {"type": "long", "logicalType": "timestamp-millis"}]
    schema_id = registry.register(f"{as_avro}-value", json.dumps(record("Flight", **kinds)))
    half = TOTAL // 2
    for partition, part in enumerate((flights[:half], flights[half:])):
        produce(as_json, partition, (json.dumps(flight) for flight in part))
        produce(as_avro, partition, (framed(schema_id, flight_bytes(flight)) for flight in part))
    lake.land(as_json, table="lake.json")
    lake.land(as_avro, table="lake.avro", format="avro", schema_registry=registry.url)
    columns = list(flights[0])
    found = [
        lake.table(table).scan().to_arrow().sort_by([("_kafka_partition", "ascending"), ("_kafka_offset", "ascending")])
        for table in ("lake.json", "lake.avro")
    ]
    expected = pa.Table.from_pylist(flights).select(columns)
    instants = pc.strptime(expected["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "us").cast(pa.timestamp("us", "UTC"))
    expected = expected.set_column(columns.index("time_hour"), "time_hour", instants)
    for table in found:
        assert table.select(columns).cast(expected.schema).equals(expected)


def flight_bytes(flight: dict[str, str | int | None]) -> bytes:
    """Write a flight as Avro: by hand, since the official package takes a minute for all of them."""
    out = bytearray()
    for column, value in flight.items():
        if column == "time_hour":
            value = int(datetime.fromisoformat(str(value)).timestamp() * 1000)
        out += b"\x00" if value is None else b"\x02"
        if isinstance(value, int):
            out += varint(value)
        elif value is not None:
            out += varint(len(value.encode())) + value.encode()
    return bytes(out)


def varint(number: int) -> bytes:
    """Write a number as Avro does."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])
