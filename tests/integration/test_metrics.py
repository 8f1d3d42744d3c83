"""What a real StatsD server gets from tasks that run below Airflow's own supervisor."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.airflow_home import CHECKOUT, AirflowHome, Connections, Run
from tests.support.broker import Producing, TopicOf, Topics, poll_until
from tests.support.lake import TABLE, Lake, events
from tests.support.sensing import PATIENCE, TASK, Sensing
from tests.support.spark_stream import Streams
from tests.support.statsd import StatsD

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

PAGE = CHECKOUT / "docs" / "metrics.md"
RISK = ("retention_risk", "RetentionRiskSensor")
FRESHNESS = ("iceberg_snapshot_freshness", "IcebergSnapshotFreshnessSensor")
_EXTRACT = """
from airflow.sdk import DAG
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

with DAG({dag_id!r}, schedule=None) as dag:
    KafkaExtractOperator(task_id="land", topic={topic!r}, table={table!r}, consumer_group="g", max_batch_bytes=200)
"""


def documented() -> set[str]:
    return set(re.findall(r"^\| `lakestream\.([a-z_]+)`", PAGE.read_text(), re.MULTILINE))


def test_each_commit_of_a_landing_is_measured(
    airflow: AirflowHome, connections: Connections, statsd: StatsD, topic: Topics, produce: Producing
) -> None:
    name, dag_id = topic(1), "measured_landing"
    produce(name, 0, [*events(0, 0, 20), "not JSON"])
    file = airflow.write(dag_id, _EXTRACT.format(dag_id=dag_id, topic=name, table=TABLE))
    run = airflow.start(airflow.dag(file))
    with airflow.process(run, file) as process:
        process.wait(200)
        assert run.task().state == "success", process.log
    tags = {"dag_id": dag_id, "task_id": "land", "engine": "extract"}
    tags |= {"topic": name, "table": TABLE, "consumer_group": "g"}
    statsd.wait("lag", **tags)
    assert (statsd.sum("rows", **tags), statsd.sum("rejected", **tags)) == (20, 1)
    snapshots = connections.catalog.load_table(TABLE).snapshots()
    assert statsd.sum("landings", **tags) == len(snapshots) == len(statsd.named("commit", **tags))
    written = [int(one.summary.additional_properties.get("added-files-size", 0)) for one in snapshots]
    assert statsd.sum("bytes", **tags) == sum(written) > 0
    assert all(one.kind == "ms" and one.value > 0 for one in statsd.named("commit"))
    assert (statsd.last("lag", **tags), statsd.named("lag")[0].kind) == (0, "g")
    assert statsd.names <= documented()


def test_a_sensor_tells_how_fresh_the_table_is(
    sensing: Sensing, lake: Lake, connections: Connections, statsd: StatsD, topic_of: TopicOf
) -> None:
    name = topic_of(events(0, 0, 3))
    lake.land(name)
    run, file = sensing.write("measured_freshness", FRESHNESS, table=TABLE, consumer_group="g", max_age="1h")
    sensing.work(run, file)
    assert sensing.state(run) == "success"
    told = statsd.wait("freshness", dag_id="measured_freshness", task_id=TASK, table=TABLE, consumer_group="g")
    assert (told.kind, 0 <= told.value < 3600) == ("g", True)
    assert statsd.names <= documented()


@pytest.mark.usefixtures("connections")
def test_a_lag_sensor_tells_the_lag(
    sensing: Sensing, lake: Lake, statsd: StatsD, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 3))
    lake.land(name)
    produce(name, 0, events(0, 3, 4))
    run, file = sensing.write("measured_lag", table=TABLE, consumer_group="g", max_lag_records=10)
    sensing.work(run, file)
    assert sensing.state(run) == "success"
    assert statsd.wait("lag", dag_id="measured_lag", table=TABLE).value == 4
    assert statsd.wait("lag_seconds", dag_id="measured_lag").value > 0


def test_a_stream_on_spark_tells_its_batches_and_restarts(streams: Streams, statsd: StatsD) -> None:
    config = {"batches": 4, "ends": ["fail", "done"], "topic": "t", "table": "lake.t"}
    run, file = streams.write("measured_stream", config, max_restarts=2)
    with streams.airflow.process(run, file, "stream") as process:
        streams.await_end(process)
        assert run.task("stream").state == "success", process.log
    tags = {"dag_id": "measured_stream", "task_id": "stream", "engine": "spark"}
    statsd.wait("restarts", **tags)
    assert statsd.sum("restarts", **tags) == 1
    batches = streams.progress.batches
    assert (statsd.sum("rows", **tags), statsd.sum("rejected", **tags)) == (9 * batches, batches)
    assert len(statsd.named("batch", **tags)) == batches
    assert (statsd.last("lag", **tags), statsd.last("processing_rate", **tags)) == (7, 20)
    assert statsd.names <= documented()


def test_deferred_sensors_tell_from_the_triggerer_what_they_see_there(
    sensing: Sensing, lake: Lake, connections: Connections, statsd: StatsD, topic_of: TopicOf, produce: Producing
) -> None:
    name = topic_of(events(0, 0, 3))
    lake.land(name)
    produce(name, 0, events(0, 3, 4))
    stream = {"table": TABLE, "consumer_group": "g"}
    waiting = {
        "lag": sensing.write("deferred_lag", **stream, deferrable=True),
        "freshness": sensing.write("deferred_freshness", FRESHNESS, **stream, max_age="1ms", deferrable=True),
        "time_left": sensing.write("deferred_risk", RISK, **stream, watch_for="100s", deferrable=True),
    }
    for run, file in waiting.values():
        sensing.schedule(run)
        sensing.work(run, file)
        assert sensing.state(run) == "deferred"
    told = {gauge: len(statsd.named(gauge)) for gauge in waiting}
    # What the worker's looks can't have seen.
    produce(name, 0, events(0, 7, 5))
    sensing.triggerer.start()

    def seen_there(gauge: str, run: Run) -> bool:
        return len(statsd.named(gauge, dag_id=run.dag_id, task_id=TASK, **stream)) > told[gauge]

    for gauge, (run, _) in waiting.items():
        poll_until(partial(seen_there, gauge, run), f"{gauge} from the triggerer", PATIENCE)
    assert statsd.last("lag", dag_id="deferred_lag") == 9
    freshness = [one.value for one in statsd.named("freshness", dag_id="deferred_freshness")]
    assert freshness[-1] > freshness[0]
    assert (statsd.last("time_left", dag_id="deferred_risk") or 0) > 6 * 86_400
    assert statsd.names <= documented()
    lake.land(name)
    run, _ = waiting["lag"]
    sensing.await_state(run, "scheduled")
    assert statsd.last("lag", dag_id="deferred_lag") == 0


def test_a_deferred_stream_tells_its_batches_from_the_triggerer(
    streams: Streams, sensing: Sensing, statsd: StatsD
) -> None:
    config = {"batches": 20, "topic": "t", "table": "lake.t"}
    run, file = streams.write("measured_deferred_stream", config, deferrable=True)
    with streams.airflow.process(run, file, "stream") as process:
        streams.await_end(process)
        assert run.task("stream").state == "deferred", process.log
    sensing.triggerer.start()
    poll_until(lambda: run.task("stream").state == "scheduled", "the stream to end", PATIENCE, every=0.2)
    # Before a worker looks again.
    tags = {"dag_id": "measured_deferred_stream", "task_id": "stream", "engine": "spark"}
    poll_until(lambda: statsd.sum("rows", **tags) == 9 * 20, "the rows of all batches", 180)
    assert len(statsd.named("batch", **tags)) == 20
    assert statsd.last("lag", **tags) == 7
    assert statsd.names <= documented()


def test_an_alert_is_counted_and_told_by_airflows_own_callback(
    airflow: AirflowHome, sensing: Sensing, connections: Connections, statsd: StatsD
) -> None:
    text = """
from airflow.sdk import DAG
from airflow_lakestream.alerts import tell
from airflow_lakestream.sensors.iceberg_snapshot_freshness import IcebergSnapshotFreshnessSensor

with DAG("measured_alert", schedule=None, default_args={"on_failure_callback": tell}) as dag:
    IcebergSnapshotFreshnessSensor(task_id="sense", table="lake.none", max_age="1h")
"""
    file: Path = airflow.write("measured_alert", text)
    run = airflow.start(airflow.dag(file))
    log: Any = sensing.work(run, file)
    assert sensing.state(run) == "failed"
    assert "ALERT measured_alert.sense, lake.none: " in log
    assert statsd.wait("alerts", dag_id="measured_alert", kind="failure", table="lake.none").value == 1
