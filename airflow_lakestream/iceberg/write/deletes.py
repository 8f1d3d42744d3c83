"""Position deletes of a table of format version 2: the deleted rows of a data file, and the deletion of more rows.

Each data file has at most one delete file of this package, with both bounds of `file_path` at its path: by these,
engines read it with that data file alone. Further rows come with a new delete file, which replaces the old one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import _read_all_delete_files
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.table.locations import LocationProvider
from pyiceberg.table.metadata import TableMetadata

from airflow_lakestream.iceberg.write.files import locations
from airflow_lakestream.tables.rising import distinct

Positions = npt.NDArray[np.int64]
NONE_DELETED: Positions = np.zeros(0, np.int64)
# The ids of a position delete file's fields, reserved by Iceberg's specification.
_PATH_ID, _POSITION_ID = 2147483546, 2147483545
_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
        for name, kind, number in (("file_path", pa.string(), _PATH_ID), ("pos", pa.int64(), _POSITION_ID))
    ]
)
# A large table has many delete files of few rows, so each byte per file counts. No position comes twice, so a
# dictionary would double them. The manifest has the bounds by which engines choose files.
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["file_path"],
    "write_statistics": False,
    "store_schema": False,
}


def deleted_positions(io: FileIO, task: FileScanTask) -> Positions:
    """Return the rising positions of a data file's deleted rows."""
    if not task.delete_files:
        return NONE_DELETED
    # A private function of PyIceberg, which has no other way to read delete files.
    columns = _read_all_delete_files(io, [task]).get(task.file.file_path, [])
    parts = [chunk.to_numpy().astype(np.int64) for column in columns for chunk in column.chunks]
    return distinct(np.concatenate([NONE_DELETED, *parts]))


def own_deletes(task: FileScanTask) -> list[DataFile]:
    """Return the delete files of this data file alone; shared delete files stay for the remaining data files."""
    path = task.file.file_path.encode()
    return [
        file
        for file in task.delete_files
        if (file.lower_bounds or {}).get(_PATH_ID) == path == (file.upper_bounds or {}).get(_PATH_ID)
    ]


def with_deletes(tasks: Iterable[FileScanTask]) -> list[DataFile]:
    """Return data files, each with the delete files of this data file alone."""
    return [file for task in tasks for file in (task.file, *own_deletes(task))]


def delete_rows(
    metadata: TableMetadata, io: FileIO, task: FileScanTask, numbers: Positions, *, folder: str = ""
) -> DataFile:
    """Write a delete file in place of a data file's own delete files, and return the new file.

    The file has the positions of the own delete files and of the further rows to delete. Positions in shared delete
    files are left out, since the shared files stay.

    :param numbers: the numbers of the rows to delete, rising, counted among the live rows.
    :param folder: folder of the table's data for the file.
    """
    deleted = deleted_positions(io, task)
    # The number of live rows ahead of each deleted row.
    ahead = deleted - np.arange(len(deleted))
    # A live row's position is its number, moved by the deleted rows ahead of it.
    new = numbers + np.searchsorted(ahead, numbers, side="right")
    foreign = deleted_positions(io, FileScanTask(task.file, set(task.delete_files) - set(own_deletes(task))))
    # The positions deleted by own delete files only, and the new ones.
    positions = distinct(np.concatenate([np.setdiff1d(deleted, foreign, assume_unique=True), new]))
    return _write(io, task.file, positions, locations(metadata, folder))


def _write(io: FileIO, file: DataFile, positions: Positions, places: LocationProvider) -> DataFile:
    """Write a delete file with these positions of a data file, and return the new file."""
    path, place = file.file_path.encode(), places.new_data_location(f"{uuid.uuid4().hex}-deletes.parquet")
    paths = pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int32), [file.file_path]).cast(pa.string())
    output = io.new_output(place)
    with output.create() as stream:
        pq.write_table(pa.table([paths, positions], schema=_SCHEMA), stream, **_PARQUET)
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=place,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(positions),
        file_size_in_bytes=len(output),
        lower_bounds={_PATH_ID: path},
        upper_bounds={_PATH_ID: path},
        equality_ids=None,
        sort_order_id=None,
        key_metadata=None,
    )
    # The spec of its data file, which may be older than the table's.
    deletes.spec_id = file.spec_id
    return deletes
