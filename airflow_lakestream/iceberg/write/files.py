"""Data files of a table: rows are written, split by partition, sorted, with statistics; unneeded files are deleted.

Nothing is committed here. Public parts of PyIceberg only. Its `_dataframe_to_data_files` is not used: it turns a null
list of structs into an empty list, loses the rows of a NaN partition, can't partition by a uuid, and reads all rows
once for each partition.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow.fs import FileSelector, FileType
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.hdfs import HdfsFileIO
from airflow_lakestream.iceberg.manifests import live_entries_of
from airflow_lakestream.iceberg.write.arrange import DataFileRows, arrange
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.iceberg.write.parquet import write_parquet

# In bytes, of the 255 that file systems allow; object stores allow some 1,000 for all folders of a path together.
_LONGEST_FOLDER = 200


def write_data_files(
    metadata: TableMetadata,
    io: FileIO,
    rows: pa.Table,
    prefix: str,
    counter: Iterator[int] | None = None,
    *,
    folder: str = "",
) -> list[DataFile]:
    """Write rows as data files for the table's current schema, spec and sort order.

    File names begin with `prefix` and the next number of `counter`. If a file can't be written, or the caller is
    interrupted, the files of this call are deleted before the error is raised.

    :param folder: folder of the table's data for the files.
    """
    check_file_format(metadata.properties)
    if rows.num_rows == 0:
        return []
    numbers = itertools.count() if counter is None else counter
    places = locations(metadata, folder)
    plans = [
        _FileWrite(metadata, io, piece, _path(places, piece, prefix, next(numbers)))
        for piece in arrange(metadata, conform(rows, metadata.schema()))
    ]
    if len(plans) == 1:
        return _write_alone(plans[0])
    return _write_side_by_side(plans)


def data_folder(metadata: TableMetadata, folder: str) -> str:
    """Return the location of files written below a folder of the table's data."""
    return f"{load_location_provider(metadata.location, metadata.properties).data_path}/{folder}"


def delete_files(io: FileIO, paths: Iterable[str]) -> list[str]:
    """Delete files if possible; return the paths possibly left. Never raises."""
    left = []
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
        except Exception:  # noqa: BLE001  Runs while another error is on its way, which must not be hidden.
            left.append(path)
    return left


@dataclass(frozen=True, slots=True)
class _FileWrite:
    metadata: TableMetadata
    io: FileIO
    piece: DataFileRows
    path: str

    def write(self) -> DataFile:
        """Write the file, and return the data file's description, statistics included."""
        piece, metadata = self.piece, self.metadata
        output = self.io.new_output(self.path)
        statistics = write_parquet(output, metadata.schema(), metadata.properties, piece.read())
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.path,
            file_format=FileFormat.PARQUET,
            partition=piece.partition.partition if piece.partition else Record(),
            file_size_in_bytes=len(output),
            sort_order_id=metadata.default_sort_order_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        data_file.spec_id = metadata.default_spec_id
        return data_file


def check_file_format(properties: Mapping[str, str]) -> None:
    """Refuse a table with a file format except Parquet. Raises InvalidArgument."""
    name = properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet")
    if name.lower() != "parquet":
        raise InvalidArgument(
            "table_properties", f"{TableProperties.WRITE_FILE_FORMAT} is {name!r}.", "Only parquet can be written."
        )


def locations(metadata: TableMetadata, folder: str) -> LocationProvider:
    """Return the provider of locations for new files, below a folder of the table's data if given."""
    if not folder:
        return load_location_provider(metadata.location, metadata.properties)
    # The provider adds partitions, or the hashes of an object store, behind it: one listing finds all files of a run.
    properties = {**metadata.properties, TableProperties.WRITE_DATA_PATH: data_folder(metadata, folder)}
    return load_location_provider(metadata.location, properties)


def _path(locations: LocationProvider, piece: DataFileRows, prefix: str, number: int) -> str:
    # The writer overwrites without asking, and two processes may count from zero under one prefix.
    name = f"{prefix}-{number:05d}-{uuid.uuid4().hex[:12]}.parquet"
    key = piece.partition
    if key is not None and any(len(part) > _LONGEST_FOLDER for part in key.to_path().split("/")):
        # No file system accepts such a name. The partition of the file is in the manifest, not in the path.
        key = None
    return locations.new_data_location(name, key)


def _write_alone(plan: _FileWrite) -> list[DataFile]:
    try:
        return [plan.write()]
    except BaseException:
        delete_files(plan.io, [plan.path])
        raise


def _write_side_by_side(plans: Sequence[_FileWrite]) -> list[DataFile]:
    executor = ExecutorFactory.get_or_create()
    futures: list[Future[DataFile]] = []
    try:
        futures.extend(executor.submit(plan.write) for plan in plans)
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        wait(futures)  # A file still being written would appear after its deletion.
        delete_files(plans[0].io, [plan.path for plan in plans])
        raise


class CannotList(Exception):
    """File system of a table without a way to list a folder."""


def list_files(io: FileIO, folder: str) -> Iterator[str]:
    """Yield the locations of all files below a folder; empty if the folder is missing. Raises CannotList."""
    if isinstance(io, HdfsFileIO):
        yield from io.list_files(folder)
        return
    if isinstance(io, PyArrowFileIO):
        scheme, netloc, path = io.parse_location(folder, io.properties)
        found = io.fs_by_scheme(scheme, netloc).get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
        paths = [info.path for info in found if info.type is FileType.File]
    elif hasattr(io, "get_fs"):
        system = io.get_fs(urlparse(folder).scheme or "file")
        path = system._strip_protocol(folder)
        paths = system.find(path)
    else:
        raise CannotList(f"{type(io).__name__} can't list {folder}")
    # The file systems return paths without schemes: each location gets the form of `folder`, as in tables.
    yield from (folder.rstrip("/") + found.removeprefix(path.rstrip("/")) for found in paths)


def referenced(table: Table, paths: Iterable[str], since: int = -1) -> set[str]:
    """Return the locations referenced by any snapshot of the table, since a rollback to each snapshot is possible.

    :param since: sequence number above which snapshots are read; default: all snapshots.
    """
    left, found = set(paths), set[str]()
    for manifest in _manifests(table, since):
        if not left:
            break
        here = {entry.data_file.file_path for entry in live_entries_of(table.io, manifest)}
        found |= left & here
        left -= here
    return found


def delete_unreferenced(table: Table, folder: str) -> tuple[int, int]:
    """Delete the files below a folder without a reference in any snapshot of the table.

    For folders to which no process writes any more. Returns the numbers of deleted files and of files possibly left.
    Raises CannotList, and the file system's errors.
    """
    there = set(list_files(table.io, folder))
    orphans = there - referenced(table, there)
    left = delete_files(table.io, sorted(orphans))
    return len(orphans) - len(left), len(left)


def _manifests(table: Table, since: int) -> Iterator[ManifestFile]:
    """Yield each manifest written above a sequence number once, newest snapshots first."""
    seen = set[str]()
    snapshots = [s for s in table.snapshots() if (s.sequence_number or 0) > since]
    for snapshot in sorted(snapshots, key=lambda s: s.sequence_number or 0, reverse=True):
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in seen and (manifest.sequence_number or 0) > since:
                seen.add(manifest.manifest_path)
                yield manifest
