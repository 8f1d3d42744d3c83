"""A mirror in an Iceberg table; see `cdc.mirror`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.iceberg import EntryTable, IcebergHead, mirror_id
from airflow_lakestream.cdc.merge.memory import NO_TOPIC
from airflow_lakestream.cdc.merge.merge import Merger
from airflow_lakestream.cdc.merge.newest import Newest
from airflow_lakestream.cdc.mirror import Mirror
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.core.ports import StaleFiles
from airflow_lakestream.iceberg.commit.rewriting import Rewrite
from airflow_lakestream.iceberg.sink import IcebergSink
from airflow_lakestream.iceberg.write import handover
from airflow_lakestream.iceberg.write.files import delete_files
from airflow_lakestream.tables.schema.arrow_types import arrow_schema, fields_from_arrow
from airflow_lakestream.tables.schema.change import metadata_of
from airflow_lakestream.tables.schema.columns import to_schema


class MirrorSink(Mirror):
    """`cdc.mirror.Mirror` in an Iceberg table."""

    def __init__(self, catalog: Catalog, table: str, group: str, design: MirrorDesign, **settings: bool) -> None:
        super().__init__(IcebergMirror(catalog, table, group, design.table, **settings), table, design)


class IcebergMirror(IcebergSink):
    """`cdc.mirror.MirrorTable` in Iceberg."""

    takes_records = False
    refounds = False

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
        entries = self._entries(self._name, mirror_id(target.metadata), target.schema(), key)
        merger = Merger(batch, self._name, key, mirror.soft_delete, entries, self._write_files)
        if not self.is_there:
            # The first rows of a new mirror are committed with the table.
            merged = merger.merge(None)
            merger.remember(merged)
            self.write(merged.rows, NO_TOPIC)
            return self.commit(landing)

        def rewrite(table: Table) -> Rewrite:
            merged = merger.merge(IcebergHead(table, target.metadata))
            merger.remember(merged)
            new = [*merged.new, *merger.write_out(merged.rows)]
            return Rewrite([task.file for task in merged.out], new)

        return self._rewrite(landing, rewrite, merger.written)

    def _entries(self, mirror: str, mirror_id: str, columns: Schema, key: Sequence[str]) -> EntryTable:
        fields = Schema(*(columns.find_field(name) for name in key))
        return EntryTable(self._catalog, mirror, mirror_id, arrow_schema(fields))


def _metadata_for(columns: pa.Schema, mirror: TableMetadata) -> TableMetadata:
    """Return the metadata of a table that is nowhere: what executors write events for."""
    # Neither the mirror's ledger nor that it is a mirror.
    properties = {key: value for key, value in mirror.properties.items() if not key.startswith("lakestream.")}
    return metadata_of(to_schema(columns), mirror.location, properties)
