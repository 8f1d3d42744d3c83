"""What OpenLineage is told by tasks below Airflow's own supervisor: each landing once, as the ledger has it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_lakestream.lineage.names import kafka_namespace
from dev.services.kafka import Kafka
from tests.support.airflow_home import AirflowHome, Connections, Run
from tests.support.broker import Producing, TopicOf, Topics
from tests.support.lake import TABLE, events
from tests.support.openlineage import Event, Told

pytestmark = [pytest.mark.integration, pytest.mark.airflow]

_DAG = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator

def lost_after_the_landing(context, result):
    if context["ti"].try_number == 1:
        raise RuntimeError("lost after the landing")

hooks = {{"post_execute": lost_after_the_landing}} if {lost!r} else {{}}

with DAG({dag_id!r}, schedule=None) as dag:
    KafkaExtractOperator(task_id="land", consumer_group="g", retry_delay=timedelta(0), **hooks, **{arguments!r})
"""


def write(airflow: AirflowHome, dag_id: str, *, lost: bool = False, **arguments: Any) -> Any:
    given = {"table": TABLE, **arguments}
    return airflow.write(dag_id, _DAG.format(dag_id=dag_id, lost=lost, arguments=given))


def run_a_try(airflow: AirflowHome, run: Run, file: Any) -> str:
    with airflow.process(run, file) as process:
        process.wait(200)
        return process.log


def snapshots(connections: Connections, table: str = TABLE) -> list[Any]:
    return list(connections.catalog.load_table(table).snapshots())


def added(snapshots: list[Any], what: str) -> int:
    return sum(int(one.summary.additional_properties.get(what, 0)) for one in snapshots)


def only(event: Event, side: str) -> Any:
    [dataset] = event[side]
    return dataset


def ranges(event: Event) -> list[list[int]]:
    return only(event, "inputs")["inputFacets"]["lakestream_offsets"]["ranges"]


def rows(event: Event) -> int:
    return only(event, "outputs")["outputFacets"]["outputStatistics"]["rowCount"]


def test_a_landing_is_told_as_the_ledger_has_it_and_a_run_without_new_records_names_both_sides(
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
    file = write(airflow, dag_id, topic=name, max_batch_bytes=400, on_error="reject")
    run = airflow.start(airflow.dag(file))
    log = run_a_try(airflow, run, file)
    assert run.task().state == "success", log
    event, report = lineage_told.end(dag_id), run.task().xcom
    read, table = only(event, "inputs"), only(event, "outputs")
    assert (read["namespace"], read["name"]) == (kafka_namespace(kafka.client_config()["bootstrap.servers"]), name)
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == report["read"] == 26
    assert ranges(event) == report["ranges"] == [[0, 0, 21], [1, 0, 5]]
    assert read["inputFacets"]["lakestream_offsets"]["rejected"] == report["rejected"] == 1

    lake = connections.catalog.load_table(TABLE)
    assert (table["namespace"], table["name"]) == ("file", lake.location().removeprefix("file://"))
    assert [one["name"] for one in table["facets"]["schema"]["fields"]] == [one.name for one in lake.schema().fields]
    symlink, told = table["facets"]["symlinks"]["identifiers"][0], table["outputFacets"]
    assert (symlink["name"], symlink["type"]) == (TABLE, "TABLE")
    assert table["facets"]["catalog"]["name"] == "iceberg_default"
    assert table["facets"]["version"]["datasetVersion"] == report["snapshot_id"]
    ids = told["lakestream_snapshots"]["snapshots"]
    assert ids == report["snapshot_ids"] == [str(one.snapshot_id) for one in lake.snapshots()]
    assert len(ids) > 1
    assert rows(event) == report["rows"] == 25 == added(snapshots(connections), "added-records")
    assert told["outputStatistics"]["size"] == added(snapshots(connections), "added-files-size") > 0
    assert told["outputStatistics"]["fileCount"] == added(snapshots(connections), "added-data-files")
    landing = event["run"]["facets"]["lakestream_landing"]
    assert (landing["consumerGroup"], landing["recovered"], len(landing["landings"])) == ("g", [], len(ids))

    run = airflow.start(airflow.dag(file))
    log = run_a_try(airflow, run, file)
    assert run.task().state == "success", log
    _, idle = lineage_told.ends(dag_id)
    assert (rows(idle), ranges(idle)) == (0, [])
    for side in ("inputs", "outputs"):
        assert only(idle, side)["name"] == only(event, side)["name"]


def test_a_try_that_fails_after_its_commits_tells_them_and_the_retry_does_not_tell_them_again(
    airflow: AirflowHome, connections: Connections, lineage_told: Told, topic_of: TopicOf, produce: Producing
) -> None:
    name, dag_id = topic_of(events(0, 0, 10)), "told_retry"
    file = write(airflow, dag_id, topic=name, lost=True, retries=1)
    run = airflow.start(airflow.dag(file))
    run_a_try(airflow, run, file)
    first = [str(one.snapshot_id) for one in snapshots(connections)]
    produce(name, 0, events(0, 10, 3))
    log = run_a_try(airflow, run, file)
    assert run.task().state == "success", log
    failed, done = lineage_told.ends(dag_id)
    assert (failed["eventType"], done["eventType"]) == ("FAIL", "COMPLETE")
    assert (rows(failed), ranges(failed)) == (10, [[0, 0, 10]])
    assert only(failed, "outputs")["facets"]["version"]["datasetVersion"] == first[-1]
    assert (rows(done), ranges(done)) == (3, [[0, 10, 13]])
    assert done["run"]["facets"]["lakestream_landing"]["recovered"] == first
    assert only(failed, "outputs")["name"] == only(done, "outputs")["name"]
    assert rows(failed) + rows(done) == added(snapshots(connections), "added-records") == 13
