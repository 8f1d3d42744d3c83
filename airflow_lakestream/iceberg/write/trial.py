"""Trial whether files can be made for a table, by writing files without keeping any."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, write_manifest
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.iceberg.commit.manifest_writers import name_types_uniquely, with_optional_values
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.iceberg.write.files import check_file_format, write_data_files
from airflow_lakestream.iceberg.write.parquet import TrialFileIO, write_parquet
from airflow_lakestream.tables.row_buffer import culprits, one_row
from airflow_lakestream.tables.schema.types import arrow_schema


def unwritable(metadata: TableMetadata, rows: pa.Table) -> dict[int, str]:
    """Find unwritable rows by trial, without keeping a file; return the reason of each by the row's number.

    Unknown columns are left out. An error of writing that no row causes is raised.
    """
    names = {field.name for field in metadata.schema().fields}
    return culprits(rows.select([name for name in rows.column_names if name in names]), partial(_write, metadata))


def proof_of(metadata: TableMetadata) -> tuple[object, Callable[[], object]]:
    """Return the shape of a table's files, and a function to write a single row on trial.

    An error of the function is the table's fault, independent of the records.
    """
    # Ledgers change with each commit, and have no influence.
    properties = {name: text for name, text in metadata.properties.items() if not name.startswith("lakestream.")}
    fields = metadata.schema().fields, metadata.spec().fields, metadata.sort_order().fields
    shape = metadata.format_version, *fields, properties
    return shape, partial(_prove, metadata)


def _prove(metadata: TableMetadata) -> None:
    """Write a row and its manifest on trial. Raises an error of writing."""
    columns = arrow_schema(metadata.schema())
    # Without columns, no row can be tried.
    if not len(columns):
        return
    files = _write(metadata, one_row(columns))
    codec: Any = metadata.properties.get(TableProperties.WRITE_AVRO_COMPRESSION, "gzip")
    spec, output = with_optional_values(metadata.spec()), TrialFileIO().new_output("")
    manifest = write_manifest(metadata.format_version, spec, metadata.schema(), output, 0, codec)
    name_types_uniquely(manifest)
    with manifest as writer:
        for file in files:
            writer.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=0, data_file=file))


def _write(metadata: TableMetadata, rows: pa.Table) -> list[DataFile]:
    """Write rows on trial; return the files' descriptions, empty without rows. Raises an error of writing."""
    if rows.num_rows:
        return write_data_files(metadata, TrialFileIO(), rows, "")
    check_file_format(metadata.properties)
    conforming, output = conform(rows, metadata.schema()), TrialFileIO().new_output("")
    write_parquet(output, metadata.schema(), metadata.properties, conforming)
    return []
