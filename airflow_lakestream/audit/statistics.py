"""Statistics of a table's files from the metadata, and files missing or of another size; no file is opened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from airflow_lakestream.core.landing.unaccounted import OFFSETS_END
from airflow_lakestream.core.ranges import Interval, RangeSet
from airflow_lakestream.iceberg.fitness import UnreadableTable
from airflow_lakestream.iceberg.replace.takeout import bounds_of
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET

# Iceberg's default metrics mode cuts text bounds to this number of characters, and increments the upper bound.
_TRUNCATED = 16


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Statistics of a live file; `size` is in bytes. Missing bounds are None.

    `nulls` is the number of rows without an offset, or None if unknown. The topic's bounds may be cut; the bounds of
    partition and offset are exact. `partly`: at least that many rows have values in some of the columns topic,
    partition and offset, but not in all.
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
        """Return the known topics within the file's bounds, sorted; all known topics if the file has no bounds."""
        if self.topic is None:
            return sorted(known)
        low, high = self.topic
        return sorted(topic for topic in known if low <= topic <= high)

    @property
    def is_of_one_topic(self) -> bool:
        """Whether the bounds allow only a single topic, as far as the bounds show the name."""
        if self.topic is None:
            return False
        low, high = self.topic
        is_cut = len(low) == len(high) == _TRUNCATED and low[:-1] == high[:-1] and ord(high[-1]) - ord(low[-1]) == 1
        return low == high or is_cut

    @property
    def bounds(self) -> tuple[Interval, Interval] | None:
        """The bounds of partition and offset, or None if either is missing."""
        return None if self.partition is None or self.offset is None else (self.partition, self.offset)

    @property
    def has_positions(self) -> bool:
        """Whether the bounds are positions possible for records."""
        if self.bounds is None:
            return False
        partition, offset = self.bounds
        return partition[0] >= 0 and offset[0] >= 0 and offset[1] < OFFSETS_END

    @property
    def is_dense(self) -> bool:
        """Whether the file has each offset between its bounds once, judged by statistics.

        True only for rows of a single partition, all with an offset. False if a statistic is missing.
        """
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
        """Number of listings by path, for files listed more than once by the snapshot."""
        return {path: count for path, count in Counter(file.path for file in self.data).items() if count > 1}


def table_files(table: Table, snapshot_id: int | None) -> TableFiles:
    """Return the live files of a snapshot, from its manifests; no files if `snapshot_id` is None or unknown.

    Raises UnreadableTable if a manifest, or the snapshot's list of them, is gone.
    """
    files = TableFiles()
    snapshot = None if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return files
    try:
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                is_data = entry.data_file.content == DataFileContent.DATA
                (files.data if is_data else files.deletes).append(_facts(entry.data_file, table.schema()))
    except FileNotFoundError as e:
        raise UnreadableTable(".".join(table.name()), e) from e
    return files


def _facts(file: DataFile, schema: Schema) -> FileFacts:
    """Return a file's statistics from its manifest entry."""
    topic, partition, offset = (bounds_of(schema, file, name) for name in COORDINATES)
    counts = file.null_value_counts or {}
    nulls = [counts.get(schema.find_field(name).field_id) for name in COORDINATES if name in schema.column_names]
    offset_nulls = nulls[-1] if OFFSET in schema.column_names else None
    path, rows, size = file.file_path, file.record_count, file.file_size_in_bytes
    return FileFacts(path, rows, offset_nulls, topic, partition, offset, size, partly(nulls))


def partly(nulls: Sequence[int | None]) -> int:
    """Return the least number of rows with values in only some of the columns, by the NULL count of each column.

    The number is 0 if any count is unknown (None).
    """
    counts = [count for count in nulls if count is not None]
    return max(counts) - min(counts) if counts and len(counts) == len(nulls) else 0


# Parallel requests to a store: ten thousand files take seconds, and stores can serve this number.
AT_ONCE = 32

SizeOf = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class LostFile:
    """A live file missing from the store (`found` is None), or of another size, in bytes, than in the metadata.

    `ranges` are the records that the file surely held; empty if the statistics do not show them, or if the table has
    delete files. `nulls` is the number of its rows without an offset, or None if unknown. `is_data` is False for a
    delete file.
    """

    path: str
    rows: int
    size: int
    found: int | None
    ranges: RangeSet = RangeSet()
    nulls: int | None = None
    is_data: bool = True

    @property
    def text(self) -> str:
        """The finding as text."""
        kind = "data file" if self.is_data else "delete file"
        state = "is gone" if self.found is None else f"has {self.found} bytes instead of {self.size}"
        if not self.is_data:
            return f"{kind} {self.path} {state}: it is unknown which rows it deletes"
        held = str(self.ranges) if self.ranges else "its statistics do not show the offsets for certain"
        return f"{kind} {self.path} {state}, with {self.rows} rows: {held}"

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values; ranges as [topic, partition, from, until]."""
        return {
            "path": self.path,
            "rows": self.rows,
            "bytes": self.size,
            "bytes_found": self.found,
            "ranges": [[r.topic, r.partition, r.from_offset, r.until_offset] for r in self.ranges],
        }


def take_out_lost(files: TableFiles, size_of: SizeOf, topic_of: Callable[[FileFacts], str | None]) -> list[LostFile]:
    """Compare the size of each file with the metadata; return the lost files.

    Lost data files are removed from `files`; lost delete files stay.

    :param size_of: returns a file's size in bytes. Raises FileNotFoundError if the file is gone.
    :param topic_of: returns the only topic of a file's rows, or None if there may be several.

    Raises the errors of `size_of` except FileNotFoundError.
    """
    sizes = _sizes([*files.data, *files.deletes], size_of)
    lost = [
        LostFile(
            path=file.path,
            rows=file.rows,
            size=file.size,
            found=sizes[file.path],
            ranges=RangeSet() if files.deletes else _certain_ranges(file, topic_of(file)),
            nulls=file.nulls,
            is_data=file in files.data,
        )
        for file in {file.path: file for file in (*files.data, *files.deletes)}.values()
        if sizes[file.path] != file.size
    ]
    lost_paths = {file.path for file in lost}
    files.data = [file for file in files.data if file.path not in lost_paths]
    return lost


def _sizes(files: Iterable[FileFacts], size_of: SizeOf) -> dict[str, int | None]:
    """Return the size of each file by path, or None for a missing file; several files are looked up at a time."""

    def look(path: str) -> int | None:
        try:
            return size_of(path)
        except FileNotFoundError:
            return None

    paths = list({file.path: None for file in files})
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="lakestream-look") as pool:
        return dict(zip(paths, pool.map(look, paths), strict=True))


def _certain_ranges(file: FileFacts, topic: str | None) -> RangeSet:
    """Return the offsets that a file surely has, by its statistics; empty if these do not show them."""
    if topic is None or file.bounds is None or not file.is_dense or not file.has_positions:
        return RangeSet()
    (partition, _), (low, high) = file.bounds
    return RangeSet.of(topic, partition, low, high + 1)
