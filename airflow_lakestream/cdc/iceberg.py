"""A mirror that is an Iceberg table: its rows at a head, its entries of what is deleted, and what a commit does."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType

from airflow_lakestream.cdc.columns import no_rows, version_schema
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.memory import MIRROR_ID, SUFFIX, condensed, row_column
from airflow_lakestream.cdc.merge.merge import Merger
from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.iceberg.commit.attempt import Attempt
from airflow_lakestream.iceberg.commit.guard import HeadGuard
from airflow_lakestream.iceberg.commit.rewriting import Rewrite, RewriteAttempt
from airflow_lakestream.iceberg.replace.hits import live_files, read_rows
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.iceberg.write.files import delete_files, write_data_files
from airflow_lakestream.tables.design import TableDesign

# The entries have a ledger without any topic: what makes their commits safe is the guard, not what it counts.
ENTRIES_GROUP = "mirror"
NO_TOPIC = TopicIdentity("", "", "")
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
        field = self._table.schema().find_field(column)
        lower, upper = ((one or {}).get(field.field_id) for one in (file.file.lower_bounds, file.file.upper_bounds))
        if lower is None or upper is None or not isinstance(field.field_type, _PLAIN_BOUNDS):
            return None
        return from_bytes(field.field_type, lower), from_bytes(field.field_type, upper)

    def read(self, file: FileScanTask, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the live rows of a file."""
        yield from read_rows(self._target, self._table.io, file, columns=columns)

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with the mirror's columns."""
        return conform(rows, self._target.schema())


def mirror_id(mirror: TableMetadata) -> str:
    """Return what tells a mirror's entries from those of another one: the table's id, or a new one with a new key."""
    return mirror.properties.get(MIRROR_ID, str(mirror.table_uuid))


class Merging:
    """`iceberg.commit.rewriting.Rewriter` of a batch of events."""

    def __init__(self, merger: Merger, target: TableMetadata) -> None:
        self._merger, self._target = merger, target

    def rewrite(self, table: Table) -> Rewrite:
        """Merge into the table's head. Raises ValueMissing."""
        merged = self._merger.merge(IcebergHead(table, self._target))
        self._merger.remember(merged)
        new = [*merged.new, *self._merger.write_out(merged.rows)]
        return Rewrite([task.file for task in merged.out], new)

    def undo(self, io: FileIO, keep: Collection[str]) -> Sequence[str]:
        """Delete the files written, but for some."""
        return delete_files(io, [path for file in self._merger.written if (path := file.file_path) not in keep])


class EntryTable(IcebergSink):
    """`cdc.merge.memory.Entries` in an Iceberg table, written by the guard as every table here is.

    :param mirror: the mirror's name.
    :param mirror_id: its own id.
    :param key: the fields of its key.
    """

    def __init__(self, catalog: Catalog, mirror: str, mirror_id: str, key: Sequence[NestedField]) -> None:
        fields = [NestedField(number, one.name, one.field_type, required=False) for number, one in enumerate(key, 1)]
        design = TableDesign(
            version_schema(),
            Schema(
                *fields,
                NestedField(len(fields) + 1, row_column([one.name for one in key]), BinaryType(), required=False),
            ),
            # As the mirror's own key.
            evolution=SchemaEvolution.WIDEN,
            argument="key",
            notes={MIRROR_ID: mirror_id},
        )
        super().__init__(catalog, f"{mirror}{SUFFIX}", ENTRIES_GROUP, design, allow_group_overlap=True)
        self._id, self._key = mirror_id, [one.name for one in key]

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
        name = f"entries {uuid.uuid4().hex}"
        with self.or_discard():
            self.load(name)
            self.write(entries, NO_TOPIC)
            self.commit(Landing(name, name, {}))

    def _load(self) -> Table | None:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _is_own(self, table: Table) -> bool:
        return table.properties.get(MIRROR_ID) == self._id

    def _attempt(self, landing: Landing) -> Attempt:
        if self._table is None:
            return super()._attempt(landing)
        metadata = self._target(None).metadata
        write = partial(write_data_files, metadata, prefix=self._prefix, counter=self._numbers)
        guard = self._guard(landing, HeadGuard, allow_group_overlap=True)
        summary = codec.encode_summary(self._group, landing)
        return RewriteAttempt(self._catalog, self._name, guard, summary, _Condensing(self._key, write))


class _Condensing:
    """`iceberg.commit.rewriting.Rewriter` that writes the entries of many files as one."""

    def __init__(self, key: Sequence[str], write: Callable[..., list[DataFile]]) -> None:
        self._key, self._write = key, write
        self._written: list[DataFile] = []

    def rewrite(self, table: Table) -> Rewrite:
        """Read all entries, and write those that count, where it is time to."""
        old = live_files(table)
        if len(old) < memory.MOST_FILES:
            return Rewrite((), ())
        new = self._write(table.io, condensed(_entries(table, old), self._key))
        self._written += new
        return Rewrite([task.file for task in old], new)

    def undo(self, io: FileIO, keep: Collection[str]) -> Sequence[str]:
        """Delete the files written, but for some."""
        return delete_files(io, [path for file in self._written if (path := file.file_path) not in keep])


def _entries(table: Table, files: Sequence[FileScanTask]) -> pa.Table:
    empty = no_rows(table.schema().as_arrow())
    parts = [part for task in files for part in read_rows(table.metadata, table.io, task)]
    return pa.concat_tables([empty, *parts], promote_options="permissive")
