"""A mirror's head as one try of a commit sees it, in any table format."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from airflow_lakestream.tables.rising import Numbers

# A data file, as the table's format knows it.
File = Any


class Head(Protocol):
    """The rows of a mirror, with the columns that the commit gives it.

    The rows of a file are numbered from 0, without those that are deleted already. A head can be pickled, for `Hands`
    that are not of this process.
    """

    @property
    def delete(self) -> Callable[[File, Numbers], File] | None:
        """Writes down that rows of a file, by their numbers, are deleted; returns what the commit needs for it.

        None where the table can't have that, and files are written anew.
        """

    def files(self) -> Sequence[File]:
        """Return the data files."""

    def rows_in(self, file: File) -> int:
        """Return a file's number of rows, including deleted ones that are still in it."""

    def live_rows_in(self, file: File) -> int:
        """Return a file's number of rows without deleted ones."""

    def nulls_in(self, file: File, column: str) -> int | None:
        """Return how many of a file's rows have no value in a column; None if unknown."""

    def bytes_in(self, file: File) -> int:
        """Return a file's size in bytes."""

    def partition(self, file: File) -> Hashable:
        """Return what tells a file's partition from others."""

    def bounds(self, file: File, column: str) -> tuple[Any, Any] | None:
        """Return bounds that include all values of a file's column; None if unknown."""

    def read(self, file: File, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield a file's rows, always in the same order; without `columns` with all columns."""

    def write(self, rows: pa.Table) -> Sequence[File]:
        """Write rows as files of the mirror."""

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with the mirror's columns; missing ones are NULL."""
