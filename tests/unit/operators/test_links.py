"""Links on a task's page: those that lead somewhere, for plain and mapped tasks, and none pushed twice."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_lakestream.links import push_pages
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator

TOPIC_URL, TABLE_URL = "http://ui/topics/{topic}", "http://ui/tables?name={table}"


def links_of(dag: DAG) -> dict[str, str]:
    """Return the links of the DAG's only task, as Airflow's API server knows them."""
    [task] = DagSerialization.from_dict(DagSerialization.to_dict(dag)).tasks
    return {name: task.operator_extra_link_dict[name].xcom_key for name in task.extra_links}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, []),
        ({"topic_url": TOPIC_URL}, ["Topic"]),
        ({"topic_url": TOPIC_URL, "table_url": TABLE_URL}, ["Table", "Topic"]),
    ],
)
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("operator", [KafkaExtractOperator, KafkaMirrorOperator])
def test_an_extract_and_a_mirror_link_the_pages_that_are_given(
    operator: Any, given: dict[str, str], names: list[str], mapped: bool
) -> None:
    with DAG("d", schedule=None) as dag:
        if mapped:
            operator.partial(task_id="land", table="lake.t", **given).expand(topic=["a", "b"])
        else:
            operator(task_id="land", table="lake.t", topic="a", **given)
    assert sorted(links_of(dag)) == names


def test_a_stream_links_its_driver_and_the_pages_that_are_given() -> None:
    config = {"topic": "t", "table": "lake.t"}
    with DAG("d", schedule=None) as dag:
        SparkStreamingSubmitOperator(task_id="s", app="kafka_to_iceberg", app_config=config, table_url=TABLE_URL)
    assert sorted(links_of(dag)) == ["Driver log", "Spark UI", "Table"]


class Pushed(dict[str, Any]):
    def xcom_push(self, key: str, value: Any) -> None:
        self[key] = value


def test_the_pages_have_the_names_in_their_addresses() -> None:
    pushed = Pushed()
    push_pages(pushed, {"topic": "a b", "table": "lake.t"}, TOPIC_URL, TABLE_URL)
    assert pushed == {"_link_TopicLink": "http://ui/topics/a%20b", "_link_TableLink": "http://ui/tables?name=lake.t"}
    push_pages(pushed := Pushed(), {"topic": "a"}, None, TABLE_URL)
    assert pushed == {}


def test_a_task_that_has_run_has_no_link_left_to_be_pushed_empty() -> None:
    task = KafkaExtractOperator(task_id="land", table="lake.t", topic="a", topic_url=TOPIC_URL)
    assert [link.name for link in task.operator_extra_links] == ["Topic"]
    task._link({"ti": Pushed()})
    assert task.operator_extra_links == ()
