"""Reject table of a Delta table, and the sink of both tables; see `tables.rejects.book`."""

from __future__ import annotations

import logging
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
from airflow_lakestream.tables.rejects import sink
from airflow_lakestream.tables.rejects.book import RejectTableSink
from airflow_lakestream.tables.rejects.settlement import (
    PendingLanding,
    RejectSettlement,
    design_of,
    pending_of,
    rejects_of,
    with_place,
)
from airflow_lakestream.tables.rejects.sink import read_stream, write_stream


class DeltaMainLedgers:
    """`tables.rejects.settlement.MainTableLedgers` of a Delta table; `store` is the store of the table's folder."""

    def __init__(self, head: DeltaTableHead, store: Any) -> None:
        self._head = head
        self.rolled_back: Sequence[str] = ledger_store.taken_back(head, store)
        self.properties: Mapping[str, str] = head.properties

    def place(self, consumer_group: str, landing_id: str) -> int | None:
        """Return the place of a landing in the table's history, or None for an unknown landing.

        The place is the version in the log; of a landing whose version was cleaned up a number below 0, by the ledger's
        list of landing ids.
        """
        found = ledger_store.version_of_landing(self._head, consumer_group, landing_id)
        return self.ledger(consumer_group).noted.place(landing_id) if found is None else found

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

    :param topic: only of this topic.
    :param ranges: only at these offsets.
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


class DeltaRejectTable(DeltaSink, RejectTableSink):
    """Reject table of a table, written for a consumer group."""

    takes_records = False

    def __init__(self, tables: DeltaTableAccess, table: str, consumer_group: str, records: pa.Schema) -> None:
        super().__init__(tables, rejects_of(table), consumer_group, design_of(records), allow_group_overlap=True)

    @property
    def _properties(self) -> Mapping[str, str] | None:
        return None if self._head is None else self._head.properties

    def _rows_at(self, ranges: RangeSet | None, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        assert self._head is not None, "the caller has checked that the table exists"
        return (rows for _, rows in self._rows_in(self._head, ranges, columns))

    def _note(self, landing: Landing, pending: Sequence[PendingLanding], settlement: RejectSettlement) -> None:
        adds, written = self._files, list[Add]()
        # The files of remaining rows by the path of the old file: a retry at another head does not write them again.
        rests: dict[str, list[Add]] = {}

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            rows = self._rows_in(head, settlement.ranges) if head is not None and settlement.is_due else ()
            stale = dict[str, Add]()
            for add, rest in settlement.remainders(rows):
                stale[add["path"]] = add
                if add["path"] not in rests:
                    rests[add["path"]] = self._write_noting(written, rest) if len(rest) else []
            return DeltaFileChange(list(stale.values()), [*(file for path in stale for file in rests[path]), *adds])

        notes, gone = {one.key: one.encode() for one in pending}, [one.key for one in settlement.settled]
        commit = self._new_commit(landing, stage, written, checks=(files_fit,))
        self._drive(replace(commit, notes=notes, gone=gone))

    def _rows_in(
        self, head: DeltaTableHead, ranges: RangeSet | None, columns: Sequence[str] = ()
    ) -> Iterator[tuple[Add, pa.Table]]:
        """Yield the files with possible rows of `ranges`, each with all rows of the file; default: all files."""
        for add in live_files(head):
            if ranges is None or may_hold(add, ranges):
                yield add, read_file(self._store, add, head.schema, columns)


log = logging.getLogger(__name__)


class DeltaRejectingSink(sink.RejectingSink):
    """`tables.rejects.sink.RejectingSink` on Delta tables.

    :param inner: the sink of the table whose ledger decides.
    :param table: the location of the main table.
    :param records: the columns of rejected records.
    """

    def __init__(
        self, inner: Sink, tables: DeltaTableAccess, table: str, consumer_group: str, records: pa.Schema
    ) -> None:
        super().__init__(inner, DeltaRejectTable(tables, table, consumer_group, records), table, consumer_group)
        self._tables = tables

    @cached_property
    def _files(self) -> Any:
        return self._tables.store(self._name)

    def _settlement(self) -> RejectSettlement:
        # A missing reject table has nothing to settle.
        head = self._tables.open(self._name) if self._rejects.exists else None
        return RejectSettlement.by(self._rejects.pending, None if head is None else DeltaMainLedgers(head, self._files))

    def _new_path(self) -> str:
        name = f"{uuid.uuid4().hex}-rejected.arrows"
        return f"{self._folder.strip('/')}/{name}" if self._folder else name

    def _store(self, path: str, records: pa.Table) -> None:
        obstore.put(self._files, path, write_stream(records), mode="create")

    def _read_handed(self, path: str) -> pa.Table:
        return read_stream(bytes(obstore.get(self._files, path).bytes()))

    def _take_handed(self, path: str) -> pa.Table:
        records = self._read_handed(path)
        for left in self._delete_handed([path]):
            log.warning("Rejected records that were read could not be deleted: %s", left)
        return records

    def _is_there(self, path: str) -> bool:
        try:
            obstore.head(self._files, path)
        except FileNotFoundError:
            return False
        return True

    def _delete_handed(self, paths: Sequence[str]) -> Sequence[str]:
        return delete_files(self._files, [{"path": path} for path in paths])
