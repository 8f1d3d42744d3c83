"""A connection of type `http` as Flink's two addresses: the SQL Gateway's, and in its extra the JobManager's."""

from __future__ import annotations

from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import BaseHook, mask_secret

from airflow_lakestream.core.printable import url_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.connections import connection_of, texts_of

DEFAULT = "flink_default"
_REMEDY = (
    'Add one of type http: host and port are the SQL Gateway\'s, the extra is {"jobmanager_url": '
    '"http://jobmanager:8081"}; login and password, or a "token" in the extra, if a proxy in front of them needs these.'
)


class FlinkHook(BaseHook):
    """Reads the connection of a Flink cluster."""

    def __init__(self, flink_conn_id: str = DEFAULT) -> None:
        super().__init__()
        self.flink_conn_id = flink_conn_id

    def addresses(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return (SQL Gateway, JobManager), each as fields of `flink.rest.FlinkAddress` with secrets.

        Raises InvalidArgument for a missing or unusable connection.
        """
        connection = connection_of("flink_conn_id", self.flink_conn_id, _REMEDY)
        extra = texts_of("flink_conn_id", connection, ("jobmanager_url", "token"))
        host = url_of(connection.host, connection.schema, connection.port) if connection.host else ""
        login = {"login": connection.login or "", "password": connection.password or ""}
        login["token"] = extra.get("token", "")
        for secret in (login["password"], login["token"]):
            if secret:
                mask_secret(secret)
        gateway = self._checked("host", host)
        return {"url": gateway, **login}, {"url": self._checked("jobmanager_url", extra.get("jobmanager_url")), **login}

    def _checked(self, name: str, url: object) -> str:
        """Return a checked address of the connection, without a slash at the end.

        :param name: the field or the name in the extra, for the error.

        Raises InvalidArgument if `url` is no http address or has a password.
        """
        try:
            parts = urlsplit(str(url or ""))
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            problem = f"{name} of connection {self.flink_conn_id!r} is not an http address."
            raise InvalidArgument("flink_conn_id", problem, _REMEDY)
        if parts.password:
            remedy = "Put it into the field of the connection."
            raise InvalidArgument("flink_conn_id", f"{name} has a password in it, which would be shown.", remedy)
        return str(url).rstrip("/")
