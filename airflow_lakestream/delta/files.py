"""Parquet files of a Delta table, described by `add` actions: rows are written, unneeded files are deleted.

Nothing is committed here.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote, unquote

import obstore
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as arrow

from airflow_lakestream.delta.columns import conform, rows_by_partition
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import info_of, read_commit
from airflow_lakestream.stores.folders import RangedFile
from airflow_lakestream.tables.row_buffer import culprits, no_rows, one_row

log = logging.getLogger(__name__)

# Number of leading columns with statistics, as in Delta's other writers.
COLUMNS_WITH_STATISTICS = 32
# Characters of the longest string with bounds: an upper bound can't just be cut short.
LONGEST_BOUND = 64
# Rows in a row group.
ROW_GROUP = 512 * 1024

Add = Mapping[str, Any]


def write_files(
    store: Any,
    schema: pa.Schema,
    partitions: Sequence[str],
    order: Sequence[tuple[str, bool, bool]],
    rows: pa.Table,
    prefix: str,
    counter: Iterator[int],
    folder: str = "",
) -> list[Add]:
    """Write rows as files of a table, at least a file for each partition, and return the `add` actions.

    Before an error is raised, the files of this call are deleted.

    :param schema: the table's columns, to which the rows are conformed.
    :param order: the order of rows, see `columns.check_order`.
    :param prefix: the beginning of the files' names; the next number of `counter` follows.
    :param folder: folder below the table's folder, for the files.
    """
    adds: list[Add] = []
    try:
        for values, part in rows_by_partition(conform(rows, schema), partitions, order):
            name = f"{prefix}-{next(counter):05d}-{uuid.uuid4().hex[:12]}.parquet"
            path = f"{folder.strip('/')}/{name}" if folder else name
            adds.append(_write(store, path, part, values))
    except BaseException:
        delete_files(store, adds)
        raise
    return adds


def unwritable(
    schema: pa.Schema, partitions: Sequence[str], order: Sequence[tuple[str, bool, bool]], rows: pa.Table
) -> dict[int, str]:
    """Return the reasons of unwritable rows by the rows' numbers, found by writing into memory.

    Unknown columns are left out. An error of writing that no row causes is raised.
    """
    write = partial(_write_nowhere, schema, partitions, order)
    return culprits(rows.select([name for name in rows.column_names if name in schema.names]), write)


def proof_of(
    schema: pa.Schema, partitions: Sequence[str], order: Sequence[tuple[str, bool, bool]]
) -> tuple[object, Callable[[], object]]:
    """Return the shape of a table's files, and a function to write a single row on trial.

    An error of the function is the table's fault, independent of the records.
    """
    shape = schema, tuple(partitions), tuple(order)
    return shape, lambda: _write_nowhere(*shape, one_row(schema))


def _write_nowhere(
    schema: pa.Schema, partitions: Sequence[str], order: Sequence[tuple[str, bool, bool]], trial_rows: pa.Table
) -> None:
    """Write rows into memory only, for the errors."""
    rows = conform(trial_rows, schema)
    # Without rows there is no partition: then an empty file shows whether the columns can be written.
    for values, part in rows_by_partition(rows, partitions, order) if trial_rows.num_rows else [({}, rows)]:
        _add("", part, values, _parquet(part))


def delete_files(store: Any, adds: Iterable[Add]) -> list[str]:
    """Delete files if possible; return the paths possibly left. Never raises."""
    left = []
    for add in adds:
        try:
            obstore.delete(store, path_of(add))
        except FileNotFoundError:
            continue
        except Exception:  # noqa: BLE001  # runs while another error is on its way, which must not be hidden
            left.append(path_of(add))
    return left


def without_committed(written: Iterable[Add], committed: Iterable[Add]) -> list[Add]:
    """Return the written files except the committed files."""
    names = {add["path"] for add in committed}
    return [add for add in written if add["path"] not in names]


def path_of(add: Add) -> str:
    """Return a file's path below the table's folder."""
    return unquote(add["path"])


class _StoreFile(RangedFile):
    """File of a store, read by ranges."""

    def __init__(self, store: Any, add: Add) -> None:
        super().__init__(int(add["size"]))
        self._store, self._path = store, path_of(add)

    def read(self, size: int = -1) -> Any:
        start, end = self._at, self._size if size < 0 else min(self._size, self._at + size)
        if start >= end:
            return b""
        self._at = end
        return obstore.get_range(self._store, self._path, start=start, end=end)


def open_file(store: Any, add: Add) -> Any:
    """Open a file for reading; only the ranges read are fetched."""
    return _StoreFile(store, add)


def read_parts(store: Any, add: Add, schema: pa.Schema, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
    """Yield a file's rows in the table's columns, including partition columns and columns added later.

    :param columns: the columns to read; only these are fetched. Default: all.
    """
    names = list(columns or schema.names)
    with pq.ParquetFile(_StoreFile(store, add), pre_buffer=True) as file:
        in_file = [name for name in names if name in file.schema_arrow.names]
        for number in range(file.num_row_groups):
            yield as_columns(file.read_row_group(number, in_file), add, schema, names)


def read_file(store: Any, add: Add, schema: pa.Schema, columns: Sequence[str] = ()) -> pa.Table:
    """Return the rows of `read_parts` as a single table."""
    wanted = pa.schema([schema.field(name) for name in columns or schema.names])
    return pa.concat_tables([no_rows(wanted), *read_parts(store, add, schema, columns)])


def as_columns(rows: pa.Table, add: Add, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Return a file's rows in the table's columns, including partition columns and columns added later.

    :param rows: the rows as read from the file, maybe of some columns only.
    :param columns: the names of the columns to return; default: all columns of `schema`.
    """
    wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    count = rows.num_rows
    arrays = {name: rows[name] for name in rows.column_names}
    for field in wanted:
        if field.name in add["partitionValues"]:
            text = add["partitionValues"][field.name]
            arrays[field.name] = pa.repeat(pa.scalar(text, pa.string()), count).cast(field.type)
    by_name = {name: arrays[name] for name in wanted.names if name in arrays}
    by_name |= {field.name: pa.nulls(count, field.type) for field in wanted if field.name not in by_name}
    return pa.Table.from_arrays([by_name[field.name].cast(field.type) for field in wanted], schema=wanted)


def _write(store: Any, path: str, rows: pa.Table, values: Mapping[str, str | None]) -> Add:
    """Write rows of a partition as a file; return the file."""
    data = _parquet(rows)
    obstore.put(store, path, data.to_pybytes(), mode="create")
    return _add(path, rows, values, data)


def _add(path: str, rows: pa.Table, values: Mapping[str, str | None], data: pa.Buffer) -> Add:
    """Return the `add` action of a file with these rows, in the partition with these values."""
    return {
        "path": quote(path),
        "partitionValues": dict(values),
        "size": data.size,
        "modificationTime": time.time_ns() // 1_000_000,
        "dataChange": True,
        "stats": json.dumps(_statistics(rows), ensure_ascii=False),
    }


def _parquet(rows: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, compression="zstd", coerce_timestamps="us", store_schema=False) as writer:
        writer.write_table(rows, row_group_size=ROW_GROUP)
    return sink.getvalue()


def _statistics(rows: pa.Table) -> dict[str, Any]:
    """Return the statistics of rows for an `add` action."""
    lowest, highest, nulls = {}, {}, {}
    for field in list(rows.schema)[:COLUMNS_WITH_STATISTICS]:
        if arrow.is_nested(field.type):
            # Readers expect counts of all parts of a nested column, or no counts.
            continue
        column = rows[field.name]
        nulls[field.name] = column.null_count
        if (bounds := _bounds(field.type, column)) is not None:
            lowest[field.name], highest[field.name] = bounds
    return {"numRecords": len(rows), "minValues": lowest, "maxValues": highest, "nullCount": nulls}


def _bounds(kind: pa.DataType, column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return a column's bounds for the statistics, or None if the column gets none."""
    # Floats get no bounds: each reader treats NaN in bounds differently.
    plain = (arrow.is_integer, arrow.is_string, arrow.is_date32, arrow.is_timestamp)
    if not any(test(kind) for test in plain) or column.null_count == len(column):
        return None
    ends = pc.min_max(column)
    try:
        low, high = ends["min"].as_py(), ends["max"].as_py()
        if isinstance(low, datetime):
            # Bounds have milliseconds: the upper bound is rounded up.
            return _milliseconds(low), _milliseconds(high + timedelta(microseconds=999))
    except (OverflowError, ValueError):
        # A time out of Python's range.
        return None
    if isinstance(low, date):
        return low.isoformat(), high.isoformat()
    if isinstance(low, str) and max(len(low), len(high)) > LONGEST_BOUND:
        return None
    return low, high


def _milliseconds(moment: datetime) -> str:
    """Return a time with milliseconds as text; a time with a zone in UTC, with a Z at the end."""
    if moment.tzinfo is None:
        return moment.isoformat(timespec="milliseconds")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


# Largest difference between the clocks of a store and a writer, in milliseconds.
CLOCK_DIFFERENCE_MS = 3_600_000


def delete_unreferenced(store: Any, head: DeltaTableHead | None, folder: str) -> tuple[int, int]:
    """Delete the files below a folder that no version has added; return the numbers of deleted and remaining files.

    The versions since the oldest of the files are read. If the log does not go back that far, or the table is missing,
    nothing is deleted: another version may need a file that the head no longer has. Both numbers are then 0.
    """
    modified = {
        item["path"]: int(item["last_modified"].timestamp() * 1000)
        for page in obstore.list(store, folder.strip("/"))
        for item in page
    }
    if head is None or not modified:
        return 0, 0
    added: set[str] = set()
    for version in range(head.version, -1, -1):
        actions = read_commit(store, version)
        if actions is None:
            return 0, 0
        added |= {unquote(action["add"]["path"]) for action in actions if "add" in action}
        if info_of(actions).get("timestamp", 0) < min(modified.values()) - CLOCK_DIFFERENCE_MS:
            break
    unused = [{"path": quote(path)} for path in modified if path not in added]
    left = delete_files(store, unused)
    return len(unused) - len(left), len(left)
