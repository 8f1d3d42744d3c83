"""Repairing landing: damaged rows out, the right rows in, the ledger corrected, in a single snapshot.

Built from the parts of a replace. The differences: the rows of some ranges come from the table itself, one row of each
offset; and ranges may be added to the ledger. A repair may be planned again at any time, since it writes what Kafka
has, independent of earlier landings.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions.parser import parse
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from airflow_lakestream.core.ledger import Landing, Ledger, union
from airflow_lakestream.core.ports import CannotReplace, Conflict, LedgerConflict, RangesNotLanded
from airflow_lakestream.core.ranges import OffsetRange, RangeSet
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, TableCommit
from airflow_lakestream.iceberg.replace.replace import FirstLook, not_replaced_since
from airflow_lakestream.iceberg.replace.takeout import (
    FileKey,
    Finder,
    IcebergFiles,
    Takeout,
    bounds_of,
    live_files,
    may_hold,
    read_rows,
)
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC, Offsets, is_hit, missing_in
from airflow_lakestream.tables.rejects.sink import RejectingSink
from airflow_lakestream.tables.takeout import shortly


@dataclass(frozen=True, slots=True)
class RowsOutsideLog:
    """Filter of a topic's rows outside the partitions' logs: from offset 0 up to each partition's end in `ends`."""

    topic: str
    ends: Mapping[int, int]

    def with_landed_ends(self, ledgers: Iterable[Ledger]) -> RowsOutsideLog:
        """Return a copy with each log's end behind the landed offsets: the log may have grown since `ends` was read."""
        ends = dict(self.ends)
        for ledger in ledgers:
            for identity, entry in ledger.topics.items():
                for r in entry.landed if identity.topic == self.topic else ():
                    ends[r.partition] = max(ends.get(r.partition, 0), r.until_offset)
        return RowsOutsideLog(self.topic, ends)

    def holds(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask: True for rows of the topic outside of the partitions' logs; never NULL."""
        in_any_log = pa.chunked_array([pa.repeat(False, rows.num_rows)])
        partitions = pc.unique(rows[PARTITION]).to_pylist()
        for partition, end in self.ends.items():
            if partition in partitions:
                in_log = pc.and_(pc.greater_equal(rows[OFFSET], 0), pc.less(rows[OFFSET], pa.scalar(end, pa.int64())))
                in_this_log = pc.and_(pc.equal(rows[PARTITION], partition), in_log)
                in_any_log = pc.or_(in_any_log, pc.fill_null(in_this_log, False))
        of_topic = pc.fill_null(pc.equal(rows[TOPIC], self.topic), False)
        return pc.and_(of_topic, pc.invert(in_any_log))

    def may_be_in(self, schema: Schema, file: DataFile) -> bool:
        """Return by a data file's statistics whether rows outside of the log are possible; True without statistics."""
        topics, partitions, offsets = (bounds_of(schema, file, name) for name in (TOPIC, PARTITION, OFFSET))
        if topics is not None and not topics[0] <= self.topic <= topics[1]:
            return False
        nulls = file.null_value_counts or {}
        if any(nulls.get(schema.find_field(name).field_id) != 0 for name in (PARTITION, OFFSET)):
            return True
        if partitions is None or offsets is None:
            return True
        between = (end for p, end in self.ends.items() if partitions[0] <= p <= partitions[1])
        lowest_end = min(between, default=0)
        ends_known = {*self.ends} >= {*partitions}
        return not ends_known or offsets[0] < 0 or offsets[1] >= lowest_end


# Rows of at most this many offsets are compared at once, which bounds the memory.
OFFSETS_AT_ONCE = 50_000


class DoublesDiffer(CannotReplace):
    """Different rows of a record gone from Kafka: the right row is unknown. `ranges` are the offsets."""

    def __init__(self, table: str, ranges: RangeSet) -> None:
        self.ranges = ranges
        super().__init__(
            f"{table} has different rows for each offset of {shortly(ranges)}, and the topic no longer gives these "
            "records: which of the rows is right is unknown. Nothing was changed. Delete the wrong ones, then "
            "repair again."
        )


class ChangedMeanwhile(Conflict):
    """Ranges changed between the audit and the repair; `ranges` are the changed ranges."""

    def __init__(self, table: str, ranges: RangeSet, change: str) -> None:
        self.ranges = ranges
        super().__init__(f"{table}: {shortly(ranges)} {change} since the audit.")


@dataclass(frozen=True, slots=True)
class RepairChange:
    """Changes of a repair.

    :param landing: the new ledger entries: ranges replaced, or added to the ledger.
    :param kept: ranges with rows from the table, since Kafka no longer has the records.
    :param has_missing: whether rows were missing.
    :param odd: rows that no record can have, to be removed.
    :param lost: paths of data files that are gone, to be removed from the table's metadata.
    """

    landing: Landing
    kept: RangeSet
    has_missing: bool
    odd: tuple[RowsOutsideLog, ...] = ()
    lost: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """Result of a repair: the snapshot, and the number of rows removed in this snapshot."""

    snapshot_id: int
    rows_out: int


def repair(sink: RejectingSink, change: RepairChange) -> RepairOutcome:
    """Commit the buffered rows, with the kept rows of the table, in a single snapshot.

    Rejected records are written before; those that were replaced are removed afterwards. Raises Conflict if the ledger
    of the ranges has changed since: audit again. Raises CannotReplace if rows can't be distinguished. After any error
    nothing is changed, and the buffered rows are to be discarded.
    """
    assert isinstance(sink.inner, IcebergSink), "a repair is of one table"
    landing = sink.write_down(change.landing)
    ranges = union(entry.replaced | entry.landed for entry in landing.topics.values())
    finder = partial(RepairFinder, kept=change.kept, has_missing=change.has_missing, odd=change.odd, lost=change.lost)
    # The ledger counted each record once, however many rows there were: the counts stay.
    snapshot_id, rewrite = sink.inner.exchange_rows(landing, ranges, repairing, finder, lambda landing, *_: landing)
    sink.settle()
    return RepairOutcome(snapshot_id, rewrite.rows_out)


def repairing(commit: TableCommit, first: FirstLook, own: Collection[str]) -> TableCommit:
    """Return the commit as a repair; see `replacing`."""
    changed = partial(ChangedMeanwhile, change="were replaced by another run")
    fits = (not_replaced_since(first, own, changed), *commit.fits)
    return replace(commit, ledger=ledgers_unchanged, fits=fits, for_one_head=True)


def ledgers_unchanged(commit: TableCommit, head: Table) -> None:
    """Refuse ranges changed by another landing, replace or receipt since the plan."""
    name = ledger_store.name_of(head)
    own = ledger_store.read_ledger(head, commit.group)
    others = ledger_store.other_ledgers(head, commit.group).values()
    for identity, change in commit.landing.topics.items():
        entry = own.entry(identity)
        if not_landed := change.replaced - entry.landed:
            raise RefusalCarrier(RangesNotLanded(name, not_landed))
        # Offsets that the group has given up must not be added again, and landed offsets must not be landed again.
        if conflicting := change.held & entry.lost | change.landed & entry.landed:
            raise RefusalCarrier(LedgerConflict(name, conflicting))
        if forgotten := change.replaced & entry.forgotten:
            raise RefusalCarrier(ChangedMeanwhile(name, forgotten, "got a receipt of an intended deletion"))
        foreign = union(
            held.landed for ledger in others for key, held in ledger.topics.items() if key.topic == identity.topic
        )
        if shared := (change.replaced | change.landed) & foreign:
            raise RefusalCarrier(ChangedMeanwhile(name, shared, "were landed by another consumer group, too,"))


@dataclass
class RepairFinder(Finder):
    """Search for the rows removed by a repair, and for the rows to keep.

    `kept` are the ranges that were not read again: one row of each of their offsets stays. `odd` rows, and the `lost`
    files, are removed without a replacement.
    """

    kept: RangeSet = RangeSet()
    has_missing: bool = False
    odd: tuple[RowsOutsideLog, ...] = ()
    lost: frozenset[str] = frozenset()
    _odd_now: tuple[RowsOutsideLog, ...] = ()
    _ones: dict[frozenset[FileKey], list[DataFile]] = field(default_factory=dict)

    def find(self, head: Any, landed: int) -> Takeout:
        """Return the takeout at a head of IcebergFiles, and write the rows to keep.

        Raises CannotReplace, and ChangedMeanwhile if rows to keep are gone.
        """
        table = head.table
        self._look_at_ledgers(table)
        kept_rows = self._one_of_each(head) if self.kept else []
        takeout = super().find(head, landed)
        lost_files = [task for task in live_files(table) if task.file.file_path in self.lost]
        return replace(takeout, out=[*takeout.out, *lost_files], remainders=[*takeout.remainders, *kept_rows])

    def _look_at_ledgers(self, table: Table) -> None:
        """Update the filter of odd rows, which a repair removes: rows that a ledger has landed by now are not odd.

        The ledgers are read from the table's current snapshot: the log may have grown since the audit. If the filter
        changes, forget the findings in files, so that all files are read again.
        """
        ledgers = [ledger_store.read_ledger(table, group) for group in ledger_store.groups(table)]
        filters = tuple(odd_filter.with_landed_ends(ledgers) for odd_filter in self.odd)
        if filters != self._odd_now:
            self._hits.clear()
            self._kept.clear()
            self._odd_now = filters

    def live_files(self, head: Any) -> list[FileScanTask]:
        """Return the live files, except the lost ones."""
        return [task for task in head.live() if task.file.file_path not in self.lost]

    def may_hold(self, head: Any, file: FileScanTask) -> bool:
        """Return whether a file may have rows to remove, odd rows included."""
        schema = head.table.schema()
        return super().may_hold(head, file) or any(odd.may_be_in(schema, file.file) for odd in self._odd_now)

    def additional_rows(self, rows: pa.Table) -> pa.ChunkedArray | None:
        """Return a mask of the odd rows."""
        if not self._odd_now:
            return None
        return reduce(pc.or_, [odd_filter.holds(rows) for odd_filter in self._odd_now])

    def check_rows_identifiable(self, head: Any, files: Sequence[FileScanTask], landed: int) -> None:
        """Refuse missing positions if records are missing, too. Raises CannotReplace."""
        # Doubled rows make up for missing rows in any count; so each row must have its position.
        if not self.has_missing:
            return
        _, lacking = head.rows_with_coordinates(files)
        if lacking:
            raise CannotReplace(
                f"{head.name} has rows without values in {', '.join(COORDINATES)}, such as in "
                f"{lacking[0]}: whether they are the missing rows is unknown. Nothing was changed. Delete "
                "those rows, move them to another table, or fill in their values."
            )

    def ranges_not_read_again(self, hits: Offsets, read_again: Offsets) -> RangeSet:
        """Return the offsets of hits that were neither read again nor kept."""
        return missing_in(hits, read_again) - self.kept

    def _one_of_each(self, head: IcebergFiles) -> list[DataFile]:
        """Write one row for each offset of `kept`, whose records Kafka no longer has; return the files.

        Raises DoublesDiffer if the rows of an offset differ, and ChangedMeanwhile if an offset has no row any more.
        """
        table = head.table
        tasks = [task for task in self.live_files(head) if head.may_hold(task, self.kept)]
        key = frozenset(map(head.key, tasks))
        # The same files with the same deletes give the same rows at each head.
        if key not in self._ones:
            name = ledger_store.name_of(table)
            # All rows are compared before a file is written.
            differing = union(different(rows) for rows in self._rows_to_keep(table, tasks))
            if differing:
                raise DoublesDiffer(name, differing)
            files: list[DataFile] = []
            row_count = 0
            for rows in self._rows_to_keep(table, tasks):
                distinct_rows = rows.filter(pc.invert(_repeats(rows)))
                row_count += distinct_rows.num_rows
                files += self.write_parts([distinct_rows])
            # The audit found a row at each offset of the kept ranges.
            if row_count != self.kept.width:
                raise ChangedMeanwhile(name, self.kept, "lost rows")
            self._ones[key] = files
        return self._ones[key]

    def _rows_to_keep(self, table: Table, tasks: Sequence[FileScanTask]) -> Iterator[pa.Table]:
        """Yield tables with the rows of the kept ranges, sorted by offset; rows of the same offset are never split."""
        for part in _pieces(self.kept, OFFSETS_AT_ONCE):
            [(topic, partition)] = part.partitions
            intervals = part.intervals(topic, partition)
            where = parse(
                # Kafka's names of topics have no quotes.
                f"{TOPIC} == '{topic}' and {PARTITION} == {partition} "
                f"and {OFFSET} >= {intervals[0][0]} and {OFFSET} < {intervals[-1][1]}"
            )
            parts = [
                rows.filter(is_hit(rows, part))
                for task in tasks
                if may_hold(table.metadata, task.file, part)
                for rows in read_rows(table.metadata, table.io, task, where=where)
            ]
            if parts:
                rows = pa.concat_tables(parts, promote_options="permissive")
                yield rows.take(pc.sort_indices(rows[OFFSET]))


def different(rows: pa.Table) -> RangeSet:
    """Return the offsets with different rows; `rows` are of a single partition, sorted by offset.

    NaN is the same as NaN, NULL as NULL.
    """
    if rows.num_rows < 2:
        return RangeSet()
    differs_from_before = pa.repeat(False, rows.num_rows - 1)
    for column in rows.columns:
        values = column.combine_chunks()
        if pa.types.is_nested(values.type):
            # Arrow neither compares nor encodes nested values.
            values = pa.array(map(repr, values.to_pylist()), pa.string())
        codes = values.dictionary_encode(null_encoding="encode").indices
        differs_from_before = pc.or_(differs_from_before, pc.not_equal(codes.slice(1), codes.slice(0, len(codes) - 1)))
    differs = pc.and_(differs_from_before, _repeats(rows).slice(1))
    topic, partition = rows[TOPIC][0].as_py(), rows[PARTITION][0].as_py()
    offsets = set(rows[OFFSET].slice(1).filter(differs).to_pylist())
    return RangeSet(OffsetRange(topic, partition, offset, offset + 1) for offset in offsets)


def _repeats(rows: pa.Table) -> pa.Array:
    """Return for each of the sorted rows whether the row before has the same offset."""
    offsets = rows[OFFSET].combine_chunks()
    repeats = pc.equal(offsets.slice(1), offsets.slice(0, max(0, len(offsets) - 1)))
    return pa.concat_arrays([pa.array([False] * min(1, len(offsets))), repeats])


def _pieces(ranges: RangeSet, width: int) -> Iterator[RangeSet]:
    """Yield parts of the ranges, each of a single partition and of at most `width` offsets."""
    for topic, partition in ranges.partitions:
        part: list[OffsetRange] = []
        room = width
        for start, end in ranges.intervals(topic, partition):
            while start < end:
                until = min(end, start + room)
                part.append(OffsetRange(topic, partition, start, until))
                room -= until - start
                start = until
                if not room:
                    yield RangeSet(part)
                    part, room = [], width
        if part:
            yield RangeSet(part)
