"""A mirror as one try of a commit finds it, in whatever format its table is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

# A data file, as the table's format knows it.
File = Any


class Head(Protocol):
    """The rows of a mirror, with the columns that the commit gives it."""

    def files(self) -> Sequence[File]:
        """Return the data files."""

    def rows_in(self, file: File) -> int:
        """Return how many rows a file has, deleted ones that are still in it included."""

    def bounds(self, file: File, column: str) -> tuple[Any, Any] | None:
        """Return values that no value of a file's column lies outside of; None where nothing tells them."""

    def read(self, file: File, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield a file's rows, always in the same order; without `columns` all of their values."""

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with the mirror's columns, NULL where they have none."""
