"""Where a task's schema registry comes from: an argument, a connection, the Kafka connection; and what is masked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import redact

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.registry import registry_of
from airflow_lakestream.operators.audit import LakestreamAuditOperator
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.registry.config import RegistryConfig

KAFKA = {"bootstrap.servers": "broker:9092"}


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch):
    """Give a maker of the hook of a Kafka connection with this in its extra."""

    def make(**extra: Any) -> KafkaHook:
        monkeypatch.setenv("AIRFLOW_CONN_BROKER", json.dumps({"conn_type": "kafka", "extra": {**KAFKA, **extra}}))
        return KafkaHook("broker")

    return make


def test_what_the_kafka_connection_says_is_taken_where_it_is_needed(kafka) -> None:
    settings = {
        "schema.registry.url": "https://registry:8081",
        "schema.registry.basic.auth.user.info": "me:a-registry-word-1",
    }
    hook = kafka(**settings)
    assert registry_of(None, hook, "avro", None) == RegistryConfig("https://registry:8081", "me", "a-registry-word-1")
    assert registry_of("None", hook, "json", "protobuf") is not None
    assert registry_of(None, hook, "json", "string") is None
    # librdkafka knows none of these, and would refuse them.
    assert hook.configuration() == KAFKA
    assert redact("somebody logs a-registry-word-1") == "somebody logs ***"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"host": "registry"}, RegistryConfig("http://registry")),
        ({"host": "registry", "port": 8081, "schema": "https"}, RegistryConfig("https://registry:8081")),
        (
            {"host": "https://registry/apis/ccompat/v7", "port": 8443},
            RegistryConfig("https://registry:8443/apis/ccompat/v7"),
        ),
        (
            {"host": "registry", "login": "me", "password": "a-registry-word-2", "extra": {"ca_file": "/ca.pem"}},
            RegistryConfig("http://registry", "me", "a-registry-word-2", ca_file="/ca.pem"),
        ),
        (
            {"host": "registry", "password": "a-registry-word-2"},
            RegistryConfig("http://registry", token="a-registry-word-2"),
        ),
        ({"extra": {"url": "https://registry:1", "timeout": 3}}, RegistryConfig("https://registry:1", timeout=3.0)),
    ],
)
def test_a_connection(fields: dict[str, Any], expected: RegistryConfig, kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_REGISTRY", json.dumps({"conn_type": "http", **fields}))
    assert registry_of("my_registry", kafka(), "avro") == expected
    if "password" in fields:
        assert redact("somebody logs a-registry-word-2") == "somebody logs ***"


def test_a_connection_that_is_none_or_can_not_work(kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match=r"'nowhere' is no URL, and there is no connection.*host"):
        registry_of("nowhere", kafka(), "avro")
    monkeypatch.setenv("AIRFLOW_CONN_MY_REGISTRY", json.dumps({"conn_type": "http", "extra": {"colour": "red"}}))
    with pytest.raises(InvalidArgument, match=r"connection 'my_registry' can't be used .*colour"):
        registry_of("my_registry", kafka(), "avro")
    with pytest.raises(InvalidArgument, match=r"the Kafka connection has schema\.registry\.uri"):
        registry_of(None, kafka(**{"schema.registry.uri": "http://registry"}), "avro")


@pytest.mark.parametrize("operator", [KafkaExtractOperator, LakestreamAuditOperator])
@pytest.mark.parametrize("value", ["http://me:word-3@registry", {"url": "http://registry", "token": "word-3"}])
def test_a_dag_with_a_secret_in_it_is_not_parsed(operator: Any, value: Any) -> None:
    arguments = {"topic": "t"} if operator is KafkaExtractOperator else {}
    with pytest.raises(InvalidArgument, match="Airflow connection") as caught:
        operator(task_id="t", table="lake.t", schema_registry=value, **arguments)
    assert "word-3" not in str(caught.value)
