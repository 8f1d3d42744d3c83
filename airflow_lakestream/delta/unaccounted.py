"""Search of a Delta table for rows unknown to all ledgers; see `airflow_lakestream.tables.unaccounted`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSystem, PyFileSystem

from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery, UnaccountedRows
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.replace.takeout import adds_of, bounds_of
from airflow_lakestream.delta.write.files import Add, as_columns, path_of
from airflow_lakestream.tables.coordinates import COORDINATES
from airflow_lakestream.tables.unaccounted import CandidateFile, find, keeps_positions


def look_for_rows(head: DeltaTableHead, asked: ForeignRowQuery) -> UnaccountedRows:
    """Return the unaccounted rows in the table at this version, with deletion vectors applied.

    Raises FileUnreadable. The result is empty for a table whose rows keep no positions.
    """
    if head.delta is None or not keeps_positions(head.schema):
        return UnaccountedRows()
    masks = _masks(head)
    files = PyFileSystem(DeltaStorageHandler.from_table(head.delta._table))
    return find(head.table, (_to_judge(head, files, add, masks) for add in adds_of(head)), asked)


def _masks(head: DeltaTableHead) -> dict[str, Sequence[bool]]:
    """Return masks of the live rows by path, for the files with deleted rows."""
    assert head.delta is not None, "the table is really there"
    vectors = pa.table(head.delta.deletion_vectors()).to_pylist()
    # delta-rs gives the whole location of a file; an action has the path below the table's folder.
    table = head.delta.table_uri.rstrip("/") + "/"
    return {unquote(one["filepath"].removeprefix(table)): one["selection_vector"] for one in vectors}


def _to_judge(head: DeltaTableHead, files: FileSystem, add: Add, masks: dict[str, Sequence[bool]]) -> CandidateFile:
    mask = masks.get(path_of(add))
    topic, partition, offset = (bounds_of(add, name) for name in COORDINATES)
    of_partition = [name for name in COORDINATES if add["partitionValues"].get(name) is not None]
    # A partition column has a value in each row of the file.
    nulls = [0 if name in of_partition else add["stats"]["nullCount"].get(name) for name in COORDINATES]
    rows = add["stats"]["numRecords"]
    return CandidateFile(
        path=add["path"],
        rows=rows or 0,
        topic=topic,
        partition=partition,
        offset=offset,
        is_whole=mask is None and rows is not None and nulls == [0, 0, 0],
        read=partial(_rows, head, files, add, mask),
    )


def _rows(head: DeltaTableHead, files: FileSystem, add: Add, mask: Sequence[bool] | None) -> Iterator[pa.Table]:
    # Its footer and three columns, not the whole file.
    with files.open_input_file(path_of(add)) as source, pq.ParquetFile(source) as file:
        names = [name for name in COORDINATES if name in file.schema_arrow.names]
        if mask is None:
            for batch in file.iter_batches(columns=names):
                yield as_columns(pa.Table.from_batches([batch]), add, head.schema, COORDINATES)
            return
        rows = as_columns(file.read(names), add, head.schema, COORDINATES)
    # Rows behind the end of a deletion vector are live.
    left = [*mask, *([True] * (len(rows) - len(mask)))]
    yield rows.filter(pa.array(left, pa.bool_()))
