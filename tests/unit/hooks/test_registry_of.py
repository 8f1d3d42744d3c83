"""Where a task's schema registry comes from: an argument, a connection, the Kafka connection; and what is masked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, redact

from airflow_lakestream.core.secrecy import MASKED
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.registry import registry_of
from airflow_lakestream.operators.audit import LakestreamAuditOperator
from airflow_lakestream.operators.kafka_extract import KafkaExtractOperator
from airflow_lakestream.operators.kafka_extract_group import kafka_extract_group
from airflow_lakestream.operators.kafka_mirror import KafkaMirrorOperator
from airflow_lakestream.operators.replay import LakestreamReplayOperator
from airflow_lakestream.operators.spark_streaming_submit import SparkStreamingSubmitOperator
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
        ({"host": "::1", "port": 8081}, RegistryConfig("http://[::1]:8081")),
        ({"host": "::1"}, RegistryConfig("http://[::1]")),
        ({"host": "https://[fd00::1]/apis", "port": 8443}, RegistryConfig("https://[fd00::1]:8443/apis")),
        ({"host": "[::1]:8081", "port": 8443}, RegistryConfig("http://[::1]:8081")),
        ({"extra": {"url": "https://registry:1", "timeout": 3}}, RegistryConfig("https://registry:1", timeout=3.0)),
    ],
)
def test_a_connection(fields: dict[str, Any], expected: RegistryConfig, kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_REGISTRY", json.dumps({"conn_type": "http", **fields}))
    assert registry_of("my_registry", kafka(), "avro") == expected
    if "password" in fields:
        assert redact("somebody logs a-registry-word-2") == "somebody logs ***"


def test_a_connection_that_is_none_or_can_not_work(kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match=r"there is no connection 'nowhere'.*host.*or write a URL"):
        registry_of("nowhere", kafka(), "avro")
    monkeypatch.setenv("AIRFLOW_CONN_MY_REGISTRY", json.dumps({"conn_type": "http", "extra": {"colour": "red"}}))
    with pytest.raises(InvalidArgument, match=r"connection 'my_registry' can't be used .*colour"):
        registry_of("my_registry", kafka(), "avro")
    with pytest.raises(InvalidArgument, match=r"the Kafka connection has schema\.registry\.uri"):
        registry_of(None, kafka(**{"schema.registry.uri": "http://registry"}), "avro")


OPERATORS: dict[str, Callable[..., Any]] = {
    "extract": lambda **given: KafkaExtractOperator(task_id="t", topic="t", table="lake.t", **given),
    "mirror": lambda **given: KafkaMirrorOperator(task_id="t", topic="t", table="lake.t", **given),
    "audit": lambda **given: LakestreamAuditOperator(task_id="t", table="lake.t", **given),
    "replay": lambda **given: LakestreamReplayOperator(task_id="t", table="lake.t", **given),
    "group": lambda **given: kafka_extract_group("g", topic="t", table="lake.t", tasks=2, **given),
    "spark": lambda **given: SparkStreamingSubmitOperator(task_id="t", app="kafka_to_iceberg", app_config=given),
    "spark of delta": lambda **given: SparkStreamingSubmitOperator(task_id="t", app="kafka_to_delta", app_config=given),
}
IN_A_REGISTRY = [
    "http://me:word-3@registry",
    {"url": "http://registry", "token": "word-3"},
    {"url": "http://registry?apikey=word-3"},
    {"url": "http://registry", "headers.Authorization": "Bearer word-3"},
]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("value", IN_A_REGISTRY, ids=str)
def test_a_dag_with_a_secret_in_it_is_not_parsed(operator: str, value: Any) -> None:
    with DAG("d", schedule=None), pytest.raises(InvalidArgument, match="Airflow connection") as caught:
        OPERATORS[operator](schema_registry=value)
    assert "word-3" not in str(caught.value)


@pytest.mark.parametrize("operator", ["extract", "group", "spark", "spark of delta"])
def test_a_table_is_not_made_with_a_secret_in_its_properties(operator: str) -> None:
    properties = {"write.format.default": "parquet", "s3.secret-access-key": "word-3"}
    with DAG("d", schedule=None), pytest.raises(InvalidArgument, match=r"s3\.secret-access-key.*shown") as caught:
        OPERATORS[operator](table_properties=properties)
    assert "word-3" not in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"conf": {"spark.sql.catalog.c.credential": "id:word-3"}},
        {"conf": {"spark.hadoop.fs.azure.account.key.a.dfs.core.windows.net": "word-3"}},
        {"conf": {"spark.driver.extraJavaOptions": "-Xmx1g -Djavax.net.ssl.keyStorePassword=word-3"}},
        {"env_vars": {"UPSTREAM": "https://me:word-3@host"}},
        {"env_vars": {"STORE": "jdbc:postgresql://h/db?user=me&password=word-3"}},
        {"conf": {"spark.remote": "sc://s:1/;token=word-3"}},
        {"repositories": "https://me:word-3@nexus/maven"},
        {"checkpoint_location": "s3a://key:word-3@bucket/c"},
        {"app_config": {"source": {"url": "http://h", "api-key": "word-3"}}},
        {"app_config": {"sinks": [{"password": "{{ conn.x.password }} word-3"}]}},
    ],
    ids=str,
)
def test_spark_is_told_no_secret_that_would_be_shown(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"^{next(iter(given))}: .*shown.*connection") as caught:
        SparkStreamingSubmitOperator(task_id="t", application="/app.py", **given)
    assert "word-3" not in str(caught.value)


def test_what_is_left_to_airflow_to_mask_is_masked_by_it() -> None:
    for word in MASKED.pattern.replace("_?", "_").split("|"):
        for name in (word, f"spark.my.{word}", f"MY_{word.upper()}_2"):
            assert MASKED.search(name)
            assert redact({name: "word-3"}) == {name: "***"}


def test_spark_is_told_what_airflow_masks_and_what_is_no_secret() -> None:
    SparkStreamingSubmitOperator(
        task_id="t",
        application="/app.py",
        conf={
            "spark.hadoop.fs.s3a.secret.key": "masked by its name",
            "spark.sql.catalog.c.credential": "{{ conn.lake.password }}",
            "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
            "spark.kubernetes.driver.secretKeyRef.DB_PASSWORD": "name:key",
            "spark.security.credentials.hive.enabled": "false",
            "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
        },
        env_vars={"STORE_PASSWORD": "masked", "GOOGLE_APPLICATION_CREDENTIALS": "/key.json", "PWD": "/x"},
        app_config={
            "sql": "SELECT 1 AS token FROM {{ input }} WHERE password='x'",
            "token_column": "t",
            "at": "http://h:1/p?x=1",
        },
        repositories="https://nexus/maven",
        checkpoint_location="abfss://container@account.dfs.core.windows.net/c",
    )
