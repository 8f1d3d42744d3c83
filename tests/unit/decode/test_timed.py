"""Times that a schema says are made from something else: each is the instant meant, or the record is bad."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.decode.avro.schema import fingerprint
from airflow_lakestream.decode.values.outcome import DecoderResult
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.run.repair import TableRepair
from airflow_lakestream.tables.schema.columns import payload_schema
from airflow_lakestream.tables.schema.value_ranges import MAX_MICROS, MIN_MICROS
from tests.unit.decode.support import batch
from tests.unit.flink.test_config import config as flink

# Nobody asks it: the schema is given.
NOWHERE = {"url": "http://localhost"}

NAMES = {"topic": "t", "table": "lake.t", "consumer_group": "g"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
AT = datetime(2026, 11, 20, 5, 5, 0, 123456, UTC)
PER_SECOND = {"epoch_s": 1, "epoch_ms": 10**3, "epoch_us": 10**6, "epoch_ns": 10**9}
WAYS = [{}, {"unknown_fields": "rescue"}, {"unknown_fields": "evolve", "schema_evolution": "add"}]


def decode(schema: str, values: list[Any], **arguments: Any) -> DecoderResult:
    """Decode values as a landing does whose table has the columns of this schema."""
    config = ExtractConfig(**NAMES, schema=schema, **arguments)
    assert config.design.schema is not None
    decoder = pickle.loads(pickle.dumps(config.payload)).decoder(payload_schema(config.design.schema, ()))
    found = decoder.decode(batch([one.encode() if isinstance(one, str) else one for one in values]))
    assert found.rows.schema == decoder.schema
    found.rows.validate(full=True)
    return found


def rows(found: DecoderResult, name: str = "at") -> list[Any]:
    return [None if one is None else one.astimezone(UTC) for one in found.rows[name].to_pylist()]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("source", "number"),
    [
        ("epoch_s", "1795151100.123456"),
        ("epoch_ms", "1795151100123.456"),
        ("epoch_ms", "1.795151100123456E12"),
        ("epoch_us", "1795151100123456"),
        ("epoch_ns", "1795151100123456000"),
        ("epoch_ms", '"1795151100123.456"'),
    ],
)
def test_json_has_numbers(way: dict[str, Any], source: str, number: str) -> None:
    found = decode(f"id bigint, at timestamp from {source}", [f'{{"id": 1, "at": {number}}}', '{"id": 2}', None], **way)
    assert (rows(found), found.bad) == ([AT, None, None], [])


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_times_inside_of_columns_and_bad_ones(way: dict[str, Any]) -> None:
    values = [
        '{"id": 1, "s": {"at": 1795151100123, "more": 1}, "l": [{"at": "2026-11-20T06:05:00"}, null], "n": [1, null]}',
        '{"id": 2, "s": {"at": 1795151100123456789}}',
        '{"id": 3, "l": [{"at": null}, {"at": "2026-10-25T02:30:00"}]}',
        '{"id": 4, "l": [{"at": "2026-03-29 02:30"}]}',
        '{"id": 5, "n": [0, "x"]}',
        '{"id": 6, "s": {"at": 0.0001}}',
        '{"id": 7, "s": null, "l": [], "n": null}',
        '{"id": 8, "s": {}}',
    ]
    schema = (
        "id bigint, s struct<at: timestamp from epoch_ms not null>, n array<timestamp from epoch_s>, "
        "l array<struct<at: timestamptz at time zone 'Europe/Berlin'>>"
    )
    found = decode(schema, values, **way)
    assert found.rows["id"].to_pylist() == [1, 7]
    first = found.rows.to_pylist()[0]
    assert first["s"]["at"] == AT.replace(microsecond=123000)
    assert first["l"] == [{"at": AT.replace(microsecond=0)}, None]
    assert first["n"] == [EPOCH + timedelta(seconds=1), None]
    assert {row.index: row.reason for row in found.bad} == {
        1: "s.at: 1795151100123456789 milliseconds since the epoch: not in the years 1 to 9999",
        2: "l.element.at: 2026-10-25 02:30:00.000000 twice in Europe/Berlin: the clocks were put back",
        3: "l.element.at: 2026-03-29 02:30:00.000000 no time of Europe/Berlin: the clocks were put forward",
        4: "n[1]: 'x' is a text that is no number; the column is given as seconds since the epoch",
        5: 's.at: 0.0001 milliseconds since the epoch: finer than microseconds: timestamps_finer="truncate" cuts it',
        7: "s.at: is null or missing, and the column is required",
    }


def test_all_formats_that_have_numbers_and_texts() -> None:
    schema, at = "id bigint, at timestamp from epoch_ms", AT.replace(microsecond=123000)
    assert rows(decode(schema, ["1,1795151100123", "2,"], format="csv")) == [at, None]
    framed = b'\0\0\0\0\1{"id": 1, "at": 1795151100123}'
    assert rows(decode(schema, [framed], format="json_schema", schema_registry=NOWHERE)) == [at]
    fields = [{"name": "id", "type": "long"}, {"name": "at", "type": "long"}]
    writer = json.dumps({"type": "record", "name": "R", "fields": fields})
    value = b"\xc3\x01" + fingerprint(writer).to_bytes(8, "little") + b"\x02" + varint(1795151100123)
    assert rows(decode(schema, [value], format="avro", writer_schemas=[writer])) == [at]


def varint(number: int) -> bytes:
    """Return a number as Avro has it."""
    left, found = number << 1, b""
    while left >= 0x80:
        found, left = found + bytes([left & 0x7F | 0x80]), left >> 7
    return found + bytes([left])


def test_keys_have_them_too() -> None:
    config = ExtractConfig(**NAMES, schema="id bigint, _key struct<at: timestamp from epoch_ms>", key_format="json")
    assert config.design.schema is not None
    decoder = config.payload.decoder(payload_schema(config.design.schema, ()))
    keyed = replace(batch([b'{"id": 1}']), keys=pa.array([b'{"at": 1795151100123}'], pa.binary()))
    assert decoder.decode(keyed).rows["_key"].to_pylist() == [{"at": AT.replace(microsecond=123000)}]


NUMBERS = st.decimals(min_value=1 - 10**19, max_value=10**19 - 1, places=9, allow_nan=False) | st.integers(
    MIN_MICROS - 10, MAX_MICROS + 10
).map(Decimal)


@given(st.sampled_from(list(PER_SECOND)), st.lists(NUMBERS, min_size=1, max_size=5), st.booleans())
def test_a_number_is_its_instant_or_bad(source: str, numbers: list[Decimal], truncates: bool) -> None:
    finer = {"timestamps_finer": "truncate"} if truncates else {}
    found = decode(f"at timestamp from {source}", [f'{{"at": {number:f}}}' for number in numbers], **finer)
    wanted, bad = [], []
    for index, number in enumerate(numbers):
        micros = number * 10**6 / PER_SECOND[source]
        whole = int(micros.to_integral_value(ROUND_FLOOR))
        if not MIN_MICROS <= whole <= MAX_MICROS or (micros != whole and not truncates):
            bad.append(index)
        else:
            wanted.append(whole)
    assert [row.index for row in found.bad] == bad
    assert found.rows["at"].cast(pa.int64()).to_pylist() == wanted


@given(
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]),
    st.lists(st.datetimes(datetime(1950, 1, 1), datetime(2037, 12, 31)), min_size=1, max_size=5),
)
def test_a_local_time_is_its_instant_or_bad(zone: str, times: list[datetime]) -> None:
    # Around the changes of clocks, too.
    changes = ((3, 28), (10, 28), (4, 2))
    times += [one.replace(month=month, day=day) for one in times for month, day in changes]
    found = decode(f"at timestamp at time zone '{zone}'", [f'{{"at": "{one.isoformat()}"}}' for one in times])
    wanted, bad = [], []
    for index, one in enumerate(times):
        first, last = (one.replace(tzinfo=ZoneInfo(zone), fold=fold) for fold in (0, 1))
        if first.utcoffset() == last.utcoffset():
            wanted.append(first.astimezone(UTC))
        else:
            bad.append(index)
    assert [row.index for row in found.bad] == bad
    assert rows(found) == wanted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"schema": "at bigint from epoch_ms"},
            "expected ',' or the end at position 11, got 'from'.*timestamp",
        ),
        ({"schema": "at timestamp_ntz from epoch_ms"}, "An instant is a 'timestamp'"),
        ({"schema": "at timestamp from millis"}, "one of epoch_s, epoch_ms, epoch_us, epoch_ns after 'from'"),
        ({"schema": "at timestamp at time zone Berlin"}, "a zone in single quotes after 'at time zone'"),
        ({"schema": "at timestamp at time zone 'Europe/Berlim'"}, "'at': there is no time zone 'Europe/Berlim'"),
        ({"schema": "at map<string, timestamp from epoch_ms>"}, "Times inside a map are not made from something else"),
        (
            {"schema": "at timestamp from epoch_ms", "sql": "SELECT now() AS at FROM {{ input }}"},
            r"schema: from epoch_ms has no effect on the column 'at', which the statement in sql makes. Leave it out "
            r"of the schema \('at timestamp'\), and let the statement make .*make_timestamptz",
        ),
    ],
)
def test_what_can_not_be_is_refused_by_name(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        ExtractConfig(**NAMES, **arguments)


def test_a_table_that_has_no_times_there_is_refused_by_name() -> None:
    payload = ExtractConfig(**NAMES, schema="at timestamp from epoch_ms").payload
    with pytest.raises(InvalidArgument, match="'at' is made of times, and the table has int64 there"):
        payload.decoder(pa.schema([("at", pa.int64())]))


def test_those_who_can_not_make_them_say_so() -> None:
    schema = "id bigint, at timestamp from epoch_ms"
    with pytest.raises(InvalidArgument, match="schema: column 'at': a mirror has the database's types"):
        _ = MirrorConfig(**NAMES, key="id", schema=schema).payload
    words = "columns: column 'at' is made from epoch_ms"
    with pytest.raises(InvalidArgument, match=words):
        flink(columns=schema)
    with pytest.raises(InvalidArgument, match=words):
        flink(columns=schema, sql="SELECT id FROM {{ input }}", sql_input="decoded", on_error="reject")


def test_a_repair_takes_a_schema_only_where_it_says_more_than_the_table() -> None:
    audit: Any = None
    timed = "id bigint, at timestamp from epoch_ms"
    assert TableRepair(audit=audit, schema=timed).decoding["schema"] == timed
    with pytest.raises(InvalidArgument, match="with sources of times in it"):
        TableRepair(audit=audit, schema="id bigint, at timestamp")
