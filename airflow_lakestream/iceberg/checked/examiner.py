"""Examiner of a landing's files in an Iceberg table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema

from airflow_lakestream.core.checks import RowChecker, StagedRows
from airflow_lakestream.core.ledger import Landing
from airflow_lakestream.iceberg import ledger_store
from airflow_lakestream.tables.examiner import LandingExaminer
from airflow_lakestream.tables.schema.types import arrow_schema


class IcebergExaminer(LandingExaminer):
    """`LandingExaminer` of a group's landings in an Iceberg table."""

    def __init__(self, auditor: RowChecker, catalog: Catalog, table: str, consumer_group: str) -> None:
        super().__init__(auditor, table)
        self._catalog = catalog
        self._group = consumer_group

    def written(self, landing: Landing, schema: Schema, io: FileIO, files: Sequence[DataFile]) -> StagedRows:
        """Return the landing's rows and files for the checks.

        :param schema: the table's schema after the commit.
        """
        return StagedRows(
            arrow_schema(schema) if files else pa.schema([]),
            {file.file_path: file.file_size_in_bytes for file in files},
            lambda path: io.new_input(path).open(),
            landing.rows,
            self.usual_rows(landing, self._history),
        )

    def _history(self) -> Iterator[tuple[int, Landing]]:
        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            return
        for snapshot in ledger_store.live_ancestors(table.metadata):
            if (landing := ledger_store.landing_of(snapshot, self._group)) is not None:
                yield snapshot.timestamp_ms, landing
