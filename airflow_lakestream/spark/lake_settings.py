"""PyIceberg's catalog properties as properties of Iceberg in Java, for Spark and Flink, and as Hadoop's for S3.

A property without an equivalent there is refused by name: otherwise the engine might use another catalog or other
credentials, and the mistake would be noticed late.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_lakestream.core.printable import with_port
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue
from airflow_lakestream.spark.packages import PROVEN, installed_spark, jar_version
from airflow_lakestream.stores.object_store import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ICEBERG_VERSION = "1.11.0"
_SCALA = "2.13"
# Settings whose values Spark must mask: also `s3.access-key-id`, `credential` and a REST catalog's headers.
REDACTED = "(?i)secret|password|token|access[.-]?key|credential|authorization"

# Properties with the same name in PyIceberg and in Iceberg for Java.
_SAME_NAMES = (
    "credential",
    "glue.endpoint",
    "glue.id",
    "oauth2-server-uri",
    "prefix",
    "s3.access-key-id",
    "s3.endpoint",
    "s3.secret-access-key",
    "s3.session-token",
    "scope",
    "token",
    "uri",
    "warehouse",
)
_RENAMED = {"s3.region": "client.region", "glue.region": "client.region", "client.region": "client.region"}
_HEADER = "header."
_DELEGATION = "header.X-Iceberg-Access-Delegation"
# Settings of PyIceberg itself, which no other engine needs.
_ONLY_PYICEBERG = (
    "downcast-ns-timestamp-to-us-on-write",
    "echo",
    "init_catalog_tables",
    "lock-check-max-wait-time",
    "lock-check-min-wait-time",
    "lock-check-retries",
    "pool_pre_ping",
    "py-io-impl",
    "s3.connect-timeout",
    "s3.request-timeout",
    "type",
)
# Properties that identify the catalog.
_IDENTITY = ("type", "uri", "warehouse")
_CATALOG_TYPES = ("rest", "sql", "glue", "hive")
_JDBC_PACKAGES = {"sqlite": "org.xerial:sqlite-jdbc:3.49.1.0", "postgresql": "org.postgresql:postgresql:42.7.4"}


def check_name(name: str, engine: str) -> None:
    """Refuse a name that a catalog can't have in an engine. Raises InvalidArgument."""
    if not re.fullmatch(r"[\w-]+", name):
        # An SQL catalog separates tables by the catalog's name, so all engines must use the same name.
        raise InvalidArgument("catalog.name", f"{name!r} can't be the name of a catalog in {engine}.", "Use no dots.")


def prefix_of(name: str) -> str:
    """Return the prefix of this catalog's settings in Spark. Raises InvalidArgument."""
    check_name(name, "Spark")
    return f"spark.sql.catalog.{name}"


def catalog_settings(name: str, properties: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """Return Spark's settings for PyIceberg's catalog `name`, secrets included.

    :param given: Spark settings of the configuration. If they describe the catalog (spark.sql.catalog.<name>), the
        description is used unchanged.

    Raises InvalidArgument for a property without an equivalent in Spark.
    """
    prefix = prefix_of(name)
    if prefix in given:
        return {key: str(value) for key, value in given.items() if key == prefix or key.startswith(f"{prefix}.")}
    remedy = f"Describe the whole catalog by Spark's own settings, {prefix} and {prefix}.*, under `spark`."
    options = catalog_options(properties, "Spark", remedy)
    settings = {f"{prefix}.{key}": value for key, value in options.items()}
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **settings}


def catalog_options(properties: Mapping[str, Any], engine: str, remedy: str) -> dict[str, str]:
    """Return the options of a catalog for Iceberg in Java, secrets included.

    :param properties: PyIceberg's properties of the catalog.
    :param engine: name of the engine in errors.
    :param remedy: remedy in the error for a property without an equivalent.

    Raises InvalidArgument for a property without an equivalent.
    """
    options = _translated(properties, engine, remedy)
    kind = kind_of(properties)
    if kind == "sql":
        options |= _jdbc(properties, engine)
    options["type"] = "jdbc" if kind == "sql" else kind
    if is_with_s3(properties):
        warehouse = str(properties.get("warehouse", ""))
        # Keys of S3 may be set for a checkpoint alone, while the tables are in another store.
        is_elsewhere = "://" in warehouse and not is_on_s3(warehouse)
        options["io-impl"] = f"org.apache.iceberg.{'io.ResolvingFileIO' if is_elsewhere else 'aws.s3.S3FileIO'}"
    if kind == "rest":
        # PyIceberg asks the catalog for the store's keys with each table; Java's client asks only with this header.
        options.setdefault(_DELEGATION, "vended-credentials")
    # No cache: other writers commit between two calls, and a cached table would have an older head.
    options["cache-enabled"] = "false"
    return options


def catalog_packages(properties: Mapping[str, Any], spark_version: str | None = None) -> tuple[str, ...]:
    """Return the Maven coordinates of Iceberg and of a catalog's client for Spark. Raises InvalidArgument.

    :param spark_version: None for the installed version.
    """
    spark = spark_version or installed_spark()
    minor = ".".join(spark.split(".")[:2])
    if minor != PROVEN.rpartition(".")[0]:
        problem = f"is {spark}, for which Iceberg {ICEBERG_VERSION} has no runtime that was tried here."
        raise InvalidArgument("pyspark", problem, f"Install pyspark and pyspark-client {PROVEN}, or give packages.")
    packages = [f"org.apache.iceberg:iceberg-spark-runtime-{minor}_{_SCALA}:{ICEBERG_VERSION}"]
    kind = kind_of(properties)
    if kind == "sql":
        packages.append(_JDBC_PACKAGES[_database_of(properties, "Spark")])
    if kind == "glue" or is_with_s3(properties):
        packages.append(f"org.apache.iceberg:iceberg-aws-bundle:{ICEBERG_VERSION}")
    return tuple(packages)


def identity_of(name: str, properties: Mapping[str, Any]) -> list[str | None]:
    """Return name, type, address and warehouse of a catalog, without credentials, for a fingerprint."""
    return [name, *(_without_login(properties.get(key)) for key in _IDENTITY)]


def kind_of(properties: Mapping[str, Any]) -> str:
    """Return PyIceberg's type of a catalog: the property `type`, or else the type for the address.

    Raises UnknownValue if the engines can't open such a catalog.
    """
    kind = str(properties.get("type") or _type_of(str(properties.get("uri", "")))).lower()
    if kind not in _CATALOG_TYPES:
        raise UnknownValue("catalog.type", kind, _CATALOG_TYPES)
    return kind


def _without_login(address: str | None) -> str | None:
    scheme, separator, location = (address or "").partition("://")
    return f"{scheme}://{location.rpartition('@')[2]}" if separator else address


def _type_of(uri: str) -> str:
    """Return PyIceberg's type of a catalog for an address."""
    scheme = uri.partition(":")[0]
    if scheme.startswith("thrift"):
        return "hive"
    return "sql" if scheme.startswith(("sqlite", "postgresql")) else "rest"


def _translated(properties: Mapping[str, Any], engine: str, remedy: str) -> dict[str, str]:
    """Return PyIceberg's properties as options of Iceberg's Java catalog.

    Raises InvalidArgument, with `engine` and `remedy` in its text, for a property without an equivalent.
    """
    options: dict[str, str] = {}
    for key, value in properties.items():
        if key in _SAME_NAMES or key.startswith(_HEADER):
            options[key] = str(value)
        elif key in _RENAMED:
            options[_RENAMED[key]] = str(value)
        elif key == "s3.force-virtual-addressing":
            options["s3.path-style-access"] = "false" if str(value).lower() == "true" else "true"
        elif key not in _ONLY_PYICEBERG:
            raise InvalidArgument(f"catalog.properties.{key}", f"has no equivalent in {engine}'s catalog.", remedy)
    if "s3.endpoint" in options:
        # As PyIceberg does for an endpoint: servers other than Amazon's have no host name per bucket.
        options.setdefault("s3.path-style-access", "true")
    return options


def _jdbc(properties: Mapping[str, Any], engine: str) -> dict[str, str]:
    """Return the options of Iceberg's JDBC catalog for PyIceberg's SQL catalog. Raises InvalidArgument."""
    from sqlalchemy.engine import make_url

    database, url = _database_of(properties, engine), make_url(str(properties["uri"]))
    options = {"jdbc.schema-version": "V1"}
    if database == "sqlite":
        if url.database in (None, "", ":memory:"):
            raise InvalidArgument("catalog.uri", f"is an SQLite catalog in memory, which {engine} can't see.")
        return {**options, "uri": f"jdbc:sqlite:{url.database}"}
    if unknown := sorted(set(url.query) - {"sslmode", "sslrootcert"}):
        raise InvalidArgument("catalog.uri", f"its {', '.join(unknown)} have no equivalent in {engine}'s catalog.")
    address = f"jdbc:postgresql://{with_port(url.host or 'localhost', url.port or 5432)}/{url.database or ''}"
    query = "&".join(f"{key}={value}" for key, value in url.query.items())
    options["uri"] = f"{address}?{query}" if query else address
    # As options and not in the address: Spark and Flink mask the password by the option's name, and show the address.
    for key, value in (("jdbc.user", url.username), ("jdbc.password", url.password)):
        if value is not None:
            options[key] = str(value)
    return options


def _database_of(properties: Mapping[str, Any], engine: str) -> str:
    """Return the database of an SQL catalog, a key of `_JDBC_PACKAGES`. Raises InvalidArgument."""
    database = re.split(r"[+:]", str(properties.get("uri", "")))[0]
    if database not in _JDBC_PACKAGES:
        problem = f"a catalog in {database or 'no database'!r} can't be opened by {engine}."
        raise InvalidArgument("catalog.uri", problem, "Use PostgreSQL.")
    return database


def is_on_s3(location: str) -> bool:
    """Return whether a folder is in S3."""
    return location.startswith(("s3://", "s3a://", "s3n://"))


def is_with_s3(properties: Mapping[str, Any]) -> bool:
    """Return whether a catalog's tables are in S3, as far as the properties show."""
    return is_on_s3(str(properties.get("warehouse", ""))) or any(key.startswith("s3.") for key in properties)


S3A_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_SDK = "software.amazon.awssdk"
# A jar of half a gigabyte with all of Amazon's clients, a dependency of hadoop-aws.
_BUNDLE = f"{_SDK}:bundle"
# The needed clients, in the last version whose requests match those for which Hadoop 3.4 was made.
_SDK_OF_HADOOP = {"3.4.1": "2.29.52", "3.4.2": "2.29.52"}
_CLIENTS = ("s3", "s3-transfer-manager", "sts")
# Storage options of delta-rs, and Hadoop's names for them, per bucket.
_S3A_NAMES = {
    "aws_endpoint_url": "endpoint",
    "aws_region": "endpoint.region",
    "aws_access_key_id": "access.key",
    "aws_secret_access_key": "secret.key",
    "aws_session_token": "session.token",
}


def is_on_s3a(location: str | None) -> bool:
    """Return whether Spark opens a location with Hadoop's S3 client."""
    return str(location).startswith("s3a:")


def s3a_packages() -> tuple[str, ...]:
    """Return the Maven coordinates of Hadoop's S3 client for the installed Spark.

    If the version of the needed Amazon clients is known, only these are listed; otherwise the whole bundle is fetched.
    """
    hadoop = jar_version("hadoop-client-api")
    sdk = _SDK_OF_HADOOP.get(hadoop)
    clients = [f"{_SDK}:{name}:{sdk}" for name in _CLIENTS] if sdk else []
    return (f"org.apache.hadoop:hadoop-aws:{hadoop}", *clients)


def s3a_left_out() -> tuple[str, ...]:
    """Return the dependency that `s3a_packages` replaces: the bundle of all clients; empty if nothing replaces it."""
    return (_BUNDLE,) if jar_version("hadoop-client-api") in _SDK_OF_HADOOP else ()


def s3a_settings(location: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's settings for a location's bucket, secrets included; settings of other buckets stay."""
    options = options_of(properties)
    hadoop_settings = {name: options[option] for option, name in _S3A_NAMES.items() if option in options}
    if "endpoint" in hadoop_settings:
        # As PyIceberg does for an endpoint: servers other than Amazon's have no host name per bucket.
        has_host_per_bucket = options.get("aws_virtual_hosted_style_request", "").lower() == "true"
        hadoop_settings["path.style.access"] = "false" if has_host_per_bucket else "true"
    prefix = f"fs.s3a.bucket.{urlsplit(location).netloc}"
    return {f"{prefix}.{name}": value for name, value in hadoop_settings.items()}


def configure_s3a(spark: SparkSession, location: str, properties: Mapping[str, str]) -> None:
    """Set a session's S3 settings for a location; a location in another store changes nothing.

    The settings are set here, not on the command line, so that no Spark log and no page shows them.
    """
    if not is_on_s3a(location):
        return
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in s3a_settings(location, properties).items():
        hadoop.set(name, value)
