"""A mirror that is an Iceberg table: its rows at a head, its entries of what is deleted, and what a commit does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IntegerType, LongType, StringType

from airflow_lakestream.cdc.columns import no_rows
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.memory import ENTRIES_GROUP, MIRROR_ID, SUFFIX, condensed
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.iceberg.commit.rewriting import Rewrite
from airflow_lakestream.iceberg.replace.hits import bounds_of, live_files, read_rows
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write.conform import conform

_PLAIN_BOUNDS = (IntegerType, LongType, StringType)


class IcebergHead:
    """`cdc.merge.head.Head` of a table, for the metadata that a commit gives it."""

    def __init__(self, table: Table, target: TableMetadata) -> None:
        self._table, self._target = table, target

    def files(self) -> Sequence[FileScanTask]:
        """Return the data files."""
        return live_files(self._table)

    def rows_in(self, file: FileScanTask) -> int:
        """Return how many rows a file has."""
        return file.file.record_count

    def bounds(self, file: FileScanTask, column: str) -> tuple[Any, Any] | None:
        """Return the bounds of a column that the metadata tells."""
        schema = self._table.schema()
        is_plain = isinstance(schema.find_field(column).field_type, _PLAIN_BOUNDS)
        return bounds_of(schema, file.file, column) if is_plain else None

    def read(self, file: FileScanTask, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the live rows of a file."""
        yield from read_rows(self._target, self._table.io, file, columns=columns)

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with the mirror's columns."""
        return conform(rows, self._target.schema())


def mirror_id(mirror: TableMetadata) -> str:
    """Return what tells a mirror's entries from those of another one: the table's id, or a new one with a new key."""
    return mirror.properties.get(MIRROR_ID, str(mirror.table_uuid))


class EntryTable(IcebergSink):
    """`cdc.merge.memory.Entries` in an Iceberg table, written by the guard as every table here is.

    :param mirror: the mirror's name.
    :param mirror_id: its own id.
    :param key: the columns of its key.
    """

    def __init__(self, catalog: Catalog, mirror: str, mirror_id: str, key: pa.Schema) -> None:
        # The types of the key may become wider, as those of the mirror's own.
        design = memory.design_of_entries(key, mirror_id, SchemaEvolution.WIDEN)
        super().__init__(catalog, f"{mirror}{SUFFIX}", ENTRIES_GROUP, design, allow_group_overlap=True)
        self._id, self._key = mirror_id, key.names

    def read(self) -> pa.Table | None:
        """Return all entries."""
        table = self._load()
        return None if table is None or not self._is_own(table) else _entries(table, live_files(table))

    def add(self, entries: pa.Table) -> None:
        """Write entries down; in the same commit many files become one."""
        there = self._load()
        if there is not None and not self._is_own(there):
            # Of a mirror that was dropped.
            self._catalog.drop_table(self._name)
        memory.commit_entries(self, entries)

    def commit(self, landing: Landing) -> int:
        """Commit the entries taken; once there are many files, they become one."""
        if self._table is None:
            return super().commit(landing)
        written: list[DataFile] = []

        def condense(table: Table) -> Rewrite:
            old = live_files(table)
            if len(old) < memory.MOST_FILES:
                return Rewrite((), ())
            new = self._write_files(condensed(_entries(table, old), self._key))
            written.extend(new)
            return Rewrite([task.file for task in old], new)

        return self._rewrite(landing, condense, written)

    def _load(self) -> Table | None:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _is_own(self, table: Table) -> bool:
        return table.properties.get(MIRROR_ID) == self._id


def _entries(table: Table, files: Sequence[FileScanTask]) -> pa.Table:
    empty = no_rows(table.schema().as_arrow())
    parts = [part for task in files for part in read_rows(table.metadata, table.io, task)]
    return pa.concat_tables([empty, *parts], promote_options="permissive")
