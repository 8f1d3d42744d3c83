"""A DAG with native rendering whose texts look like numbers, on a real broker: they land as what they are."""

from __future__ import annotations

import uuid

from airflow.sdk import DAG

from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.sensors.checkpoint_lag import CheckpointLagSensor
from tests.support.airflow_home import AirflowHome, Connections
from tests.support.broker import Producing


def test_topic_group_delimiter_and_properties_of_digits(
    airflow: AirflowHome, connections: Connections, topic, produce: Producing
) -> None:
    name = topic(1, name=str(uuid.uuid4().int)[:18])
    produce(name, 0, [b"71a", b"81b"])
    told = {"topic": "{{ params.topic }}", "consumer_group": "1_000"}
    with DAG("native_texts", schedule=None, params={"topic": ""}, render_template_as_native_obj=True) as dag:
        land = KafkaExtractOperator(
            task_id="land",
            table="lake.t",
            format="csv",
            csv_delimiter="1",
            schema="n int, s string",
            table_properties={"comment": "1_000"},
            **told,
        )
        looks = CheckpointLagSensor(task_id="looks", table="lake.t", fail_when_behind=True, **told)
        land >> looks
    run = airflow.run(dag, {"topic": name})
    assert (run.state, run.errors) == ("success", [])
    table = connections.catalog.load_table("lake.t")
    assert table.properties["comment"] == "1_000"
    rows = table.scan().to_arrow()
    assert (rows["n"].to_pylist(), rows["s"].to_pylist()) == ([7, 8], ["a", "b"])
    assert run.task("land").xcom["consumer_group"] == "1_000"
    assert run.task("land").rendered["topic"] == name
