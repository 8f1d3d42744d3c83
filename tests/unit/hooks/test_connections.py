"""Connections that can't be what was meant, of each kind: what is said, before anything is opened. One row each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from airflow_lakestream.cli.app import run
from airflow_lakestream.config.arguments import problem_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.connections import connector_options
from airflow_lakestream.hooks.database import source_address
from airflow_lakestream.hooks.flink import FlinkHook
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.kafka_connect import KafkaConnectHook
from airflow_lakestream.hooks.registry import registry_of
from airflow_lakestream.hooks.spark import SparkHook
from airflow_lakestream.hooks.store import DeltaStorageHook, fields_of, store_properties
from airflow_lakestream.spark.app_config import AppConfig

SECRET = "hunter2-and-more"  # a made-up one
SERVERS = {"bootstrap.servers": "broker:9092"}
SASL = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": SECRET}
SQL = {"type": "sql", "uri": "sqlite:////tmp/none/catalog.db", "warehouse": "file:///tmp/none"}
PLACES = {"jobmanager_url": "http://jobmanager:8081"}


def spark(conn_id: str) -> None:
    # The mode is a part of how a driver is found.
    SparkHook(conn_id)


OPENED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "kafka": ("kafka_conn_id", lambda conn_id: KafkaHook(conn_id).configuration()),
    "catalog": ("iceberg_conn_id", lambda conn_id: IcebergHook(conn_id).open_catalog()),
    "registry": ("schema_registry", lambda conn_id: registry_of(conn_id, KafkaHook("nowhere"), "avro")),
    "delta": ("storage_conn_id", lambda conn_id: DeltaStorageHook(conn_id).open_storage()),
    "store": ("storage_conn_id", store_properties),
    "connect": ("connect_conn_id", lambda conn_id: KafkaConnectHook(conn_id).open_client()),
    "flink": ("flink_conn_id", lambda conn_id: FlinkHook(conn_id).addresses()),
    "database": ("database_conn_id", connector_options),
    "source": ("against_database", source_address),
    "spark": ("spark_conn_id", spark),
}
TYPES = {"kafka": "kafka", "catalog": "iceberg", "delta": "generic", "store": "aws", "database": "postgres"}
TYPES |= {"source": "mysql"}
Case = tuple[str, dict[str, Any], str]
CASES: list[Case] = [
    # Kafka
    ("kafka", {"extra": {}}, r"bootstrap\.servers"),
    ("kafka", {"extra": {"bootstrap.servers": ["a:9092", "b:9092"]}}, r"bootstrap\.servers is a list\. Write one text"),
    ("kafka", {"extra": {"bootstrap.servers": 9092}}, "can't be used"),
    ("kafka", {"extra": {**SERVERS, "ssl.ca.location": {"path": "/ca.pem"}}}, r"ssl\.ca\.location is a mapping"),
    ("kafka", {"extra": {**SERVERS, **SASL}}, r"has sasl\.mechanism, .*security\.protocol is missing.*SASL_SSL"),
    ("kafka", {"extra": {**SERVERS, **SASL, "security.protocol": "PLAINTEXT"}}, r"is PLAINTEXT: .*without.*SASL_SSL"),
    ("kafka", {"extra": {**SERVERS, **SASL, "security.protocol": "ssl"}}, "security.protocol is SSL"),
    ("kafka", {"extra": {**SERVERS, "ssl.ca.location": "/ca.pem"}}, r"has ssl\.ca\.location, .*is missing.*\"SSL\""),
    ("kafka", {"extra": SERVERS, "login": "me", "password": SECRET}, r"login and password are read by nothing.*sasl\."),
    ("kafka", {"extra": SERVERS, "password": SECRET}, "would connect without a login"),
    ("kafka", {"extra": {**SERVERS, "oauth_cb": "my.token"}}, "callback"),
    # Catalogs
    ("catalog", {"extra": {"type": "rset", "uri": "http://catalog"}}, "type: 'rset' is not one of .*'rest'"),
    ("catalog", {"host": "catalog:8181"}, r"is not an address of http.*https://catalog"),
    ("catalog", {"host": "http://catalog", "login": "me"}, "has login, which nothing reads.*both"),
    ("catalog", {"host": "http://catalog", "password": SECRET}, "has password, which nothing reads.*both"),
    ("catalog", {"extra": SQL, "login": "me", "password": SECRET}, "has login and password, which nothing reads"),
    ("catalog", {"extra": {**SQL, "warehouse": ["file:///tmp"]}}, "has warehouse, which is a list"),
    ("catalog", {"extra": {"type": 5}}, "type: '5' is not one of"),
    ("catalog", {"extra": {"type": "sql"}}, "opens no catalog"),
    ("catalog", {"extra": {"type": "sql", "uri": "no such"}}, "opens no catalog|can't be used"),
    # Registries
    ("registry", {"host": "registry", "extra": {"colour": "red"}}, "unknown settings colour"),
    ("registry", {"host": "registry", "extra": {"ca_file": ["/ca.pem"]}}, "has ca_file, which is a list"),
    ("registry", {"host": "registry", "extra": {"timeout": "nan"}}, "timeout has to be above 0"),
    ("registry", {"host": "registry", "extra": {"timeout": True}}, "its timeout is not a number"),
    ("registry", {"extra": {"url": "registry:8081"}}, "its url is not one of http"),
    ("registry", {"extra": {"url": "http://[::1"}}, "its url is not one of http"),
    ("registry", {"extra": {"url": "http://registry:port"}}, "its url is not one of http"),
    # Stores
    ("delta", {"extra": {"aws_region": {"name": "eu"}}}, "has aws_region, which is a mapping"),
    ("delta", {"extra": {"aws_region": "eu"}, "login": "me", "password": SECRET}, "has login and password, which"),
    ("delta", {"host": "s3.example"}, "has host, which nothing reads"),
    ("delta", {"conn_type": "s3", "extra": {}}, "is of type 's3'"),
    ("store", {"extra": {"region": "eu"}}, "has region, which is not read here.*region_name"),
    ("store", {"login": "me", "extra": {}}, "has login, which nothing reads"),
    ("store", {"password": SECRET, "extra": {}}, "has password, which nothing reads"),
    ("store", {"host": "http://minio:9000", "extra": {}}, "has host, which nothing reads.*endpoint_url"),
    # Kafka Connect
    ("connect", {"host": "connect", "extra": {"timeout": [5]}}, "has timeout, which is a list"),
    ("connect", {"host": "connect", "extra": {"timeout": "soon"}}, "timeout in its extra: 'soon' is not a number"),
    ("connect", {"host": "connect", "extra": {"time_out": 5}}, "has time_out, which is not read here.*timeout"),
    ("connect", {"host": "connect", "password": SECRET}, "has password, which nothing reads"),
    ("connect", {"host": "https://connect", "extra": {"ca_file": "/no/such/file"}}, "ca_file"),
    ("connect", {}, "its host is not an address"),
    # Flink
    ("flink", {"host": "gateway", "extra": {"jobmanager": "http://j:8081"}}, "has jobmanager, which is not read here"),
    ("flink", {"host": "gateway", "extra": {**PLACES, "token": [SECRET]}}, "has token, which is a list"),
    (
        "flink",
        {"host": "gateway", "extra": {"jobmanager_url": "http://[::1"}},
        "jobmanager_url .* is not an http address",
    ),
    (
        "flink",
        {"host": "gateway", "extra": {"jobmanager_url": "http://j:x"}},
        "jobmanager_url .* is not an http address",
    ),
    # Databases
    ("database", {"host": "db", "login": "me"}, "has no port and no password and no schema"),
    ("source", {"conn_type": "oracle", "host": "db"}, "is of type 'oracle'.*postgres or mysql"),
    ("source", {"login": "me", "password": SECRET}, "has no host"),
    (
        "source",
        {"host": "db", "password": SECRET, "extra": {"sslmode": "require"}},
        "has sslmode, which is not read.*ssl_ca",
    ),
    # Spark
    ("spark", {"host": "yarn", "extra": {"deploy_mode": "cluster"}}, r"extra has deploy_mode\. Write deploy-mode"),
    ("spark", {"host": "yarn", "extra": {"deploy-mode": "Cluster"}}, "deploy_mode: 'Cluster' is not one of 'client'"),
    ("spark", {"host": "local[*]", "extra": {"queue": ["a"]}}, "has queue, which is a list"),
    ("spark", {"host": "local[*]", "extra": {"spark-binary": "/bin/sh"}}, "spark-binary"),
    ("spark", {"host": "local[*]", "extra": {"rest-port": "http"}}, "can't be used"),
    ("spark", {"host": "local[*]", "login": "me", "password": SECRET}, "has login and password, which nothing reads"),
]
# Of all kinds: an extra that is no object, and a text that is no connection.
OF_ALL: list[tuple[str, str]] = [
    (
        json.dumps(json.dumps(SERVERS)),
        "is a text in JSON, not an object",
    ),
    ("[1]", "is a list, not an object"),
    ("5", "is a number, not an object"),
    ("true", "is a bool, not an object"),
    ('"text"', "is a text in JSON, not an object"),
    ("{'a': 1}", "is not JSON"),
]


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def make(kind: str, **fields: Any) -> str:
        monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps({"conn_type": TYPES.get(kind, kind), **fields}))
        return "mine"

    return make


def refused(kind: str, conn_id: str) -> str:
    argument, opens = OPENED[kind]
    with pytest.raises(InvalidArgument) as caught:
        opens(conn_id)
    said = str(caught.value)
    assert SECRET not in said
    assert said.startswith((f"{argument}: ", f"{argument}.", "deploy_mode: "))
    return said


@pytest.mark.parametrize(("kind", "fields", "said"), CASES, ids=lambda one: one if isinstance(one, str) else "")
def test_what_is_said(kind: str, fields: dict[str, Any], said: str, connection: Callable[..., str]) -> None:
    text = refused(kind, connection(kind, **fields))
    assert re.search(said, text), text


@pytest.mark.parametrize("kind", OPENED)
@pytest.mark.parametrize(("extra", "said"), OF_ALL)
def test_an_extra_that_is_no_object(kind: str, extra: str, said: str, connection: Callable[..., str]) -> None:
    fields = {"host": "http://host", "port": 80, "login": "me", "password": SECRET, "schema": "db"}
    assert said in refused(kind, connection(kind, extra=extra, **fields))


@pytest.mark.parametrize("kind", OPENED)
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"conn_type": "http", "port": "x"}', '{"no_field": 1}', "http://a:b/"]
)
def test_a_text_that_is_no_connection(kind: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MINE", text)
    refused(kind, "mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"conn_type": "kafka", "password": "word-4711" "extra": {}}',
            "not JSON: Expecting ',' delimiter, line 1, column 48",
        ),
        ('{"conn_type": "kafka", "port": "word-4711"}', "or its port is not a number"),
        ('{"conn_type": "kafka", "pasword": "word-4711"}', "a connection has no field 'pasword'"),
        ("kafka://me:word-4711@host:port/", "or its port is not a number"),
    ],
)
def test_a_text_that_can_not_be_read_is_named_and_not_shown(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the program, whose output is all that its user sees."""
    monkeypatch.setenv("AIRFLOW_CONN_MINE", text)
    assert run(["plan", "--topic", "t", "--table", "lake.t", "--group", "g", "--kafka-conn", "mine"]) == 2
    printed = capfd.readouterr()
    [line] = [one for one in (printed.out + printed.err).splitlines() if one]
    assert "kafka_conn_id: connection 'mine' can't be read (AIRFLOW_CONN_MINE" in line
    assert said in line
    assert "4711" not in line
    assert fields_refused("mine") == line.removeprefix("lakestream: ").replace("kafka_conn_id", "connection")


def fields_refused(conn_id: str) -> str:
    with pytest.raises(InvalidArgument) as caught:
        fields_of(conn_id)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("kafka", {"extra": {**SERVERS, **SASL, "security.protocol": "sasl_ssl", "check.crcs": False, "retries": 3}}),
        ("kafka", {"extra": json.dumps(SERVERS)}),
        ("catalog", {"extra": {"type": "in-memory", "init_catalog_tables": True, "echo": None}}),
        ("registry", {"host": "registry", "extra": {"timeout": 5, "retries": "2"}, "login": "me", "password": SECRET}),
        ("delta", {"extra": {"aws_region": "eu", "aws_allow_http": True, "timeout": 30}}),
        ("store", {"login": "me", "password": SECRET, "extra": {"region_name": "eu"}}),
        ("connect", {"host": "connect", "port": 8083, "extra": {"timeout": 5}}),
        ("flink", {"host": "gateway", "extra": {**PLACES, "token": 5}}),
        ("spark", {"host": "local[*]", "extra": {"queue": None, "some-new-field": "a", "rest-port": 6066}}),
    ],
)
def test_what_works_is_opened(kind: str, fields: dict[str, Any], connection: Callable[..., str]) -> None:
    OPENED[kind][1](connection(kind, **fields))


def test_a_rest_catalogs_login_reaches_every_engine(connection: Callable[..., str]) -> None:
    conn_id = connection("catalog", host="http://catalog/", login="me", password=SECRET)
    assert IcebergHook(conn_id).properties() == {"uri": "http://catalog", "credential": f"me:{SECRET}"}


@pytest.mark.parametrize("settings", [{}, SASL | {"security.protocol": "SASL_PLAINTEXT"}, {"security.protocol": "?"}])
def test_settings_that_librdkafka_judges_itself(settings: dict[str, str]) -> None:
    assert problem_of({**SERVERS, **settings}) is None


def test_an_app_of_spark_is_told_the_same() -> None:
    with pytest.raises(InvalidArgument, match=r"^kafka: it has sasl\.mechanism, .*security\.protocol is missing"):
        AppConfig(app="kafka_to_iceberg", kafka={**SERVERS, **SASL}, catalog={}, landing={})


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({"host": "h", "port": 8083}, "http://h:8083"),
        ({"host": "h:8084", "port": 8083}, "http://h:8084"),
        ({"host": "https://h", "port": 8083}, "https://h:8083"),
        ({"host": "::1", "port": 8083, "schema": "https"}, "https://[::1]:8083"),
        ({"host": "fd00::1"}, "http://[fd00::1]"),
        ({"host": "http://[::1]:8084", "port": 8083}, "http://[::1]:8084"),
    ],
)
def test_the_address_of_connect_and_of_flinks_gateway(fields: dict[str, Any], address: str, connection) -> None:
    assert KafkaConnectHook(connection("http", **fields)).open_client().where == address
    gateway, _ = FlinkHook(connection("http", extra=PLACES, **fields)).addresses()
    assert gateway["url"] == address
