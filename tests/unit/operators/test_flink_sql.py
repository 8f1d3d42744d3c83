"""FlinkSqlOperator: literals are checked where a DAG is parsed, and its connection says both addresses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.flink import FlinkHook
from airflow_lakestream.operators.flink.set_up import configured
from airflow_lakestream.operators.flink_sql import FlinkSqlOperator

GIVEN: dict[str, Any] = {
    "task_id": "stream",
    "topic": "t",
    "table": "lake.t",
    "columns": "id bigint",
    "consumer_group": "g",
    "checkpoint_location": "/shared/t/",
}


def operator(**changed: Any) -> FlinkSqlOperator:
    return FlinkSqlOperator(**(GIVEN | changed))


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("topic", "a b"),
        ("format", "csv"),
        ("format", "protobuf"),
        ("schema_registry", {"url": "http://r", "password": "secret"}),
        ("schema_registry", "ftp://r"),
        ("checkpoint_interval", "soon"),
        ("publish_interval", 0),
        ("parallelism", "none at all"),
        *[("branch", name) for name in ("main", "MAIN", " main ", "refs/heads/main", "own ")],
        ("start_offset", "somewhere"),
        ("on_data_loss", "ignore"),
        ("on_error", "ignore"),
        ("max_rejected", "many"),
        ("sql_input", "cooked"),
        ("sql", "SELECT 'http://me:secret@host' FROM source"),
        ("on_kill_action", "perhaps"),
    ],
)
def test_a_literal_that_can_not_work_fails_where_the_dag_is_parsed(argument: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        operator(**{argument: value})
    assert caught.value.argument == argument


def test_templates_are_left_to_the_run() -> None:
    made = operator(topic="{{ params.topic }}", publish_interval="{{ params.every }}")
    assert {"topic", "sql", "checkpoint_location", "publish_interval"} <= set(made.template_fields)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Give the three connections, in the environment."""
    for name, told in {
        "KAFKA_DEFAULT": {"conn_type": "kafka", "extra": {"bootstrap.servers": "b:9092"}},
        "ICEBERG_DEFAULT": {"conn_type": "iceberg", "host": "http://catalog"},
        "FLINK_DEFAULT": {
            "conn_type": "http",
            "host": "gateway",
            "port": 8083,
            "login": "me",
            "password": "secret",
            "extra": {"jobmanager_url": "http://manager:8081/"},
        },
    }.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(told))
    return monkeypatch


def test_the_connections_and_arguments_become_what_the_driver_is_told(connections: pytest.MonkeyPatch) -> None:
    told = configured(operator(publish_interval="2m", parallelism="3", partition_by="id"), "run")
    assert told.gateway == {"url": "http://gateway:8083", "login": "me", "password": "secret", "token": ""}
    assert told.manager_address.url == "http://manager:8081"
    assert (told.publish_interval, told.parallelism, told.checkpoint_location) == (120.0, 3, "/shared/t")
    assert told.inputs == {"app": "flink_sql", "topic": "t", "table": "lake.t", "group": "g"}


@pytest.mark.parametrize(
    ("argument", "value", "problem"),
    [
        ("publish_interval", "0s", "has to be above 0 seconds"),
        ("checkpoint_interval", "0", "has to be above 0 seconds"),
        ("publish_interval", "soon", "'soon' is not a number of seconds"),
        ("parallelism", "few", "'few' is not a number of subtasks above 0"),
    ],
)
def test_rendered_values_are_checked_like_literals(
    connections: pytest.MonkeyPatch, argument: str, value: str, problem: str
) -> None:
    rendered = operator(**{argument: "{{ params.value }}"})
    setattr(rendered, argument, value)
    with pytest.raises(InvalidArgument, match=f"{argument}: {problem}"):
        configured(rendered, "run")


def test_the_registry_is_that_of_its_connection_and_none_without_avro(connections: pytest.MonkeyPatch) -> None:
    door = {"conn_type": "http", "host": "https://registry", "port": 8081, "login": "me", "password": "secret"}
    connections.setenv("AIRFLOW_CONN_REGISTRY", json.dumps(door))
    told = configured(operator(format="avro", schema_registry="registry"), "run")
    config = told.registry_config
    assert (config.url, config.username, config.password) == ("https://registry:8081", "me", "secret")
    with pytest.raises(InvalidArgument, match="schema_registry: is given, and records of format='json'"):
        configured(operator(schema_registry="registry"), "run")
    with pytest.raises(InvalidArgument, match="schema_registry: is missing"):
        configured(operator(format="avro"), "run")


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        (None, "there is no connection"),
        ({"conn_type": "http", "host": "gateway"}, "jobmanager_url of connection"),
        ({"conn_type": "http", "extra": {"jobmanager_url": "http://m"}}, "host of connection"),
        (
            {"conn_type": "http", "host": "http://g", "extra": {"jobmanager_url": "http://a:b@m"}},
            "has a password in it",
        ),
    ],
)
def test_a_connection_that_can_not_work_says_how_to_make_one(
    connections: pytest.MonkeyPatch, told: dict[str, Any] | None, problem: str
) -> None:
    if told is None:
        connections.delenv("AIRFLOW_CONN_FLINK_DEFAULT")
    else:
        connections.setenv("AIRFLOW_CONN_FLINK_DEFAULT", json.dumps(told))
    with pytest.raises(InvalidArgument, match=problem):
        FlinkHook("flink_default").addresses()


def test_a_checkpoint_location_is_needed(connections: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="checkpoint_location: is missing"):
        configured(operator(checkpoint_location=None), "run")
