"""From connections to plain objects: what is refused before anything is opened, and which secrets are masked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import redact

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.iceberg import CatalogUnavailable, IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch):
    """Give a maker of connections that live in the environment."""

    def make(kind: str, extra: dict[str, Any] | None = None, **fields: Any) -> str:
        fields = {"conn_type": kind, "extra": extra or {}, **fields}
        monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(fields))
        return "mine"

    return make


def test_a_missing_connection_is_refused_with_how_to_make_one() -> None:
    with pytest.raises(InvalidArgument, match=r"iceberg_conn_id: there is no connection 'nowhere'.*warehouse"):
        IcebergHook("nowhere").open_catalog()
    with pytest.raises(InvalidArgument, match=r"kafka_conn_id: there is no connection 'nowhere'.*bootstrap\.servers"):
        KafkaHook("nowhere").configuration()


def test_a_kafka_connection_without_brokers_is_refused(connection) -> None:
    with pytest.raises(InvalidArgument, match=r"kafka_conn_id: connection 'mine' .*bootstrap\.servers"):
        KafkaHook(connection("kafka")).configuration()


@pytest.mark.parametrize("kind", ["bigquery", "dynamodb", "BigQuery"])
def test_catalogs_that_compare_nothing_are_refused(kind: str, connection) -> None:
    with pytest.raises(InvalidArgument, match=f"'mine' is a {kind.lower()} catalog.*REST"):
        IcebergHook(connection("iceberg", {"type": kind})).open_catalog()


SQLITE = {"type": "sql", "uri": "sqlite:////tmp/never-made/catalog.db"}


@pytest.mark.parametrize(
    "executor",
    [
        "CeleryExecutor",
        "KubernetesExecutor",
        "LocalExecutor,CeleryExecutor",
        "airflow.providers.celery.executors.celery_executor.CeleryExecutor",
        "LocalExecutor,shared:CeleryExecutor",
    ],
)
@pytest.mark.parametrize("form", ["extra", "host"])
def test_sqlite_is_refused_where_workers_share_no_disk(
    executor: str, form: str, connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    fields = {"extra": SQLITE} if form == "extra" else {"extra": {"type": "sql"}, "host": SQLITE["uri"]}
    with pytest.raises(InvalidArgument, match=r"SQLite catalog, but workers of \w+ share no disk.*PostgreSQL"):
        IcebergHook(connection("iceberg", **fields)).open_catalog()


@pytest.mark.parametrize("form", ["extra", "host"])
def test_a_shared_database_goes_with_every_executor(form: str, connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    uri = "postgresql+psycopg2://user:pass-4711-word@127.0.0.1:1/lake"
    fields = {"extra": {"type": "sql", "uri": uri}} if form == "extra" else {"extra": {"type": "sql"}, "host": uri}
    # Nobody listens there, or the driver is missing: it was tried, not refused.
    with pytest.raises(CatalogUnavailable, match="Iceberg connection 'mine'") as caught:
        IcebergHook(connection("iceberg", **fields)).open_catalog()
    assert "pass-4711-word" not in str(caught.value)


def test_a_missing_driver_is_to_be_installed_and_no_setting_of_the_connection_to_be_checked(connection) -> None:
    extra = {"type": "sql", "uri": "mssql+pymssql://user:word@127.0.0.1:1/lake"}
    with pytest.raises(CatalogUnavailable, match=r"Install the client of .* or the driver in its uri") as caught:
        IcebergHook(connection("iceberg", extra)).open_catalog()
    assert "Check host" not in str(caught.value)


def test_sqlite_goes_with_the_local_executor(connection, tmp_path) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    catalog = IcebergHook(connection("iceberg", {"type": "sql", "uri": uri, "warehouse": str(tmp_path)})).open_catalog()
    assert catalog.list_namespaces() == []


def test_secrets_that_airflow_knows_by_no_name_are_masked(connection) -> None:
    pem = "-----BEGIN PRIVATE KEY-----abcdef-----END PRIVATE KEY-----"
    settings = {"bootstrap.servers": "broker:9092", "security.protocol": "SSL", "ssl.key.pem": pem}
    KafkaHook(connection("kafka", settings)).configuration()
    extra = {
        "type": "bigquery",
        "uri": "https://user:in%2Dthe%2Duri@catalog/",
        "credential": "client:in-the-credential",
    }
    with pytest.raises(InvalidArgument):
        IcebergHook(connection("iceberg", extra)).open_catalog()
    for secret in (pem, "in-the-uri", "in%2Dthe%2Duri", "in-the-credential"):
        assert redact(f"somebody logs {secret} here") == "somebody logs *** here"
    assert redact("somebody logs client here") == "somebody logs client here"
