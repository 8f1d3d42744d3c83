"""The files of an Iceberg table's head, as `tables.takeout` looks for rows in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.replace import hits
from airflow_lakestream.tables import takeout

# A data file with the delete files that apply to it.
FileKey = tuple[str, frozenset[str]]
Finder = takeout.Finder[FileScanTask, DataFile]
Takeout = takeout.Takeout[FileScanTask, DataFile]


class IcebergFiles(takeout.HeadFiles[FileScanTask, DataFile]):
    """`tables.takeout.HeadFiles` of an Iceberg table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.name, self.columns = ledger_store.name_of(table), table.schema().column_names

    def live(self) -> Sequence[FileScanTask]:
        """Return the live files. Raises CannotReplace for a table with equality deletes."""
        if paths := hits.equality_deletes(self.table):
            raise CannotReplace(
                f"{self.name} has equality deletes, such as {paths[0]}, which PyIceberg does not read: deleted rows "
                "would come back. Nothing was changed. Rewrite its data files with another engine first."
            )
        return hits.live_files(self.table)

    def of_new(self, file: DataFile) -> FileScanTask:
        """Return a file that is to come into the table."""
        return FileScanTask(file)

    def key(self, file: FileScanTask) -> FileKey:
        """Return what a data file and its deletes are known by."""
        return file.file.file_path, frozenset(delete.file_path for delete in file.delete_files)

    def may_hold(self, file: FileScanTask, ranges: RangeSet) -> bool:
        """Tell by a file's statistics whether it may hold a row of the ranges."""
        return hits.may_hold(self.table.metadata, file.file, ranges)

    def rows(self, file: FileScanTask, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the live rows of a file."""
        return hits.read_rows(self.table.metadata, self.table.io, file, columns=columns)

    def rows_with_coordinates(self, files: Sequence[FileScanTask]) -> tuple[int, Sequence[str]]:
        """Count the rows whose coordinates all have values, and name the files in which some have not."""
        return hits.rows_with_coordinates(self.table, files)
