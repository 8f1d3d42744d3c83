"""`<table>__rejected` as a Delta table: the records that became no row, raw and with the reason.

Written before the commit of the main table, which alone decides what is landed; see `rejects`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.commit.guard import check_fit
from airflow_lakestream.delta.commit.log import Action
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.replace.takeout import live_files, may_hold, remove_action
from airflow_lakestream.delta.sink import APPEND, CREATE, OVERWRITE, DeltaSink
from airflow_lakestream.delta.storage import Tables
from airflow_lakestream.delta.write.files import Add, beside, read_file
from airflow_lakestream.tables.rejects.book import RejectBook
from airflow_lakestream.tables.rejects.pending import Pending, design_of, rejects_of
from airflow_lakestream.tables.rejects.settlement import Settlement


class DeltaBooks:
    """`tables.rejects.settlement.MainBooks` of a Delta table.

    What RESTORE took back has no names here: its offsets are in no ledger then, and are landed anew.
    """

    rolled_back: Sequence[str] = ()

    def __init__(self, head: Head) -> None:
        self._head = head
        self.properties: Mapping[str, str] = head.properties

    def place(self, consumer_group: str, landing_id: str) -> int | None:
        """Return the landing's version, and a number below 0 for one known by its id."""
        found = ledger_store.version_of_landing(self._head, consumer_group, landing_id)
        return self.ledger(consumer_group).noted.place(landing_id) if found is None else found

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger."""
        return ledger_store.read_ledger(self._head, consumer_group)


class RejectTable(DeltaSink, RejectBook):
    """The reject table of one table, as it is written for one consumer group."""

    takes_records = False

    def __init__(self, tables: Tables, table: str, consumer_group: str, records: pa.Schema) -> None:
        super().__init__(tables, rejects_of(table), consumer_group, design_of(records), allow_group_overlap=True)

    @property
    def _properties(self) -> Mapping[str, str] | None:
        return None if self._head is None else self._head.properties

    def _rows_at(self, ranges: RangeSet | None, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        assert self._head is not None, "it was asked whether it is there"
        return (rows for _, rows in self._rows_in(self._head, ranges, columns))

    def _note(self, landing: Landing, pending: Sequence[Pending], settlement: Settlement) -> None:
        adds, target = self._files, self._target()
        written: dict[str, list[Add]] = {}
        kept: list[Add] = []

        def make(head: Head | None) -> list[Action]:
            check_fit(head, target, self._name)
            due = head is not None and settlement.is_due
            rows = self._rows_in(head, settlement.ranges) if head is not None and due else ()
            stale = dict[str, Add]()
            for add, rest in settlement.remainders(rows):
                stale[add["path"]] = add
                if add["path"] not in written:
                    written[add["path"]] = self._write_files(rest) if len(rest) else []
            kept[:] = [file for path in stale for file in written[path]]
            removes = [remove_action(add) for add in stale.values()]
            files = [*removes, *({"add": dict(add)} for add in (*kept, *adds))]
            notes = {one.key: one.encode() for one in pending}
            operation = CREATE if head is None else OVERWRITE if removes else APPEND
            gone = [one.key for one in settlement.settled]
            return self._actions(head, target, landing, files, operation, notes=notes, gone=gone)

        def unneeded(is_committed: bool) -> list[Add]:
            return beside([add for files in written.values() for add in files], kept if is_committed else ())

        self._drive_and_clean(landing, make, unneeded)

    def _rows_in(
        self, head: Head, ranges: RangeSet | None, columns: Sequence[str] = ()
    ) -> Iterator[tuple[Add, pa.Table]]:
        """Yield the files that may have rows of these offsets, with all of their rows."""
        for add in live_files(head):
            if ranges is None or may_hold(add, ranges):
                yield add, read_file(self._store, add, head.schema, columns or None)
