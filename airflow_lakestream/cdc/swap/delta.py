"""Replacement of a Delta mirror's rows by a table aside, in a single version; see `cdc.swap.iceberg`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import obstore
import pyarrow as pa

from airflow_lakestream.cdc.delta import DeltaMirror, id_of
from airflow_lakestream.cdc.delta_head import DeltaHead
from airflow_lakestream.cdc.design import MirrorDesign
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
from airflow_lakestream.delta import ledger_store
from airflow_lakestream.delta.columns import delta_fields
from airflow_lakestream.delta.committing import DeltaCommit, DeltaFileChange, DeltaTarget, files_fit, ledger_allows
from airflow_lakestream.delta.head import DeltaTableHead
from airflow_lakestream.delta.storage import DeltaTableAccess
from airflow_lakestream.tables.design import TableDesign
from airflow_lakestream.tables.schema.change import SchemaChange, whole_schema
from airflow_lakestream.tables.schema.columns import fits, to_schema


class DeltaSwap:
    """`cdc.swap.exchange.TableSwap` in Delta; `aside` is the location of the table with the new rows."""

    swap: RowSwap | None = None

    def __init__(self, tables: DeltaTableAccess, table: str, mirror: DeltaMirror, aside: str) -> None:
        self._tables, self._name, self._mirror, self._aside = tables, table, mirror, aside

    def exchange(self, held: MirrorDesign, landing: Landing, key: tuple[str, ...], reach: RangeSet) -> int:
        """Replace all rows by the rows of the table aside, in a single version; return the version.

        If the key or the binary log is another, the mirror gets a new id: its old entries do not count any more. Raises
        LedgerConflict if the mirror is ahead of the new rows, and CannotSwap.

        :param held: the mirror's design until now.
        :param key: the key of the new rows.
        :param reach: the offset ranges of the new rows.
        """
        mirror, head, aside = self._mirror, self._mirror.head, self._tables.open(self._aside)
        assert head is not None, "it was looked at, and is there"
        assert aside is not None, "it was built before"
        schema = aside.schema
        other_log = is_other_log(aside.properties, held)
        if other_log or _types(head.schema, held.key or ()) != _types(schema, key):
            mirror.own_id = str(uuid4())
        design = held.with_key(key)
        notes = {**design.table.notes, MIRROR_ID: mirror.own_id, **note_for(aside.properties, design)}
        columns, target = changed(head, schema, key)
        payload = [one for one in columns if one.name not in design.table.metadata.names]
        made = TableDesign(metadata=design.table.metadata, schema=to_schema(pa.schema(payload)))
        mirror.take_design(replace(design.table, notes=notes), SchemaChange.nowhere(whole_schema(made, None)))
        has_new_id = mirror.own_id != id_of(head)
        if not has_new_id:
            self.remember(key)
        read = DeltaHead(self._tables, aside, schema)
        self.swap = RowSwap(self._name, columns, read, key, design.rows, other_log, mirror.write_files)
        version = self._exchange(self.swap, landing, reach, target)
        if has_new_id:
            # Entries of the new id replace the old ones, which count until the commit.
            self.remember(key)
        return version

    def remember(self, key: Sequence[str]) -> None:
        """Add the entries next to the table aside to the mirror's own; see `cdc.swap.exchange.TableSwap`."""
        aside, mirror = self._tables.open(self._aside), self._mirror
        assert aside is not None, "it was built before"
        read_again = mirror.entries(self._aside, id_of(aside), aside.schema, key)
        remember(read_again, mirror.entries(self._name, mirror.own_id, mirror.columns, key))

    def _exchange(self, swap: RowSwap, landing: Landing, reach: RangeSet, target: DeltaTarget) -> int:
        def not_ahead(commit: DeltaCommit, head: DeltaTableHead | None) -> None:
            if head is not None and (more := beyond(ledger_store.read_ledger(head, commit.group), landing, reach)):
                raise LedgerConflict(commit.table, more)

        def stage(head: DeltaTableHead | None) -> DeltaFileChange:
            assert head is not None, "the files fit no missing table"
            mirror = DeltaHead(self._tables, head, head.schema)
            return DeltaFileChange(mirror.files(), swap.make(mirror))

        checks = (files_fit, ledger_allows, not_ahead)
        commit = self._mirror.commit_of(landing, stage, swap.written, checks=checks, target=target)
        return self._mirror.drive(commit)


def changed(head: DeltaTableHead, new: pa.Schema, key: Collection[str]) -> tuple[pa.Schema, DeltaTarget]:
    """Return a mirror's columns with these new rows, and the target for the next version.

    Columns that no longer exist stay, NULL in all rows. Raises CannotSwap if the table is partitioned by a column whose
    type changes.

    :param new: the columns of the new rows.
    :param key: the columns of the new key.
    """
    wanted, held = {one["name"]: one for one in delta_fields(new)}, to_schema(head.schema, "table")
    fields, columns, texts = list[Mapping[str, Any]](), list[pa.Field](), list[str]()
    for one in head.fields:
        name, column = one["name"], head.schema.field(one["name"])
        other = wanted.pop(name, None)
        required = is_required(
            name, key, held=not one["nullable"], new=other is not None and not new.field(name).nullable
        )
        field = dict(one)
        if other is not None and not fits(to_schema(new).find_field(name).field_type, held.find_field(name).field_type):
            if name in head.partitions:
                raise CannotSwap(head.table, f"it is partitioned by {name}, which has another type now.")
            texts.append(f"column {name} {column.type} becomes {new.field(name).type}")
            field, column = {**one, "type": other["type"]}, new.field(name)
        fields.append({**field, "nullable": not required})
        columns.append(column.with_nullable(not required))
    for name, other in wanted.items():
        texts.append(f"add column {name} {new.field(name).type}")
        fields.append({**other, "nullable": name not in key})
        columns.append(new.field(name).with_nullable(name not in key))
    return pa.schema(columns), DeltaTarget(head, fields, head.partitions, tuple(texts))


def _types(schema: pa.Schema, key: Collection[str]) -> list[tuple[str, str]]:
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
        paths = [item["path"] for part in obstore.list(store) for item in part]
        for is_log in (False, True):
            for path in paths:
                if path.startswith("_delta_log/") is is_log:
                    obstore.delete(store, path)


def mirror_swap(
    tables: DeltaTableAccess, table: str, consumer_group: str, design: MirrorDesign, aside: str
) -> MirrorSwap:
    """Return the swap of a mirror; every table format has a function of this name, see `lakes`."""
    mirror = DeltaMirror(tables, table, consumer_group, design.table)
    return MirrorSwap(Mirror(mirror, table, design), DeltaSwap(tables, table, mirror, aside))
