"""Which live rows of a table are the records of given offset ranges: by topic, partition and offset alone.

Only looks. A row is a hit when its three metadata columns have values that lie in the ranges; NULL is no hit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.core.ranges import Interval, OffsetRange, PartitionKey, RangeSet, overlapping

TOPIC, PARTITION, OFFSET = COORDINATES = ("_kafka_topic", "_kafka_partition", "_kafka_offset")

EVERY_ROW = AlwaysTrue()

Offsets = Mapping[PartitionKey, pa.Array]


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
        if overlapping(ranges.intervals(topic, partition), low, high):
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
    found: dict[PartitionKey, list[pa.Array]] = {key: [] for key in ranges.partitions}
    for batch in read_rows(metadata, io, task, columns=COORDINATES):
        rows += batch.num_rows
        hits = batch.filter(is_hit(batch, ranges))
        for key, parts in found.items() if hits.num_rows else ():
            parts += hits.filter(_is_of(hits, key))[OFFSET].cast(pa.int64()).chunks
    offsets = {key: pa.chunked_array(parts, pa.int64()).combine_chunks() for key, parts in found.items()}
    return FileHits(task, rows, offsets)


def is_hit(rows: pa.Table, ranges: RangeSet) -> pa.ChunkedArray:
    """Tell for each row whether it is one of the ranges' records; never NULL."""
    hit = pa.chunked_array([pa.repeat(False, rows.num_rows)])
    there = set(pc.unique(rows[PARTITION]).to_pylist())
    for key in ranges.partitions:
        if key[1] in there and (intervals := _within_bounds(rows[OFFSET], ranges.intervals(*key))):
            hit = pc.or_(hit, pc.and_(_is_of(rows, key), _lies_in(rows[OFFSET], intervals)))
    return hit


def _is_of(rows: pa.Table, key: PartitionKey) -> pa.ChunkedArray:
    return pc.fill_null(pc.and_(pc.equal(rows[TOPIC], key[0]), pc.equal(rows[PARTITION], key[1])), False)


def _within_bounds(offsets: pa.ChunkedArray, intervals: Sequence[Interval]) -> Sequence[Interval]:
    ends = pc.min_max(offsets)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    return () if low is None else overlapping(intervals, low, high)


def _lies_in(offsets: pa.ChunkedArray, intervals: Sequence[Interval]) -> pa.Array:
    """Tell for each offset whether it lies in one of sorted, disjoint intervals; NULL does not.

    All in one sort of offsets and borders, however many intervals there are: an offset is inside where more of them
    begin than end up to it. Not by `search_sorted`, which came to Arrow long after the oldest version that we allow.
    """
    values = pc.fill_null(offsets.cast(pa.int64()), -1).combine_chunks()
    starts, ends = (pa.array(border, pa.int64()) for border in zip(*intervals, strict=True))
    # A border comes before an offset of its own value: even and odd.
    keys = [pc.multiply_checked(starts, 2), pc.multiply_checked(ends, 2), pc.add(pc.multiply_checked(values, 2), 1)]
    steps = [pa.repeat(pa.scalar(step, pa.int64()), len(part)) for step, part in zip((1, -1, 0), keys, strict=True)]
    order = pc.array_sort_indices(pa.concat_arrays(keys))
    inside = pc.greater(pc.cumulative_sum(pa.concat_arrays(steps).take(order)), 0)
    back = pc.array_sort_indices(order)
    return inside.take(back.slice(2 * len(starts)))


def read_rows(
    metadata: TableMetadata,
    io: FileIO,
    task: FileScanTask,
    *,
    columns: Sequence[str] = (),
    where: BooleanExpression = EVERY_ROW,
) -> Iterator[pa.Table]:
    """Yield the live rows of a data file in the table's current schema, positional deletes applied.

    :param columns: those to read; default: all.
    """
    schema = metadata.schema()
    scan = ArrowScan(metadata, io, schema.select(*columns) if columns else schema, where)
    # Private in PyIceberg, whose public ways all hold the rows of a whole file in memory at once.
    deletes = _read_all_delete_files(io, [task])
    for batch in scan._record_batches_from_scan_tasks_and_deletes([task], deletes):
        yield pa.Table.from_batches([batch])


def not_among(offsets: Offsets, among: Offsets) -> RangeSet:
    """Return the offsets that are not among the others."""
    missing: list[OffsetRange] = []
    for key, some in offsets.items():
        known = pc.is_in(some, value_set=among.get(key, pa.array([], pa.int64())))
        strange = some.filter(pc.invert(known)).to_pylist()
        missing += [OffsetRange(*key, offset, offset + 1) for offset in strange]
    return RangeSet(missing)


def joined(parts: Iterable[FileHits], others: Iterable[tuple[PartitionKey, pa.Array]] = ()) -> Offsets:
    """Return the hits of several files together, with other offsets."""
    by_partition: dict[PartitionKey, list[pa.Array]] = {}
    for key, offsets in itertools.chain(*(part.offsets.items() for part in parts), others):
        by_partition.setdefault(key, []).append(offsets)
    return {key: pa.concat_arrays(arrays) for key, arrays in by_partition.items()}


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
    for rows in read_rows(table.metadata, table.io, FileScanTask(file), columns=COORDINATES):
        known += rows.drop_null().num_rows
    return known
