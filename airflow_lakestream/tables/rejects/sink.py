"""Reject table of a table of any format, and the sink of both: `<table>__rejected` has rejected records with reasons.

It is written before the commit of the main table, and only that commit decides on the landing: a row counts if its
landing is in the main table's ledger. Until that is known, the landing is noted as pending in a property of the reject
table. A later landing reads the ledger, and removes stale rows: rows of landings that were never committed, and rows of
ranges that a later landing landed again. See `settlement`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ledger import Counts, Landing, TopicIdentity
from airflow_lakestream.core.ports import RejectsCondemned, Sink, TableState, or_discard
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
from airflow_lakestream.tables.sink import TableSink, WrappedSink


class RejectAccess(Protocol):
    """Access of a table format: to a reject table, to the main table's ledgers, and to stored rejected records."""

    @property
    def sink(self) -> TableSink[Any]:
        """The sink of the reject table."""

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
        """Read and delete records stored by a process of this run; return them, and the paths possibly left.

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
        return self._access.sink.is_there

    @property
    def pending(self) -> list[PendingLanding]:
        """The pending landings noted in the table at the last look."""
        return pending_of(self._access.sink.properties)

    def count(self, identity: TopicIdentity, ranges: RangeSet, settlement: RejectSettlement) -> tuple[int, int]:
        """Return the numbers of the group's rows at these offsets: of all rows, and of counting rows.

        A row counts if its landing is in the main table's ledger; see `settlement`. The first number includes the
        rows of open landings: such a landing may land, be rolled back, and have its snapshot expired before the
        caller's landing. Then its rows can't be distinguished from rows that count. Both numbers are 0 if the reject
        table does not exist.
        """
        all_rows = counting = 0
        for rows in self._access.rows_at(ranges, PLACE) if self.exists else ():
            own = rows.filter(pc.and_(settlement.is_of(rows, self._group, identity), is_hit(rows, ranges)))
            all_rows += len(own)
            not_counting = pc.or_(settlement.stale(own), settlement.undecided(own))
            counting += len(own.filter(pc.invert(not_counting)))
        return all_rows, counting

    def count_missing(self, identity: TopicIdentity, settlement: RejectSettlement) -> int:
        """Return how many of the topic's rejected records, as counted by the main table's ledger, have no row here.

        For example, a replace removed rows here, and the main table was rolled back to before the replace. The result
        is 0 without a main table.
        """
        if settlement.main_ledgers is None:
            return 0
        entry = settlement.main_ledgers.ledger(self._group).entry(identity)
        if not entry.counts.rejected:
            return 0
        _, rows_here = self.count(identity, entry.landed, settlement)
        return max(0, entry.counts.rejected - rows_here)

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
        with or_discard(self._access.sink):
            for part in records:
                for note in pending:
                    self._access.sink.write(rows_of(of_topic(part, note.identity.topic), note, run_id), note.identity)
            self._access.note(Landing(pending[0].landing_id, run_id, {}), [*pending, *settlement.condemned], settlement)

    def settle(self, settlement: RejectSettlement, pending: Sequence[PendingLanding], run_id: str) -> None:
        """Commit the removal of stale rows, and of notes of landed and dead landings. Raises the errors of a commit.

        The note of a condemned landing is written again, and forbids the landing's commit. After an error nothing stays
        buffered.

        :param settlement: the main table's decision on the pending landings.
        :param pending: further notes to write, for the landings that `rolled_back` returns.
        """
        with or_discard(self._access.sink):
            landing = Landing(f"settle-{uuid.uuid4().hex}", run_id, {})
            self._access.note(landing, [*pending, *settlement.condemned], settlement)

    def rolled_back(self, settlement: RejectSettlement) -> list[PendingLanding]:
        """Return, as pending landings, the rolled back landings with rows in this table and without a note.

        Without a note these rows would count once the snapshots of the landings have expired.
        """
        ids = set(settlement.rolled_back) - {note.landing_id for note in self.pending}
        ranges_of: dict[tuple[str, str, TopicIdentity], RangeSet] = {}
        for part in self._access.rows_at(None, PLACE) if self.exists and ids else ():
            rows = part.filter(pc.is_in(part["landing_id"], value_set=pa.array(sorted(ids), pa.string())))
            for row in rows.to_pylist():
                topic, partition, offset, group, topic_id, landing_id = (row[name] for name in PLACE)
                key = landing_id, group, TopicIdentity(topic, topic_id, "")
                ranges_of[key] = ranges_of.get(key, RangeSet()) | RangeSet.of(topic, partition, offset, offset + 1)
        now_ms = time.time_ns() // 1_000_000
        return [
            PendingLanding(
                *key,
                ranges,
                replaces=True,
                supersedes=False,
                at_ms=now_ms,
                after=settlement.marks(key[1]),
                is_taken_back=True,
            )
            for key, ranges in ranges_of.items()
        ]


log = logging.getLogger(__name__)

# Key in handed files: the path of the rejected records, which are an Arrow IPC stream.
HANDED = "rejected"


class RejectingSink(WrappedSink):
    """Sink of a table together with its reject table: a `core.ports.Sink` and a `core.ports.RejectStore`.

    Rejected records are committed to the reject table before each landing, and count only after the landing.

    :param inner: the sink of the main table, whose ledger decides on the rejected records.
    :param access: the access of the table format.
    :param table: the main table's name.
    """

    # Only a replay sets these: takes the rows of each write, and returns a replace and its rejected records, changed.
    noted: Callable[[pa.Table], None] | None = None
    reviewed: Callable[[Landing, Sequence[pa.Table]], tuple[Landing, list[pa.Table]]] | None = None

    def __init__(self, inner: Sink, access: RejectAccess, table: str, consumer_group: str) -> None:
        super().__init__(inner)
        self._name = table
        self._group = consumer_group
        self._access, self._rejects = access, RejectTable(access, consumer_group)
        # Rejected records since the last commit.
        self._held: list[pa.Table] = []
        self._run_id = ""
        self._folder = ""
        # Paths of stored rejected records that are still owned here.
        self._handed: list[str] = []

    def load(self, run_id: str) -> TableState:
        """Load both tables again, remove stale rejected records, and return the main table's state."""
        self._run_id = run_id
        state = self.inner.load(run_id)
        self._access.sink.load(run_id)
        self.settle()
        return state

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Buffer rows for the next commit; see `core.ports.Sink`."""
        if self.noted is not None:
            self.noted(rows)
        self.inner.write(rows, identity)

    def reject(self, records: pa.Table) -> None:
        """Buffer rejected records for the next commit."""
        self._held.append(records)

    def commit(self, landing: Landing) -> int:
        """Write the rejected records, then commit; see `core.ports.Sink`."""
        return self.inner.commit(self.write_down(landing))

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Write the rejected records, then replace; afterwards remove the rejected records that were replaced.

        Returns snapshot and landing as `core.ports.Sink.replace` does. A failed removal is left for the next run.
        """
        if self.reviewed is not None:
            landing, self._held = self.reviewed(landing, self._held)
        done = self.inner.replace(self.write_down(landing))
        self.settle()
        return done

    def discard(self) -> None:
        """Discard all rows since the last commit, and delete stored rejected records still owned here; never raises."""
        self._held = []
        handed, self._handed = self._handed, []
        for path in self._access.delete(handed) if handed else ():
            log.warning("Rejected records that were not handed over could not be deleted: %s", path)
        super().discard()

    def write_down(self, landing: Landing) -> Landing:
        """Commit a landing's rejected records, or a note on superseded rejected records, if any.

        Returns the landing to commit. If a note was written, the landing is marked as noted, and its precondition fails
        once the note is gone or condemned. A replacing landing without counts of removed records gets the counts of the
        rejected records that it replaces.
        """
        rejected, self._held = self._held, []
        # Other runs may have landed these offsets since this run began, and been rolled back: their rows are there now.
        self._access.sink.load(self._run_id)
        settlement = self._settlement()
        topics = dict(landing.topics)
        pending: list[PendingLanding] = []
        missing_rows = 0
        for identity, entry in landing.topics.items():
            ranges = entry.landed | entry.replaced
            rows_here, counting = self._rejects.count(identity, ranges, settlement)
            if entry.replaced and entry.removed == Counts():
                topics[identity] = replace(entry, removed=Counts(read=counting, rejected=counting))
                missing_rows += self._rejects.count_missing(identity, settlement)
            if rows_here or any(len(of_topic(part, identity.topic)) for part in rejected):
                pending.append(
                    PendingLanding(
                        landing.landing_id,
                        self._group,
                        identity,
                        ranges,
                        replaces=bool(entry.replaced),
                        supersedes=bool(rows_here),
                        at_ms=time.time_ns() // 1_000_000,
                        after=settlement.marks(self._group),
                    )
                )
        if pending:
            self._rejects.write_down(rejected, pending, self._run_id, settlement)
        landing = replace(landing, topics=topics, rejects_gone=missing_rows)
        if not pending:
            return landing
        keys = {note.key for note in pending}
        return replace(landing, noted=True, precondition=lambda: self._check_noted(landing, keys))

    def _check_noted(self, landing: Landing, keys: set[str]) -> None:
        """Raise RejectsCondemned if a note of a landing is gone or condemned."""
        self._access.sink.load(self._run_id)
        if keys - {note.key for note in self._rejects.pending if not note.is_condemned}:
            raise RejectsCondemned(self._name, landing.landing_id)

    def settle(self) -> None:
        """Remove stale rows, and the notes of decided landings. An error is logged, and left for the next run."""
        if not self._rejects.exists:
            return
        try:
            if self._settle_once().condemned:
                # Condemned landings are dead if the next look finds their offsets landed, too.
                self._access.sink.load(self._run_id)
                self._settle_once()
        except Exception as e:  # noqa: BLE001  # what lands is not touched by it, and the next run looks again
            log.warning("Rejected records that do not count were left for the next run: %s", e)

    def _settle_once(self) -> RejectSettlement:
        """Settle the notes of earlier landings in the reject table, and remove rows that do not count."""
        settlement = self._settlement()
        # Notes are settled even without rows to remove: later on, the landing can't be found in the history, and would
        # count as dead.
        rolled_back = self._rejects.rolled_back(settlement)
        if settlement.settled or settlement.condemned or rolled_back:
            self._rejects.settle(settlement, rolled_back, self._run_id)
        return settlement

    def _settlement(self) -> RejectSettlement:
        """Return the main table's decision on the pending landings; a missing reject table has nothing to settle."""
        pending = self._rejects.pending
        return RejectSettlement.by(pending, self._access.main_ledgers() if self._rejects.exists else None)

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Add files staged by a process of this run, with the stored rejected records.

        The stored records are deleted after reading: from then on, only this process has the records.
        """
        if (path := files.get(HANDED)) is not None:
            records, undeleted_paths = self._access.take(path, self.inner)
            self._held.append(read_stream(records))
            for undeleted in undeleted_paths:
                log.warning("Rejected records that were read could not be deleted: %s", undeleted)
        self.inner.take_over(files)

    def write_below(self, folder: str) -> None:
        """Write later files below this folder of the table's data."""
        self._folder = folder
        self.inner.write_below(folder)

    def hand_over(self) -> Mapping[str, Any]:
        """Write buffered rows, store rejected records, and return both for `adopt`; see `core.ports.Sink`."""
        files = dict(self.inner.hand_over())
        if self._held:
            # The path is kept before the file is written: a file that is written in part is deleted, too.
            self._handed.append(path := self._access.new_path(self._folder))
            self._access.store(path, write_stream(pa.concat_tables(self._held)))
            files[HANDED] = path
            self._held = []
        return files

    def let_go(self) -> None:
        """Give up ownership of files and rejected records handed over: `discard` no longer deletes either."""
        self._handed = []
        self.inner.let_go()

    def misfit(self, files: Mapping[str, Any]) -> str | None:
        """Return the reason against the use of handed files, also if the rejected records are gone; or None."""
        path = files.get(HANDED)
        if path is not None and not self._access.is_there(path):
            return f"the records that were rejected are gone: {path}"
        return self.inner.misfit(files)

    def adopt(self, files: Mapping[str, Any]) -> None:
        """Add files and rejected records of another worker to the next commit; `discard` deletes neither."""
        if (path := files.get(HANDED)) is not None:
            self._held.append(read_stream(self._access.read(path)))
        self.inner.adopt(files)


def write_stream(records: pa.Table) -> bytes:
    """Return records as bytes of an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as writer:
        writer.write_table(records)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_stream(data: bytes) -> pa.Table:
    """Return the records of an Arrow IPC stream."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
