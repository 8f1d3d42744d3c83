"""A table that Debezium reads again: by a connector that is made anew, and when `lakestream mirror resnapshot` asks."""

from __future__ import annotations

import json
import multiprocessing
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.cli.app import run
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.driver.lease import HeldLease
from airflow_lakestream.run.job import Lake as Tables
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.resnapshot import MirrorResnapshot
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.apps import CDC_TO_DELTA
from airflow_lakestream.spark.stream import kafka_to_iceberg
from tests.support.airflow_home import Connections
from tests.support.broker import Topics, poll_until
from tests.support.cdc import Captured, mirror_config
from tests.support.delta_lake import DeltaLake
from tests.support.lake import GROUP, Lake, assert_files_are_whole
from tests.support.resnapshotting import die_at

pytestmark = pytest.mark.integration

TABLE = "lake.orders"


class Mirrors:
    """A mirror in Iceberg and one in Delta of the same table; and one in Iceberg in which deleted rows stay."""

    def __init__(self, lake: Lake, captured: Captured) -> None:
        self.lake, self.captured = lake, captured
        self.delta = DeltaLake(lake.folder, lake.kafka)
        self.tables = {"iceberg": TABLE, "delta": self.delta.place, "soft": f"{TABLE}_soft"}

    def by_spark(self, spark: SparkSession, kind: str, **settings: Any) -> None:
        """Run the app."""
        folder = self.lake.folder / kind
        if kind == "delta":
            landing = {"topic": self.captured.topic, "table": self.delta.place, "consumer_group": GROUP}
            given = {"app": CDC_TO_DELTA, "kafka": self.lake.kafka, "landing": landing}
            config = AppConfig.parse({**given, "checkpoint_location": str(folder / "checkpoint"), **settings})
        else:
            soft = {"soft_delete": True} if kind == "soft" else {}
            config = mirror_config(self.lake, self.captured.topic, folder, **soft, table=self.tables[kind], **settings)
        kafka_to_iceberg(config, spark)

    def land(self, kind: str, **settings: Any) -> None:
        """Land what is there in this process: the same events, the same merge."""
        form = {"table_format": "delta"} if kind == "delta" else {}
        config = MirrorConfig(
            topic=self.captured.topic,
            table=self.tables[kind],
            consumer_group=GROUP,
            **form,
            **settings,
            soft_delete=kind == "soft",
        )
        land(build_job(config, self.lake.kafka, self.store(kind), run_id=uuid.uuid4().hex))

    def store(self, kind: str) -> Tables:
        """Return what opens the table."""
        return DeltaStorage() if kind == "delta" else self.lake.catalog()

    def found(self, kind: str) -> list[dict[str, Any]]:
        """Return the rows as they are."""
        if kind == "delta":
            return self.delta.scan().to_pylist()
        return self.lake.table(self.tables[kind]).scan().to_arrow().to_pylist()

    def rows(self, kind: str, *columns: str, key: str = "id") -> dict[Any, tuple[Any, ...]]:
        """Return the rows by their key, each once, or it is an error."""
        found = [row for row in self.found(kind) if not row.get("_is_deleted")]
        rows = {row[key]: tuple(row[name] for name in columns) for row in found}
        assert len(rows) == len(found), "a key is there twice"
        return rows

    def expected(self, *columns: str, key: str = "id") -> dict[Any, tuple[Any, ...]]:
        """Return what PostgreSQL has."""
        names = ", ".join((key, *columns))
        return {
            row[0]: tuple(row[1:]) for row in self.captured.sql.execute(f"select {names} from {self.captured.name}")
        }

    def work(self, kind: str, **settings: Any) -> MirrorResnapshot:
        """Return the command's work."""
        return MirrorResnapshot(table=self.tables[kind], consumer_group=GROUP, kafka=self.lake.kafka, **settings)


@pytest.fixture
def mirrors(lake: Lake, captured: Captured) -> Mirrors:
    return Mirrors(lake, captured)


def fill(captured: Captured, first: int, last: int) -> None:
    captured.sql.execute(
        f"insert into {captured.name} (id, name, amount) select i, 'n' || i, i "
        "from generate_series(%s::int, %s::int) i",
        (first, last),
    )


def test_rows_that_were_deleted_while_there_was_no_connector_go_with_the_end_of_the_next_snapshot(
    mirrors: Mirrors, captured: Captured, spark: SparkSession
) -> None:
    fill(captured, 1, 20)
    captured.begin()
    captured.await_all_sent()
    # The first snapshot in several batches, with the end of the app between them.
    for kind in mirrors.tables:
        mirrors.by_spark(spark, kind, max_offsets_per_trigger=7, max_batches=1)
        mirrors.by_spark(spark, kind)
        assert mirrors.rows(kind, "name") == mirrors.expected("name")

    captured.release()
    captured.sql.execute(f"delete from {captured.name} where id in (1, 5, 20)")
    captured.sql.execute(f"update {captured.name} set name = 'away' where id = 2")
    fill(captured, 30, 32)
    captured.anew()
    captured.sql.execute(f"update {captured.name} set name = 'back' where id = 3")
    captured.sql.execute(f"delete from {captured.name} where id = 4")
    captured.await_all_sent()
    mirrors.by_spark(spark, "iceberg", max_offsets_per_trigger=6, max_batches=2)
    # Not all are read: none of the rows that are still to come is missing for that.
    assert {1, 19, 20} <= set(mirrors.rows("iceberg"))
    for kind in mirrors.tables:
        mirrors.by_spark(spark, kind, **({} if kind == "soft" else {"max_offsets_per_trigger": 6}))
        assert mirrors.rows(kind, "name") == mirrors.expected("name")
    deleted = {row["id"]: row["name"] for row in mirrors.found("soft") if row["_is_deleted"]}
    assert {1: "n1", 4: "n4", 5: "n5", 20: "n20"}.items() <= deleted.items()

    def app_lands(kind: str, told: list[str], text: str) -> None:
        # Between the build and the commit.
        if "landed in the staging table" in text and not any("landed in the staging table" in one for one in told):
            captured.sql.execute(f"delete from {captured.name} where id = (select max(id) from {captured.name})")
            captured.await_all_sent()
            mirrors.land(kind)
        told.append(text)

    for kind in ("iceberg", "delta"):
        told: list[str] = []
        mirrors.work(kind, by_signal=False, report=partial(app_lands, kind, told)).run(mirrors.store(kind))
        assert any("Reading on" in text for text in told)
        assert mirrors.rows(kind, "name") == mirrors.expected("name")


def killed_at(mirrors: Mirrors, kind: str, text: str, **settings: Any) -> None:
    """Run the command's work in a process that dies when it says something."""
    # Not a fork: Delta's library has threads.
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=die_at, args=(text, kind, mirrors.lake, mirrors.tables[kind], settings))
    process.start()
    process.join(300)
    assert process.exitcode == 9


def test_the_command_replaces_all_rows_in_one_commit_wherever_it_is_killed(
    mirrors: Mirrors,
    captured: Captured,
    topic: Topics,
    connections: Connections,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(captured, 1, 30)
    signals = topic(1, name=f"{captured.name}-signal")
    channel = {"signal_kafka_bootstrap_servers": captured.kafka.bootstrap, "signal_kafka_topic": signals}
    captured.begin(signal_enabled_channels="source,kafka", **channel)
    captured.await_all_sent()
    mirrors.by_spark(spark, "iceberg")
    mirrors.land("delta")
    mirrors.land("soft")

    # Nobody sends what these do to the rows that are there.
    sql, name, columns = captured.sql, captured.name, ("name", "amount", "extra")
    sql.execute(f"alter table {name} add column extra int default 7")
    sql.execute(f"alter table {name} alter column amount type text using 'a' || amount")
    sql.execute(f"update {name} set name = 'new' where id = 3")
    sql.execute(f"delete from {name} where id = 4")
    before = mirrors.rows("iceberg", "name", "amount")
    history = [one.snapshot_id for one in mirrors.lake.table(TABLE).metadata.snapshots]

    checkpoint = str(mirrors.lake.folder / "checkpoint")
    command = ["mirror", "resnapshot", "--group", GROUP, "--table"]
    with HeldLease.take(checkpoint, "f", "a test"):
        assert run([*command, TABLE, "--checkpoint", checkpoint]) == 2
    assert "is in use by a test" in capsys.readouterr().err

    # Asked for once: whoever is killed, and run again, finds what was asked for, and what was built.
    for text in ("asking Debezium", "the snapshot has", "events landed in the staging table"):
        killed_at(mirrors, "iceberg", text)
        assert mirrors.rows("iceberg", "name", "amount") == before
    assert run([*command, TABLE, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rows_before"], answer["rows"]) == (30, 29)
    killed_at(mirrors, "delta", "events landed in the staging table", by_signal=False)
    assert run([*command, mirrors.delta.place, "--no-signal"]) == 0
    # All is done, and only what was built aside is still there.
    killed_at(mirrors, "soft", "all rows are replaced", by_signal=False)
    assert run([*command, f"{TABLE}_soft", "--no-signal"]) == 0
    assert "an earlier run has replaced the rows" in capsys.readouterr().err
    for kind in mirrors.tables:
        assert mirrors.rows(kind, *columns) == mirrors.expected(*columns)
    table = mirrors.lake.table(TABLE)
    assert [one.snapshot_id for one in table.metadata.snapshots[:-1]] == history
    assert not mirrors.lake.catalog().table_exists(f"{TABLE}__resnapshot")
    assert not list(Path(f"{mirrors.delta.place}__resnapshot", "_delta_log").glob("*.json"))

    # The app goes on; what it knows to be deleted stays so.
    sql.execute(f"update {name} set extra = id, amount = 'b' where id in (5, 6)")
    sql.execute(f"delete from {name} where id = 7")
    sql.execute(f"insert into {name} (id, name, amount, extra) values (100, 'n', 'c', 1)")
    captured.await_all_sent()
    mirrors.by_spark(spark, "iceberg")
    mirrors.land("delta")
    mirrors.land("soft")
    for kind in mirrors.tables:
        assert mirrors.rows(kind, *columns) == mirrors.expected(*columns)
    assert_files_are_whole(mirrors.lake.table(TABLE))
    assert {4, 7} <= {row["id"] for row in mirrors.found("soft") if row["_is_deleted"]}


def test_another_key_and_a_connector_that_takes_no_signals(
    mirrors: Mirrors,
    captured: Captured,
    topic: Topics,
    connections: Connections,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sql, name = captured.sql, captured.name
    fill(captured, 1, 10)
    captured.begin()
    captured.await_all_sent()
    for kind in ("iceberg", "delta"):
        mirrors.land(kind)
    command = ["mirror", "resnapshot", "--group", GROUP, "--table", TABLE]
    for wrong in (["--landing", '{"tabel": "x"}'], ["--landing", "[]"], ["--since-offset", "0:1"]):
        assert run([*command, *wrong]) == 2
        assert wrong[0] in capsys.readouterr().err
    assert run(command) == 2
    assert f"signal topic {name}-signal: " in capsys.readouterr().err
    topic(1, name=f"{name}-signal")
    for times in ("asking Debezium", "is not asked again"):
        assert run([*command, "--timeout", "2s"]) == 2
        told = capsys.readouterr().err
        assert times in told
        assert f"signal.kafka.topic={name}-signal" in told
    assert run([*command, "--no-signal", "--since-offset", f"0:{captured.sent() - 1}"]) == 2
    assert "there is no snapshot of the whole table" in capsys.readouterr().err

    captured.release()
    sql.execute(f"alter table {name} drop constraint {name}_pkey")
    sql.execute(f"alter table {name} alter column name type bigint using substr(name, 2)::bigint * 10")
    sql.execute(f"alter table {name} add primary key (name)")
    sql.execute(f"delete from {name} where id = 1")
    captured.anew()
    for number, kind in enumerate(("iceberg", "delta")):
        mirrors.work(kind, by_signal=False).run(mirrors.store(kind))
        assert mirrors.rows(kind, "id", "amount", key="name") == mirrors.expected("id", "amount", key="name")
        ends = captured.sent()
        sql.execute(f"update {name} set amount = 5 where id = 2")
        sql.execute(f"delete from {name} where id = {3 + number}")
        # The deletion comes with a tombstone.
        poll_until(lambda least=ends + 3: captured.sent() >= least, "the changes in the topic", 120)
        mirrors.land(kind)
        assert mirrors.rows(kind, "id", "amount", key="name") == mirrors.expected("id", "amount", key="name")
