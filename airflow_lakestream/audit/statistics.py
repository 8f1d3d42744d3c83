"""What the manifests say of a table's files; no data file is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from airflow_lakestream.core.landing.unaccounted import OFFSETS_END
from airflow_lakestream.core.ranges import Interval
from airflow_lakestream.iceberg.replace.takeout import bounds_of
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET

# Iceberg's default metrics mode cuts text bounds to this many characters, and increments the upper one.
_TRUNCATED = 16


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One live file; `size` is in bytes. Missing bounds are None; `nulls` are rows without an offset.

    The topic's bounds may be cut; those of partition and offset are exact. `partly`: at least so many rows have values
    in some of the three columns but not in all.
    """

    path: str
    rows: int
    nulls: int | None
    topic: tuple[str, str] | None
    partition: Interval | None
    offset: Interval | None
    size: int = 0
    partly: int = 0

    def topics(self, known: Iterable[str]) -> list[str]:
        """Return the known topics whose rows the file may hold, by its bounds."""
        if self.topic is None:
            return sorted(known)
        low, high = self.topic
        return sorted(t for t in known if low <= t <= high)

    @property
    def is_of_one_topic(self) -> bool:
        """Whether the bounds allow only one topic, as far as they show its name."""
        if self.topic is None:
            return False
        low, high = self.topic
        cut = len(low) == len(high) == _TRUNCATED and low[:-1] == high[:-1] and ord(high[-1]) - ord(low[-1]) == 1
        return low == high or cut

    @property
    def bounds(self) -> tuple[Interval, Interval] | None:
        """The bounds of partition and offset; None without one of them."""
        return None if self.partition is None or self.offset is None else (self.partition, self.offset)

    @property
    def has_positions(self) -> bool:
        """Whether the bounds are positions that records can have."""
        if self.bounds is None:
            return False
        partition, offset = self.bounds
        return partition[0] >= 0 and offset[0] >= 0 and offset[1] < OFFSETS_END

    @property
    def is_dense(self) -> bool:
        """Whether the file holds each offset between its bounds once, as far as statistics tell."""
        if self.bounds is None or self.nulls != 0:
            return False
        partition, offset = self.bounds
        return partition[0] == partition[1] and offset[1] - offset[0] + 1 == self.rows


@dataclass
class TableFiles:
    """The live files of a snapshot."""

    data: list[FileFacts] = field(default_factory=list)
    deletes: list[FileFacts] = field(default_factory=list)

    @property
    def listed_twice(self) -> dict[str, int]:
        """The files that the snapshot lists more than once, with how often."""
        return {path: n for path, n in Counter(f.path for f in self.data).items() if n > 1}


def table_files(table: Table, snapshot_id: int | None) -> TableFiles:
    """Read the manifests of a snapshot."""
    found = TableFiles()
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return found
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            is_data = entry.data_file.content == DataFileContent.DATA
            (found.data if is_data else found.deletes).append(_facts(entry.data_file, table.schema()))
    return found


def _facts(file: DataFile, schema: Schema) -> FileFacts:
    topic, partition, offset = (bounds_of(schema, file, name) for name in COORDINATES)
    counts = file.null_value_counts or {}
    nulls = [counts.get(schema.find_field(name).field_id) for name in COORDINATES if name in schema.column_names]
    of_offset = nulls[-1] if OFFSET in schema.column_names else None
    path, rows, size = file.file_path, file.record_count, file.file_size_in_bytes
    return FileFacts(path, rows, of_offset, topic, partition, offset, size, partly(nulls))


def partly(nulls: Sequence[int | None]) -> int:
    """Return the least number of rows with values in only some of the columns, from each column's NULLs."""
    known = [count for count in nulls if count is not None]
    return max(known) - min(known) if known and len(known) == len(nulls) else 0
