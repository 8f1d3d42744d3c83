"""What OpenLineage is told by tasks below Airflow's own supervisor: each landing once, as the ledger has it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.core.landing.report import triples
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.driver.lease import request_stop
from airflow_lakestream.driver.progress import KEPT
from airflow_lakestream.iceberg.ledger_store import read_ledger
from airflow_lakestream.lineage.facts import kafka_namespace
from dev.services.kafka import Kafka
from tests.support.airflow_home import KAFKA_CONNECTION, AirflowHome, Connections, Run
from tests.support.broker import Producing, Topics, poll_until
from tests.support.lake import TABLE, events
from tests.support.openlineage import Event, Told
from tests.support.spark_stream import PATIENCE, Streams

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

_DAG = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

def lost_after_the_landing(context, result):
    if context["ti"].try_number == 1:
        raise RuntimeError("lost after the landing")

with DAG({dag_id!r}, schedule=None) as dag:
    KafkaExtractOperator(
        task_id="land", consumer_group="g", retries=1, retry_delay=timedelta(0),
        post_execute=lost_after_the_landing,
        **{arguments!r},
    )
"""


def run_a_try(airflow: AirflowHome, run: Run, file: Path) -> str:
    with airflow.process(run, file) as process:
        process.wait(200)
        return process.log


def snapshots(connections: Connections, table: str = TABLE) -> list[Any]:
    return list(connections.catalog.load_table(table).snapshots())


def added(snapshots: list[Any], what: str) -> int:
    return sum(int(one.summary.additional_properties.get(what, 0)) for one in snapshots)


def held(connections: Connections) -> RangeSet:
    [entry] = read_ledger(connections.catalog.load_table(TABLE), "g").topics.values()
    return entry.held


def only(event: Event, side: str) -> Any:
    [dataset] = event[side]
    return dataset


def ranges(event: Event) -> list[list[int]]:
    return only(event, "inputs")["inputFacets"]["lakestream_offsets"]["ranges"]


def rows(event: Event) -> int:
    return only(event, "outputs")["outputFacets"]["outputStatistics"]["rowCount"]


def snapshots_told(event: Event) -> list[str]:
    return list(only(event, "outputs")["outputFacets"]["lakestream_snapshots"]["snapshots"])


def test_a_try_that_fails_after_its_commits_tells_them_as_the_ledger_has_them_and_the_retry_does_not_tell_them_again(
    airflow: AirflowHome,
    connections: Connections,
    lineage_told: Told,
    kafka: Kafka,
    topic: Topics,
    produce: Producing,
) -> None:
    name, dag_id = topic(2), "told_landing"
    produce(name, 0, [*events(0, 0, 20), "not JSON"])
    produce(name, 1, events(1, 0, 5))
    arguments = {"topic": name, "table": TABLE, "max_batch_bytes": 400, "on_error": "reject"}
    file = airflow.write(dag_id, _DAG.format(dag_id=dag_id, arguments=arguments))
    run = airflow.start(airflow.dag(file))
    log = run_a_try(airflow, run, file)
    first = snapshots(connections)
    event = lineage_told.end(dag_id)
    assert event["eventType"] == "FAIL", log
    read, table = only(event, "inputs"), only(event, "outputs")
    assert (read["namespace"], read["name"]) == (kafka_namespace(kafka.client_config()["bootstrap.servers"]), name)
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 26
    assert ranges(event) == [[0, 0, 21], [1, 0, 5]] == triples(held(connections))
    assert read["inputFacets"]["lakestream_offsets"]["rejected"] == 1

    lake, told = connections.catalog.load_table(TABLE), table["outputFacets"]
    assert (table["namespace"], table["name"]) == ("file", lake.location().removeprefix("file://"))
    assert [one["name"] for one in table["facets"]["schema"]["fields"]] == [one.name for one in lake.schema().fields]
    [symlink] = table["facets"]["symlinks"]["identifiers"]
    assert (symlink["name"], symlink["type"]) == (TABLE, "TABLE")
    assert table["facets"]["catalog"]["name"] == "iceberg_default"
    assert snapshots_told(event) == [str(one.snapshot_id) for one in first]
    assert len(first) > 1
    assert table["facets"]["version"]["datasetVersion"] == snapshots_told(event)[-1]
    assert rows(event) == added(first, "added-records") == 25
    assert told["outputStatistics"]["size"] == added(first, "added-files-size") > 0
    assert told["outputStatistics"]["fileCount"] == added(first, "added-data-files")
    landing = event["run"]["facets"]["lakestream_landing"]
    assert (landing["consumerGroup"], landing["recovered"], len(landing["landings"])) == ("g", [], len(first))

    produce(name, 1, events(1, 5, 3))
    log = run_a_try(airflow, run, file)
    assert run.task().state == "success", log
    _, done = lineage_told.ends(dag_id)
    assert done["eventType"] == "COMPLETE"
    assert (rows(done), ranges(done)) == (3, [[1, 5, 8]])
    assert done["run"]["facets"]["lakestream_landing"]["recovered"] == snapshots_told(event)
    report = run.task().xcom
    assert (rows(event) + rows(done), snapshots_told(event) + snapshots_told(done)) == (
        report["rows"],
        report["snapshot_ids"],
    )
    assert report["rows"] == added(snapshots(connections), "added-records") == 28
    for side in ("inputs", "outputs"):
        assert only(done, side)["name"] == only(event, side)["name"]


def test_a_stream_that_outlives_its_worker_is_told_by_each_try_without_the_rows_of_the_one_before(
    streams: Streams, lineage_told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"bootstrap.servers": "b2:9092,b1:9092"}
    monkeypatch.setenv(KAFKA_CONNECTION, json.dumps({"conn_type": "kafka", "extra": extra}))
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__SPARK_INJECT_PARENT_JOB_INFO", "True")
    config = {"batch": 0.5, "consumer_group": "g"}
    run, file = streams.write("told_stream", config, retries=1, kafka_conn_id="kafka_default")
    with streams.airflow.process(run, file, "stream") as process:
        streams.await_batches(2)
        poll_until(lambda: "records in," in process.log, "the task to see a batch", PATIENCE)
        process.terminate()
        streams.await_end(process)
    streams.await_batches(streams.progress.batches + 2)
    with streams.airflow.process(run, file, "stream") as process:
        poll_until(lambda: "records in," in process.log, "the task to see a batch", PATIENCE)
        assert request_stop(str(streams.location), "the test")
        streams.await_end(process)
    left, done = lineage_told.ends("told_stream", "stream")
    assert (left["eventType"], done["eventType"]) == ("FAIL", "COMPLETE")
    assert only(left, "inputs")["namespace"] == "kafka://b1:9092"
    assert rows(left) > 0
    assert rows(done) > 0
    batches = streams.progress.batches
    assert rows(left) + rows(done) == 9 * batches
    border = ranges(left)[0][2]
    assert (ranges(left), ranges(done)) == ([[0, 0, border]], [[0, border, 10 * batches]])
    # Of more batches than a driver keeps, the last ones have their snapshots.
    early, late = (list(map(int, snapshots_told(event))) for event in (left, done))
    assert early == list(range(1, border // 10 + 1))[-KEPT:]
    assert late == list(range(border // 10 + 1, batches + 1))[-KEPT:]
    settings = json.loads(Path(f"{streams.location}.seen").read_text())["properties"]
    parent = dict(re.findall(r"^spark\.openlineage\.(\w+)[ =](.*)$", settings, re.MULTILINE))
    assert (parent["parentJobName"], parent["parentRunId"]) == ("told_stream.stream", left["run"]["runId"])
