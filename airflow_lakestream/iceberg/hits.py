"""Which live rows of a table are the records of given offset ranges: by topic, partition and offset alone.

Only looks. A row is a hit when its three metadata columns have values that lie in the ranges; NULL is no hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.core.ranges import OffsetRange, RangeSet

TOPIC, PARTITION, OFFSET = COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset")

Offsets = Mapping[int, pa.Array]


@dataclass(frozen=True, slots=True)
class FileHits:
    """What one data file holds of the ranges: its live rows, and by partition the offsets of those that are hits."""

    task: FileScanTask
    rows: int
    offsets: Offsets

    @property
    def count(self) -> int:
        """How many rows are hits."""
        return sum(len(found) for found in self.offsets.values())


def live_files(table: Table) -> list[FileScanTask]:
    """Return the data files of the table's head, each with the position deletes that apply to it."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    planner = ManifestGroupPlanner(table.metadata, table.io)
    return list(planner.plan_files(snapshot.manifests(table.io)))


def may_hold(metadata: TableMetadata, file: DataFile, ranges: RangeSet) -> bool:
    """Tell by the bounds of a data file whether it may hold a row of the ranges; without bounds it may."""
    # Not by an expression of PyIceberg: for a thousand ranges that takes seconds.
    lowest, highest = file.lower_bounds or {}, file.upper_bounds or {}
    topic_id, partition_id, offset_id = _column_ids(metadata)
    low_topic, high_topic = lowest.get(topic_id), highest.get(topic_id)
    low_partition, high_partition = _integer(lowest.get(partition_id)), _integer(highest.get(partition_id))
    low, high = _integer(lowest.get(offset_id)), _integer(highest.get(offset_id))
    for topic, partition in ranges.partitions:
        # Bounds of strings may be cut short, and are bounds all the same.
        name = topic.encode()
        if (low_topic is not None and name < low_topic) or (high_topic is not None and name > high_topic):
            continue
        if (low_partition is not None and partition < low_partition) or (
            high_partition is not None and partition > high_partition
        ):
            continue
        for start, end in ranges.intervals(topic, partition):
            if (high is None or start <= high) and (low is None or low < end):
                return True
    return False


def _column_ids(metadata: TableMetadata) -> tuple[int, ...]:
    schema = metadata.schema()
    return tuple(schema.find_field(name).field_id for name in COORDINATES)


def _integer(bound: bytes | None) -> int | None:
    return None if bound is None else int.from_bytes(bound, "little", signed=True)


def look_into(metadata: TableMetadata, io: FileIO, task: FileScanTask, ranges: RangeSet) -> FileHits:
    """Find the hits among the live rows of one data file."""
    rows = 0
    found: dict[int, list[pa.Array]] = {partition: [] for _, partition in ranges.partitions}
    for batch in read_rows(metadata, io, task, coordinates_only=True):
        rows += batch.num_rows
        hits = batch.filter(is_hit(batch, ranges))
        for partition, parts in found.items():
            offsets = hits.filter(pc.equal(hits[PARTITION], partition))[OFFSET].cast(pa.int64())
            parts += offsets.chunks
    offsets = {partition: pa.chunked_array(parts, pa.int64()).combine_chunks() for partition, parts in found.items()}
    return FileHits(task, rows, offsets)


def is_hit(rows: pa.Table, ranges: RangeSet) -> pa.ChunkedArray:
    """Tell for each row whether it is one of the ranges' records; never NULL."""
    partition, offset = rows[PARTITION], rows[OFFSET]
    ends = pc.min_max(offset)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    hit = pa.chunked_array([pa.repeat(False, rows.num_rows)])
    for r in ranges if low is not None else ():
        if r.from_offset <= high and low < r.until_offset:
            inside = pc.and_(pc.greater_equal(offset, r.from_offset), pc.less(offset, r.until_offset))
            of_partition = pc.and_(pc.equal(rows[TOPIC], r.topic), pc.equal(partition, r.partition))
            hit = pc.or_(hit, pc.fill_null(pc.and_(of_partition, inside), False))
    return hit


def read_rows(
    metadata: TableMetadata, io: FileIO, task: FileScanTask, *, coordinates_only: bool = False
) -> Iterator[pa.Table]:
    """Yield the live rows of a data file in the table's current schema, positional deletes applied."""
    schema = metadata.schema()
    scan = ArrowScan(metadata, io, schema.select(*COORDINATES) if coordinates_only else schema, AlwaysTrue())
    # Private in PyIceberg, whose public ways all hold the rows of a whole file in memory at once.
    deletes = _read_all_delete_files(io, [task])
    for batch in scan._record_batches_from_scan_tasks_and_deletes([task], deletes):
        yield pa.Table.from_batches([batch])


def not_among(offsets: Offsets, among: Offsets, topic: str) -> RangeSet:
    """Return the offsets that are not among the others."""
    missing: list[OffsetRange] = []
    for partition, some in offsets.items():
        known = pc.is_in(some, value_set=among.get(partition, pa.array([], pa.int64())))
        strange = some.filter(pc.invert(known)).to_pylist()
        missing += [OffsetRange(topic, partition, offset, offset + 1) for offset in strange]
    return RangeSet(missing)


def joined(parts: Iterable[FileHits]) -> Offsets:
    """Return the hits of several files together."""
    by_partition: dict[int, list[pa.Array]] = {}
    for part in parts:
        for partition, offsets in part.offsets.items():
            by_partition.setdefault(partition, []).append(offsets)
    return {partition: pa.concat_arrays(arrays) for partition, arrays in by_partition.items()}


def equality_deletes(table: Table) -> list[str]:
    """Return the paths of the live equality deletes; PyIceberg can't apply them."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    return [
        entry.data_file.file_path
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == DataFileContent.EQUALITY_DELETES
    ]


def rows_with_coordinates(table: Table, files: Iterable[FileScanTask]) -> tuple[int, list[str]]:
    """Count the rows whose coordinates all have values, and name the files in which some have not.

    By statistics; files without are read. Deleted rows that are still in their file count.
    """
    total, lacking = 0, []
    for task in files:
        known = _known_by_statistics(table.metadata, task.file)
        if known is None:
            known = _known_by_reading(table, task.file)
        total += known
        if known < task.file.record_count:
            lacking.append(task.file.file_path)
    return total, lacking


def _known_by_statistics(metadata: TableMetadata, file: DataFile) -> int | None:
    values, nulls = file.value_counts or {}, file.null_value_counts or {}
    ids = _column_ids(metadata)
    if any(i not in values or i not in nulls for i in ids):
        return None
    return min(values[i] - nulls[i] for i in ids)


def _known_by_reading(table: Table, file: DataFile) -> int:
    known = 0
    for rows in read_rows(table.metadata, table.io, FileScanTask(file), coordinates_only=True):
        known += rows.drop_null().num_rows
    return known
