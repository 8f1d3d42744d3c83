"""A connection of a database, as options of Flink's CDC connectors."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import mask_secret

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.connections import connection_of

_FIELDS = {
    "host": "hostname",
    "port": "port",
    "login": "username",
    "password": "password",
    "schema": "database-name",
}
_HOW = "Add one with host, port, login, password, and the database's name in the field schema (or database)."


def connector_options(conn_id: str) -> dict[str, str]:
    """Return the options of a Flink CDC connector for the database, secrets included.

    Airflow masks the password from here on. Raises InvalidArgument if the connection or one of its fields is missing.
    """
    connection = connection_of("database_conn_id", conn_id, _HOW)
    if connection.password:
        mask_secret(connection.password)
    if lacking := [field for field in _FIELDS if not getattr(connection, field)]:
        raise InvalidArgument("database_conn_id", f"connection {conn_id!r} has no {' and no '.join(lacking)}.", _HOW)
    return {option: str(getattr(connection, field)) for field, option in _FIELDS.items()}
