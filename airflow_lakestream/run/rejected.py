"""Rejected records of a table, from the reject table, for both table formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from airflow_lakestream.audit.books import NoLedger
from airflow_lakestream.core.ledger import Ledger
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.lakes import lake_of


class CountingRows(Protocol):
    """Reader of a group's rejected records that count: records of landings in the ledger, not of failed runs."""

    def __call__(
        self, group: str, /, *, topic: str | None = None, ranges: RangeSet | None = None, columns: Sequence[str] = ()
    ) -> Iterator[pa.Table]:
        """Yield the records, file by file; none without a reject table.

        :param topic: the only topic to read; None for all.
        :param ranges: the only offsets to read; None for all.
        :param columns: the columns to read, in addition to a record's position; empty for all.
        """


@dataclass(frozen=True)
class RejectView:
    """A table and the reject table, with heads of the same landing.

    :param properties: the table's properties.
    :param columns: the names of the table's columns.
    :param groups: the consumer groups with landings in the table.
    :param note: a sentence on the table's part in a fan-out, or None.
    :param ledger: returns a group's ledger.
    """

    properties: Mapping[str, str]
    columns: Sequence[str]
    groups: Sequence[str]
    note: str | None
    ledger: Callable[[str], Ledger]
    counting: CountingRows


def _no_rows(*_: Any, **__: Any) -> Iterator[pa.Table]:
    return iter(())


def open_rejected(lake: Any, table: str, group: str | None = None) -> RejectView:
    """Open a table and the reject table. Raises the table format's error for a missing table.

    :param lake: opens the table: a catalog, or a Delta table's store.
    :param group: a group that must have landed in the table; otherwise NoLedger is raised. None: any.
    """
    opened: RejectView = lake_of(table).part("rejects")(lake, table)
    if group is not None and group not in opened.groups:
        raise NoLedger(table, group, tuple(opened.groups))
    return opened


def of_iceberg(catalog: Any, table: str) -> RejectView:
    """Open an Iceberg table and its reject table."""
    from airflow_lakestream.audit.books import groups_of
    from airflow_lakestream.audit.run import load_both
    from airflow_lakestream.iceberg.fan_out.books import note_on
    from airflow_lakestream.iceberg.ledger_store import read_ledger
    from airflow_lakestream.iceberg.reject_table import counting_rows

    main, rejects = load_both(catalog, table)
    properties, columns = main.metadata.properties, [field.name for field in main.schema().fields]
    counting = _no_rows if rejects is None else partial(counting_rows, rejects, main)
    return RejectView(properties, columns, groups_of(main), note_on(properties), partial(read_ledger, main), counting)


def of_delta(storage: Any, table: str) -> RejectView:
    """Open a Delta table and its reject table."""
    from airflow_lakestream.audit.run import load_consistent
    from airflow_lakestream.delta.ledger_store import check_not_taken_away, groups, read_ledger
    from airflow_lakestream.delta.reject_table import counting_rows
    from airflow_lakestream.tables.rejects.settlement import rejects_of

    load, load_rejects = partial(storage.open_existing, table), partial(storage.open, rejects_of(table))
    main, rejects = load_consistent(load, load_rejects, lambda head: head.version)

    def ledger(group: str) -> Ledger:
        check_not_taken_away(main, group, storage.store(main.table))
        return read_ledger(main, group)

    counting = _no_rows if rejects is None else partial(counting_rows, storage, rejects, main)
    return RejectView(main.properties, list(main.schema.names), groups(main), None, ledger, counting)
