"""A real MariaDB with a real Debezium behind it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pymysql
import pytest

from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import MariaDb
from dev.stack import Stack
from tests.support.broker import poll_until
from tests.support.cdc import Sent

DATABASE = "shop"


@pytest.fixture(scope="session")
def mariadb(stack: Stack) -> MariaDb:
    """Give the MariaDB of this test session."""
    return stack.up_mariadb()


@dataclass
class InMariaDb(Sent):
    """One table of a MariaDB whose changes go to a topic; its key is `id`."""

    mariadb: MariaDb
    connect: Connect
    kafka: Kafka
    sql: pymysql.Connection
    name: str = field(default_factory=lambda: f"orders_{uuid.uuid4().hex[:8]}")
    # The connector's name in Connect; one that is made anew has another, and the same topic.
    connector: str = ""

    @property
    def topic(self) -> str:
        return f"{self.name}.{DATABASE}.{self.name}"

    def run(self, *statements: str) -> None:
        """Run statements; each is a transaction of its own, unless it begins one."""
        with self.sql.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.format(table=self.name))

    def rows(self, columns: str = "*") -> dict[Any, dict[str, Any]]:
        """Return the table's rows by their key."""
        with self.sql.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(f"select {columns} from {self.name}")
            return {row["id"]: row for row in cursor.fetchall()}

    def begin(self, *, awaits: str = "rows", **settings: str) -> None:
        """Send what the table holds, and what becomes of it from now on; waits for the rows, or for nothing."""
        before, rows = self.sent(), len(self.rows()) if awaits == "rows" else 0
        self.connector = f"{self.connector or self.name}_"
        told = {"topic_prefix": self.name, "schema_history_internal_kafka_topic": f"{self.connector}history"}
        tables = f"{DATABASE}.{self.name}"
        self.connect.capture_mariadb(self.mariadb, self.connector, tables, self.kafka.bootstrap, **told | settings)
        try:
            # What is done after that may be streamed, or read.
            poll_until(lambda: self.sent() >= before + rows, f"the rows of {self.name} in the topic", 120)
        except TimeoutError as e:
            raise AssertionError(f"{e}: {self.connect.state(self.connector)}") from None

    def release(self) -> None:
        """Take the connector away."""
        if self.connector:
            self.connect.release(self.connector)

    def await_read(self) -> None:
        """Wait until a connector reads the log: of one without a snapshot nothing else tells."""

        def is_read() -> bool:
            with self.sql.cursor() as cursor:
                cursor.execute("show processlist")
                return any("Binlog Dump" in str(one) for one in cursor.fetchall())

        try:
            poll_until(is_read, f"a connector at the log of {self.name}", 120)
        except TimeoutError as e:
            raise AssertionError(f"{e}: {self.connect.state(self.connector)}") from None

    def fail_over(self, replica: MariaDb, sql: pymysql.Connection) -> None:
        """Take the connector away, and let a replica take over once it has all that this server has.

        :param sql: a `session` of the replica.
        """
        self.release()
        with self.sql.cursor() as cursor:
            cursor.execute("select @@gtid_binlog_pos")
            (gtids,) = cursor.fetchone() or ()
        with sql.cursor() as cursor:
            cursor.execute(f"select master_gtid_wait('{gtids}', 60)")
            assert cursor.fetchone() == (0,), "the replica does not come up to its server"
        self.mariadb, self.sql = replica, sql
        self.run("stop slave", "reset slave all")

    def await_all_sent(self) -> None:
        """Wait until everything that was committed so far is in the topic: until a last change is."""
        mark = -int(uuid.uuid4().int % 10**9) - 1
        self.run(f"insert into {{table}} (id) values ({mark})", f"delete from {{table}} where id = {mark}")
        try:
            poll_until(lambda: self.ends_with(mark), f"the last change of {self.topic}", 120)
        except TimeoutError as e:
            raise AssertionError(f"{e}: {self.connect.state(self.connector)}") from None


@contextmanager
def session(mariadb: MariaDb) -> Iterator[pymysql.Connection]:
    """Yield a connection to the database of the tests."""
    with mariadb.connect() as sql:
        with sql.cursor() as cursor:
            cursor.execute(f"create database if not exists {DATABASE}")
            cursor.execute(f"use {DATABASE}")
            cursor.execute("set time_zone = '+00:00'")
        yield sql


def made_in(mariadb: MariaDb, connect: Connect, kafka: Kafka, columns: str) -> Iterator[InMariaDb]:
    """Yield a new table with these columns, without a connector."""
    with session(mariadb) as sql:
        found = InMariaDb(mariadb, connect, kafka, sql)
        found.run(f"create table {{table}} ({columns})")
        yield found
        found.release()
