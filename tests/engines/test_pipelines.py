"""A pipeline whose engine is changed while records come, Spark and Flink among them: each record is landed once."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from airflow_lakestream.driver.lease import request_stop
from dev.services.registry import Registry
from tests.support.airflow_home import AirflowHome
from tests.support.avro_records import record, written
from tests.support.broker import Producing, Topics, poll_until
from tests.support.flink import COLUMNS, PATIENCE, FlinkLanding
from tests.support.lake import GROUP, TABLE, events
from tests.support.pipelines import Pipelines, pipelines, switch_engines

__all__ = ["pipelines"]

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

# Ranges of the ledger, by partition.
Landed = dict[int, list[tuple[int, int]]]

# Flink reads records by its own decoder, so there is no SQL in it.
PLAIN = """\
metadata: {{name: plain}}
sources: {{events: {{type: kafka, topic: {topic}, consumer_group: {group}}}}}
sinks: {{lake: {{type: iceberg, table: {table}, schema: "{columns}"}}}}
orchestration:
  engine: {engine}
  schedule: never
  checkpoint_interval: 1s
  flink: {{checkpoint_location: {location}}}
"""
AVRO = PLAIN.replace("{group}}}", "{group}, format: avro, schema_registry: registry}}")
ORDER = record(
    "shop.Order",
    id="long",
    kind={"type": "enum", "name": "Kind", "symbols": ["NEW", "PAID"]},
    amount=["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}],
    at={"type": "long", "logicalType": "timestamp-millis"},
)
ORDERED = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_engine_is_changed_five_times(pipelines: Pipelines, topic: Topics, produce: Producing) -> None:
    switch_engines(pipelines, produce, topic(2), ["extract", "spark", "group", "spark", "extract", "group"])


def told_of(landing: FlinkLanding) -> dict[str, str]:
    """Return what the landing's pipeline says."""
    return {"topic": landing.topic, "group": GROUP, "table": TABLE, "location": landing.location}


def run(pipelines: Pipelines, airflow: AirflowHome, landing: FlinkLanding, engine: str, wanted: Landed) -> None:
    """Run the pipeline `plain`, as its file is now; Flink until it has landed what is wanted."""
    if engine != "flink":
        done = pipelines.run("plain")
        assert (done.state, done.errors) == ("success", [])
        assert landing.lake.landed(landing.topic) == wanted
        return
    started = airflow.start(pipelines.bag().dags["plain"])
    with airflow.process(started, pipelines.file, "land") as process:
        try:
            poll_until(
                lambda: bool(landing.lake.snapshots()) and landing.lake.landed(landing.topic) == wanted,
                "Flink to land",
                PATIENCE,
                every=0.3,
            )
        except TimeoutError as e:
            raise AssertionError(process.log) from e
        assert request_stop(landing.location, "the test")
        process.wait(PATIENCE)
    assert started.task("land").state == "success", process.log


def test_flink_goes_on_after_the_extract_and_the_extract_after_flink(
    pipelines: Pipelines, landing: FlinkLanding, airflow: AirflowHome, produce: Producing, flink_connected: None
) -> None:
    for turn, engine in enumerate(["extract", "flink", "extract"], 1):
        for partition in (0, 1):
            produce(landing.topic, partition, events(partition, 100 * turn - 100, 100))
        (pipelines.folder / "plain.yaml").write_text(PLAIN.format(engine=engine, columns=COLUMNS, **told_of(landing)))
        run(pipelines, airflow, landing, engine, {partition: [(0, 100 * turn)] for partition in (0, 1)})
    landing.assert_once({0: [*range(300)], 1: [*range(300)]})


def test_avro_is_landed_by_flink_and_then_by_the_extract(
    pipelines: Pipelines,
    landing: FlinkLanding,
    airflow: AirflowHome,
    produce: Producing,
    registry: Registry,
    flink_connected: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", json.dumps({"conn_type": "http", "host": registry.url}))
    schema_id = registry.register(f"{landing.topic}-value", json.dumps(ORDER))
    columns = "id bigint, kind string, amount decimal(9, 2), at timestamp"

    def order(n: int) -> bytes:
        amount = None if n % 5 == 0 else n.to_bytes(4, "big")
        at = int(ORDERED.timestamp() * 1000) + n
        return written(ORDER, schema_id, {"id": n, "kind": ("NEW", "PAID")[n % 2], "amount": amount, "at": at})

    for turn, engine in enumerate(["flink", "extract"], 1):
        produce(landing.topic, 0, [order(n) for n in range(100 * turn - 100, 100 * turn)])
        (pipelines.folder / "plain.yaml").write_text(AVRO.format(engine=engine, columns=columns, **told_of(landing)))
        run(pipelines, airflow, landing, engine, {0: [(0, 100 * turn)]})
    landing.assert_once({0: [*range(200)]})
    assert [tuple(row[name] for name in ("id", "kind", "amount", "at")) for row in landing.lake.records()] == [
        (
            n,
            ("NEW", "PAID")[n % 2],
            None if n % 5 == 0 else Decimal(n).scaleb(-2),
            ORDERED + timedelta(milliseconds=n),
        )
        for n in range(200)
    ]
