"""A mirror and the staging table for its new rows, in Iceberg or Delta."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa

from airflow_lakestream.cdc.design import MirrorDesign
from airflow_lakestream.cdc.merge.memory import SUFFIX
from airflow_lakestream.cdc.swap.exchange import MirrorSwapSink
from airflow_lakestream.core.mirrors import MIRROR
from airflow_lakestream.core.names import ANEW
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.lakes.formats import lake_of
from airflow_lakestream.run.job import Lake
from airflow_lakestream.tables.design import TableDesign


class ResnapshotTables:
    """The mirror `table`, and `staging`, the table built to replace the mirror's rows."""

    def __init__(self, lake: Lake, table: str) -> None:
        self._lake, self.table, self.staging = lake, table, f"{table.rstrip('/')}{ANEW}"
        self._swap = lake_of(table).part("swap")

    def design(self) -> MirrorDesign:
        """Return the mirror's design. Raises InvalidArgument if the table is not a mirror."""
        return self._design(self.table)

    def staging_key(self) -> tuple[str, ...]:
        """Return the key of the staging table."""
        return self._design(self.staging).key or ()

    def staging_id(self) -> str | None:
        """Return the id of the staging table, or None if missing."""
        table_id: str | None = self._swap.aside_id(self._lake, self.staging)
        return table_id

    def drop_staging(self) -> None:
        """Drop the staging table."""
        # The table itself last: its presence shows that an earlier run is not finished.
        self._swap.drop(self._lake, f"{self.staging}{SUFFIX}", self.staging)

    def sink(self, consumer_group: str, *, soft_delete: bool) -> MirrorSwapSink:
        """Return the sink to replace the mirror's rows."""
        # The key is taken from the table.
        design = MirrorDesign(TableDesign(metadata=pa.schema([])), soft_delete=soft_delete)
        sink: MirrorSwapSink = self._swap.swap_sink(self._lake, self.table, consumer_group, design, self.staging)
        return sink

    def _design(self, table: str) -> MirrorDesign:
        properties: Mapping[str, str] | None = self._swap.properties_of(self._lake, table)
        if properties is None:
            raise InvalidArgument("table", f"there is no table {table}.")
        note = properties.get(MIRROR)
        if note is None:
            raise InvalidArgument("table", f"{table} is not a mirror.", "Only a mirror can be read again.")
        held = json.loads(note)
        return MirrorDesign(TableDesign(metadata=pa.schema([])), tuple(held["key"]), bool(held["soft_delete"]))
