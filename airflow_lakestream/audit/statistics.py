"""What the manifests alone say of a table's files: no data file is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.types import NestedField, PrimitiveType

from airflow_lakestream.iceberg.hits import COORDINATES, OFFSET

# Iceberg's default metrics mode cuts bounds of texts to so many characters, the upper one made greater.
_TRUNCATED = 16


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One live data file. Bounds are None where the manifest has none; `nulls` are rows without an offset.

    The topic's bounds may be cut short; those of partition and offset are exact.
    """

    path: str
    rows: int
    nulls: int | None
    topic: tuple[str, str] | None
    partition: tuple[int, int] | None
    offset: tuple[int, int] | None

    def topics(self, known: Iterable[str]) -> list[str]:
        """Return which of the known topics the file may hold rows of, by its bounds."""
        if self.topic is None:
            return sorted(known)
        low, high = self.topic
        return sorted(t for t in known if low <= t <= high)

    @property
    def is_of_one_topic(self) -> bool:
        """Whether the bounds leave room for one topic only, as far as they show its name."""
        if self.topic is None:
            return False
        low, high = self.topic
        cut = len(low) == len(high) == _TRUNCATED and low[:-1] == high[:-1] and ord(high[-1]) - ord(low[-1]) == 1
        return low == high or cut

    @property
    def is_dense(self) -> bool:
        """Whether the file holds, for all that statistics tell, each offset between its bounds once."""
        return (
            self.offset is not None
            and self.nulls == 0
            and self.partition is not None
            and self.partition[0] == self.partition[1]
            and self.offset[1] - self.offset[0] + 1 == self.rows
        )


@dataclass
class TableFiles:
    """The live files of a snapshot."""

    data: list[FileFacts] = field(default_factory=list)
    delete_files: int = 0

    @property
    def listed_twice(self) -> dict[str, int]:
        """The files that the snapshot holds more than once, with how often."""
        return {path: n for path, n in Counter(f.path for f in self.data).items() if n > 1}


def table_files(table: Table, snapshot_id: int | None) -> TableFiles:
    """Read the manifests of a snapshot."""
    found = TableFiles()
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return found
    fields = {name: table.schema().find_field(name) for name in COORDINATES if name in table.schema().column_names}
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content == DataFileContent.DATA:
                found.data.append(_facts(entry.data_file, fields))
            else:
                found.delete_files += 1
    return found


def _facts(file: DataFile, fields: dict[str, NestedField]) -> FileFacts:
    topic, partition, offset = (_bounds(file, fields.get(name)) for name in COORDINATES)
    nulls = None
    if (column := fields.get(OFFSET)) is not None and file.null_value_counts:
        nulls = file.null_value_counts.get(column.field_id)
    return FileFacts(file.file_path, file.record_count, nulls, topic, partition, offset)


def _bounds(file: DataFile, column: NestedField | None) -> tuple[Any, Any] | None:
    if column is None or not file.lower_bounds or not file.upper_bounds:
        return None
    low, high = file.lower_bounds.get(column.field_id), file.upper_bounds.get(column.field_id)
    if low is None or high is None:
        return None
    kind = cast(PrimitiveType, column.field_type)
    return from_bytes(kind, low), from_bytes(kind, high)
