"""The rows of a mirror in an Iceberg table at a snapshot, for the merge."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IntegerType, LongType, StringType

from airflow_lakestream.iceberg.replace.takeout import bounds_of, live_files_of, read_rows
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.iceberg.write.deletes import delete_rows, deleted_positions
from airflow_lakestream.iceberg.write.files import write_data_files
from airflow_lakestream.tables.rising import Numbers

# Types whose bounds compare as their values do.
PLAIN_BOUNDS = (IntegerType, LongType, StringType)


@dataclass(frozen=True)
class IcebergHead:
    """`cdc.merge.head.MirrorHead` of a table with `metadata`, for the metadata `target` after the commit.

    :param made: a list that gets the files written in this process.
    :param folder: the folder for new files, within the table's location.
    """

    metadata: TableMetadata
    target: TableMetadata
    io: FileIO
    made: list[DataFile] = field(default_factory=list)
    folder: str = ""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the table's history and without `made`, for work on files in another process."""
        bare: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
        }
        metadata, target = (state.model_copy(update=bare) for state in (self.metadata, self.target))
        return IcebergHead, (metadata, target, self.io, [], self.folder)

    def files(self) -> Sequence[FileScanTask]:
        """Return the data files."""
        return live_files_of(self.metadata, self.io)

    def path(self, file: FileScanTask) -> str:
        """Return a file's path."""
        return file.file.file_path

    def rows_in(self, file: FileScanTask) -> int:
        """Return how many rows a file has."""
        return file.file.record_count

    def live_rows_in(self, file: FileScanTask) -> int:
        """Return how many of a file's rows are not deleted."""
        return self.rows_in(file) - len(deleted_positions(self.io, file))

    def nulls_in(self, file: FileScanTask, column: str) -> int | None:
        """Return how many of a file's rows have no value in a column, or None if unknown."""
        return (file.file.null_value_counts or {}).get(self.metadata.schema().find_field(column).field_id)

    def bytes_in(self, file: FileScanTask) -> int:
        """Return a file's size in bytes."""
        return file.file.file_size_in_bytes

    def partition(self, file: FileScanTask) -> Hashable:
        """Return the partition spec and the values of a file."""
        return file.file.spec_id, repr(file.file.partition)

    def bounds(self, file: FileScanTask, column: str) -> tuple[Any, Any] | None:
        """Return a column's bounds from the metadata, or None for types outside `PLAIN_BOUNDS`."""
        schema = self.metadata.schema()
        is_plain = isinstance(schema.find_field(column).field_type, PLAIN_BOUNDS)
        return bounds_of(schema, file.file, column) if is_plain else None

    def read(self, file: FileScanTask, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the live rows of a file; without `columns` with all columns."""
        yield from read_rows(self.target, self.io, file, columns=columns)

    def delete(self, file: FileScanTask, numbers: Numbers) -> DataFile:
        """Write and return a delete file, in place of the data file's previous delete file.

        :param numbers: the numbers of the rows to delete, counted without rows that are deleted already.
        """
        deletes = delete_rows(self.target, self.io, file, numbers, folder=self.folder)
        self.made.append(deletes)
        return deletes

    def write(self, rows: pa.Table) -> Sequence[DataFile]:
        """Write rows as files of the mirror; return the files, and note the files in `made`."""
        files = write_data_files(self.target, self.io, rows, uuid.uuid4().hex, folder=self.folder)
        self.made.extend(files)
        return files

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with the mirror's columns."""
        return conform(rows, self.target.schema())
