"""Names as OpenLineage's specification has them, and no secret in any."""

from __future__ import annotations

import pytest

from airflow_lakestream.lineage.facts import brokers_of, kafka_namespace, of_catalog, of_location


@pytest.mark.parametrize("brokers", ["b2:9092,b1:9092", " B1 , b2:9092", "PLAINTEXT://b2:9092, SSL://b1:9092,"])
def test_one_cluster_is_one_namespace_however_its_brokers_are_listed(brokers: str) -> None:
    assert kafka_namespace(brokers) == "kafka://b1:9092"


def test_brokers_of_other_spellings() -> None:
    assert kafka_namespace("[::1]:9093") == "kafka://[::1]:9093"
    assert kafka_namespace("[::1]") == "kafka://[::1]:9092"
    assert kafka_namespace("") == "kafka://unknown"
    assert brokers_of({"metadata.broker.list": "a:1"}) == "a:1"
    assert brokers_of({}) == ""


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://lake/warehouse/orders/", ("s3://lake", "warehouse/orders")),
        ("s3a://lake/warehouse/orders", ("s3://lake", "warehouse/orders")),
        ("gs://lake/orders", ("gs://lake", "orders")),
        ("abfss://box@account.dfs.core.windows.net/a/b", ("abfss://box@account.dfs.core.windows.net", "a/b")),
        ("hdfs://names:8020/lake/orders", ("hdfs://names:8020", "/lake/orders")),
        ("file:///lake/a%20b/", ("file", "/lake/a b")),
        ("/lake/a b/orders/", ("file", "/lake/a b/orders")),
    ],
)
def test_a_table_is_named_by_where_it_lies(location: str, expected: tuple[str, str]) -> None:
    assert of_location(location) == expected


@pytest.mark.parametrize(
    ("kind", "properties", "expected"),
    [
        ("rest", {"uri": "https://me:secret@rest/v1?token=secret"}, "https://rest/v1"),
        ("hive", {"uri": "thrift://m2:9083,thrift://m1:9083"}, "hive://m1:9083"),
        ("sql", {"uri": "postgresql://me:secret@db/lake", "warehouse": "s3://lake/warehouse/"}, "s3://lake/warehouse"),
        ("sql", {"uri": "sqlite:////lake/catalog.db", "warehouse": "/lake/warehouse"}, "file:///lake/warehouse"),
        ("glue", {}, "mine"),
        ("rest", {"warehouse": "named"}, "named"),
    ],
)
def test_a_catalog_is_named_without_its_secrets(kind: str, properties: dict[str, str], expected: str) -> None:
    assert of_catalog("mine", kind, properties) == expected
