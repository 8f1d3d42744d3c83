"""A mirror in a Delta table: the entries of deleted rows, and the sink; see `cdc.mirror`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from airflow_lakestream.cdc.delta_head import DeltaHead
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.audited import look_of
from airflow_lakestream.cdc.merge.entries import EntryFiles, compacted, entry_files
from airflow_lakestream.cdc.merge.hands import MergePool, MergeThreads
from airflow_lakestream.cdc.merge.history import HistoryMerger
from airflow_lakestream.cdc.merge.memory import ENTRIES_GROUP, MIRROR_ID, REPLACED, SUFFIX
from airflow_lakestream.cdc.merge.merge import BatchMerger, MergeResult
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.repair import ChangedSinceAudit, RowRepair
from airflow_lakestream.cdc.mirror import Mirror, StagedEventFiles
from airflow_lakestream.cdc.stops import column_became_wider
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.delta import handover
from airflow_lakestream.delta.columns import conform, delta_fields
from airflow_lakestream.delta.committing import DeltaCommit, DeltaFileChange, DeltaTarget, files_fit
from airflow_lakestream.delta.files import Add
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import check_removable
from airflow_lakestream.delta.sink import DeltaSink
from airflow_lakestream.delta.storage import DeltaTableAccess
from airflow_lakestream.tables.schema.change import SchemaChange, whole_schema


def id_of(mirror: DeltaTableHead) -> str:
    """Return the mirror's id, as noted in the mirror's entries: from the properties, or else the table's id."""
    return mirror.properties.get(MIRROR_ID, mirror.table_id)


class DeltaEntries(DeltaSink):
    """`cdc.merge.entries.MirrorEntries` in a Delta table.

    :param mirror: the mirror's location.
    :param mirror_id: the mirror's own id. Entries with another id are of a dropped mirror of the same name, and do not
        count.
    :param key: the columns of the mirror's key.
    :param lows: by partition, the first offset that the topic still has. Older entries are left out when files are
        compacted.
    :param every: whether all entries of a key are needed, and `further` their columns next to key and version.
    """

    def __init__(
        self,
        tables: DeltaTableAccess,
        mirror: str,
        mirror_id: str,
        key: pa.Schema,
        lows: Mapping[int, int] | None = None,
        *,
        every: bool = False,
        further: Iterable[pa.Field] = (),
    ) -> None:
        design = memory.design_of_entries(key, mirror_id, SchemaEvolution.NONE, further)
        name = f"{mirror.rstrip('/')}{SUFFIX}"
        super().__init__(tables, name, ENTRIES_GROUP, design, allow_group_overlap=True)
        self._id, self._key, self._lows, self._every = mirror_id, key.names, lows or {}, every

    def open(self) -> EntryFiles | None:
        """Return the files of the entries, or None without a table, or with only the table of a dropped mirror."""
        head = self._tables.open(self._name)
        if head is None or not self._is_own(head):
            return None
        return EntryFiles(entry_files(DeltaHead(self._tables, head, head.schema), self._key), head.schema)

    def add(self, entries: pa.Table) -> None:
        """Add entries in a separate commit; the same commit compacts many files into few."""
        memory.commit_entries(self, entries)

    def commit(self, landing: Landing) -> int:
        """Commit the taken entries; return the version.

        The same commit compacts many files into few. If the table has the entries of a dropped mirror, the commit
        removes these entries, and the columns of another key.
        """
        adds, made = list(self._buffer.flush()), list[Add]()

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            if head is None:
                return DeltaFileChange(new=adds)
            look = DeltaHead(self._tables, head, head.schema, made=made)
            # Entries of a dropped mirror no longer count.
            few = compacted(look, self._key, self._lows, every=self._every) if self._is_own(head) else []
            return DeltaFileChange(new=adds) if few is None else DeltaFileChange(look.files(), [*adds, *few])

        # `made` has the compacted files of all attempts.
        return self._drive(self._new_commit(landing, stage, made, checks=(files_fit,)))

    def change_of(self, head: DeltaTableHead) -> SchemaChange:
        """Return the table's schema change by the next commit; a dropped mirror may have had another key."""
        if self._is_own(head):
            return super().change_of(head)
        return SchemaChange.nowhere(whole_schema(self._design, None))

    def target(self) -> DeltaTarget:
        """Return the target of the next commit; it has none of the columns of a dropped mirror."""
        if self._head is None or self._is_own(self._head):
            return super().target()
        return DeltaTarget(self._head, delta_fields(self._columns), self._head.partitions)

    def _is_own(self, head: DeltaTableHead) -> bool:
        properties: Mapping[str, str] = head.properties
        return properties.get(MIRROR_ID) == self._id


class DeltaMirrorSink(Mirror):
    """`cdc.mirror.Mirror` in a Delta table.

    :param settings: keyword arguments of `DeltaSink`, such as `allow_group_overlap`.
    """

    def __init__(
        self, tables: DeltaTableAccess, table: str, group: str, design: MirrorDesign, **settings: bool
    ) -> None:
        super().__init__(DeltaMirror(tables, table, group, design.table, **settings), table, design)


class DeltaMirror(DeltaSink):
    """`cdc.mirror.MirrorTable` in Delta."""

    takes_records = False
    # A new table gets its columns from all events of its first commit, since later events may have more columns.
    refounds = True
    hands: MergePool = MergeThreads()
    staging: StagedEventFiles = handover
    _id = ""
    _is_of_records = False

    def held(self) -> tuple[Mapping[str, str], pa.Schema] | None:
        """Look at the table; return the properties and columns, or None if the table does not exist.

        The look also sets the mirror's id: a new id if the table does not exist. Raises UnfitTable and CannotReplace
        for a table whose rows can't be deleted.
        """
        head = self._tables.open(self._name)
        self._id = uuid.uuid4().hex if head is None else id_of(head)
        if head is None:
            return None
        check_removable(head)
        return head.properties, head.schema

    def take(self, mirror: MirrorDesign) -> None:
        """Use this design of the mirror from now on, with the mirror's id in the table's properties."""
        self._design = replace(mirror.table, notes={**mirror.table.notes, MIRROR_ID: self._id})
        self._is_of_records = mirror.is_of_records

    def found(self, mirror: MirrorDesign, events: pa.Table) -> None:
        """Use this design for a new table.

        The design has the columns of the first events already, so `events` is not used.
        """
        self.take(mirror)
        self._found(None)

    @property
    def is_there(self) -> bool:
        """Whether the table existed at the last look or commit."""
        return self._head is not None

    @property
    def is_known(self) -> bool:
        """Whether the columns are known, from the table or from the first events."""
        return self._change is not None

    @property
    def columns(self) -> pa.Schema:
        """All columns, including additions of the next commit."""
        return self._columns

    def grow(self, wanted: pa.Schema) -> Sequence[str]:
        """Add columns with the next commit; return the texts of all pending changes.

        If this call adds no column, the result is empty. Raises MirrorStopped if a column of the table would become
        wider.

        :param wanted: the row's columns in the events, with the types that the table needs.
        """
        before = self._planned(None)
        self._change, problems = self._grown(before, wanted)
        if problems:
            raise column_became_wider(self._name, "; ".join(problems), of_records=self._is_of_records)
        return self._change.texts if self._change.texts != before.texts else ()

    def _entries(
        self,
        mirror: str,
        mirror_id: str,
        columns: pa.Schema,
        key: Sequence[str],
        lows: Mapping[int, int] | None = None,
        *,
        every: bool = False,
        further: Iterable[pa.Field] = (),
    ) -> DeltaEntries:
        fields = pa.schema([columns.field(name) for name in key])
        return DeltaEntries(self._tables, mirror, mirror_id, fields, lows, every=every, further=further)

    def merge(self, batch: NewestEvents, mirror: MirrorDesign, landing: Landing) -> int:
        """Merge a batch into the table, in a single version with the ledger; return the version.

        The entries of deleted rows are committed before, to their own table. Raises MirrorStopped, ValueMissing,
        ChecksFailed, and the errors of a commit.
        """
        (columns, _, order), key, written = self._layout(), mirror.key or (), list[Add]()
        every, further = mirror.needs_all_entries, mirror.entry_columns
        entries = self._entries(self._name, self._id, columns, key, landing.lows, every=every, further=further)
        look = look_of(mirror.auditor, self._name, landing, partial(conform, schema=columns))
        make_merger = HistoryMerger if mirror.rows.keeps_versions else BatchMerger
        merger = make_merger(batch, self._name, key, mirror.rows, entries, mirror.merge_mode, self.hands, written, look)
        founded: MergeResult | None = None

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            # Another head needs another decision of the merge.
            nonlocal founded
            at = DeltaHead(self._tables, head, columns, order, written, self._folder) if head is not None else None
            merged = merger.merge(at)
            merger.remember(merged)
            # Set only if this attempt creates the table; see `BatchMerger.remember_again`.
            founded = merged if head is None else None
            rest = self._write_noting(written, merged.rows) if len(merged.rows) else []
            return DeltaFileChange(merged.out, [*merged.new, *rest])

        # `written` has the files of all attempts.
        commit = self._new_commit(landing, stage, written)
        version = self._drive(replace(commit, checks=(*commit.checks, self._check_same)))
        if founded is not None:
            merger.remember_again(founded)
        return version

    def repair(self, repair: RowRepair, mirror: MirrorDesign, landing: Landing) -> int:
        """Commit a repair in a single version; return the version. Raises ChangedSinceAudit."""
        (columns, _, order), written = self._layout(), list[Add]()
        every, further = mirror.needs_all_entries, mirror.entry_columns
        entries = self._entries(self._name, self._id, columns, repair.key, every=every, further=further)

        def is_same(_: DeltaCommit, head: DeltaTableHead | None) -> None:
            if head is None or head.version != repair.head:
                raise ChangedSinceAudit(self._name)

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            assert head is not None, "it is the audited one"
            at = DeltaHead(self._tables, head, columns, order, written, self._folder)
            made = repair.make(at, mirror.merge_mode, entries)
            return DeltaFileChange(made.out, made.new)

        return self._drive(self._new_commit(landing, stage, written, checks=(is_same, files_fit)))

    def _check_same(self, _: DeltaCommit, head: DeltaTableHead | None) -> None:
        if head is not None and id_of(head) != self._id:
            # Its entries are of the new id; entries of the old one would remove these.
            raise StaleFiles(self._name, REPLACED)
