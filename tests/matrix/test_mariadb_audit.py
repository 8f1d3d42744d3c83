"""Mirrors against the table of a real MariaDB: each type is compared as the mirror has it, lost events are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_lakestream.audit.result import AuditVerdict
from airflow_lakestream.audit.source_database import DatabaseAddress, DatabaseKind
from dev.ports import LOOPBACK
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.mariadb import USERNAME, MariaDb
from tests.matrix.test_mariadb_mirror import COLUMNS
from tests.support.mariadb import InMariaDb, made_in, mariadb, session
from tests.support.mirror_lake import MirrorLake
from tests.support.source_tables import audit_with, faults_of, written_meanwhile

__all__ = ["mariadb"]

pytestmark = pytest.mark.integration


@pytest.fixture
def typed(mariadb: MariaDb, connect: Connect, kafka: Kafka) -> Iterator[InMariaDb]:
    """Give a table with a column of each type, and a key of two columns with an order of its own."""
    columns = ", ".join(f"{name} {kind}" for name, (kind, *_) in COLUMNS.items())
    key = "id int, region varchar(20) collate utf8mb4_unicode_ci default '', primary key (region, id)"
    yield from made_in(mariadb, connect, kafka, f"{key}, {columns}")


def test_each_type_is_compared_and_lost_events_are_found(mirror_lake: MirrorLake, typed: InMariaDb) -> None:
    lake = mirror_lake
    is_delta = lake.name.startswith("/")
    most = max(len(values) for _, values, *_ in COLUMNS.values())

    def fill(first: int) -> None:
        for number in range(most):
            values = [said[number % len(said)] for _, said, *_ in COLUMNS.values()]
            names = ", ".join(COLUMNS)
            for region in ("a", "B", "\u00e9"):
                row = f"{first + number}, '{region}', {', '.join(values)}"
                typed.run(f"insert into {{table}} (id, region, {names}) values ({row})")

    fill(0)
    typed.run("insert into {table} (id, region) select seq, 'many' from seq_1000_to_2999")
    typed.begin(awaits="nothing")
    # Else the snapshot may come after the changes that the test awaits.
    typed.await_read()
    fill(100)
    typed.await_all_sent()
    lake.land(typed.topic, key=["id", "region"], **({"schema": "c_time string"} if is_delta else {}))
    server = typed.mariadb
    login = {"user": USERNAME, "password": server.password}
    address = DatabaseAddress(kind=DatabaseKind.MYSQL, host=LOOPBACK, port=server.port, **login)
    clean = audit_with(lake, address)
    assert clean.verdict is AuditVerdict.CLEAN, clean.render()
    assert clean.made == (["columns that were not compared: c_time (time(6) as string)"] if is_delta else [])

    compared = sorted(name for name in COLUMNS if not (is_delta and name == "c_time"))
    typed.run("set sql_log_bin = 0")
    typed.run(f"update {{table}} set {', '.join(f'{name} = null' for name in COLUMNS)} where (id, region) = (100, 'a')")
    typed.run("delete from {table} where id = 1500", "insert into {table} (id, region) values (9999, 'lost')")
    typed.run("set sql_log_bin = 1")
    mark = "insert into {} (id, region) values (-5, '') on duplicate key update c_year = if(c_year = 2000, 2001, 2000)"
    with session(typed.mariadb) as other:
        writer = replace(typed, sql=other)
        with written_meanwhile(lambda: writer.run(mark.format("{table}"))):
            result = audit_with(lake, address)
    found = sorted((fault, key["id"], sorted(columns)) for fault, key, columns in faults_of(result))
    assert found == [("different", "100", compared), ("extra", "1500", []), ("missing", "9999", [])], result.render()
