"""Mirrors of a real MariaDB whose binary log begins again, and of one whose replica takes over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.run.resnapshot.run import Resnapshot
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import USERNAME, MariaDb
from dev.stack import Stack
from tests.matrix.test_mariadb_mirror import KINDS, Mirrors
from tests.support.broker import poll_until
from tests.support.lake import GROUP, Lake
from tests.support.mariadb import DATABASE, InMariaDb, made_in

pytestmark = [pytest.mark.integration, pytest.mark.own_parts]


@pytest.fixture
def server(own_stack: Stack) -> MariaDb:
    """Give a server of its own."""
    return own_stack.up_mariadb()


@pytest.fixture
def replica(own_stack: Stack, server: MariaDb) -> Iterator[MariaDb]:
    """Give a second server, which has what the first one gets from now on."""
    with Stack.owned("tests-replica") as stack, server.connect() as source:
        found = stack.up_mariadb()
        with source.cursor() as cursor:
            cursor.execute("select @@gtid_binlog_pos")
            ((at,),) = cursor.fetchall()
        with found.connect() as sql, sql.cursor() as cursor:
            cursor.execute("set global server_id = 2")
            # Its own log is of its own transactions so far: without them, it has those of the first server only.
            cursor.execute("reset master")
            cursor.execute(f"set global gtid_slave_pos = '{at}'")
            cursor.execute(
                f"change master to master_host='127.0.0.1', master_port={server.port}, master_user='{USERNAME}', "
                f"master_password='{server.password}', master_use_gtid=slave_pos, master_ssl=0"
            )
            cursor.execute("start slave")
        yield found


@pytest.fixture
def orders(server: MariaDb, connect: Connect, kafka: Kafka) -> Iterator[InMariaDb]:
    """Give a table of few columns."""
    yield from made_in(server, connect, kafka, "id int primary key, name varchar(40)")


def rows(first: int, count: int) -> str:
    return "insert into {table} values " + ", ".join(f"({at}, 'n{at}')" for at in range(first, first + count))


def test_a_log_that_begins_again_stops_the_mirror_and_a_snapshot_leads_on(lake: Lake, orders: InMariaDb) -> None:
    mirrors = Mirrors(lake, orders)
    orders.run(rows(0, 5), "flush binary logs", "flush binary logs")
    orders.begin()
    for at in range(5):
        orders.run(rows(10 * at + 10, 5), f"update {{table}} set name = 'x' where id = {at}")
    mirrors.assert_same()
    orders.release()
    orders.run("reset master", rows(100, 5), "delete from {table} where id < 3")
    # Without a snapshot: it sends what is changed once it reads the log.
    orders.begin(snapshot_mode="no_data", awaits="nothing")

    def is_read() -> bool:
        with orders.sql.cursor() as cursor:
            cursor.execute("show processlist")
            return any("Binlog Dump" in str(one) for one in cursor.fetchall())

    poll_until(is_read, "a connector at the log that began again", 120)
    orders.run("update {table} set name = concat(name, 'y') where id > 40")
    orders.await_all_sent()
    for kind in KINDS:
        with pytest.raises(MirrorStopped, match="mirror resnapshot") as stopped:
            mirrors.land(kind)
        assert stopped.value.reason is StopReason.OTHER_LOG
    orders.release()
    orders.begin()
    orders.run(rows(200, 3), "delete from {table} where id = 3")
    orders.await_all_sent()
    for kind in KINDS:
        work = Resnapshot(table=mirrors.place(kind), consumer_group=GROUP, kafka=lake.kafka, by_signal=False)
        work.run(mirrors.store(kind))
        assert mirrors.rows(kind) == orders.rows(), kind
    # What was deleted in the first log comes again, at a place before that one.
    orders.run(rows(0, 3), "update {table} set name = 'z' where id > 10")
    mirrors.assert_same()


def test_a_mirror_follows_a_replica_that_takes_over(
    lake: Lake, orders: InMariaDb, server: MariaDb, replica: MariaDb
) -> None:
    mirrors = Mirrors(lake, orders)
    orders.run(rows(0, 5))
    orders.begin()
    for at in range(8):
        orders.run(rows(10 * at + 10, 5), f"update {{table}} set name = 'x{at}' where id < {10 * at}")
    mirrors.assert_same()

    def is_same() -> bool:
        with contextlib.closing(replica.connect()) as sql, sql.cursor() as cursor:
            cursor.execute(f"select count(*), group_concat(name order by id) from {DATABASE}.{orders.name}")
            mine = cursor.fetchall()
        with orders.sql.cursor() as cursor:
            cursor.execute(f"select count(*), group_concat(name order by id) from {orders.name}")
            return mine == cursor.fetchall()

    poll_until(is_same, "the replica has it all", 60)
    with replica.connect() as sql:
        with sql.cursor() as cursor:
            cursor.execute("stop slave")
            cursor.execute(f"use {DATABASE}")
            cursor.execute("set time_zone = '+00:00'")
        orders.mariadb, orders.sql = replica, sql
        # Its log is shorter: it begins with the first server's last transactions, or in a file of a lower number.
        orders.run("update {table} set name = 'by the replica' where id < 30", "delete from {table} where id > 60")
        orders.connect.change(orders.connector, database_port=str(replica.port), database_password=replica.password)
        mirrors.assert_same()
        orders.run(rows(300, 3), "update {table} set name = 'later' where id < 20")
        orders.connect.restart(orders.connector)
        orders.run("update {table} set name = 'latest' where id < 10")
        mirrors.assert_same()
