"""A regex that takes in Debezium's own topics, on a real Debezium: they are left out, and no event is."""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_lakestream.run.job import ExtractConfig
from airflow_lakestream.run.topics import land_run
from airflow_lakestream.spark.stream import kafka_to_iceberg
from tests.support.broker import Producing, poll_until
from tests.support.cdc import Captured, mirror_config, mirrored
from tests.support.lake import GROUP, Lake
from tests.unit.decode.test_debezium_own import OWN

pytestmark = pytest.mark.integration

COLUMNS = "id, name"


@pytest.mark.parametrize("schemas", ["false", "true"])
def test_topics_of_debeziums_own_are_left_out_and_said(
    schemas: str,
    lake: Lake,
    captured: Captured,
    produce: Producing,
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sql, name = captured.sql, captured.name
    sql.execute(f"insert into {name} (id, name) values (1, 'a')")
    captured.begin(
        **{
            "provide.transaction.metadata": "true",
            "heartbeat.interval.ms": "300",
            # A name of the user's own: nothing tells it but its records.
            "topic.heartbeat.prefix": f"{name}.alive",
            "value.converter.schemas.enable": schemas,
            "key.converter.schemas.enable": schemas,
        }
    )
    sql.execute("select pg_logical_emit_message(false, 'p', 'hello')")
    captured.await_all_sent()
    own = {f"{name}.transaction", f"{name}.message", f"{name}.alive.{name}"}
    poll_until(lambda: own <= set(captured.topics()), "Debezium's own topics", 180)

    pattern, table = f"^{name}\\..*", f"lake.{name}_public_{name}"
    config = mirror_config(lake, pattern, tmp_path, table="lake.{topic}", key=["id"])
    with caplog.at_level(logging.INFO):
        kafka_to_iceberg(config, spark)
    left_out = {record.args[0] for record in caplog.records if "is left out: it contains" in record.msg}  # type: ignore[index]
    assert left_out == own
    assert "a heartbeat of Debezium's own" in caplog.text
    assert mirrored(lake, COLUMNS, table) == captured.rows(COLUMNS)

    # Put into the table's topic by a transform of Connect, a message is no reason to stop.
    message = OWN["a message of pg_logical_emit_message"]
    whole = {"schema": {"type": "struct", "fields": []}, "payload": message} if schemas == "true" else message
    produce(captured.topic, 0, [json.dumps(whole)], keys=['{"prefix":"p"}'])
    sql.execute(f"insert into {name} (id, name) values (2, 'b')")
    captured.await_all_sent()
    kafka_to_iceberg(config, spark)
    assert mirrored(lake, COLUMNS, table) == captured.rows(COLUMNS)

    extract = ExtractConfig(topic=pattern, table="events.{topic}", consumer_group=GROUP, envelope="debezium")
    report = land_run(extract, lake.kafka, lake.catalog(), run_id=uuid.uuid4().hex)
    assert set(report.reports) == {captured.topic}
    assert report.counts.rejected == 0
    assert report.counts.skipped == 1
    assert lake.catalog().list_tables("events") == [("events", f"{name}_public_{name}")]
