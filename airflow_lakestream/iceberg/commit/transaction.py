"""PyIceberg's transaction without its copies: a bare append copies the whole metadata about twenty times.

Each look at `Transaction.table_metadata` applies the staged updates anew and deep-copies the result, every snapshot of
the table included: most of the time that a commit takes on a table with some hundred snapshots.
"""

from __future__ import annotations

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata

# Private in PyIceberg: the public `update_table_metadata` is these two and the copy.
from pyiceberg.table.update import TableUpdate, _apply_table_update, _TableMetadataUpdateContext

from airflow_lakestream.tables.schema.change import SchemaChange


class LandingTransaction(Transaction):
    """A transaction that computes its metadata once for each change; nobody writes into metadata, so it is shared.

    :param change: a change of the schema to make first; what is staged later is staged with it.
    """

    _seen: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    def __init__(self, table: Table, change: SchemaChange | None = None) -> None:
        super().__init__(table)
        self.notes = {} if change is None else change.summary()
        if change is not None:
            # Private in PyIceberg, whose public `update_schema` would assign field ids of its own.
            self._stage(change.updates())

    @property
    def table_metadata(self) -> TableMetadata:
        """The table's metadata with the staged updates."""
        base, updates = self._table.metadata, self._updates
        # Both are replaced, never changed in place: by a retry, and by another update.
        if self._seen is None or self._seen[0] is not base or self._seen[1] is not updates:
            self._seen = (base, updates, _apply(base, updates))
        return self._seen[2]


def _apply(metadata: TableMetadata, updates: tuple[TableUpdate, ...]) -> TableMetadata:
    context = _TableMetadataUpdateContext()
    for update in updates:
        metadata = _apply_table_update(update, metadata, context)
    return metadata
