"""Checks of a catalog and a table before a landing reads a record."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from gzip import BadGzipFile
from importlib.util import find_spec
from urllib.parse import urlsplit

from pydantic import ValidationError as PydanticError
from pyiceberg.catalog import METADATA_LOCATION, Catalog
from pyiceberg.exceptions import NoSuchPropertyException, NoSuchTableError, ValidationError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import CommitTableResponse, Table, TableProperties, snapshots
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal, install_command
from airflow_lakestream.iceberg import table_properties
from airflow_lakestream.iceberg.commit import hive, retention
from airflow_lakestream.iceberg.hdfs import HdfsFileIO
from airflow_lakestream.iceberg.ledger_store import head_of, name_of
from airflow_lakestream.iceberg.write.files import check_file_format
from airflow_lakestream.iceberg.write.layout import check_fields, check_names
from airflow_lakestream.runtime.processes import forbid_forks
from airflow_lakestream.stores import cloud_options, hdfs
from airflow_lakestream.stores.object_store import PlaceNotWritable, check_folder

# PyIceberg's modules of catalogs without a working `commit_table`.
_WITHOUT_COMMITS = {f"pyiceberg.catalog.{name}" for name in ("bigquery_metastore", "dynamodb", "noop")}
# The beginning of a query or a fragment in a URI, and characters that a URI can't have.
_ODD = re.compile(r"[?#\x00-\x1f\x7f]")
# Properties with the locations of a table's files, and the default folders below the table's location.
_PLACES = {TableProperties.WRITE_DATA_PATH: "data", TableProperties.WRITE_METADATA_PATH: "metadata"}
# Totals in a snapshot's summary. PyIceberg's commits continue the totals.
_TOTALS = (
    *(snapshots.TOTAL_DATA_FILES, snapshots.TOTAL_DELETE_FILES, snapshots.TOTAL_RECORDS, snapshots.TOTAL_FILE_SIZE),
    *(snapshots.TOTAL_POSITION_DELETES, snapshots.TOTAL_EQUALITY_DELETES),
)
_NUMBER = re.compile(r"-?\d+")
# Version 1 has no sequence numbers, which the ledger needs. PyIceberg reads version 3, and does not write it.
WRITTEN_VERSION = 2


class CatalogCantCommit(LakestreamError, Terminal):
    """Catalog without commits in PyIceberg."""

    def __init__(self, table: str, catalog: Catalog) -> None:
        super().__init__(
            f"{table}: PyIceberg can't commit through its {type(catalog).__name__}, so nothing was read. Use a "
            "connection to a REST, Glue, SQL or Hive catalog."
        )


class NotIceberg(InvalidArgument):
    """Table of the same name in the catalog, but not an Iceberg table."""

    def __init__(self, table: str) -> None:
        super().__init__("table", f"{table} is there, and is not an Iceberg table.", "Name another one.")


class FormatVersionTooNew(LakestreamError, Terminal):
    """Table of a format version supported by PyIceberg for reading only."""

    def __init__(self, table: str, version: int) -> None:
        super().__init__(
            f"{table} is an Iceberg table of format version {version}, and PyIceberg, which commits here, writes "
            f"version {WRITTEN_VERSION} only. Nothing was changed. No table can be taken back to an older version: "
            "land in another one, which is made of version 2 when it is missing, and copy into it with Spark what "
            "this one has. Sensors, `lakestream ledger show` and the audit go on reading this one."
        )


# PyIceberg's errors for metadata that it finds wrong, does not understand, or fails on; the errors of its clients of
# stores for lost metadata.
_OF_METADATA = (
    *(ValidationError, PydanticError, NoSuchPropertyException, FileNotFoundError, BadGzipFile, EOFError, zlib.error),
    *(ValueError, TypeError, AttributeError, LookupError, RecursionError, NotImplementedError),
)
# Characters of a cause in an error, at most.
_LONGEST = 500


class UnreadableTable(LakestreamError, Terminal):
    """Table with metadata unreadable by PyIceberg: of a newer kind, damaged, or gone."""

    def __init__(self, table: str, cause: Exception) -> None:
        if is_gone := isinstance(cause, FileNotFoundError):
            remedy = "Restore the file; or register the table with a metadata file that is there, or drop it."
        else:
            remedy = (
                "Correct what is named, or take away what PyIceberg does not know, such as a column of a newer type; "
                "or land in another table."
            )
        cause_text = " ".join(str(_named(cause)).partition("For further information")[0].split())[:_LONGEST]
        super().__init__(
            f"{table}: {'a file of its metadata is gone' if is_gone else 'PyIceberg can not read its metadata'} "
            f"({cause_text}). Nothing was read or changed. {remedy}"
        )


# Keys whose values PyIceberg takes for objects, by the attribute that it asks for.
_OBJECTS = {"items": "properties", "get": "sort-orders"}


def _named(cause: Exception) -> object:
    """Return the cause, or for a value that PyIceberg took for an object, the key and the value."""
    if not isinstance(cause, AttributeError) or cause.name not in _OBJECTS:
        return cause
    return f"{_OBJECTS[cause.name]}: {json.dumps(cause.obj, default=str)} where an object belongs"


class NoTableId(LakestreamError, Terminal):
    """Table without a table-uuid in the metadata."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table}: its metadata have no table-uuid, which distinguishes a table from one that was dropped and made "
            "again; Spark reads no such table, either. Nothing was read or changed. Register the table with a "
            "metadata file that has one; or land in another table."
        )


def load_table(catalog: Catalog, name: str) -> Table:
    """Return the current table. Raises NoSuchTableError, UnreadableTable, and errors of catalogs and stores."""
    try:
        return catalog.load_table(name)
    except NoSuchTableError as e:
        # The catalog has an entry without the location of the metadata.
        if METADATA_LOCATION in str(e):
            raise UnreadableTable(name, e) from e
        raise
    except _OF_METADATA as e:
        # An answer of a catalog that is not JSON is both a ValueError and an error of the network.
        if isinstance(e, OSError) and not isinstance(e, FileNotFoundError | BadGzipFile):
            raise
        raise UnreadableTable(name, e) from e


def check(catalog: Catalog, table: Table) -> None:
    """Refuse a catalog or a table unfit for commits. Raises the errors of `check_catalog` and `check_table`."""
    check_catalog(catalog, name_of(table))
    check_table(table)


def check_catalog(catalog: Catalog, name: str) -> None:
    """Refuse a catalog without compare-and-set commits of this table.

    Raises CatalogCantCommit, and MetastoreDoesNotCompare.
    """
    if _WITHOUT_COMMITS & {kind.__module__ for kind in type(catalog).__mro__}:
        raise CatalogCantCommit(name, catalog)
    if hive.is_hive(catalog):
        hive.check(catalog, name)


def check_table(table: Table) -> None:
    """Refuse a table unfit for writing here.

    Raises the errors of `check_metadata`, and InvalidArgument for its properties, partitions and order.
    """
    check_metadata(table.metadata, name_of(table))
    check_names(table.spec(), name_of(table))
    check_fields(table)
    check_properties(table.metadata.properties)


def check_store(table: Table) -> None:
    """Check that the table's client can use the table's folders.

    If the client breaks in forked processes, this process may not fork any more. Raises InvalidArgument,
    PlaceNotWritable.
    """
    _check_client(table)
    for key, folder in _PLACES.items():
        place = table.properties.get(key) or f"{table.location().rstrip('/')}/{folder}"
        check_place(name_of(table), place)
        if urlsplit(place).scheme in ("", "file"):
            check_folder(name_of(table), place.removeprefix("file:").removeprefix("//"))
            continue
        if urlsplit(place).scheme in cloud_options.AZURE_SCHEMES:
            # `_check_client` has checked Azure's client.
            continue
        try:
            table.io.new_output(place)
        except (ValueError, ImportError) as e:
            raise PlaceNotWritable(name_of(table), place, e) from e


def _check_client(table: Table) -> None:
    """Refuse a client of HDFS or Azure that can't open the table's files. Raises InvalidArgument."""
    place = urlsplit(table.location())
    if place.scheme == hdfs.SCHEME and isinstance(table.io, PyArrowFileIO):
        raise InvalidArgument(
            "iceberg_conn_id",
            f"{name_of(table)}: its place {table.location()} is opened by PyArrow's client of HDFS, a Java inside of "
            "this process, which survives no fork and is not tried.",
            f'Set "py-io-impl": "{HdfsFileIO.__module__}.{HdfsFileIO.__name__}" in the extra, and install '
            f"the extra hdfs: {install_command('hdfs')}.",
        )
    if place.scheme not in cloud_options.AZURE_SCHEMES:
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
            f'Install adlfs; or set "py-io-impl": "{PyArrowFileIO.__module__}.{PyArrowFileIO.__name__}" in the extra, '
            f"with adls.account-name and a warehouse {place.scheme}://container/path.",
        )


def check_place(name: str, place: str) -> None:
    """Refuse a location with characters dropped by PyIceberg's clients of stores. Raises InvalidArgument."""
    if "://" in place and (odd := _ODD.search(place)):
        raise InvalidArgument(
            "table",
            f"{name}: its place would be {place!r}, and clients of stores leave {odd[0]!r} out, or all behind it.",
            "Give the table, its namespace or the catalog's warehouse another name.",
        )


def check_version(metadata: TableMetadata, name: str) -> None:
    """Refuse a table of a version newer than the written version. Raises FormatVersionTooNew."""
    if metadata.format_version > WRITTEN_VERSION:
        raise FormatVersionTooNew(name, metadata.format_version)


def check_metadata(metadata: TableMetadata, name: str) -> None:
    """Refuse a table because of version, id, types of columns, or a contradiction in the metadata.

    Raises FormatVersionTooNew, NoTableId, UnreadableTable, InvalidArgument.
    """
    check_version(metadata, name)
    # A table of version 1 may have no id, and is refused for its version. PyIceberg makes up an id at each look.
    if metadata.format_version == WRITTEN_VERSION and "table_uuid" not in metadata.model_fields_set:
        raise NoTableId(name)
    if problem := _contradiction(metadata):
        raise UnreadableTable(name, ValidationError(problem))
    for path, field in _fields(metadata.schema().as_struct()):
        if (version := field.field_type.minimum_format_version()) > WRITTEN_VERSION:
            raise InvalidArgument(
                "table",
                f"{name}: its column {path!r} has the type {field.field_type}, which tables have from format version "
                f"{version} on, and files are written for version {WRITTEN_VERSION}.",
                "Drop the column, or make it one of another type (timestamp, binary); or land in another table.",
            )


def _contradiction(metadata: TableMetadata) -> str:
    """Return a contradiction in ids or numbers, refused by Spark and ignored by PyIceberg, or an empty text."""
    ids = Counter(field.field_id for _, field in _fields(metadata.schema().as_struct()))
    if len(ids) < ids.total():
        return f"several columns have the id {ids.most_common(1)[0][0]}"
    if min(ids, default=0) < 0:
        return f"a column has the id {min(ids)}"
    if max(ids, default=0) > metadata.last_column_id:
        return f"last-column-id is {metadata.last_column_id}, and a column has the id {max(ids)}"
    if metadata.default_sort_order_id not in [order.order_id for order in metadata.sort_orders]:
        return f"default-sort-order-id is {metadata.default_sort_order_id}, and sort-orders has no such order"
    named_ids = (head_of(metadata), *(ref.snapshot_id for ref in metadata.refs.values()))
    missing_ids = [id_ for id_ in named_ids if id_ is not None and metadata.snapshot_by_id(id_) is None]
    if missing_ids:
        return f"a branch or a tag is at the snapshot {missing_ids[0]}, which is not there"
    highest = max((snapshot.sequence_number or 0 for snapshot in metadata.snapshots), default=0)
    # Version 1 has no sequence numbers.
    if metadata.format_version > 1 and highest > (last := metadata.next_sequence_number() - 1):
        return f"last-sequence-number is {last}, and a snapshot has {highest}"
    return _odd_total(metadata)


def _odd_total(metadata: TableMetadata) -> str:
    """Return a total in the head's summary that is not a number, or an empty text: PyIceberg adds to each total."""
    head = metadata.current_snapshot()
    summary = head.summary.additional_properties if head and head.summary else {}
    odd_names = [name for name in _TOTALS if summary.get(name) and not _NUMBER.fullmatch(str(summary[name]))]
    if not odd_names:
        return ""
    return f"{odd_names[0]} in the summary of snapshot {metadata.current_snapshot_id} is {summary[odd_names[0]]!r}"


def _fields(kind: IcebergType, path: str = "") -> Iterator[tuple[str, NestedField]]:
    """Yield all fields within a type, each with the path."""
    parts = {StructType: ("fields",), ListType: ("element_field",), MapType: ("key_field", "value_field")}
    for part in parts.get(type(kind), ()):
        child = getattr(kind, part)
        for field in child if part == "fields" else (child,):
            yield f"{path}{field.name}", field
            yield from _fields(field.field_type, f"{path}{field.name}.")


def check_properties(properties: Mapping[str, str]) -> None:
    """Refuse properties unsupported here, of an existing or a new table. Raises InvalidArgument."""
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
    """Commit through the catalog, by compare-and-set. Raises the catalog's errors."""
    if hive.is_hive(catalog):
        return hive.commit_table(catalog, table, requirements, updates)
    return catalog.commit_table(table, requirements, updates)
