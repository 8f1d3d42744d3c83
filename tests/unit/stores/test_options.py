"""How properties of catalogs, and storage options of delta-rs, open the folders of each store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.stores import cloud_options
from airflow_lakestream.stores.folders import open_folder
from airflow_lakestream.stores.object_store import SCHEMES, open_location, options_of

KEY = "Y2FuYXJ5LTQ3MTE="
OF_CATALOG = {"type": "rest", "uri": "http://rest", "warehouse": "w", "token": "of the catalog", "s3.region": "eu"}
EMULATOR = {
    "adls.account-name": "acc",
    "adls.account-key": KEY,
    "adls.blob-storage-authority": "127.0.0.1:10000",
    "adls.blob-storage-scheme": "http",
}


def test_properties_of_google_become_options() -> None:
    given = {**OF_CATALOG, "gcs.service.host": "http://127.0.0.1:4443", "gcs.oauth2.token": "t", "gcs.project-id": "p"}
    assert cloud_options.gcs_options(given) == {
        "google_base_url": "http://127.0.0.1:4443",
        "google_bearer_token": "t",
        "google_allow_http": "true",
    }
    assert cloud_options.gcs_options(OF_CATALOG) == {}
    assert cloud_options.gcs_options({"google_service_account_key": "{}", "service_account_path": "/a"}) == {
        "google_service_account_key": "{}",
        "service_account_path": "/a",
    }


@pytest.mark.parametrize(
    ("location", "given", "expected"),
    [
        ("abfss://lake/w", OF_CATALOG, {}),
        (
            "abfss://lake@acc.dfs.core.windows.net/w",
            {"adls.account-key": KEY},
            {"azure_storage_account_name": "acc", "azure_storage_account_key": KEY},
        ),
        (
            "wasbs://lake@acc.blob.core.chinacloudapi.cn/w",
            {"adls.sas-token": "sig=1"},
            {
                "azure_storage_account_name": "acc",
                "azure_storage_sas_token": "sig=1",
                "azure_storage_endpoint": "https://acc.blob.core.chinacloudapi.cn",
            },
        ),
        (
            "abfss://lake@other.dfs.core.chinacloudapi.cn/w",
            {"adls.account-name": "acc"},
            {
                "azure_storage_account_name": "acc",
                "azure_storage_endpoint": "https://other.blob.core.chinacloudapi.cn",
            },
        ),
        (
            "abfss://lake/w",
            EMULATOR,
            {
                "azure_storage_account_name": "acc",
                "azure_storage_account_key": KEY,
                "azure_storage_endpoint": "http://127.0.0.1:10000/acc",
                "azure_allow_http": "true",
            },
        ),
        (
            "abfss://lake/w",
            {"adls.account-name": "acc", "adls.blob-storage-authority": ".blob.core.usgovcloudapi.net"},
            {
                "azure_storage_account_name": "acc",
                "azure_storage_endpoint": "https://acc.blob.core.usgovcloudapi.net",
            },
        ),
        (
            "abfss://lake/w",
            {"adls.connection-string": f"AccountName=acc;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:10000/acc;"},
            {
                "azure_storage_account_name": "acc",
                "azure_storage_account_key": KEY,
                "azure_storage_endpoint": "http://127.0.0.1:10000/acc",
                "azure_allow_http": "true",
            },
        ),
        (
            "az://lake/w",
            {"account_name": "acc", "AZURE_CLIENT_ID": "c"},
            {"account_name": "acc", "azure_client_id": "c"},
        ),
        (
            "abfss://lake@acc.dfs.core.chinacloudapi.cn/w",
            {**EMULATOR, "azure_storage_endpoint": "https://private.example"},
            {
                "azure_storage_account_name": "acc",
                "azure_storage_account_key": KEY,
                "azure_storage_endpoint": "https://private.example",
            },
        ),
        (
            "abfss://lake/w",
            {"account_name": "acc", "adls.blob-storage-authority": ".blob.core.usgovcloudapi.net"},
            {"account_name": "acc", "azure_storage_endpoint": "https://acc.blob.core.usgovcloudapi.net"},
        ),
        (
            "abfss://lake@acc.dfs.core.chinacloudapi.cn/w",
            {"account_name": "acc", "endpoint": "http://127.0.0.1:10000/acc", "use_azure_cli": "true"},
            {
                "account_name": "acc",
                "azure_storage_endpoint": "http://127.0.0.1:10000/acc",
                "use_azure_cli": "true",
                "azure_allow_http": "true",
            },
        ),
    ],
    ids=[
        "nothing known",
        "the location's account",
        "another cloud",
        "the connection's account",
        "an address with accounts in its path",
        "a suffix of hosts",
        "a connection string",
        "options of delta-rs",
        "a given endpoint wins",
        "a suffix for an account given as an option",
        "other names of delta-rs",
    ],
)
def test_properties_of_azure_become_options(location: str, given: Mapping[str, Any], expected: dict[str, str]) -> None:
    assert cloud_options.azure_options(location, given) == expected


S3 = {"endpoint_url": "http://minio:9000", "Region": "eu", "token": "t", "allow_http": "true", "skip_signature": "true"}


def test_all_names_that_delta_rs_knows_become_options() -> None:
    assert options_of(S3) == {
        "aws_endpoint_url": "http://minio:9000",
        "aws_region": "eu",
        "aws_session_token": "t",
        "aws_allow_http": "true",
        "skip_signature": "true",
    }
    # Beside a catalog's properties only what can't be one of them; options of other stores may be there, too.
    assert options_of({**OF_CATALOG, **S3})["aws_region"] == "eu"
    assert not {"aws_session_token", "token", "skip_signature", "type"} & set(options_of({**OF_CATALOG, **S3}))
    assert options_of({"aws_region": "eu", "azure_storage_account_name": "a", "google_bearer_token": "t"}) == {
        "aws_region": "eu"
    }
    assert cloud_options.gcs_options({"base_url": "http://127.0.0.1:4443", "skip_signature": "true"}) == {
        "google_base_url": "http://127.0.0.1:4443",
        "skip_signature": "true",
        "google_allow_http": "true",
    }


@pytest.mark.parametrize(
    ("location", "given"),
    [("s3://lake/a", S3), ("gs://lake/a", {"bearer_token": "t"}), ("az://lake/a", {"account_name": "acc"})],
)
def test_a_location_is_opened_with_options_of_the_http_client(location: str, given: Mapping[str, str]) -> None:
    of_client = {"randomize_addresses": "false", "proxy_excludes": "localhost", "http2_keep_alive_timeout": "5 s"}
    client_options = open_location(location, {**given, **of_client}).client_options
    assert set(of_client) <= set(client_options)


@pytest.mark.parametrize(
    ("location", "given", "shown"),
    [
        ("abfss://lake/a/b/", EMULATOR, 'AzureStore(container_name="lake", account_name="acc", prefix="a/b")'),
        (
            "wasbs://lake@acc.blob.core.windows.net/a",
            {"adls.account-key": KEY},
            'AzureStore(container_name="lake", account_name="acc", prefix="a")',
        ),
        ("gs://lake/a", {"gcs.oauth2.token": KEY}, 'GCSStore(bucket="lake", prefix="a")'),
        ("s3a://lake/a", {"s3.access-key-id": "k", "s3.secret-access-key": KEY}, 'S3Store(bucket="lake", prefix="a")'),
    ],
)
def test_a_location_is_opened_by_what_its_connection_says(location: str, given: Mapping[str, str], shown: str) -> None:
    store = open_location(location, given)
    assert repr(store) == shown
    assert KEY not in repr(vars(open_folder(location, given)))


@pytest.mark.parametrize(
    ("location", "given", "problem"),
    [
        ("abfss://lake/a", {}, "Account must be specified"),
        ("abfss://lake/a", {"adls.account-name": "acc", "adls.account-key": "canary-4711"}, "Invalid Access Key"),
        ("az://lake/a", {"account_name": "acc", "azure_nonsense": "canary-4711"}, "'azure_nonsense' is not valid"),
        ("az://lake/a", {"account_name": "acc", "nonsense": "canary-4711"}, "'nonsense' is not valid"),
        ("s3://lake/a", {"endpoint_uri": "canary-4711", "region": "eu"}, "'endpoint_uri' is not valid"),
        ("gs://lake/a", {"nonsense": "canary-4711"}, "'nonsense' is not valid"),
        ("gs://lake/a", {"google_service_account_key": "{canary-4711"}, "Unable to decode service account"),
    ],
)
def test_what_can_not_be_opened_says_why_without_a_secret(location: str, given: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem) as caught:
        open_folder(location, given)
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value).partition("Debug")[0]


def test_each_scheme_is_of_one_store() -> None:
    assert len(SCHEMES) == len(set(SCHEMES))
