"""The ends of each type's range land and come back; one step beyond them rejects the record, whatever the format.

One table: formats, types, places in a row, tables.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.core.policies import OnError
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.tables.schema.value_ranges import (
    MAX_DAY,
    MAX_MICROS,
    MAX_MILLIS,
    MICROS_PER_DAY,
    MIN_DAY,
    MIN_MICROS,
)
from airflow_lakestream.tables.schema.value_ranges import MIN_MILLIS as FIRST_MILLIS
from tests.support.given_records import GivenLake, Record
from tests.unit.values.payloads import avro_registry, avro_value, framed

UTC = dt.UTC
LAKES = pytest.mark.parametrize("table_format", ["iceberg", "delta"])
FIRST_DAY, LAST_DAY = dt.date.min, dt.date.max
FIRST, LAST = dt.datetime.min, dt.datetime.max

# By type: what is at the ends of the range.
ENDS: dict[str, tuple[Any, Any]] = {
    "date": (FIRST_DAY, LAST_DAY),
    "timestamp": (FIRST.replace(tzinfo=UTC), LAST.replace(tzinfo=UTC)),
    "timestamp_ntz": (FIRST, LAST),
    "time": (dt.time.min, dt.time.max),
    "decimal(9,2)": (Decimal("-9999999.99"), Decimal("9999999.99")),
    "decimal(38,0)": (Decimal(-(10**38 - 1)), Decimal(10**38 - 1)),
}
# By table format: where in a row a value is.
PLACES = {
    "iceberg": ("alone", "in a struct", "in a list", "in a map", "deep inside"),
    "delta": ("alone", "deep inside"),
}

Values = tuple[Sequence[Any], Sequence[Any]]
"""As a format writes them: those at the ends of the range, and those beyond."""


def placed(value: Any, place: str) -> Any:
    if place == "in a struct":
        return {"a": value}
    if place == "in a list":
        return [value, None]
    if place == "in a map":
        return {"k": value}
    return [{"m": {"k": value}}] if place == "deep inside" else value


def type_of(kind: str, place: str) -> str:
    names = {"in a struct": "struct<a: {}>", "in a list": "array<{}>", "in a map": "map<string, {}>"}
    return {**names, "deep inside": "array<struct<m: map<string, {}>>>"}.get(place, "{}").format(kind)


def as_read(value: Any) -> Any:
    """Return a value as it comes from a table: its maps are lists of pairs."""
    if isinstance(value, dict) and "k" in value:
        return [(key, as_read(item)) for key, item in value.items()]
    if isinstance(value, dict):
        return {key: as_read(item) for key, item in value.items()}
    return [as_read(item) for item in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Column:
    """A column of the one table that has all types in all places; `case` is a key of the format's table of values."""

    name: str
    case: str
    kind: str
    place: str
    good: Sequence[Any]
    bad: Sequence[Any]


def columns(table_format: str, cases: Mapping[str, tuple[str, Values]], places: Sequence[str] = ()) -> list[Column]:
    """Return a column for each case and place; Delta has no times of day."""
    of_table = [case for case, (kind, _) in cases.items() if table_format == "iceberg" or kind != "time"]
    pairs = itertools.product(of_table, places or PLACES[table_format])
    return [Column(f"v{n}", case, cases[case][0], place, *cases[case][1]) for n, (case, place) in enumerate(pairs)]


def schema_of(table: Sequence[Column]) -> str:
    """Return the table's schema."""
    return ", ".join(f"{one.name} {type_of(one.kind, one.place)}" for one in table)


def check(
    lake: GivenLake,
    table: Sequence[Column],
    encode: Callable[[Column, Any], bytes | None],
    stage: str = "",
    **config: Any,
) -> None:
    """Land a record for each value of each column: those at the ends of a range are rows, those beyond are rejected."""
    ends = [(one, value, end) for one in table for value, end in zip(one.good, ENDS[one.kind], strict=True)]
    beyond = [(one, value) for one in table for value in one.bad]
    values = [encode(one, value) for one, value in [*(end[:2] for end in ends), *beyond]]

    report = lake.land(values, max_rejected=1.0, **config)

    assert (report.counts.written, report.counts.rejected) == (len(ends), len(beyond))
    for row, (column, _, end) in zip(lake.rows(), ends, strict=True):
        landed = {one.name: _in_utc(row[one.name]) for one in table if row[one.name] is not None}
        assert landed == {column.name: as_read(placed(end, column.place))}, column
    rejected = lake.rejected()
    assert {at: row["value"] for at, row in rejected.items()} == dict(enumerate(values[len(ends) :], len(ends)))
    for at, (column, value) in enumerate(beyond, len(ends)):
        assert re.search(rf"\b{column.name}\b", rejected[at]["error"]), (column, value)
        assert not stage or rejected[at]["stage"] == stage


def _in_utc(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_utc(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_in_utc, value))
    return value.astimezone(UTC) if isinstance(value, dt.datetime) and value.tzinfo else value


JSON: dict[str, Values] = {
    "date": (["0001-01-01", "9999-12-31"], ["0000-12-31", "10000-01-01", "-0001-01-01", "99999-01-01"]),
    "timestamp": (
        ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"],
        ["0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999-00:01", "10000-01-01T00:00:00Z", "+1Z"],
    ),
    "timestamp_ntz": (
        ["0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"],
        ["0000-12-31T23:59:59.999999", "10000-01-01T00:00:00", "9999-12-31T24:00:00"],
    ),
    "time": (["00:00:00", "23:59:59.999999"], ["24:00:00", "23:59:60", "-00:00:01", "23:59:59.9999999"]),
    "decimal(9,2)": (["-9999999.99", "9999999.99"], ["10000000", "-10000000.00", "0.001", "1e400", "9" * 5000]),
    "decimal(38,0)": (["-" + "9" * 38, "9" * 38], ["1" + "0" * 38, "1e38", "1e-1", "1e999999999999"]),
}


@LAKES
def test_json(tmp_path: Path, table_format: str) -> None:
    table = columns(table_format, {kind: (kind, values) for kind, values in JSON.items()})
    lake = GivenLake(tmp_path, table_format)
    check(lake, table, lambda one, v: json.dumps({one.name: placed(v, one.place)}).encode(), schema=schema_of(table))


LONGS = (-(2**63), 2**63 - 1)
INTS = (-(2**31), 2**31 - 1)


def micros(scale: float) -> Values:
    """Return the ends of the years, and what is beyond, in units of so many microseconds."""
    if scale < 1:
        # In nanoseconds all 64 bits are within the range.
        raise AssertionError("there is nothing beyond")
    low, high = -(-MIN_MICROS // int(scale)), MAX_MICROS // int(scale)
    return (low, high), (low - 1, high + 1, *LONGS)


AVRO: dict[str, tuple[str, Any, Values]] = {
    "date": ("date", {"type": "int", "logicalType": "date"}, ((MIN_DAY, MAX_DAY), (MIN_DAY - 1, MAX_DAY + 1, *INTS))),
    "time-micros": (
        "time",
        {"type": "long", "logicalType": "time-micros"},
        ((0, MICROS_PER_DAY - 1), (-1, MICROS_PER_DAY, *LONGS)),
    ),
    "timestamp-micros": ("timestamp", {"type": "long", "logicalType": "timestamp-micros"}, micros(1)),
    "local-timestamp-micros": ("timestamp_ntz", {"type": "long", "logicalType": "local-timestamp-micros"}, micros(1)),
    "decimal": (
        "decimal(9,2)",
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
        ((-999999999, 999999999), (-(10**9), 10**9, -(2**127), 2**127 - 1, 2**200)),
    ),
    "decimal of 38 digits": (
        "decimal(38,0)",
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
        ((-(10**38 - 1), 10**38 - 1), (10**38, -(10**38), 2**127 - 1, -(2**127), 2**4000)),
    ),
}


def avro_placed(schema: Any, place: str, name: str) -> Any:
    if place == "in a struct":
        return {"type": "record", "name": f"{name}A", "fields": [{"name": "a", "type": schema}]}
    if place == "in a list":
        return {"type": "array", "items": ["null", schema]}
    if place == "in a map":
        return {"type": "map", "values": schema}
    if place == "deep inside":
        fields = [{"name": "m", "type": {"type": "map", "values": schema}}]
        return {"type": "array", "items": {"type": "record", "name": f"{name}M", "fields": fields}}
    return schema


def avro_encoded(value: int, schema: Any) -> Any:
    if schema["type"] != "bytes":
        return value
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


@LAKES
def test_avro(tmp_path: Path, table_format: str) -> None:
    table = columns(table_format, {case: (kind, values) for case, (kind, _, values) in AVRO.items()})
    fields = [
        {"name": one.name, "type": ["null", avro_placed(AVRO[one.case][1], one.place, one.name)]} for one in table
    ]
    writer = {"type": "record", "name": "R", "fields": fields}

    def encode(column: Column, value: Any) -> bytes:
        given = placed(avro_encoded(value, AVRO[column.case][1]), column.place)
        return avro_value(writer, {**{one.name: None for one in table}, column.name: given})

    lake = GivenLake(tmp_path, table_format, avro_registry(writer))
    check(lake, table, encode, format="avro", schema=schema_of(table))


# The coarser units end within the last of their steps.
@LAKES
@pytest.mark.parametrize(
    ("logical", "scale", "column"),
    [("timestamp-millis", 1000, "timestamp"), ("local-timestamp-millis", 1000, "timestamp_ntz")],
)
def test_avro_in_milliseconds(tmp_path: Path, table_format: str, logical: str, scale: int, column: str) -> None:
    good, bad = micros(scale)
    field = {"name": "v", "type": {"type": "long", "logicalType": logical}}
    writer = {"type": "record", "name": "R", "fields": [field]}
    lake = GivenLake(tmp_path, table_format, avro_registry(writer))

    lake.land([avro_value(writer, {"v": v}) for v in (*good, *bad)], format="avro", max_rejected=1.0)

    first, last = ENDS[column]
    assert [_in_utc(row["v"]) for row in lake.rows()] == [first, last.replace(microsecond=999000)]
    assert set(lake.rejected()) == {2, 3, 4, 5}


def test_avro_of_time_in_milliseconds(tmp_path: Path) -> None:
    writer = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "v", "type": {"type": "int", "logicalType": "time-millis"}}],
    }
    lake = GivenLake(tmp_path, schemas=avro_registry(writer))
    values = [avro_value(writer, {"v": v}) for v in (0, 86_399_999, -1, 86_400_000, *INTS)]

    lake.land(values, format="avro", max_rejected=1.0)

    assert [row["v"] for row in lake.rows()] == [dt.time.min, dt.time(23, 59, 59, 999000)]
    assert set(lake.rejected()) == {2, 3, 4, 5}


@LAKES
def test_avro_in_nanoseconds_is_all_in_range(tmp_path: Path, table_format: str) -> None:
    writer = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "v", "type": {"type": "long", "logicalType": "timestamp-nanos"}}],
    }
    lake = GivenLake(tmp_path, table_format, avro_registry(writer))
    ends = [-(2**63) // 1000 * 1000 + 1000, (2**63 - 1) // 1000 * 1000]

    lake.land([avro_value(writer, {"v": v}) for v in (*ends, *LONGS)], format="avro", schema="v timestamp")

    epoch = dt.datetime(1970, 1, 1, tzinfo=UTC)
    assert [_in_utc(row["v"]) for row in lake.rows()] == [epoch + dt.timedelta(microseconds=v // 1000) for v in ends]
    # Finer than a microsecond.
    assert set(lake.rejected()) == {2, 3}


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def protobuf_timestamp(seconds: int, nanos: int) -> bytes:
    inner = b"\x08" + varint(seconds) + b"\x10" + varint(nanos)
    return framed(b"\x00" + b"\x0a" + varint(len(inner)) + inner)


@LAKES
def test_protobuf(tmp_path: Path, table_format: str) -> None:
    proto = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message R { google.protobuf.Timestamp v = 1; }'
    )
    low, high = MIN_MICROS // 10**6, MAX_MICROS // 10**6
    beyond = [(low - 1, 999999000), (high + 1, 0), *((end, 0) for end in LONGS), (0, -1000), (0, 10**9)]
    ends = [(low, 0), (high, 999999000)]
    lake = GivenLake(tmp_path, table_format, {1: ("PROTOBUF", proto)})
    column = Column("v", "timestamp", "timestamp", "alone", ends, beyond)
    check(lake, [column], lambda _, v: protobuf_timestamp(*v), format="protobuf")


def connect(column: Column, value: Any) -> bytes:
    storage = CONNECT[column.case][1]
    field = {"type": storage, "optional": True, "field": column.name, "name": column.case, "parameters": {}}
    return json.dumps({"schema": {"type": "struct", "fields": [field]}, "payload": {column.name: value}}).encode()


CONNECT: dict[str, tuple[str, str, Values]] = {
    "org.apache.kafka.connect.data.Date": ("date", "int32", AVRO["date"][2]),
    "io.debezium.time.Date": ("date", "int32", AVRO["date"][2]),
    "io.debezium.time.MicroTimestamp": ("timestamp_ntz", "int64", micros(1)),
    "io.debezium.time.MicroTime": ("time", "int64", AVRO["time-micros"][2]),
    "io.debezium.time.ZonedTimestamp": ("timestamp", "string", JSON["timestamp"]),
}


@LAKES
def test_connect_and_debezium(tmp_path: Path, table_format: str) -> None:
    cases = {name: (kind, values) for name, (kind, _, values) in CONNECT.items()}
    table = columns(table_format, cases, ("alone",))
    check(GivenLake(tmp_path, table_format), table, connect, envelope="connect", schema=schema_of(table))


SQL: dict[str, Values] = {
    "date": (["0001-01-01", "9999-12-31"], ["0001-12-31 (BC)", "10000-01-01", "290000-01-01", "infinity", "x"]),
    "timestamp": (
        ["0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"],
        ["0001-12-31 (BC) 23:59:59.999999+00", "10000-01-01 00:00:00+00", "290000-01-01 00:00:00+00", "-infinity"],
    ),
    "timestamp_ntz": (
        ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"],
        ["10000-01-01 00:00:00", "290000-01-01 00:00:00", "infinity", "290000-13-01 00:00:00"],
    ),
    "time": (["00:00:00", "23:59:59.999999"], ["24:00:00", "25:00:00"]),
    "decimal(9,2)": (["-9999999.99", "9999999.99"], ["10000000", "-10000000"]),
    "decimal(38,0)": (["-" + "9" * 38, "9" * 38], ["1" + "0" * 38, "1e39"]),
}
SQL_TYPES = {"timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP"}
SQL_PLACES = {
    "alone": "{}",
    "in a struct": "{{'a': {}}}",
    "in a list": "[{}, NULL]",
    "in a map": "MAP {{'k': {}}}",
    "deep inside": "[{{'m': MAP {{'k': {}}}}}]",
}


@LAKES
def test_sql(tmp_path: Path, table_format: str) -> None:
    table = columns(table_format, {kind: (kind, values) for kind, values in SQL.items()})
    selected = [
        f"CASE WHEN json_value(value, '$.c') = '{one.name}' THEN "
        + SQL_PLACES[one.place].format(f"CAST(value->>'v' AS {SQL_TYPES.get(one.kind, one.kind)})")
        + f" END AS {one.name}"
        for one in table
    ]
    sql = f"SELECT {', '.join(selected)} FROM {{{{ input }}}}"
    lake = GivenLake(tmp_path, table_format)
    check(lake, table, lambda one, v: json.dumps({"c": one.name, "v": v}).encode(), "sql", sql=sql)


@LAKES
@pytest.mark.parametrize("on_error", [OnError.FAIL, OnError.SKIP])
def test_what_sql_makes_beyond_the_range_is_named_or_skipped(
    tmp_path: Path, table_format: str, on_error: OnError
) -> None:
    lake = GivenLake(tmp_path, table_format)
    values = [b"2026-01-01", b"290000-01-01"]
    sql = "SELECT value::DATE AS v FROM {{ input }}"
    if on_error is OnError.FAIL:
        with pytest.raises(BadRecord, match="offset 1: v: not in the years 1 to 9999"):
            lake.land(values, sql=sql, on_error=on_error)
        return
    report = lake.land(values, sql=sql, on_error=on_error)
    assert (report.counts.written, report.counts.skipped) == (1, 1)
    assert [row["v"] for row in lake.rows()] == [dt.date(2026, 1, 1)]


STAMPS = (FIRST_MILLIS, MAX_MILLIS, FIRST_MILLIS - 1, MAX_MILLIS + 1, (2**63 - 1) // 1000, *LONGS)


@LAKES
@pytest.mark.parametrize("sql", [None, "SELECT 1 AS v FROM {{ input }}"])
def test_a_records_own_timestamp(tmp_path: Path, table_format: str, sql: str | None) -> None:
    lake = GivenLake(tmp_path, table_format)
    records = [Record(b'{"v":1}', at_ms=at) for at in STAMPS]

    lake.land(records, schema=None if sql else "v int", sql=sql, max_rejected=1.0)

    first, last = (row["_kafka_timestamp"].astimezone(UTC) for row in lake.rows())
    assert (first, last) == (FIRST.replace(tzinfo=UTC), LAST.replace(tzinfo=UTC, microsecond=999000))
    rejected = lake.rejected()
    assert {at: row["error"] for at, row in rejected.items()} == {
        at: f"the record's timestamp {STAMPS[at]} ms is out of range" for at in range(2, len(STAMPS))
    }
    assert all(row["_kafka_timestamp"] is None for row in rejected.values())


@LAKES
def test_a_timestamp_beyond_the_range_harms_nobody_where_no_column_takes_it(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    records = [Record(b'{"v":1}', at_ms=at) for at in STAMPS]

    lake.land(records, schema="v int", metadata_columns=["topic", "partition", "offset"])

    assert [row["_kafka_offset"] for row in lake.rows()] == list(range(len(STAMPS)))


@LAKES
def test_a_record_rejected_for_another_reason_keeps_its_timestamp(tmp_path: Path, table_format: str) -> None:
    lake = GivenLake(tmp_path, table_format)
    records = [Record(b'{"v":1}'), Record(b'{"v":"x"}', at_ms=2**62)]

    lake.land(records, schema="v int", metadata_columns=["topic", "partition", "offset"])

    (row,) = lake.rejected().values()
    assert (row["error"], row["timestamp_ms"]) == ("v: is the string 'x', not a number", 2**62)
    assert row["_kafka_timestamp"] is None


TRANSFORMS: dict[str, Callable[[str], list[str]]] = {
    "date": lambda c: [c, f"year({c})", f"month({c})", f"day({c})", f"bucket(7, {c})"],
    "timestamp": lambda c: [c, f"year({c})", f"month({c})", f"day({c})", f"hour({c})", f"bucket(7, {c})"],
    "timestamp_ntz": lambda c: [c, f"year({c})", f"month({c})", f"day({c})", f"hour({c})", f"bucket(7, {c})"],
    "time": lambda c: [c],
    "decimal(9,2)": lambda c: [c, f"bucket(7, {c})"],
    "decimal(38,0)": lambda c: [c, f"bucket(7, {c})"],
}


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_the_ends_partition_and_sort_tables(tmp_path: Path, kind: str) -> None:
    terms = TRANSFORMS[kind]("v")
    values = [json.dumps({"v": value}).encode() for value in (*JSON[kind][0], None)]
    # A partition field each; a sort order takes all terms at once, and so do fields that are not derived in turn.
    designs = [{"partition_by": [term]} for term in terms] + [{"sort_order": [term]} for term in terms]
    for number, config in enumerate(designs):
        (tmp_path / str(number)).mkdir()
        lake = GivenLake(tmp_path / str(number))
        lake.land(values, schema=f"v {kind}", **config)
        assert [_in_utc(row["v"]) for row in lake.rows()] == [*ENDS[kind], None]
        assert len(lake.by_duckdb()) == 3
