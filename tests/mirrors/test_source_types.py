"""Columns of a real PostgreSQL that become other ones of the same form: mirrors stop, and go on once read again."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from airflow_lakestream.cdc.stops import MirrorStopped
from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.config.mirror import MirrorConfig
from airflow_lakestream.core.landing.algorithm import land
from airflow_lakestream.core.source_types import SourceTypeChanged, other_meaning
from airflow_lakestream.delta.storage import DeltaStorage
from airflow_lakestream.run.job import build_job
from airflow_lakestream.run.resnapshot import MirrorResnapshot
from tests.support.broker import Topics
from tests.support.cdc import Captured
from tests.support.delta_lake import DeltaLake
from tests.support.lake import GROUP, Lake
from tests.support.retyped import Retyped

pytestmark = pytest.mark.integration

# By column the type before, a value, the type after, and a value.
COLUMNS = {
    "a": ("date", "'2026-03-01'", "int", "2026"),
    "b": ("int", "20260301", "date", "'2026-03-01'"),
    "c": ("bigint", "1772323200", "timestamp", "'2026-03-01'"),
    "d": ("double precision", "1772323200.5", "timestamp", "'2026-03-01'"),
    "e": ("bytea", "'\\x0102'", "numeric(10, 2)", "12.5"),
    "f": ("date[]", "'{2026-03-01}'", "int[]", "'{2026}'"),
    "g": ("timestamp(3)", "'2026-03-01'", "bigint", "1772323200"),
    "h": ("interval", "'1 day'", "bigint", "1"),
    "i": ("time", "'12:00'", "bigint", "12"),
    "j": ("text", "'text'", "bytea", "'\\x0102'"),
}
# Delta has no times.
TIMES = {"schema": "i string"}
# The same kinds of values, for which nobody has to stop.
HARMLESS = {
    "k": ("int", "1", "bigint", "5000000000"),
    "l": ("varchar(5)", "'short'", "text", "'much longer'"),
    "m": ("timestamp(3)", "'2026-03-01'", "timestamp(6)", "'2026-03-01 00:00:00.123456'"),
    "n": ("numeric(10, 2)", "1.5", "numeric(12, 2)", "1234567890.5"),
    "o": ("real", "1.5", "double precision", "2.5"),
}


def test_columns_that_are_other_ones_of_the_same_form(captured: Captured, lake: Lake, topic: Topics) -> None:
    delta = DeltaLake(lake.folder, lake.kafka)
    stores: dict[str, Any] = {"lake.orders": lake.catalog(), delta.place: DeltaStorage()}

    def job(kind: type[ExtractConfig], table: str, **settings: Any) -> Any:
        form = {"table_format": "delta"} if stores.get(table) is stores[delta.place] else {}
        config = kind(topic=captured.topic, table=table, consumer_group=GROUP, **form, **settings)
        return build_job(config, lake.kafka, stores.get(table, lake.catalog()), run_id=uuid.uuid4().hex)

    def mirror(table: str) -> Any:
        return land(job(MirrorConfig, table, **(TIMES if table == delta.place else {})))

    def rows(table: str, *columns: str) -> dict[int, tuple[Any, ...]]:
        scan = delta.scan() if table == delta.place else lake.table(table).scan().to_arrow()
        return {row["id"]: tuple(row[name] for name in columns) for row in scan.to_pylist()}

    signals = topic(1, name=f"{captured.name}-signal")
    both = COLUMNS | HARMLESS
    retyped = Retyped(lambda statement: captured.sql.execute(statement.replace("{table}", captured.name)))
    retyped.add(both)
    retyped.write(1, both)
    channel = {"signal_kafka_bootstrap_servers": captured.kafka.bootstrap, "signal_kafka_topic": signals}
    captured.begin(signal_enabled_channels="source,kafka", **channel)
    retyped.write(2, both)
    captured.await_all_sent()
    for table in stores:
        mirror(table)
    land(job(ExtractConfig, "lake.events", envelope="debezium"))

    # Harmless ones, which all of them follow.
    for name, (_, _, kind, _) in HARMLESS.items():
        captured.sql.execute(f"alter table {captured.name} alter column {name} type {kind}")
    retyped.write(3, HARMLESS, anew=True)
    captured.await_all_sent()
    followed = [name for name in HARMLESS if name not in "ko"]
    mirror("lake.orders")
    assert rows("lake.orders", *HARMLESS)[3] == captured.rows(", ".join(("id", *HARMLESS)))[3][1:]

    retyped.drop(COLUMNS)
    retyped.add(COLUMNS, anew=True)
    at = captured.sent()
    retyped.write(4, COLUMNS, anew=True)
    captured.await_all_sent()
    # The numbers of "g" do not even fit: that is seen first.
    with pytest.raises((SourceTypeChanged, MirrorStopped), match=rf"offset {at}\b.*\[type-changed\]"):
        mirror("lake.orders")
    assert 4 not in rows("lake.orders", "id")
    ranges = [[0, at, captured.sent()]]
    land(job(ExtractConfig, "lake.new", envelope="debezium", mode="ranges", ranges=ranges))
    jobs = [job(ExtractConfig, name, envelope="debezium") for name in ("lake.events", "lake.new")]
    old, new = (one.sink.load("r").ledger.types for one in jobs)
    for name in COLUMNS:
        of = {path: one for path, one in old.items() if path.split("[")[0] == name}
        assert other_meaning(of, new), name
    for name in followed:
        assert other_meaning({name: old[name]}, new) is None, name

    # The way on, after which the new types count.
    MirrorResnapshot(table="lake.orders", consumer_group=GROUP, kafka=lake.kafka).run(stores["lake.orders"])
    assert rows("lake.orders", "a", "b", "k")[4] == captured.rows("id, a, b, k")[4][1:]
    retyped.write(5, COLUMNS, anew=True)
    captured.await_all_sent()
    mirror("lake.orders")
    assert rows("lake.orders", "a", "b", "k")[5] == captured.rows("id, a, b, k")[5][1:]
    with pytest.raises(Exception, match="type-changed"):
        mirror(delta.place)
    MirrorResnapshot(table=delta.place, consumer_group=GROUP, kafka=lake.kafka, by_signal=False, decoding=TIMES).run(
        stores[delta.place]
    )
    assert rows(delta.place, "a", "b")[5] == captured.rows("id, a, b")[5][1:]

    # Dropped and added again with the same type: rows without an event keep the old values, and the run says so.
    captured.sql.execute(f"alter table {captured.name} drop column a")
    retyped.write(6, {"b": COLUMNS["b"]}, anew=True)
    captured.await_all_sent()
    assert mirror("lake.orders").types.stale == []
    captured.sql.execute(f"alter table {captured.name} add column a int")
    retyped.write(7, {"a": COLUMNS["a"]}, anew=True)
    captured.await_all_sent()
    for table in stores:
        assert mirror(table).types.stale == ["a"]
