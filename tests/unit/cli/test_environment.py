"""Connections of the environment are what the hooks make of them; what needs more is left to the hooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_lakestream.cli.connections import catalog_properties, kafka_settings
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook

SERVERS = {"bootstrap.servers": "broker:9092"}
SASL = {**SERVERS, "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", "sasl.password": "word-word"}
SQL = {"type": "sql", "uri": "sqlite:////tmp/c.db", "warehouse": "file:///tmp/w"}


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Give a maker of the connection `one`, of an Airflow with this in its airflow.cfg."""
    monkeypatch.setenv("AIRFLOW_CONFIG", str(tmp_path / "airflow.cfg"))
    monkeypatch.delenv("AIRFLOW__CORE__EXECUTOR", raising=False)

    def make(text: str | None = None, config: str = "", **fields: Any) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_ONE", text if text is not None else json.dumps(fields))
        (tmp_path / "airflow.cfg").write_text(config)

    return make


@pytest.mark.parametrize(
    "extra", [SERVERS, SASL, {**SERVERS, "schema.registry.url": "http://registry:8081"}, json.dumps(SERVERS)]
)
def test_a_broker_is_what_the_hook_makes_of_it(given, extra: Any) -> None:
    given(conn_type="kafka", extra=extra)
    assert kafka_settings("one") == KafkaHook("one").configuration()


@pytest.mark.parametrize(
    "fields",
    [
        {"extra": SQL},
        {"host": "http://catalog:8181/", "extra": {"warehouse": "lake"}},
        {"host": "http://catalog:8181", "login": "me", "password": "a-long-word", "extra": {"prefix": "a"}},
        {"extra": {"type": "glue", "glue.region": "eu-central-1"}},
    ],
)
def test_a_catalog_is_what_the_hook_makes_of_it(given, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    given(conn_type="iceberg", **fields)
    opened: list[dict[str, Any]] = []
    module = "airflow_lakestream.hooks.iceberg.load_catalog"
    monkeypatch.setattr(module, lambda name, **properties: opened.append(properties))
    IcebergHook("one").open_catalog()
    assert [catalog_properties("one")] == opened


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {**SERVERS, "oauth_cb": "my.token"},
        {**SERVERS, "sasl.mechanism": "OAUTHBEARER"},
        {"bootstrap.servers": "bootstrap.c.managedkafka.p.cloud.goog:9092"},
    ],
)
def test_a_broker_that_needs_more_is_left_to_the_hook(given, extra: dict[str, Any]) -> None:
    given(conn_type="kafka", extra=extra)
    assert kafka_settings("one") is None


@pytest.mark.parametrize("text", ["kafka://?extra", "", "{", '{"extra": "{"}', '{"extra": {"a": 1}, "new": 1}'])
def test_what_is_no_plain_json_is_left_to_the_hook(given, text: str) -> None:
    given(text)
    assert kafka_settings("one") is None
    assert catalog_properties("one") is None


@pytest.mark.parametrize(
    "fields", [{"extra": {"type": "dynamodb"}}, {"extra": {"type": "in-memory"}}, {"login": "me", "extra": {}}]
)
def test_a_catalog_that_needs_more_is_left_to_the_hook(given, fields: dict[str, Any]) -> None:
    given(conn_type="iceberg", **fields)
    assert catalog_properties("one") is None


@pytest.mark.parametrize(
    "config",
    [
        "[secrets]\nbackend = my.Vault\n",
        "[core]\nexecutor = CeleryExecutor\n",
        "[workers]\nsecrets_backend = my.V\n",
        "?",
    ],
)
def test_an_airflow_with_a_backend_or_with_workers_elsewhere_is_asked(given, config: str) -> None:
    given(conn_type="iceberg", extra=SQL)
    assert catalog_properties("one") is not None
    given(conn_type="iceberg", extra=SQL, config=config)
    assert catalog_properties("one") is None


@pytest.mark.parametrize("name", ["AIRFLOW__SECRETS__BACKEND", "AIRFLOW__CORE__EXECUTOR"])
def test_variables_of_the_environment_say_the_same(given, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given(conn_type="kafka", extra=SERVERS)
    assert kafka_settings("one") is not None
    monkeypatch.setenv(name, "my.Own")
    assert kafka_settings("one") is None
