"""Decoding with a real registry: several schemas in one batch, references, ids that nobody knows."""

from __future__ import annotations

import io
import json
import pickle
import struct
from dataclasses import replace
from typing import Any

import avro.io
import avro.schema
import pyarrow as pa
import pytest
from google.protobuf import message_factory

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from airflow_lakestream.decode.protobuf.decoder import ProtobufDecoder
from airflow_lakestream.registry.client import RegistryClient, SchemaNotFound
from airflow_lakestream.registry.config import RegistryConfig
from dev.services.registry import Registry

pytestmark = pytest.mark.integration

MONEY = {
    "type": "record",
    "name": "Money",
    "namespace": "shop",
    "fields": [{"name": "amount", "type": "long"}, {"name": "currency", "type": "string"}],
}


def order(*extra: Any) -> dict[str, Any]:
    fields = [{"name": "id", "type": "long"}, {"name": "price", "type": "shop.Money"}, *extra]
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}


def batch(values: list[bytes | None]) -> RawBatch:
    return RawBatch("orders", 0, range(len(values)), [-1] * len(values), pa.array(values, pa.binary()))


def avro_value(schema_id: int, schema: Any, value: dict[str, Any]) -> bytes:
    whole = {**schema, "fields": [{**f, "type": MONEY} if f["type"] == "shop.Money" else f for f in schema["fields"]]}
    stream = io.BytesIO()
    avro.io.DatumWriter(avro.schema.parse(json.dumps(whole))).write(value, avro.io.BinaryEncoder(stream))
    return struct.pack(">bI", 0, schema_id) + stream.getvalue()


@pytest.fixture(scope="module")
def client(registry: Registry) -> RegistryClient:
    return RegistryClient(RegistryConfig(registry.url))


def test_avro_of_two_schemas_with_a_reference_in_one_batch(registry: Registry, client: RegistryClient) -> None:
    registry.register("money", json.dumps(MONEY))
    money = [{"name": "shop.Money", "subject": "money", "version": 1}]
    old, new = order(), order({"name": "note", "type": ["null", "string"], "default": None})
    first = registry.register("orders-value", json.dumps(old), references=money)
    second = registry.register("orders-value", json.dumps(new), references=money)
    assert first != second

    latest = client.latest("orders-value")
    columns = avro_schema.arrow_schema(latest.text, [needed.text for _, needed in latest.all_references()])
    decoder = pickle.loads(pickle.dumps(AvroDecoder(columns, registry=client)))
    price = {"amount": 5, "currency": "EUR"}
    unknown = 2_000_000_000
    decoded = decoder.decode(
        batch(
            [
                avro_value(first, old, {"id": 1, "price": price}),
                avro_value(second, new, {"id": 2, "price": price, "note": "gift"}),
                avro_value(unknown, old, {"id": 3, "price": price}),
                None,
                avro_value(first, old, {"id": 4, "price": price}),
            ]
        )
    )
    # A tombstone can't be a row here: the writer's schema makes id required.
    assert decoded.rows.to_pylist() == [
        {"id": 1, "price": price, "note": None},
        {"id": 2, "price": price, "note": "gift"},
        {"id": 4, "price": price, "note": None},
    ]
    assert [(row.index, row.schema_id) for row in decoded.bad] == [(2, unknown), (3, None)]
    assert f"Schema {unknown} is not in the registry {registry.url}" in decoded.bad[0].reason


def test_protobuf_with_an_import_and_a_message_inside_another(registry: Registry, client: RegistryClient) -> None:
    money = 'syntax = "proto3"; package shop; message Money { int64 amount = 1; string currency = 2; }'
    text = (
        'syntax = "proto3"; package shop; import "shop/money.proto"; import "google/protobuf/timestamp.proto";\n'
        "message Envelope { message Order { int64 id = 1; Money price = 2; google.protobuf.Timestamp at = 3; } }"
    )
    registry.register("money-proto", money, "PROTOBUF")
    reference = {"name": "shop/money.proto", "subject": "money-proto", "version": 1}
    schema_id = registry.register("proto-value", text, "PROTOBUF", [reference])

    schema = client.schema(schema_id)
    references = tuple((name, needed.text) for name, needed in schema.all_references())
    columns = protobuf_schema.arrow_schema(schema.text, references, message=(0, 0))
    kind = message_factory.GetMessageClass(protobuf_schema.compile_proto(schema.text, references).descriptor((0, 0)))
    payload = kind(id=7, price={"amount": 5, "currency": "EUR"}).SerializeToString()
    header = struct.pack(">bI", 0, schema_id)
    decoder = ProtobufDecoder(columns, registry=client)
    decoded = decoder.decode(batch([header + b"\x04\x00\x00" + payload, header + b"\x02\x0a" + payload]))
    assert decoded.rows.to_pylist() == [{"id": 7, "price": {"amount": 5, "currency": "EUR"}, "at": None}]
    assert [(row.index, row.reason) for row in decoded.bad] == [(1, "the schema has no message number [5]")]


def test_a_schema_of_another_kind_is_no_schema_for_the_record(registry: Registry, client: RegistryClient) -> None:
    text = json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {}})
    schema_id = registry.register("plain-json", text, "JSON")
    decoder = AvroDecoder(pa.schema([pa.field("id", pa.int64())]), registry=client)
    decoded = decoder.decode(batch([struct.pack(">bI", 0, schema_id) + b"\x02"]))
    assert [row.reason for row in decoded.bad] == [f"schema {schema_id} is of type JSON, not AVRO"]


JSON_SCHEMA = {"type": "object", "properties": {"id": {"type": "integer"}}}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {
            "name": "before",
            "type": ["null", {"type": "record", "name": "Row", "fields": [{"name": "a", "type": "int"}]}],
        },
        {"name": "after", "type": ["null", "Row"]},
        {"name": "op", "type": "string"},
    ],
}


@pytest.mark.parametrize(
    ("kind", "text", "settings"),
    [
        ("AVRO", json.dumps(MONEY), {"format": "avro"}),
        ("AVRO", json.dumps(ENVELOPE), {"format": "avro", "envelope": "debezium"}),
        ("JSON", json.dumps(JSON_SCHEMA), {"format": "json_schema", "unknown_fields": "rescue"}),
        ("PROTOBUF", 'syntax = "proto3"; message A { int64 a = 1; map<string, int32> b = 2; }', {"format": "protobuf"}),
    ],
)
def test_the_columns_are_foreseen_where_no_record_has_a_say(
    registry: Registry, kind: str, text: str, settings: dict[str, Any]
) -> None:
    topic = f"foreseen-{kind}-{settings.get('envelope')}"
    payload = PayloadFormats(registry=RegistryConfig(registry.url), **settings)
    assert payload.foreseen_columns(topic) is None
    registry.register(f"{topic}-value", text, kind)
    foreseen = payload.foreseen_columns(topic)
    assert foreseen is not None
    assert foreseen.equals(payload.columns(replace(batch([]), topic=topic)))


@pytest.mark.parametrize(
    "text",
    [
        "message A { int64 a = 1; } message B { string b = 1; }",
        "message A { message B { string b = 1; } B b = 1; }",
    ],
)
def test_which_of_several_messages_it_is_only_a_record_says(registry: Registry, text: str) -> None:
    topic = f"foreseen-{text.count('} m')}-messages"
    registry.register(f"{topic}-value", f'syntax = "proto3"; {text}', "PROTOBUF")
    assert PayloadFormats("protobuf", registry=RegistryConfig(registry.url)).foreseen_columns(topic) is None


def test_schemas_that_are_given_and_keys_are_not_foreseen(registry: Registry) -> None:
    registry.register("foreseen-given-value", json.dumps(MONEY))
    config = RegistryConfig(registry.url)
    assert PayloadFormats("avro", registry=config).foreseen_columns("foreseen-given") is not None
    for more in ({"writer_schemas": (json.dumps(MONEY),)}, {"key_format": "json"}):
        assert PayloadFormats("avro", registry=config, **more).foreseen_columns("foreseen-given") is None


def test_a_subject_that_nobody_registered(client: RegistryClient) -> None:
    with pytest.raises(SchemaNotFound, match="nobody-value"):
        client.latest("nobody-value")
