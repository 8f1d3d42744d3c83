"""A real PostgreSQL with a real Debezium behind it, and a mirror of one of its tables."""

from __future__ import annotations

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.apps import CDC_TO_ICEBERG
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from dev.stack import Stack
from tests.support.broker import poll_until
from tests.support.lake import GROUP, QUICK_RETRIES, Lake

CREATE = """
create table {table} (
  id bigint primary key, name text, amount numeric(12, 2), at timestamptz, day date, flag boolean,
  price double precision, data bytea, big text
);
alter table {table} alter column big set storage external;
"""


@pytest.fixture(scope="session")
def postgres(stack: Stack) -> Postgres:
    """Give the PostgreSQL of this test session."""
    return stack.up_postgres()


@pytest.fixture(scope="session")
def connect(stack: Stack, kafka: Kafka) -> Connect:
    """Give the worker of Kafka Connect of this test session."""
    return stack.up_connect()


class Sent(ABC):
    """What a connector has sent to the topic of one table."""

    kafka: Kafka

    @property
    @abstractmethod
    def topic(self) -> str:
        """The topic's name."""

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        consumer = Consumer({**self.kafka.client_config(), "group.id": "look", "log_level": 0})
        try:
            return sorted(consumer.list_topics(timeout=15).topics)
        finally:
            consumer.close()

    def sent(self) -> int:
        """Return how many records the topic has."""
        consumer = Consumer({**self.kafka.client_config(), "group.id": "look", "log_level": 0})
        try:
            if self.topic not in consumer.list_topics(timeout=15).topics:
                return 0
            return int(consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=15)[1])
        except KafkaException as e:
            if e.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                raise
            # It is just being made.
            return 0
        finally:
            consumer.close()

    def ends_with(self, mark: int) -> bool:
        """Tell whether the topic's last record is the tombstone of this key."""
        if not (end := self.sent()):
            return False
        consumer = Consumer({**self.kafka.client_config(), "group.id": "look", "log_level": 0})
        consumer.assign([TopicPartition(self.topic, 0, max(0, end - 1))])
        last = consumer.poll(15)
        consumer.close()
        # The deletion's tombstone.
        return last is not None and last.value() is None and str(mark) in (last.key() or b"").decode()


@dataclass
class Captured(Sent):
    """One database table whose changes go to a topic; `sql` is a connection, and `name` the table's."""

    sql: psycopg.Connection[tuple[Any, ...]]
    connect: Connect
    kafka: Kafka
    postgres: Postgres
    name: str = field(default_factory=lambda: f"orders_{uuid.uuid4().hex[:8]}")
    # The connector's name in Connect; one that is made anew has another, and the same topic.
    connector: str = ""

    @property
    def topic(self) -> str:
        return f"{self.name}.public.{self.name}"

    def begin(self, **settings: str) -> None:
        """Send what the table holds, and what becomes of it from now on."""
        self.connector = self.connector or self.name
        self._capture(**settings)

    def anew(self, **settings: str) -> None:
        """Make the connector anew, so that it reads the table again."""
        gone = f"select pg_drop_replication_slot('{self.name}')"
        poll_until(lambda: _succeeds(self.sql, gone), f"the end of the slot {self.name}", 180)
        self.connector += "_anew"
        self._capture(**settings)

    def release(self) -> None:
        """Take the connector away, and wait until it reads no more: Connect answers before."""
        self.connect.release(self.connector)
        reading = f"select 1 from pg_replication_slots where slot_name = '{self.name}' and active"
        poll_until(lambda: self.sql.execute(reading).fetchone() is None, f"the end of {self.connector}", 180)

    def _capture(self, **settings: str) -> None:
        before = self.sent()
        same = {"topic_prefix": self.name, "slot_name": self.name, "publication_name": self.name}
        self.connect.capture(self.postgres, self.connector, f"public.{self.name}", **same | settings)
        slot = f"select 1 from pg_replication_slots where slot_name = '{self.name}' and confirmed_flush_lsn is not null"
        # What is committed from there on is sent; what was before, is read.
        try:
            poll_until(lambda: self.sql.execute(slot).fetchone() is not None, f"the slot {self.name}", 240)
        except TimeoutError as e:
            open_ = "select pid, state, xact_start, query from pg_stat_activity where xact_start is not null"
            said = self.connect.state(self.connector), self.sql.execute(open_).fetchall()
            raise AssertionError(f"{e}; the connector and what is open: {said}") from None
        # A truncation shows at once, also to a snapshot that was taken before: it has to be read by then.
        count = self.sql.execute(f"select count(*) from {self.name}").fetchone()
        poll_until(lambda: self.sent() >= before + (count or (0,))[0], f"the rows of {self.name} in the topic", 120)

    def await_all_sent(self) -> None:
        """Wait until everything that was committed so far is in the topic: until a last change is."""
        mark = -int(uuid.uuid4().int % 10**15) - 1
        self.sql.execute(f"insert into {self.name} (id) values (%s)", (mark,))
        self.sql.execute(f"delete from {self.name} where id = %s", (mark,))
        poll_until(
            lambda: self.ends_with(mark), f"the last change of {self.topic}; {self.connect.state(self.connector)}", 120
        )

    def rows(self, columns: str) -> dict[int, tuple[Any, ...]]:
        """Return the table's rows by their id, as text of PostgreSQL's own where types differ in Python."""
        found = self.sql.execute(f"select {columns} from {self.name}").fetchall()
        return {row[0]: row for row in found}


@pytest.fixture
def captured(postgres: Postgres, connect: Connect, kafka: Kafka) -> Iterator[Captured]:
    """Give a table with a few columns of each kind."""
    with postgres.connect() as sql:
        found = Captured(sql, connect, kafka, postgres)
        sql.execute(CREATE.format(table=found.name))
        yield found
        found.release()
        # PostgreSQL has ten for all tests of a session.
        slot = f"from pg_replication_slots where slot_name = '{found.name}'"
        sql.execute(f"select pg_drop_replication_slot(slot_name) {slot}")


def _succeeds(sql: psycopg.Connection[tuple[Any, ...]], statement: str) -> bool:
    try:
        sql.execute(statement)
    except psycopg.Error:
        return False
    return True


def change(op: str, row: dict[str, Any], place: int) -> bytes:
    """Return a change event as Debezium writes it, in JSON without schemas; of a deletion `row` is the key."""
    before, after = (row, None) if op == "d" else (None, row)
    source = {"sequence": f'["{place}","{place}"]', "lsn": place, "ts_ms": 1}
    return json.dumps({"before": before, "after": after, "source": source, "op": op}, separators=(",", ":")).encode()


class Source:
    """A database's table of some keys: rows come, change and go."""

    def __init__(self, keys: int = 20) -> None:
        self.rows: dict[int, int] = {}
        self._keys, self._place = keys, 0

    def changes(self, count: int) -> list[bytes | None]:
        """Make so many changes, and return their events."""
        found: list[bytes | None] = []
        for _ in range(count):
            self._place += 1
            key, place = self._place * 7 % self._keys, self._place
            if key in self.rows and place % 5 == 0:
                del self.rows[key]
                found += [change("d", {"id": key}, place), None]
                continue
            found.append(change("u" if key in self.rows else "c", {"id": key, "total": place}, place))
            self.rows[key] = place
        return found


def mirror_config(lake: Lake, topic: str, folder: Path, **settings: Any) -> AppConfig:
    """Return the configuration of a mirror; keys of `AppConfig`, or arguments of the landing."""
    known = AppConfig.__dataclass_fields__
    landing = {"topic": topic, "table": "lake.orders", "consumer_group": GROUP, "table_properties": QUICK_RETRIES}
    landing |= {name: value for name, value in settings.items() if name not in known}
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{lake.folder}/catalog.db",
        "warehouse": f"file://{lake.folder}/warehouse",
    }
    return AppConfig(
        app=CDC_TO_ICEBERG,
        kafka=lake.kafka,
        catalog={"name": "iceberg_default", "properties": catalog},
        landing=landing,
        checkpoint_location=str(folder / "checkpoint"),
        **{name: value for name, value in settings.items() if name in known},
    )


def mirrored(lake: Lake, columns: str, table: str = "lake.orders") -> dict[int, tuple[Any, ...]]:
    """Return the mirror's rows by their id; each id once, or it is an error."""
    names = [name.strip() for name in columns.split(",")]
    found = [tuple(row[name] for name in names) for row in lake.table(table).scan().to_arrow().to_pylist()]
    rows = {row[0]: row for row in found}
    assert len(rows) == len(found), "a key is there twice"
    return rows


def as_json(rows: dict[int, tuple[Any, ...]]) -> str:
    """Return rows as text that can be compared by eye."""
    return json.dumps({str(key): [str(value) for value in row] for key, row in sorted(rows.items())}, indent=1)
