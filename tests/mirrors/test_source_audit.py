"""Mirrors against the table of a real PostgreSQL: wrong rows are named, rows that only changed meanwhile are not."""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from airflow.sdk import DAG

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.audit.source_database import DatabaseAddress, DatabaseKind
from airflow_lakestream.cli.app import run
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.audit import LakestreamAuditOperator
from airflow_lakestream.run.job import build_job
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from tests.mirrors.test_cdc_types import COLUMNS, LEFT_OUT, PREPARE
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing, Topics
from tests.support.cdc import Captured
from tests.support.lake import GROUP
from tests.support.mirror_lake import MirrorLake
from tests.support.source_tables import HandEvents, audit_with, faults_of, written_meanwhile

pytestmark = pytest.mark.integration

CLEAN, DAMAGE, BLIND = AuditVerdict.CLEAN, AuditVerdict.DAMAGE, AuditVerdict.COULD_NOT_LOOK
# Orders texts otherwise than bytes do.
CREATE = 'create table {} (region text collate "en-x-icu", id bigint, name text, size int, primary key (region, id))'
REGIONS = ["a", "B", "\u00e9", "E", ""]
KEY = ("region", "id")


@dataclass
class Orders:
    """A table of the database."""

    server: Postgres
    sql: psycopg.Connection[tuple[Any, ...]]
    name: str = field(default_factory=lambda: f"orders_{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        self.hand = HandEvents(f"{self.server.database}.public.{self.name}", KEY)

    @property
    def address(self) -> DatabaseAddress:
        return address_of(self.server)

    def fill(self, count: int) -> list[dict[str, Any]]:
        rows = [{"region": REGIONS[n % 5], "id": n, "name": f"v{n}", "size": n % 7} for n in range(count)]
        with self.sql.cursor() as cursor:
            values = [tuple(row.values()) for row in rows]
            cursor.executemany(f"insert into {self.name} values (%s, %s, %s, %s)", values)
        return rows


@pytest.fixture
def orders(postgres: Postgres) -> Iterator[Orders]:
    """Give a table with a key of two columns."""
    with postgres.connect() as sql:
        found = Orders(postgres, sql)
        sql.execute(CREATE.format(found.name))
        yield found


def with_value(rows: pa.Table, name: str, value: Any) -> pa.Table:
    at, kind = rows.column_names.index(name), rows.schema.field(name).type
    return rows.set_column(at, rows.schema.field(name), pa.repeat(pa.scalar(value, kind), len(rows)))


def test_each_wrong_row_is_named_and_no_other(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, orders: Orders
) -> None:
    lake, name, hand = mirror_lake, topic(2), orders.hand
    rows = orders.fill(3_000)
    for partition in (0, 1):
        values, keys = hand.events("c", [row for row in rows if row["id"] % 2 == partition])
        produce(name, partition, values, keys=keys)
    lake.land(name, key=list(KEY))
    whole = lake.scan()
    for number in (7, 1_000, 2_999):
        lake.table().delete(f"id = {number}")
    for number, column, value in ((8, "name", "stale"), (9, "size", None), (1_500, "region", "A")):
        lake.table().delete(f"id = {number}")
        lake.append(with_value(whole.filter(pc.equal(whole["id"], number)), column, value))
    lake.append(whole.filter(pc.equal(whole["id"], 20)))
    # These changed after the mirror's ledger: events of the first two are in the topic.
    orders.sql.execute(f"update {orders.name} set name = 'new' where id in (30, 31)")
    orders.sql.execute(f"delete from {orders.name} where id = 32")
    for op, number in (("u", 30), ("u", 31), ("d", 32)):
        value, key = hand.event(op, {**rows[number], "name": "new"})
        more = [None] if op == "d" else []
        produce(name, number % 2, [value, *more], keys=[key] * (1 + len(more)))
    produce(name, 0, [b'{"ts_ms": 5}'], keys=["{}"])
    expected = [
        ("different", {"region": "E", "id": "8"}, ("name",)),
        ("different", {"region": "", "id": "9"}, ("size",)),
        ("doubled", {"region": "a", "id": "20"}, ()),
        ("extra", {"region": "A", "id": "1500"}, ()),
        *(("missing", {"region": REGIONS[n % 5], "id": str(n)}, ()) for n in (7, 1_000, 1_500, 2_999)),
    ]

    unproven = audit_with(lake, orders.address, patience=0)
    assert unproven.verdict is DAMAGE
    assert [fault for fault, *_ in faults_of(unproven)] == ["doubled"]
    assert "7 rows differ, and no event of a later change" in unproven.blind[0]

    for partition in (0, 1):
        value, key = hand.event("c", {"region": "z", "id": 9_000 + partition}, after_s=3600)
        produce(name, partition, [value], keys=[key])
    result = audit_with(lake, orders.address)
    assert (result.verdict, result.blind) == (DAMAGE, [])
    assert sorted(map(str, faults_of(result))) == sorted(map(str, expected)), result.render()
    assert "3 rows changed meanwhile" in result.made[0]

    # The mirror has landed the changes, and the repaired rows.
    lake.table().delete("id < 9000")
    lake.append(whole)
    orders.sql.execute(f"insert into {orders.name} values ('z', 9000), ('z', 9001)")
    lake.land(name, key=list(KEY))
    clean = audit_with(lake, orders.address)
    assert (clean.verdict, clean.made, clean.wrong) == (CLEAN, [], []), clean.render()
    assert "3001 rows were compared with 3001 of" in clean.notes[0]


def test_deleted_rows_that_stay_and_earlier_versions_are_left_out(
    mirror_lake: MirrorLake, topic: Topics, produce: Producing, orders: Orders
) -> None:
    lake, name, hand = mirror_lake, topic(1), orders.hand
    rows = orders.fill(3)
    values, keys = hand.events("c", [*rows, {"region": "gone", "id": 5, "name": "x", "size": 1}])
    produce(name, 0, values, keys=keys)
    value, key = hand.event("d", {"region": "gone", "id": 5})
    produce(name, 0, [value], keys=[key])
    lake.land(name, soft_delete=True, key=list(KEY))
    assert len(lake.scan()) == 4
    assert audit_with(lake, orders.address).verdict is CLEAN


def test_a_connection_is_named_on_the_command_line_and_its_password_is_never_shown(
    topic: Topics,
    produce: Producing,
    orders: Orders,
    kafka: Kafka,
    airflow: AirflowHome,
    connections: Connections,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, server = topic(1), orders.server
    rows = orders.fill(3)
    values, keys = orders.hand.events("c", rows[:2])
    late, late_key = orders.hand.event("u", rows[0], after_s=3600)
    produce(name, 0, values, keys=keys)
    fields = {"conn_type": "postgres", "host": server.host, "port": server.port, "login": server.username}
    fields |= {"password": server.password, "schema": server.database}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(fields))
    monkeypatch.setenv("AIRFLOW_CONN_CLOSED", json.dumps(fields | {"password": "wrong"}))
    table = "lake.orders"
    config = MirrorConfig(topic=name, table=table, consumer_group=GROUP, key=list(KEY))
    land(build_job(config, kafka.client_config(), connections.catalog, run_id="r"))
    produce(name, 0, [late], keys=[late_key])
    command = ["audit", "--table", table, "--group", GROUP]

    assert run([*command, "--against-database", "shop", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["mode"], found["verdict"]) == ("database", "damage")
    assert [one["key"] for one in found["wrong_rows"]] == [{"region": "\u00e9", "id": "2"}]
    with DAG("audit_source", schedule=None, params={"conn": ""}) as dag:
        given = {"table": table, "consumer_group": GROUP, "against_database": "{{ params.conn }}"}
        LakestreamAuditOperator(task_id="audit", **given)
    done = airflow.run(dag, {"conn": "shop"})
    assert (done.state, done.task("audit").xcom["mode"]) == ("failed", "database")
    assert "missing row: region=\u00e9, id=2" in str(done.errors)
    assert run([*command, "--against-database", "closed"]) == 2
    error = capsys.readouterr().err
    assert "connection 'closed'" in error
    assert "authentication failed" in error
    for text in (error, str(found), repr(orders.address)):
        assert server.password not in text
    assert run([*command, "--against-database", "shop", "--full"]) == 2
    assert "--against-database goes without --full" in capsys.readouterr().err
    assert run([*command, "--against-database", "kafka_default"]) == 2
    assert "is of type 'kafka'" in capsys.readouterr().err


# Values that Debezium rounds, rewrites or leaves out; see docs/cdc-types.md.
NOT_COMPARED = {
    *("c_numeric", "c_numeric_50", "c_numeric_below", "k_numeric", "c_money", "c_bits", "c_timetz", "c_interval"),
    *("c_hstore", "a_double", "a_numeric", "a_numeric_12", "a_bytea", "a_date", "a_timestamp", "a_timestamptz"),
    *("a_inet", *LEFT_OUT),
}


def address_of(server: Postgres) -> DatabaseAddress:
    login = {"user": server.username, "password": server.password, "database": server.database}
    return DatabaseAddress(kind=DatabaseKind.POSTGRES, host=server.host, port=server.port, **login)


@contextmanager
def without_events(captured: Captured) -> Iterator[None]:
    """Let changes in the block have no events, as if they were lost."""
    captured.sql.execute(f"alter publication {captured.name} drop table {captured.name}")
    yield
    captured.sql.execute(f"alter publication {captured.name} add table {captured.name}")


def test_each_type_is_compared_as_the_mirror_has_it_or_named(
    mirror_lake: MirrorLake, postgres: Postgres, connect: Connect, kafka: Kafka
) -> None:
    lake = mirror_lake
    with postgres.connect() as sql:
        captured = Captured(sql, connect, kafka, postgres)
        sql.execute(PREPARE)
        columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in [*COLUMNS.items(), *LEFT_OUT.items()])
        sql.execute(f"create table {captured.name} (id bigint primary key, {columns})")
        insert_each(captured, 0)
        captured.begin()
        insert_each(captured, 100)
        captured.await_all_sent()
        as_text = "c_time string, c_time3 string, c_uuid string, k_uuid string"
        more = {"schema": as_text} if lake.name.startswith("/") else {}
        lake.land(captured.topic, key=["id"], **more)
        clean = audit_with(lake, address_of(postgres))
        assert clean.verdict is CLEAN, clean.render()
        times = {"c_time", "c_time3"} if more else set()
        named = clean.made[0].partition(": ")[2]
        assert {one.split(" (")[0] for one in re.split(r"\), ", named)} == NOT_COMPARED | times

        others = [name for name in COLUMNS if not name.startswith("k_") and name not in NOT_COMPARED | times]
        with without_events(captured):
            sql.execute(f"update {captured.name} set {', '.join(f'{name} = null' for name in others)} where id = 100")
        mark = f"insert into {captured.name} (id) values (-5) on conflict (id) do update set id = -5"
        with postgres.connect() as other, written_meanwhile(lambda: other.execute(mark)):
            result = audit_with(lake, address_of(postgres))
        [(fault, key, found)] = faults_of(result)
        assert (fault, key, sorted(found)) == ("different", {"id": "100"}, sorted(others)), result.render()
        captured.release()


def insert_each(captured: Captured, first: int) -> None:
    for number in range(max(len(values) for *_, values in COLUMNS.values())):
        given = {name: values[number % len(values)] for name, (_, _, values) in COLUMNS.items() if values}
        given |= {name: value for name, (_, value) in LEFT_OUT.items()}
        kinds = [(COLUMNS.get(name) or LEFT_OUT[name])[0].partition(" not null")[0] for name in given]
        casts = ", ".join(f"%s::{kind}" for kind in kinds)
        names = ", ".join(["id", *given])
        values = list(given.values())
        captured.sql.execute(f"insert into {captured.name} ({names}) values ({first + number}, {casts})", values)


def test_under_a_load_of_writes_the_lost_events_are_found_and_nothing_else(
    mirror_lake: MirrorLake, captured: Captured
) -> None:
    lake, name, server = mirror_lake, captured.name, captured.postgres
    captured.sql.execute(f"insert into {name} (id, name) select n, 'v' || n from generate_series(1, 2000) n")
    captured.begin()
    captured.await_all_sent()
    lake.land(captured.topic, key=["id"])
    with without_events(captured):
        captured.sql.execute(f"delete from {name} where id = 5")
        captured.sql.execute(f"update {name} set name = 'lost' where id = 6")
        captured.sql.execute(f"insert into {name} (id, name) values (5000, 'lost')")
    stop = threading.Event()

    def write() -> None:
        with server.connect() as sql:
            for number in itertools.count():
                if stop.is_set():
                    return
                at = 10 + number * 7 % 1900
                sql.execute(f"update {name} set name = 'w{number}' where id = {at}")
                if number % 5 == 0:
                    sql.execute(f"delete from {name} where id = {at + 1}")
                    sql.execute(f"insert into {name} (id, name) values ({at + 1}, 'back')")

    def land() -> None:
        while not stop.is_set():
            lake.land(captured.topic, key=["id"])

    with ThreadPoolExecutor(2) as pool:
        works = [pool.submit(write), pool.submit(land)]
        try:
            for _ in range(3):
                result = audit_with(lake, address_of(server))
                found = sorted((fault, key["id"]) for fault, key, _ in faults_of(result))
                assert found == [("different", "6"), ("extra", "5"), ("missing", "5000")], result.render()
        finally:
            stop.set()
        for work in works:
            work.result()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("alter table {} drop constraint {}_pkey", "no primary key or unique index on region, id"),
        ("alter table {} rename column id to number", "has no column id of the key"),
        ("drop table {}", "has no table"),
    ],
)
def test_a_table_that_can_not_be_compared_is_refused_by_name(
    statement: str, message: str, mirror_lake: MirrorLake, topic: Topics, produce: Producing, orders: Orders
) -> None:
    lake, name = mirror_lake, topic(1)
    values, keys = orders.hand.events("c", orders.fill(2))
    produce(name, 0, values, keys=keys)
    lake.land(name, key=list(KEY))
    orders.sql.execute(statement.format(orders.name, orders.name))
    with pytest.raises(InvalidArgument, match=message):
        audit_with(lake, orders.address)


@pytest.mark.parametrize("seed", range(4))
def test_random_changes_are_wrong_exactly_if_their_events_are_lost(
    seed: int, mirror_lake: MirrorLake, topic: Topics, produce: Producing, orders: Orders
) -> None:
    lake, name, hand, chance = mirror_lake, topic(1), orders.hand, random.Random(seed)
    rows = {(row["region"], row["id"]): row for row in orders.fill(700)}
    values, keys = hand.events("c", rows.values())
    produce(name, 0, values, keys=keys)
    held, later = dict(rows), set[tuple[str, int]]()

    def change(fate: str) -> None:
        region, number = key = chance.choice([*rows]) if chance.random() < 0.8 else (chance.choice(REGIONS), 10**6)
        place = f"where region = '{region}' and id = {number}"
        if chance.random() < 0.3:
            orders.sql.execute(f"delete from {orders.name} {place}")
            rows.pop(key, None)
        else:
            row = {"region": region, "id": number, "name": chance.choice(["x", "y"]), "size": chance.choice([1, None])}
            conflict = "on conflict (region, id) do update set name = excluded.name, size = excluded.size"
            statement = f"insert into {orders.name} values (%s, %s, %s, %s) {conflict}"
            orders.sql.execute(statement, list(row.values()))
            rows[key] = row
        if fate != "lost":
            op = "u" if key in rows else "d"
            value, own_key = hand.event(op, rows.get(key, {"region": region, "id": number}))
            produce(name, 0, [value], keys=[own_key])
            if fate == "landed":
                held.pop(key, None)
                held.update({key: rows[key]} if key in rows else {})
            else:
                later.add(key)

    for fate in chance.choices(["landed", "lost"], k=40):
        change(fate)
    lake.land(name, key=list(KEY))
    for fate in chance.choices(["later", "lost"], k=40):
        change(fate)
    # An event after the comparison proves that none is on the way.
    value, key = hand.event("u", {"region": "z", "id": 1}, after_s=3600)
    produce(name, 0, [value], keys=[key])

    differing = {key for key in {*rows, *held} if rows.get(key) != held.get(key)}
    result = audit_with(lake, orders.address)
    expected = {
        ("extra" if key not in rows else "missing" if key not in held else "different", key)
        for key in differing - later
    }
    found = {(fault, (key["region"], int(key["id"]))) for fault, key, _ in faults_of(result)}
    assert found == expected, result.render()
    changed = len(differing & later)
    assert [one.split()[0] for one in result.made] == ([str(changed)] if changed else [])
