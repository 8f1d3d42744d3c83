"""A cluster that lacks jars or a plugin is told so; the texts are those of Flink 2.0.0 with Iceberg 1.11.0."""

from __future__ import annotations

import pytest

from airflow_lakestream.flink.job import find_missing_dependency

BUNDLE = (
    "java.lang.NoSuchMethodException: Cannot find constructor for interface org.apache.iceberg.io.FileIO",
    "java.lang.NoClassDefFoundError: software/amazon/awssdk/services/s3/model/S3Exception",
    "java.lang.ClassNotFoundException: software.amazon.awssdk.services.s3.model.S3Exception",
)
HIVE = (
    "java.lang.NoSuchMethodException: Cannot find constructor for interface org.apache.iceberg.catalog.Catalog",
    "java.lang.NoClassDefFoundError: org/apache/hadoop/hive/metastore/api/NoSuchObjectException",
    "java.lang.ClassNotFoundException: org.apache.hadoop.hive.metastore.api.NoSuchObjectException",
)
DRIVER = (
    "org.apache.flink.table.api.ValidationException: Unable to create catalog 'c4'.",
    "org.apache.iceberg.jdbc.UncheckedSQLException: Failed to connect: jdbc:postgresql://127.0.0.1:1/d",
    "java.sql.SQLException: No suitable driver found for jdbc:postgresql://127.0.0.1:1/d",
)
PLUGIN = (
    "org.apache.flink.util.FlinkRuntimeException: Failed to create checkpoint storage at checkpoint coordinator side.",
    "org.apache.flink.core.fs.UnsupportedFileSystemSchemeException: Could not find a file system implementation for "
    "scheme 's3'. The scheme is directly supported by Flink through the following plugin(s): flink-s3-fs-hadoop, "
    "flink-s3-fs-presto. Please ensure that each plugin resides within its own subfolder",
)
ANOTHER = (PLUGIN[1].replace("'s3'", "'gs'"),)


@pytest.mark.parametrize(
    ("causes", "argument", "said"),
    [
        (BUNDLE, "iceberg_conn_id", "iceberg-aws-bundle:1.11.0"),
        (HIVE, "iceberg_conn_id", "lacks the metastore's client (org/apache/hadoop/hive/metastore/api/NoSuch"),
        (DRIVER, "iceberg_conn_id", "the JDBC driver of postgresql."),
        (PLUGIN, "checkpoint_location", "Flink has no file system for s3://. Put flink-s3-fs-hadoop"),
        (ANOTHER, "checkpoint_location", "Flink has no file system for gs://. Give Flink the plugin"),
    ],
    ids=["aws-bundle", "hive", "jdbc-driver", "s3-plugin", "another-plugin"],
)
def test_what_is_not_there_is_named(causes: tuple[str, ...], argument: str, said: str) -> None:
    found = find_missing_dependency(causes)
    assert found is not None
    assert found.argument == argument
    assert said in str(found)


def test_what_may_be_over_soon_is_left_to_another_try() -> None:
    assert find_missing_dependency(()) is None
    assert (
        find_missing_dependency(("software.amazon.awssdk.services.s3.model.S3Exception: Access Denied (Service: S3)",))
        is None
    )
    assert find_missing_dependency(("java.net.ConnectException: Connection refused",)) is None
