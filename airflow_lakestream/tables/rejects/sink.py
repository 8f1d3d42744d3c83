"""Sink with a reject table: rejected records are written first, and count after the landing's commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.ledger import Counts, Landing
from airflow_lakestream.core.ports import RejectsCondemned, Sink, TableState
from airflow_lakestream.tables.rejects.book import RejectAccess, RejectTable
from airflow_lakestream.tables.rejects.settlement import PendingLanding, RejectSettlement, of_topic
from airflow_lakestream.tables.sink import WrappedSink

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

    def __init__(self, inner: Sink, access: RejectAccess, table: str, consumer_group: str) -> None:
        super().__init__(inner)
        self._name = table
        self._group = consumer_group
        self._access, self._rejects = access, RejectTable(access, consumer_group)
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
        held, self._held = self._held, []
        # Other runs may have landed these offsets since this run began, and been rolled back: their rows are there now.
        self._access.sink.load(self._run_id)
        settlement = self._settlement()
        topics = dict(landing.topics)
        pending: list[PendingLanding] = []
        gone = 0
        for identity, entry in landing.topics.items():
            ranges = entry.landed | entry.replaced
            there, counting = self._rejects.count(identity, ranges, settlement)
            if entry.replaced and entry.removed == Counts():
                topics[identity] = replace(entry, removed=Counts(read=counting, rejected=counting))
                gone += self._rejects.gone(identity, settlement)
            if there or any(len(of_topic(part, identity.topic)) for part in held):
                pending.append(
                    PendingLanding(
                        landing.landing_id,
                        self._group,
                        identity,
                        ranges,
                        replaces=bool(entry.replaced),
                        supersedes=bool(there),
                        at_ms=time.time_ns() // 1_000_000,
                        after=settlement.marks(self._group),
                    )
                )
        if pending:
            self._rejects.write_down(held, pending, self._run_id, settlement)
        landing = replace(landing, topics=topics, rejects_gone=gone)
        if not pending:
            return landing
        keys = {one.key for one in pending}
        return replace(landing, noted=True, precondition=lambda: self._check_noted(landing, keys))

    def _check_noted(self, landing: Landing, keys: set[str]) -> None:
        """Raise RejectsCondemned if a note of a landing is gone or condemned."""
        self._access.sink.load(self._run_id)
        if keys - {one.key for one in self._rejects.pending if not one.is_condemned}:
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
            records, left = self._access.take(path, self.inner)
            self._held.append(read_stream(records))
            for one in left:
                log.warning("Rejected records that were read could not be deleted: %s", one)
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
