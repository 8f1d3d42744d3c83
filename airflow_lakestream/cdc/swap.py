"""New rows in place of all rows of a mirror, in any table format; see `cdc.iceberg`.

The new rows are first read into a table of their own, the table aside. "Reach" is the offset ranges of the new rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from airflow_lakestream.cdc.columns import COMMIT, DELETED, POSITION, VERSION
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.logs import BinaryLogs
from airflow_lakestream.cdc.keys.identity import places
from airflow_lakestream.cdc.merge.entries import MirrorEntries
from airflow_lakestream.cdc.merge.files import parts_of
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.values import with_deleted
from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.cdc.rows import RowStrategy
from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.core.routing import MIRROR
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.tables.schema.required import cast_to


class CannotSwap(LakestreamError, Terminal):
    """The mirror's table can't hold the newly read rows."""

    def __init__(self, table: str, problem: str) -> None:
        super().__init__(
            f"{table}: {problem} Nothing was changed. Drop the mirror's table, and let the app make it again from the "
            "snapshot that is in the topic now."
        )


@dataclass
class RowSwap:
    """The rows of a swap: all newly read rows and, in a mirror whose deleted rows stay, its deleted rows.

    :param columns: the mirror's columns from the commit on.
    :param aside: the head of the table with the newly read rows.
    :param key: the key of the new rows.
    :param strategy: the rows of a key.
    :param is_other_log: whether the new rows' places are of another binary log than the mirror's.
    :param write: writes rows as files of the mirror.
    :param written: gets the files of all commit attempts.
    :param rows_before: the mirror's number of rows at the last commit attempt.
    :param rows: the number of new rows at the last commit attempt.
    """

    table: str
    columns: pa.Schema
    aside: MirrorHead
    key: tuple[str, ...]
    strategy: RowStrategy
    is_other_log: bool
    write: Callable[[pa.Table], Sequence[File]]
    written: list[File] = field(default_factory=list)
    rows_before: int = 0
    rows: int = 0

    def make(self, mirror: MirrorHead) -> list[File]:
        """Write and return the files in place of all files of the mirror at a head; count the rows before and after."""
        self.rows_before = self.rows = 0
        new: list[File] = []
        for part in parts_of(self._rows(mirror)):
            files = self.write(part)
            self.rows += len(part)
            self.written += files
            new += files
        self.rows_before = sum(mirror.live_rows_in(file) for file in mirror.files())
        return new

    def _rows(self, mirror: MirrorHead) -> Iterator[pa.Table]:
        """Yield the mirror's rows after the swap."""
        for file in self.aside.files():
            for rows in self.aside.read(file):
                not_deleted = pa.repeat(pa.scalar(False), len(rows))
                yield rows.append_column(DELETED, not_deleted) if self.strategy.keeps_deleted else rows
        if self.strategy.keeps_deleted:
            yield from self._deleted(mirror)

    def _deleted(self, mirror: MirrorHead) -> Iterator[pa.Table]:
        """Yield the mirror's rows missing from the new rows, marked as deleted."""
        keys = [keys for file in self.aside.files() for keys in self.aside.read(file, self.key)]
        new_keys = pa.concat_tables(keys, promote_options="permissive") if keys else None
        for file in mirror.files():
            for rows in mirror.read(file):
                if new_keys is not None:
                    rows = rows.filter(pa.array(places(rows, new_keys, self.key) < 0))
                yield with_deleted(self._cast(self._placed(rows)))

    def _placed(self, rows: pa.Table) -> pa.Table:
        """Return the mirror's rows; if the new rows are of another log, with places before all its events."""
        for name in (COMMIT, POSITION) if self.is_other_log else ():
            rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), _zeros(len(rows)))
        return rows

    def _cast(self, rows: pa.Table) -> pa.Table:
        """Return the mirror's rows with the columns' new types. Raises CannotSwap for an unfit value."""
        for index, name in enumerate(rows.column_names):
            field = self.columns.field(name)
            if rows[name].type == field.type or not len(rows):
                continue
            try:
                rows = rows.set_column(index, field, cast_to(rows[name], field))
            except (InvalidArgument, pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
                problem = f"its deleted rows stay, and what they have in {name} is no {field.type} ({e})."
                raise CannotSwap(self.table, problem) from e
        return rows


class TableSwap(Protocol):
    """Exchange of all rows of a mirror for the rows of a table aside, in a table format."""

    swap: RowSwap | None

    def exchange(self, design: MirrorDesign, landing: Landing, key: tuple[str, ...], reach: RangeSet) -> int:
        """Commit the newly read rows in place of all rows; return the commit's id. See `MirrorSwap.exchange`.

        With another key or another binary log the mirror gets a new id, so that earlier entries of deleted rows do not
        count any more. Raises LedgerConflict if the mirror is ahead of the new rows, and CannotSwap.

        :param design: the mirror's design until now.
        """

    def add_entries(self, key: Sequence[str]) -> None:
        """Add the entries of the table aside to the mirror's entries: of the rows deleted while the new rows were read.

        :param key: the columns of the mirror's key.
        """


@dataclass(frozen=True)
class MirrorSwap:
    """Commit of rows that were read again, in place of all rows of a mirror.

    :param mirror: the mirror; its design has no key, since the key may have changed.
    :param table: the exchange in the mirror's table format.
    """

    mirror: Mirror
    table: TableSwap

    def exchange(self, landing: Landing, key: tuple[str, ...], reach: RangeSet) -> int:
        """Commit the new rows; return the commit's id. Raises Conflict if the mirror is ahead of them, and CannotSwap.

        :param landing: a landing of all offsets that the new rows cover.
        :param key: the key of the new rows.
        :param reach: the offset ranges of the new rows.
        """
        check_key(self.mirror.name, self.mirror.design, key)
        return self.table.exchange(self.mirror.design, landing, key, reach)


def check_key(table: str, design: MirrorDesign, key: tuple[str, ...]) -> None:
    """Refuse a changed key if deleted rows stay, since these have no values for the new key. Raises CannotSwap.

    :param design: the mirror's design until now.
    :param key: the key of the new rows.
    """
    if design.rows.keeps_deleted and design.key != key:
        problem = (
            f"its deleted rows stay, with the key {', '.join(design.key or ())}, and the key is {', '.join(key)} now."
        )
        raise CannotSwap(table, problem)


def _zeros(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(0, pa.int64()), count)


def is_other_log(aside: Mapping[str, str], design: MirrorDesign) -> bool:
    """Return whether new rows are of another binary log, without relation to the mirror's places.

    Then the mirror's greatest place is above the new rows' greatest place: a log only grows, unless it begins again.

    :param aside: the properties of the table aside.
    :param design: the mirror's design until now.
    """
    logs = BinaryLogs.of_note(json.loads(aside[MIRROR]).get("logs"))
    # A mirror made by an older version has not noted any log.
    return bool(logs.seen) and (not design.logs.seen or design.logs.top > logs.top)


def note_for(aside: Mapping[str, str], design: MirrorDesign) -> dict[str, str]:
    """Return the property with the mirror's note after the swap, from the properties of the table aside."""
    return {MIRROR: json.dumps({**json.loads(aside[MIRROR]), "soft_delete": design.rows.keeps_deleted})}


def add_entries(read_again: MirrorEntries, own: MirrorEntries) -> None:
    """Add the entries of newly read rows to a mirror's own entries."""
    opened = read_again.open()
    if opened is not None and len(entries := opened.read()):
        own.add(entries)


def beyond(ledger: Ledger, landing: Landing, reach: RangeSet) -> RangeSet:
    """Return the offset ranges that a ledger holds of a landing's topic, and that the new rows lack."""
    ((identity, _),) = landing.topics.items()
    return ledger.entry(identity).landed - reach


def is_required(name: str, key: Collection[str], *, old: bool, new: bool) -> bool:
    """Return whether a column must have a value after a swap: a column of the key, or required before and after.

    :param old: whether the mirror's column is required before the swap.
    :param new: whether the column is required in the table aside.
    """
    return name in key or (old and (new or name in (*VERSION, DELETED)))
