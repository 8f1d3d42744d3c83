"""Keys that change, move, are there twice or are not sent: a real PostgreSQL and Debezium, mirrors of both formats."""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_lakestream.cdc.events.record_keys import names_in
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.registry.client import RegistryClient
from airflow_lakestream.registry.config import RegistryConfig
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from dev.services.registry import Registry
from tests.support.broker import poll_until
from tests.support.keyed import Follower, Record
from tests.support.mirroring import HandDeltaMirror, HandMirror

pytestmark = pytest.mark.integration

PLAIN = {
    "key_converter": "org.apache.kafka.connect.json.JsonConverter",
    "value_converter": "org.apache.kafka.connect.json.JsonConverter",
}
BARE = {**PLAIN, "key_converter_schemas_enable": "false", "value_converter_schemas_enable": "false"}


class Tables:
    """Tables of one connector; `events` has the records of one of them."""

    def __init__(self, sql: psycopg.Connection[Any], connect: Connect, kafka: Kafka, postgres: Postgres) -> None:
        self.sql, self.connect, self.kafka, self.postgres = sql, connect, kafka, postgres
        self.name = f"keys_{uuid.uuid4().hex[:8]}"

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.sql.execute(statement.replace("$", self.name))

    def begin(self, **settings: str) -> None:
        self.run("create table $_end (id int primary key)")
        self.connect.capture(self.postgres, self.name, rf"public\.{self.name}.*", **{**BARE, **settings})
        slot = f"select 1 from pg_replication_slots where slot_name = '{self.name}' and confirmed_flush_lsn is not null"
        poll_until(lambda: self.sql.execute(slot).fetchone() is not None, f"the slot {self.name}", 120)

    def events(self, *tables: str) -> list[Record]:
        """Return what was sent of these tables so far, in order, without tombstones."""
        self.run("insert into $_end select count(*) from $_end")
        end = self.sql.execute(f"select count(*) from {self.name}_end").fetchone()
        assert end is not None
        poll_until(lambda: len(self._all("_end")) == end[0], self.connect.state(self.name), 120)
        return [one for table in tables for one in self._all(table)]

    def rows(self, table: str) -> list[dict[str, Any]]:
        cursor = self.sql.execute(f"select * from {self.name}{table}")
        names = [column.name for column in cursor.description or ()]
        return sorted((dict(zip(names, row, strict=True)) for row in cursor.fetchall()), key=str)

    def _all(self, table: str) -> list[Record]:
        topic = f"{self.name}.public.{self.name}{table}"
        consumer = Consumer({**self.kafka.client_config(), "group.id": topic, "enable.partition.eof": True})
        try:
            if topic not in consumer.list_topics(timeout=15).topics:
                return []
            consumer.assign([TopicPartition(topic, 0, 0)])
            found = []
            while (message := consumer.poll(15)) is not None and message.error() is None:
                if message.value() is not None:
                    found.append(Record(message.key(), message.value()))
            return found
        finally:
            consumer.close()


@pytest.fixture
def tables(postgres: Postgres, connect: Connect, kafka: Kafka) -> Iterator[Tables]:
    with postgres.connect() as sql:
        found = Tables(sql, connect, kafka, postgres)
        yield found
        connect.release(found.name)


@pytest.fixture
def followers(tmp_path: Path) -> Callable[..., list[Follower]]:
    def make(name: str, **settings: Any) -> list[Follower]:
        found = []
        for kind in (HandMirror, HandDeltaMirror):
            folder = tmp_path / f"{name}{kind.__name__}"
            folder.mkdir()
            found.append(Follower(kind(folder), settings))
        return found

    return make


Followers = Callable[..., list[Follower]]


def found(follower: Follower) -> list[dict[str, Any]]:
    return sorted(follower.rows(), key=str)


def test_keys_that_change_or_are_there_twice(tables: Tables, followers: Followers) -> None:
    tables.run(
        "create table $_a (a int, v text, big text)",
        "alter table $_a alter big set storage external",
        "create table $_d (id int primary key deferrable initially deferred, v text)",
        *(f"alter table ${name} replica identity full" for name in ("_a", "_d")),
    )
    tables.begin(snapshot_mode="no_data")
    tables.run(
        "insert into $_a values (1, 'x', repeat('y', 5000)), (2, 'z', 's')",
        "update $_a set a = 3 where a = 1",
        "update $_a set a = a + 1, v = 'q' where a = 3",
        "insert into $_d select i, 'v' from generate_series(1, 4) i",
        "insert into $_d values (9, 'nine')",
        "update $_d set id = id + 1",
        "update $_d set v = 'w' where id = 3",
        "update $_d set id = 13 - id",
        "begin; delete from $_d where id = 3; insert into $_d values (3, 'new'); commit",
        "begin; insert into $_d values (77, 'gone'); delete from $_d where id = 77; commit",
    )
    for table, key in (("_a", ["a"]), ("_d", None)):
        events = tables.events(table)
        for follower in followers(table, key=key):
            follower.land(events)
            assert found(follower) == tables.rows(table)


def test_a_key_that_moves_or_is_not_sent_stops_the_mirror(tables: Tables, followers: Followers) -> None:
    create = "(id int primary key, u int not null unique, v text)"
    tables.run(*(f"create table $_{name} {create}" for name in ("moves", "index")))
    tables.run("alter table $_index replica identity using index $_index_u_key")
    tables.begin(snapshot_mode="no_data")
    for name in ("moves", "index"):
        tables.run(f"insert into $_{name} values (0, 10, 'a'), (1, 11, 'b'), (2, 12, 'c')")
    first = {name: tables.events(name) for name in ("_moves", "_index")}
    tables.run(
        "alter table $_moves drop constraint $_moves_pkey",
        "alter table $_moves add primary key (u)",
        "update $_moves set v = 'new' where u = 11",
        "delete from $_index where id = 2",
    )
    for name, reason in (("_moves", StopReason.KEY_CHANGED), ("_index", StopReason.KEY_NOT_SENT)):
        events = tables.events(name)
        for follower in followers(name):
            follower.land(first[name])
            before = found(follower)
            with pytest.raises(MirrorStopped) as stopped:
                follower.land(events[len(first[name]) :])
            assert stopped.value.reason is reason
            assert found(follower) == before


def test_rows_of_another_table_stop_the_mirror_unless_they_are_its_partitions(
    tables: Tables, followers: Followers
) -> None:
    tables.run(
        "create table $ (id int, p int, v text, primary key (id, p)) partition by list (p)",
        *(f"create table $_{n} partition of $ for values in ({n})" for n in (1, 2)),
    )
    tables.begin(snapshot_mode="no_data")
    tables.run("insert into $ values (1, 1, 'a'), (2, 2, 'b'), (3, 1, 'c')", "update $ set p = 2 where id = 1")
    first, second = tables.events("_1"), tables.events("_2")
    for follower in followers("one"):
        follower.land(first)
        with pytest.raises(MirrorStopped) as stopped:
            follower.land(second)
        assert stopped.value.reason is StopReason.OTHER_TABLE
    some = followers("both", source_tables=rf"shop\.public\.{tables.name}_\d")
    for follower in some:
        follower.land([*first, *second])
        assert found(follower) == tables.rows("")
    tables.run("truncate $_1")
    for follower in some:
        with pytest.raises(MirrorStopped, match="truncated"):
            follower.land(tables.events("_1")[len(first) :])


def test_names_in_keys_whose_schemas_are_registered(registry: Registry) -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "part", "type": "string"}]
    avro = registry.register("keys-avro", json.dumps({"type": "record", "name": "Key", "fields": fields}))
    document = {"type": "object", "properties": {"code": {"type": "string"}}}
    by_json = registry.register("keys-json", json.dumps(document), "JSON")
    keys = [struct.pack(">bI", 0, number) + b"\x02\x02a" for number in (avro, by_json, avro, 999_999)]
    found = names_in(pa.array([*keys, b'{"id":1}'], pa.binary()), RegistryClient(RegistryConfig(registry.url)), {})
    assert found.to_pylist() == ['["id", "part"]', '["code"]', '["id", "part"]', None, '["id"]']
