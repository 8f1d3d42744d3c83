"""The catalog that the sequences of the fault harness share."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSnapshotUpdate

from airflow_lakestream.iceberg import ledger_store


class HarnessCatalog(SqlCatalog):
    """PyIceberg's SQL catalog; it reads no metadata file twice, and knows each snapshot's true parent.

    A metadata file is never written twice under one name, and nobody writes into what is read from one: so most of
    the time of each load is spared. Commits are PyIceberg's own.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(
            "iceberg_default", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse"
        )
        self._tables: dict[str, Table] = {}
        self._reading = sqlite3.connect(folder / "catalog.db", check_same_thread=False, isolation_level=None)
        self.parents: dict[int, int | None] = {}
        self.summaries: dict[int, dict[str, str]] = {}

    def load_table(self, identifier: Any) -> Table:
        namespace, name = self.identifier_to_tuple(identifier)
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?"
        found = self._reading.execute(query, (namespace, name)).fetchone()
        if found is None or found[0] not in self._tables:
            read = super().load_table(identifier)
            self._tables[read.metadata_location] = read
        else:
            read = self._tables[found[0]]
        return Table(read.name(), read.metadata, read.metadata_location, read.io, self, read.config)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        response = super().commit_table(table, requirements, updates)
        for update in updates:
            if isinstance(update, AddSnapshotUpdate):
                snapshot = update.snapshot
                self.parents[snapshot.snapshot_id] = snapshot.parent_snapshot_id
                self.summaries[snapshot.snapshot_id] = dict(ledger_store.summary_of(snapshot))
        return response

    def ancestry(self, snapshot_id: int | None) -> list[int]:
        """Return a snapshot and its true ancestors, newest first, expired or not."""
        chain = []
        while snapshot_id is not None:
            chain.append(snapshot_id)
            snapshot_id = self.parents[snapshot_id]
        return chain

    def forget(self, namespace: str) -> None:
        """Drop the tables of a sequence that is over."""
        for name in self.list_tables(namespace) if self.namespace_exists(namespace) else ():
            self.drop_table(name)
        if self.namespace_exists(namespace):
            self.drop_namespace(namespace)
        self._tables.clear()
        self.parents.clear()
        self.summaries.clear()
