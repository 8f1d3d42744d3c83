"""Refusal of Spark Connect: no SparkContext in the client, and `foreachBatch` on the server.

The apps send tasks to executors as RDDs, and the callback that commits a batch needs its own program's lease.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_lakestream.exceptions import InvalidArgument

# Environment variables that make pyspark a Connect client.
VARIABLES = ("SPARK_REMOTE", "SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED")
_TYPES = ("sc", "spark_connect")


def check_connection(conn_type: str, host: str) -> None:
    """Raise InvalidArgument if a connection leads to Spark Connect."""
    if conn_type in _TYPES or host.startswith("sc://"):
        raise _refused("spark_conn_id", "the connection leads to Spark Connect")


def check_settings(settings: Mapping[str, object]) -> None:
    """Raise InvalidArgument if Spark settings make the session a session of Spark Connect.

    A master in the form sc://, any `spark.remote`, and the API mode "connect" do so.
    """
    for key in ("spark.remote", "spark.master", "spark.api.mode"):
        value = str(settings.get(key, ""))
        if value.startswith("sc://") or (value and key == "spark.remote") or value.lower() == "connect":
            raise _refused("conf", f"{key}={value.partition(';')[0]} asks for Spark Connect")


def check_variables(argument: str, variables: Mapping[str, str]) -> None:
    """Raise InvalidArgument if environment variables make the session a session of Spark Connect."""
    for name in VARIABLES:
        if str(variables.get(name, "")).lower() not in ("", "classic"):
            raise _refused(argument, f"{name} asks for Spark Connect")


def _refused(argument: str, problem: str) -> InvalidArgument:
    return InvalidArgument(
        argument,
        f"{problem}, which can't run an app: its client has no SparkContext, and the callback that commits a "
        "batch would run on the server, without the lease.",
        "Name the master itself: local[*], spark://..., yarn, or k8s://...",
    )
