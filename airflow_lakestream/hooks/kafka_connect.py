"""A connection of type `http` (or any type with a host), as a client of Kafka Connect's REST interface."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import BaseHook

from airflow_lakestream.config.arguments import positive_seconds
from airflow_lakestream.connect.client import ConnectClient, ConnectWorkers
from airflow_lakestream.core.printable import url_of
from airflow_lakestream.hooks.connections import connection_of, refuse_unread, texts_of


class KafkaConnectHook(BaseHook):
    """Opens the workers of a Connect cluster: no official provider has a hook for Kafka Connect.

    The host may name several workers, divided by commas; each may be a whole address, such as
    `https://connect-1:8083`. The schema is `http` or `https`; login and password are for basic authentication; the
    extra may have `ca_file` and `timeout`, in seconds.
    """

    conn_name_attr = "connect_conn_id"
    default_conn_name = "kafka_connect_default"

    def __init__(self, connect_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.connect_conn_id = connect_conn_id

    def open_client(self) -> ConnectClient:
        """Return the client. Raises InvalidArgument for a missing or unusable connection."""
        remedy = "Add one of type http, with the workers' host and port."
        connection = connection_of("connect_conn_id", self.connect_conn_id, remedy)
        extra = texts_of("connect_conn_id", connection, ("ca_file", "timeout"))
        if not connection.login:
            refuse_unread("connect_conn_id", connection, "password", remedy="Give the login, too.")
        hosts = [host.strip() for host in (connection.host or "").split(",") if host.strip()]
        timeout = positive_seconds("connect_conn_id: timeout in its extra", extra.get("timeout", 30.0))
        return ConnectClient(
            ConnectWorkers(
                [url_of(host, connection.schema, connection.port) for host in hosts],
                connection.login or "",
                connection.password or "",
                extra.get("ca_file", ""),
                timeout,
            )
        )
