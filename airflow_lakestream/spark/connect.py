"""Spark Connect, on which the apps can't run: its client has no SparkContext, and `foreachBatch` runs on the server.

The apps hand tasks to executors as RDDs, and the callback that commits a batch needs the lease of its own program.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_lakestream.exceptions import InvalidArgument

# Where pyspark looks, besides its settings, before it chooses between a client and a driver.
VARIABLES = ("SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED")
_TYPES = ("sc", "spark_connect")


def check_connection(conn_type: str, host: str) -> None:
    """Raise InvalidArgument for a connection that leads to Spark Connect."""
    if conn_type in _TYPES or host.startswith("sc://"):
        raise _refused("spark_conn_id", "the connection leads to Spark Connect")


def check_settings(settings: Mapping[str, object]) -> None:
    """Raise InvalidArgument for settings of Spark that make the session one of Spark Connect."""
    for key in ("spark.remote", "spark.master", "spark.api.mode"):
        value = str(settings.get(key, ""))
        if value.startswith("sc://") or (value and key == "spark.remote") or value.lower() == "connect":
            raise _refused("conf", f"{key}={value.partition(';')[0]} asks for Spark Connect")


def check_variables(argument: str, variables: Mapping[str, str]) -> None:
    """Raise InvalidArgument for variables of the environment that do the same."""
    for name in VARIABLES:
        if variables.get(name, "").lower() not in ("", "classic"):
            raise _refused(argument, f"{name} asks for Spark Connect")


def _refused(argument: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        argument,
        f"{problem}, which has no driver for an app: its client has no SparkContext, and the callback that commits a "
        "batch would run on the server, without the lease.",
        "Name the master itself: local[*], spark://..., yarn, or k8s://...",
    )
