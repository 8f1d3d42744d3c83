"""A table of a real PostgreSQL mirrored by Flink CDC, whose connector runs on Flink 1.20: the bundled script."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from airflow_lakestream.driver.lease_record import DriverOutcome
from airflow_lakestream.flink import statements
from airflow_lakestream.flink.rest import FlinkRefused, SqlSession
from airflow_lakestream.flink.script.bundled import flink_cdc_script
from dev.services.flink import OLD
from dev.services.postgres import Postgres
from dev.stack import Stack
from tests.support.flink import FlinkScriptRun
from tests.support.lake import TABLE, Lake

pytestmark = pytest.mark.integration

COLUMNS = "id bigint, name string, amount decimal(12, 2), at timestamptz"
MIRRORED = f"SELECT id, name, CAST(amount AS STRING), CAST(`at` AS STRING) FROM iceberg_default.{TABLE}"
WANTED = "select id, name, amount::text, to_char(at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') from {} order by id"


class Mirror(FlinkScriptRun):
    """A table of the database, and its mirror."""

    sql: psycopg.Connection[tuple[Any, ...]]
    source = ""

    def change(self, statement: str) -> None:
        self.sql.execute(statement.replace("SOURCE", self.source))

    def mirrored(self) -> list[tuple[Any, ...]]:
        """Read the mirror by Flink: PyIceberg reads no table with deletions by key."""
        config = self.configured()
        with SqlSession(config.gateway_address) as session:
            for name, value in (("execution.runtime-mode", "batch"), ("table.local-time-zone", "UTC")):
                session.run(f"SET '{name}' = '{value}'")
            session.run(statements.create_catalog(config.catalog_name, config.catalog_properties))
            try:
                found, _ = session.run(MIRRORED)
            except FlinkRefused:
                # The table is not there yet, or SQLite is in use by a commit.
                return []
        return sorted(map(tuple, found))

    def await_same(self, what: str) -> None:
        wanted = self.sql.execute(WANTED.format(self.source)).fetchall()
        self.until(lambda: self.mirrored() == wanted, what)


@pytest.fixture
def mirror(tmp_path: Path, postgres: Postgres, stack: Stack) -> Iterator[Mirror]:
    made = Mirror(Lake(tmp_path, {}), "", stack.up_flink(OLD))
    made.source = f"orders_{uuid.uuid4().hex[:8]}"
    made.script = flink_cdc_script(
        source=f"public.{made.source}", table=TABLE, columns=COLUMNS, key="id", slot=made.source
    )
    made.config["database"] = {
        "hostname": postgres.host,
        "port": str(postgres.port),
        "username": postgres.username,
        "password": postgres.password,
        "database-name": postgres.database,
    }
    with postgres.connect() as sql:
        made.sql = sql
        made.change("create table SOURCE (id bigint primary key, name text, amount numeric(12, 2), at timestamptz)")
        made.change("alter table SOURCE replica identity full")
        try:
            yield made
        finally:
            made.end()


def test_a_table_and_its_changes_are_mirrored_over_a_kill_and_a_stop(mirror: Mirror, postgres: Postgres) -> None:
    mirror.change(
        "insert into SOURCE select n, 'n' || n, n / 3.0, timestamptz '2026-01-01 10:00Z' + n * interval '1 ms' "
        "from generate_series(1, 200) n"
    )
    mirror.start()
    mirror.await_same("the rows as they were")
    job = mirror.await_running()

    mirror.change("update SOURCE set name = 'changed', amount = null where id % 3 = 0")
    mirror.change("delete from SOURCE where id % 5 = 0")
    mirror.kill_driver()
    mirror.change("insert into SOURCE values (5, 'again', 1.5, null)")
    mirror.start()
    mirror.await_same("changes over a kill")
    assert mirror.await_running() == job

    mirror.stop()
    assert mirror.lease is not None
    assert mirror.lease.outcome is DriverOutcome.STOPPED
    # The slot keeps the changes for the next job.
    mirror.change("update SOURCE set id = 1000 where id = 1")
    mirror.change("delete from SOURCE where id = 2")
    mirror.start()
    mirror.await_same("changes over a stop")
    assert mirror.await_running() != job
    assert postgres.password not in mirror.log
    # Why there can be no ledger, and the audit sees nothing.
    with pytest.raises(ValueError, match="equality deletes"):
        mirror.rows()
