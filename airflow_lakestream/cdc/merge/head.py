"""A mirror's head for a commit attempt, in any table format."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from airflow_lakestream.tables.rising import Numbers

# A data file or delete file in the form of a table format: a file of a scan in Iceberg, an add action in Delta.
File = Any


class MirrorHead(Protocol):
    """The rows of a mirror at a head, in the columns that the mirror has after the commit.

    The rows of a file are numbered from 0, without rows that are deleted already. A head can be pickled, for a
    `MergePool` in other processes.
    """

    @property
    def delete(self) -> Callable[[File, Numbers], File] | None:
        """Function that writes a delete file for rows of a file, by row numbers, and returns the delete file.

        None if the table can't have delete files; then files are rewritten.
        """

    def files(self) -> Sequence[File]:
        """Return the data files."""

    def path(self, file: File) -> str:
        """Return a file's path, as the table has it."""

    def rows_in(self, file: File) -> int:
        """Return a file's number of rows, including deleted rows in the file."""

    def live_rows_in(self, file: File) -> int:
        """Return a file's number of rows without deleted rows."""

    def nulls_in(self, file: File, column: str) -> int | None:
        """Return how many of a file's rows have no value in a column; None if unknown."""

    def bytes_in(self, file: File) -> int:
        """Return a file's size in bytes."""

    def partition(self, file: File) -> Hashable:
        """Return a hashable identity of a file's partition."""

    def bounds(self, file: File, column: str) -> tuple[Any, Any] | None:
        """Return bounds of all values in a file's column, or None if unknown."""

    def read(self, file: File, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield a file's rows, always in the same order; without `columns` with all columns."""

    def write(self, rows: pa.Table) -> Sequence[File]:
        """Write rows as files of the mirror."""

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with the mirror's columns; missing columns are NULL."""
