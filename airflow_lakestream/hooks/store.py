"""Properties of an object store, from the connection of an Iceberg catalog or of Delta tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_lakestream.hooks.connections import connection_of, find_connection
from airflow_lakestream.hooks.delta_storage import DeltaStorageHook
from airflow_lakestream.hooks.iceberg import IcebergHook

_OF_DELTA = ("aws", "generic")


def store_properties(conn_id: str | None) -> dict[str, str] | None:
    """Return the properties for opening the object store of a checkpoint.

    They are PyIceberg's properties for a connection of type `iceberg`, and delta-rs' storage options for `aws` and
    `generic`; secrets are included.

    :param conn_id: None or an empty text for a local checkpoint: the function then returns None.

    Raises InvalidArgument if `conn_id` names no connection, or an unusable connection.
    """
    if not conn_id:
        return None
    remedy = "Add it: it opens the checkpoint's object store."
    if connection_of("storage_conn_id", conn_id, remedy).conn_type in _OF_DELTA:
        return dict(DeltaStorageHook(conn_id).open_storage().options)
    return IcebergHook(conn_id).properties()


def fields_of(conn_id: str) -> dict[str, Any] | None:
    """Return a connection's fields, secrets included, with the extra as a mapping.

    Returns None if no connection has the id. Raises InvalidArgument for an unreadable connection.
    """
    connection = find_connection("connection", conn_id)
    if connection is None:
        return None
    named = ("conn_type", "host", "port", "login", "password", "schema")
    fields = {name: getattr(connection, name) for name in named if getattr(connection, name)}
    extra = connection.extra_dejson
    return {**fields, "extra": dict(extra) if isinstance(extra, Mapping) else {}}
