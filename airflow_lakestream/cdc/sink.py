"""A mirror as a sink: change events are taken, and what they come to is merged into the table with the ledger.

The protocol of a landing stays what it is: plan, guard, one snapshot with rows and ledger, the schema's change with it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from airflow_lakestream.cdc.columns import DELETED, OFFSET, OP, PARTITION, RECORD_KEY, version_schema
from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.events import event_columns, grown, placed
from airflow_lakestream.cdc.memory import Memory
from airflow_lakestream.cdc.merge import Merger
from airflow_lakestream.cdc.newest import Newest, newest
from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing, TopicIdentity
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import StaleFiles, TableState
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg import handover
from airflow_lakestream.iceberg.arrow_types import fields_from_arrow
from airflow_lakestream.iceberg.attempt import AppendAttempt, Attempt, _append, overwriting
from airflow_lakestream.iceberg.files import delete_files, write_data_files
from airflow_lakestream.iceberg.guard import CommitGuard, NotApplied
from airflow_lakestream.iceberg.schema import to_schema
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.transaction import LandingTransaction

log = logging.getLogger(__name__)


class MirrorGuard(CommitGuard):
    """The compare-and-set of a merge: made for one head, it is made anew for another."""

    def _not_applied(self, why: str) -> Exception:
        return NotApplied(why)


class MirrorSink(IcebergSink):
    """`core.ports.Sink` of a mirror. Rows written are change events; see `cdc.events`."""

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
        self._events: list[pa.Table] = []
        # Of events that executors have written, for this commit.
        self._event_files: list[str] = []
        self._merging: Newest | None = None

    def load(self, run_id: str) -> TableState:
        """Look at the table anew; the schema is that of the events to decode."""
        if self._catalog.table_exists(self._name):
            self._mirror = self._asked.of_table(self._catalog.load_table(self._name))
        else:
            self._mirror = self._asked
        self._design = self._mirror.table
        state = super().load(run_id)
        return state if state.schema is None else replace(state, schema=event_columns(state.schema))

    def write(self, rows: pa.Table, identity: TopicIdentity) -> None:
        """Take events for the next commit."""
        self._events.append(rows)
        if self._table is None and self._staged is None:
            self._stage(rows)

    def outline(self) -> handover.Outline:
        """Return what executors need to write events; they lie where the mirror's own files do."""
        target = self._target(None)
        rows = event_columns(target.metadata.schema().as_arrow())
        beside = [PARTITION, OFFSET] + ([RECORD_KEY] if self._asked.key is None else [])
        kinds = {RECORD_KEY: pa.binary(), PARTITION: pa.int32(), OFFSET: pa.int64()}
        own = [field for field in rows if field.name not in (*version_schema().names, DELETED)]
        columns = pa.schema([*own, *(pa.field(name, kinds[name]) for name in beside)])
        return handover.Outline(self._name, _metadata_for(columns, target.metadata), target.io)

    def take_over(self, files: Mapping[str, Any]) -> None:
        """Take events that an executor wrote."""
        self._event_files += [file.file_path for file in handover.decode_files(files)]

    def commit(self, landing: Landing) -> int:
        """Merge what the events taken come to, in one snapshot with the ledger."""
        events = self._taken()
        if self._table is None and self._staged is None:
            raise AssertionError(f"{self._name}: a mirror is founded by its first events")
        key = self._mirror.key
        assert key is not None, "a mirror that is there, or staged, has one"
        self._merging = newest(events, key, self._name, soft_delete=self._mirror.soft_delete)
        if self._table is None:
            self._found()
        else:
            self._grow(events.schema)
        snapshot_id = super().commit(landing)
        delete_files(self._io(), self._event_files)
        self._events, self._event_files, self._merging = [], [], None
        return snapshot_id

    def replace(self, landing: Landing) -> tuple[int, Landing]:
        """Refuse: rows of a mirror are no records."""
        raise InvalidArgument("replace", f"{self._name} is a mirror: its rows are states, not records.")

    def discard(self) -> None:
        """Delete what was taken since the last commit; never raises."""
        if self._event_files:
            delete_files(self._io(), self._event_files)
        self._events, self._event_files, self._merging = [], [], None
        super().discard()

    def _stage(self, rows: pa.Table) -> None:
        """Stage the mirror that the first events tell."""
        self._mirror = self._asked.of_rows(placed(rows))
        self._design = self._mirror.table
        self._target(rows)

    def _taken(self) -> pa.Table:
        io = self._io()
        written = []
        for path in self._event_files:
            with io.new_input(path).open() as file:
                written.append(pq.read_table(file))
        parts = [*self._events, *written]
        if not parts:
            outline = self.outline()
            parts = [outline.metadata.schema().as_arrow().empty_table()]
        return placed(pa.concat_tables([_plain(part) for part in parts], promote_options="permissive"))

    def _found(self) -> None:
        """Take the first rows of a new mirror; they are committed with the table."""
        merger = self._merger()
        merged = merger.merge(None)
        merger.remember(merged)
        assert merged.rows is not None, "a merge makes rows, be they none"
        super().write(merged.rows, TopicIdentity("", "", ""))

    def _merger(self) -> Merger:
        assert self._merging is not None, "there is something to commit"
        target, key = self._target(None), self._mirror.key or ()
        write = partial(write_data_files, target.metadata, target.io, prefix=self._prefix, counter=self._numbers)
        memory = Memory(self._catalog, self._name, key, str(target.metadata.table_uuid))
        return Merger(self._merging, key, self._mirror.soft_delete, memory, target.metadata, write)

    def _grow(self, events: pa.Schema) -> None:
        """Let the table have the columns, and the widths, that the events have."""
        assert self._change is not None, "it was loaded"
        own = self._change.schema.as_arrow()
        beside = (*self._design.metadata.names, OP, RECORD_KEY)
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
        target = self._target(None)
        guard = MirrorGuard(
            self._catalog,
            self._group,
            landing,
            self._change.base if self._change else target.metadata,
            allow_group_overlap=self._allow_group_overlap,
            change=self._change,
        )
        guard.notes = self._design.notes
        summary = codec.encode_summary(self._group, landing)
        return MergeAttempt(self._catalog, self._name, guard, summary, self._merger())


class MergeAttempt(AppendAttempt):
    """A landing whose events are merged into a table that is there."""

    def __init__(
        self, catalog: Catalog, name: str, guard: CommitGuard, summary: Mapping[str, str], merger: Merger
    ) -> None:
        super().__init__(catalog, name, guard, summary)
        self._merger = merger
        self._files: dict[int, list[DataFile]] = {}
        self._written: list[DataFile] = []
        self._io: FileIO | None = None

    def clean_up(self, keep: int | None) -> None:
        """Delete the manifests and files of tries that were not applied."""
        super().clean_up(keep)
        if self._io is not None:
            kept = {file.file_path for file in self._files.get(keep, [])} if keep is not None else set()
            paths = [file.file_path for file in self._written if file.file_path not in kept]
            for path in [*delete_files(self._io, paths), *self._merger.undo(self._io, kept)]:
                log.warning("An uncommitted data file could not be deleted: %s", path)

    def _stage(self, transaction: LandingTransaction, table: Table, files: Sequence[DataFile]) -> None:
        self._io = table.io
        merged = self._merger.merge(table)
        self._merger.remember(merged)
        assert merged.rows is not None
        new = self._merger.write(merged.rows) if len(merged.rows) else []
        self._written += new
        summary = self._summary | transaction.notes
        if not merged.out:
            _append(transaction, new, summary, self._producers)
            self._files[self._producers[-1].snapshot_id] = new
            return
        with overwriting(transaction, summary, self._producers) as producer:
            self._files[producer.snapshot_id] = [*merged.kept, *new]
            for file in merged.out:
                producer.delete_data_file(file)
            for file in (*merged.kept, *new):
                producer.append_data_file(file)


def _metadata_for(columns: pa.Schema, mirror: TableMetadata) -> TableMetadata:
    """Return the metadata of a table that is nowhere: what executors write events for."""
    # Neither the mirror's ledger nor that it is a mirror.
    properties = {key: value for key, value in mirror.properties.items() if not key.startswith("lakestream.")}
    return new_table_metadata(
        to_schema(columns), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, mirror.location, properties
    )


def _plain(rows: pa.Table) -> pa.Table:
    """Return events with the types that all have in common, wherever they were written."""
    # A file's fields carry ids of their own, which must not tell two columns of one name apart.
    return rows.replace_schema_metadata(None).cast(
        pa.schema([field.remove_metadata().with_nullable(True) for field in rows.schema])
    )
