"""Hadoop's S3 client, `s3a://`, for a checkpoint in S3: jars, and settings from the connection.

The client opens only the files of the checkpoint; PyIceberg or delta-rs open tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow_lakestream.spark.packages import jar_version
from airflow_lakestream.stores.object_store import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_SCHEME = "s3a"
_SDK = "software.amazon.awssdk"
# A jar of half a gigabyte with all of Amazon's clients, a dependency of hadoop-aws.
_BUNDLE = f"{_SDK}:bundle"
# The needed clients, in the last version whose requests match those for which Hadoop 3.4 was made.
_SDK_OF_HADOOP = {"3.4.1": "2.29.52", "3.4.2": "2.29.52"}
_CLIENTS = ("s3", "s3-transfer-manager", "sts")
# Storage options of delta-rs, and Hadoop's names for them, per bucket.
_SETTINGS = {
    "aws_endpoint_url": "endpoint",
    "aws_region": "endpoint.region",
    "aws_access_key_id": "access.key",
    "aws_secret_access_key": "secret.key",
    "aws_session_token": "session.token",
}


def is_on_s3a(location: str | None) -> bool:
    """Return whether Spark opens a location with this client."""
    return str(location).startswith(f"{_SCHEME}:")


def packages() -> tuple[str, ...]:
    """Return the Maven coordinates of the client for the installed Spark's Hadoop.

    The needed clients of Amazon are listed by themselves if a proven version is known; otherwise the bundle is fetched.
    """
    hadoop = jar_version("hadoop-client-api")
    sdk = _SDK_OF_HADOOP.get(hadoop)
    clients = [f"{_SDK}:{name}:{sdk}" for name in _CLIENTS] if sdk else []
    return (f"org.apache.hadoop:hadoop-aws:{hadoop}", *clients)


def left_out() -> tuple[str, ...]:
    """Return dependencies of the packages to leave out: the bundle of all clients, if the needed clients are known."""
    return (_BUNDLE,) if jar_version("hadoop-client-api") in _SDK_OF_HADOOP else ()


def settings(location: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's settings for a location's bucket, secrets included; settings of other buckets stay."""
    options = options_of(properties)
    hadoop_settings = {name: options[option] for option, name in _SETTINGS.items() if option in options}
    if "endpoint" in hadoop_settings:
        # As PyIceberg does for an endpoint: servers other than Amazon's have no host name per bucket.
        is_host = options.get("aws_virtual_hosted_style_request", "").lower() == "true"
        hadoop_settings["path.style.access"] = "false" if is_host else "true"
    prefix = f"fs.s3a.bucket.{urlsplit(location).netloc}"
    return {f"{prefix}.{name}": value for name, value in hadoop_settings.items()}


def configure(spark: SparkSession, location: str, properties: Mapping[str, str]) -> None:
    """Set a session's S3 settings for a location; a location in another store changes nothing.

    The settings are set here, not on the command line, so that no Spark log and no page shows them.
    """
    if not is_on_s3a(location):
        return
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in settings(location, properties).items():
        hadoop.set(name, value)
