"""Timestamps and times that are finer than microseconds: a bad record, or the microsecond before, in every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.protobuf import schema as protobuf_schema
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.registry.config import RegistryConfig
from tests.support.given_records import FORMATS, GivenLake, Record
from tests.support.registry import FakeRegistry
from tests.unit.decode.support import batch
from tests.unit.values.payloads import avro_value, framed

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONED, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")
PROTO = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message R { google.protobuf.Timestamp v = 1; }'
WAYS_OUT = 'finer than microseconds: timestamps_finer="truncate" cuts it, and a column of'


def text(nanos: int) -> str:
    """Return an instant as Java and Go write it, with nine digits."""
    seconds, rest = divmod(nanos, 10**9)
    return f"{(EPOCH + timedelta(seconds=seconds)).isoformat()[:19]}.{rest:09d}Z"


def avro(kind: Any, write: Callable[[int], Any] = int) -> tuple[Any, Callable[[int], bytes]]:
    record = {"type": "record", "name": "R", "fields": [{"name": "v", "type": kind}]}
    return ("AVRO", json.dumps(record)), lambda nanos: avro_value(record, {"v": write(nanos)})


def proto(nanos: int) -> bytes:
    message = message_factory.GetMessageClass(protobuf_schema.compile_proto(PROTO).descriptor((0,)))()
    message.v.seconds, message.v.nanos = divmod(nanos, 10**9)
    return framed(b"\0" + message.SerializeToString())


def connect(name: str, kind: str, write: Callable[[int], Any]) -> Callable[[int], bytes]:
    field = {"field": "v", "type": kind, "name": f"io.debezium.time.{name}", "optional": True}

    def document(nanos: int) -> bytes:
        schema = {"type": "struct", "fields": [field]}
        return json.dumps({"schema": schema, "payload": {"v": write(nanos)}}).encode()

    return document


def plain(nanos: int) -> bytes:
    return json.dumps({"v": text(nanos)}).encode()


@dataclass(frozen=True)
class Way:
    """How times come: the payload, a record, its column, and the schema of a registry."""

    payload: PayloadFormats
    value: Callable[[int], bytes]
    kind: pa.DataType = ZONED
    schema: tuple[str, str] = ("", "")


def _way(given: PayloadFormats, of_avro: tuple[Any, Callable[[int], bytes]], kind: pa.DataType) -> Way:
    return Way(given, of_avro[1], kind, of_avro[0])


AVRO, PROTOBUF = (PayloadFormats(name, registry=RegistryConfig("http://127.0.0.1:1")) for name in ("avro", "protobuf"))
TEXT = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
WAYS = {
    "json": Way(PayloadFormats(), plain),
    "json, each document another": Way(PayloadFormats(), lambda nanos: plain(nanos)[:-1] + b', "%d": [1]}' % nanos),
    "json, evolving": Way(PayloadFormats(unknown_fields="evolve"), plain),
    "json, with more in it": Way(PayloadFormats(), lambda nanos: b'{"v": "%s", "x": {}}' % text(nanos).encode()),
    "json, without a zone": Way(PayloadFormats(), lambda nanos: plain(nanos).replace(b'Z"', b'"'), NAIVE),
    "json_schema": Way(PayloadFormats("json_schema"), lambda nanos: framed(plain(nanos))),
    "csv": Way(PayloadFormats("csv"), lambda nanos: text(nanos).encode()),
    "connect": Way(PayloadFormats(envelope="connect"), connect("NanoTimestamp", "int64", int), NAIVE),
    "connect, text": Way(PayloadFormats(envelope="connect"), connect("ZonedTimestamp", "string", text)),
    "connect, bare": Way(PayloadFormats(envelope="connect"), plain),
    "avro": _way(AVRO, avro({"type": "long", "logicalType": "timestamp-nanos"}), ZONED),
    "avro, local": _way(AVRO, avro({"type": "long", "logicalType": "local-timestamp-nanos"}), NAIVE),
    "avro, of Debezium": _way(AVRO, avro({"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"}), NAIVE),
    "avro, text": _way(AVRO, avro(TEXT, text), ZONED),
    "protobuf": Way(PROTOBUF, proto, ZONED, ("PROTOBUF", PROTO)),
}
# As many as 64 bits hold.
INSTANTS = st.lists(
    st.one_of(
        st.integers(-(2**63) + 10**9, 2**63 - 10**9),
        st.integers(-(10**7), 10**7),
        st.integers(-(10**12), 10**12).map(lambda micros: micros * 1000),
    ),
    min_size=1,
    max_size=40,
)


def decoder(way: Way, finer: str) -> Any:
    payload = replace(way.payload, timestamps_finer=finer)
    vars(payload)["registry_client"] = FakeRegistry({1: way.schema})
    return payload.decoder(pa.schema([("v", way.kind)]))


@pytest.mark.parametrize("name", WAYS)
@given(INSTANTS)
def test_a_microsecond_lands_and_what_is_finer_is_rejected_or_cut_to_the_one_before(
    name: str, instants: list[int]
) -> None:
    way = WAYS[name]
    records = batch([way.value(nanos) for nanos in instants])

    strict = decoder(way, "reject").decode(records)
    assert [row.index for row in strict.bad] == [at for at, nanos in enumerate(instants) if nanos % 1000]
    assert all(WAYS_OUT in row.reason for row in strict.bad)
    micros = [nanos // 1000 for nanos in instants if not nanos % 1000]
    assert strict.rows["v"].cast(pa.int64()).to_pylist() == micros

    cut = decoder(way, "truncate").decode(records)
    assert not cut.bad
    assert cut.rows["v"].cast(pa.int64()).to_pylist() == [nanos // 1000 for nanos in instants]


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (PayloadFormats(), b'{"v": "05:05:00.123456789"}'),
        (PayloadFormats("csv"), b"05:05:00.123456789"),
        (PayloadFormats(envelope="connect"), connect("NanoTime", "int64", int)(18_300_123_456_789)),
        (AVRO, avro({"type": "long", "connect.name": "io.debezium.time.NanoTime"})[1](18_300_123_456_789)),
    ],
    ids=["json", "csv", "connect", "avro"],
)
def test_times_of_day_are_cut_as_timestamps_are(given: PayloadFormats, value: bytes) -> None:
    schema = avro({"type": "long", "connect.name": "io.debezium.time.NanoTime"})[0]
    for finer, micros in (("reject", []), ("truncate", [18_300_123_456])):
        found = decoder(Way(given, lambda nanos: value, pa.time64("us"), schema), finer).decode(batch([value]))
        assert found.rows["v"].cast(pa.int64()).to_pylist() == micros


@pytest.mark.parametrize(
    ("written", "landed"),
    [
        ("2026-11-20T05:05:00.123456000Z", "2026-11-20T05:05:00.123456+00:00"),
        ("2026-11-20T05:05:00,1234560+01:00", "2026-11-20T04:05:00.123456+00:00"),
        ("2026-11-20T05:05:00.000000000Z", "2026-11-20T05:05:00+00:00"),
    ],
)
def test_zeros_are_nothing_finer(written: str, landed: str) -> None:
    for finer in TimestampsFiner:
        found = decoder(Way(PayloadFormats(), plain), finer).decode(batch([json.dumps({"v": written}).encode()]))
        assert [one.isoformat() for one in found.rows["v"].to_pylist()] == [landed]


# With a comma no reader of many takes it.
ODD = "2026-11-20T05:05:00,1234567+01:00"


@pytest.mark.parametrize(
    ("given", "record"),
    [
        (PayloadFormats(), Record(json.dumps({"v": ODD}).encode())),
        (PayloadFormats("csv"), Record(f'"{ODD}"'.encode())),
        (PayloadFormats(key_format="json"), Record(b"{}", json.dumps({"v": ODD}).encode())),
        (PayloadFormats(key_format="json"), Record(b"{}", json.dumps(ODD).encode())),
    ],
    ids=["json", "csv", "key", "key without fields"],
)
def test_times_that_are_taken_one_by_one_are_cut_as_those_at_once(given: PayloadFormats, record: Record) -> None:
    records = replace(batch([record.value]), keys=pa.array([record.key], pa.binary()))
    has_fields = record.key is not None and record.key.startswith(b"{")
    key = pa.field("_key", pa.struct([("v", ZONED)]) if has_fields else ZONED)
    columns = pa.schema([("v", ZONED)] if record.key is None else [("w", pa.int64()), key])
    for finer, landed in (("reject", []), ("truncate", ["2026-11-20T04:05:00.123456+00:00"])):
        rows = replace(given, timestamps_finer=finer).decoder(columns).decode(records).rows
        found = [row.get("v", row.get("_key")) for row in rows.to_pylist()]
        assert [(one["v"] if has_fields else one).isoformat() for one in found] == landed


@pytest.mark.parametrize("written", ["x:05.1234567", "2026-11-20T05:05.1234567Z", "2026-11-20T05:05:60.1234567Z"])
def test_what_is_no_time_does_not_become_one_by_a_cut(written: str) -> None:
    found = decoder(Way(PayloadFormats(), plain), "truncate").decode(batch([json.dumps({"v": written}).encode()] * 3))
    assert len(found.bad) == 3


@pytest.mark.parametrize("finer", TimestampsFiner)
def test_columns_that_documents_tell(finer: TimestampsFiner) -> None:
    values = [json.dumps({"a": text(n), "b": [{"c": text(n)}], "d": text(n) if n else "x"}).encode() for n in (0, 7)]
    columns = PayloadFormats(timestamps_finer=finer).columns(batch(values))
    time = ZONED if finer is TimestampsFiner.TRUNCATE else pa.string()
    assert [columns.field(name).type for name in ("a", "d")] == [time, pa.string()]
    assert columns.field("b").type.value_type.field("c").type == time
    growing = PayloadFormats(unknown_fields="evolve", timestamps_finer=finer).decoder(pa.schema([("a", time)]))
    assert growing.decode(batch(values)).rows.schema.field("b").type.value_type.field("c").type == time


def test_keys_are_cut_as_values_are() -> None:
    keyed = replace(batch([b'{"w": 1}']), keys=pa.array([plain(1_500)], pa.binary()))
    columns = pa.schema([("w", pa.int64()), ("_key", pa.struct([("v", ZONED)]))])
    for finer, rows in (("reject", 0), ("truncate", 1)):
        found = PayloadFormats(key_format="json", timestamps_finer=finer).decoder(columns).decode(keyed)
        assert found.rows.num_rows == rows


def test_mirrors_cut_as_landings_do() -> None:
    event = {"op": "c", "before": None, "after": {"id": 1, "v": text(1_500)}, "source": {"lsn": 5}}
    first: RawBatch = replace(batch([json.dumps(event).encode()]), keys=pa.array([b'{"id": 1}'], pa.binary()))
    config = MirrorConfig(topic="t", table="lake.t", consumer_group="g", key="id", timestamps_finer="truncate")
    payload = config.payload
    rows = payload.decoder(payload.columns(first)).decode(first).rows
    assert rows["v"].to_pylist() == [EPOCH + timedelta(microseconds=1)]


@pytest.mark.parametrize("table_format", FORMATS)
def test_a_table(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    records = [Record(plain(nanos)) for nanos in (-1, 1_000, 1_500)]
    lake.land(records[:2], schema="v timestamp")
    assert (list(lake.rejected()), [row["_kafka_offset"] for row in lake.rows()]) == ([0], [1])
    assert WAYS_OUT in lake.rejected()[0]["error"]
    lake.land(
        records, schema="v timestamp", timestamps_finer="truncate", mode="ranges", ranges=[[0, 0, 3]], replace=True
    )
    assert [(row["v"] - EPOCH) // timedelta(microseconds=1) for row in lake.rows()] == [-1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"timestamps_finer": "round"}, "^timestamps_finer: 'round' is not one of"),
        (
            {"timestamps_finer": "truncate", "sql": "SELECT 1 AS a FROM {{ input }}"},
            "^timestamps_finer: nothing is dec",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        GivenLake(tmp_path).job([], **arguments)
