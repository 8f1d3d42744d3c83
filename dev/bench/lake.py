"""Where a run lands: a catalog and a warehouse of its own, gone after it, and what is found in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from airflow_lakestream.iceberg.upkeep.reads import live_rows

# An SQL catalog keeps its tables by its own name, which is the connection's.
CATALOG = "iceberg_default"
NAMESPACE = "bench"


@dataclass(frozen=True)
class Landed:
    """What is in a table."""

    rows: int
    files: int
    commits: int
    first_commit_at: float
    """Seconds since the epoch."""


@dataclass(frozen=True)
class Lake:
    """A catalog in SQLite, and a warehouse beside it."""

    folder: Path

    @property
    def uri(self) -> str:
        """Where the warehouse is."""
        return f"file://{self.folder}/warehouse"

    @property
    def database(self) -> Path:
        """The catalog's file."""
        return self.folder / "catalog.db"

    def catalog(self) -> SqlCatalog:
        """Open the catalog."""
        return SqlCatalog(CATALOG, uri=f"sqlite:///{self.database}", warehouse=self.uri)

    def connection(self) -> str:
        """Return the Airflow connection that leads here."""
        extra = {"type": "sql", "uri": f"sqlite:///{self.database}", "warehouse": self.uri}
        return json.dumps({"conn_type": "iceberg", "extra": extra})

    def landed(self, table: str) -> Landed:
        """Look at a table of the catalog."""
        return look_at(self.catalog().load_table(f"{NAMESPACE}.{table}"))


def look_at(table: Table) -> Landed:
    """Return what the snapshots of a table tell."""
    head = table.current_snapshot()
    if head is None or head.summary is None:
        raise AssertionError(f"{table.name()} has no snapshot")
    first = min(snapshot.timestamp_ms for snapshot in table.snapshots())
    return Landed(
        rows=live_rows(table),
        files=int(head.summary["total-data-files"] or 0),
        commits=len(table.snapshots()),
        first_commit_at=first / 1000,
    )


@contextmanager
def new_lake(folder: Path) -> Iterator[Lake]:
    """Make an empty lake, and remove it afterwards."""
    folder.mkdir(parents=True)
    try:
        lake = Lake(folder)
        lake.catalog().create_namespace(NAMESPACE)
        yield lake
    finally:
        shutil.rmtree(folder, ignore_errors=True)
