"""Opens tables, topics and checkpoints by connection id; implemented where the connections are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_lakestream.delta.storage import DeltaStorage


class Places(Protocol):
    """Opens connections. Every call may block; nothing is kept."""

    def kafka(self, conn_id: str) -> tuple[Mapping[str, Any], str]:
        """Return (librdkafka configuration, name of the connection for errors). Raises InvalidArgument."""

    def catalog(self, conn_id: str) -> Catalog:
        """Open a catalog. Raises InvalidArgument, CatalogUnavailable."""

    def store_properties(self, conn_id: str | None) -> Mapping[str, str] | None:
        """Return the properties that open an object store; None without a connection. Raises InvalidArgument."""

    def delta(self, conn_id: str | None) -> DeltaStorage:
        """Open the store of Delta tables. Raises InvalidArgument."""
