"""What each operator has for OpenLineage at the end of a real Airflow run: the datasets of what it landed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from openlineage.client.serde import Serde

from tests.support.airflow_home import KAFKA_CONNECTION, AirflowHome, Connections
from tests.support.broker import TopicOf
from tests.support.cdc import change
from tests.support.lake import events
from tests.support.spark_stream import Streams

pytestmark = [pytest.mark.integration, pytest.mark.airflow]


_DAG = """
from airflow.sdk import DAG
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator

with DAG("heard", schedule=None, default_args={"retries": 0}) as dag:
    KafkaExtractOperator(task_id="fan_out", **FAN_OUT)
    KafkaMirrorOperator(task_id="mirror", **MIRROR)
    KafkaExtractOperator(task_id="sql", **SQL)
    kafka_extract_group("group", **GROUP)
"""


@pytest.fixture(autouse=True)
def _is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operators of this process keep their facts; its listener stays off."""
    for module in ("landing", "lineage"):
        monkeypatch.setattr(f"airflow_lakestream.operators.{module}.is_lineage_enabled", lambda: True)


def heard(dag: DAG) -> dict[str, Any]:
    """Return, by task, what OpenLineage's listener would be given; filled as the DAG runs."""
    given: dict[str, Any] = {}

    def ask(context: Mapping[str, Any]) -> None:
        told = context["task"].get_openlineage_facets_on_complete(context["ti"])
        given[context["ti"].task_id] = None if told is None else json.loads(Serde.to_json(told))

    for task in dag.tasks:
        # Airflow asks the callbacks of a mapped task before it is mapped.
        if not task.is_mapped:
            task.on_success_callback = [ask]
    return given


def rows(told: Mapping[str, Any]) -> dict[str, int]:
    """Return the rows by the last part of each table's name."""
    return {Path(one["name"]).name: one["outputFacets"]["outputStatistics"]["rowCount"] for one in told["outputs"]}


def test_operators_that_land_in_the_worker_tell_their_tables(
    airflow: AirflowHome, connections: Connections, topic_of: TopicOf, tmp_path: Path
) -> None:
    chosen = topic_of([b'{"kind":"click"}', b'{"kind":"view"}', b'{"kind":"click"}'])
    changes = topic_of([change("c", {"id": n}, n + 1) for n in range(4)])
    plain = topic_of(events(0, 0, 40), events(1, 0, 20))
    statement = "select id from {{ input }} where id < 10"
    place = str(tmp_path / "mirror")
    given = {
        "FAN_OUT": {"topic": chosen, "table": "lake.{kind}", "new_tables": "create"},
        "MIRROR": {"topic": changes, "table": place, "table_format": "delta", "key": ["id"]},
        "SQL": {"topic": plain, "table": "lake.few", "consumer_group": "few", "sql": statement}
        | {"sql_input": "decoded", "schema": "id bigint"},
        "GROUP": {"topic": plain, "table": "lake.group", "consumer_group": "group", "tasks": 2},
    }
    text = "".join(f"{name} = {arguments!r}\n" for name, arguments in given.items()) + _DAG
    dag = airflow.dag(airflow.write("heard", text))
    told = heard(dag)
    run = airflow.run(dag)
    assert (run.state, run.errors) == ("success", [])

    assert rows(told["fan_out"]) == {"click": 2, "view": 1}
    assert all(one["facets"]["schema"]["fields"] for one in told["fan_out"]["outputs"])
    [mirror] = told["mirror"]["outputs"]
    assert (mirror["namespace"], mirror["name"]) == ("file", place)
    assert (mirror["facets"]["storage"]["storageLayer"], rows(told["mirror"])) == ("delta", {"mirror": 4})
    assert mirror["outputFacets"]["outputStatistics"]["size"] > 0
    assert "catalog" not in mirror["facets"]
    assert told["sql"]["job_facets"]["sql"]["query"] == statement
    [few] = told["sql"]["outputs"]
    [part] = few["facets"]["columnLineage"]["fields"]["id"]["inputFields"]
    assert (part["name"], part["field"]) == (plain, "id")
    assert rows(told["sql"]) == {"few": run.task("sql").xcom["rows"]}
    assert rows(told["group.commit"]) == {"group": 60}
    assert [one["name"] for one in told["group.commit"]["inputs"]] == [plain]
    assert told["group.plan"] is None


def test_a_deferred_stream_is_told_by_its_task_when_it_is_resumed(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extra = {"bootstrap.servers": "b2:9092,b1:9092"}
    monkeypatch.setenv(KAFKA_CONNECTION, json.dumps({"conn_type": "kafka", "extra": extra}))
    heard_in = tmp_path / "heard.jsonl"
    more = f"""
def ask(context):
    from openlineage.client.serde import Serde
    told = context["task"].get_openlineage_facets_on_complete(context["ti"])
    with open({str(heard_in)!r}, "a") as file:
        file.write(Serde.to_json(told) + "\\n")

dag.get_task("stream").on_success_callback = [ask]
"""
    config = {"batches": 3, "consumer_group": "g"}
    run = streams.run("heard_deferred", config, more=more, deferrable=True, kafka_conn_id="kafka_default")
    assert (run.state, run.errors) == ("success", [])
    [told] = map(json.loads, heard_in.read_text().splitlines())
    [topic], [table] = told["inputs"], told["outputs"]
    assert (topic["namespace"], topic["name"]) == ("kafka://b1:9092", "t")
    assert topic["inputFacets"]["lakestream_offsets"]["ranges"] == [[0, 0, 30]]
    assert run.task("stream").xcom["topics"] == {"t": {"ranges": [[0, 0, 30]]}}
    assert rows(told) == {"lake.t": 27}
    assert table["outputFacets"]["lakestream_snapshots"]["snapshots"] == ["1", "2", "3"]
    # Nothing of the run is left beside the lease for another one to find.
    assert not list(Path(f"{streams.location}.lakestream").glob("told-*"))
