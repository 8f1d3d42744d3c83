"""A mirror in an Iceberg table; see `cdc.mirror`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.iceberg import NO_TOPIC, EntryTable, Merging, mirror_id
from airflow_lakestream.cdc.merge.merge import Merger
from airflow_lakestream.cdc.merge.newest import Newest
from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.core import codec
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.iceberg.commit.attempt import Attempt
from airflow_lakestream.iceberg.commit.guard import HeadGuard
from airflow_lakestream.iceberg.commit.rewriting import RewriteAttempt, Rewriter
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write import handover
from airflow_lakestream.iceberg.write.files import delete_files, write_data_files
from airflow_lakestream.tables.schema.arrow_types import arrow_schema, fields_from_arrow
from airflow_lakestream.tables.schema.columns import to_schema


class MirrorSink(Mirror):
    """`cdc.mirror.Mirror` in an Iceberg table."""

    def __init__(self, catalog: Catalog, table: str, group: str, design: MirrorDesign, **settings: bool) -> None:
        super().__init__(IcebergMirror(catalog, table, group, design.table, **settings), table, design)


class IcebergMirror(IcebergSink):
    """`cdc.mirror.MirrorTable` in Iceberg."""

    takes_records = False
    refounds = False
    _rewriter: Rewriter | None = None

    def held(self) -> tuple[Mapping[str, str], pa.Schema] | None:
        """Look at the table, and return its properties and columns."""
        try:
            metadata = self._catalog.load_table(self._name).metadata
        except NoSuchTableError:
            return None
        return metadata.properties, arrow_schema(metadata.schema())

    def take(self, mirror: MirrorDesign) -> None:
        """Have the design of a mirror from now on."""
        self._design = mirror.table

    def found(self, mirror: MirrorDesign, events: pa.Table) -> None:
        """Stage the table that the first events tell."""
        if self._staged is not None:
            self._staged.drop_namespace_if_made()
            self._staged = self._change = None
        self._design = mirror.table
        self._target(events)

    @property
    def is_there(self) -> bool:
        """Whether there was a table at the last look, or commit."""
        return self._table is not None

    @property
    def is_known(self) -> bool:
        """Whether it is there, or staged."""
        return self.is_there or self._staged is not None

    @property
    def columns(self) -> pa.Schema:
        """All columns, those included that the next commit adds."""
        return self._target(None).schema().as_arrow()

    def grow(self, wanted: pa.Schema) -> Sequence[str]:
        """Let the next commit give the table these columns, and widths. Raises StaleFiles."""
        assert self._change is not None, "it was loaded"
        before = self._change.texts
        self._change, problems = self._change.and_then(fields_from_arrow(wanted, "rows"), SchemaEvolution.WIDEN)
        if problems:
            raise StaleFiles(self._name, f"the schema was changed ({'; '.join(problems)})")
        return self._change.texts if self._change.texts != before else ()

    def target_of_events(self, columns: pa.Schema) -> handover.Outline:
        """Return the outline of a table that is nowhere, and whose files lie where the mirror's do."""
        target = self._target(None)
        return handover.Outline(self._name, _metadata_for(columns, target.metadata), target.io)

    def events_in(self, handed: Mapping[str, Any]) -> Sequence[str]:
        """Return the files that an executor wrote for it."""
        return [file.file_path for file in handover.decode_files(handed)]

    def read_events(self, file: str) -> pa.Table:
        """Return the events of such a file."""
        with self._io().new_input(file).open() as stream:
            return pq.read_table(stream)

    def delete_events(self, files: Sequence[str]) -> object:
        """Delete such files; never raises."""
        return delete_files(self._io(), files)

    def merge(self, batch: Newest, mirror: MirrorDesign, landing: Landing) -> int:
        """Merge a batch into the table, in one snapshot with the ledger."""
        target, key = self._target(None), mirror.key or ()
        write = partial(write_data_files, target.metadata, target.io, prefix=self._prefix, counter=self._numbers)
        fields = [target.schema().find_field(name) for name in key]
        entries = EntryTable(self._catalog, self._name, mirror_id(target.metadata), fields)
        merger = Merger(batch, self._name, key, mirror.soft_delete, entries, write)
        if self.is_there:
            return self._rewrite(landing, Merging(merger, target.metadata))
        # The first rows of a new mirror are committed with the table.
        merged = merger.merge(None)
        merger.remember(merged)
        self.write(merged.rows, NO_TOPIC)
        return self.commit(landing)

    def _rewrite(self, landing: Landing, rewriter: Rewriter) -> int:
        self._rewriter = rewriter
        try:
            return self.commit(landing)
        finally:
            self._rewriter = None

    def _attempt(self, landing: Landing) -> Attempt:
        if self._rewriter is None:
            return super()._attempt(landing)
        summary = codec.encode_summary(self._group, landing)
        return RewriteAttempt(self._catalog, self._name, self._head_guard(landing), summary, self._rewriter)

    def _head_guard(self, landing: Landing) -> HeadGuard:
        return self._guard(landing, HeadGuard, allow_group_overlap=self._allow_group_overlap)


def _metadata_for(columns: pa.Schema, mirror: TableMetadata) -> TableMetadata:
    """Return the metadata of a table that is nowhere: what executors write events for."""
    # Neither the mirror's ledger nor that it is a mirror.
    properties = {key: value for key, value in mirror.properties.items() if not key.startswith("lakestream.")}
    return new_table_metadata(
        to_schema(columns), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, mirror.location, properties
    )
