"""Live files of an Iceberg table: for the search by `tables.takeout`, and for rows that no ledger accounts for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from typing import Any, cast

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowProjectionVisitor, ArrowScan, _read_all_delete_files
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import PrimitiveType

from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery, UnaccountedRows
from airflow_lakestream.core.ports import CannotReplace, HeadMoved
from airflow_lakestream.core.ranges import RangeSet, overlapping
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.manifests import WholeTablePlanner
from airflow_lakestream.iceberg.write.deletes import NONE_DELETED, deleted_positions
from airflow_lakestream.tables import takeout
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC
from airflow_lakestream.tables.unaccounted import CandidateFile, FileUnreadable, find, keeps_positions

# A commit that reads rows and writes them again would change their values. PyIceberg has no hook for its projection, so
# two methods of the projection's visitor are replaced in the whole process.
Projection = Callable[..., pa.Array | None]


def _with_nulls(project: Projection) -> Projection:
    """Return a projection of lists or maps that leaves the nulls of the file's array null."""

    @wraps(project)
    def projected(visitor: Any, kind: Any, array: pa.Array | None, *parts: pa.Array | None) -> pa.Array | None:
        result = project(visitor, kind, array, *parts)
        if result is None or array is None or result.null_count == array.null_count:
            return result
        return _masked(result, array.is_null())

    return projected


def _masked(array: pa.Array, mask: pa.Array) -> pa.Array:
    """Return lists or maps with null where the mask is true; the type keeps its fields' ids, unlike by `if_else`."""
    # A copy: Arrow takes no mask with the offsets of a slice.
    offsets = pa.array(array.offsets.to_numpy(), array.offsets.type)
    if isinstance(array, pa.MapArray):
        return pa.MapArray.from_arrays(offsets, array.keys, array.items, array.type, mask=mask)
    return type(array).from_arrays(offsets, array.values, array.type, mask=mask)


def keep_null_lists() -> None:
    """Make PyIceberg read null lists and maps of structs as null."""
    for name in ("list", "map"):
        method = getattr(ArrowProjectionVisitor, name)
        if not hasattr(method, "__wrapped__"):
            setattr(ArrowProjectionVisitor, name, _with_nulls(method))


EVERY_ROW = AlwaysTrue()
keep_null_lists()


def bounds_of(schema: Schema, file: DataFile, name: str) -> tuple[Any, Any] | None:
    """Return a column's bounds in a data file, both ends included, or None if missing in the manifest.

    Bounds of texts may be cut short, with the upper one made greater.
    """
    if name not in schema.column_names or not file.lower_bounds or not file.upper_bounds:
        return None
    column = schema.find_field(name)
    low, high = file.lower_bounds.get(column.field_id), file.upper_bounds.get(column.field_id)
    if low is None or high is None:
        return None
    kind = cast(PrimitiveType, column.field_type)
    return from_bytes(kind, low), from_bytes(kind, high)


def live_files(table: Table) -> list[FileScanTask]:
    """Return the data files of the table's head, each with the applicable position deletes."""
    return live_files_of(table.metadata, table.io)


def live_files_of(metadata: TableMetadata, io: FileIO) -> list[FileScanTask]:
    """Return the data files of the head in this metadata, each with the applicable position deletes."""
    snapshot = metadata.current_snapshot()
    return [] if snapshot is None else list(WholeTablePlanner(metadata, io).plan_files(snapshot.manifests(io)))


def may_hold(metadata: TableMetadata, file: DataFile, ranges: RangeSet) -> bool:
    """Return by a file's bounds whether rows of the ranges are possible; True without bounds."""
    # An expression of PyIceberg would take seconds for a thousand ranges.
    lowest, highest = file.lower_bounds or {}, file.upper_bounds or {}
    topic_id, partition_id, offset_id = _column_ids(metadata)
    low_topic, high_topic = lowest.get(topic_id), highest.get(topic_id)
    low_partition, high_partition = _integer(lowest.get(partition_id)), _integer(highest.get(partition_id))
    low, high = _integer(lowest.get(offset_id)), _integer(highest.get(offset_id))
    for topic, partition in ranges.partitions:
        # Bounds of strings may be cut short, and are still bounds.
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


def read_rows(
    metadata: TableMetadata,
    io: FileIO,
    task: FileScanTask,
    *,
    columns: Sequence[str] = (),
    where: BooleanExpression = EVERY_ROW,
) -> Iterator[pa.Table]:
    """Yield the live rows of a data file in the table's current schema, positional deletes applied.

    :param task: the data file with its delete files.
    :param columns: the columns to read; default: all.
    :param where: a condition of PyIceberg's on the rows; default: all rows.
    """
    schema, start = metadata.schema(), 0
    scan = ArrowScan(metadata, io, schema.select(*columns) if columns else schema, where)
    # PyIceberg has to apply a condition after the deletes.
    is_whole = where is EVERY_ROW
    deletes = {} if is_whole else _read_all_delete_files(io, [task])
    deleted = deleted_positions(io, task) if is_whole else NONE_DELETED
    # A private method of PyIceberg: its public functions all hold the rows of a whole file in memory at once.
    for batch in scan._record_batches_from_scan_tasks_and_deletes([task], deletes):
        rows, end = pa.Table.from_batches([batch]), start + len(batch)
        low, high = np.searchsorted(deleted, (start, end))
        if low < high:
            stays = np.ones(len(rows), np.bool_)
            stays[deleted[low:high] - start] = False
            rows = rows.filter(pa.array(stays))
        start = end
        if len(rows):
            yield rows


def added_files(table: Table, snapshot: Snapshot) -> Iterator[DataFile]:
    """Yield the data files added by a snapshot."""
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.status == ManifestEntryStatus.ADDED and entry.data_file.content == DataFileContent.DATA:
                    yield entry.data_file


def _equality_deletes(table: Table) -> list[str]:
    """Return the paths of the live equality deletes, unsupported by PyIceberg."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    return [
        entry.data_file.file_path
        for manifest in manifests
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == DataFileContent.EQUALITY_DELETES
    ]


def _known_by_statistics(metadata: TableMetadata, file: DataFile) -> int | None:
    """Return the number of a file's rows with values in all coordinates, or None without the statistics."""
    values, nulls = file.value_counts or {}, file.null_value_counts or {}
    ids = _column_ids(metadata)
    if any(i not in values or i not in nulls for i in ids):
        return None
    return min(values[i] - nulls[i] for i in ids)


def _known_by_reading(table: Table, file: DataFile) -> int:
    """Return the number of a file's rows with values in all coordinates."""
    count = 0
    for rows in read_rows(table.metadata, table.io, FileScanTask(file), columns=COORDINATES):
        count += rows.drop_null().num_rows
    return count


# A data file with the delete files that apply to it.
FileKey = tuple[str, frozenset[str]]
Finder = takeout.TakeoutFinder[FileScanTask, DataFile]
Takeout = takeout.TakeoutFiles[FileScanTask, DataFile]


class IcebergFiles(takeout.HeadFiles[FileScanTask, DataFile]):
    """`tables.takeout.HeadFiles` of an Iceberg table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.name, self.columns = ledger_store.name_of(table), table.schema().column_names

    def live(self) -> Sequence[FileScanTask]:
        """Return the live files. Raises CannotReplace for a table with equality deletes."""
        if paths := _equality_deletes(self.table):
            raise CannotReplace(
                f"{self.name} has equality deletes, such as {paths[0]}, which PyIceberg does not read: deleted rows "
                "would come back. Nothing was changed. Rewrite its data files with another engine first."
            )
        return live_files(self.table)

    def of_new(self, file: DataFile) -> FileScanTask:
        """Return a new file of the commit as a live file."""
        return FileScanTask(file)

    def key(self, file: FileScanTask) -> FileKey:
        """Return the key of a data file and all deletes on the file."""
        return file.file.file_path, frozenset(delete.file_path for delete in file.delete_files)

    def may_hold(self, file: FileScanTask, ranges: RangeSet) -> bool:
        """Return by a file's statistics whether rows of the ranges are possible."""
        return may_hold(self.table.metadata, file.file, ranges)

    def rows(self, file: FileScanTask, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the live rows of a file."""
        return read_rows(self.table.metadata, self.table.io, file, columns=columns)

    def rows_with_coordinates(self, files: Sequence[FileScanTask]) -> tuple[int, Sequence[str]]:
        """Return the number of rows with values in all coordinates, and the names of files with a missing value.

        Files without these statistics are read. Deleted rows count as long as their files have them.
        """
        total, lacking = 0, []
        for task in files:
            complete = _known_by_statistics(self.table.metadata, task.file)
            if complete is None:
                complete = _known_by_reading(self.table, task.file)
            total += complete
            if complete < task.file.record_count:
                lacking.append(task.file.file_path)
        return total, lacking


def look_for_rows(table: Table, query: ForeignRowQuery) -> UnaccountedRows:
    """Return the unaccounted rows in the table's head: position deletes are applied, equality deletes are not.

    Raises FileUnreadable, and HeadMoved if another writer has removed the files meanwhile. The result is empty for a
    table whose rows keep no positions.
    """
    snapshot = table.current_snapshot()
    if snapshot is None or not keeps_positions(table.schema().as_arrow()):
        return UnaccountedRows()
    name = ledger_store.name_of(table)
    try:
        return _look(table, snapshot, query)
    except (FileNotFoundError, FileUnreadable) as e:
        if ledger_store.head_of(table.catalog.load_table(table.name()).metadata) != snapshot.snapshot_id:
            raise HeadMoved(name) from e
        raise e if isinstance(e, FileUnreadable) else FileUnreadable(name, str(e.filename or e), e) from e


def _look(table: Table, snapshot: Snapshot, query: ForeignRowQuery) -> UnaccountedRows:
    """Return the unaccounted rows of a snapshot; only files that may have rows of the topic are searched."""
    planner = ManifestGroupPlanner(table.metadata, table.io, row_filter=_is_of(query.topic))
    # PyIceberg plans no scan of a table that has equality deletes, which it can't apply.
    tasks = planner.plan_files(snapshot.manifests(table.io), manifest_entry_filter=_is_no_equality_delete)
    return find(ledger_store.name_of(table), (_to_judge(table, task, query.topic) for task in tasks), query)


def _is_of(topic: str) -> BooleanExpression:
    # Kafka's names of topics have no quotes.
    return parse(f"{TOPIC} == '{topic}'")


def _is_no_equality_delete(entry: ManifestEntry) -> bool:
    return entry.data_file.content != DataFileContent.EQUALITY_DELETES


def _to_judge(table: Table, task: FileScanTask, topic: str) -> CandidateFile:
    """Return a data file with its bounds and null counts, for the search by `find`."""
    file, schema = task.file, table.schema()
    ids = [schema.find_field(name).field_id for name in COORDINATES]
    nulls = file.null_value_counts or {}
    return CandidateFile(
        path=file.file_path,
        rows=file.record_count,
        topic=bounds_of(schema, file, TOPIC),
        partition=bounds_of(schema, file, PARTITION),
        offset=bounds_of(schema, file, OFFSET),
        is_whole=not task.delete_files and all(nulls.get(field_id) == 0 for field_id in ids),
        read=partial(_rows, table, task, topic),
    )


def _rows(table: Table, task: FileScanTask, topic: str) -> Iterable[pa.Table]:
    return read_rows(table.metadata, table.io, task, columns=COORDINATES, where=_is_of(topic))
