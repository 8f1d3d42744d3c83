"""A mirror in an Iceberg table: the entries of deleted rows, the sink, and the swap of all rows; see `cdc.mirror`.

The commit of a swap is a landing of all offsets that the new rows cover. The table keeps its history, and gets the
columns and the key of the new rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, NestedField

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.iceberg_head import IcebergHead
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.entries import EntryFiles, MirrorEntries, compacted, entry_files
from airflow_lakestream.cdc.merge.history import merger_of
from airflow_lakestream.cdc.merge.memory import ENTRIES_GROUP, MIRROR_ID, NO_TOPIC, REPLACED, SUFFIX
from airflow_lakestream.cdc.merge.merge import MergeResult
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.pool import MergePool, MergeThreads
from airflow_lakestream.cdc.merge.repair import ChangedSinceAudit, RowRepair
from airflow_lakestream.cdc.merge.values import Borrowed
from airflow_lakestream.cdc.mirror import Mirror, StagedEventFiles
from airflow_lakestream.cdc.swap import (
    CannotSwap,
    MirrorSwap,
    RowSwap,
    add_entries,
    beyond,
    is_other_log,
    is_required,
    note_for,
)
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import LedgerConflict, StaleFiles
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg import fitness, ledger_store
from airflow_lakestream.iceberg.commit.attempt import FileRewrite
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, TableCommit, head_is, with_fit
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write import handover
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.iceberg.write.deletes import own_deletes, with_deletes
from airflow_lakestream.tables.schema.change import SchemaChange, whole_schema
from airflow_lakestream.tables.schema.columns import fits
from airflow_lakestream.tables.schema.types import arrow_schema, fields_from_arrow, type_text


def mirror_id(mirror: TableMetadata) -> str:
    """Return the mirror's id, as noted in the mirror's entries: from the properties, or else the table's UUID."""
    return mirror.properties.get(MIRROR_ID, str(mirror.table_uuid))


def entries_of(
    catalog: Catalog,
    name: str,
    mirror: Table,
    key: Sequence[str],
    lows: Mapping[int, int] | None = None,
    *,
    keeps_all: bool = False,
    further: Iterable[pa.Field] = (),
) -> MirrorEntries:
    """Return the entries of a mirror's deleted rows, in an Iceberg table.

    Entries with another id are of a dropped mirror of the same name, and do not count: the first commit takes their
    place, and the place of the columns of another key.

    :param mirror: the mirror's table, existing or staged.
    :param key: the columns of the mirror's key.
    :param lows: by partition, the first offset that the topic still has. Older entries are left out when files are
        compacted.
    :param keeps_all: whether all entries of a key are needed, not only the last one.
    :param further: the entries' columns next to key and version.
    """
    own_id, columns = mirror_id(mirror.metadata), Schema(*(mirror.schema().find_field(column) for column in key))
    # The key's types may become wider, as in the mirror's table.
    design = memory.design_of_entries(arrow_schema(columns), own_id, SchemaEvolution.WIDEN, further)
    own_name = f"{name}{SUFFIX}"
    sink = IcebergSink(catalog, own_name, ENTRIES_GROUP, design, allow_group_overlap=True)
    compact = partial(compacted, key=key, lows=lows or {}, keeps_all=keeps_all)

    def is_of_dropped_mirror(table: Table) -> bool:
        return bool(table.properties.get(MIRROR_ID) != own_id)

    def change_of_key(table: Table) -> SchemaChange | None:
        if not is_of_dropped_mirror(table):
            return None
        return swapped_columns(own_name, table.metadata, whole_schema(design, None), ())

    sink.starts_over = change_of_key

    def open_files() -> EntryFiles | None:
        # `add` uses this look, too.
        table = sink.look()
        if table is None or is_of_dropped_mirror(table):
            return None
        head = IcebergHead(table.metadata, table.metadata, table.io)
        return EntryFiles(entry_files(head, key), table.schema().as_arrow())

    return MirrorEntries(
        open_files,
        partial(memory.commit_entries, sink, partial(_commit_compacting, sink, is_of_dropped_mirror, compact)),
    )


def _commit_compacting(
    sink: IcebergSink,
    is_of_dropped_mirror: Callable[[Table], bool],
    compact: Callable[[IcebergHead], list[DataFile] | None],
    landing: Landing,
) -> int:
    """Commit the entries written to the sink; return the snapshot's id.

    In an existing table, the same commit compacts files. If the table has the entries of a dropped mirror, the commit
    removes these entries.
    """
    if sink.loaded is None:
        return sink.commit(landing)
    written: list[DataFile] = []

    # Called for each commit attempt, with the table of the attempt.
    def condense(table: Table) -> FileRewrite:
        head = IcebergHead(table.metadata, sink.target().metadata, table.io, written)
        new = () if is_of_dropped_mirror(table) else compact(head)
        return FileRewrite((), ()) if new is None else FileRewrite(with_deletes(head.files()), new)

    return sink.rewrite(landing, condense, written)


class IcebergMirror(IcebergSink):
    """`cdc.mirror.MirrorTable` in Iceberg."""

    takes_records = False
    restarts_at_commit = False
    pool: MergePool = MergeThreads()
    staging: StagedEventFiles = handover
    # Only an audit, which may lack the first events, sets it; see `cdc.merge.values.RowValues`.
    borrowed: Borrowed | None = None

    def load_notes(self) -> tuple[Mapping[str, str], pa.Schema] | None:
        """Load the table; return the properties and columns, or None if the table does not exist.

        The next `load` takes the same look: a second look could find a table that another run has just created. Raises
        the errors of `fitness` for an unfit table.
        """
        if (table := self.look(keeps_missing=True)) is None:
            return None
        fitness.check_metadata(table.metadata, self._name)
        return table.metadata.properties, arrow_schema(table.metadata.schema())

    def use_design(self, mirror: MirrorDesign) -> None:
        """Use this design of the mirror from now on."""
        self._design = mirror.table

    def start_table(self, mirror: MirrorDesign, events: pa.Table) -> None:
        """Stage a table with the columns of the first events, in place of a table staged before."""
        if self._staged is not None:
            self._staged.drop_namespace_if_made()
            self._staged = self._change = None
        self._design = mirror.table
        self.target(events)

    @property
    def is_known(self) -> bool:
        """Whether the table exists or is staged."""
        return self.is_there or self._staged is not None

    @property
    def columns(self) -> pa.Schema:
        """All columns, including additions of the next commit."""
        return self.target().schema().as_arrow()

    def grow(self, wanted: pa.Schema) -> Sequence[str]:
        """Add columns and widen types with the next commit; see `MirrorTable.grow`.

        Raises StaleFiles if the table's schema was changed meanwhile, so that a column can't get its type.
        """
        assert self._change is not None, "load has set the change"
        before = self._change.texts
        self._change, problems = self._change.and_then(fields_from_arrow(wanted, "rows"), SchemaEvolution.WIDEN)
        if problems:
            raise StaleFiles(self._name, f"the schema was changed ({'; '.join(problems)})")
        return self._change.texts if self._change.texts != before else ()

    def merge(self, batch: NewestEvents, mirror: MirrorDesign, landing: Landing) -> int:
        """Merge a batch into the table, in a single snapshot with the ledger; see `MirrorTable.merge`."""
        target, written = self.target(), list[DataFile]()
        entries = self._entries(mirror, mirror.key or (), landing.lows)
        in_columns = partial(conform, schema=target.schema())
        merger = merger_of(batch, self._name, mirror, landing, entries, self.pool, written, in_columns)
        merger.borrowed = self.borrowed
        if not self.is_there:
            merged = merger.merge(None)
            if len(merged.entries):
                # Only the run that creates the mirror may replace the entries of a dropped one.
                self._drive(self.commit_of(memory.founding()), ())
                return self.merge(batch, mirror, landing)
            # The first rows of a new mirror are committed with the table.
            self.write(merged.rows, NO_TOPIC)
            return self.commit(landing)

        # Called for each commit attempt: another head needs another decision of the merge.
        def rewrite(table: Table) -> FileRewrite:
            if mirror_id(table.metadata) != mirror_id(target.metadata):
                # Entries with the old id would remove the entries with the new id.
                raise RefusalCarrier(StaleFiles(self._name, REPLACED))
            head = IcebergHead(table.metadata, target.metadata, table.io, written, self._folder)
            merged = merger.merge(head, lambda: memory.landed_by(ledger_store.ledgers(table, self._group).values()))
            merger.remember(merged)
            return _changed_files(merged)

        return self.rewrite(landing, rewrite, written)

    def repair(self, repair: RowRepair, mirror: MirrorDesign, landing: Landing) -> int:
        """Commit a repair in a single snapshot; return the snapshot's id. Raises ChangedSinceAudit."""
        target, written = self.target(), list[DataFile]()
        entries = self._entries(mirror, repair.key, {})

        def rewrite(table: Table) -> FileRewrite:
            head = IcebergHead(table.metadata, target.metadata, table.io, written, self._folder)
            return _changed_files(repair.make(head, mirror.merge_mode, entries))

        only_audited = partial(with_fit, check=head_is(repair.head, ChangedSinceAudit))
        return self.rewrite(landing, rewrite, written, only_audited)

    def _entries(self, mirror: MirrorDesign, key: Sequence[str], lows: Mapping[int, int]) -> MirrorEntries:
        keeps_all, further = mirror.needs_all_entries, mirror.entry_columns
        return entries_of(self._catalog, self._name, self.target(), key, lows, keeps_all=keeps_all, further=further)


def _changed_files(merged: MergeResult) -> FileRewrite:
    """Return the removed and new files of a merge, with delete files."""
    new = [*merged.new, *(deletes for _, deletes in merged.deleted)]
    # A new delete file has the deletions of the earlier delete files of its data file, too: the commit removes these.
    old_deletes = [file for task, _ in merged.deleted for file in own_deletes(task)]
    return FileRewrite([*with_deletes(merged.out), *old_deletes], new)


def mirror_sink(catalog: Catalog, table: str, group: str, design: MirrorDesign, **settings: Any) -> Mirror:
    """Return the sink of a mirror in an Iceberg table.

    :param settings: keyword arguments of `IcebergSink`, such as `allow_group_overlap`.
    """
    return Mirror(IcebergMirror(catalog, table, group, design.table, **settings), table, design)


def swapping(commit: TableCommit, reach: RangeSet) -> TableCommit:
    """Return the commit as a swap: a mirror with landed events that the new rows lack is refused.

    :param reach: the offset ranges of the new rows.
    """

    def is_within_reach(commit: TableCommit, head: Table) -> None:
        ledger = ledger_store.read_ledger(head, commit.group)
        if ahead := beyond(ledger, commit.landing, reach):
            raise RefusalCarrier(LedgerConflict(ledger_store.name_of(head), ahead))

    return replace(commit, checks=(*commit.checks, is_within_reach))


class IcebergSwap:
    """`cdc.swap.TableSwap` in Iceberg; `aside` is the name of the rebuilt table, which has the new rows."""

    swap: RowSwap | None = None

    def __init__(self, catalog: Catalog, table: str, mirror: IcebergMirror, aside: str) -> None:
        self._catalog, self._name, self._mirror, self._aside = catalog, table, mirror, aside

    def exchange(self, design: MirrorDesign, landing: Landing, key: tuple[str, ...], reach: RangeSet) -> int:
        """Replace all rows by those of the rebuilt table, in a single snapshot; see `cdc.swap.TableSwap.exchange`."""
        assert self._mirror.loaded is not None, "the look before has found the mirror"
        metadata, aside = self._mirror.loaded.metadata, self._catalog.load_table(self._aside)
        changes_key = _types_of_key(metadata.schema(), design.key or ()) != _types_of_key(aside.schema(), key)
        change = swapped_columns(self._name, metadata, aside.schema(), key)
        other_log = is_other_log(aside.properties, design)
        own_id = str(uuid4()) if changes_key or other_log else mirror_id(metadata)
        new_design = design.with_key(key)
        notes = {**new_design.table.notes, **note_for(aside.properties, new_design), MIRROR_ID: own_id}
        self._mirror.take_design(replace(new_design.table, notes=notes), change)
        if own_id == mirror_id(metadata):
            # With the same id the entries come first, as in a merge: a killed run leaves no rows without entries.
            self.add_entries(key)
        aside_head, columns = IcebergHead(aside.metadata, aside.metadata, aside.io), arrow_schema(change.schema)
        self.swap = swap = RowSwap(
            self._name, columns, aside_head, key, new_design.rows, other_log, self._mirror.write_files
        )

        # Called for each commit attempt, with the table of the attempt.
        def rewrite(table: Table) -> FileRewrite:
            head = IcebergHead(table.metadata, table.metadata, table.io)
            return FileRewrite(with_deletes(head.files()), swap.make(head))

        snapshot_id = self._mirror.rewrite(landing, rewrite, swap.written, partial(swapping, reach=reach))
        if own_id != mirror_id(metadata):
            # With a new id the entries come last: adding them removes all entries of the old id, which apply until the
            # commit. After a kill in between, the next run adds the entries; see `run.resnapshot`.
            self.add_entries(key)
        return snapshot_id

    def add_entries(self, key: Sequence[str]) -> None:
        """Add the entries of the rebuilt table to the mirror's own entries; see `cdc.swap.TableSwap`."""
        new_entries = entries_of(self._catalog, self._aside, self._catalog.load_table(self._aside), key)
        add_entries(new_entries, entries_of(self._catalog, self._name, self._mirror.target(), key))


def swapped_columns(table: str, metadata: TableMetadata, new: Schema, key: Collection[str]) -> SchemaChange:
    """Return the change of a table's columns for a swap; a column keeps the field id if the new type fits.

    Columns that no longer exist stay, NULL in all rows. Raises CannotSwap if the table is partitioned or sorted by a
    column whose type changes.

    :param new: the columns of the new rows.
    """
    old_schema, ids = metadata.schema(), itertools.count(metadata.last_column_id + 1)
    new_fields = {field.name: field for field in new.fields}
    fields, texts, added = list[NestedField](), list[str](), list[NestedField]()
    for old in old_schema.fields:
        new_field = new_fields.pop(old.name, None)
        required = is_required(old.name, key, old=old.required, new=new_field is not None and new_field.required)
        if new_field is not None and not fits(new_field.field_type, old.field_type):
            fresh = _fresh_column(new_field, ids, required)
            texts.append(f"column {old.name} {type_text(old.field_type)} becomes {type_text(fresh.field_type)}")
            _check_swappable(table, metadata, old)
            added.append(fresh)
            fields.append(fresh)
            continue
        if old.required != required:
            texts.append(f"column {old.name} {'must' if required else 'need not'} have a value")
        fields.append(old.model_copy(update={"required": required}))
    for new_field in new_fields.values():
        added.append(_fresh_column(new_field, ids, new_field.name in key))
        fields.append(added[-1])
        texts.append(f"add column {new_field.name} {type_text(new_field.field_type)}")
    if not texts:
        return SchemaChange.none(metadata)
    schema_id = 1 + max(schema.schema_id for schema in metadata.schemas)
    identifiers = [field.field_id for field in fields if field.name in key]
    schema = Schema(*fields, schema_id=schema_id, identifier_field_ids=identifiers)
    last = max(metadata.last_column_id, schema.highest_field_id)
    update = {"schemas": [*metadata.schemas, schema], "current_schema_id": schema_id, "last_column_id": last}
    return SchemaChange(metadata, metadata.model_copy(update=update), tuple(texts), {-1: added} if added else {})


def _fresh_column(column: NestedField, ids: Iterator[int], required: bool) -> NestedField:
    """Return a column with new ids for the column and the fields in it."""
    field_id = next(ids)
    kind = cast(IcebergType, assign_fresh_schema_ids(column.field_type, lambda: next(ids)))
    return NestedField(field_id, column.name, kind, required=required, doc=column.doc)


def _check_swappable(table: str, metadata: TableMetadata, column: NestedField) -> None:
    """Refuse another type for a column by which the table is partitioned or sorted. Raises CannotSwap."""
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    fields = [*metadata.spec().fields, *(order.fields if order else ())]
    if column.field_id in [field.source_id for field in fields]:
        raise CannotSwap(table, f"it is partitioned or sorted by {column.name}, which has another type now.")


def _types_of_key(schema: Schema, key: Iterable[str]) -> list[tuple[str, str]]:
    """Return name and type of each column of the key that the schema has."""
    return [(name, type_text(schema.find_field(name).field_type)) for name in key if name in schema.column_names]


def aside_id(catalog: Catalog, name: str) -> str | None:
    """Return the id of a table, or None if the table does not exist."""
    try:
        return str(catalog.load_table(name).metadata.table_uuid)
    except NoSuchTableError:
        return None


def drop(catalog: Catalog, *names: str) -> None:
    """Drop existing tables with their files."""
    for name in names:
        try:
            catalog.purge_table(name)
        except NoSuchTableError:
            continue


def properties_of(catalog: Catalog, name: str) -> Mapping[str, str] | None:
    """Return a table's properties, or None if the table does not exist."""
    try:
        return dict(catalog.load_table(name).properties)
    except NoSuchTableError:
        return None


def mirror_swap(catalog: Catalog, table: str, consumer_group: str, design: MirrorDesign, aside: str) -> MirrorSwap:
    """Return the swap of a mirror; every table format has a function of this name, see `lakes`."""
    mirror = IcebergMirror(catalog, table, consumer_group, design.table)
    return MirrorSwap(Mirror(mirror, table, design), IcebergSwap(catalog, table, mirror, aside))
