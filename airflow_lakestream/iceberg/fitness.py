"""What a catalog, and a table of it, have to be for a landing: looked at before a record is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from urllib.parse import urlsplit

from pydantic import ValidationError as PydanticError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import CommitTableResponse, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.iceberg import table_properties
from airflow_lakestream.iceberg.commit import hive, retention
from airflow_lakestream.iceberg.hdfs import HdfsFileIO
from airflow_lakestream.iceberg.ledger_store import name_of
from airflow_lakestream.iceberg.write.files import check_file_format
from airflow_lakestream.iceberg.write.layout import check_fields, check_names
from airflow_lakestream.runtime.processes import forbid_forks
from airflow_lakestream.stores import azure, hdfs

# PyIceberg's modules of catalogs whose `commit_table` is not written.
_WITHOUT_COMMITS = {f"pyiceberg.catalog.{name}" for name in ("bigquery_metastore", "dynamodb", "noop")}
# Where a query or a fragment of a URI would begin, and what is no character of a URI.
_ODD = re.compile(r"[?#\x00-\x1f\x7f]")
_PLACES = (TableProperties.WRITE_DATA_PATH, TableProperties.WRITE_METADATA_PATH)
# Version 1 has no sequence numbers, which the ledger is read by. PyIceberg reads version 3, and does not write it.
WRITTEN_VERSION = 2


class CatalogCantCommit(LakestreamError, Terminal):
    """A catalog through which PyIceberg can't commit."""

    def __init__(self, table: str, catalog: Catalog) -> None:
        super().__init__(
            f"{table}: PyIceberg can't commit through its {type(catalog).__name__}, so nothing was read. Use a "
            "connection to a REST, Glue, SQL or Hive catalog."
        )


class FormatVersionTooNew(LakestreamError, Terminal):
    """A table of a format that PyIceberg can read and not write."""

    def __init__(self, table: str, version: int) -> None:
        super().__init__(
            f"{table} is an Iceberg table of format version {version}, and PyIceberg, which commits here, writes "
            f"version {WRITTEN_VERSION} only. Nothing was changed. No table can be taken back to an older version: "
            "land in another one, which is made of version 2 when it is missing, and copy into it with Spark what "
            "this one has. Sensors, `lakestream ledger show` and the audit go on reading this one."
        )


# What PyIceberg raises for metadata that it finds wrong, or does not understand; its clients of stores, for lost ones.
OF_METADATA = (ValidationError, PydanticError, FileNotFoundError)
_LONGEST = 500


class UnreadableTable(LakestreamError, Terminal):
    """A table whose metadata PyIceberg can't read: made by newer means, damaged, or gone."""

    def __init__(self, table: str, cause: Exception) -> None:
        if gone := isinstance(cause, FileNotFoundError):
            remedy = "Restore the file; or register the table with a metadata file that is there, or drop it."
        else:
            remedy = (
                "Take away what PyIceberg does not know, such as a column of a newer type; or land in another table."
            )
        said = " ".join(str(cause).partition("For further information")[0].split())[:_LONGEST]
        super().__init__(
            f"{table}: {'a file of its metadata is gone' if gone else 'PyIceberg can not read its metadata'} "
            f"({said}). Nothing was read or changed. {remedy}"
        )


def check(catalog: Catalog, table: Table) -> None:
    """Refuse a table that can't be committed to. Raises what the parts raise."""
    check_catalog(catalog, name_of(table))
    check_table(table)


def check_catalog(catalog: Catalog, name: str) -> None:
    """Refuse a catalog that can't compare and set a commit of this table.

    Raises CatalogCantCommit, and MetastoreDoesNotCompare.
    """
    if _WITHOUT_COMMITS & {kind.__module__ for kind in type(catalog).__mro__}:
        raise CatalogCantCommit(name, catalog)
    if hive.is_hive(catalog):
        hive.check(catalog, name)


def check_table(table: Table) -> None:
    """Refuse a table that can't be written here.

    Raises FormatVersionTooNew, and InvalidArgument for its properties, partitions and order.
    """
    check_version(table.metadata, name_of(table))
    check_names(table.spec(), name_of(table))
    check_fields(table)
    check_properties(table.metadata.properties)


def check_store(table: Table) -> None:
    """Refuse a place that the table's client can't open; note a client that does not survive a fork.

    Raises InvalidArgument.
    """
    for one in (table.location(), *(table.properties.get(key, "") for key in _PLACES)):
        check_place(name_of(table), one)
    place = urlsplit(table.location())
    if place.scheme == hdfs.SCHEME and isinstance(table.io, PyArrowFileIO):
        raise InvalidArgument(
            "iceberg_conn_id",
            f"{name_of(table)}: its place {table.location()} is opened by PyArrow's client of HDFS, a Java inside of "
            "this process, which survives no fork and is not tried.",
            f'Say "py-io-impl": "{HdfsFileIO.__module__}.{HdfsFileIO.__name__}" in the extra, and install '
            "'airflow-lakestream[hdfs]'.",
        )
    if place.scheme not in azure.SCHEMES:
        return
    problem = ""
    if isinstance(table.io, PyArrowFileIO):
        forbid_forks("PyArrow's client of Azure")
        problem = (
            "names its account, which PyArrow's client of Azure does not understand" if "@" in place.netloc else ""
        )
    elif find_spec("adlfs") is None:
        problem = "is opened by adlfs, which is not installed"
    if problem:
        raise InvalidArgument(
            "iceberg_conn_id",
            f"{name_of(table)}: its place {table.location()} {problem}.",
            f'Install adlfs; or say "py-io-impl": "{PyArrowFileIO.__module__}.{PyArrowFileIO.__name__}" in the extra, '
            f"with adls.account-name and a warehouse {place.scheme}://container/path.",
        )


def check_place(name: str, place: str) -> None:
    """Refuse a place that PyIceberg's clients of stores would look for elsewhere. Raises InvalidArgument."""
    if "://" in place and (odd := _ODD.search(place)):
        raise InvalidArgument(
            "table",
            f"{name}: its place would be {place!r}, and clients of stores leave {odd[0]!r} out, or all behind it.",
            "Give the table, its namespace or the catalog's warehouse another name.",
        )


def check_version(metadata: TableMetadata, name: str) -> None:
    """Refuse a table whose version is newer than what can be written. Raises FormatVersionTooNew."""
    if metadata.format_version > WRITTEN_VERSION:
        raise FormatVersionTooNew(name, metadata.format_version)


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse properties that an existing or a new table can't have here. Raises InvalidArgument."""
    version = properties.get(TableProperties.FORMAT_VERSION, str(WRITTEN_VERSION)).strip()
    if version != str(WRITTEN_VERSION):
        raise InvalidArgument(
            "table_properties",
            f"{TableProperties.FORMAT_VERSION} is {version!r}. The ledger needs version 2 or later, and PyIceberg "
            "can write no later one.",
            f"Leave it out: tables are created with version {WRITTEN_VERSION}.",
        )
    check_file_format(properties)
    table_properties.check(properties)
    retention.limit(properties)


def commit_table(
    catalog: Catalog, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
) -> CommitTableResponse:
    """Commit through the catalog, by compare and set. Raises what the catalog raises."""
    if hive.is_hive(catalog):
        return hive.commit_table(catalog, table, requirements, updates)
    return catalog.commit_table(table, requirements, updates)
