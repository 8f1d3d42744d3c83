"""Mirrors of a real MariaDB whose binary log begins again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.run.resnapshot.run import Resnapshot
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import MariaDb
from dev.stack import Stack
from tests.matrix.test_mariadb_mirror import KINDS, Mirrors
from tests.support.broker import poll_until
from tests.support.lake import GROUP, Lake
from tests.support.mariadb import InMariaDb, made_in

pytestmark = [pytest.mark.integration, pytest.mark.own_parts]


@pytest.fixture
def server(own_stack: Stack) -> MariaDb:
    """Give a server of its own."""
    return own_stack.up_mariadb()


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
