"""A mirror in a Delta table: the entries of deleted rows, the sink, and the swap of all rows; see `cdc.mirror`."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import obstore
import pyarrow as pa

from airflow_lakestream.cdc.delta_head import DeltaHead
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.merge import memory
from airflow_lakestream.cdc.merge.entries import EntryFiles, MirrorEntries, compacted, entry_files
from airflow_lakestream.cdc.merge.history import merger_of
from airflow_lakestream.cdc.merge.memory import ENTRIES_GROUP, MIRROR_ID, REPLACED, SUFFIX
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.pool import MergePool, MergeThreads
from airflow_lakestream.cdc.merge.repair import ChangedSinceAudit, RowRepair
from airflow_lakestream.cdc.mirror import Mirror, StagedEventFiles
from airflow_lakestream.cdc.stops import column_became_wider
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
from airflow_lakestream.delta import handover, ledger_store
from airflow_lakestream.delta.columns import conform, delta_fields
from airflow_lakestream.delta.committing import DeltaCommit, DeltaFileChange, DeltaTarget, files_fit, ledger_allows
from airflow_lakestream.delta.files import Add
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.protocol import check_removable
from airflow_lakestream.delta.sink import DeltaSink
from airflow_lakestream.delta.storage import DeltaTableAccess
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.change import SchemaChange, whole_schema
from airflow_lakestream.tables.schema.columns import fits, to_schema


def id_of(mirror: DeltaTableHead) -> str:
    """Return the mirror's id, as noted in the mirror's entries: from the properties, or else the table's id."""
    return mirror.properties.get(MIRROR_ID, mirror.table_id)


def entries_of(
    tables: DeltaTableAccess,
    mirror: str,
    own_id: str,
    columns: pa.Schema,
    key: Sequence[str],
    lows: Mapping[int, int] | None = None,
    *,
    keeps_all: bool = False,
    further: Iterable[pa.Field] = (),
) -> MirrorEntries:
    """Return the entries of a mirror's deleted rows, in a Delta table.

    If the table has the entries of a dropped mirror, the first commit takes the place of these entries, and of the
    columns of another key.

    See `cdc.iceberg.entries_of` for further parameters.

    :param mirror: the mirror's location.
    :param own_id: the mirror's own id. Entries with another id do not count.
    :param columns: the mirror's columns; `key` are the names of those of the key.
    """
    of_key = pa.schema([columns.field(name) for name in key])
    design = memory.design_of_entries(of_key, own_id, SchemaEvolution.NONE, further)
    name = f"{mirror.rstrip('/')}{SUFFIX}"
    sink = DeltaSink(tables, name, ENTRIES_GROUP, design, allow_group_overlap=True)
    sink.starts_over = lambda head: head.properties.get(MIRROR_ID) != own_id
    compact = partial(compacted, key=key, lows=lows or {}, keeps_all=keeps_all)

    def open_files() -> EntryFiles | None:
        head = tables.open(name)
        if head is None or sink.starts_over(head):
            return None
        return EntryFiles(entry_files(DeltaHead(tables, head, head.schema), key), head.schema)

    def commit(landing: Landing) -> int:
        # `written` gets the compacted files of all commit attempts.
        new_files, written = sink.files, list[Add]()

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            if head is None:
                return DeltaFileChange(new=new_files)
            entries_head = DeltaHead(tables, head, head.schema, made=written)
            # Entries of a dropped mirror no longer count.
            compacted_files = [] if sink.starts_over(head) else compact(entries_head)
            if compacted_files is None:
                return DeltaFileChange(new=new_files)
            return DeltaFileChange(entries_head.files(), [*new_files, *compacted_files])

        return sink.drive(sink.commit_of(landing, stage, written, checks=(files_fit,)))

    return MirrorEntries(open_files, partial(memory.commit_entries, sink, commit))


class DeltaMirror(DeltaSink):
    """`cdc.mirror.MirrorTable` in Delta."""

    takes_records = False
    # A new table gets its columns from all events of its first commit, since later events may have more columns.
    restarts_at_commit = True
    pool: MergePool = MergeThreads()
    staging: StagedEventFiles = handover
    # The mirror's id, as noted in the mirror's entries.
    own_id = ""
    _is_of_records = False

    def load_notes(self) -> tuple[Mapping[str, str], pa.Schema] | None:
        """Look at the table; return the properties and columns, or None if the table does not exist.

        Sets also the mirror's id: a new id if the table does not exist. The next `load` uses the same look: a second
        look could find a table that another run has just created. Raises UnfitTable and CannotReplace for a table whose
        rows can't be deleted.
        """
        (head,) = self._look = (self._tables.open(self._name),)
        self.own_id = uuid.uuid4().hex if head is None else id_of(head)
        if head is None:
            return None
        check_removable(head)
        return head.properties, head.schema

    def use_design(self, mirror: MirrorDesign) -> None:
        """Use this design of the mirror from now on, with the mirror's id in the table's properties."""
        self._design = replace(mirror.table, notes={**mirror.table.notes, MIRROR_ID: self.own_id})
        self._is_of_records = mirror.is_of_records

    def start_table(self, mirror: MirrorDesign, events: pa.Table) -> None:
        """Use this design for a new table.

        The design has the columns of the first events already, so `events` is not used.
        """
        self.use_design(mirror)
        self._start_columns(None)

    @property
    def is_known(self) -> bool:
        """Whether the columns are known, from the table or from the first events."""
        return self._change is not None

    def grow(self, wanted: pa.Schema) -> Sequence[str]:
        """Add columns with the next commit; see `MirrorTable.grow`. Raises MirrorStopped for a wider column."""
        before = self._planned(None)
        self._change, problems = self._grown(before, wanted)
        if problems:
            raise column_became_wider(self._name, "; ".join(problems), of_records=self._is_of_records)
        return self._change.texts if self._change.texts != before.texts else ()

    def merge(self, batch: NewestEvents, mirror: MirrorDesign, landing: Landing) -> int:
        """Merge a batch into the table, in a single version with the ledger; see `MirrorTable.merge`."""
        columns, _, order = self._layout()
        # Gets the files of all commit attempts.
        written = list[Add]()
        entries = self._entries(mirror, mirror.key or (), landing.lows)
        in_columns = partial(conform, schema=columns)
        merger = merger_of(batch, self._name, mirror, landing, entries, self.pool, written, in_columns)
        # The first rows of a new mirror are committed with the table.
        first = merger.merge(None) if self.head is None else None
        if first is not None and len(first.entries):
            # Only the run that creates the mirror may replace the entries of a dropped one.
            self.drive(self.commit_of(memory.founding(), lambda _: DeltaFileChange()))
            return self.merge(batch, mirror, landing)

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            if head is None:
                assert first is not None, "the files fit no missing table"
                return DeltaFileChange(new=self.write_noting(written, first.rows) if len(first.rows) else [])
            # Another head needs another decision of the merge.
            mirror_head = DeltaHead(self._tables, head, columns, order, written, self._folder)
            merged = merger.merge(
                mirror_head, lambda: memory.landed_by(ledger_store.ledgers(head, self._group).values())
            )
            merger.remember(merged)
            return DeltaFileChange(merged.out, merged.new)

        commit = self.commit_of(landing, stage, written)
        return self.drive(replace(commit, checks=(*commit.checks, self._check_id)))

    def repair(self, repair: RowRepair, mirror: MirrorDesign, landing: Landing) -> int:
        """Commit a repair in a single version; return the version. Raises ChangedSinceAudit."""
        columns, _, order = self._layout()
        written = list[Add]()
        entries = self._entries(mirror, repair.key, {})

        def is_audited(_: DeltaCommit, head: DeltaTableHead | None) -> None:
            if head is None or head.version != repair.head:
                raise ChangedSinceAudit(self._name)

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            assert head is not None, "is_audited has refused a missing table"
            result = repair.make(
                DeltaHead(self._tables, head, columns, order, written, self._folder), mirror.merge_mode, entries
            )
            return DeltaFileChange(result.out, result.new)

        return self.drive(self.commit_of(landing, stage, written, checks=(is_audited, files_fit)))

    def _entries(self, mirror: MirrorDesign, key: Sequence[str], lows: Mapping[int, int]) -> MirrorEntries:
        keeps_all, further = mirror.needs_all_entries, mirror.entry_columns
        return entries_of(
            self._tables, self._name, self.own_id, self.columns, key, lows, keeps_all=keeps_all, further=further
        )

    def _check_id(self, _: DeltaCommit, head: DeltaTableHead | None) -> None:
        """Refuse a head with another id than at the look: all rows were replaced meanwhile. Raises StaleFiles."""
        if head is not None and id_of(head) != self.own_id:
            # Entries with the old id would remove the entries with the new id.
            raise StaleFiles(self._name, REPLACED)


def mirror_sink(tables: DeltaTableAccess, table: str, group: str, design: MirrorDesign, **settings: Any) -> Mirror:
    """Return the sink of a mirror in a Delta table; `settings` are keyword arguments of `DeltaSink`."""
    return Mirror(DeltaMirror(tables, table, group, design.table, **settings), table, design)


class DeltaSwap:
    """`cdc.swap.TableSwap` in Delta; `aside` is the location of the rebuilt table, which has the new rows."""

    swap: RowSwap | None = None

    def __init__(self, tables: DeltaTableAccess, table: str, mirror: DeltaMirror, aside: str) -> None:
        self._tables, self._name, self._mirror, self._aside = tables, table, mirror, aside

    def exchange(self, design: MirrorDesign, landing: Landing, key: tuple[str, ...], reach: RangeSet) -> int:
        """Replace all rows by those of the rebuilt table, in a single version; see `cdc.swap.TableSwap.exchange`."""
        mirror, head, aside = self._mirror, self._mirror.head, self._tables.open(self._aside)
        assert head is not None, "the look before has found the mirror"
        assert aside is not None, "the table aside was built before"
        schema = aside.schema
        # Entries of another log, or with other types of key, no longer apply: a new id leaves them behind.
        other_log = is_other_log(aside.properties, design)
        if other_log or _types_of_key(head.schema, design.key or ()) != _types_of_key(schema, key):
            mirror.own_id = str(uuid.uuid4())
        new_design = design.with_key(key)
        notes = {**new_design.table.notes, MIRROR_ID: mirror.own_id, **note_for(aside.properties, new_design)}
        columns, target = swapped_columns(head, schema, key)
        payload = [column for column in columns if column.name not in new_design.table.metadata.names]
        new_table = TableDesign(metadata=new_design.table.metadata, schema=to_schema(pa.schema(payload)))
        mirror.take_design(
            replace(new_design.table, notes=notes), SchemaChange.without_catalog(whole_schema(new_table, None))
        )
        has_new_id = mirror.own_id != id_of(head)
        if not has_new_id:
            # With the same id the entries come first, as in a merge: a killed run leaves no rows without entries.
            self.add_entries(key)
        aside_head = DeltaHead(self._tables, aside, schema)
        self.swap = RowSwap(self._name, columns, aside_head, key, new_design.rows, other_log, mirror.write_files)
        version = self._exchange(self.swap, landing, reach, target)
        if has_new_id:
            # With a new id the entries come last: adding them removes all entries of the old id, which apply until the
            # commit. After a kill in between, the next run adds the entries; see `run.resnapshot`.
            self.add_entries(key)
        return version

    def add_entries(self, key: Sequence[str]) -> None:
        """Add the entries of the rebuilt table to the mirror's own entries; see `cdc.swap.TableSwap`."""
        aside, mirror = self._tables.open(self._aside), self._mirror
        assert aside is not None, "the table aside was built before"
        read_again = entries_of(self._tables, self._aside, id_of(aside), aside.schema, key)
        add_entries(read_again, entries_of(self._tables, self._name, mirror.own_id, mirror.columns, key))

    def _exchange(self, swap: RowSwap, landing: Landing, reach: RangeSet, target: DeltaTarget) -> int:
        """Commit the swap's rows; return the version. Raises LedgerConflict if the mirror is ahead of the new rows."""

        def is_within_reach(commit: DeltaCommit, head: DeltaTableHead | None) -> None:
            if head is not None and (ahead := beyond(ledger_store.read_ledger(head, commit.group), landing, reach)):
                raise LedgerConflict(commit.table, ahead)

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            assert head is not None, "the files fit no missing table"
            mirror = DeltaHead(self._tables, head, head.schema)
            return DeltaFileChange(mirror.files(), swap.make(mirror))

        checks = (files_fit, ledger_allows, is_within_reach)
        commit = self._mirror.commit_of(landing, stage, swap.written, checks=checks, target=target)
        return self._mirror.drive(commit)


def swapped_columns(head: DeltaTableHead, new: pa.Schema, key: Collection[str]) -> tuple[pa.Schema, DeltaTarget]:
    """Return a mirror's columns after the exchange of its rows, and the target for the next version.

    Columns that no longer exist stay, NULL in all rows. Raises CannotSwap if the table is partitioned by a column whose
    type changes.

    :param new: the columns of the new rows.
    """
    new_fields = {field["name"]: field for field in delta_fields(new)}
    old_types, new_types = to_schema(head.schema, "table"), to_schema(new)
    fields, columns, texts = list[Mapping[str, Any]](), list[pa.Field](), list[str]()
    for old_field in head.fields:
        name, column = old_field["name"], head.schema.field(old_field["name"])
        new_field = new_fields.pop(name, None)
        is_new_required = new_field is not None and not new.field(name).nullable
        required = is_required(name, key, old=not old_field["nullable"], new=is_new_required)
        field = dict(old_field)
        if new_field is not None and not fits(
            new_types.find_field(name).field_type, old_types.find_field(name).field_type
        ):
            if name in head.partitions:
                raise CannotSwap(head.table, f"it is partitioned by {name}, which has another type now.")
            texts.append(f"column {name} {column.type} becomes {new.field(name).type}")
            field, column = {**old_field, "type": new_field["type"]}, new.field(name)
        fields.append({**field, "nullable": not required})
        columns.append(column.with_nullable(not required))
    for name, new_field in new_fields.items():
        texts.append(f"add column {name} {new.field(name).type}")
        fields.append({**new_field, "nullable": name not in key})
        columns.append(new.field(name).with_nullable(name not in key))
    return pa.schema(columns), DeltaTarget(head, fields, head.partitions, tuple(texts))


def _types_of_key(schema: pa.Schema, key: Collection[str]) -> list[tuple[str, str]]:
    """Return name and type of each column of the key that the schema has."""
    return [(name, str(schema.field(name).type)) for name in key if name in schema.names]


def aside_id(tables: DeltaTableAccess, name: str) -> str | None:
    """Return the id of a table, or None if the table does not exist."""
    head = tables.open(name)
    return None if head is None else head.table_id


def properties_of(tables: DeltaTableAccess, name: str) -> Mapping[str, str] | None:
    """Return a table's properties, or None if the table does not exist."""
    head = tables.open(name)
    return None if head is None else head.properties


def drop(tables: DeltaTableAccess, *names: str) -> None:
    """Delete existing tables, each log last, to allow another try after an interruption."""
    for name in names:
        if tables.open(name) is None:
            continue
        store = tables.store(name)
        paths = [item["path"] for page in obstore.list(store) for item in page]
        for path in sorted(paths, key=lambda path: path.startswith("_delta_log/")):
            obstore.delete(store, path)


def mirror_swap(
    tables: DeltaTableAccess, table: str, consumer_group: str, design: MirrorDesign, aside: str
) -> MirrorSwap:
    """Return the swap of a mirror; every table format has a function of this name, see `lakes`."""
    mirror = DeltaMirror(tables, table, consumer_group, design.table)
    return MirrorSwap(Mirror(mirror, table, design), DeltaSwap(tables, table, mirror, aside))
