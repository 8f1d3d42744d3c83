"""Files as one worker hands them to another: their `add` actions, and the table that they were written for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import obstore
import pyarrow as pa

from airflow_lakestream.delta.commit.guard import Target
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.storage import DeltaStorage, Tables
from airflow_lakestream.delta.write.columns import delta_fields
from airflow_lakestream.delta.write.files import delete_files, path_of


@dataclass(frozen=True)
class Outline:
    """What one process tells another of a table, existing or new; also a store that knows this table alone."""

    table: str
    options: Mapping[str, str] = field(repr=False)
    table_id: str
    schema: pa.Schema
    fields: Sequence[Mapping[str, Any]]
    partitions: tuple[str, ...]

    def open(self, table: str) -> Head | None:
        """Return the table; None for any other."""
        if table != self.table:
            return None
        return Head(
            table=table,
            version=0,
            table_id=self.table_id,
            partitions=self.partitions,
            schema=self.schema,
            fields=self.fields,
        )

    def store(self, table: str) -> Any:
        """Return the object store whose root is the table's folder."""
        return DeltaStorage(self.options).store(table)


def outline(tables: Tables, table: str, target: Target, schema: pa.Schema) -> Outline:
    """Return what another process needs to write files for a target."""
    assert isinstance(tables, DeltaStorage | Outline), "there are no others"
    return Outline(table, dict(tables.options), _id(target), schema, target.fields, target.partitions)


def beside(tables: Tables, table: str, columns: pa.Schema) -> Outline:
    """Return the outline of a table that is nowhere, whose files lie below the folder of another one."""
    assert isinstance(tables, DeltaStorage), "the driver has the table itself"
    return Outline(table, dict(tables.options), "", columns, delta_fields(columns), ())


def open_file(outline: Outline, file: Mapping[str, Any]) -> Any:
    """Open a handed file of such a table, for reading."""
    return pa.BufferReader(pa.py_buffer(obstore.get(outline.store(outline.table), path_of(file)).bytes()))


def uri(outline: Outline, file: Mapping[str, Any]) -> str:
    """Return where a handed file of such a table is."""
    return f"{outline.table.rstrip('/')}/{path_of(file)}"


def rows_in(file: Mapping[str, Any]) -> int:
    """Return how many rows a handed file of such a table has."""
    return int(json.loads(file["stats"])["numRecords"])


def delete(outline: Outline, files: Iterable[Mapping[str, Any]]) -> list[str]:
    """Delete handed files of such a table as well as it goes; return those that may be left. Never raises."""
    return delete_files(outline.store(outline.table), files)


def encode_files(target: Target, files: Sequence[Any]) -> dict[str, Any]:
    """Return files that were written for the target, with what tells whether they still fit it."""
    return {
        "table_id": _id(target),
        "schema": _fingerprint(target),
        "partitions": list(target.partitions),
        "files": [dict(add) for add in files],
    }


def misfit(target: Target, store: Any, handed: Mapping[str, Any]) -> str | None:
    """Say why handed files can't go into the table; None if they can."""
    if handed["table_id"] != _id(target):
        return "the table was dropped and created again since they were written"
    if handed["schema"] != _fingerprint(target):
        return "the table's schema was changed since they were written"
    if handed["partitions"] != list(target.partitions):
        return "the table's partitioning was changed since they were written"
    # An earlier try of the commit may have swept them; a table must never refer to what is not there.
    gone = next((path_of(add) for add in handed["files"] if not _exists(store, path_of(add))), None)
    return None if gone is None else f"they are gone, such as {gone}"


def _id(target: Target) -> str:
    return "" if target.base is None else target.base.table_id


def _fingerprint(target: Target) -> str:
    return hashlib.sha256(json.dumps(list(target.fields), sort_keys=True).encode()).hexdigest()[:16]


def _exists(store: Any, path: str) -> bool:
    try:
        obstore.head(store, path)
    except FileNotFoundError:
        return False
    return True
