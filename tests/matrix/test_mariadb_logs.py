"""Mirrors of a real MariaDB whose binary log begins again, and of one whose replica takes over."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.run.resnapshot import MirrorResnapshot
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import MariaDb
from dev.stack import Stack
from tests.matrix.test_mariadb_mirror import KINDS, Mirrors
from tests.support.lake import GROUP, Lake
from tests.support.mariadb import InMariaDb, made_in, session

pytestmark = [pytest.mark.integration, pytest.mark.own_parts]

COLUMNS = "id int primary key, name varchar(40)"


@pytest.fixture
def server(own_stack: Stack) -> MariaDb:
    """Give a server of its own."""
    return own_stack.up_mariadb()


@pytest.fixture
def orders(server: MariaDb, connect: Connect, kafka: Kafka) -> Iterator[InMariaDb]:
    """Give a table of few columns."""
    yield from made_in(server, connect, kafka, COLUMNS)


def rows(first: int, count: int) -> str:
    return "insert into {table} values " + ", ".join(f"({at}, 'n{at}')" for at in range(first, first + count))


def stop_at_another_log(mirrors: Mirrors) -> None:
    for kind in KINDS:
        with pytest.raises(MirrorStopped, match="mirror resnapshot") as stopped:
            mirrors.land(kind)
        assert stopped.value.reason is StopReason.OTHER_LOG


def read_again(mirrors: Mirrors) -> None:
    mirrors.table.await_all_sent()
    for kind in KINDS:
        work = MirrorResnapshot(
            table=mirrors.place(kind), consumer_group=GROUP, kafka=mirrors.lake.kafka, by_signal=False
        )
        work.run(mirrors.store(kind))
        assert mirrors.rows(kind) == mirrors.table.rows(), kind


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
    orders.await_read()
    orders.run("update {table} set name = concat(name, 'y') where id > 40")
    orders.await_all_sent()
    stop_at_another_log(mirrors)
    orders.release()
    orders.begin()
    orders.run(rows(200, 3), "delete from {table} where id = 3")
    read_again(mirrors)
    # What was deleted in the first log comes again, at a place before that one.
    orders.run(rows(0, 3), "update {table} set name = 'z' where id > 10")
    mirrors.assert_same()


@pytest.fixture(params=["slave_pos", "no"])
def replica(own_stack: Stack, server: MariaDb, request: pytest.FixtureRequest) -> MariaDb:
    """Give a second server that has what becomes of the first one from now on, by GTIDs or by files and positions."""
    second = own_stack.up_mariadb(2)
    second.follow(server, by=request.param)
    return second


@pytest.fixture
def replicated(replica: MariaDb, server: MariaDb, connect: Connect, kafka: Kafka) -> Iterator[InMariaDb]:
    """Give such a table that the replica has, too."""
    yield from made_in(server, connect, kafka, COLUMNS)


def changed(table: InMariaDb, first: int) -> None:
    """Insert, change and delete rows, in several files of the log."""
    table.run(rows(first, 5), "flush binary logs")
    table.run(f"update {{table}} set name = concat(name, 'x') where id >= {first - 8}")
    table.run(f"delete from {{table}} where id = {first + 2}", f"update {{table}} set name = 'y' where id = {first}")


def test_a_replica_that_takes_over_is_followed(lake: Lake, replicated: InMariaDb, replica: MariaDb) -> None:
    mirrors = Mirrors(lake, replicated)
    changed(replicated, 10)
    replicated.begin()
    changed(replicated, 20)
    mirrors.assert_same()
    # Sent by the first server's connector, and landed when the second one's events are there.
    changed(replicated, 30)
    replicated.await_all_sent()
    with session(replica) as sql:
        replicated.fail_over(replica, sql)
        # Debezium does not go on at another server: a new connector reads the log from where it ends.
        replicated.begin(snapshot_mode="no_data", awaits="nothing")
        replicated.await_read()
        changed(replicated, 50)
        mirrors.assert_same()


@pytest.mark.parametrize("replica", ["slave_pos"], indirect=True)
def test_a_server_whose_numbers_begin_anew_stops_the_mirror(
    lake: Lake, replicated: InMariaDb, replica: MariaDb
) -> None:
    mirrors = Mirrors(lake, replicated)
    changed(replicated, 10)
    replicated.begin()
    changed(replicated, 20)
    mirrors.assert_same()
    with session(replica) as sql:
        replicated.fail_over(replica, sql)
        # As of a server that was filled from a dump: it knows nothing of the first one's log.
        replicated.run("reset master", "set global gtid_slave_pos = ''")
        # Debezium 3.2 does not begin at a server that has no GTID at all.
        replicated.run("create table of_this_server (id int)", "drop table of_this_server", "flush binary logs")
        replicated.begin(snapshot_mode="no_data", awaits="nothing")
        replicated.await_read()
        changed(replicated, 30)
        replicated.await_all_sent()
        stop_at_another_log(mirrors)
        replicated.release()
        replicated.begin()
        changed(replicated, 40)
        read_again(mirrors)
        changed(replicated, 50)
        mirrors.assert_same()


# Debezium's connector for MySQL reads a MariaDB, too, and knows none of its GTIDs.
WITHOUT_GTIDS = {"connector_class": "io.debezium.connector.mysql.MySqlConnector", "database_ssl_mode": "disabled"}


def gtids(table: InMariaDb) -> set[str | None]:
    """Return the GTIDs that the topic's events have."""
    consumer = Consumer({**table.kafka.client_config(), "group.id": "look", "log_level": 0})
    consumer.assign([TopicPartition(table.topic, 0, 0)])
    values = [record.value() for record in consumer.consume(table.sent(), timeout=30)]
    consumer.close()
    events = [json.loads(value) for value in values if value]
    return {event.get("payload", event)["source"].get("gtid") for event in events}


@pytest.mark.parametrize("replica", ["no"], indirect=True)
def test_without_gtids_a_replica_that_takes_over_stops_the_mirror(
    lake: Lake, replicated: InMariaDb, replica: MariaDb
) -> None:
    mirrors = Mirrors(lake, replicated)
    changed(replicated, 10)
    replicated.begin(**WITHOUT_GTIDS)
    changed(replicated, 20)
    mirrors.assert_same()
    assert gtids(replicated) == {None}
    with session(replica) as sql:
        replicated.fail_over(replica, sql)
        replicated.begin(snapshot_mode="no_data", awaits="nothing", **WITHOUT_GTIDS)
        replicated.await_read()
        changed(replicated, 30)
        replicated.await_all_sent()
        stop_at_another_log(mirrors)
        replicated.release()
        replicated.begin(**WITHOUT_GTIDS)
        changed(replicated, 40)
        read_again(mirrors)
        changed(replicated, 50)
        mirrors.assert_same()
