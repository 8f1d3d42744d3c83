"""`<table>__rejected` as a Delta table: the records that became no row, raw and with the reason.

Written before the commit of the main table, which alone decides what is landed; see `rejects`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ledger import Landing, Ledger, TopicIdentity
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.commit.committing import Committer
from airflow_lakestream.delta.commit.guard import check_fit
from airflow_lakestream.delta.commit.log import Action
from airflow_lakestream.delta.design import DeltaDesign
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.replace.takeout import live_files, may_hold, remove_action
from airflow_lakestream.delta.sink import APPEND, CREATE, OVERWRITE, DeltaSink
from airflow_lakestream.delta.storage import Tables
from airflow_lakestream.delta.write.files import Add, delete_files, read_file
from airflow_lakestream.tables.coordinates import is_hit
from airflow_lakestream.tables.rejects.pending import OWN, Pending, of_topic, pending_of, rejects_of, rows_of
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


@dataclass(frozen=True)
class _Fixed:
    """`delta.design.Columns` and `delta.design.Fit` of a table whose columns are ours to say."""

    schema: pa.Schema
    changes: tuple[str, ...] = ()

    @property
    def decoder(self) -> pa.Schema:
        return self.schema

    def grown(self, rows: pa.Schema) -> tuple[_Fixed, tuple[str, ...]]:
        return self, ()

    def made(self) -> _Fixed:
        return self

    def asked_for(self) -> _Fixed:
        return self

    def of_rows(self, rows: pa.Schema) -> _Fixed:
        return self

    def fit(self, held: pa.Schema, table: str) -> _Fixed:
        # Columns that somebody added stay, and are null in what comes.
        others = [field for field in held if field.name not in self.schema.names]
        return _Fixed(pa.schema([*self.schema, *others]))


class RejectTable(DeltaSink):
    """The reject table of one table; `tables.rejects.sink.RejectBook`."""

    takes_records = False

    def __init__(self, tables: Tables, table: str, consumer_group: str, records: pa.Schema) -> None:
        schema = pa.schema([*records, *OWN])
        design = DeltaDesign(_Fixed(schema), pa.schema([]))
        super().__init__(tables, rejects_of(table), consumer_group, design, allow_group_overlap=True)
        self._remainders: dict[str, list[Add]] = {}

    @property
    def exists(self) -> bool:
        """Whether the table was there at the last look."""
        return self._head is not None

    @property
    def pending(self) -> list[Pending]:
        """The landings that were noted as pending at the last look."""
        return [] if self._head is None else pending_of(self._head.properties)

    def count(self, identity: TopicIdentity, ranges: RangeSet, settlement: Settlement) -> tuple[int, int]:
        """Return how many rows there are of these offsets, those of open landings too, and how many of them count."""
        there = counting = 0
        for _, rows in self._rows_in(self._head, ranges) if self._head is not None else ():
            own = rows.filter(pc.and_(settlement.is_of(rows, self._group, identity), is_hit(rows, ranges)))
            there += len(own)
            counting += len(own.filter(pc.invert(pc.or_(settlement.stale(own), settlement.unsettled(own)))))
        return there, counting

    def write_down(
        self, records: Sequence[pa.Table], pending: Sequence[Pending], run_id: str, settlement: Settlement
    ) -> None:
        """Commit the rejected records of a landing, and note it as pending; settle others. Raises what commits do."""
        for part in records:
            for one in pending:
                self.write(rows_of(of_topic(part, one.identity.topic), one, run_id), one.identity)
        self._note(Landing(pending[0].landing_id, run_id, {}), pending, settlement)

    def rolled_back(self, settlement: Settlement) -> list[Pending]:
        """Return none: see `DeltaBooks`."""
        return []

    def settle(self, settlement: Settlement, pending: Sequence[Pending], run_id: str) -> None:
        """Remove the rows that do not count, in a commit of its own. Raises what a commit raises."""
        self._note(Landing(f"settle-{uuid.uuid4().hex}", run_id, {}), pending, settlement)

    def _note(self, landing: Landing, pending: Sequence[Pending], settlement: Settlement) -> None:
        adds, target = list(self._buffer.flush()), self._target()
        self._remainders = {}
        kept: list[Add] = []

        def make(head: Head | None) -> list[Action]:
            check_fit(head, target, self._name)
            removes, remainders = self._stale(head, settlement)
            kept[:] = remainders
            files = [*removes, *({"add": dict(add)} for add in (*remainders, *adds))]
            notes = {one.key: one.encode() for one in pending}
            operation = CREATE if head is None else OVERWRITE if removes else APPEND
            gone = [one.key for one in settlement.settled]
            return self._actions(head, target, landing, files, operation, notes=notes, gone=gone)

        committer = Committer(self._tables, self._name, landing.landing_id, make)
        try:
            self._drive(committer)
        except BaseException:
            if not committer.may_be_applied():
                kept.clear()
                self._delete_remainders(kept)
            self.discard()
            raise
        self._delete_remainders(kept)

    def _delete_remainders(self, keep: Sequence[Add]) -> None:
        written = [add for adds in self._remainders.values() for add in adds if add not in keep]
        self._remainders = {}
        delete_files(self._store, written)

    def _stale(self, head: Head | None, settlement: Settlement) -> tuple[list[Action], list[Add]]:
        removes: list[Action] = []
        remainders: list[Add] = []
        if head is None or not settlement.is_due:
            return removes, remainders
        for add, rows in self._rows_in(head, settlement.ranges):
            stale = settlement.stale(rows)
            if not pc.any(stale).as_py():
                continue
            removes.append(remove_action(add, time.time_ns() // 1_000_000))
            if add["path"] not in self._remainders:
                rest = rows.filter(pc.invert(stale))
                self._remainders[add["path"]] = self._write_files(rest) if len(rest) else []
            remainders += self._remainders[add["path"]]
        return removes, remainders

    def _rows_in(self, head: Head, ranges: RangeSet) -> Iterator[tuple[Add, pa.Table]]:
        """Yield the files that may have rows of these offsets, with all of their rows."""
        for add in live_files(head):
            if may_hold(add, ranges):
                yield add, read_file(self._store, add, head.schema)
