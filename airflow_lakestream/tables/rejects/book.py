"""Reject table of a table of any format: `<table>__rejected`, with the rejected records and the reasons.

It is written before the commit of the main table, and only that commit decides on the landing: a row counts if its
landing is in the main table's ledger. Until that is known, the landing is noted as pending in a property of the reject
table. A later landing reads the ledger, and removes stale rows: rows of landings that were never committed, and rows of
ranges that a later landing landed again. See `settlement`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.ports import Sink
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.tables.coordinates import is_hit
from airflow_lakestream.tables.rejects.settlement import (
    PLACE,
    MainTableLedgers,
    PendingLanding,
    RejectSettlement,
    of_topic,
    pending_of,
    rows_of,
)
from airflow_lakestream.tables.sink import TableSink


class RejectAccess(Protocol):
    """Access of a table format: to a reject table, to the main table's ledgers, and to stored rejected records."""

    @property
    def sink(self) -> TableSink[Any]:
        """The sink of the reject table."""

    @property
    def properties(self) -> Mapping[str, str] | None:
        """The reject table's properties at the last look, or None if the table did not exist."""

    def rows_at(self, ranges: RangeSet | None, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield all rows of each file of the reject table with possible rows of `ranges`.

        :param ranges: None for all files.
        :param columns: the columns to read; default: all.
        """

    def note(self, landing: Landing, pending: Sequence[PendingLanding], settlement: RejectSettlement) -> object:
        """Commit buffered rows, notes of pending landings, and the removal of stale rows and settled notes, as one.

        :param landing: gives the id of the commit; it changes no ledger.
        """

    def main_ledgers(self) -> MainTableLedgers | None:
        """Return the ledgers of the main table, or None if the table does not exist."""

    def new_path(self, folder: str) -> str:
        """Return a new path for records, below a folder of the main table's data."""

    def store(self, path: str, records: bytes) -> object:
        """Store records for the committing process."""

    def read(self, path: str) -> bytes:
        """Return records stored by another worker."""

    def take(self, path: str, inner: Sink) -> tuple[bytes, Sequence[str]]:
        """Read and delete records stored by a process of this run; return also the paths possibly left.

        :param inner: the sink of the main table, which may not exist yet.
        """

    def is_there(self, path: str) -> bool:
        """Return whether stored records exist."""

    def delete(self, paths: Sequence[str]) -> Sequence[str]:
        """Delete stored records; return the paths possibly left. Never raises."""


class RejectTable:
    """Reject table of a table, written for a consumer group."""

    def __init__(self, access: RejectAccess, consumer_group: str) -> None:
        self._access, self._group = access, consumer_group

    @property
    def exists(self) -> bool:
        """Whether the table existed at the last look."""
        return self._access.properties is not None

    @property
    def pending(self) -> list[PendingLanding]:
        """The pending landings noted in the table at the last look."""
        return pending_of(self._access.properties or {})

    def count(self, identity: TopicIdentity, ranges: RangeSet, settlement: RejectSettlement) -> tuple[int, int]:
        """Return the numbers of the group's rows at these offsets: of all rows, and of counting rows.

        A row counts if its landing is in the main table's ledger; see `settlement`. The first number includes the
        rows of open landings: such a landing may land, be rolled back, and have its snapshot expired before the
        caller's landing. Then its rows can't be distinguished from rows that count. Both numbers are 0 if the reject
        table does not exist.
        """
        there = counting = 0
        for rows in self._access.rows_at(ranges, PLACE) if self.exists else ():
            own = rows.filter(pc.and_(settlement.is_of(rows, self._group, identity), is_hit(rows, ranges)))
            there += len(own)
            not_counting = pc.or_(settlement.stale(own), settlement.undecided(own))
            counting += len(own.filter(pc.invert(not_counting)))
        return there, counting

    def gone(self, identity: TopicIdentity, settlement: RejectSettlement) -> int:
        """Return the number of a topic's rejected records, by the main table's ledger, without a row in this table.

        For example, a replace that was rolled back has removed such rows. The result is 0 without a main table.
        """
        if settlement.main_ledgers is None:
            return 0
        entry = settlement.main_ledgers.ledger(self._group).entry(identity)
        if not entry.counts.rejected:
            return 0
        return max(0, entry.counts.rejected - self.count(identity, entry.landed, settlement)[1])

    def write_down(
        self, records: Sequence[pa.Table], pending: Sequence[PendingLanding], run_id: str, settlement: RejectSettlement
    ) -> None:
        """Commit a landing's rejected records with a pending note for each topic, and settle earlier landings.

        This happens before the commit of the main table. After an error the records are discarded. Raises the errors of
        a commit.

        :param records: tables of rejected records; may be empty if the reject table exists.
        :param pending: the notes of the landing, one for each topic, all with the same landing id.
        :param settlement: the main table's decision on earlier landings.
        """
        if not self.exists and not records:
            raise AssertionError("without rejected records there is nothing to note before the table is there")
        with self._access.sink.or_discard():
            for part in records:
                for one in pending:
                    self._access.sink.write(rows_of(of_topic(part, one.identity.topic), one, run_id), one.identity)
            self._access.note(Landing(pending[0].landing_id, run_id, {}), [*pending, *settlement.condemned], settlement)

    def settle(self, settlement: RejectSettlement, pending: Sequence[PendingLanding], run_id: str) -> None:
        """Commit the removal of stale rows, and of notes of landed and dead landings. Raises the errors of a commit.

        The note of a condemned landing is written again, and forbids the landing's commit. After an error nothing stays
        buffered.

        :param settlement: the main table's decision on the pending landings.
        :param pending: further notes to write, for the landings that `rolled_back` returns.
        """
        with self._access.sink.or_discard():
            landing = Landing(f"settle-{uuid.uuid4().hex}", run_id, {})
            self._access.note(landing, [*pending, *settlement.condemned], settlement)

    def rolled_back(self, settlement: RejectSettlement) -> list[PendingLanding]:
        """Return, as pending landings, the rolled back landings with rows in this table and without a note.

        Without a note these rows would count once the snapshots of the landings have expired.
        """
        ids = set(settlement.rolled_back) - {one.landing_id for one in self.pending}
        found: dict[tuple[str, str, TopicIdentity], RangeSet] = {}
        for part in self._access.rows_at(None, PLACE) if self.exists and ids else ():
            rows = part.filter(pc.is_in(part["landing_id"], value_set=pa.array(sorted(ids), pa.string())))
            for row in rows.to_pylist():
                topic, partition, offset, group, topic_id, landing_id = (row[name] for name in PLACE)
                key = landing_id, group, TopicIdentity(topic, topic_id, "")
                found[key] = found.get(key, RangeSet()) | RangeSet.of(topic, partition, offset, offset + 1)
        now = time.time_ns() // 1_000_000
        return [
            PendingLanding(
                *key,
                ranges,
                replaces=True,
                supersedes=False,
                at_ms=now,
                after=settlement.marks(key[1]),
                is_taken_back=True,
            )
            for key, ranges in found.items()
        ]
