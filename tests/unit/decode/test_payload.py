"""What goes together of formats, keys, envelopes and registries, and that each refusal says what to do."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.core.policies import KeyFormat, ValueFormat
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.known_formats import FORMATS
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.registry.config import RegistryConfig
from tests.unit.decode.support import batch

REGISTRY = RegistryConfig("http://127.0.0.1:9")
RECORD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "v", "type": "long"}]})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"format": "xml"}, "format: 'xml' is not one of 'json', 'avro'"),
        ({"format": "string"}, "format: 'string' is not one of"),
        ({"key_format": "xml"}, "key_format: 'xml' is not one of 'string', 'raw'"),
        ({"envelope": "maxwell"}, "envelope: 'maxwell' is not one of 'connect', 'debezium'"),
        ({"format": "avro"}, "schema_registry: format='avro' needs one.*http://registry:8081.*connection"),
        ({"format": "protobuf"}, "schema_registry: format='protobuf' needs one"),
        ({"key_format": "avro"}, "schema_registry: key_format='avro' needs one"),
        ({"format": "avro", "key_format": "avro", "writer_schemas": (RECORD,)}, "key_format='avro' needs one"),
        ({"writer_schemas": (RECORD,)}, "writer_schemas: goes with format=\"avro\"; the format is"),
        ({"format": "avro", "writer_schemas": ("{}",)}, "Not an Avro schema"),
        ({"format": "raw", "envelope": "debezium"}, "'debezium' goes with json and json_schema and avro"),
        ({"format": "avro", "registry": REGISTRY, "envelope": "connect"}, "'connect' goes with json; the format"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused_at_once(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PayloadFormats(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"format": "avro", "writer_schemas": (RECORD,)},
        {"format": "avro", "registry": REGISTRY, "key_format": "avro", "envelope": "debezium"},
        {"format": "json_schema"},
        {"format": "raw", "key_format": "string"},
        {"key_format": "json", "envelope": "connect"},
    ],
)
def test_what_goes_together_makes_decoders_that_travel(settings: dict[str, Any]) -> None:
    payload = pickle.loads(pickle.dumps(PayloadFormats(**settings)))
    columns = [("value", pa.binary())] if payload.format == "raw" else [("v", pa.int64())]
    schema = pa.schema([*columns, *([("_key", pa.string())] if payload.key_format else [])])
    decoder = pickle.loads(pickle.dumps(payload.decoder(schema)))
    assert decoder.schema == schema


def test_keys_need_their_column() -> None:
    payload = PayloadFormats(key_format="string")
    with pytest.raises(InvalidArgument, match=r"key_format: there is no column _key for the keys.*_key string"):
        payload.decoder(pa.schema([("v", pa.int64())]))


def test_a_field_that_is_called_as_the_column_of_the_keys_is_no_column() -> None:
    records = replace(batch([b'{"v": 1}', b'{"_key": 1}', b'{"_KEY": 1}']), keys=pa.array([b"k"] * 3))
    assert PayloadFormats(key_format="string").columns(records).names == ["v", "_key"]
    assert PayloadFormats(key_format="string").columns(records).field("_key").type == pa.string()


def test_delta_takes_no_spaces_in_names() -> None:
    records = batch([b'{"v": 1, "a b": 2}'])
    assert PayloadFormats(refused_characters=" ").columns(records).names == ["v"]
    assert PayloadFormats().columns(records).names == ["v", "a b"]


def test_the_images_of_a_row_that_are_inferred_are_of_one_type() -> None:
    events = [
        b'{"op":"c","before":null,"after":{"x":1}}',
        b'{"op":"d","before":{"x":1.5,"X":2},"after":null}',
    ]
    columns = PayloadFormats(envelope="debezium").columns(batch(events))
    assert columns.names == ["x", "_op", "_before"]
    assert columns.field("x").type == pa.float64()


@pytest.mark.parametrize("name", ["_op", "_source", "_before", "_after", "_ts_ms", "_ts_us", "_ts_ns", "_transaction"])
def test_a_column_named_as_a_part_of_its_event_is_refused_by_name(name: str) -> None:
    event = json.dumps({"op": "c", "before": None, "after": {"x": 1, name: 3}}).encode()
    with pytest.raises(InvalidArgument, match=rf"^envelope: .* has a column {name}, a name .*column.exclude.list"):
        PayloadFormats(envelope="debezium").columns(batch([event]))


@pytest.mark.parametrize("name", ["_kafka_offset", "_kafka_partition"])
def test_a_column_named_as_metadata_is_refused_by_name(name: str) -> None:
    event = json.dumps({"op": "c", "before": None, "after": {"x": 1, name: 3}}).encode()
    decoders = RowDecoderFactory(PayloadFormats(envelope="debezium"), ("partition", "offset"))
    with pytest.raises(InvalidArgument, match=name):
        decoders(None, batch([event]))


def test_nothing_but_a_schema_says_the_columns_of_json_schema_without_a_registry() -> None:
    with pytest.raises(InvalidArgument, match=r"the columns of the value of orders are unknown.*schema_registry"):
        PayloadFormats("json_schema").columns(batch([b"\0\0\0\0\x07{}"]))


@pytest.mark.parametrize("name", ValueFormat)
def test_each_format_of_values_has_a_decoder(name: ValueFormat) -> None:
    assert FORMATS[name].decoder(PayloadFormats(), pa.schema([("value", pa.binary())])).schema.names == ["value"]


@pytest.mark.parametrize("name", KeyFormat)
def test_each_format_of_keys_has_a_decoder(name: KeyFormat) -> None:
    kind = pa.binary() if name in ("string", "raw") else pa.struct([("id", pa.int64())])
    schema = pa.schema([("_key", kind)])
    assert FORMATS[name].key_decoder(PayloadFormats(key_format="json"), schema).schema == schema
