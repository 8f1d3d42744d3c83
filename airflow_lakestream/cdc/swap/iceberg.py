"""Replacement of all rows of a mirror, in a single commit, by rows read again into a table aside.

The commit is a landing of all offsets that the new rows cover. The table keeps its history, and gets the columns and
the key of the new rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import IcebergType, NestedField

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.iceberg import IcebergMirror, mirror_id
from airflow_lakestream.cdc.iceberg_head import IcebergHead
from airflow_lakestream.cdc.merge.memory import MIRROR_ID
from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.cdc.swap.exchange import (
    CannotSwap,
    MirrorSwap,
    RowSwap,
    beyond,
    is_other_log,
    is_required,
    note_for,
    remember,
)
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.ports import LedgerConflict
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.iceberg.commit.attempt import FileRewrite
from airflow_lakestream.iceberg.commit.commit import RefusalCarrier, TableCommit
from airflow_lakestream.iceberg.write.deletes import with_deletes
from airflow_lakestream.tables.schema.change import SchemaChange
from airflow_lakestream.tables.schema.columns import fits
from airflow_lakestream.tables.schema.types import arrow_schema, type_text


def swapping(commit: TableCommit, reach: RangeSet) -> TableCommit:
    """Return the commit as a swap: a mirror with landed events that the new rows lack is refused.

    :param reach: the offset ranges of the new rows.
    """

    def is_within_reach(commit: TableCommit, head: Table) -> None:
        ledger = ledger_store.read_ledger(head, commit.group)
        if more := beyond(ledger, commit.landing, reach):
            raise RefusalCarrier(LedgerConflict(ledger_store.name_of(head), more))

    return replace(commit, checks=(*commit.checks, is_within_reach))


class IcebergSwap:
    """`cdc.swap.exchange.TableSwap` in Iceberg; `aside` is the name of the table with the new rows."""

    swap: RowSwap | None = None

    def __init__(self, catalog: Catalog, table: str, mirror: IcebergMirror, aside: str) -> None:
        self._catalog, self._name, self._mirror, self._aside = catalog, table, mirror, aside

    def exchange(self, held: MirrorDesign, landing: Landing, key: tuple[str, ...], reach: RangeSet) -> int:
        """Replace all rows by the rows of a staging table, in a single snapshot; return the snapshot's id.

        With another key or another binary log the mirror gets a new id, so that earlier entries of deleted rows do not
        count any more. Raises LedgerConflict if the mirror is ahead of the new rows, and CannotSwap.

        :param held: the mirror's design until now.
        :param key: the key of the new rows.
        :param reach: the offset ranges of the new rows.
        """
        assert self._mirror.loaded is not None, "it was looked at, and is there"
        metadata, aside = self._mirror.loaded.metadata, self._catalog.load_table(self._aside)
        changes_key = _key_fields(metadata.schema(), held.key or ()) != _key_fields(aside.schema(), key)
        change = changed(self._name, metadata, aside.schema(), key)
        other_log = is_other_log(aside.properties, held)
        own = str(uuid4()) if changes_key or other_log else mirror_id(metadata)
        design = held.with_key(key)
        notes = {**design.table.notes, **note_for(aside.properties, design), MIRROR_ID: own}
        self._mirror.take_design(replace(design.table, notes=notes), change)
        if own == mirror_id(metadata):
            self.remember(key)
        read, columns = IcebergHead(aside.metadata, aside.metadata, aside.io), arrow_schema(change.schema)
        self.swap = swap = RowSwap(self._name, columns, read, key, design.rows, other_log, self._mirror.write_files)

        # Called for each commit attempt, with the table of the attempt.
        def rewrite(table: Table) -> FileRewrite:
            head = IcebergHead(table.metadata, table.metadata, table.io)
            return FileRewrite(with_deletes(head.files()), swap.make(head))

        snapshot_id = self._mirror.rewrite(landing, rewrite, swap.written, partial(swapping, reach=reach))
        if own != mirror_id(metadata):
            # Entries of the new id replace the old ones, which count until the commit.
            self.remember(key)
        return snapshot_id

    def remember(self, key: Sequence[str]) -> None:
        """Add the entries next to the table aside to the mirror's own; see `cdc.swap.exchange.TableSwap`."""
        aside, target, entries = self._catalog.load_table(self._aside), self._mirror.target(), self._mirror.entries
        read_again = entries(self._aside, mirror_id(aside.metadata), aside.schema(), key)
        remember(read_again, entries(self._name, mirror_id(target.metadata), target.schema(), key))


def changed(table: str, metadata: TableMetadata, new: Schema, key: Collection[str]) -> SchemaChange:
    """Return the change to the new rows' columns; a column keeps the field id if the type still fits.

    Columns that no longer exist stay, NULL in all rows. Raises CannotSwap if the table is partitioned or sorted by a
    column whose type changes.

    :param new: the columns of the new rows.
    :param key: the columns of the new key.
    """
    held, ids = metadata.schema(), itertools.count(metadata.last_column_id + 1)
    wanted = {one.name: one for one in new.fields}
    fields, texts, added = list[NestedField](), list[str](), list[NestedField]()
    for one in held.fields:
        other = wanted.pop(one.name, None)
        required = is_required(one.name, key, held=one.required, new=other is not None and other.required)
        if other is not None and not fits(other.field_type, one.field_type):
            fresh = _fresh(other, ids, required)
            texts.append(f"column {one.name} {type_text(one.field_type)} becomes {type_text(fresh.field_type)}")
            _check_layout(table, metadata, one)
            added.append(fresh)
            fields.append(fresh)
            continue
        if one.required != required:
            texts.append(f"column {one.name} {'must' if required else 'need not'} have a value")
        fields.append(one.model_copy(update={"required": required}))
    for other in wanted.values():
        added.append(_fresh(other, ids, other.name in key))
        fields.append(added[-1])
        texts.append(f"add column {other.name} {type_text(other.field_type)}")
    if not texts:
        return SchemaChange.none(metadata)
    number = 1 + max(schema.schema_id for schema in metadata.schemas)
    identifiers = [one.field_id for one in fields if one.name in key]
    schema = Schema(*fields, schema_id=number, identifier_field_ids=identifiers)
    last = max(metadata.last_column_id, schema.highest_field_id)
    update = {"schemas": [*metadata.schemas, schema], "current_schema_id": number, "last_column_id": last}
    return SchemaChange(metadata, metadata.model_copy(update=update), tuple(texts), {-1: added} if added else {})


def _fresh(wanted: NestedField, ids: Iterator[int], required: bool) -> NestedField:
    number = next(ids)
    kind = cast(IcebergType, assign_fresh_schema_ids(wanted.field_type, lambda: next(ids)))
    return NestedField(number, wanted.name, kind, required=required, doc=wanted.doc)


def _check_layout(table: str, metadata: TableMetadata, one: NestedField) -> None:
    spec, order = metadata.spec(), metadata.sort_order_by_id(metadata.default_sort_order_id)
    sources = [*(part.source_id for part in spec.fields), *(part.source_id for part in (order.fields if order else ()))]
    if one.field_id in sources:
        raise CannotSwap(table, f"it is partitioned or sorted by {one.name}, which has another type now.")


def _key_fields(schema: Schema, key: Iterable[str]) -> list[tuple[str, str]]:
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
