"""Where the tables, topics and checkpoints are: opened by the ids of connections, by whoever knows the connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_lakestream.delta.storage import DeltaStorage


class Places(Protocol):
    """Opens connections. Everything here may block; nothing of it is kept."""

    def kafka(self, conn_id: str) -> tuple[Mapping[str, Any], str]:
        """Return (librdkafka's configuration, what to call the connection in errors). Raises InvalidArgument."""

    def catalog(self, conn_id: str) -> Catalog:
        """Open a catalog. Raises InvalidArgument, CatalogUnavailable."""

    def store_properties(self, conn_id: str | None) -> Mapping[str, str] | None:
        """Return what opens an object store; None without a connection. Raises InvalidArgument."""

    def delta(self, conn_id: str | None) -> DeltaStorage:
        """Open the store of Delta tables. Raises InvalidArgument."""
