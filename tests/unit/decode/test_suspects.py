"""What is likely to be behind bad records: told from what values look like, and from what was said of them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.core.policies import OnError, Tombstones
from airflow_lakestream.core.records import DecodedBatch, RawBatch
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.metadata import HEADERS
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.registry.config import RegistryConfig
from tests.support.registry import FakeRegistry

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
AVRO = {"type": "record", "name": "R", "fields": [{"name": "Id", "type": "long"}]}
REGISTRY = FakeRegistry({1: ("AVRO", json.dumps(AVRO)), 2: ("JSON", '{"properties": {"id": {"type": "integer"}}}')})
JSON = b'{"id": "x", "name": "y"}'
MISNAMED = b'{"ID": 1, "name": "y"}'
EVENT = b'{"before": null, "after": {"id": 1}, "op": "c"}'
WRAPPED = b'{"schema": {}, "payload": {"id": 1}}'


def framed(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def decoded(values: list[bytes | None], on_error: OnError = OnError.REJECT, **given: Any) -> DecodedBatch:
    registry = RegistryConfig.parse("http://registry") if given.get("format", "json") != "json" else None
    payload = PayloadFormats(registry=registry, **given)
    # Of the real one only the answers are wanted.
    payload.__dict__["registry_client"] = REGISTRY
    keys = pa.array([b"no JSON"] * len(values), pa.binary())
    headers = pa.nulls(len(values), HEADERS)
    batch = RawBatch(
        "t", 3, range(100, 100 + len(values)), [0] * len(values), pa.array(values, pa.binary()), keys, headers
    )
    decoder = RowDecoderFactory(payload, ("offset",), on_error=on_error)(
        SCHEMA if "key_format" not in given else SCHEMA.append(pa.field("_key", pa.int64())), None
    )
    assert decoder is not None
    return decoder.decode(batch)


@pytest.mark.parametrize(
    ("value", "given", "cause"),
    [
        (JSON, {"format": "avro"}, 'look like JSON, and format="avro" was given: try format="json"'),
        (JSON, {"format": "protobuf"}, 'look like JSON, and format="protobuf" was given'),
        (JSON, {"format": "json_schema"}, 'look like JSON, and format="json_schema" was given'),
        (JSON, {"format": "csv"}, 'look like JSON, and format="csv" was given: try format="json"'),
        (b"\xff", {"format": "csv"}, None),
        (b"\x02", {"format": "avro"}, "do not begin with a zero byte"),
        (b"\x02", {"format": "protobuf"}, "do not begin with a zero byte"),
        (b"\xc3\x01" + b"\x02" * 9, {"format": "protobuf"}, "single-object encoding"),
        (framed(2, b"{}"), {"format": "avro"}, "by the registry, as json_schema"),
        (framed(1, b"\0"), {"format": "protobuf"}, "by the registry, as avro"),
        (framed(1, b"\x02"), {"format": "protobuf"}, 'does not fit what follows: try format="avro"'),
        (framed(2, b"{}"), {"format": "protobuf"}, 'does not fit what follows: try format="json_schema"'),
        (framed(1, b"\x02"), {"format": "json_schema"}, 'try format="avro" or "protobuf"'),
        (framed(9, b"\x02"), {"format": "avro"}, "does not know the schemas"),
        (framed(1, b"\x02"), {"format": "avro"}, "a required column under a name that differs in case"),
        (framed(2, MISNAMED), {"format": "json_schema"}, "a field 'ID' for the column 'id'"),
        (framed(1, b"\x02"), {}, '"avro" or "protobuf", with schema_registry'),
        (framed(1, b'{"id": 1}'), {}, '"json_schema", with schema_registry'),
        (b"\xc3\x01" + b"\x02" * 9, {}, "with writer_schemas"),
        (b"1,Ulm", {}, "do not begin as a JSON object does"),
        (b"", {}, "do not begin as a JSON object does"),
        (MISNAMED, {}, "a field 'ID' for the column 'id': names match exactly"),
        (b'{"key": 1, "nm": 2}', {}, "no field 'id', which is required; their fields are 'key', 'nm'"),
        (b"{}", {}, "their fields are none"),
        (EVENT, {}, 'try envelope="debezium"'),
        (b'{"schema": {}, "payload": ' + EVENT + b"}", {}, 'try envelope="debezium"'),
        (WRAPPED, {}, 'try envelope="connect"'),
        (b'{"id": 1}', {"envelope": "debezium"}, "not change events of Debezium"),
        (b'{"schema": {}, "payload": {"Id": 1}}', {"envelope": "connect"}, "a field 'Id' for the column 'id'"),
        (None, {}, 'tombstones="skip"'),
        (b'{"id": 1}', {"key_format": "json"}, 'the keys do not have the format of key_format="json"'),
        # What says nothing of a setting.
        (JSON, {}, None),
        (b'{"id": ', {}, None),
        (b'{"id": 1}' * 20_000, {}, None),
    ],
)
@pytest.mark.parametrize("on_error", [OnError.REJECT, OnError.SKIP])
def test_the_likely_cause(value: bytes | None, given: dict[str, Any], cause: str | None, on_error: OnError) -> None:
    outcome = decoded([value] * 12, on_error, **given)
    assert outcome.bad.count == 12 == outcome.counts.rejected + outcome.counts.skipped
    if cause is None:
        assert outcome.bad.likely_cause is None
    else:
        assert cause in (outcome.bad.likely_cause or "")


def test_examples_name_the_record_its_reason_and_no_more_than_a_part_of_its_value() -> None:
    secret = b'{"id": 1.5, "name": "' + b"x" * 500 + b'canary"}'
    outcome = decoded([secret, b'{"id": 1}', b"\xff\n" * 100, b'{"id": 2.5}'])
    fraction, text = outcome.bad.kinds
    assert (fraction.count, text.count, outcome.bad.count) == (2, 1, 3)
    first, second = fraction.examples
    assert first.startswith("t[3] offset 100: id: 1.5")
    assert second.startswith("t[3] offset 103: id: 2.5")
    assert "canary" not in first
    assert len(first) < 250
    assert text.examples[0].isprintable()
    assert len(text.examples[0]) < 250


def test_tombstones_that_are_skipped_on_request_are_not_bad() -> None:
    payload = PayloadFormats()
    values = pa.array([None] * 20, pa.binary())
    batch = RawBatch("t", 0, range(20), [0] * 20, values, values, pa.nulls(20, HEADERS))
    for tombstones, bad in ((Tombstones.SKIP, 0), (Tombstones.REJECT, 20)):
        decoder = RowDecoderFactory(payload, ("offset",), on_error=OnError.SKIP, tombstones=tombstones)(SCHEMA, None)
        assert decoder is not None
        outcome = decoder.decode(batch)
        assert (outcome.counts.skipped, outcome.bad.count) == (20, bad)
