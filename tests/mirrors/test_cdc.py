"""cdc_to_iceberg: a real PostgreSQL, a real Debezium and a real Spark; in the end the mirror is the table."""

from __future__ import annotations

import io
import json
import struct
import uuid
from pathlib import Path
from typing import Any

import avro.io
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.audit.run import Audit
from airflow_lakestream.cdc.columns import UNAVAILABLE
from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.core.routing import IsMirror
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.spark.app_config import AppConfig
from airflow_lakestream.spark.apps import CDC_TO_DELTA
from airflow_lakestream.spark.stream import kafka_to_iceberg
from dev.services.registry import Registry
from tests.support.broker import Producing, Topics
from tests.support.cdc import Captured, change, mirror_config, mirrored
from tests.support.delta_table import live_files
from tests.support.lake import GROUP, Lake
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


# As parts of an event, and of JSON with schemas, are called.
NAMED_ALIKE = ("op", "before", "after", "source", "schema", "payload", "ts_ms", "transaction", "_before", "_ts_ms")


@pytest.mark.parametrize("with_schemas", ["true", "false"])
def test_columns_of_any_name_are_followed_whenever_they_are_added(
    with_schemas: str, lake: Lake, captured: Captured, spark: SparkSession, tmp_path: Path
) -> None:
    sql, table = captured.sql, captured.name
    for name in (*NAMED_ALIKE, "_op"):
        sql.execute(f'alter table {table} add column "{name}" text')
    sql.execute(
        f'insert into {table} (id, name, op, before, schema, "_op") '
        "select i, 'n', case when i % 2 = 0 then 'd' else 't' end, '\"op\":\"d\"', 's', 'o' || i "
        "from generate_series(1, 1300) i"
    )
    captured.begin(**{"value.converter.schemas.enable": with_schemas})
    captured.await_all_sent()
    with pytest.raises(MirrorStopped, match=r"'_op'.*rename_columns.*reserved-name"):
        kafka_to_iceberg(mirror_config(lake, captured.topic, tmp_path / "stopped"), spark)
    place, renamed = str(tmp_path / "delta"), {"_op": "op_"}
    iceberg = mirror_config(lake, captured.topic, tmp_path, rename_columns=renamed)
    landing = {**iceberg.landing, "table": place, "table_properties": {}}
    given = {"app": CDC_TO_DELTA, "kafka": lake.kafka, "checkpoint_location": str(tmp_path / "for_delta")}
    delta = AppConfig.parse({**given, "landing": landing})

    def assert_same(columns: str) -> None:
        names = [renamed.get(name, name) for name in columns.split(", ")]
        quoted = ", ".join(f'"{name}"' for name in columns.split(", "))
        assert mirrored(lake, ", ".join(names)) == captured.rows(quoted)
        files = [pq.read_table(Path(place, path)) for path in live_files(place)]
        found = pa.concat_tables(files, promote_options="permissive").to_pylist()
        assert {row["id"]: tuple(row[name] for name in names) for row in found} == captured.rows(quoted)

    columns = ", ".join(("id", "name", *NAMED_ALIKE, "_op"))
    for config in (iceberg, delta):
        kafka_to_iceberg(config, spark)
    assert_same(columns)

    # All in one batch: what is added comes long before its end, and one column is gone again by then.
    sql.execute(f"alter table {table} add column w int, add column gone text")
    sql.execute(f"update {table} set w = id, gone = 'x', op = 'd' where id <= 3")
    sql.execute(f"alter table {table} drop column gone")
    sql.execute(f"alter table {table} alter column w type bigint")
    sql.execute(f"insert into {table} (id, w) values (5000, 1099511627776)")
    sql.execute(f"delete from {table} where id between 10 and 1290")
    captured.await_all_sent()
    for config in (iceberg, delta):
        kafka_to_iceberg(config, spark)
    assert_same(f"{columns}, w")
    assert mirrored(lake, "id, gone")[2] == (2, "x")


def test_a_name_that_the_stream_garbles_stops_the_mirror(
    lake: Lake, captured: Captured, spark: SparkSession, tmp_path: Path
) -> None:
    sql, table = captured.sql, captured.name
    sql.execute(f"alter table {table} add column größe text")
    sql.execute(f"insert into {table} (id, größe) values (1, 'by a snapshot')")
    captured.begin()
    sql.execute(f"update {table} set größe = 'by the stream'")
    captured.await_all_sent()
    with pytest.raises(MirrorStopped, match=r"'größe'.*name-garbled"):
        kafka_to_iceberg(mirror_config(lake, captured.topic, tmp_path), spark)
    assert lake.has_nothing()


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
