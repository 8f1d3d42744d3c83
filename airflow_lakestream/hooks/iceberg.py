"""The official provider's `iceberg` connection, as a PyIceberg catalog."""

from __future__ import annotations

from functools import cached_property
from urllib.parse import unquote, urlsplit

from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook as OfficialIcebergHook
from airflow.providers.common.compat.sdk import conf, mask_secret
from pyiceberg.catalog import Catalog, CatalogType, load_catalog
from pyiceberg.exceptions import NotInstalledError
from requests import RequestException
from sqlalchemy.exc import ArgumentError

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient, UnknownValue
from airflow_lakestream.hooks.connections import connection_of, refuse_unread, texts_of

# PyIceberg can't commit to these at all, or can't compare and set: exactly-once would not hold.
UNFIT_CATALOGS = ("bigquery", "dynamodb")


class CatalogUnavailable(LakestreamError, Transient):
    """Error of a catalog that did not answer, or refused."""

    def __init__(self, conn_id: str, cause: Exception) -> None:
        remedy = "Check host, login, password and the extra (type, uri, warehouse) of the connection."
        if isinstance(cause, NotInstalledError):
            # PyIceberg reports a missing driver of a database as missing support of SQL.
            remedy = (
                "Install the client of the catalog's type or the driver in its uri, such as psycopg2-binary for "
                "postgresql+psycopg2://, in each part of Airflow."
            )
        super().__init__(
            f"Iceberg connection {conn_id!r}: the catalog can't be used ({type(cause).__name__}: {cause}). {remedy}"
        )


class IcebergHook(OfficialIcebergHook):
    """Opens the catalog of an `iceberg` connection: REST, Glue, SQL, Hive, or any catalog known to PyIceberg."""

    def open_catalog(self) -> Catalog:
        """Return the catalog.

        Raises InvalidArgument for an unusable connection, and CatalogUnavailable if the catalog does not answer or
        refuses.
        """
        properties = self.properties()
        try:
            return load_catalog(self.conn_id, **{"type": "rest", **properties})
        except Exception as e:
            # A catalog whose answer is not JSON may be available later.
            if isinstance(e, ValueError | TypeError | ArgumentError) and not isinstance(e, RequestException):
                problem = f"connection {self.conn_id!r} opens no catalog ({type(e).__name__}: {e})."
                raise InvalidArgument("iceberg_conn_id", problem, "Correct its extra.") from e
            raise CatalogUnavailable(self.conn_id, e) from e

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog, for users of the official hook."""
        return self.open_catalog()

    def properties(self) -> dict[str, str]:
        """Return PyIceberg's properties of the catalog, secrets included. Raises InvalidArgument."""
        properties = self._properties()
        self._check(properties)
        return properties

    def _properties(self) -> dict[str, str]:
        """Return the properties that the connection's fields and extra stand for, with all secrets masked in logs."""
        connection = connection_of(
            "iceberg_conn_id",
            self.conn_id,
            "Add one of type iceberg: the catalog's address as host for a REST catalog, or an extra such as "
            '{"type": "sql", "uri": "postgresql+psycopg2://...", "warehouse": "s3://bucket/path"}.',
        )
        properties = texts_of("iceberg_conn_id", connection)
        if connection.host:
            # As in the official hook, the field wins over a uri in the extra.
            properties["uri"] = connection.host.rstrip("/")
        if properties.get("type", "rest").lower() != "rest":
            remedy = "They are for a REST catalog. For another catalog, write everything into the extra."
            refuse_unread("iceberg_conn_id", connection, "login", "password", remedy=remedy)
        elif connection.login and connection.password:
            properties["credential"] = f"{connection.login}:{connection.password}"
        else:
            remedy = "A REST catalog takes both, the client's id and its secret: give both, or neither."
            refuse_unread("iceberg_conn_id", connection, "login", "password", remedy=remedy)
        _mask(properties)
        return properties

    def _check(self, properties: dict[str, str]) -> None:
        """Raise InvalidArgument if no landing can use a catalog with these properties."""
        kind = properties.get("type", "rest").lower()
        if kind in UNFIT_CATALOGS:
            raise InvalidArgument(
                "iceberg_conn_id",
                f"connection {self.conn_id!r} is a {kind} catalog, which can't compare and set a commit in PyIceberg.",
                "Use a REST, Glue, SQL or Hive catalog.",
            )
        known = sorted({str(member.value) for member in CatalogType} - {*UNFIT_CATALOGS})
        if kind not in known:
            raise UnknownValue(f"iceberg_conn_id: connection {self.conn_id!r}: type", kind, known)
        uri = properties.get("uri", "")
        if kind == "rest" and uri and not uri.startswith(("http://", "https://")):
            problem = f"the host of connection {self.conn_id!r} is not an address of http or https."
            raise InvalidArgument("iceberg_conn_id", problem, "Write it with its scheme: https://catalog/iceberg.")
        if kind in ("sql", "in-memory") and properties.get("uri", "sqlite").startswith("sqlite"):
            self._check_shared_disk()

    def _check_shared_disk(self) -> None:
        """Raise InvalidArgument if tasks may run on several machines: each would have an SQLite catalog of its own."""
        # Each executor is written as Class, module.Class or alias:module.Class.
        executors = [name.split(":")[-1].split(".")[-1].strip() for name in conf.get("core", "executor").split(",")]
        if remote := [name for name in executors if name not in ("LocalExecutor", "SequentialExecutor")]:
            raise InvalidArgument(
                "iceberg_conn_id",
                f"connection {self.conn_id!r} is an SQLite catalog, but workers of {', '.join(remote)} share no disk.",
                "Use a REST, Glue or PostgreSQL catalog.",
            )


def _mask(properties: dict[str, str]) -> None:
    """Mask the secrets that Airflow does not recognize by name: `credential`, and the password in `uri`."""
    credential = str(properties.get("credential", ""))
    password = urlsplit(str(properties.get("uri", ""))).password or ""
    for secret in {credential, credential.rpartition(":")[2], password, unquote(password)} - {""}:
        mask_secret(secret)
