"""From a connection to storage options: what is refused before anything is opened, and which secrets are masked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import redact

from airflow_lakestream.config.landing import ExtractConfig
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.places import open_lake
from airflow_lakestream.hooks.store import DeltaStorageHook


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch):
    """Give a maker of connections that live in the environment."""

    def make(kind: str, extra: dict[str, Any] | None = None, **fields: Any) -> str:
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": kind, "extra": extra or {}, **fields}))
        return "store"

    return make


def test_an_aws_connection_becomes_storage_options_and_its_secrets_are_masked(connection) -> None:
    extra = {"region_name": "eu-central-1", "endpoint_url": "http://127.0.0.1:9000"}
    storage = DeltaStorageHook(
        connection("aws", extra, login="AKIA-of-a-test", password="a-secret-of-a-test")
    ).open_storage()
    assert storage.options == {
        "aws_region": "eu-central-1",
        "aws_endpoint_url": "http://127.0.0.1:9000",
        "aws_access_key_id": "AKIA-of-a-test",
        "aws_secret_access_key": "a-secret-of-a-test",
        "aws_allow_http": "true",
    }
    assert "a-secret-of-a-test" not in repr(storage)
    assert redact("it is a-secret-of-a-test") == "it is ***"


def test_a_generic_connection_gives_its_extra_as_it_is(connection) -> None:
    extra = {"azure_storage_account_name": "lake", "azure_storage_account_key": "another-secret-of-a-test"}
    assert DeltaStorageHook(connection("generic", extra)).open_storage().options == extra
    assert redact("another-secret-of-a-test") == "***"


def test_without_a_connection_the_environment_says_all() -> None:
    assert DeltaStorageHook().open_storage().options == {}


@pytest.mark.parametrize(
    ("kind", "extra", "said"),
    [
        ("aws", {"role_arn": "arn:aws:iam::1:role/x"}, "role_arn"),
        ("google_cloud_platform", {}, "google_cloud_platform"),
        ("generic", {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"}, "overwrite"),
        ("generic", {"aws_s3_locking_provider": "dynamodb"}, "DynamoDB"),
    ],
)
def test_what_can_not_work_is_refused_by_name(connection, kind: str, extra: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as caught:
        DeltaStorageHook(connection(kind, extra)).open_storage()
    assert caught.value.argument == "storage_conn_id"


def test_a_missing_connection_is_refused_with_how_to_make_one() -> None:
    with pytest.raises(InvalidArgument, match=r"there is no connection 'nowhere'.*generic"):
        DeltaStorageHook("nowhere").open_storage()


def test_a_store_is_not_for_an_iceberg_table() -> None:
    config = ExtractConfig(topic="t", table="lake.t", consumer_group="g")
    with pytest.raises(InvalidArgument, match='table_format="delta"'):
        open_lake(config, "iceberg_default", "store")
