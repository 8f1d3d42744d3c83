"""Catalog (Iceberg) or store (Delta) of a landing's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.hooks.delta_storage import DeltaStorageHook
from airflow_lakestream.hooks.iceberg import IcebergHook
from airflow_lakestream.lakes import LakeCapability, LakeFormat

if TYPE_CHECKING:
    from airflow_lakestream.run.job import ExtractConfig, Lake


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
