from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.lake_settings import REDACTED, catalog_packages, catalog_settings

S3 = {"warehouse": "s3://lake/w", "s3.endpoint": "http://minio:9000", "s3.access-key-id": "k", "s3.region": "eu"}


def options(properties: dict[str, Any]) -> dict[str, str]:
    found = catalog_settings("lake", properties, {})
    assert found.pop("spark.sql.catalog.lake") == "org.apache.iceberg.spark.SparkCatalog"
    assert found.pop("spark.sql.catalog.lake.cache-enabled") == "false"
    return {key.removeprefix("spark.sql.catalog.lake."): value for key, value in found.items()}


def artifacts(properties: dict[str, Any], spark: str = "4.0.0") -> list[str]:
    return [package.split(":")[1] for package in catalog_packages(properties, spark)]


def test_sql_on_sqlite_and_on_postgresql_with_its_password_apart() -> None:
    lite = {"type": "sql", "uri": "sqlite:////data/catalog.db", "warehouse": "file:///data/w"}
    assert options(lite) == {
        "type": "jdbc",
        "uri": "jdbc:sqlite:/data/catalog.db",
        "warehouse": "file:///data/w",
        "jdbc.schema-version": "V1",
    }
    assert artifacts(lite) == ["iceberg-spark-runtime-4.0_2.13", "sqlite-jdbc"]
    found = options({"uri": "postgresql+psycopg2://me:p%40ss@db:5433/catalog?sslmode=require"})
    assert found["uri"] == "jdbc:postgresql://db:5433/catalog?sslmode=require"
    assert (found["jdbc.user"], found["jdbc.password"]) == ("me", "p@ss")
    ipv6 = options({"uri": "postgresql://me@[fd00::1]/catalog"})
    assert ipv6["uri"] == "jdbc:postgresql://[fd00::1]:5432/catalog"
    assert artifacts({"uri": "postgresql://db/catalog"}) == ["iceberg-spark-runtime-4.0_2.13", "postgresql"]


def test_rest_glue_and_hive_with_files_in_s3() -> None:
    rest = {"type": "rest", "uri": "http://rest:8181", "credential": "id:secret", "header.X-Lake": "a", **S3}
    assert options(rest) == {
        "type": "rest",
        "header.X-Iceberg-Access-Delegation": "vended-credentials",
        "uri": "http://rest:8181",
        "credential": "id:secret",
        "header.X-Lake": "a",
        "warehouse": "s3://lake/w",
        "s3.endpoint": "http://minio:9000",
        "s3.access-key-id": "k",
        "s3.path-style-access": "true",
        "client.region": "eu",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
    }
    assert artifacts(rest) == ["iceberg-spark-runtime-4.0_2.13", "iceberg-aws-bundle"]
    assert options({"type": "glue", "glue.region": "eu"}) == {"type": "glue", "client.region": "eu"}
    assert artifacts({"type": "glue"}) == ["iceberg-spark-runtime-4.0_2.13", "iceberg-aws-bundle"]
    assert options({"uri": "thrift://hive:9083"}) == {"type": "hive", "uri": "thrift://hive:9083"}


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        ({"type": "dynamodb"}, "'dynamodb' is not one of 'rest', 'sql', 'glue', 'hive'"),
        ({"type": "in-memory"}, "catalog.type"),
        ({"type": "sql", "uri": "mysql://db/x"}, "'mysql' can't be opened by Spark"),
        ({"type": "sql", "uri": "sqlite:///:memory:"}, "in memory"),
        ({"type": "rest", "uri": "u", "adls.account-key": "hidden"}, "catalog.properties.adls.account-key"),
        ({"type": "sql", "uri": "postgresql://db/x?options=hidden"}, "its options have no equivalent"),
    ],
)
def test_what_spark_has_no_equal_of_is_refused_by_its_name(properties: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        catalog_settings("lake", properties, {})
    assert words in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_catalog_that_spark_is_told_of_whole_is_taken_as_it_is() -> None:
    given = {"spark.sql.catalog.lake": "x.Catalog", "spark.sql.catalog.lake.uri": "u", "spark.a": "b"}
    found = catalog_settings("lake", {"type": "rest", "adls.account-key": "k"}, given)
    assert found == {key: value for key, value in given.items() if key != "spark.a"}


def test_a_name_with_dots_is_none_of_sparks() -> None:
    with pytest.raises(InvalidArgument, match="can't be the name of a catalog in Spark"):
        catalog_settings("a.b", {"type": "rest"}, {})


@pytest.mark.parametrize(
    "key", ["jdbc.password", "s3.secret-access-key", "s3.access-key-id", "credential", "token", "header.Authorization"]
)
def test_spark_masks_what_is_secret(key: str) -> None:
    assert re.search(REDACTED, f"spark.sql.catalog.lake.{key}")
