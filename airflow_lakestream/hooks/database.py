"""Address of the database of a mirror's table, from an Airflow connection."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import mask_secret

from airflow_lakestream.audit.source_database import ARGUMENT, DatabaseAddress, DatabaseKind
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.connections import connection_of, texts_of

_REMEDY = "Add one of type postgres or mysql with host, port, login, password, and the database's name as schema."
_KINDS = {"postgres": DatabaseKind.POSTGRES, "mysql": DatabaseKind.MYSQL, "mariadb": DatabaseKind.MYSQL}
# Options of each driver that a connection's extra may have: those of TLS.
_OPTIONS = {
    DatabaseKind.POSTGRES: ("sslmode", "sslrootcert", "sslcert", "sslkey"),
    DatabaseKind.MYSQL: ("ssl_ca", "ssl_cert", "ssl_key"),
}


def source_address(conn_id: str) -> DatabaseAddress:
    """Return the address of a connection; Airflow masks the password from here on. Raises InvalidArgument."""
    connection = connection_of(ARGUMENT, conn_id, _REMEDY)
    if connection.password:
        mask_secret(connection.password)
    kind = _KINDS.get(connection.conn_type)
    if kind is None or not connection.host:
        problem = f"is of type {connection.conn_type!r}" if kind is None else "has no host"
        raise InvalidArgument(ARGUMENT, f"connection {conn_id!r} {problem}.", _REMEDY)
    return DatabaseAddress(
        kind=kind,
        host=connection.host,
        port=connection.port,
        user=connection.login or "",
        password=connection.password or "",
        database=connection.schema or "",
        options=texts_of(ARGUMENT, connection, _OPTIONS[kind]),
        where=f"connection {conn_id!r}",
    )
