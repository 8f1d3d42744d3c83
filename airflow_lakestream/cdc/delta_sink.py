"""A mirror in a Delta table as a sink: as `cdc.sink`, with Delta's compare-and-set."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_lakestream.cdc.checks import follow
from airflow_lakestream.cdc.columns import OF_EVENTS
from airflow_lakestream.cdc.delta import DeltaEntries, DeltaHead
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.decoder import event_columns
from airflow_lakestream.cdc.events.provenance import expanded
from airflow_lakestream.cdc.events.taken import TakenEvents, columns_of_events
from airflow_lakestream.cdc.events.widening import grown
from airflow_lakestream.cdc.merge.memory import MIRROR_ID
from airflow_lakestream.cdc.merge.merge import Merger
from airflow_lakestream.cdc.merge.newest import Newest
from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.ports import TableState
from airflow_lakestream.delta.commit.guard import check_fit, check_ledger
from airflow_lakestream.delta.commit.log import Action
from airflow_lakestream.delta.commit.protocol import NTZ_FEATURE, check_removable
from airflow_lakestream.delta.head import Head
from airflow_lakestream.delta.replace.takeout import remove_action
from airflow_lakestream.delta.sink import APPEND, CREATE, OVERWRITE, DeltaSink
from airflow_lakestream.delta.storage import DeltaStorage, Tables
from airflow_lakestream.delta.write import handover
from airflow_lakestream.delta.write.columns import delta_fields
from airflow_lakestream.delta.write.files import Add, beside, delete_files, path_of
from airflow_lakestream.exceptions import InvalidArgument, LakestreamError, Terminal
from airflow_lakestream.lakes.delta_design import delta_design

log = logging.getLogger(__name__)


class ColumnBecameWider(LakestreamError, Terminal):
    """The database's table has a column of another type by now, which the Delta table can't be given."""

    def __init__(self, table: str, problems: str) -> None:
        super().__init__(
            f"{table}: the database has changed a type ({problems}), and types of a Delta table are not changed here. "
            "Nothing was landed. Drop the mirror, and let Debezium read the table again with a snapshot; or give the "
            "wider type to the column with ALTER TABLE, where all readers know type widening."
        )


class DeltaMirrorSink(DeltaSink):
    """`core.ports.Sink` of a mirror in a Delta table. Rows written are change events; see `cdc.events.decoder`."""

    takes_records = False

    def __init__(
        self,
        tables: Tables,
        table: str,
        consumer_group: str,
        design: MirrorDesign,
        *,
        allow_group_overlap: bool = False,
    ) -> None:
        first = delta_design(design.table)
        super().__init__(tables, table, consumer_group, first, allow_group_overlap=allow_group_overlap)
        self._asked = self._mirror = design
        self._taken = TakenEvents()
        self._id = ""

    def load(self, run_id: str) -> TableState:
        """Look at the table anew; the schema is that of the events to decode."""
        head = self._tables.open(self._name)
        self._id = uuid.uuid4().hex if head is None else head.properties.get(MIRROR_ID, head.table_id)
        self._take(self._asked if head is None else self._asked.of_table(self._name, head.properties, head.schema))
        if head is not None:
            check_removable(head)
        state = super().load(run_id)
        return state if state.schema is None else replace(state, schema=event_columns(state.schema))

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Take events for the next commit."""
        rows = expanded(rows)
        self._taken.rows.append(rows)
        if self._fit is None:
            self._found(rows)

    def outline(self) -> handover.Outline:
        """Return what executors need to write events; they lie below the mirror's own folder."""
        assert isinstance(self._tables, DeltaStorage), "the driver has the table itself"
        columns = self._columns_of_events()
        # Nothing of it is committed: events may have whatever there is.
        features = frozenset({NTZ_FEATURE})
        options = dict(self._tables.options)
        return handover.Outline(self._name, options, "", columns, delta_fields(columns), (), features)

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take events that an executor wrote."""
        self._taken.files += files["files"]

    def commit(self, landing: Landing) -> int:
        """Merge what the events taken come to, in one version with the ledger."""
        events = self._taken.joined(self._read_events, self._columns_of_events(), self._name)
        if self._head is None:
            # Later events may have more columns than the first ones; and the mirror's own come with its key.
            self._found(events)
        mirror, batch = follow(self._mirror, events, self._name, landing)
        self._take(mirror)
        self._grow(events.schema)
        version = self._merge(batch, mirror.key or (), landing)
        delete_files(self._store, self._taken.files)
        self._taken.forget()
        return version

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Refuse: rows of a mirror are no records."""
        raise InvalidArgument("replace", f"{self._name} is a mirror: its rows are states, not records.")

    def discard(self) -> None:
        """Delete what was taken since the last commit; never raises."""
        if self._taken.files:
            delete_files(self._store, self._taken.files)
        self._taken.forget()
        super().discard()

    def _merge(self, batch: Newest, key: tuple[str, ...], landing: Landing) -> int:
        assert self._fit is not None, "its columns are known by now"
        target, schema, kept = self._target(), self._fit.schema, list[Add]()
        entries = DeltaEntries(self._tables, self._name, self._id, pa.schema([schema.field(name) for name in key]))
        merger = Merger(batch, self._name, key, self._mirror.soft_delete, entries, self._write_files)

        def make(head: Head | None) -> list[Action]:
            check_fit(head, target, self._name)
            check_ledger(head, self._group, landing, allow_group_overlap=self._allow_group_overlap)
            merged = merger.merge(None if head is None else DeltaHead(self._store, head, schema))
            merger.remember(merged)
            kept[:] = [*merged.new, *merger.write_out(merged.rows)]
            files = [*(remove_action(add) for add in merged.out), *({"add": dict(add)} for add in kept)]
            operation = CREATE if head is None else OVERWRITE if merged.out else APPEND
            return self._actions(head, target, landing, files, operation)

        return self._drive_and_clean(landing, make, lambda done: beside(merger.written, kept if done else ()))

    def _take(self, mirror: MirrorDesign) -> None:
        self._mirror, design = mirror, delta_design(mirror.table)
        self._design = replace(design, notes={**design.notes, MIRROR_ID: self._id})

    def _found(self, events: pa.Table) -> None:
        self._take(self._asked.of_rows(events))
        self._fit = self._design.columns.asked_for()
        self._check_new(self._fit)

    def _columns_of_events(self) -> pa.Schema:
        assert self._fit is not None, "its columns are known by now"
        return columns_of_events(self._fit.schema, with_key=self._asked.key is None)

    def _read_events(self, file: Add) -> pa.Table:
        data = obstore.get(self._store, path_of(file)).bytes()
        return pq.read_table(pa.BufferReader(pa.py_buffer(data)))

    def _grow(self, events: pa.Schema) -> None:
        """Let the table have the columns that the events have. Raises ColumnBecameWider."""
        assert self._fit is not None, "it was loaded"
        own = self._fit.schema
        beside = (*self._design.metadata.names, *OF_EVENTS)
        seen = pa.schema([field for field in events if field.name not in beside])
        fit, problems = self._fit.grown(pa.schema([one for one in grown(own, seen) if one.name in seen.names]))
        if problems:
            raise ColumnBecameWider(self._name, "; ".join(problems))
        if fit.changes != self._fit.changes:
            log.info("The schema of %s will be changed with the next commit: %s", self._name, "; ".join(fit.changes))
        self._fit = fit
