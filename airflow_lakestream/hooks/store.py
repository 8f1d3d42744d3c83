"""The properties that open an object store, from the connection of an Iceberg catalog or of Delta tables."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.delta_storage import DeltaStorageHook
from airflow_lakestream.hooks.iceberg import IcebergHook

_OF_DELTA = ("aws", "generic")


def store_properties(conn_id: str | None) -> dict[str, str] | None:
    """Return a catalog's properties, or delta-rs' storage options; None without a connection.

    Raises InvalidArgument for a connection that is missing or can't work.
    """
    if not conn_id:
        return None
    try:
        kind = BaseHook.get_connection(conn_id).conn_type
    except AirflowNotFoundException as e:
        remedy = "Add it: it opens the checkpoint's object store."
        raise InvalidArgument("storage_conn_id", f"there is no connection {conn_id!r}.", remedy) from e
    if kind in _OF_DELTA:
        return dict(DeltaStorageHook(conn_id).open_storage().options)
    return IcebergHook(conn_id).properties()


def fields_of(conn_id: str) -> dict[str, Any] | None:
    """Return what a connection says, secrets included, its extra as a mapping; None if there is no such connection."""
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return None
    named = ("conn_type", "host", "port", "login", "password", "schema")
    fields = {name: getattr(connection, name) for name in named if getattr(connection, name)}
    return {**fields, "extra": dict(connection.extra_dejson)}
