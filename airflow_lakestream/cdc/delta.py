"""A mirror in a Delta table: its rows at a head, its entries of deleted rows, and its sink; see `cdc.mirror`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as arrow

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.entries import EntryFile, condensed, entries_for, is_due
from airflow_lakestream.cdc.merge.hands import Hands, Threads
from airflow_lakestream.cdc.merge.memory import ENTRIES_GROUP, MIRROR_ID, SUFFIX, row_column
from airflow_lakestream.cdc.merge.merge import Merged, Merger
from airflow_lakestream.cdc.merge.newest import Newest
from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.cdc.stops import column_became_wider
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.delta.commit.guard import check_fit, check_ledger
from airflow_lakestream.delta.commit.log import Action
from airflow_lakestream.delta.commit.protocol import check_removable
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.replace.takeout import live_files, remove_action
from airflow_lakestream.delta.sink import APPEND, CREATE, OVERWRITE, DeltaSink
from airflow_lakestream.delta.storage import DeltaStorage, Tables
from airflow_lakestream.delta.write import handover
from airflow_lakestream.delta.write.columns import conform, delta_fields
from airflow_lakestream.delta.write.files import Add, beside, delete_files, path_of, read_file
from airflow_lakestream.tables.no_rows import no_rows


class DeltaHead:
    """`cdc.merge.head.Head` of a Delta table; `schema` are the columns after the commit, `write` writes files."""

    # Deletion vectors are not written.
    delete = None

    def __init__(self, store: Any, head: Head, schema: pa.Schema, write: Callable[[pa.Table], Sequence[Add]]) -> None:
        self._store, self._head, self._schema, self.write = store, head, schema, write

    def files(self) -> Sequence[Add]:
        """Return the data files. Raises UnfitTable and CannotReplace if rows can't be taken out of them."""
        check_removable(self._head)
        return list(live_files(self._head))

    def rows_in(self, file: Add) -> int:
        """Return a file's number of rows."""
        return int(file["stats"]["numRecords"] or 0)

    # A table with deletion vectors is refused.
    live_rows_in = rows_in

    def bytes_in(self, file: Add) -> int:
        """Return a file's size in bytes."""
        return int(file["size"])

    def partition(self, file: Add) -> Hashable:
        """Return the values of a file's partition."""
        return tuple(file["partitionValues"].items())

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
    :param lows: by partition, the first offset that the topic still has.
    """

    def __init__(
        self, tables: Tables, mirror: str, mirror_id: str, key: pa.Schema, lows: Mapping[int, int] | None = None
    ) -> None:
        design = memory.design_of_entries(key, mirror_id, SchemaEvolution.NONE)
        name = f"{mirror.rstrip('/')}{SUFFIX}"
        super().__init__(tables, name, ENTRIES_GROUP, design, allow_group_overlap=True)
        self._id, self._key, self._lows = mirror_id, key.names, lows or {}

    def read(self, keys: pa.Table | None = None) -> pa.Table | None:
        """Return entries; see `cdc.merge.memory.Entries`."""
        head = self._tables.open(self._name)
        if head is None or not self._is_own(head):
            return None
        return pa.concat_tables([no_rows(head.schema), *entries_for(self._entry_files(head), self._key, keys)])

    def add(self, entries: pa.Table) -> None:
        """Add entries; the same commit compacts many files into one."""
        memory.commit_entries(self, entries)

    def commit(self, landing: Landing) -> int:
        """Commit the entries taken; once there are many files, they become few."""
        adds, target, made = list(self._buffer.flush()), self._target(), list[Add]()

        def make(head: Head | None) -> list[Action]:
            check_fit(head, target, self._name)
            held = [] if head is None else self._entry_files(head)
            is_own = head is not None and self._is_own(head)
            if head is None or (is_own and not is_due(held)):
                files: list[Action] = [{"add": dict(add)} for add in adds]
                return self._actions(head, target, landing, files, CREATE if head is None else APPEND)
            # Entries of a dropped mirror no longer count.
            kept = list[Add]()
            for part in condensed(held, self._key, self._lows) if is_own else ():
                written = self._write_files(part)
                made.extend(written)
                kept += written
            old = live_files(head)
            files = [*(remove_action(add) for add in old), *({"add": dict(add)} for add in (*kept, *adds))]
            return self._actions(head, target, landing, files, OVERWRITE)

        return self._drive_and_clean(landing, make, lambda is_committed: [] if is_committed else made)

    def _is_own(self, head: Head) -> bool:
        properties: Mapping[str, str] = head.properties
        return properties.get(MIRROR_ID) == self._id

    def _entry_files(self, head: Head) -> list[EntryFile]:
        look, first, row = (
            DeltaHead(self._store, head, head.schema, self._write_files),
            self._key[0],
            row_column(self._key),
        )

        def of(add: Add) -> EntryFile:
            rows, nulls = look.rows_in(add), add["stats"].get("nullCount") or {}
            is_plain = nulls.get(first) == 0 and nulls.get(row) == rows
            return EntryFile(rows, look.bounds(add, first), not is_plain, partial(look.read, add))

        return [of(add) for add in live_files(head)]


class DeltaMirrorSink(Mirror):
    """`cdc.mirror.Mirror` in a Delta table."""

    def __init__(self, tables: Tables, table: str, group: str, design: MirrorDesign, **settings: bool) -> None:
        super().__init__(DeltaMirror(tables, table, group, design.table, **settings), table, design)


class DeltaMirror(DeltaSink):
    """`cdc.mirror.MirrorTable` in Delta."""

    takes_records = False
    # Later events may have more columns than the first ones.
    refounds = True
    hands: Hands = Threads()
    is_shared = False
    _id = ""

    def held(self) -> tuple[Mapping[str, str], pa.Schema] | None:
        """Look at the table, and return its properties and columns. Raises UnfitTable, CannotReplace."""
        head = self._tables.open(self._name)
        self._id = uuid.uuid4().hex if head is None else head.properties.get(MIRROR_ID, head.table_id)
        if head is None:
            return None
        check_removable(head)
        return head.properties, head.schema

    def take(self, mirror: MirrorDesign) -> None:
        """Have the design of a mirror from now on."""
        self._design = replace(mirror.table, notes={**mirror.table.notes, MIRROR_ID: self._id})

    def found(self, mirror: MirrorDesign, events: pa.Table) -> None:
        """Have the columns that the first events tell."""
        self.take(mirror)
        self._found(None)

    @property
    def is_there(self) -> bool:
        """Whether there was a table at the last look, or commit."""
        return self._head is not None

    @property
    def is_known(self) -> bool:
        """Whether its columns are known."""
        return self._change is not None

    @property
    def columns(self) -> pa.Schema:
        """All columns, those included that the next commit adds."""
        return self._columns

    def grow(self, wanted: pa.Schema) -> Sequence[str]:
        """Let the next commit give the table these columns. Raises MirrorStopped for a column that became wider."""
        before = self._planned(None)
        self._change, problems = self._grown(before, wanted)
        if problems:
            raise column_became_wider(self._name, "; ".join(problems))
        return self._change.texts if self._change.texts != before.texts else ()

    def target_of_events(self, columns: pa.Schema) -> handover.Outline:
        """Return the outline of a table that is nowhere, and whose files lie below the mirror's own folder."""
        assert isinstance(self._tables, DeltaStorage), "the driver has the table itself"
        options = dict(self._tables.options)
        return handover.Outline(self._name, options, "", columns, delta_fields(columns), ())

    def events_in(self, handed: Mapping[str, Any]) -> Sequence[Add]:
        """Return the files that an executor wrote for it."""
        return self._decode(handed)

    def read_events(self, file: Add) -> pa.Table:
        """Return the events of such a file."""
        return pq.read_table(pa.BufferReader(pa.py_buffer(obstore.get(self._store, path_of(file)).bytes())))

    def delete_events(self, files: Sequence[Add]) -> object:
        """Delete such files; never raises."""
        return delete_files(self._store, files)

    def _entries(
        self,
        mirror: str,
        mirror_id: str,
        columns: pa.Schema,
        key: Sequence[str],
        lows: Mapping[int, int] | None = None,
    ) -> DeltaEntries:
        fields = pa.schema([columns.field(name) for name in key])
        return DeltaEntries(self._tables, mirror, mirror_id, fields, lows)

    def merge(self, batch: Newest, mirror: MirrorDesign, landing: Landing) -> int:
        """Merge a batch into the table, in one version with the ledger."""
        target, schema, key, kept, written = self._target(), self.columns, mirror.key or (), list[Add](), list[Add]()
        entries = self._entries(self._name, self._id, schema, key, landing.lows)
        merger = Merger(batch, self._name, key, mirror.soft_delete, entries, mirror.merge_mode, self.hands, written)
        founded: Merged | None = None

        def write(rows: pa.Table) -> Sequence[Add]:
            files = self._write_files(rows) if len(rows) else []
            written.extend(files)
            return files

        def make(head: Head | None) -> list[Action]:
            nonlocal founded
            check_fit(head, target, self._name)
            check_ledger(head, self._group, landing, allow_group_overlap=self._allow_group_overlap)
            merged = merger.merge(None if head is None else DeltaHead(self._store, head, schema, write))
            merger.remember(merged)
            founded = merged if head is None else None
            kept[:] = [*merged.new, *write(merged.rows)]
            files = [*(remove_action(add) for add in merged.out), *({"add": dict(add)} for add in kept)]
            operation = CREATE if head is None else OVERWRITE if merged.out else APPEND
            return self._actions(head, target, landing, files, operation)

        version = self._drive_and_clean(landing, make, lambda done: beside(written, kept if done else ()))
        if founded is not None:
            merger.remember_again(founded)
        return version
