"""History of a table's landings, with the files written by each landing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.replace.takeout import added_files


@dataclass(frozen=True, slots=True)
class PastLanding:
    """Landing in main's history; time and files are None once the snapshot has expired."""

    snapshot_id: int
    landing: Landing
    at: datetime | None
    files: tuple[str, ...] | None


def landings(table: Table, consumer_group: str) -> Iterator[PastLanding]:
    """Yield a group's landings, newest first: landings of live snapshots, then landings left in the journal.

    Raises UndecidedLedger and UnreadableLedger.
    """
    yielded_ids = set()
    for snapshot in ledger_store.live_ancestors(table.metadata):
        if (landing := ledger_store.landing_of(snapshot, consumer_group)) is not None:
            yielded_ids.add(landing.landing_id)
            landed_at = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
            yield PastLanding(
                snapshot.snapshot_id, landing, landed_at, tuple(file.file_path for file in added_files(table, snapshot))
            )
    for entry in reversed(ledger_store.read(table, consumer_group).path):
        if entry.landing is not None and entry.landing.landing_id not in yielded_ids:
            yield PastLanding(entry.snapshot_id, entry.landing, None, None)
