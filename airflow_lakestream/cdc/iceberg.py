"""A mirror in an Iceberg table: the entries of deleted rows, and the sink; see `cdc.mirror`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.iceberg_head import IcebergHead
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.audited import look_of
from airflow_lakestream.cdc.merge.entries import EntryFiles, compacted, entry_files
from airflow_lakestream.cdc.merge.hands import MergePool, MergeThreads
from airflow_lakestream.cdc.merge.history import HistoryMerger
from airflow_lakestream.cdc.merge.memory import ENTRIES_GROUP, MIRROR_ID, NO_TOPIC, REPLACED, SUFFIX
from airflow_lakestream.cdc.merge.merge import BatchMerger, MergeResult
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.repair import ChangedSinceAudit, RowRepair
from airflow_lakestream.cdc.merge.values import Borrowed
from airflow_lakestream.cdc.mirror import Mirror, StagedEventFiles
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.iceberg import fitness
from airflow_lakestream.iceberg.commit.attempt import FileRewrite
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, head_is, with_fit
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write import handover
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.iceberg.write.deletes import own_deletes, with_deletes
from airflow_lakestream.tables.schema.types import arrow_schema, fields_from_arrow


def mirror_id(mirror: TableMetadata) -> str:
    """Return the mirror's id, as noted in the mirror's entries: from the properties, or else the table's UUID."""
    return mirror.properties.get(MIRROR_ID, str(mirror.table_uuid))


class IcebergEntries(IcebergSink):
    """`cdc.merge.entries.MirrorEntries` in an Iceberg table, committed under the commit guard.

    :param mirror: the mirror's name.
    :param mirror_id: the mirror's own id. Entries with another id are of a dropped mirror of the same name, and do not
        count.
    :param key: the columns of the mirror's key.
    :param lows: by partition, the first offset that the topic still has. Older entries are left out when files are
        compacted.
    :param every: whether all entries of a key are needed, and `further` their columns next to key and version.
    """

    def __init__(
        self,
        catalog: Catalog,
        mirror: str,
        mirror_id: str,
        key: pa.Schema,
        lows: Mapping[int, int] | None = None,
        *,
        every: bool = False,
        further: Iterable[pa.Field] = (),
    ) -> None:
        # The key's types may become wider, as in the mirror's table.
        design = memory.design_of_entries(key, mirror_id, SchemaEvolution.WIDEN, further)
        super().__init__(catalog, f"{mirror}{SUFFIX}", ENTRIES_GROUP, design, allow_group_overlap=True)
        self._id, self._key, self._lows, self._every = mirror_id, key.names, lows or {}, every

    def open(self) -> EntryFiles | None:
        """Return the files of the entries, or None without a table, or with only the table of a dropped mirror.

        The table is kept for the next `add`, which need not load it again.
        """
        self._loaded = table = self._there()
        if table is None or not self._is_own(table):
            return None
        head = IcebergHead(table.metadata, table.metadata, table.io)
        return EntryFiles(entry_files(head, self._key), table.schema().as_arrow())

    def add(self, entries: pa.Table) -> None:
        """Add entries in a separate commit; the same commit compacts many files into few.

        A table with the entries of a dropped mirror is dropped first.
        """
        self._loaded = there = self._loaded or self._there()
        if there is not None and not self._is_own(there):
            # The entries are of a dropped mirror.
            self._catalog.drop_table(self._name)
            self._loaded = None
        memory.commit_entries(self, entries)

    def commit(self, landing: Landing) -> int:
        """Commit the taken entries; return the snapshot's id.

        In an existing table, the same commit compacts many files into few.
        """
        if self._table is None:
            return super().commit(landing)
        written: list[DataFile] = []

        # Called for each commit attempt, with the table of the attempt.
        def condense(table: Table) -> FileRewrite:
            head = IcebergHead(table.metadata, self._target(None).metadata, table.io, written)
            new = compacted(head, self._key, self._lows, every=self._every)
            return FileRewrite((), ()) if new is None else FileRewrite(with_deletes(head.files()), new)

        return self._rewrite(landing, condense, written)

    def _there(self) -> Table | None:
        try:
            return fitness.load_table(self._catalog, self._name)
        except NoSuchTableError:
            return None

    def _is_own(self, table: Table) -> bool:
        return table.properties.get(MIRROR_ID) == self._id


class MirrorSink(Mirror):
    """`cdc.mirror.Mirror` in an Iceberg table.

    :param settings: keyword arguments of `IcebergSink`, such as `allow_group_overlap`.
    """

    def __init__(self, catalog: Catalog, table: str, group: str, design: MirrorDesign, **settings: bool) -> None:
        super().__init__(IcebergMirror(catalog, table, group, design.table, **settings), table, design)


class IcebergMirror(IcebergSink):
    """`cdc.mirror.MirrorTable` in Iceberg."""

    takes_records = False
    refounds = False
    hands: MergePool = MergeThreads()
    staging: StagedEventFiles = handover
    # Only an audit, which may lack the first events, sets it; see `cdc.merge.values.RowValues`.
    borrowed: Borrowed | None = None

    def held(self) -> tuple[Mapping[str, str], pa.Schema] | None:
        """Load the table; return the properties and columns, or None if the table does not exist.

        The table is kept for the next `load`. Raises the errors of `fitness` for an unfit table.
        """
        self._loaded = None
        try:
            self._loaded = fitness.load_table(self._catalog, self._name)
        except NoSuchTableError:
            return None
        fitness.check_metadata(self._loaded.metadata, self._name)
        return self._loaded.metadata.properties, arrow_schema(self._loaded.metadata.schema())

    def take(self, mirror: MirrorDesign) -> None:
        """Use this design of the mirror from now on."""
        self._design = mirror.table

    def found(self, mirror: MirrorDesign, events: pa.Table) -> None:
        """Stage a table with the columns of the first events, in place of a table staged before."""
        if self._staged is not None:
            self._staged.drop_namespace_if_made()
            self._staged = self._change = None
        self._design = mirror.table
        self._target(events)

    @property
    def is_there(self) -> bool:
        """Whether the table existed at the last look or commit."""
        return self._table is not None

    @property
    def is_known(self) -> bool:
        """Whether the table exists or is staged."""
        return self.is_there or self._staged is not None

    @property
    def columns(self) -> pa.Schema:
        """All columns, including additions of the next commit."""
        return self._target(None).schema().as_arrow()

    def grow(self, wanted: pa.Schema) -> Sequence[str]:
        """Add columns and widen types with the next commit; return the texts of all pending changes.

        If this call adds no change, the result is empty. Raises StaleFiles if the table's schema was changed meanwhile,
        so that a column can't get its type.

        :param wanted: the row's columns in the events, with the types that the table needs.
        """
        assert self._change is not None, "it was loaded"
        before = self._change.texts
        self._change, problems = self._change.and_then(fields_from_arrow(wanted, "rows"), SchemaEvolution.WIDEN)
        if problems:
            raise StaleFiles(self._name, f"the schema was changed ({'; '.join(problems)})")
        return self._change.texts if self._change.texts != before else ()

    def merge(self, batch: NewestEvents, mirror: MirrorDesign, landing: Landing) -> int:
        """Merge a batch into the table, in a single snapshot with the ledger; return the snapshot's id.

        The entries of deleted rows are committed before, to their own table. Raises MirrorStopped, ValueMissing,
        ChecksFailed, and the errors of a commit.
        """
        target, key = self._target(None), mirror.key or ()
        every, further = mirror.needs_all_entries, mirror.entry_columns
        name, own = self._name, mirror_id(target.metadata)
        entries = self._entries(name, own, target.schema(), key, landing.lows, every=every, further=further)
        written = list[DataFile]()
        look = look_of(mirror.auditor, self._name, landing, partial(conform, schema=target.schema()))
        make_merger = HistoryMerger if mirror.rows.keeps_versions else BatchMerger
        merger = make_merger(batch, self._name, key, mirror.rows, entries, mirror.merge_mode, self.hands, written, look)
        merger.borrowed = self.borrowed
        if not self.is_there:
            # The first rows of a new mirror are committed with the table.
            merged = merger.merge(None)
            if self._catalog.table_exists(self._name):
                # Adding entries now would drop the other mirror's entries, as if that mirror were dropped.
                raise StaleFiles(self._name, "another run created the table")
            merger.remember(merged)
            self.write(merged.rows, NO_TOPIC)
            done = self.commit(landing)
            merger.remember_again(merged)
            return done

        # Called for each commit attempt: another head needs another decision of the merge.
        def rewrite(table: Table) -> FileRewrite:
            if mirror_id(table.metadata) != mirror_id(target.metadata):
                # Its entries are of the new id; entries of the old one would remove these.
                raise RefusalCarrier(StaleFiles(self._name, REPLACED))
            merged = merger.merge(IcebergHead(table.metadata, target.metadata, table.io, written, self._folder))
            merger.remember(merged)
            return _changed_files(merged)

        return self._rewrite(landing, rewrite, written)

    def repair(self, repair: RowRepair, mirror: MirrorDesign, landing: Landing) -> int:
        """Commit a repair in a single snapshot; return the snapshot's id. Raises ChangedSinceAudit."""
        target, written = self._target(None), list[DataFile]()
        every, further = mirror.needs_all_entries, mirror.entry_columns
        own, columns = mirror_id(target.metadata), target.schema()
        entries = self._entries(self._name, own, columns, repair.key, every=every, further=further)

        def rewrite(table: Table) -> FileRewrite:
            head = IcebergHead(table.metadata, target.metadata, table.io, written, self._folder)
            return _changed_files(repair.make(head, mirror.merge_mode, entries))

        same = partial(with_fit, check=head_is(repair.head, ChangedSinceAudit))
        return self._rewrite(landing, rewrite, written, same)

    def _entries(
        self,
        mirror: str,
        mirror_id: str,
        columns: Schema,
        key: Sequence[str],
        lows: Mapping[int, int] | None = None,
        *,
        every: bool = False,
        further: Iterable[pa.Field] = (),
    ) -> IcebergEntries:
        fields = arrow_schema(Schema(*(columns.find_field(name) for name in key)))
        return IcebergEntries(self._catalog, mirror, mirror_id, fields, lows, every=every, further=further)


def _changed_files(merged: MergeResult) -> FileRewrite:
    """Return the removed and new files of a merge, with delete files."""
    new = [*merged.new, *(deletes for _, deletes in merged.deleted)]
    # A new delete file has the deletions of the earlier delete files of its data file, too: the commit removes these.
    deletes = [one for task, _ in merged.deleted for one in own_deletes(task)]
    return FileRewrite([*with_deletes(merged.out), *deletes], new)
