"""What a table's history has got since a run first looked at it: how a replace sees that another one came after."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table

from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.lineage import Reading
from airflow_lakestream.iceberg import ledger_store


@dataclass(frozen=True, slots=True)
class FirstLook:
    """A table as a run first saw it, and its ledger's reading; None for a table that was not there."""

    table: Table | None = None
    reading: Reading | None = None

    def landings_since(self, now: Table, consumer_group: str) -> tuple[list[Landing], bool]:
        """Return the landings of a group that are in the history now and were not then, and whether these are all."""
        then, found = self._history(), dict[str, Landing]()
        for snapshot in ledger_store.live_ancestors(now.metadata):
            if snapshot.snapshot_id in then:
                return list(found.values()), True
            if (landing := ledger_store.landing_of(snapshot, consumer_group)) is not None:
                found[landing.landing_id] = landing
        # Expiry broke the chain of snapshots; the journal may reach further.
        reading = ledger_store.read(now, consumer_group)
        for entry in reversed(reading.path):
            if entry.snapshot_id in then:
                return list(found.values()), True
            if entry.landing is not None:
                found.setdefault(entry.landing.landing_id, entry.landing)
        return list(found.values()), reading.base_id is None or reading.base_id in then

    def _history(self) -> frozenset[int]:
        if self.table is None or self.reading is None:
            return frozenset()
        ids = {snapshot.snapshot_id for snapshot in ledger_store.live_ancestors(self.table.metadata)}
        ids |= {entry.snapshot_id for entry in self.reading.path}
        return frozenset(ids if self.reading.base_id is None else ids | {self.reading.base_id})
