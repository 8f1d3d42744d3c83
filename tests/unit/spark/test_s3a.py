from __future__ import annotations

import pytest

from airflow_lakestream.spark import lake_settings
from airflow_lakestream.spark.packages import jar_version
from airflow_lakestream.stores.folders import is_object_store, open_folder
from airflow_lakestream.stores.object_store import options_of

CATALOG = {
    "type": "rest",
    "uri": "http://rest",
    "s3.endpoint": "http://minio:9000",
    "s3.region": "eu",
    "s3.access-key-id": "k",
    "s3.secret-access-key": "s",
    "client.access-key-id": "of all of Amazon's",
}


def test_hadoop_is_told_of_the_one_bucket_what_the_catalog_says() -> None:
    assert lake_settings.s3a_settings("s3a://lake/checkpoints/a", CATALOG) == {
        "fs.s3a.bucket.lake.endpoint": "http://minio:9000",
        "fs.s3a.bucket.lake.endpoint.region": "eu",
        "fs.s3a.bucket.lake.access.key": "k",
        "fs.s3a.bucket.lake.secret.key": "s",
        "fs.s3a.bucket.lake.path.style.access": "true",
    }
    assert lake_settings.s3a_settings("s3a://lake/a", {"s3.session-token": "t"}) == {
        "fs.s3a.bucket.lake.session.token": "t"
    }
    hosts = {"s3.endpoint": "https://minio", "s3.force-virtual-addressing": "true"}
    assert lake_settings.s3a_settings("s3a://lake/a", hosts)["fs.s3a.bucket.lake.path.style.access"] == "false"


def test_storage_options_of_delta_rs_are_taken_as_they_are() -> None:
    delta = {"aws_access_key_id": "k", "AWS_ENDPOINT": "http://minio:9000", "aws_timeout": "9s"}
    assert options_of(delta) == {
        "aws_access_key_id": "k",
        "aws_endpoint_url": "http://minio:9000",
        "aws_timeout": "9s",
        "aws_allow_http": "true",
    }
    assert lake_settings.s3a_settings("s3a://lake/a", delta)["fs.s3a.bucket.lake.access.key"] == "k"


def test_without_a_word_of_the_store_the_environment_says_all() -> None:
    assert options_of({"type": "sql", "uri": "sqlite:///catalog.db"}) == {}
    assert lake_settings.s3a_settings("s3a://lake/a", {}) == {}


def test_a_server_without_tls_is_only_spoken_to_where_its_address_says_so() -> None:
    assert options_of(CATALOG)["aws_allow_http"] == "true"
    assert "aws_allow_http" not in options_of({**CATALOG, "s3.endpoint": "https://minio"})


def test_the_jars_fit_the_installed_hadoop() -> None:
    hadoop, *clients = lake_settings.s3a_packages()
    assert hadoop == f"org.apache.hadoop:hadoop-aws:{jar_version('hadoop-client-api')}"
    assert [one.split(":")[1] for one in clients] == ["s3", "s3-transfer-manager", "sts"]
    assert lake_settings.s3a_left_out() == ("software.amazon.awssdk:bundle",)
    assert jar_version("no-such-jar") == ""


@pytest.mark.parametrize(
    ("location", "is_one"),
    [
        ("s3a://b/c", True),
        ("s3://b/c", True),
        ("gs://b/c", True),
        ("/a/b", False),
        ("file:/a/b", False),
        ("a/b:c", False),
    ],
)
def test_what_a_connection_opens(location: str, is_one: bool) -> None:
    assert is_object_store(location) is is_one


def test_keys_are_in_no_text_of_a_store() -> None:
    store = open_folder("s3a://lake/a", {**CATALOG, "s3.secret-access-key": "canary-4711"})
    assert "canary" not in repr(store) + repr(vars(store))
