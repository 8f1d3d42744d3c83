"""Mirrors of a real MariaDB by Debezium's connector, in Iceberg and in Delta: in the end the mirror is the table."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_lakestream.cdc.columns import VERSION
from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.landing.job import LandingJob
from airflow_lakestream.core.source_types import SourceTypeChanged, other_meaning
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.resnapshot import MirrorResnapshot
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import MariaDb
from tests.support.delta_lake import DeltaLake
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.mariadb import InMariaDb, made_in, mariadb
from tests.support.retyped import Retyped

__all__ = ["mariadb"]

pytestmark = pytest.mark.integration

KINDS = ("iceberg", "delta")


class Mirrors:
    """A table's mirrors in both formats."""

    def __init__(self, lake: Lake, table: InMariaDb) -> None:
        self.lake, self.table, self.delta = lake, table, DeltaLake(lake.folder, lake.kafka)

    def land(self, kind: str, **told: Any) -> None:
        """Land what is there."""
        form = {"table_format": "delta"} if kind == "delta" else {}
        config = MirrorConfig(topic=self.table.topic, table=self.place(kind), consumer_group=GROUP, **form, **told)
        land(build_job(config, self.lake.kafka, self.store(kind), run_id=uuid.uuid4().hex))

    def place(self, kind: str) -> str:
        """Return the table's name, or where it lies."""
        return self.delta.place if kind == "delta" else TABLE

    def store(self, kind: str) -> Any:
        """Return what opens the table."""
        return DeltaStorage() if kind == "delta" else self.lake.catalog()

    def rows(self, kind: str) -> dict[Any, dict[str, Any]]:
        """Return a mirror's rows by their key; each key once, or it is an error."""
        table = self.delta.scan() if kind == "delta" else self.lake.table().scan().to_arrow()
        found = table.drop_columns(list(VERSION)).to_pylist()
        rows = {row["id"]: row for row in found}
        assert len(rows) == len(found), "a key is there twice"
        return rows

    def assert_same(self, **told: Any) -> None:
        """Land in both formats, and compare with the table."""
        self.table.await_all_sent()
        for kind in KINDS:
            self.land(kind, **told)
            assert self.rows(kind) == self.table.rows(), kind


# By column: its type in MariaDB, values, and what the mirror has for a value, where it is not what the driver returns.
COLUMNS: dict[str, tuple[str, list[str]] | tuple[str, list[str], Callable[[Any], Any]]] = {
    "c_tiny": ("tinyint", ["-128", "127"]),
    "c_flag": ("boolean", ["true", "false"]),
    "c_small": ("smallint unsigned", ["65535"]),
    "c_medium": ("mediumint", ["-8388608"]),
    "c_int": ("int unsigned", ["4294967295"]),
    "c_big": ("bigint", ["-9223372036854775808"]),
    "c_decimal": ("decimal(12, 2)", ["1.25", "-9999999999.99"]),
    "c_float": ("float", ["1.5"]),
    "c_double": ("double", ["0.1", "-1.5e300"]),
    "c_bit": ("bit(1)", ["b'1'", "b'0'"], lambda value: value == b"\x01"),
    "c_char": ("char(5)", ["'ab'"]),
    "c_text": ("longtext character set utf8mb4", ["''", "'h\u00e9\u20ac\U0001f600 a''b'"]),
    "c_enum": ("enum('small', 'large')", ["'large'"]),
    "c_set": ("set('a', 'b')", ["'a,b'", "''"]),
    "c_json": ("json", ["'{{\"a\": [1, 2.50, null]}}'"]),
    "c_bytes": ("varbinary(20)", ["x'00ff10'"]),
    "c_blob": ("blob", ["x''", "x'deadbeef'"]),
    "c_date": ("date", ["'2026-01-02'", "'9999-12-31'"]),
    "c_time": ("time(6)", ["'23:59:59.999999'"], lambda value: (datetime.min + value).time()),
    "c_datetime": ("datetime", ["'2026-01-02 03:04:05'", "'9999-12-31 23:59:59'"]),
    "c_datetime6": ("datetime(6)", ["'2026-01-02 03:04:05.123456'"]),
    "c_timestamp": ("timestamp(6) null", ["'2026-01-02 03:04:05.123456'"], lambda value: value.replace(tzinfo=UTC)),
    "c_year": ("year", ["2026"]),
}


@pytest.fixture
def typed(mariadb: MariaDb, connect: Connect, kafka: Kafka) -> Iterator[InMariaDb]:
    """Give a table with a column of each type."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in COLUMNS.items())
    yield from made_in(mariadb, connect, kafka, f"id int primary key, {columns}")


def test_each_type_is_as_documented_whether_read_or_streamed(lake: Lake, typed: InMariaDb) -> None:
    mirrors = Mirrors(lake, typed)

    def fill(first: int) -> None:
        typed.run(f"insert into {{table}} (id) values ({first})")
        most = max(len(values) for _, values, *_ in COLUMNS.values())
        for number in range(most):
            values = [said[number % len(said)] for _, said, *_ in COLUMNS.values()]
            typed.run(f"insert into {{table}} values ({first + 1 + number}, {', '.join(values)})")

    def expected(kind: str) -> dict[Any, dict[str, Any]]:
        rows = typed.rows()
        for row in rows.values():
            for name, (_, _, *convert) in COLUMNS.items():
                if convert and row[name] is not None:
                    row[name] = convert[0](row[name])
            if kind == "delta" and row["c_time"] is not None:
                # Delta has no type for a time of day.
                row["c_time"] = str(row["c_time"])
        return rows

    fill(0)
    typed.begin()
    fill(10)
    typed.await_all_sent()
    for kind in KINDS:
        mirrors.land(kind, **({"schema": "c_time string"} if kind == "delta" else {}))
        assert mirrors.rows(kind) == expected(kind), kind


class Play:
    """Random transactions on a table of few keys."""

    def __init__(self, table: InMariaDb, seed: int) -> None:
        self.table, self.random = table, random.Random(seed)

    def transactions(self, count: int) -> None:
        """Play so many; some are rolled back."""
        for _ in range(count):
            self.table.run("begin")
            for _ in range(self.random.choice((1, 1, 2, 5))):
                self.table.run(self._statement())
            self.table.run(self.random.choice(("commit", "commit", "commit", "rollback")))

    def _statement(self) -> str:
        key, value = self.random.randrange(12), self.random.randrange(10**6)
        return self.random.choice(
            (
                f"replace into {{table}} (id, name, total) values ({key}, 'n{value}', {value})",
                f"insert into {{table}} (id, name, total) values ({key}, 'm{value}', 0) "
                "on duplicate key update total = total + 1",
                f"update {{table}} set total = {value} where id = {key}",
                f"update {{table}} set total = total + 1 where id > {key}",
                f"delete from {{table}} where id = {key}",
                # Each row takes the key that the one before it has just left.
                "update {table} set id = id + 1 order by id desc",
                f"update ignore {{table}} set id = {key} where id = {key + 3}",
            )
        )


@pytest.fixture
def orders(mariadb: MariaDb, connect: Connect, kafka: Kafka) -> Iterator[InMariaDb]:
    """Give a table of few columns."""
    yield from made_in(mariadb, connect, kafka, "id int primary key, name varchar(40), total bigint")


def test_the_mirror_is_the_table_through_restarts_and_new_files_of_the_log(lake: Lake, orders: InMariaDb) -> None:
    mirrors, play = Mirrors(lake, orders), Play(orders, seed=1)
    play.transactions(20)
    orders.begin()
    play.transactions(60)
    mirrors.assert_same(max_batch_bytes="150KB")
    # A new file of the log begins at its first byte; a restarted connector sends some events again.
    for _ in range(3):
        orders.run("flush binary logs")
        play.transactions(10)
        orders.connect.restart(orders.connector)
        play.transactions(10)
    mirrors.assert_same(max_batch_bytes="150KB")
    orders.run("alter table {table} add column extra int", "update {table} set extra = id")
    mirrors.assert_same()


# By column the type before, a value, the type after of the same form, and a value.
RETYPED = {
    "a": ("date", "'2026-03-01'", "int", "2026"),
    "b": ("int", "20260301", "date", "'2026-03-01'"),
    "c": ("year", "2026", "date", "'2026-03-01'"),
    "d": ("date", "'2026-03-01'", "year", "2026"),
    "e": ("bigint", "1772323200", "datetime", "'2026-03-01'"),
    "f": ("datetime(3)", "'2026-03-01'", "bigint", "1772323200"),
    "g": ("varbinary(20)", "x'0102'", "decimal(10, 2)", "12.5"),
    "h": ("time", "'12:00'", "bigint", "12"),
    "i": ("varchar(20)", "'text'", "varbinary(20)", "x'0102'"),
    "j": ("datetime(3)", "'2026-03-01'", "date", "'2026-03-01'"),
}
# Delta has no times.
TIMES = {"schema": "h string"}
# Types whose values mean the same, for which nobody has to stop.
HARMLESS = {
    "k": ("year", "2026", "int", "2027"),
    "l": ("varchar(5)", "'short'", "longtext", "'much longer'"),
    "m": ("datetime(3)", "'2026-03-01'", "datetime(6)", "'2026-03-01 00:00:00.123456'"),
    "n": ("enum('a', 'b')", "'a'", "varchar(20)", "'c'"),
}


@pytest.fixture
def keyed(mariadb: MariaDb, connect: Connect, kafka: Kafka) -> Iterator[InMariaDb]:
    """Give a table of a key."""
    yield from made_in(mariadb, connect, kafka, "id int primary key")


def test_a_column_that_is_another_one_of_the_same_form_stops_mirrors_and_extracts(lake: Lake, keyed: InMariaDb) -> None:
    mirrors, retyped = Mirrors(lake, keyed), Retyped(keyed.run)
    told = {"iceberg": {}, "delta": TIMES}

    def extract(table: str, **settings: Any) -> LandingJob:
        config = ExtractConfig(
            topic=keyed.topic, table=table, consumer_group=GROUP, envelope="debezium", tombstones="skip", **settings
        )
        return build_job(config, lake.kafka, lake.catalog(), run_id=uuid.uuid4().hex)

    retyped.add(RETYPED | HARMLESS)
    retyped.write(1, RETYPED | HARMLESS)
    keyed.begin()
    retyped.write(2, RETYPED | HARMLESS)
    keyed.await_all_sent()
    for kind in KINDS:
        mirrors.land(kind, **told[kind])
    land(extract("lake.raw"))

    retyped.drop(HARMLESS)
    retyped.add(HARMLESS, anew=True)
    retyped.write(3, HARMLESS, anew=True)
    keyed.await_all_sent()
    for kind in KINDS:
        mirrors.land(kind, **told[kind])
        assert {name: mirrors.rows(kind)[3][name] for name in HARMLESS} == {
            name: keyed.rows()[3][name] for name in HARMLESS
        }
    land(extract("lake.raw"))

    retyped.drop(RETYPED)
    retyped.add(RETYPED, anew=True)
    at = keyed.sent()
    retyped.write(4, RETYPED, anew=True)
    keyed.await_all_sent()
    for kind in KINDS:
        with pytest.raises((SourceTypeChanged, MirrorStopped), match=rf"offset {at}\b.*\[type-changed\]"):
            mirrors.land(kind, **told[kind])
        assert 4 not in mirrors.rows(kind)
    with pytest.raises(SourceTypeChanged, match=rf"offset {at}\b.*new table"):
        land(extract("lake.raw"))
    land(extract("lake.new", mode="ranges", ranges=[[0, at, keyed.sent()]]))
    old, new = (extract(name).sink.load("r").ledger.types for name in ("lake.raw", "lake.new"))
    for name in RETYPED:
        assert other_meaning({name: old[name]}, new), name
    assert other_meaning({name: old[name] for name in HARMLESS}, new) is None

    # The way on, after which the new types count.
    keyed.release()
    keyed.begin()
    keyed.await_all_sent()
    for kind in KINDS:
        work = MirrorResnapshot(
            table=mirrors.place(kind), consumer_group=GROUP, kafka=lake.kafka, by_signal=False, decoding=told[kind]
        )
        work.run(mirrors.store(kind))
    retyped.write(5, RETYPED, anew=True)
    keyed.await_all_sent()
    for kind in KINDS:
        mirrors.land(kind, **told[kind])
        names = [name for name in RETYPED if name != "h"]
        for key in (4, 5):
            assert [mirrors.rows(kind)[key][name] for name in names] == [keyed.rows()[key][name] for name in names]
