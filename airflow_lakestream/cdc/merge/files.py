"""Work on the rows of changed files: reading, deleting, writing and rewriting."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.lookup import FileChange, joined, with_numbers, within_part
from airflow_lakestream.cdc.merge.snapshots import Version
from airflow_lakestream.cdc.merge.values import as_bytes, marked_where
from airflow_lakestream.tables.rising import Numbers
from airflow_lakestream.tables.row_buffer import no_rows

# Rows are collected up to this number of bytes, then written.
PART_BYTES = 64 * 2**20
# Bytes of the parts in which new rows are written: executors share the parts.
NEW_BYTES = 16 * 2**20

RowsOf = Callable[[Any], pa.Table]


@dataclass(frozen=True)
class PackedRows:
    """Rows for another process, pickled with compression: the bytes pass through the memory of two JVMs."""

    rows: pa.Table

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only these rows; Arrow's own pickle of a slice contains the whole table."""
        return _unpacked, (as_bytes(self.rows, "lz4"),)


def rows_of(packed: PackedRows) -> pa.Table:
    """Return the packed rows."""
    return packed.rows


def _unpacked(stream: bytes) -> PackedRows:
    rows = pa.ipc.open_stream(stream).read_all()
    return PackedRows(rows if len(rows) else no_rows(rows.schema))


@dataclass(frozen=True)
class RowReadTask:
    """Task for reading rows of a file, with some columns or all."""

    head: MirrorHead
    columns: Sequence[str] = ()

    def __call__(self, wanted: tuple[File, Numbers]) -> list[pa.Table]:
        """Return the rows with these rising numbers."""
        file, numbers = wanted
        parts = with_numbers(self.head.read(file, self.columns))
        return [rows.take(pa.array(in_part)) for rows, part in parts if len(in_part := within_part(numbers, part))]


@dataclass(frozen=True)
class RowDeleteTask:
    """Task for deleting rows of a file in place."""

    head: MirrorHead

    def __call__(self, change: FileChange) -> list[File]:
        """Return the delete file for the commit."""
        assert self.head.delete is not None, "the file would be rewritten"
        return [self.head.delete(change.file, change.out)]


@dataclass(frozen=True)
class RowWriteTask:
    """Task for writing new rows into new files.

    :param rows_of: returns the rows of an item: unpacks the rows, or reads the rows from staged event files.
    """

    head: MirrorHead
    rows_of: RowsOf

    def __call__(self, new: Any) -> Sequence[File]:
        """Write the rows of an item; return the files."""
        return self.head.write(self.head.conform(self.rows_of(new)))


def in_parts(rows: pa.Table, size: int) -> list[pa.Table]:
    """Return new rows of `size` bytes in parts, each for a file."""
    parts = -(-size // NEW_BYTES)
    ends = [len(rows) * part // parts for part in range(parts + 1)] if len(rows) else []
    return [rows.slice(start, end - start) for start, end in itertools.pairwise(ends) if end > start]


def parts_of(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield rows in parts large enough for a file."""
    collected: list[pa.Table] = []
    for table in rows:
        collected.append(table)
        if sum(part.nbytes for part in collected) >= PART_BYTES:
            yield pa.concat_tables(collected, promote_options="permissive")
            collected = []
    if collected:
        yield pa.concat_tables(collected, promote_options="permissive")


@dataclass(frozen=True)
class FileRewriteTask:
    """Task for rewriting files together: the remaining rows, and the new versions of changed rows.

    :param truncated: the truncation that marks rows as deleted, if any.
    :param rows_of: returns the new rows of a file.
    """

    head: MirrorHead
    truncated: Version | None
    rows_of: RowsOf

    def __call__(self, bundle: Sequence[tuple[FileChange, Any]]) -> list[File]:
        """Rewrite a bundle of files, each given with its new rows; return the new files."""
        files: list[File] = []
        collected: list[pa.Table] = []
        for change, new in bundle:
            collected.append(self.head.conform(self.rows_of(new)))
            # If no row stays, the file is not read.
            for rows in self._staying(change) if len(change.out) < change.live else ():
                collected.append(self.head.conform(rows))
                if sum(part.nbytes for part in collected) >= PART_BYTES:
                    files += self._write(collected)
                    collected = []
        return [*files, *self._write(collected)]

    def _staying(self, change: FileChange) -> Iterator[pa.Table]:
        """Yield the rows of a file that stay, marked as deleted if a truncation marks them."""
        for rows, part in with_numbers(self.head.read(change.file)):
            if change.marked is not None and change.marked[part].any():
                rows = marked_where(rows, change.marked[part], self.truncated)
            stays = np.ones(len(rows), np.bool_)
            stays[within_part(change.out, part)] = False
            yield rows.filter(pa.array(stays))

    def _write(self, parts: Sequence[pa.Table]) -> Sequence[File]:
        rows = joined(parts) if parts else None
        return self.head.write(rows) if rows is not None and len(rows) else []
