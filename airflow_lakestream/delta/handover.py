"""Handover of files between workers: `add` actions, with the state of the target table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import obstore
import pyarrow as pa

from airflow_lakestream.delta.columns import delta_fields
from airflow_lakestream.delta.committing import DeltaTarget
from airflow_lakestream.delta.files import delete_files, path_of
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.storage import DeltaStorage, DeltaTableAccess


@dataclass(frozen=True)
class DeltaOutline:
    """Outline of a table, existing or new, for another process; also `DeltaTableAccess` with this table only.

    :param table: the table's location.
    :param options: the storage options of delta-rs.
    :param table_id: empty for a table not created yet.
    :param fields: the columns as Delta's JSON.
    """

    table: str
    options: Mapping[str, str] = field(repr=False)
    table_id: str
    schema: pa.Schema
    fields: Sequence[Mapping[str, Any]]
    partitions: tuple[str, ...]

    def open(self, table: str) -> DeltaTableHead | None:
        """Return the table, or None for another table."""
        if table != self.table:
            return None
        return DeltaTableHead(
            table=table,
            version=0,
            table_id=self.table_id,
            partitions=self.partitions,
            schema=self.schema,
            fields=self.fields,
        )

    def store(self, table: str) -> Any:
        """Return the object store with the table's folder as root."""
        return DeltaStorage(self.options).store(table)


def outline(tables: DeltaTableAccess, table: str, target: DeltaTarget, schema: pa.Schema) -> DeltaOutline:
    """Return the outline of a target, for writing files in another process.

    :param schema: the target's columns.
    """
    assert isinstance(tables, DeltaStorage | DeltaOutline), "no other class gives access to tables"
    return DeltaOutline(table, dict(tables.options), _id(target), schema, target.fields, target.partitions)


def staging_outline(tables: DeltaTableAccess, table: str, columns: pa.Schema) -> DeltaOutline:
    """Return the outline of a staging table, with files below the folder of `table`."""
    assert isinstance(tables, DeltaStorage), "the driver has the table itself"
    return DeltaOutline(table, dict(tables.options), "", columns, delta_fields(columns), ())


def open_file(outline: DeltaOutline, file: Mapping[str, Any]) -> Any:
    """Open a handed file of a staging table for reading."""
    return pa.BufferReader(pa.py_buffer(obstore.get(outline.store(outline.table), path_of(file)).bytes()))


def uri(outline: DeltaOutline, file: Mapping[str, Any]) -> str:
    """Return the URI of a handed file of a staging table."""
    return f"{outline.table.rstrip('/')}/{path_of(file)}"


def rows_in(file: Mapping[str, Any]) -> int:
    """Return the number of rows in a handed file of a staging table."""
    return int(json.loads(file["stats"])["numRecords"])


def delete(outline: DeltaOutline, files: Iterable[Mapping[str, Any]]) -> list[str]:
    """Delete handed files of a staging table if possible; return the paths possibly left. Never raises."""
    return delete_files(outline.store(outline.table), files)


def encode_files(target: DeltaTarget, files: Sequence[Any]) -> dict[str, Any]:
    """Return files written for the target as JSON-ready values, with the data for `misfit`."""
    return {
        "table_id": _id(target),
        "schema": _fingerprint(target),
        "partitions": list(target.partitions),
        "files": [dict(add) for add in files],
    }


def misfit(target: DeltaTarget, store: Any, handed: Mapping[str, Any]) -> str | None:
    """Return the reason why handed files do not fit the table, or None."""
    if handed["table_id"] != _id(target):
        return "the table was dropped and created again since they were written"
    if handed["schema"] != _fingerprint(target):
        return "the table's schema was changed since they were written"
    if handed["partitions"] != list(target.partitions):
        return "the table's partitioning was changed since they were written"
    # An earlier try of the commit may have deleted the files; a table must never refer to missing files.
    missing = next((path_of(add) for add in handed["files"] if not _exists(store, path_of(add))), None)
    return None if missing is None else f"they are gone, such as {missing}"


def _id(target: DeltaTarget) -> str:
    """Return the table's id; empty for a table not created yet."""
    return "" if target.base is None else target.base.table_id


def _fingerprint(target: DeltaTarget) -> str:
    """Return a short hash of the target's columns."""
    return hashlib.sha256(json.dumps(list(target.fields), sort_keys=True).encode()).hexdigest()[:16]


def _exists(store: Any, path: str) -> bool:
    try:
        obstore.head(store, path)
    except FileNotFoundError:
        return False
    return True
