"""A Delta table filled by another tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from obstore.exceptions import BaseError

from airflow_lakestream.adopt.claim import CannotAdopt
from airflow_lakestream.audit.rows import RowPositions, UnreadableRows
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import CannotReplace, HeadMoved
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.committing import DeltaFileChange
from airflow_lakestream.delta.files import read_parts
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import Action, info_of, read_commit
from airflow_lakestream.delta.sink import DeltaSink
from airflow_lakestream.delta.storage import DeltaStorage, near_table
from airflow_lakestream.delta.takeout import live_files
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.positions import PositionColumns

# Most commits that are read back: each is a file to read.
_COMMITS_LOOKED_AT = 500


class DeltaFilledTable:
    """A Delta table. Raises CannotAdopt for a missing table, LedgerTakenAway and UnreadableLedger."""

    def __init__(self, storage: DeltaStorage, name: str, group: str) -> None:
        head = storage.open(name)
        if head is None:
            raise CannotAdopt(f"there is no Delta table at {name}.{near_table(storage, name)}")
        self._storage, self._head = storage, head
        self.name, self.head, self.columns, self.properties = name, head.version, head.schema, head.properties
        groups = sorted({*ledger_store.groups(head), group})
        for known_group in groups:
            ledger_store.check_not_taken_away(head, known_group, storage.store(name))
        self.ledgers = {known_group: ledger_store.read_ledger(head, known_group) for known_group in groups}

    def count(self, columns: PositionColumns) -> RowPositions:
        """Count the rows of all topics by position."""
        return RowPositions.of(columns.of(part) for part in self._parts(columns.roots))

    def rows(self) -> int | None:
        """Return the number of rows, or None if the log does not show the number."""
        try:
            counts = [add["stats"]["numRecords"] for add in live_files(self._head)]
        except CannotReplace:
            return None
        return None if None in counts else sum(counts)

    def marks(self) -> Iterator[Mapping[str, str]]:
        """Yield the information of each commit in the head's history."""
        for actions in self._history():
            yield {key: value for key, value in info_of(actions).items() if isinstance(value, str)}

    def transaction(self, app: str) -> int | None:
        """Return the number of an application's last transaction in the head's history, or None.

        The table's own last number is not used: a RESTORE removes rows, but leaves that number as it is.
        """
        for actions in self._history():
            for transaction in (action["txn"] for action in actions if "txn" in action):
                if transaction.get("appId") == app:
                    return int(transaction["version"])
        return None

    def _history(self) -> Iterator[Sequence[Action]]:
        """Yield the commits behind the table's current state, newest first, as far as the log reaches.

        Commits that a RESTORE has undone are left out. After `_COMMITS_LOOKED_AT` commits the search ends.
        """
        store, version = self._storage.store(self.name), self.head
        for _ in range(_COMMITS_LOOKED_AT):
            if version < 0 or (actions := read_commit(store, version)) is None:
                return
            info = info_of(actions)
            if info.get("operation") == "RESTORE":
                restored = info.get("operationParameters", {}).get("version")
                if restored is None:
                    # Restored by time: the log does not contain the version.
                    return
                version = int(restored)
                continue
            yield actions
            version -= 1

    def write(self, group: str, landing: Landing, notes: Mapping[str, str]) -> int:
        """Commit a landing without rows, only on this head; return the version. See `FilledTable.write`."""
        sink = DeltaSink(self._storage, self.name, group, TableDesign(metadata=pa.schema([]), notes=notes))
        sink.load(landing.run_id)

        # Rows that another writer has added since would be adopted unseen.
        def check_head(_: object, head: DeltaTableHead | None) -> None:
            if head is None or head.version != self.head:
                raise HeadMoved(self.name)

        check_head(None, sink.head)
        commit = sink.commit_of(landing, lambda _: DeltaFileChange())
        return sink.drive(replace(commit, checks=(check_head, *commit.checks)))

    def _parts(self, roots: tuple[str, ...]) -> Iterator[pa.Table]:
        """Yield some columns of all rows. Raises UnreadableRows."""
        store = self._storage.store(self.name)
        try:
            for add in live_files(self._head):
                yield from read_parts(store, add, self._head.schema, roots)
        except (CannotReplace, OSError, BaseError, pa.ArrowException) as e:
            raise UnreadableRows(self.name, e) from e
