"""Live files of a Delta table for the search by `tables.takeout`, and a landing that replaces rows."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import CannotReplace, ReplacedMeanwhile, StaleFiles
from airflow_lakestream.core.ranges import RangeSet, overlapping
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.committing import DeltaTarget, check_fit, landing_actions
from airflow_lakestream.delta.files import Add, read_file, read_parts
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import Action, check_no_dead_rows, check_removable
from airflow_lakestream.tables import takeout
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, TOPIC
from airflow_lakestream.tables.guards import check_replace, completed, replaced_by_others, replaced_ranges, rows_landed

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
        known, lacking = 0, []
        for add in files:
            nulls = [add["stats"]["nullCount"].get(name) for name in COORDINATES]
            rows = add["stats"]["numRecords"]
            if rows is None or None in nulls:
                read = read_file(self._store, add, self._head.schema, COORDINATES)
                rows, there = len(read), len(read.drop_null())
            else:
                there = rows - max(nulls)
            known += there
            lacking += [add["path"]] if there < rows else []
        return known, lacking


def live_files(head: DeltaTableHead) -> Iterator[Add]:
    """Yield the live files as `add` actions, `stats` as a mapping. Raises CannotReplace if files have deleted rows."""
    check_no_dead_rows(head)
    yield from adds_of(head)


def adds_of(head: DeltaTableHead) -> Iterator[Add]:
    """Yield the live files as `add` actions, `stats` as a mapping; files may have deleted rows."""
    assert head.delta is not None, "the table is really there"
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
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def remove_action(add: Add) -> dict[str, Any]:
    """Return the action for removing a live file now."""
    return {
        "remove": {
            "path": add["path"],
            "deletionTimestamp": time.time_ns() // 1_000_000,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": dict(add["partitionValues"]),
            "size": add["size"],
        }
    }


def may_hold(add: Add, ranges: RangeSet) -> bool:
    """Return by a file's statistics whether rows of the ranges are possible; True without statistics."""
    low, high = add["stats"]["minValues"].get(OFFSET), add["stats"]["maxValues"].get(OFFSET)
    return any(overlapping(ranges.intervals(*key), low, high) for key in ranges.partitions)


@dataclass
class DeltaReplacement:
    """Actions of a replacing landing, made for each new head.

    :param files: the files of the rows read again.
    :param finder: finds the rows to take out at a head.
    :param since: the version at the run's first look.
    :param own: the ids of this run's landings.
    :param notes: further table properties to set.
    """

    store: Any
    table: str
    consumer_group: str
    landing: Landing
    target: DeltaTarget
    files: Sequence[Add]
    finder: Finder
    since: int
    own: Collection[str]
    notes: dict[str, str] = field(default_factory=dict)
    # The last landing made, with the counts of removed rows.
    made: Landing | None = None
    _takeout: Takeout | None = None

    def make(self, head: DeltaTableHead | None) -> list[Action]:
        """Return the actions for a head, and set `made`. Writes the files of remaining rows.

        Raises a Conflict, such as StaleFiles, ReplacedMeanwhile, CannotReplace, and UnfitTable.
        """
        if head is None:
            raise StaleFiles(self.table, "the table was dropped")
        _, ranges = replaced_ranges(self.landing)
        if replaced := replaced_by_others(self._landings_since(head, ranges), ranges, self.own):
            raise ReplacedMeanwhile(self.table, replaced)
        check_fit(head, self.target, self.table)
        ledgers = ledger_store.ledgers(head, self.consumer_group)
        check_replace(self.table, self.landing, self.consumer_group, ledgers)
        check_removable(head)
        self._takeout = takeout = self.finder.find(DeltaFiles(self.store, head), rows_landed(ledgers.values()))
        self.made = completed(self.landing, takeout.rows, ledgers[self.consumer_group])
        removes = [remove_action(add) for add in takeout.out]
        adds = [{"add": dict(add)} for add in (*takeout.remainders, *self.files)]
        operation = ("WRITE", {"mode": "Overwrite"})
        return landing_actions(
            head, self.target, self.consumer_group, self.made, [*removes, *adds], operation, self.notes
        )

    def unneeded(self, is_committed: bool) -> list[Add]:
        """Return the written files of remaining rows outside of all versions, for deletion.

        :param is_committed: whether the last actions made are committed.
        """
        return self.finder.unneeded(self._takeout if is_committed else None)

    def _landings_since(self, head: DeltaTableHead, ranges: RangeSet) -> Iterator[Landing]:
        at = ledger_store.previous_version(head, self.consumer_group)
        while at is not None and at > self.since:
            item = ledger_store.landing_at(self.store, at, self.consumer_group)
            if item is None:
                raise CannotReplace(
                    f"{self.table}: its log no longer has version {at}, so it is unknown whether another run "
                    f"replaced {ranges} meanwhile. Nothing was changed. Run it again, or keep the log longer."
                )
            landing, at = item
            yield landing
