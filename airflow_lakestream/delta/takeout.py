"""Live files of a Delta table: for the search by `tables.takeout`, for a replace, and for rows without a ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSystem, PyFileSystem

from airflow_lakestream.core.landing.unaccounted import ForeignRowQuery, UnaccountedRows
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import CannotReplace, ReplacedMeanwhile
from airflow_lakestream.core.ranges import RangeSet, overlapping
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.committing import DeltaCheck, DeltaCommit
from airflow_lakestream.delta.files import Add, as_columns, path_of, read_file, read_parts
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import check_no_dead_rows, check_removable
from airflow_lakestream.tables import takeout
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, TOPIC
from airflow_lakestream.tables.guards import check_replace, completed, replaced_by_others, replaced_ranges, rows_landed
from airflow_lakestream.tables.retention import REMOVED
from airflow_lakestream.tables.unaccounted import CandidateFile, find, keeps_positions

Finder = takeout.TakeoutFinder[Add, Add]
Takeout = takeout.TakeoutFiles[Add, Add]


class DeltaFiles(takeout.HeadFiles[Add, Add]):
    """`tables.takeout.HeadFiles` of a Delta table; `store` is the store of the table's folder."""

    def __init__(self, store: Any, head: DeltaTableHead) -> None:
        self._store, self._head = store, head
        self.name, self.columns = head.table, head.schema.names

    def live(self) -> Sequence[Add]:
        """Return the live files. Raises CannotReplace for a table with deletion vectors."""
        return list(live_files(self._head))

    def of_new(self, file: Add) -> Add:
        """Return a new file of the commit as a live file."""
        return file

    def key(self, file: Add) -> str:
        """Return the path as a file's key."""
        path: str = file["path"]
        return path

    def may_hold(self, file: Add, ranges: RangeSet) -> bool:
        """Return by a file's statistics whether rows of the ranges are possible."""
        return may_hold(file, ranges)

    def rows(self, file: Add, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the rows of a file."""
        yield from read_parts(self._store, file, self._head.schema, columns)

    def rows_with_coordinates(self, files: Sequence[Add]) -> tuple[int, Sequence[str]]:
        """Return the number of rows with values in all coordinates, and the names of files with a missing value.

        Files without these statistics are read.
        """
        complete_rows, incomplete = 0, []
        for add in files:
            nulls = [add["stats"]["nullCount"].get(name) for name in COORDINATES]
            rows = add["stats"]["numRecords"]
            if rows is None or None in nulls:
                read = read_file(self._store, add, self._head.schema, COORDINATES)
                rows, complete = len(read), len(read.drop_null())
            else:
                complete = rows - max(nulls)
            complete_rows += complete
            incomplete += [add["path"]] if complete < rows else []
        return complete_rows, incomplete


def live_files(head: DeltaTableHead) -> Iterator[Add]:
    """Yield the live files as `add` actions, `stats` as a mapping. Raises CannotReplace if files have deleted rows."""
    check_no_dead_rows(head)
    yield from adds_of(head)


def adds_of(head: DeltaTableHead) -> Iterator[Add]:
    """Yield the live files as `add` actions, `stats` as a mapping; files may have deleted rows."""
    assert head.delta is not None, "the head was loaded by delta-rs"
    table = pa.table(head.delta.get_add_actions(flatten=False))
    for row in table.to_pylist():
        values = row.get("partition") or {}
        yield {
            "path": row["path"],
            "size": row["size_bytes"],
            "partitionValues": {name: _text(values[name]) for name in head.partitions},
            "stats": {
                "numRecords": row["num_records"],
                "nullCount": row.get("null_count") or {},
                "minValues": row.get("min") or {},
                "maxValues": row.get("max") or {},
            },
        }


def bounds_of(add: Add, name: str) -> tuple[Any, Any] | None:
    """Return a metadata column's bounds in a file, both ends included, or None if missing in the log.

    In a partition column, both bounds are the value of the partition.
    """
    if (text := add["partitionValues"].get(name)) is not None:
        value = text if name == TOPIC else int(text)
        return value, value
    low, high = (add["stats"][bound].get(name) for bound in ("minValues", "maxValues"))
    return None if low is None or high is None else (low, high)


def _text(value: Any) -> str | None:
    """Return a partition value in Delta's text form, None for NULL."""
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def may_hold(add: Add, ranges: RangeSet) -> bool:
    """Return by a file's statistics whether rows of the ranges are possible; True without statistics."""
    low, high = add["stats"]["minValues"].get(OFFSET), add["stats"]["maxValues"].get(OFFSET)
    return any(overlapping(ranges.intervals(*key), low, high) for key in ranges.partitions)


def not_replaced_since(store: Any, since: int, own: Collection[str]) -> DeltaCheck:
    """Return a check that refuses ranges which another run has replaced since this run's plan.

    The check raises ReplacedMeanwhile, and CannotReplace if the log has lost versions.

    :param since: the version at the run's first look.
    :param own: the ids of this run's landings.
    """

    def check(commit: DeltaCommit, head: DeltaTableHead | None) -> None:
        _, ranges = replaced_ranges(commit.landing)
        landings = _landings_since(store, commit.group, head, since, ranges) if head is not None else ()
        if replaced := replaced_by_others(landings, ranges, own):
            raise ReplacedMeanwhile(commit.table, replaced)

    return check


def _landings_since(
    store: Any, consumer_group: str, head: DeltaTableHead, since: int, ranges: RangeSet
) -> Iterator[Landing]:
    """Yield the group's landings after a version, newest first. Raises CannotReplace if the log has lost one."""
    version = ledger_store.previous_version(head, consumer_group)
    while version is not None and version > since:
        item = ledger_store.landing_at(store, version, consumer_group)
        if item is None:
            raise CannotReplace(
                f"{head.table}: its log no longer has version {version}, so it is unknown whether another run "
                f"replaced {ranges} meanwhile. Nothing was changed. Run it again, or keep the log longer."
            )
        landing, version = item
        yield landing


def ranges_landed(commit: DeltaCommit, head: DeltaTableHead | None) -> None:
    """Refuse a replace of ranges that the group has not landed, or that may contain rows of another group or tool.

    Also refuses a table whose rows must not be removed, such as an append-only table.
    """
    if head is not None:
        ledgers, is_kept = ledger_store.ledgers(head, commit.group), REMOVED in head.properties
        check_replace(commit.table, commit.landing, commit.group, ledgers, keeps_removed=is_kept)
        check_removable(head)


def replaced_files(
    store: Any, head: DeltaTableHead, finder: Finder, landing: Landing, consumer_group: str
) -> tuple[Takeout, Landing]:
    """Return the takeout at a head, and the landing with the counts of removed rows. Writes remaining rows."""
    ledgers = ledger_store.ledgers(head, consumer_group)
    takeout = finder.find(DeltaFiles(store, head), rows_landed(ledgers.values()))
    return takeout, completed(landing, takeout.rows, ledgers[consumer_group])


def look_for_rows(head: DeltaTableHead, query: ForeignRowQuery) -> UnaccountedRows:
    """Return the unaccounted rows in the table at this version, with deletion vectors applied.

    Raises FileUnreadable. The result is empty for a table whose rows keep no positions.
    """
    if head.delta is None or not keeps_positions(head.schema):
        return UnaccountedRows()
    masks = _masks(head)
    files = PyFileSystem(DeltaStorageHandler.from_table(head.delta._table))
    return find(head.table, (_candidate(head, files, add, masks) for add in adds_of(head)), query)


def _masks(head: DeltaTableHead) -> dict[str, Sequence[bool]]:
    """Return masks of the live rows by path, for the files with deleted rows."""
    assert head.delta is not None, "the head was loaded by delta-rs"
    vectors = pa.table(head.delta.deletion_vectors()).to_pylist()
    # delta-rs gives the whole location of a file; an action has the path below the table's folder.
    table = head.delta.table_uri.rstrip("/") + "/"
    return {unquote(vector["filepath"].removeprefix(table)): vector["selection_vector"] for vector in vectors}


def _candidate(head: DeltaTableHead, files: FileSystem, add: Add, masks: dict[str, Sequence[bool]]) -> CandidateFile:
    """Return a file for the search of unaccounted rows: the bounds of its positions, and a reader of its rows."""
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
    """Yield the positions of a file's live rows; only the footer and three columns are read."""
    with files.open_input_file(path_of(add)) as source, pq.ParquetFile(source) as file:
        names = [name for name in COORDINATES if name in file.schema_arrow.names]
        if mask is None:
            for batch in file.iter_batches(columns=names):
                yield as_columns(pa.Table.from_batches([batch]), add, head.schema, COORDINATES)
            return
        rows = as_columns(file.read(names), add, head.schema, COORDINATES)
    # A mask may be shorter than the file: all further rows are live.
    is_live = [*mask, *([True] * (len(rows) - len(mask)))]
    yield rows.filter(pa.array(is_live, pa.bool_()))
