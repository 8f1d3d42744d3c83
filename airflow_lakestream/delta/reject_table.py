"""Reject table of a Delta table, and the sink of both tables; see `tables.rejects.sink`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import obstore
import pyarrow as pa

from airflow_lakestream.core.ledger import Landing, Ledger
from airflow_lakestream.core.ports import Sink
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.committing import DeltaFileChange, files_fit
from airflow_lakestream.delta.files import Add, delete_files, read_file
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.sink import DeltaSink
from airflow_lakestream.delta.storage import DeltaTableAccess
from airflow_lakestream.delta.takeout import live_files, may_hold
from airflow_lakestream.tables.rejects.settlement import (
    PendingLanding,
    RejectSettlement,
    design_of,
    pending_of,
    rejects_of,
    with_place,
)
from airflow_lakestream.tables.rejects.sink import RejectingSink


class DeltaMainLedgers:
    """`tables.rejects.settlement.MainTableLedgers` of a Delta table; `store` is the store of the table's folder."""

    def __init__(self, head: DeltaTableHead, store: Any) -> None:
        self._head = head
        self.rolled_back: Sequence[str] = ledger_store.taken_back(head, store)
        self.properties: Mapping[str, str] = head.properties

    def place(self, consumer_group: str, landing_id: str) -> int | None:
        """Return the place of a landing in the table's history, or None for an unknown landing.

        The place is the version in the log. A landing whose version was cleaned up has a negative place, by the
        ledger's list of landing ids.
        """
        version = ledger_store.version_of_landing(self._head, consumer_group, landing_id)
        return self.ledger(consumer_group).noted.place(landing_id) if version is None else version

    def ledger(self, consumer_group: str) -> Ledger:
        """Return a group's ledger."""
        return ledger_store.read_ledger(self._head, consumer_group)


def counting_rows(
    storage: DeltaTableAccess,
    rejects: DeltaTableHead,
    main: DeltaTableHead,
    consumer_group: str,
    *,
    topic: str | None = None,
    ranges: RangeSet | None = None,
    columns: Sequence[str] = (),
) -> Iterator[pa.Table]:
    """Yield a group's rows that count: of landings in the main table's ledger, at landed offsets.

    :param topic: the topic, or None for all topics.
    :param ranges: the offsets, or None for all offsets.
    :param columns: the columns to read in addition to `PLACE`; default: all.
    """
    settlement = RejectSettlement.by(pending_of(rejects.properties), DeltaMainLedgers(main, storage.store(main.table)))
    store = storage.store(rejects.table)
    for identity, entry in ledger_store.read_ledger(main, consumer_group).topics.items():
        if topic in (None, identity.topic):
            wanted = entry.landed if ranges is None else entry.landed & ranges
            for add in live_files(rejects):
                if may_hold(add, wanted):
                    rows = read_file(store, add, rejects.schema, with_place(columns))
                    yield rows.filter(settlement.counts(rows, consumer_group, identity, wanted))


class DeltaRejects:
    """`tables.rejects.sink.RejectAccess` to Delta tables.

    :param table: the location of the main table.
    :param records: the columns of rejected records.
    """

    def __init__(self, tables: DeltaTableAccess, table: str, consumer_group: str, records: pa.Schema) -> None:
        self._tables, self._name = tables, table
        design = design_of(records)
        self.sink = DeltaSink(tables, rejects_of(table), consumer_group, design, allow_group_overlap=True)
        self.sink.takes_records = False

    @cached_property
    def _store(self) -> Any:
        """The store of the main table's folder."""
        return self._tables.store(self._name)

    def rows_at(self, ranges: RangeSet | None, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield all rows of each file of the reject table with possible rows of `ranges`."""
        assert self.sink.head is not None, "the caller has checked that the table exists"
        return (rows for _, rows in self._rows_in(self.sink.head, ranges, columns))

    def note(self, landing: Landing, pending: Sequence[PendingLanding], settlement: RejectSettlement) -> None:
        """Commit rejected records with the note of their landing, and remove stale rows."""
        new_files, written = self.sink.files, list[Add]()
        # The files of remaining rows by the path of the old file: a retry at another head does not write them again.
        remainders: dict[str, list[Add]] = {}

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            rows = self._rows_in(head, settlement.ranges) if head is not None and settlement.is_due else ()
            stale = dict[str, Add]()
            for add, rest in settlement.remainders(rows):
                stale[add["path"]] = add
                if add["path"] not in remainders:
                    remainders[add["path"]] = self.sink.write_noting(written, rest) if len(rest) else []
            return DeltaFileChange(
                list(stale.values()), [*(file for path in stale for file in remainders[path]), *new_files]
            )

        notes = {waiting.key: waiting.encode() for waiting in pending}
        gone = [settled.key for settled in settlement.settled]
        commit = self.sink.commit_of(landing, stage, written, checks=(files_fit,))
        self.sink.drive(replace(commit, notes=notes, gone=gone))

    def _rows_in(
        self, head: DeltaTableHead, ranges: RangeSet | None, columns: Sequence[str] = ()
    ) -> Iterator[tuple[Add, pa.Table]]:
        """Yield the files with possible rows of `ranges`, each with all rows of the file; default: all files."""
        store = self._tables.store(head.table)
        for add in live_files(head):
            if ranges is None or may_hold(add, ranges):
                yield add, read_file(store, add, head.schema, columns)

    def main_ledgers(self) -> DeltaMainLedgers | None:
        """Return the ledgers of the main table, or None if the table does not exist."""
        head = self._tables.open(self._name)
        return None if head is None else DeltaMainLedgers(head, self._store)

    def new_path(self, folder: str) -> str:
        """Return a new path for records, below a folder of the main table's data."""
        name = f"{uuid.uuid4().hex}-rejected.arrows"
        return f"{folder.strip('/')}/{name}" if folder else name

    def store(self, path: str, records: bytes) -> None:
        """Store records for the committing process."""
        obstore.put(self._store, path, records, mode="create")

    def read(self, path: str) -> bytes:
        """Return records stored by another worker."""
        return bytes(obstore.get(self._store, path).bytes())

    def take(self, path: str, inner: Sink) -> tuple[bytes, Sequence[str]]:
        """Read and delete records stored by a process of this run; return also the paths possibly left."""
        return self.read(path), self.delete([path])

    def is_there(self, path: str) -> bool:
        """Return whether stored records exist."""
        try:
            obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def delete(self, paths: Sequence[str]) -> Sequence[str]:
        """Delete stored records; return the paths possibly left. Never raises."""
        return delete_files(self._store, [{"path": path} for path in paths])


def rejecting_sink(
    inner: Sink, tables: DeltaTableAccess, table: str, consumer_group: str, records: pa.Schema
) -> RejectingSink:
    """Return the sink of a Delta table with its reject table; see `iceberg.reject_table.rejecting_sink`."""
    access = DeltaRejects(tables, table, consumer_group, records)
    return RejectingSink(inner, access, table, consumer_group)
