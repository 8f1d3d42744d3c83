"""A mirror as a Delta table: its rows at a head, and its entries of deleted rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types as arrow

from airflow_lakestream.cdc.columns import no_rows
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.memory import ENTRIES_GROUP, MIRROR_ID, SUFFIX, condensed
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.delta.commit.guard import check_fit
from airflow_lakestream.delta.commit.log import Action
from airflow_lakestream.delta.commit.protocol import check_removable
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.replace.takeout import live_files, remove_action
from airflow_lakestream.delta.sink import APPEND, CREATE, OVERWRITE, DeltaSink
from airflow_lakestream.delta.storage import Tables
from airflow_lakestream.delta.write.columns import conform
from airflow_lakestream.delta.write.files import Add, read_file


class DeltaHead:
    """`cdc.merge.head.Head` of a Delta table; `schema` are the columns after the commit."""

    def __init__(self, store: Any, head: Head, schema: pa.Schema) -> None:
        self._store, self._head, self._schema = store, head, schema

    def files(self) -> Sequence[Add]:
        """Return the data files. Raises UnfitTable and CannotReplace if rows can't be taken out of them."""
        check_removable(self._head)
        return list(live_files(self._head))

    def rows_in(self, file: Add) -> int:
        """Return a file's number of rows."""
        return int(file["stats"]["numRecords"] or 0)

    def bounds(self, file: Add, column: str) -> tuple[Any, Any] | None:
        """Return a column's bounds in the log."""
        kind = self._schema.field(column).type
        # For other types the log has text, or rounds.
        if not (arrow.is_integer(kind) or arrow.is_string(kind)):
            return None
        low, high = (file["stats"][side].get(column) for side in ("minValues", "maxValues"))
        return None if low is None or high is None else (low, high)

    def read(self, file: Add, columns: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Yield the rows of a file, at once."""
        yield read_file(self._store, file, self._schema, columns or None)

    def conform(self, rows: pa.Table) -> pa.Table:
        """Return rows with the mirror's columns."""
        return conform(rows, self._schema)


class DeltaEntries(DeltaSink):
    """`cdc.merge.memory.Entries` in a Delta table.

    :param mirror: the mirror's location.
    :param mirror_id: the mirror's own id.
    :param key: the columns of its key.
    """

    def __init__(self, tables: Tables, mirror: str, mirror_id: str, key: pa.Schema) -> None:
        design = memory.design_of_entries(key, mirror_id, SchemaEvolution.NONE)
        name = f"{mirror.rstrip('/')}{SUFFIX}"
        super().__init__(tables, name, ENTRIES_GROUP, design, allow_group_overlap=True)
        self._id, self._key = mirror_id, key.names

    def read(self) -> pa.Table | None:
        """Return all entries."""
        head = self._tables.open(self._name)
        return None if head is None or not self._is_own(head) else self._read(head, list(live_files(head)))

    def add(self, entries: pa.Table) -> None:
        """Add entries; the same commit compacts many files into one."""
        memory.commit_entries(self, entries)

    def commit(self, landing: Landing) -> int:
        """Commit the entries taken."""
        adds, target, made = list(self._buffer.flush()), self._target(), list[Add]()

        def make(head: Head | None) -> list[Action]:
            check_fit(head, target, self._name)
            old = [] if head is None else list(live_files(head))
            is_own = head is not None and self._is_own(head)
            if head is None or (is_own and len(old) < memory.MOST_FILES):
                files: list[Action] = [{"add": dict(add)} for add in adds]
                return self._actions(head, target, landing, files, CREATE if head is None else APPEND)
            # Entries of a dropped mirror no longer count.
            kept = self._write_files(condensed(self._read(head, old), self._key)) if is_own else []
            made.extend(kept)
            files = [*(remove_action(add) for add in old), *({"add": dict(add)} for add in (*kept, *adds))]
            return self._actions(head, target, landing, files, OVERWRITE)

        return self._drive_and_clean(landing, make, lambda is_committed: [] if is_committed else made)

    def _is_own(self, head: Head) -> bool:
        properties: Mapping[str, str] = head.properties
        return properties.get(MIRROR_ID) == self._id

    def _read(self, head: Head, files: Sequence[Add]) -> pa.Table:
        parts = [read_file(self._store, add, head.schema) for add in files]
        return pa.concat_tables([no_rows(head.schema), *parts])
