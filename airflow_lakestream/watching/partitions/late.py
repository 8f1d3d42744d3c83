"""Late rows, landed in emitted partitions, by the positions and times of an Iceberg table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import DateType

from airflow_lakestream.audit.rows import UnreadableRows, check_positions
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.ledger_store import name_of
from airflow_lakestream.iceberg.replace.takeout import live_files, may_hold, read_rows
from airflow_lakestream.tables.coordinates import COORDINATES, is_hit
from airflow_lakestream.watching.freshness.event_time import EventTimes
from airflow_lakestream.watching.partitions.emission import EmittedPartitions, PartitionLength


def check_columns(table: Table, column: str, every: PartitionLength) -> None:
    """Refuse a table without the times of rows or the positions of records.

    :param column: the column of times, at the top level of the schema; a date only for partitions of a day.

    Raises InvalidArgument, NoPositions.
    """
    event_times = EventTimes.of(table, column)
    if column not in {one.name for one in table.schema().fields}:
        raise InvalidArgument("event_time_column", f"{column!r} is within a struct.", "Give a column of the table.")
    if isinstance(event_times.type, DateType) and every is PartitionLength.HOUR:
        raise InvalidArgument("event_time_column", f"{column!r} is a date, without an hour.", 'Give every="day".')
    check_positions(table)


def late_rows(
    table: Table, column: str, every: PartitionLength, before: EmittedPartitions, unseen: RangeSet
) -> dict[int, int]:
    """Return the number of late rows by the start of the emitted partition.

    Late are rows with an offset in `unseen` and a time in a partition of `before`. Only files that may hold such
    offsets are read.

    :param column: the column of times, see `check_columns`.
    :param every: the length of the partitions.
    :param before: the partitions emitted up to now.
    :param unseen: offsets landed since the last emission.

    Raises UnreadableRows.
    """
    late: Counter[int] = Counter()
    if not unseen:
        return late
    try:
        for task in _files(table, unseen):
            for rows in read_rows(table.metadata, table.io, task, columns=(*COORDINATES, column)):
                late.update(_starts(rows.filter(is_hit(rows, unseen))[column], every))
    except (OSError, ValueError, pa.ArrowException) as e:
        # PyIceberg raises ValueError for delete files that it can't apply.
        raise UnreadableRows(name_of(table), e) from e
    width = every.width_ms
    return {start: rows for start, rows in late.items() if before.has((start, start + width))}


def _files(table: Table, unseen: RangeSet) -> Iterator[FileScanTask]:
    return (task for task in live_files(table) if may_hold(table.metadata, task.file, unseen))


def _starts(times: pa.ChunkedArray, every: PartitionLength) -> dict[int, int]:
    """Return the number of rows by the start of the partition with the row's time.

    :param times: the rows' times; nulls are left out.
    """
    times = times.drop_null()
    kind = times.type
    as_ms = pa.timestamp("ms", kind.tz if pa.types.is_timestamp(kind) else None)
    # Python's division rounds down, also before 1970; Arrow's cast to coarser units does not.
    if pa.types.is_timestamp(kind) and kind.unit in ("us", "ns"):
        per_ms = 1_000 if kind.unit == "us" else 1_000_000
        millis = times.cast(pa.int64()).to_numpy() // per_ms
    else:
        millis = times.cast(as_ms).cast(pa.int64()).to_numpy()
    starts, counts = np.unique(millis // every.width_ms * every.width_ms, return_counts=True)
    return dict(zip(starts.tolist(), counts.tolist(), strict=True))
