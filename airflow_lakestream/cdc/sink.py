"""A mirror as a sink: change events are taken, and what they come to is merged into the table with the ledger.

The protocol of a landing stays what it is: plan, guard, one snapshot with rows and ledger, the schema's change with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from airflow_lakestream.cdc.checks import follow
from airflow_lakestream.cdc.columns import OF_EVENTS
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events.decoder import event_columns
from airflow_lakestream.cdc.events.provenance import expanded
from airflow_lakestream.cdc.events.taken import TakenEvents, columns_of_events
from airflow_lakestream.cdc.events.widening import grown
from airflow_lakestream.cdc.iceberg import EntryTable, Merging, mirror_id
from airflow_lakestream.cdc.merge.merge import Merger
from airflow_lakestream.cdc.merge.newest import Newest
from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import StaleFiles, TableState
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.commit.attempt import Attempt
from airflow_lakestream.iceberg.commit.guard import HeadGuard
from airflow_lakestream.iceberg.commit.rewriting import RewriteAttempt
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write import handover
from airflow_lakestream.iceberg.write.files import delete_files, write_data_files
from airflow_lakestream.tables.schema.arrow_types import arrow_schema, fields_from_arrow
from airflow_lakestream.tables.schema.columns import to_schema

log = logging.getLogger(__name__)


class MirrorSink(IcebergSink):
    """`core.ports.Sink` of a mirror. Rows written are change events; see `cdc.events.decoder`."""

    takes_records = False

    def __init__(
        self,
        catalog: Catalog,
        table: str,
        consumer_group: str,
        design: MirrorDesign,
        *,
        allow_group_overlap: bool = False,
    ) -> None:
        super().__init__(catalog, table, consumer_group, design.table, allow_group_overlap=allow_group_overlap)
        self._asked = self._mirror = design
        self._taken = TakenEvents()
        self._merging: Newest | None = None

    def load(self, run_id: str) -> TableState:
        """Look at the table anew; the schema is that of the events to decode."""
        if self._catalog.table_exists(self._name):
            table = self._catalog.load_table(self._name)
            self._mirror = self._asked.of_table(self._name, table.metadata.properties, arrow_schema(table.schema()))
        else:
            self._mirror = self._asked
        self._design = self._mirror.table
        state = super().load(run_id)
        return state if state.schema is None else replace(state, schema=event_columns(state.schema))

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Take events for the next commit."""
        rows = expanded(rows)
        self._taken.rows.append(rows)
        if self._table is None and self._staged is None:
            self._stage(rows)

    def outline(self) -> handover.Outline:
        """Return what executors need to write events; they lie where the mirror's own files do."""
        target = self._target(None)
        columns = columns_of_events(target.metadata.schema().as_arrow(), with_key=self._asked.key is None)
        return handover.Outline(self._name, _metadata_for(columns, target.metadata), target.io)

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take events that an executor wrote."""
        self._taken.files += [file.file_path for file in handover.decode_files(files)]

    def commit(self, landing: Landing) -> int:
        """Merge what the events taken come to, in one snapshot with the ledger."""
        events = self._taken.joined(self._read_events, self.outline().metadata.schema().as_arrow(), self._name)
        if self._table is None and self._asked.table.schema is not None:
            # The mirror's own columns come with its key, beside those that were given.
            self._stage(events)
        self._mirror, self._merging = follow(self._mirror, events, self._name, landing)
        self._design = self._mirror.table
        self._grow(events.schema)
        if self._table is None:
            self._found()
        snapshot_id = super().commit(landing)
        delete_files(self._io(), self._taken.files)
        self._taken.forget()
        self._merging = None
        return snapshot_id

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Refuse: rows of a mirror are no records."""
        raise InvalidArgument("replace", f"{self._name} is a mirror: its rows are states, not records.")

    def discard(self) -> None:
        """Delete what was taken since the last commit; never raises."""
        if self._taken.files:
            delete_files(self._io(), self._taken.files)
        self._taken.forget()
        self._merging = None
        super().discard()

    def _stage(self, rows: pa.Table) -> None:
        """Stage the mirror that the first events tell."""
        self._mirror = self._asked.of_rows(rows)
        if self._staged is not None:
            self._staged.drop_namespace_if_made()
            self._staged = self._change = None
        self._design = self._mirror.table
        self._target(rows)

    def _read_events(self, path: str) -> pa.Table:
        with self._io().new_input(path).open() as file:
            return pq.read_table(file)

    def _found(self) -> None:
        """Take the first rows of a new mirror; they are committed with the table."""
        merger = self._merger()
        merged = merger.merge(None)
        merger.remember(merged)
        super().write(merged.rows, TopicIdentity("", "", ""))

    def _merger(self) -> Merger:
        assert self._merging is not None, "there is something to commit"
        target, key = self._target(None), self._mirror.key or ()
        write = partial(write_data_files, target.metadata, target.io, prefix=self._prefix, counter=self._numbers)
        fields = [target.schema().find_field(name) for name in key]
        entries = EntryTable(self._catalog, self._name, mirror_id(target.metadata), fields)
        return Merger(self._merging, self._name, key, self._mirror.soft_delete, entries, write)

    def _grow(self, events: pa.Schema) -> None:
        """Let the table have the columns, and the widths, that the events have."""
        assert self._change is not None, "it was loaded"
        own = self._change.schema.as_arrow()
        beside = (*self._design.metadata.names, *OF_EVENTS)
        seen = pa.schema([field for field in events if field.name not in beside])
        wanted = pa.schema([field for field in grown(own, seen) if field.name in seen.names])
        change, problems = self._change.and_then(fields_from_arrow(wanted, "rows"), SchemaEvolution.WIDEN)
        if problems:
            raise StaleFiles(self._name, f"the schema was changed ({'; '.join(problems)})")
        if change.texts != self._change.texts:
            log.info("The schema of %s will be changed with the next commit: %s", self._name, "; ".join(change.texts))
        self._change = change

    def _attempt(self, landing: Landing) -> Attempt:
        if self._table is None:
            return super()._attempt(landing)
        guard = self._guard(landing, HeadGuard, allow_group_overlap=self._allow_group_overlap)
        summary = codec.encode_summary(self._group, landing)
        merging = Merging(self._merger(), self._target(None).metadata)
        return RewriteAttempt(self._catalog, self._name, guard, summary, merging)


def _metadata_for(columns: pa.Schema, mirror: TableMetadata) -> TableMetadata:
    """Return the metadata of a table that is nowhere: what executors write events for."""
    # Neither the mirror's ledger nor that it is a mirror.
    properties = {key: value for key, value in mirror.properties.items() if not key.startswith("lakestream.")}
    return new_table_metadata(
        to_schema(columns), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, mirror.location, properties
    )
