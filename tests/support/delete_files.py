"""Delete files, which PyIceberg reads and can't write: what Spark or Flink leave behind in merge-on-read tables."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from airflow_lakestream.iceberg.commit.manifest_writers import with_optional_values
from airflow_lakestream.iceberg.commit.row_delta import DeleteManifestWriter

# With the specification's ids, by which other engines find them.
_POSITIONS = pa.schema(
    [
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
        for name, kind, number in (("file_path", pa.string(), 2147483546), ("pos", pa.int64(), 2147483545))
    ]
)


def delete_positions(table: Table, path: str, positions: list[int], of: DataFile | None = None) -> None:
    """Delete rows of a data file by their place in it, in one snapshot with a position delete file.

    :param of: the data file, whose partition and spec the delete file gets; without it, none and the table's.
    """
    rows = pa.table({"file_path": [path] * len(positions), "pos": positions}, schema=_POSITIONS)
    spec = table.metadata.default_spec_id if of is None else of.spec_id
    _add(table, DataFileContent.POSITION_DELETES, rows, None, Record() if of is None else of.partition, spec)


def delete_equal(table: Table, column: str, values: list[Any], spec: int | None = None) -> None:
    """Delete the rows with these values in a column, in one snapshot with an equality delete file.

    :param spec: id of a spec without partitions; default: the table's.
    """
    field, schema = table.schema().find_field(column), table.schema().select(column).as_arrow()
    for name in reversed(column.split(".")):
        values = [{name: one} for one in values]
    spec = table.metadata.default_spec_id if spec is None else spec
    rows = pa.Table.from_pylist(values, schema)
    _add(table, DataFileContent.EQUALITY_DELETES, rows, [field.field_id], Record(), spec)


def _add(
    table: Table,
    content: DataFileContent,
    rows: pa.Table,
    equality_ids: list[int] | None,
    partition: Record,
    spec: int,
) -> None:
    io = table.io
    location = f"{table.location()}/data/deletes-{uuid4().hex}.parquet"
    pq.write_table(rows, location.removeprefix("file://"))
    file = DataFile.from_args(
        content=content,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=len(rows),
        file_size_in_bytes=len(io.new_input(location)),
        equality_ids=equality_ids,
        sort_order_id=None,
        key_metadata=None,
    )
    file.spec_id = spec
    with table.transaction() as transaction:
        producer = transaction.update_snapshot().fast_append()
        output = io.new_output(f"{table.location()}/metadata/deletes-{uuid4().hex}.avro")
        snapshot_id = producer.snapshot_id
        with DeleteManifestWriter(
            with_optional_values(table.specs()[spec]), table.schema(), output, snapshot_id, "deflate"
        ) as writer:
            writer.add_entry(
                ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file)
            )
        # PyIceberg appends no delete files: their manifest goes in beside those that stay.
        existing = producer._existing_manifests
        producer._existing_manifests = lambda: [
            *existing(),
            writer.to_manifest_file(),
        ]
        producer.commit()
