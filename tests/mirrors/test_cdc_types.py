"""A column of every type: a real PostgreSQL, a real Debezium and a real Spark; in both formats the mirror is the table.

What is compared is the form that docs/cdc-types.md has for each type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.apps import CDC_TO_DELTA
from airflow_lakestream.spark.stream import kafka_to_iceberg
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from tests.support.cdc import Captured, mirror_config
from tests.support.delta_table import live_files
from tests.support.lake import GROUP, Lake

pytestmark = pytest.mark.integration

# By column: its type, what PostgreSQL says of it in the form that the mirror has, and values.
COLUMNS: dict[str, tuple[str, str, list[str]]] = {
    "c_smallint": ("smallint", "{}", ["-32768", "32767"]),
    "c_int": ("int", "{}", ["-2147483648", "2147483647"]),
    "c_bigint": ("bigint", "{}", ["-9223372036854775808", "9223372036854775807"]),
    "c_oid": ("oid", "{}::bigint", ["4294967295"]),
    "c_real": ("real", "{}::float8", ["1.5", "NaN", "Infinity", "-Infinity", "-0.0", "1e-45"]),
    "c_double": ("float8", "{}", ["0.1", "NaN", "Infinity", "-Infinity", "-0.0", "5e-324", "1.7976931348623157e308"]),
    "c_numeric": ("numeric", "trim_scale({})::text", ["1", "-1.50", "1e100", "1e-50", "0.000"]),
    "c_numeric_12": ("numeric(12, 2)", "{}", ["1.25", "-9999999999.99"]),
    "c_numeric_50": ("numeric(50, 10)", "{}::text", ["1.25", "9" * 40 + ".0123456789"]),
    "c_numeric_below": ("numeric(5, -2)", "{}::text", ["1200"]),
    "c_money": ("money", "{}::numeric", ["12.34", "-9999999999999.99"]),
    "c_boolean": ("boolean", "{}", ["true", "false"]),
    "c_text": ("text", "{}", ["", "h\u00e9\u20ac\U0001f600", "a'b\"\\\n\t"]),
    "c_varchar": ("varchar(10)", "{}", ["abc"]),
    "c_char": ("char(5)", "rpad({}, 5)", ["ab"]),
    "c_citext": ("citext", "{}::text", ["AbC"]),
    "c_enum": ("mood", "{}::text", ["happy"]),
    "c_domain": ("positive", "{}", ["5"]),
    "c_bytea": ("bytea", "{}", ["\\x", "\\x00ff10"]),
    "c_bit": ("bit", "{} = b'1'", ["1", "0"]),
    "c_bits": ("bit(5)", "{}::int", ["10110"]),
    "c_date": ("date", "{}", ["2026-01-02", "9999-12-31"]),
    "c_time": ("time", "{}", ["00:00", "23:59:59.999999"]),
    "c_time3": ("time(3)", "{}", ["12:00:01.123"]),
    "c_timetz": ("timetz", "replace(({} at time zone 'UTC')::text, '+00', 'Z')", ["12:00:01.5+02"]),
    "c_timestamp": ("timestamp", "{}", ["2026-01-02 03:04:05.123456", "9999-12-31 23:59:59.999999"]),
    "c_timestamp3": ("timestamp(3)", "{}", ["2026-01-02 03:04:05.123"]),
    "c_timestamptz": ("timestamptz", "{}", ["2026-01-02 03:04:05.123456+02", "9999-12-31 23:59:59.999999+00"]),
    "c_interval": ("interval", "(extract(epoch from {}) * 1000000)::bigint", ["3 days 04:05:06.789", "-1 day"]),
    "c_uuid": ("uuid", "{}::text", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]),
    "c_json": ("json", "{}::text", ['{"a": [1, 2.50, null], "a": 1}', "null"]),
    "c_jsonb": ("jsonb", "{}::text", ['{"b": 1, "a": 2.50}']),
    "c_xml": ("xml", "{}::text", ["<a b='1'>x</a>"]),
    "c_hstore": ("hstore", "hstore_to_json({})", ["a=>1, b=>NULL", ""]),
    "c_ltree": ("ltree", "{}::text", ["a.b.c"]),
    "c_inet": ("inet", "format('%s', {})", ["192.168.0.1/24", "10.0.0.1", "::1"]),
    "c_cidr": ("cidr", "{}::text", ["10.0.0.0/8"]),
    "c_macaddr": ("macaddr", "{}::text", ["08:00:2b:01:02:03"]),
    "c_macaddr8": ("macaddr8", "{}::text", ["08:00:2b:01:02:03:04:05"]),
    "c_int4range": ("int4range", "{}::text", ["[1,5)", "empty"]),
    "c_numrange": ("numrange", "{}::text", ["[1.5,)"]),
    "c_tsrange": ("tsrange", "{}::text", ['["2026-01-01 00:00:00",infinity)']),
    "c_daterange": ("daterange", "{}::text", ["[2026-01-01,2026-01-05)"]),
    "a_int": ("int[]", "{}", ["{1,NULL,2}", "{}"]),
    "a_double": ("float8[]", "{}", ["{1.5,NaN,-Infinity}"]),
    "a_numeric": ("numeric[]", "{}::text[]", ["{1.5,NULL}"]),
    "a_numeric_12": ("numeric(12, 2)[]", "{}", ["{1.25}"]),
    "a_text": ("text[]", "{}", ['{a,NULL,"b c"}']),
    "a_boolean": ("boolean[]", "{}", ["{t,f}"]),
    "a_bytea": ("bytea[]", "{}", ['{"\\\\x01"}']),
    "a_date": ("date[]", "{}", ["{2026-01-02}"]),
    "a_timestamp": ("timestamp[]", "{}", ['{"2026-01-02 03:04:05"}']),
    "a_timestamptz": ("timestamptz[]", "{}", ['{"2026-01-02 03:04:05+00"}']),
    "a_inet": ("inet[]", "array[format('%s', ({})[1])]", ["{10.0.0.1}"]),
    "k_uuid": ("uuid not null default gen_random_uuid()", "{}::text", []),
    "k_numeric": ("numeric not null default 0", "trim_scale({})::text", ["1.50", "1e40", "-3"]),
    "k_double": ("float8 not null default 0", "{}", ["NaN", "-0.0", "Infinity"]),
}
LEFT_OUT = {
    "x_pair": ("pair", "(1,x)"),
    "x_multirange": ("int4multirange", "{[1,2)}"),
    "x_line": ("line", "{1,2,3}"),
    "x_lsn": ("pg_lsn", "16/B374D848"),
    "x_xid": ("xid", "5"),
    "x_tsvector": ("tsvector", "a"),
    "x_interval": ("interval[]", "{1 day}"),
    "x_money": ("money[]", "{1}"),
}
PREPARE = """
create extension if not exists hstore; create extension if not exists citext; create extension if not exists ltree;
do $$ begin
  create type mood as enum ('sad', 'happy');
  create type pair as (a int, b text);
  create domain positive as int check (value > 0);
exception when duplicate_object then null; end $$;
"""
# Delta has no type for these.
AS_TEXT = "c_uuid string, k_uuid string, c_time string, c_time3 string"


class Typed:
    """The table with a column of each type, and its two mirrors."""

    def __init__(self, captured: Captured, lake: Lake, folder: Path, spark: SparkSession) -> None:
        self.captured, self.lake, self.spark = captured, lake, spark
        self.place = str(folder / "delta")
        (folder / "iceberg").mkdir()
        # Of PostgreSQL's own answers, times are compared in UTC.
        captured.sql.execute("set timezone = 'UTC'")
        self.iceberg = mirror_config(lake, captured.topic, folder / "iceberg")
        landing = {
            "topic": captured.topic,
            "table": self.place,
            "consumer_group": GROUP,
            "schema": AS_TEXT,
        }
        checkpoint = str(folder / "checkpoint_of_delta")
        given = {"app": CDC_TO_DELTA, "kafka": lake.kafka, "landing": landing, "checkpoint_location": checkpoint}
        self.delta = AppConfig.parse(given)

    def insert(self, first: int) -> None:
        """Insert a row for each place in the lists of values."""
        for number in range(max(len(values) for *_, values in COLUMNS.values())):
            given = {name: values[number % len(values)] for name, (_, _, values) in COLUMNS.items() if values}
            given |= {name: value for name, (_, value) in LEFT_OUT.items()}
            casts = [f"%s::{self._type(name)}" for name in given]
            names, values = ", ".join(["id", *given]), ", ".join([str(first + number), *casts])
            self.captured.sql.execute(
                f"insert into {self.captured.name} ({names}) values ({values})", list(given.values())
            )

    @staticmethod
    def _type(name: str) -> str:
        return (COLUMNS.get(name) or LEFT_OUT[name])[0].partition(" not null")[0]

    def run(self, config: AppConfig, **settings: Any) -> None:
        kafka_to_iceberg(replace(config, landing={**config.landing, **settings}), self.spark)

    def expected(self) -> dict[int, dict[str, str]]:
        names = ", ".join(f"{expression.format(name)} {name}" for name, (_, expression, _) in COLUMNS.items())
        found = self.captured.sql.execute(f"select id, {names} from {self.captured.name}")
        assert found.description is not None
        columns = [one.name for one in found.description]
        return self._by_id(dict(zip(columns, row, strict=True)) for row in found.fetchall())

    def in_iceberg(self) -> dict[int, dict[str, str]]:
        return self._by_id(self.lake.table("lake.orders").scan().to_arrow().to_pylist())

    def in_delta(self) -> dict[int, dict[str, str]]:
        paths = [Path(self.place, path) for path in live_files(self.place)]
        return self._by_id(row for path in paths for row in pq.read_table(path).to_pylist())

    def assert_mirrored(self) -> None:
        """Let both mirrors follow, and assert that they are the table."""
        self.captured.await_all_sent()
        self.run(self.iceberg)
        self.run(self.delta)
        assert not differing(self.in_iceberg(), self.expected())
        assert not differing(self.in_delta(), self.expected())

    def _by_id(self, rows: Any) -> dict[int, dict[str, str]]:
        listed = list(rows)
        found = {row["id"]: {name: _text(name, row[name]) for name in COLUMNS} for row in listed}
        assert len(found) == len(listed), "a key is there twice"
        return found


def _text(name: str, value: Any) -> str:
    """Return a value as text, where it is the same in whichever type its table has it."""
    if isinstance(value, list):
        return str([_text("", item) for item in value])
    if isinstance(value, dict):
        value = json.dumps(value, separators=(",", ":"))
    if name == "c_bits" and isinstance(value, bytes):
        value = int.from_bytes(value, "little")
    text = str(value).replace("+00:00", "")
    # Text of a time has all its digits.
    return text.partition(".")[0] + "." + text.partition(".")[2].ljust(6, "0") if name.startswith("c_time") else text


def differing(found: dict[int, dict[str, str]], expected: dict[int, dict[str, str]]) -> list[tuple[Any, ...]]:
    """Return each value that is not as expected: the row's id, the column, and both."""
    assert found.keys() == expected.keys()
    return [
        (row, name, found[row].get(name), value)
        for row, values in expected.items()
        for name, value in values.items()
        if found[row].get(name) != value
    ]


@pytest.fixture
def typed(
    postgres: Postgres, connect: Connect, kafka: Kafka, lake: Lake, spark: SparkSession, tmp_path: Path
) -> Iterator[Typed]:
    with postgres.connect() as sql:
        captured = Captured(sql, connect, kafka, postgres)
        sql.execute(PREPARE)
        columns = [f"{name} {kind}" for name, (kind, *_) in (*COLUMNS.items(), *LEFT_OUT.items())]
        key = "primary key (id, k_uuid, k_numeric, k_double)"
        sql.execute(f"create table {captured.name} (id bigint, {', '.join(columns)}, {key})")
        yield Typed(captured, lake, tmp_path, spark)
        connect.release(captured.name)


def test_a_column_of_every_type(typed: Typed) -> None:
    captured, sql, name = typed.captured, typed.captured.sql, typed.captured.name
    typed.insert(1)
    captured.begin()
    typed.insert(101)
    sql.execute(f"update {name} set c_text = 'new' where id in (1, 2, 101)")
    # The old key is NaN, and -0.0.
    sql.execute(f"update {name} set k_double = 0.0 where id in (2, 101, 102)")
    sql.execute(f"delete from {name} where id in (3, 104)")
    typed.assert_mirrored()
    mirrored = typed.lake.table("lake.orders").schema().column_names
    assert not LEFT_OUT.keys() & set(mirrored)

    # Into the rows that are there.
    sql.execute(f"update {name} set c_varchar = 'again', c_numeric = null where id < 103")
    sql.execute(f"delete from {name} where id in (1, 105)")
    typed.assert_mirrored()

    # Values that no table can hold.
    sql.execute(
        f"update {name} set c_timestamptz = 'infinity', c_date = '0044-03-15 BC', c_time = '24:00' where id = 2"
    )
    captured.await_all_sent()
    for config in (typed.iceberg, typed.delta):
        with pytest.raises(MirrorStopped, match=r"offset \d+ .* column c_\w+ .*out_of_range") as stop:
            typed.run(config)
        assert stop.value.reason == "value-out-of-range"
        typed.run(config, out_of_range="clamp")
    clamped = "date '0001-01-01', c_time = '23:59:59.999999', c_timestamptz = '9999-12-31 23:59:59.999999+00'"
    in_delta = typed.in_delta()
    # Text holds it.
    assert in_delta[2].pop("c_time") == "24:00:00.000000"
    sql.execute(f"update {name} set c_date = {clamped} where id = 2")
    expected = typed.expected()
    assert not differing(typed.in_iceberg(), expected)
    del expected[2]["c_time"]
    assert not differing(in_delta, expected)

    # A type that the mirror's column can't follow.
    sql.execute(f"alter table {name} alter c_int type text using 'n' || c_int")
    sql.execute(f"update {name} set c_text = 'newest' where id = 2")
    captured.await_all_sent()
    for config in (typed.iceberg, typed.delta):
        with pytest.raises(MirrorStopped, match=r"c_int is int32 .* and string .*partition 0, offset") as stop:
            typed.run(config)
        assert stop.value.reason == "type-changed"
