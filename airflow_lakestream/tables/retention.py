"""Time to live of rows: the rule of a table, the rows that are old, and the receipts for their removal.

A removal changes the ledgers in its own commit: the offsets of removed rows stay landed, and become `forgotten`. So an
audit does not call them missing, a repair does not land them again, and a replace leaves them out. Receipts are by
offset and not by time: a row that is lost in any other way is still found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow

from airflow_lakestream.core.ledger import Counts, Ledger, TopicEntry, TopicIdentity
from airflow_lakestream.core.names import BESIDE
from airflow_lakestream.core.policies import seconds, with_short_unit
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import MIRROR
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC, ranges_of
from airflow_lakestream.tables.positions import OWN_COLUMNS, PREFIX, PositionColumns, receipts

# Property of a table: the rule, for example "90 days of event_time".
RETENTION = "lakestream.retention"
# Property of a table from which rows were removed by their age: column and time of the last removal. While it is there,
# a replace leaves out offsets with a receipt.
REMOVED = "lakestream.retention.removed"
# Ranges in the receipts of a ledger entry beyond the first of each partition: every metadata file repeats them. The
# landed offsets have a range in each partition as well.
MOST_RANGES = 2_000
_RULE = re.compile(r"\s*(?P<keep>.+?)\s+of\s+(?P<column>.+?)\s*(?P<exact>,\s*exactly\s*)?")
_FORM = 'Write "90 days of event_time", or "90 days of event_time, exactly".'


class RetentionRefused(InvalidArgument):
    """Refusal of a removal of old rows, before anything is changed."""

    def __init__(self, table: str, problem: str, remedy: str = "") -> None:
        super().__init__("retention", f"{table}: {problem} No row was removed.", remedy)


@dataclass(frozen=True)
class RowRetention:
    """Rule for old rows: those go whose time in `column` is more than `keep` seconds ago. NULL is not old.

    :param exact: write files again in which only some rows are old; else these files stay until all rows are old.
    """

    column: str
    keep: float
    exact: bool = False

    @classmethod
    def make(cls, argument: str, column: object, keep: object, *, exact: bool = False) -> RowRetention:
        """Return a checked rule; `argument`: beginning of the names of settings, for errors. Raises InvalidArgument."""
        if not isinstance(column, str) or not column.strip():
            raise InvalidArgument(f"{argument}.column", f"{column!r} is not the name of a column.", _FORM)
        age = seconds(f"{argument}.keep", with_short_unit(keep))
        if age <= 0:
            raise InvalidArgument(f"{argument}.keep", f"{keep!r}: all rows would be old.", 'Write "90 days".')
        return cls(column.strip(), age, exact)

    @classmethod
    def parse(cls, text: str, argument: str = RETENTION) -> RowRetention:
        """Parse a rule, by default that of the table property. Raises InvalidArgument."""
        if (match := _RULE.fullmatch(text)) is None:
            raise InvalidArgument(argument, f"{text!r} is not an age of a column.", _FORM)
        return cls.make(argument, match["column"], match["keep"], exact=match["exact"] is not None)

    def cutoff(self, table: str, schema: pa.Schema, now: datetime | None = None) -> RowCutoff:
        """Return the cutoff at a time, by default now. Raises RetentionRefused for a column without times."""
        if self.column not in schema.names:
            problem = f"there is no column {self.column!r}; a field of a struct can't be used."
            raise RetentionRefused(table, problem, f"Columns with times: {', '.join(_times(schema)) or 'none'}.")
        kind = schema.field(self.column).type
        if not _is_time(kind):
            remedy = "Name a column of a timestamp or a date; land numbers as `timestamp from epoch_ms`."
            raise RetentionRefused(table, f"column {self.column!r} is of type {kind}, which is not a time.", remedy)
        before = (now or datetime.now(UTC)) - timedelta(seconds=self.keep)
        return RowCutoff(self.column, before, kind)


@dataclass(frozen=True)
class RowCutoff:
    """Time in a column before which rows are old; a date is old if its whole day, in UTC, is before the time."""

    column: str
    before: datetime
    kind: pa.DataType

    @property
    def value(self) -> pa.Scalar:
        """The least value in the column that is not old. Times without a zone are taken for UTC."""
        if arrow.is_date(self.kind):
            return pa.scalar(self.before.astimezone(UTC).date(), self.kind)
        naive = self.before.astimezone(UTC).replace(tzinfo=None)
        return pa.scalar(naive, pa.timestamp("us")).cast(pa.timestamp(self.kind.unit)).cast(self.kind)

    @property
    def number(self) -> int:
        """The value as the number of days, or of units of the column, since 1970."""
        number: int = self.value.cast(pa.int32() if arrow.is_date(self.kind) else pa.int64()).as_py()
        return number

    def old(self, rows: pa.Table) -> pa.ChunkedArray:
        """Return a mask of old rows."""
        return pc.fill_null(pc.less(rows[self.column].cast(self.kind), self.value), False)

    def note(self) -> dict[str, str]:
        """Return the table property that notes the removal."""
        return {REMOVED: json.dumps({"column": self.column, "before": self.before.isoformat(timespec="seconds")})}


class FileAge(Enum):
    """Age of a file's rows, by metadata alone: all old, none old, or unknown."""

    OLD = auto()
    NEW = auto()
    MIXED = auto()


def _is_time(kind: pa.DataType) -> bool:
    return bool(arrow.is_timestamp(kind) or arrow.is_date32(kind))


def _times(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if _is_time(field.type)]


def rule_of(table: str, properties: Mapping[str, str], given: RowRetention | None) -> RowRetention | None:
    """Return the rule for a table: the given rule, else that of the table's property, or None.

    None also for tables next to a table, such as `<table>__rejected`. Raises InvalidArgument for a wrong property, and
    RetentionRefused for a table with a rule whose rows are not of one record each.
    """
    if table.rstrip("/").endswith(BESIDE):
        return None
    text = properties.get(RETENTION)
    rule = RowRetention.parse(text) if given is None and text else given
    if rule is not None and MIRROR in properties:
        problem = "a row of a mirror, or of a table by key, is the result of many records."
        raise RetentionRefused(table, problem, "Delete rows at the source, or by `delete_when` of a table by key.")
    return rule


def removed_note(properties: Mapping[str, str]) -> str | None:
    """Return a sentence on the last removal of old rows, or None."""
    if (text := properties.get(REMOVED)) is None:
        return None
    note = json.loads(text)
    return f"rows with {note['column']} before {note['before']} were removed by retention, as their receipts say."


@dataclass(frozen=True, slots=True)
class RemovedPositions:
    """Offsets of removed rows, by the table's own columns (`own`), and by those of an adopted tool (`adopted`)."""

    own: RangeSet = RangeSet()
    adopted: RangeSet = RangeSet()

    @classmethod
    def joined(cls, parts: Iterable[RemovedPositions]) -> RemovedPositions:
        """Return the union of the offsets."""
        all_parts = list(parts)
        own = RangeSet(offset_range for part in all_parts for offset_range in part.own)
        return cls(own, RangeSet(offset_range for part in all_parts for offset_range in part.adopted))


@dataclass(frozen=True)
class PositionReader:
    """Reader of the offsets of rows, in all columns that have some.

    :param columns: the table's own columns if it has them, and those that receipts of adoptions name, with the adopted
        offsets that these columns prove.
    """

    columns: Sequence[tuple[PositionColumns, RangeSet | None]]

    @classmethod
    def of(cls, schema: pa.Schema, properties: Mapping[str, str]) -> PositionReader:
        """Return the reader for a table."""
        readable: list[tuple[PositionColumns, RangeSet | None]] = []
        if not OWN_COLUMNS.missing(schema):
            readable.append((OWN_COLUMNS, None))
        for group in (name.removeprefix(PREFIX) for name in properties if name.startswith(PREFIX)):
            for receipt in receipts(properties, group):
                if receipt.columns is not None:
                    columns = PositionColumns.of_paths(receipt.columns, receipt.topic)
                    if not columns.missing(schema):
                        readable.append((columns, receipt.verifiable))
        return cls(readable)

    @property
    def roots(self) -> Sequence[str]:
        """The top-level columns to read."""
        return tuple(dict.fromkeys(root for columns, _ in self.columns for root in columns.roots))

    def positions(self, rows: pa.Table) -> RemovedPositions:
        """Return the offsets of rows."""
        return RemovedPositions.joined(_positions(rows, *columns_and_provable) for columns_and_provable in self.columns)

    def proven(self, bounds: Sequence[tuple[Any, Any] | None], rows: int | None, *, has_nulls: bool) -> RangeSet | None:
        """Return the offsets of a file's rows if metadata prove them; None if the file has to be read.

        :param bounds: the bounds of `COORDINATES` in the file, both ends included.
        :param has_nulls: whether a row may lack one of these values.
        """
        if not self.columns:
            return RangeSet()
        topic, partition, offsets = bounds
        if len(self.columns) > 1 or topic is None or partition is None or offsets is None or has_nulls:
            return None
        low, high = offsets
        if topic[0] != topic[1] or partition[0] != partition[1] or low < 0 or high - low + 1 != rows:
            return None
        # The rows are of one partition, and as many as the offsets between the bounds: each offset has a row.
        return RangeSet.of(topic[0], partition[0], low, high + 1)


def _positions(rows: pa.Table, columns: PositionColumns, provable: RangeSet | None) -> RemovedPositions:
    """Return the offsets of rows by these columns; `provable` are the adopted offsets, or None for own columns."""
    offsets = RangeSet(offset_range for part in _ranges(columns.of(rows)) for offset_range in part)
    return RemovedPositions(own=offsets) if provable is None else RemovedPositions(adopted=offsets & provable)


def _ranges(rows: pa.Table) -> Iterator[RangeSet]:
    """Yield the offsets of rows for each partition; rows without a position are left out."""
    by_partition = rows.select(COORDINATES).drop_null().group_by([TOPIC, PARTITION]).aggregate([(OFFSET, "list")])
    columns = by_partition[TOPIC].to_pylist(), by_partition[PARTITION].to_pylist(), by_partition[f"{OFFSET}_list"]
    for topic, partition, offsets in zip(*columns, strict=True):
        yield ranges_of((topic, partition), offsets.values.cast(pa.int64()).to_numpy())


Item = TypeVar("Item")
Remainder = TypeVar("Remainder")


@dataclass
class OldRowFile(Generic[Item, Remainder]):
    """File with old rows: the number and the offsets of the old rows, and whether all live rows are old.

    :param remainder: the other rows, once they are written.
    """

    file: Item
    rows: int
    positions: RemovedPositions
    is_whole: bool = True
    remainder: Remainder | None = None

    @classmethod
    def read(
        cls, file: Item, parts: Iterable[pa.Table], cutoff: RowCutoff, positions: PositionReader, *, is_old: bool
    ) -> Self:
        """Return the file with the number and the offsets of the old rows among its live rows.

        :param parts: the live rows.
        :param is_old: whether all rows are known to be old.
        """
        rows, old, removed = 0, 0, list[RemovedPositions]()
        for part in parts:
            chosen = part if is_old else part.filter(cutoff.old(part))
            rows, old = rows + part.num_rows, old + chosen.num_rows
            removed.append(positions.positions(chosen))
        return cls(file, old, RemovedPositions.joined(removed), is_whole=old == rows)


def files_to_remove(
    ages: Iterable[tuple[Item, FileAge]], newest: Callable[[Item], Any], *, exact: bool
) -> tuple[list[Item], int]:
    """Return the files with rows to remove, oldest first, and the number of files that stay with possibly old rows.

    :param newest: returns the greatest time in a file, for the order.
    :param exact: whether files with some old rows are written again; else they stay.
    """
    with_ages = list(ages)
    chosen = [item for item, age in with_ages if age is FileAge.OLD or (exact and age is FileAge.MIXED)]
    return sorted(chosen, key=newest), 0 if exact else sum(age is FileAge.MIXED for _, age in with_ages)


def groups_of(table: str, removed: RemovedPositions, ledgers: Mapping[str, Ledger]) -> frozenset[str]:
    """Return the groups whose landings have the offsets. Raises RetentionRefused for offsets of several landings."""
    return frozenset(_changes(table, removed, ledgers))


def within_bound(
    table: str,
    files: Sequence[Item],
    positions: Callable[[Item], RemovedPositions],
    ledgers: Mapping[str, Ledger],
    remedy: str,
) -> tuple[Sequence[Item], Mapping[str, Mapping[TopicIdentity, TopicEntry]]]:
    """Return the files to remove, and the changes of ledger entries by group: the oldest files within MOST_RANGES.

    Raises RetentionRefused if the offsets of one file alone have more ranges, or belong to several landings.

    :param files: files with old rows, oldest first.
    :param positions: returns the offsets of a file's old rows.
    :param remedy: the remedy for a file with more ranges, which the table's format decides.
    """
    chosen = files
    while chosen:
        changes = _changes(table, RemovedPositions.joined(map(positions, chosen)), ledgers)
        if all(_is_bounded(ledgers[group], of_group) for group, of_group in changes.items()):
            return chosen, changes
        chosen = chosen[: len(chosen) // 2]
    if files:
        problem = f"the offsets of old rows have more than {MOST_RANGES:,} ranges between those of newer rows."
        raise RetentionRefused(table, problem, remedy)
    return (), {}


def _is_bounded(ledger: Ledger, changes: Mapping[TopicIdentity, TopicEntry]) -> bool:
    """Return whether no change makes a ledger entry's receipts exceed MOST_RANGES."""
    for identity, change in changes.items():
        before = ledger.entry(identity).forgotten
        after = _further_ranges(before | change.forgotten)
        if after > MOST_RANGES and after > _further_ranges(before):
            return False
    return True


def _further_ranges(ranges: RangeSet) -> int:
    """Return the number of ranges beyond the first of each partition."""
    return sum(1 for _ in ranges) - len(ranges.partitions)


def _changes(
    table: str, removed: RemovedPositions, ledgers: Mapping[str, Ledger]
) -> Mapping[str, Mapping[TopicIdentity, TopicEntry]]:
    """Return the change of each ledger entry by group. Raises RetentionRefused for offsets of several entries."""
    changes = dict[str, dict[TopicIdentity, TopicEntry]]()
    seen_before = RangeSet()
    for group, ledger in ledgers.items():
        for identity, entry in ledger.topics.items():
            own = (removed.own & entry.landed) - entry.adopted
            removed_here = own | (removed.adopted & entry.adopted)
            if twice := removed_here & seen_before:
                problem = f"{twice} was landed by several groups, or from several topics of the name."
                remedy = "Delete such rows by an engine, then run `lakestream ledger forget`."
                raise RetentionRefused(table, problem, remedy)
            if removed_here:
                seen_before |= removed_here
                # A damaged table may have rows that no landing counted.
                rows = min(own.width, entry.counts.written)
                change = TopicEntry(forgotten=removed_here, removed=Counts(read=rows, written=rows))
                changes.setdefault(group, {})[identity] = change
    return changes


def ledgers_after(
    ledgers: Mapping[str, Ledger], changes: Mapping[str, Mapping[TopicIdentity, TopicEntry]]
) -> dict[str, Ledger]:
    """Return the changed ledgers by group."""
    after = {}
    for group, of_group in changes.items():
        ledger = ledgers[group]
        changed = {identity: ledger.entry(identity) + change for identity, change in of_group.items()}
        after[group] = replace(ledger, topics={**ledger.topics, **changed})
    return after


@dataclass(frozen=True)
class RemovalReport:
    """Result of a removal of old rows.

    :param rows: removed rows.
    :param files: files that went whole.
    :param rewritten: files that were written again without old rows.
    :param left: files that stay until all rows are old.
    :param is_whole: False if the time was over, or the receipts full: the next run goes on.
    """

    rows: int = 0
    files: int = 0
    rewritten: int = 0
    left: int = 0
    is_whole: bool = True

    @classmethod
    def of(cls, removed: Sequence[OldRowFile[Any, Any]], left: int, *, is_whole: bool) -> RemovalReport:
        """Return the report of the removal of files' old rows."""
        whole = sum(file.is_whole for file in removed)
        return cls(sum(file.rows for file in removed), whole, len(removed) - whole, left, is_whole)
