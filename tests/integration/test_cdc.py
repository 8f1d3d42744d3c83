"""cdc_to_iceberg: a real PostgreSQL, a real Debezium and a real Spark; in the end the mirror is the table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.run import Audit
from airflow_lakestream.iceberg.mirrors import IsMirror
from airflow_lakestream.spark.apps import CDC_TO_ICEBERG, app_path
from airflow_lakestream.spark.progress import read_progress
from airflow_lakestream.spark.stream import kafka_to_iceberg
from tests.support.broker import poll_until
from tests.support.cdc import Captured, mirror_config, mirrored
from tests.support.lake import GROUP, Lake, assert_files_are_whole
from tests.support.spark import SETTINGS
from tests.support.spark import _environment as environment

pytestmark = pytest.mark.integration

COLUMNS = "id, name, amount, at, day, flag, price, data, big"
BIG = "x" * 9_000


def fill(captured: Captured, first: int, last: int) -> None:
    captured.sql.execute(
        f"insert into {captured.name} select i, 'n' || i, i * 1.25, timestamptz '2026-01-02 03:04:05.678901+02', "
        f"date '2026-01-02' + i, i %% 2 = 0, i / 3.0, '\\xdeadbeef', %s || i from generate_series(%s::int, %s::int) i",
        (BIG, first, last),
    )


def test_a_mirror_follows_its_table(lake: Lake, captured: Captured, spark: SparkSession, tmp_path: Path) -> None:
    fill(captured, 1, 20)
    captured.begin()
    captured.await_all_sent()
    config = mirror_config(lake, captured.topic, tmp_path)
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, COLUMNS) == captured.rows(COLUMNS)

    # What is kept apart is left out of the events of an update, and of a row that gets another key.
    captured.sql.execute(f"update {captured.name} set name = 'new' where id in (1, 2)")
    captured.sql.execute(f"update {captured.name} set id = 100 where id = 3")
    captured.sql.execute(f"delete from {captured.name} where id > 15 and id < 100")
    captured.sql.execute(f"alter table {captured.name} add column extra int default 7")
    captured.sql.execute(f"update {captured.name} set extra = id where id = 4")
    captured.await_all_sent()
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, COLUMNS) == captured.rows(COLUMNS)
    assert mirrored(lake, "id, extra")[4] == (4, 4)

    captured.sql.execute(f"truncate {captured.name}")
    fill(captured, 15, 18)
    captured.await_all_sent()
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, f"{COLUMNS}, extra") == captured.rows(f"{COLUMNS}, extra")

    snapshots = lake.table("lake.orders").metadata.snapshots
    kafka_to_iceberg(config, spark)
    assert lake.table("lake.orders").metadata.snapshots == snapshots
    with pytest.raises(IsMirror, match="can't be audited"):
        Audit(table="lake.orders", consumer_group=GROUP).run(lake.catalog())
    with pytest.raises(IsMirror, match="can't be landed into"):
        lake.land(captured.topic, table="lake.orders")


def play(captured: Captured, random: Random, count: int, *, has_extra: bool) -> None:
    """Make random transactions: rows written, deleted, moved to another key, all of them gone."""
    name, sql = captured.name, captured.sql
    for number in range(count):
        with sql.transaction():
            for _ in range(random.randint(1, 4)):
                key, other = random.randint(1, 60), random.randint(1, 60)
                kind = random.choices(["write", "big", "update", "delete", "move"], [4, 2, 6, 2, 2])[0]
                if kind in ("write", "big"):
                    big = f"{number}{BIG}" if kind == "big" else f"small {number}"
                    sql.execute(
                        f"insert into {name} (id, name, amount, at, data, big) values (%s, %s, %s, now(), %s, %s) "
                        "on conflict (id) do update set name = excluded.name, big = excluded.big",
                        (key, f"n{number}", number, b"\x00\xff", big),
                    )
                elif kind == "update":
                    sql.execute(f"update {name} set name = %s, flag = not flag where id = %s", (f"u{number}", key))
                elif kind == "delete":
                    sql.execute(f"delete from {name} where id = %s", (key,))
                else:
                    sql.execute(
                        f"update {name} set id = %s where id = %s and not exists (select from {name} where id = %s)",
                        (other, key, other),
                    )
        if has_extra:
            sql.execute(f"update {name} set extra = %s where id = %s", (f"e{number}", random.randint(1, 60)))
        if random.random() < 1 / 150:
            sql.execute(f"truncate {name}")


def await_batches(folder: Path, count: int, app: subprocess.Popen[bytes]) -> None:
    """Wait until so many batches are done, or the app has ended."""
    checkpoint = str(folder / "checkpoint")
    poll_until(lambda: read_progress(checkpoint).batches >= count or app.poll() is not None, f"batch {count}", 240)


def test_random_transactions_while_the_app_is_killed(lake: Lake, captured: Captured, tmp_path: Path) -> None:
    count = int(os.environ.get("LAKESTREAM_CDC_TRANSACTIONS", "300"))
    kills = int(os.environ.get("LAKESTREAM_CDC_KILLS", "3"))
    random = Random(int(os.environ.get("LAKESTREAM_CDC_SEED", "7")))
    play(captured, random, 20, has_extra=False)
    captured.begin()
    program = [sys.executable, app_path(CDC_TO_ICEBERG), "--config"]

    def start(**settings: object) -> subprocess.Popen[bytes]:
        config = mirror_config(lake, captured.topic, tmp_path, spark=SETTINGS, **settings)
        file = config.write(tmp_path / "app.json")
        log = (tmp_path / "driver.log").open("ab")
        # A group of its own: a kill reaches the JVM and the Python workers, too.
        return subprocess.Popen(
            [*program, str(file)], stdout=log, stderr=log, start_new_session=True, env=environment()
        )

    for number in range(kills):
        batches = read_progress(str(tmp_path / "checkpoint")).batches
        app = start(trigger="200 milliseconds", max_offsets_per_trigger=40)
        if number == kills // 2:
            captured.sql.execute(f"alter table {captured.name} add column extra text")
        play(captured, random, count // kills, has_extra=number >= kills // 2)
        await_batches(tmp_path, batches + random.randint(1, 3), app)
        assert app.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        os.killpg(app.pid, signal.SIGKILL)
        app.wait()
    captured.await_all_sent()
    app = start()
    assert app.wait(300) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    columns = f"{COLUMNS}, extra"
    assert mirrored(lake, columns) == captured.rows(columns)
    assert_files_are_whole(lake.table("lake.orders"))
