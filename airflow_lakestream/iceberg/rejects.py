"""A sink with a reject table beside it: rejected records are written first, and count once the landing has landed."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Counts, Landing, TopicIdentity
from airflow_lakestream.core.ports import Sink, TableState
from airflow_lakestream.iceberg.files import data_folder, delete_files
from airflow_lakestream.iceberg.reject_table import Pending, RejectTable, Settlement, of_topic

log = logging.getLogger(__name__)

# What a handed piece says of its rejected records: where they lie, as Arrow's IPC stream.
HANDED = "rejected"


class RejectingSink:
    """`core.ports.Sink` and `core.ports.Rejects`: a table's sink, and its reject table.

    :param inner: the sink of the table whose ledger decides.
    :param table: that table's name.
    :param records: the columns of rejected records.
    """

    def __init__(self, inner: Sink, catalog: Catalog, table: str, consumer_group: str, records: pa.Schema) -> None:
        self.inner = inner
        self._catalog = catalog
        self._name = table
        self._group = consumer_group
        self._rejects = RejectTable(catalog, table, consumer_group, records)
        self._held: list[pa.Table] = []
        self._run_id = ""
        self._folder = ""
        self._handed: list[str] = []

    def load(self, run_id: str) -> TableState:
        """Look at the table anew, and remove rejected records that turned out not to count."""
        self._run_id = run_id
        state = self.inner.load(run_id)
        self._rejects.load(run_id)
        self.settle()
        return state

    def reject(self, records: pa.Table) -> None:
        """Take rejected records for the next commit."""
        self._held.append(records)

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Take rows for the next commit."""
        self.inner.write(rows, identity)

    def pass_over(self, identity: TopicIdentity, partition: int, offsets: Any) -> None:
        """Be told of records that became no row."""
        self.inner.pass_over(identity, partition, offsets)

    def commit(self, landing: Landing) -> int:
        """Write down what was rejected, then commit; see `core.ports.Sink`."""
        self.write_down(landing)
        return self.inner.commit(landing)

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Write down what was rejected, then replace; the rejected records of the ranges are replaced, too."""
        done = self.inner.replace(self.write_down(landing))
        self.settle()
        return done

    def discard(self) -> None:
        """Forget what was taken since the last commit; never raises."""
        self._held = []
        if self._handed:
            for path in self._delete_handed():
                log.warning("Rejected records that were not handed over could not be deleted: %s", path)
        self.inner.discard()

    def write_below(self, folder: str) -> None:
        """Write files below this folder of the table's data from now on."""
        self._folder = folder
        self.inner.write_below(folder)

    def hand_over(self) -> Mapping[str, Any]:
        """Write out what was taken; see `core.ports.Sink`."""
        files = dict(self.inner.hand_over())
        if self._held:
            files[HANDED] = self._store(pa.concat_tables(self._held))
            self._held = []
        return files

    def let_go(self) -> None:
        """Leave what was handed over to who took it."""
        self._handed = []
        self.inner.let_go()

    def outline(self) -> Any:
        """Return what a sink in another process needs; that process hands its rejected records over by itself."""
        return self.inner.outline()

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take files that a process of this run handed over; its rejected records are deleted when they are read."""
        if (path := files.get(HANDED)) is not None:
            # The table may be one that the commit is to create: nobody but the inner sink knows it yet.
            io = self.inner.outline().io
            self._held.append(_read_records(io, path))
            for left in delete_files(io, [path]):
                log.warning("Rejected records that were read could not be deleted: %s", left)
        self.inner.take_over(files)

    def misfit(self, files: Mapping[str, Any]) -> str | None:
        """Say why handed files can't be used; None if they can."""
        path = files.get(HANDED)
        if path is not None and not self._main().io.new_input(path).exists():
            return f"the records that were rejected are gone: {path}"
        return self.inner.misfit(files)

    def schema_changes(self, snapshot_id: int) -> Sequence[str]:
        """Say what a landing changed in the table's schema."""
        return self.inner.schema_changes(snapshot_id)

    def adopt(self, files: Mapping[str, Any]) -> None:
        """Take files that another worker handed over for the next commit."""
        if (path := files.get(HANDED)) is not None:
            self._held.append(_read_records(self._main().io, path))
        self.inner.adopt(files)

    def sweep(self, folder: str) -> None:
        """Delete the files below this folder of the table's data that no snapshot of the table has; never raises."""
        self.inner.sweep(folder)

    def write_down(self, landing: Landing) -> Landing:
        """Commit the rejected records of a landing, or a note that it supersedes some; nothing where there are none.

        Returns the landing, with the count of those that it replaces, if that is not in it.
        """
        held, self._held = self._held, []
        settlement = self._settlement()
        topics = dict(landing.topics)
        pending: list[Pending] = []
        for identity, entry in landing.topics.items():
            ranges = entry.landed | entry.replaced
            there, counting = self._rejects.count(identity, ranges, settlement)
            if entry.replaced and entry.removed == Counts():
                topics[identity] = replace(entry, removed=Counts(read=counting, rejected=counting))
            if there or any(len(of_topic(part, identity.topic)) for part in held):
                pending.append(
                    Pending(
                        landing.landing_id,
                        self._group,
                        identity,
                        ranges,
                        replaces=bool(entry.replaced),
                        supersedes=bool(there),
                        at_ms=time.time_ns() // 1_000_000,
                    )
                )
        if pending:
            self._rejects.write_down(held, pending, self._run_id, settlement)
        return replace(landing, topics=topics)

    def settle(self) -> None:
        """Forget what is decided, and remove rows that do not count. Left for the next run where it fails."""
        if not self._rejects.exists:
            return
        try:
            settlement = self._settlement()
            # Also where there are no rows to remove: an old landing is found no more, and would be taken for dead.
            rolled_back = self._rejects.rolled_back(settlement)
            if settlement.settled or rolled_back:
                self._rejects.settle(settlement, rolled_back, self._run_id)
        except Exception as e:  # noqa: BLE001  # what lands is not touched by it, and the next run looks again
            log.warning("Rejected records that do not count were left for the next run: %s", e)

    def _settlement(self) -> Settlement:
        pending = self._rejects.pending
        try:
            # Without a reject table there is nothing that could be anybody's.
            return Settlement.of(pending, self._main() if self._rejects.exists else None)
        except NoSuchTableError:
            return Settlement.of(pending, None)

    def _main(self) -> Table:
        return self._catalog.load_table(self._name)

    def _store(self, records: pa.Table) -> str:
        table = self._main()
        path = f"{data_folder(table.metadata, self._folder)}/{uuid.uuid4().hex}-rejected.arrows"
        self._handed.append(path)
        with table.io.new_output(path).create() as stream, pa.ipc.new_stream(stream, records.schema) as writer:
            writer.write_table(records)
        return path

    def _delete_handed(self) -> list[str]:
        paths, self._handed = self._handed, []
        try:
            io = self._main().io
        except NoSuchTableError:
            return paths
        return delete_files(io, paths)


def _read_records(io: FileIO, path: str) -> pa.Table:
    with io.new_input(path).open() as stream, pa.ipc.open_stream(stream.read()) as reader:
        return reader.read_all()
