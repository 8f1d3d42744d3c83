"""Dependencies lacking in a cluster for a job, found in Flink's messages: a retry does not help."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.spark.settings.catalog import ICEBERG_VERSION

_PAGE = "docs/flink.md has the jars."
# By the pattern of a message: the argument that needs the dependency, the problem, and the remedy.
_LACKING = (
    (
        r"Could not find a file system implementation for scheme '(s3a?)'",
        "checkpoint_location",
        "Flink has no file system for {0}://.",
        "Put flink-s3-fs-hadoop, of Flink's version, into a folder of its own below `plugins` of each of its "
        "processes, and the store's endpoint and keys into Flink's configuration.",
    ),
    (
        r"Could not find a file system implementation for scheme '(\w+)'",
        "checkpoint_location",
        "Flink has no file system for {0}://.",
        "Give Flink the plugin of that store, or choose a location that Flink supports.",
    ),
    (
        r"(?:NoClassDefFoundError|ClassNotFoundException): (software[./]amazon\S+)",
        "iceberg_conn_id",
        "its tables are in S3, and Flink lacks the S3 client ({0}).",
        f"Put iceberg-aws-bundle:{ICEBERG_VERSION} on the class path of each of Flink's processes.",
    ),
    (
        r"(?:NoClassDefFoundError|ClassNotFoundException): (org[./]apache[./](?:hadoop[./]hive|thrift)\S+)",
        "iceberg_conn_id",
        "its catalog is Hive's metastore, and Flink lacks the metastore's client ({0}).",
        f"Put the client on the class path of each of Flink's processes. {_PAGE}",
    ),
    (
        r"No suitable driver found for jdbc:(\w+):",
        "iceberg_conn_id",
        "its catalog is in a database, and Flink lacks the JDBC driver of {0}.",
        "Put the driver on the class path of each of Flink's processes.",
    ),
)


def find_missing_dependency(causes: Sequence[str]) -> InvalidArgument | None:
    """Return the error for a missing dependency; None if the causes name no missing dependency."""
    for pattern, argument, problem, remedy in _LACKING:
        for cause in causes:
            if match := re.search(pattern, cause):
                return InvalidArgument(argument, problem.format(match[1].rstrip("])}")), remedy)
    return None
