"""What a replace takes out of a Delta table: whole files, or files whose other rows are written anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ports import CannotReplace
from airflow_lakestream.core.ranges import PartitionKey, RangeSet, overlapping
from airflow_lakestream.delta.commit.protocol import check_no_dead_rows, check_removable
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.write.files import Add, read_file
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, TOPIC, Offsets, is_hit, is_of, not_among

RANGES_NAMED = 100


@dataclass(frozen=True)
class Takeout:
    """The `remove` and `add` actions, and how many rows are out in the end."""

    removes: Sequence[Mapping[str, Any]] = ()
    remainders: Sequence[Add] = ()
    rows: int = 0


@dataclass
class Finder:
    """Finds what to take out, at one head after the other; a file is looked into and written anew once.

    :param new: the files of the rows read again; `rowless` are the records read again that became no row.
    :param write: writes the rows that stay.
    """

    store: Any
    ranges: RangeSet
    new: Sequence[Add]
    write: Callable[[pa.Table], list[Add]]
    rowless: Sequence[tuple[PartitionKey, pa.Array]] = ()
    written: list[Add] = field(default_factory=list)
    _hits: dict[str, Offsets] = field(default_factory=dict)
    _kept: dict[str, list[Add]] = field(default_factory=dict)

    def find(self, head: Head, landed: int, at_ms: int) -> Takeout:
        """Find it at a head. `landed` is how many rows all ledgers of the table say it got.

        Raises CannotReplace and UnfitTable.
        """
        check_removable(head)
        check_columns(head.schema.names, head.table)
        adds = list(live_files(head))
        self._check_rows_can_be_told(head, adds, landed)
        hits = {add["path"]: (add, found) for add in adds if (found := self._look_into(head, add))}
        self._check_all_read_again(head, [found for _, found in hits.values()])
        remainders = [file for add, found in hits.values() for file in self._remainder(head, add, found)]
        removes = [remove_action(add, at_ms) for add, _ in hits.values()]
        return Takeout(removes, remainders, sum(_count(found) for _, found in hits.values()))

    def _look_into(self, head: Head, add: Add) -> Offsets:
        if add["path"] not in self._hits:
            found = _offsets(self.store, head, add, self.ranges) if may_hold(add, self.ranges) else {}
            self._hits[add["path"]] = found
        return self._hits[add["path"]]

    def _check_rows_can_be_told(self, head: Head, adds: Sequence[Add], landed: int) -> None:
        known, lacking = 0, ""
        for add in adds:
            nulls = [add["stats"]["nullCount"].get(name) for name in COORDINATES]
            rows = add["stats"]["numRecords"]
            if rows is None or None in nulls:
                read = read_file(self.store, add, head.schema, COORDINATES)
                rows, there = len(read), len(read.drop_null())
            else:
                there = rows - max(nulls)
            known, lacking = known + there, lacking or (add["path"] if there < rows else "")
        # NULL is no hit; but only a row that no landing wrote may have it, or its record would be there twice.
        if lacking and known < landed:
            raise CannotReplace(
                f"{head.table} has rows without values in {', '.join(COORDINATES)}, such as in {lacking}; {landed} "
                f"rows were landed and {known} rows have values. Which of the others are records of {self.ranges} "
                "can't be told. Nothing was changed. Delete those rows, or fill in their values."
            )

    def _check_all_read_again(self, head: Head, hits: Iterable[Offsets]) -> None:
        parts = [_offsets(self.store, head, add, self.ranges) for add in self.new]
        if gone := not_among(_joined(hits), _joined([*parts, *({key: some} for key, some in self.rowless)])):
            named = [str(one) for one in gone]
            more = f" and {len(named) - RANGES_NAMED} more ranges" if len(named) > RANGES_NAMED else ""
            raise CannotReplace(
                f"{head.table} holds {', '.join(named[:RANGES_NAMED])}{more}, and the topic no longer gives these "
                "records (retention or compaction took them): to replace them would be to lose them. Nothing was "
                "changed. Leave them out of the ranges."
            )

    def _remainder(self, head: Head, add: Add, found: Offsets) -> list[Add]:
        if add["stats"]["numRecords"] == _count(found):
            return []
        if add["path"] not in self._kept:
            rows = read_file(self.store, add, head.schema)
            kept = rows.filter(pc.invert(is_hit(rows, self.ranges)))
            self._kept[add["path"]] = files = self.write(kept) if len(kept) else []
            self.written += files
        return self._kept[add["path"]]


def check_columns(columns: Sequence[str], table: str) -> None:
    """Raise CannotReplace where rows keep no topic, partition or offset."""
    if missing := [name for name in COORDINATES if name not in columns]:
        raise CannotReplace(
            f"{table} keeps no {', '.join(missing)}: which rows come from which records can't be told, so none can be "
            "replaced. Nothing was changed. Only tables landed with metadata_columns topic, partition and offset can."
        )


def live_files(head: Head) -> Iterator[Add]:
    """Yield the live files as `add` actions, `stats` as a mapping. Raises CannotReplace where rows in them are dead."""
    check_no_dead_rows(head)
    yield from adds_of(head)


def adds_of(head: Head) -> Iterator[Add]:
    """Yield the live files as `add` actions, `stats` as a mapping; rows in them may be dead."""
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
    """Return a column's bounds in a file, both ends included; None where the log has none."""
    if (text := add["partitionValues"].get(name)) is not None:
        value = text if name == TOPIC else int(text)
        return value, value
    low, high = (add["stats"][which].get(name) for which in ("minValues", "maxValues"))
    return None if low is None or high is None else (low, high)


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)


def remove_action(add: Add, at_ms: int) -> dict[str, Any]:
    """Return the action that takes a live file out."""
    return {
        "remove": {
            "path": add["path"],
            "deletionTimestamp": at_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": dict(add["partitionValues"]),
            "size": add["size"],
        }
    }


def may_hold(add: Add, ranges: RangeSet) -> bool:
    """Tell by a file's statistics whether it may have rows of the ranges; without any it may."""
    low, high = add["stats"]["minValues"].get(OFFSET), add["stats"]["maxValues"].get(OFFSET)
    return any(overlapping(ranges.intervals(*key), low, high) for key in ranges.partitions)


def _offsets(store: Any, head: Head, add: Add, ranges: RangeSet) -> Offsets:
    rows = read_file(store, add, head.schema, COORDINATES)
    hits = rows.filter(is_hit(rows, ranges))
    found = {key: hits.filter(is_of(hits, key))[OFFSET].combine_chunks() for key in ranges.partitions}
    return {key: some for key, some in found.items() if len(some)}


def _count(offsets: Offsets) -> int:
    return sum(len(some) for some in offsets.values())


def _joined(parts: Iterable[Offsets]) -> Offsets:
    by_partition: dict[PartitionKey, list[pa.Array]] = {}
    for part in parts:
        for key, offsets in part.items():
            by_partition.setdefault(key, []).append(offsets)
    return {key: pa.concat_arrays([_plain(one) for one in arrays]) for key, arrays in by_partition.items()}


def _plain(offsets: Any) -> pa.Array:
    return offsets.combine_chunks() if isinstance(offsets, pa.ChunkedArray) else offsets
