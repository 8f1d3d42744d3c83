"""The official provider's `iceberg` connection, as a PyIceberg catalog."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from airflow.providers.apache.iceberg.hooks.iceberg import IcebergHook as OfficialIcebergHook
from airflow.providers.common.compat.sdk import AirflowNotFoundException, conf, mask_secret
from pyiceberg.catalog import Catalog

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Transient

# In PyIceberg these can't commit at all, or can't compare and set: exactly-once would not hold.
UNFIT_CATALOGS = ("bigquery", "dynamodb")


class CatalogUnavailable(LakestreamError, Transient):
    """The catalog did not answer, or refused."""

    def __init__(self, conn_id: str, cause: Exception) -> None:
        super().__init__(
            f"Iceberg connection {conn_id!r}: the catalog can't be used ({type(cause).__name__}: {cause}). Check host, "
            "login, password and the extra (type, uri, warehouse) of the connection."
        )


class IcebergHook(OfficialIcebergHook):
    """Opens the catalog of an `iceberg` connection: REST, Glue, SQL, Hive, whatever PyIceberg knows."""

    def open_catalog(self) -> Catalog:
        """Return the catalog. Raises InvalidArgument for a connection that can't work, otherwise CatalogUnavailable."""
        self.properties()
        try:
            return self.catalog
        except Exception as e:
            raise CatalogUnavailable(self.conn_id, e) from e

    def properties(self) -> dict[str, str]:
        """Return PyIceberg's properties of the catalog, secrets included. Raises InvalidArgument."""
        properties = self._properties()
        self._check(properties)
        return properties

    def _properties(self) -> dict[str, str]:
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException as e:
            raise InvalidArgument(
                "iceberg_conn_id",
                f"there is no connection {self.conn_id!r}.",
                "Add one of type iceberg: the catalog's address as host for a REST catalog, or an extra such as "
                '{"type": "sql", "uri": "postgresql+psycopg2://...", "warehouse": "s3://bucket/path"}.',
            ) from e
        properties = dict(connection.extra_dejson)
        if connection.host:
            # As in the official hook: the form's field wins.
            properties["uri"] = connection.host.rstrip("/")
        _mask(properties)
        return properties

    def _check(self, properties: dict[str, str]) -> None:
        kind = str(properties.get("type", "rest")).lower()
        if kind in UNFIT_CATALOGS:
            raise InvalidArgument(
                "iceberg_conn_id",
                f"connection {self.conn_id!r} is a {kind} catalog, which can't compare and set a commit in PyIceberg.",
                "Use a REST, Glue, SQL or Hive catalog.",
            )
        if kind in ("sql", "in-memory") and str(properties.get("uri", "sqlite")).startswith("sqlite"):
            self._check_shared_disk()

    def _check_shared_disk(self) -> None:
        executors = [name.split(":")[-1].split(".")[-1].strip() for name in conf.get("core", "executor").split(",")]
        if remote := [name for name in executors if name not in ("LocalExecutor", "SequentialExecutor")]:
            raise InvalidArgument(
                "iceberg_conn_id",
                f"connection {self.conn_id!r} is an SQLite catalog, but workers of {', '.join(remote)} share no disk.",
                "Use a REST, Glue or PostgreSQL catalog.",
            )


def _mask(properties: dict[str, str]) -> None:
    """Mask the secrets that Airflow does not recognize by their names."""
    credential = str(properties.get("credential", ""))
    password = urlsplit(str(properties.get("uri", ""))).password or ""
    for secret in {credential, credential.rpartition(":")[2], password, unquote(password)} - {""}:
        mask_secret(secret)
