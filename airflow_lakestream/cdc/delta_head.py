"""The rows of a mirror in a Delta table at a version, for the merge."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyarrow import types as arrow

from airflow_lakestream.delta.columns import conform
from airflow_lakestream.delta.files import Add, read_parts, write_files
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import check_removable
from airflow_lakestream.delta.storage import DeltaTableAccess
from airflow_lakestream.delta.takeout import live_files


@dataclass(frozen=True)
class DeltaHead:
    """`cdc.merge.head.MirrorHead` of a Delta table at a version, with the columns `schema` after the commit.

    :param order: the sort order of rows in new files, see `delta.columns.check_order`.
    :param made: a list that gets the files written in this process.
    :param folder: the folder for new files, within the table's location.
    """

    tables: DeltaTableAccess
    head: DeltaTableHead
    schema: pa.Schema
    order: Sequence[tuple[str, bool, bool]] = ()
    made: list[Add] = field(default_factory=list)
    folder: str = ""
    # None, since deletion vectors are not written: files with deleted rows are rewritten.
    delete = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the log and without `made`, for work on files in another process."""
        head = self.head
        bare = DeltaTableHead(head.table, head.version, head.table_id, head.schema, head.fields, head.partitions)
        return DeltaHead, (self.tables, bare, self.schema, self.order, [], self.folder)

    @cached_property
    def _store(self) -> Any:
        return self.tables.store(self.head.table)

    def files(self) -> Sequence[Add]:
        """Return the data files. Raises UnfitTable and CannotReplace if rows can't be deleted."""
        check_removable(self.head)
        return list(live_files(self.head))

    def path(self, file: Add) -> str:
        """Return a file's path within the table's location."""
        return str(file["path"])

    def rows_in(self, file: Add) -> int:
        """Return a file's number of rows."""
        return int(file["stats"]["numRecords"] or 0)

    # A table with deletion vectors is refused.
    live_rows_in = rows_in

    def nulls_in(self, file: Add, column: str) -> int | None:
        """Return how many rows have no value in a column, or None if unknown."""
        nulls: int | None = (file["stats"].get("nullCount") or {}).get(column)
        return nulls

    def bytes_in(self, file: Add) -> int:
        """Return a file's size in bytes."""
        return int(file["size"])

    def partition(self, file: Add) -> Hashable:
        """Return the values of a file's partition."""
        return tuple(file["partitionValues"].items())

    def bounds(self, file: Add, column: str) -> tuple[Any, Any] | None:
        """Return a column's bounds from the log, or None if the log has no exact bounds."""
        kind = self.schema.field(column).type
        # For other types the log has text, or rounded values.
        if not (arrow.is_integer(kind) or arrow.is_string(kind)):
            return None
        low, high = (file["stats"][side].get(column) for side in ("minValues", "maxValues"))
        return None if low is None or high is None else (low, high)

    def read(self, file: Add, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the rows of a file; without `columns` with all columns."""
        return read_parts(self._store, file, self.schema, columns)

    def write(self, rows: pa.Table) -> Sequence[Add]:
        """Write rows as files of the mirror; return the files, and note the files in `made`."""
        files = write_files(
            self._store,
            self.schema,
            self.head.partitions,
            self.order,
            rows,
            uuid.uuid4().hex,
            itertools.count(),
            folder=self.folder,
        )
        self.made.extend(files)
        return files

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with the mirror's columns."""
        return conform(rows, self.schema)
