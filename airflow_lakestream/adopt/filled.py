"""A table filled by another tool, as needed for an adoption: a class for each table format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow as pa
from pyiceberg.catalog import Catalog

from airflow_lakestream.adopt.claim import CannotAdopt
from airflow_lakestream.audit.books import groups_of
from airflow_lakestream.audit.rows import RowPositions, count_rows
from airflow_lakestream.audit.run import load
from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.ports import HeadMoved
from airflow_lakestream.core.routing import refuse_mirror
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.commit.commit import head_is, with_fit
from airflow_lakestream.iceberg.fan_out import books as fan_out_books
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.lakes import lake_of
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.positions import PositionColumns


class FilledTable(Protocol):
    """A table at a head. `marks` are the summaries of the head's commits, newest first."""

    @property
    def name(self) -> str:
        """The name of the table in a catalog, or the path or URI."""

    @property
    def head(self) -> int | None:
        """The snapshot or version of the table; None for an empty table."""

    @property
    def columns(self) -> pa.Schema:
        """The table's columns."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""

    @property
    def ledgers(self) -> Mapping[str, Ledger]:
        """The ledgers of all groups, always including the adopting group's."""

    def count(self, columns: PositionColumns) -> RowPositions:
        """Count the rows of all topics by position.

        :param columns: the columns with the positions.
        """

    def rows(self) -> int | None:
        """Return the number of rows, or None if the metadata has no count."""

    def marks(self) -> Iterator[Mapping[str, str]]:
        """Yield the summary of each commit in the head's history."""

    def transaction(self, app: str) -> int | None:
        """Return the number of an application's last transaction in Delta, or None."""

    def write(self, group: str, landing: Landing, notes: Mapping[str, str]) -> int:
        """Commit a landing without rows, only on this head; return the id of the snapshot or version.

        Raises HeadMoved, and the errors of a landing.

        :param notes: the table's new properties.
        """


class IcebergFilledTable:
    """An Iceberg table. Raises TableMissing, UndecidedLedger, PartOfFanOut, and the errors of `fitness`."""

    def __init__(self, catalog: Catalog, name: str, group: str) -> None:
        self._catalog, self._table = catalog, load(catalog, name)
        fitness.check(catalog, self._table)
        metadata = self._table.metadata
        if note := fan_out_books.note_on(metadata.properties):
            raise fan_out_books.PartOfFanOut(name, note)
        self.name, self.head, self.properties = name, ledger_store.head_of(metadata), metadata.properties
        self.columns = self._table.schema().as_arrow()
        groups = sorted({*groups_of(self._table), group})
        self.ledgers = {known_group: ledger_store.read_ledger(self._table, known_group) for known_group in groups}

    def count(self, columns: PositionColumns) -> RowPositions:
        """Count the rows of all topics by position."""
        return count_rows(self._table, self.head, columns=columns)

    def rows(self) -> int | None:
        """Return the number of rows, or None if the metadata has no count, or has deleted rows in the count."""
        # The newest commit only: its totals are the table's.
        for summary in self.marks():
            total = summary.get("total-records")
            return int(total) if total is not None and not int(summary.get("total-delete-files", 0)) else None
        return 0

    def marks(self) -> Iterator[Mapping[str, str]]:
        """Yield the summary of each commit in the head's history."""
        return map(ledger_store.summary_of, ledger_store.live_ancestors(self._table.metadata))

    def transaction(self, app: str) -> int | None:
        """Return None: Iceberg has no transactions of applications."""
        return None

    def write(self, group: str, landing: Landing, notes: Mapping[str, str]) -> int:
        """Commit a landing without rows, only on this head; return the snapshot's id. See `FilledTable.write`."""
        sink = IcebergSink(self._catalog, self.name, group, TableDesign(metadata=pa.schema([]), notes=notes))
        # Rows that another writer has added since would be adopted unseen.
        sink.builders = [partial(with_fit, check=head_is(self.head, HeadMoved))]
        sink.load(landing.run_id)
        return sink.commit(landing)


def open_filled(lake: Any, table: str, group: str) -> FilledTable:
    """Open a table. Raises the errors of the table's class, IsMirror, and CannotAdopt for an empty table.

    :param lake: the catalog for an Iceberg table, or the storage for a Delta table.
    :param table: the table's name, or its path or URI.
    :param group: the adopting consumer group.
    """
    filled: FilledTable = lake_of(table).part("filled")(lake, table, group)
    refuse_mirror(table, filled.properties, "adopted by topic, partition and offset")
    if filled.head is None:
        raise CannotAdopt(f"{table} is empty: there is nothing to adopt.")
    return filled


def newest_with(marks: Iterator[Mapping[str, str]], keys: Sequence[str]) -> Mapping[str, str] | None:
    """Return the newest commit's summary with all of these keys, or None; `marks` are newest first."""
    return next((summary for summary in marks if all(key in summary for key in keys)), None)
