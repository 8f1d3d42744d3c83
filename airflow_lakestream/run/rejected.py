"""Rejected records of a table, from the reject table, for both table formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from airflow_lakestream.audit.books import NoLedger
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.lakes import lake_of


class RejectView(Protocol):
    """A table and the reject table at matching heads."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""

    @property
    def columns(self) -> Sequence[str]:
        """The names of the table's columns."""

    @property
    def groups(self) -> Sequence[str]:
        """The consumer groups with landings in the table."""

    @property
    def note(self) -> str | None:
        """A sentence on the table's part in a fan-out, or None."""

    def ledger(self, group: str) -> Ledger:
        """Return a group's ledger."""

    def counting(
        self, group: str, *, topic: str | None = None, ranges: RangeSet | None = None, columns: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """Yield a group's rejected records that count, file by file; none without a reject table.

        A rejected record counts if the ledger has the landing that wrote it.

        :param topic: only of this topic.
        :param ranges: only at these offsets.
        :param columns: the columns to read, in addition to a record's place; default: all.
        """


def open_rejected(lake: Any, table: str, group: str | None = None) -> RejectView:
    """Open a table and the reject table. Raises the table format's error for a missing table.

    :param lake: opens the table: a catalog, or a Delta table's store.
    :param group: a group that must have landed in the table; else NoLedger is raised, with the groups that have.
    """
    opened: RejectView = lake_of(table).part("rejects")(lake, table)
    if group is not None and group not in opened.groups:
        raise NoLedger(table, group, tuple(opened.groups))
    return opened


def of_iceberg(catalog: Any, table: str) -> RejectView:
    """Open an Iceberg table and its reject table."""
    from airflow_lakestream.audit.run import load_both

    return _IcebergRejectView(*load_both(catalog, table))


def of_delta(storage: Any, table: str) -> RejectView:
    """Open a Delta table and its reject table."""
    from airflow_lakestream.audit.run import load_consistent
    from airflow_lakestream.tables.rejects.settlement import rejects_of

    load, load_rejects = partial(storage.open_existing, table), partial(storage.open, rejects_of(table))
    return _DeltaRejectView(storage, *load_consistent(load, load_rejects, lambda head: head.version))


@dataclass(frozen=True)
class _IcebergRejectView:
    main: Any
    rejects: Any

    @property
    def properties(self) -> Mapping[str, str]:
        properties: Mapping[str, str] = self.main.metadata.properties
        return properties

    @property
    def columns(self) -> Sequence[str]:
        return [field.name for field in self.main.schema().fields]

    @property
    def groups(self) -> Sequence[str]:
        from airflow_lakestream.audit.books import groups_of

        return groups_of(self.main)

    @property
    def note(self) -> str | None:
        from airflow_lakestream.iceberg.fan_out.books import note_on

        return note_on(self.main.metadata.properties)

    def ledger(self, group: str) -> Ledger:
        from airflow_lakestream.iceberg.ledger_store import read_ledger

        return read_ledger(self.main, group)

    def counting(
        self, group: str, *, topic: str | None = None, ranges: RangeSet | None = None, columns: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        from airflow_lakestream.iceberg.reject_table import counting_rows

        if self.rejects is not None:
            yield from counting_rows(self.rejects, self.main, group, topic=topic, ranges=ranges, columns=columns)


@dataclass(frozen=True)
class _DeltaRejectView:
    storage: Any
    main: Any
    rejects: Any

    note = None

    @property
    def properties(self) -> Mapping[str, str]:
        properties: Mapping[str, str] = self.main.properties
        return properties

    @property
    def columns(self) -> Sequence[str]:
        return list(self.main.schema.names)

    @property
    def groups(self) -> Sequence[str]:
        from airflow_lakestream.delta.ledger_store import groups

        return groups(self.main)

    def ledger(self, group: str) -> Ledger:
        from airflow_lakestream.delta.ledger_store import check_not_taken_away, read_ledger

        check_not_taken_away(self.main, group, self.storage.store(self.main.table))
        return read_ledger(self.main, group)

    def counting(
        self, group: str, *, topic: str | None = None, ranges: RangeSet | None = None, columns: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        from airflow_lakestream.delta.reject_table import counting_rows

        if self.rejects is not None:
            yield from counting_rows(
                self.storage, self.rejects, self.main, group, topic=topic, ranges=ranges, columns=columns
            )
