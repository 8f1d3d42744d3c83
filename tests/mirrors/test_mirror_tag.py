"""Tags of one cut through mirrors of a real PostgreSQL, under transfers between accounts of three tables."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from airflow.sdk import DAG, Asset, AssetAlias

from airflow_lakestream.cli.app import run
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.operators.mirror_tag import LakestreamTagOperator
from airflow_lakestream.run.mirror_tag import MirrorTag, NoCommonPosition
from dev.services.connect import Connect
from dev.services.kafka import Kafka
from dev.services.postgres import Postgres
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.bank import ACCOUNTS, TAGS, TOTAL, Background, Bank, Execute
from tests.support.broker import poll_until
from tests.support.lake import Lake

pytestmark = pytest.mark.integration


@dataclass
class PostgresBank(Bank):
    """The accounts in PostgreSQL."""

    postgres: Postgres | None = None

    @contextmanager
    def transaction(self) -> Iterator[Execute]:
        assert self.postgres is not None
        with self.postgres.connect() as sql, sql.transaction():
            yield lambda *statement: _rows(sql.execute(*statement))


def _rows(cursor: psycopg.Cursor[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return cursor.fetchall() if cursor.description else []


@pytest.fixture
def bank(postgres: Postgres, connect: Connect, kafka: Kafka, lake: Lake) -> Iterator[Bank]:
    bank = PostgresBank(connect, kafka, lake, "public", postgres=postgres)
    bank.fill()
    connect.capture(postgres, bank.prefix, f"public.{bank.prefix}_.*", heartbeat_interval_ms="500")
    with postgres.connect() as sql:
        active = f"select 1 from pg_replication_slots where slot_name = '{bank.prefix}' and active"
        poll_until(lambda: sql.execute(active).fetchone() is not None, f"the slot {bank.prefix}", 240)
        yield bank
        connect.release(bank.prefix)
        poll_until(lambda: sql.execute(active).fetchone() is None, f"the end of {bank.prefix}", 180)
        sql.execute(f"select pg_drop_replication_slot('{bank.prefix}')")


def test_the_sum_of_all_accounts_is_right_in_each_tag(bank: Bank) -> None:
    assert bank.totals_under_load(5) == [TOTAL] * TAGS


def test_a_table_without_changes_needs_the_connectors_stored_offset(
    bank: Bank, connections: Connections, airflow: AirflowHome, capsys: pytest.CaptureFixture[str]
) -> None:
    bank.land_all()
    quiet, chance = bank.topic(bank.names[2]), random.Random(8)
    for name in bank.names[:2]:
        bank.await_last(name)
    with pytest.raises(NoCommonPosition, match=re.escape(f"{quiet}[0] up to offset {ACCOUNTS} has no transaction")):
        bank.tag("early", timeout=2).run(connections.catalog)
    with Background(lambda: bank.transact(chance, bank.names[:2])):
        arguments = [*bank.tables, "--landing", "{}", "--offsets-topic", bank.connect.offsets_topic, "--json"]
        assert run(["mirror", "tag", "busy", *arguments]) == 0
        done = json.loads(capsys.readouterr().out)
    assert {table: int(one["snapshot_id"]) for table, one in done["tables"].items()} == bank.tagged("busy")
    assert bank.total("busy") == TOTAL

    # All is landed, and nothing more is to come, as the connector's heartbeats show.
    for name in bank.names[:2]:
        bank.await_last(name)
    bank.land_all()
    with DAG("tags", schedule=None) as dag:
        outlets = [Asset("bank", uri="iceberg://lake/bank"), AssetAlias("accounts")]
        LakestreamTagOperator(
            task_id="tag",
            tag="idle",
            tables=bank.tables,
            landing={},
            offsets_topic=bank.connect.offsets_topic,
            outlets=outlets,
            poke_interval=1,
            mode="poke",
        )
    played = airflow.run(dag)
    assert (played.state, played.errors) == ("success", [])
    result = played.task("tag").xcom
    assert dict(played.asset_events) == {
        "iceberg://lake/bank": result,
        **{
            f"iceberg://lake/{table.removeprefix('lake.')}": {
                "tag": "idle",
                "position": result["position"],
                "table": table,
                **one,
            }
            for table, one in result["tables"].items()
        },
    }
    assert [bank.balances(name, "idle") for name in bank.names] == [bank.rows(name) for name in bank.names]

    # A name is taken once, and moves only if asked to.
    assert run(["mirror", "tag", "idle", *arguments]) == 2
    assert f"{bank.tables[0]} has a tag 'idle' already" in capsys.readouterr().err
    assert run(["mirror", "tag", "idle", *arguments, "--replace"]) == 0


def test_another_landing_beyond_the_cut_leads_to_another_cut(bank: Bank) -> None:
    bank.land_all()
    chance, reports = random.Random(9), list[str]()

    def report(text: str) -> None:
        reports.append(text)
        if text.startswith("Waiting"):
            bank.transact(chance, bank.names)
        elif sum("is at position" in one for one in reports) == 1:
            # Between the cut and the landing of the next mirror.
            bank.transact(chance, bank.names)
            bank.await_last(bank.names[1])
            bank.land(bank.names[1])

    bank.tag("day", report=report).run(bank.lake.catalog())
    assert any(f"another run landed {bank.tables[1]} beyond position" in one for one in reports)
    assert bank.total("day") == TOTAL


def test_what_can_have_no_cut_is_refused_by_name(bank: Bank, tmp_path: Path) -> None:
    bank.land_all()
    catalog = bank.lake.catalog()
    catalog.create_table("lake.plain", pa.schema([("id", pa.int64())]))
    delta = str(tmp_path / "delta")
    for tables, problem in (
        ([*bank.tables, "lake.plain"], "lake.plain is no mirror of Debezium's events"),
        ([*bank.tables, "lake.none"], "there is no table lake.none in the catalog"),
        ([*bank.tables, delta], f"'{delta}' is the path of a Delta table; tags of mirrors are for Iceberg tables"),
        ([bank.tables[0]] * 2, "names a table twice"),
    ):
        with pytest.raises(InvalidArgument, match=re.escape(problem)):
            MirrorTag(name="day", tables=tables, kafka=bank.lake.kafka, landing={}).run(catalog)
    with pytest.raises(InvalidArgument, match=re.escape(f"{bank.tables[0]} has a branch 'main'")):
        bank.tag("main").run(catalog)
    assert [bank.lake.table(table).metadata.refs.keys() for table in bank.tables] == [{"main"}] * 3
