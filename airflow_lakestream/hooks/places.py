"""Catalogs, object stores and Kafka clusters, opened by Airflow connections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.hooks.kafka import KafkaHook
from airflow_lakestream.hooks.store import DeltaStorageHook, store_properties
from airflow_lakestream.lakes import LakeCapability, LakeFormat

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from airflow_lakestream.delta.storage import DeltaStorage
    from airflow_lakestream.run.job import ExtractConfig, Lake


class AirflowPlaces:
    """`watching.asking.LookConnections` for Airflow: opens connections by their ids."""

    def kafka(self, conn_id: str) -> tuple[Mapping[str, Any], str]:
        """Return (librdkafka configuration, name of the connection for errors). Raises InvalidArgument."""
        hook = KafkaHook(conn_id)
        return hook.configuration(), hook.where

    def catalog(self, conn_id: str) -> Catalog:
        """Open a catalog. Raises InvalidArgument, CatalogUnavailable."""
        return IcebergHook(conn_id).open_catalog()

    def store_properties(self, conn_id: str | None) -> Mapping[str, str] | None:
        """Return the properties for opening a checkpoint's object store; see `hooks.store.store_properties`."""
        return store_properties(conn_id)

    def delta(self, conn_id: str | None) -> DeltaStorage:
        """Open the store of Delta tables; without `conn_id` the worker's environment has the credentials.

        Raises InvalidArgument, MissingExtra.
        """
        return DeltaStorageHook(conn_id).open_storage()


def open_lake(config: ExtractConfig, iceberg_conn_id: str, storage_conn_id: str | None) -> Lake:
    """Open the catalog or store of a landing's tables.

    Raises CatalogUnavailable, and InvalidArgument for an unusable connection, or for `storage_conn_id` with Iceberg
    tables.
    """
    if is_given(storage_conn_id):
        config.lake.require(LakeCapability.STORE, "storage_conn_id", config.table)
    return open_tables(config.lake, iceberg_conn_id, storage_conn_id)


def open_tables(lake: LakeFormat, iceberg_conn_id: str, storage_conn_id: str | None) -> Lake:
    """Open the catalog or store for tables of a format. Raises InvalidArgument, CatalogUnavailable."""
    if LakeCapability.CATALOG in lake.can:
        return IcebergHook(iceberg_conn_id).open_catalog()
    return DeltaStorageHook(storage_conn_id if is_given(storage_conn_id) else None).open_storage()
