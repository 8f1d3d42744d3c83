"""Mirrors of a real MariaDB by Debezium's connector, in Iceberg and in Delta: in the end the mirror is the table."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_lakestream.cdc.columns import VERSION
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.run.job import build_job
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import MariaDb
from tests.support.delta_lake import DeltaLake
from tests.support.lake import GROUP, TABLE, Lake
from tests.support.mariadb import InMariaDb, made_in, mariadb

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
