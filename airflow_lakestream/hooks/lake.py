"""Catalog (Iceberg) or store (Delta) of a landing's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lakestream.core.policies import is_given
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.hooks.delta_storage import DeltaStorageHook
from airflow_lakestream.hooks.iceberg import IcebergHook

if TYPE_CHECKING:
    from airflow_lakestream.lakes.formats import LakeFormat
    from airflow_lakestream.run.job import ExtractConfig, Lake


def open_lake(config: ExtractConfig, iceberg_conn_id: str, storage_conn_id: str | None) -> Lake:
    """Open the catalog or store of a landing's tables.

    Raises CatalogUnavailable, and InvalidArgument for an unusable connection, or for `storage_conn_id` with Iceberg
    tables.
    """
    if config.lake.has_catalog and is_given(storage_conn_id):
        raise InvalidArgument(
            "storage_conn_id", 'belongs to table_format="delta".', "A catalog knows where its tables are."
        )
    return open_tables(config.lake, iceberg_conn_id, storage_conn_id)


def open_tables(lake: LakeFormat, iceberg_conn_id: str, storage_conn_id: str | None) -> Lake:
    """Open the catalog or store for tables of a format. Raises InvalidArgument, CatalogUnavailable."""
    if lake.has_catalog:
        return IcebergHook(iceberg_conn_id).open_catalog()
    return DeltaStorageHook(storage_conn_id if is_given(storage_conn_id) else None).open_storage()
