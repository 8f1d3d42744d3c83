"""cdc_to_iceberg: a real PostgreSQL, a real Debezium and a real Spark; in the end the mirror is the table."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from random import Random
from typing import Any

import avro.io
import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.run import Audit
from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.core.mirrors import IsMirror
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.spark.apps import CDC_TO_ICEBERG, app_path
from airflow_lakestream.spark.progress import read_progress
from airflow_lakestream.spark.stream import kafka_to_iceberg
from dev.services.registry import Registry
from tests.support.broker import Producing, Topics, poll_until
from tests.support.cdc import Captured, change, mirror_config, mirrored
from tests.support.lake import GROUP, Lake, assert_files_are_whole
from tests.support.spark import SETTINGS
from tests.support.spark import _environment as environment
from tests.unit.decode import avro_oracle

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
    with pytest.raises(IsMirror, match="can't be landed into"):
        lake.land(captured.topic, table="lake.orders", mode="ranges", ranges=[[0, 0, 5]], replace=True)


# What Debezium has a way to leave out; `smallint[]`, `numeric[]` and others come as NULL.
LARGE = {
    "texts": ("text[]", "array(select md5(i::text) from generate_series(1, 300) i)"),
    "numbers": ("int[]", "array(select i from generate_series(1, 3000) i)"),
    "longs": ("bigint[]", "array(select i::bigint << 33 from generate_series(1, 3000) i)"),
    "days": ("date[]", "array(select date '2026-01-01' + i from generate_series(1, 3000) i)"),
    "ids": ("uuid[]", "array(select md5(i::text)::uuid from generate_series(1, 300) i)"),
    "parts": ("bytea[]", "array(select md5(i::text)::bytea from generate_series(1, 300) i)"),
    "doc": ("jsonb", "to_jsonb(array(select md5(i::text) from generate_series(1, 300) i))"),
    "tags": (
        "hstore",
        "hstore(array(select 'k' || i from generate_series(1, 900) i), array_fill('v'::text, '{900}'))",
    ),
}


def test_large_values_of_each_type_are_kept_where_updates_leave_them_out(
    lake: Lake, captured: Captured, spark: SparkSession, tmp_path: Path
) -> None:
    sql, table = captured.sql, captured.name
    sql.execute("create extension if not exists hstore")
    for name, (kind, _) in LARGE.items():
        sql.execute(f"alter table {table} add column {name} {kind}")
        sql.execute(f"alter table {table} alter column {name} set storage external")
    values = ", ".join(value for _, value in LARGE.values())
    sql.execute(f"insert into {table} (id, {', '.join(LARGE)}) select i, {values} from generate_series(1, 2) i")
    captured.begin()
    captured.await_all_sent()
    config = mirror_config(lake, captured.topic, tmp_path, soft_delete=True)
    kafka_to_iceberg(config, spark)
    columns = f"id, name, {', '.join(LARGE)}"
    before = mirrored(lake, columns)
    assert [len(value) > 100 for value in before[1][2:]] == [True] * len(LARGE)

    sql.execute(f"update {table} set name = 'new'")
    sql.execute(f"delete from {table} where id = 2")
    captured.await_all_sent()
    kafka_to_iceberg(config, spark)
    found = mirrored(lake, f"{columns}, _is_deleted")
    for key, deleted in ((1, False), (2, True)):
        lost = {n: b[:2] for n, a, b in zip(LARGE, before[key][2:], found[key][2:], strict=False) if a != b}
        assert (found[key][1], found[key][-1], lost) == ("new", deleted, {})


def keyed(produce: Producing, topic: str, events: list[bytes | None]) -> None:
    produce(topic, 0, events, keys=['{"id":1}'] * len(events))


def test_several_tables_in_one_app_each_with_its_own_mirror(
    lake: Lake, topic: Topics, produce: Producing, spark: SparkSession, tmp_path: Path
) -> None:
    prefix = f"shop{uuid.uuid4().hex[:8]}"
    orders, people = topic(1, name=f"{prefix}.orders"), topic(1, name=f"{prefix}.people")
    keyed(produce, orders, [change("c", {"id": n, "total": n * 10}, n) for n in (1, 2, 3)])
    keyed(produce, people, [change("c", {"id": n, "name": f"p{n}"}, n) for n in (1, 2)])
    config = mirror_config(lake, f"^{prefix}\\..*", tmp_path, table="lake.{topic}")
    kafka_to_iceberg(config, spark)
    keyed(produce, orders, [change("d", {"id": 2}, 4), None])
    keyed(produce, people, [change("u", {"id": 1, "name": "new"}, 3)])
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, "id, total", f"lake.{prefix}_orders") == {1: (1, 10), 3: (3, 30)}
    assert mirrored(lake, "id, name", f"lake.{prefix}_people") == {1: (1, "new"), 2: (2, "p2")}


@pytest.mark.parametrize("on_error", ["fail", "reject", "skip"])
def test_a_bad_event_ends_the_run_unless_told_otherwise(
    on_error: str, lake: Lake, topic: Topics, produce: Producing, spark: SparkSession, tmp_path: Path
) -> None:
    read = topic(1)
    good = [change("c", {"id": n, "total": n}, n) for n in (1, 2)]
    keyed(produce, read, [good[0], b'{"no":"event"}', b"\xff{", good[1]])
    config = mirror_config(lake, read, tmp_path, on_error=on_error)
    if on_error == "fail":
        with pytest.raises(BadRecord, match=rf"{read}.*offset 1|offset 1.*{read}"):
            kafka_to_iceberg(config, spark)
        assert not lake.catalog().table_exists("lake.orders")
        return
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, "id, total") == {1: (1, 1), 2: (2, 2)}
    assert lake.catalog().table_exists("lake.orders__rejected") == (on_error == "reject")
    if on_error == "reject":
        rejected = lake.table("lake.orders__rejected").scan().to_arrow()
        assert sorted(rejected["_kafka_offset"].to_pylist()) == [1, 2]


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


ENVELOPE = record(
    "Envelope",
    before=["null", record("Value", id="long", name=["null", "string"], data=["null", "bytes"])],
    after=["null", "Value"],
    source=record("Source", sequence=["null", "string"], lsn=["null", "long"], ts_ms="long"),
    op="string",
)


def test_events_in_avro_by_a_registry(
    lake: Lake, topic: Topics, produce: Producing, registry: Registry, spark: SparkSession, tmp_path: Path
) -> None:
    read = topic(1)
    schema_id = registry.register(f"{read}-value", json.dumps(ENVELOPE))

    def written(op: str, key: int, name: str | None, data: bytes | None, place: int) -> bytes:
        event = json.loads(change(op, {"id": key, "name": name}, place))
        image = {"id": key, "name": name, "data": data}
        event["before" if op == "d" else "after"] = image
        file = io.BytesIO()
        avro.io.DatumWriter(avro_oracle.official(ENVELOPE)).write(event, avro.io.BinaryEncoder(file))
        return struct.pack(">bI", 0, schema_id) + file.getvalue()

    keyed(produce, read, [written("r", 1, "a", b"A", 1), written("c", 2, "b", b"B", 2)])
    config = mirror_config(lake, read, tmp_path, format="avro", schema_registry=registry.url, key=["id"])
    kafka_to_iceberg(config, spark)
    keyed(produce, read, [written("u", 1, "new", UNAVAILABLE.encode(), 3), written("d", 2, None, None, 4)])
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, "id, name, data") == {1: (1, "new", b"A")}


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
