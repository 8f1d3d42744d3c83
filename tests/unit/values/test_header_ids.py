"""Values and keys whose schemas headers name: bare, and never decoded by an id that their first bytes look like."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.publishing.branch import EngineOutput
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.decode.header_ids import without_bare
from airflow_lakestream.decode.metadata import HEADERS
from airflow_lakestream.decode.rows import RowDecoderFactory
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.flink.formats.avro import ways_of
from airflow_lakestream.flink.formats.proof import JobFormat, proof_of
from airflow_lakestream.onramp.samples import guess_format
from airflow_lakestream.registry.client import RegisteredSchema
from airflow_lakestream.tables.schema.columns import to_schema
from airflow_lakestream.tables.schema.types import arrow_schema
from tests.support.given_records import FORMATS, TOPIC, GivenLake, GivenTopic, Record
from tests.support.registry import FakeRegistry
from tests.unit.decode.support import batch
from tests.unit.values.payloads import framed

GUID = b"\1" + bytes(range(16))
BY_VALUE, BY_KEY = [("__value_schema_id", GUID)], [("__key_schema_id", GUID)]
AVRO = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "long"]}]}
SCHEMAS = {
    "avro": ("AVRO", json.dumps(AVRO)),
    "protobuf": ("PROTOBUF", 'syntax = "proto3"; message R { int64 a = 1; }'),
    "json_schema": ("JSON", '{"type": "object", "properties": {"a": {"type": "integer"}}}'),
}
FRAMED = {"avro": framed(b"\2\x0e"), "protobuf": framed(b"\0\x08\7"), "json_schema": framed(b'{"a":7}')}
SAID = "the id of its schema is in the header __{}_schema_id, which is not read, and not in the {}: set {}.schema.id"


@dataclass(frozen=True)
class Counting(FakeRegistry):
    """Notes which ids it was asked for."""

    asked: list[int] = field(default_factory=list)

    def schema(self, schema_id: int) -> RegisteredSchema:
        self.asked.append(schema_id)
        return super().schema(schema_id)


@pytest.mark.parametrize("table_format", FORMATS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_value_that_a_header_calls_bare_is_never_a_row(tmp_path: Path, table_format: str, name: str) -> None:
    lake = GivenLake(tmp_path, table_format, {1: SCHEMAS[name]})
    # The second one looks as if it named a schema that there is, and would be a plausible row.
    records = [
        Record(FRAMED[name]),
        Record(FRAMED[name], headers=BY_VALUE),
        Record(FRAMED[name], headers=[*BY_VALUE, ("__value_schema_id", None), *BY_KEY, ("trace", b"x")]),
        Record(None, headers=BY_VALUE),
        Record(FRAMED[name], headers=[("__value_schema_id", None), *BY_VALUE]),
    ]
    report = lake.land(records, format=name)
    assert [row["a"] for row in lake.rows()] == [7, 7, None]
    assert (report.counts.written, list(lake.rejected())) == (3, [1, 4])
    for one in lake.rejected().values():
        assert SAID.format("value", "value", "value") in one["error"]
        assert ('or set format="json"' in one["error"]) == (name == "json_schema")


@pytest.mark.parametrize("table_format", FORMATS)
# Keys of Protobuf make a client of their own, which nobody answers here.
@pytest.mark.parametrize("name", ["avro", "json_schema"])
def test_a_key_that_a_header_calls_bare_is_none_of_a_row(tmp_path: Path, table_format: str, name: str) -> None:
    lake = GivenLake(tmp_path, table_format, {1: SCHEMAS[name]})
    records = [
        Record(b'{"b": 1}', FRAMED[name], BY_VALUE),
        Record(b'{"b": 2}', FRAMED[name], BY_KEY),
        Record(b'{"b": 3}', None, BY_KEY),
    ]
    lake.land(records, key_format=name)
    assert [(row["b"], row["_key"]) for row in lake.rows()] == [(1, {"a": 7}), (3, None)]
    (one,) = lake.rejected().values()
    assert f"the key: {SAID.format('key', 'key', 'key')}" in one["error"]


def test_json_needs_no_schema(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path)
    lake.land([Record(b'{"a": 7}', b"k", [*BY_VALUE, *BY_KEY])], key_format="string")
    assert [(row["a"], row["_key"]) for row in lake.rows()] == [(7, "k")]


def headed(values: Sequence[bytes | None], headers: Sequence[Any]) -> Any:
    pairs = [None if one is None else [{"key": name, "value": value} for name, value in one] for one in headers]
    keys = pa.array([b"\0\0\0\0\1k"] * len(values), pa.binary())
    return replace(batch(values), keys=keys, headers=pa.array(pairs, HEADERS))


def decoders(config: Any, schemas: Mapping[int, tuple[str, str]]) -> tuple[RowDecoderFactory, Counting]:
    registry, payload = Counting(schemas), config.payload
    vars(payload)["registry_client"] = registry
    return RowDecoderFactory(payload, ()), registry


NOWHERE = {"url": "http://localhost"}


@pytest.mark.parametrize("name", ["avro", "json_schema"])
def test_no_registry_is_asked_for_what_is_no_id(name: str) -> None:
    values = [b"\0" + number.to_bytes(4, "big") + b"x" for number in range(300)]
    config = MirrorConfig(topic="t", table="lake.t", consumer_group="g", format=name, schema_registry=NOWHERE)
    making, registry = decoders(config, {})
    first = headed(values, [BY_VALUE] * 300)
    with pytest.raises(InvalidArgument, match=r"^format: no record of the first 300 can be decoded.*__value_schema_id"):
        making(None, first)
    assert registry.asked == []


def test_a_tombstone_with_a_bare_key_is_not_counted_among_the_values() -> None:
    good, bare, tombstone = (b"{}", None), (b"{}", BY_KEY), (None, BY_KEY)

    def left(*records: tuple[bytes | None, Any]) -> int:
        values, headers = zip(*records, strict=True)
        return len(without_bare(headed(values, headers), {"key", "value"}, "avro"))

    assert left(good, bare, tombstone) == 1
    assert left(tombstone, tombstone) == 0
    with pytest.raises(InvalidArgument, match=r"^key_format: no record of the first 3 can be decoded"):
        left(bare, bare, tombstone)


@pytest.mark.parametrize("name", SCHEMAS)
def test_nothing_is_asked_for_once_there_are_columns_and_the_run_says_it_once(name: str, tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, schemas={1: SCHEMAS[name]})
    job = lake.job([], format=name)
    making: Any = job.decoders
    registry = Counting({1: SCHEMAS[name]})
    vars(making.payload)["registry_client"] = registry
    assert RecordPart.HEADERS in making.parts
    decoder = making(pa.schema([("a", pa.int64())]), None)
    values = [b"\0" + number.to_bytes(4, "big") + b"x" for number in range(300)]
    told = decoder.decode(headed([*values, FRAMED[name]], [BY_VALUE] * 300 + [None]))
    assert (len(told.rows), told.counts.rejected, set(registry.asked)) == (
        1,
        300,
        set() if name == "json_schema" else {1},
    )
    assert list(told.bad.causes) == ["the values are written without the ids of their schemas, which are in headers"]


def test_headers_are_read_where_a_record_may_name_a_schema_there_whatever_becomes_of_bad_records(
    tmp_path: Path,
) -> None:
    lake = GivenLake(tmp_path, schemas={1: SCHEMAS["avro"]})
    for config, needed in (
        ({"format": "avro"}, {RecordPart.HEADERS}),
        ({"key_format": "avro"}, {RecordPart.KEY, RecordPart.HEADERS}),
    ):
        assert lake.job([], on_error="skip", **config).decoders.parts == needed
    assert not GivenLake(tmp_path).job([], on_error="skip").decoders.parts


def test_columns_come_of_the_records_that_name_a_schema_themselves(tmp_path: Path) -> None:
    lake = GivenLake(tmp_path, schemas={1: SCHEMAS["json_schema"]})
    lake.land([Record(framed(b'{"x":1}'), headers=BY_VALUE), FRAMED["json_schema"]], format="json_schema")
    assert [row["a"] for row in lake.rows()] == [7]


def test_a_guess_says_it() -> None:
    guess = guess_format([b"\0\0\0\0\1\2", b"\2\4", None], None, [0, 1])
    assert guess.problem is not None
    assert "2 of 2 values have the ids of their schemas in headers" in guess.problem
    assert guess_format([b'{"a": 1}'], None, [0]).decoding == {"format": "json"}


@pytest.mark.parametrize("headers", [None, BY_VALUE])
def test_flink_publishes_no_row_of_a_value_that_a_header_calls_bare(headers: Any) -> None:
    topic = GivenTopic([Record(FRAMED["avro"]), Record(FRAMED["avro"], headers=headers)])
    columns = to_schema("a bigint")
    registry = FakeRegistry({1: SCHEMAS["avro"]})
    ways = ways_of(columns, [registry.schema(1)])
    reads = JobFormat("avro", ways.places, {0: 0})
    proof = proof_of(columns, reads, lambda *parts: topic, registry, compares=True, share=1.0)
    nothing = EngineOutput(lambda: iter(()), arrow_schema(columns))
    state, wanted = topic.look(), RangeSet.of(TOPIC.topic, 0, 0, 2)
    if headers is None:
        assert proof.check(wanted, nothing, state, threading.Event()).seen == wanted
    else:
        with pytest.raises(BadRecord, match=r"offset 1: the id of its schema is in the header __value_schema_id"):
            proof.check(wanted, nothing, state, threading.Event())
