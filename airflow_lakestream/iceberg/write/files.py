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
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.io.pyarrow import DataFileStatistics
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, NestedField, StructType, TimeType
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.listing import stored_files
from airflow_lakestream.iceberg.manifests import live_entries_of
from airflow_lakestream.iceberg.table_properties import number
from airflow_lakestream.iceberg.write.conform import conform
from airflow_lakestream.iceberg.write.parquet import write_parquet
from airflow_lakestream.tables.schema.value_ranges import out_of_range


@dataclass(frozen=True, slots=True)
class DataFileRows:
    """Rows of a data file: all of `rows`, or the rows at `positions`, in this order."""

    rows: pa.Table
    positions: pa.Array | None
    partition: PartitionKey | None

    def read(self) -> pa.Table:
        """Return the rows in the order of the file."""
        return self.rows if self.positions is None else self.rows.take(self.positions)


def rows_by_partition(metadata: TableMetadata, rows: pa.Table) -> Iterator[DataFileRows]:
    """Yield the pieces of conforming rows for the table's spec and order, each with rows; empty without rows.

    Each partition has at least a piece; a partition larger than the target size of a file has several.
    """
    schema, spec = metadata.schema(), metadata.spec()
    values = [_partition_values(rows, schema, field) for field in spec.fields]
    codes = value_codes(values, rows.num_rows)
    counts = sorted((run["values"], run["counts"]) for run in pc.value_counts(codes).to_pylist())
    keys = sort_keys(rows, schema, metadata.sort_order())
    positions = sorted_positions([(codes, "ascending"), *keys] if len(counts) > 1 else keys)
    if positions is not None:
        rows = rows.combine_chunks()
    # Like in PyIceberg, the size in memory counts.
    target = target_size(metadata) * rows.num_rows // max(1, rows.nbytes)
    start = 0
    for _, count in counts:
        first = start if positions is None else positions[start].as_py()
        key = _partition_key(metadata, [value[first] for value in values]) if values else None
        for low, high in _cuts(start, count, max(1, target)):
            if positions is None:
                yield DataFileRows(rows.slice(low, high - low), None, key)
            else:
                yield DataFileRows(rows, positions.slice(low, high - low), key)
        start += count


def target_size(metadata: TableMetadata) -> int:
    """Return the target size of a file in bytes."""
    name, default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    return number(metadata.properties, name, default)


def _cuts(start: int, count: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield even parts of `count` rows, of at most `most` rows each."""
    parts = -(-count // most)
    return itertools.pairwise(start + count * part // parts for part in range(parts + 1))


class _FilePartition(PartitionKey):
    """Partition of a file. PyIceberg's own class finds values by column, and fails for several fields of a column."""

    @cached_property
    def partition(self) -> Record:
        return Record(*(field_value.value for field_value in self.field_values))


def _partition_key(metadata: TableMetadata, values: Sequence[pa.Scalar]) -> PartitionKey:
    """Return the partition of rows with these values of the current spec's fields."""
    spec = metadata.spec()
    return _FilePartition(
        [PartitionFieldValue(field, _in_manifest(value)) for field, value in zip(spec.fields, values, strict=True)],
        spec,
        metadata.schema(),
    )


def partition_key(metadata: TableMetadata, spec_id: int, partition: Record) -> PartitionKey | None:
    """Return the partition of a file of any of the table's specs, or None without partitions."""
    spec = metadata.specs()[spec_id]
    values = [PartitionFieldValue(field, partition[position]) for position, field in enumerate(spec.fields)]
    return _FilePartition(values, spec, metadata.schema()) if values else None


def _in_manifest(value: pa.Scalar) -> Any:
    """Return a partition's value in the form of manifests: dates and times as counts, beyond Python's range, too."""
    return value.value if arrow.is_temporal(value.type) else value.as_py()


def _partition_values(rows: pa.Table, schema: Schema, field: PartitionField) -> pa.Array:
    """Return the values of a partition field. Raises ValueError for a value out of range for the type."""
    values = _transformed(rows, schema, field)
    if isinstance(field.transform, TruncateTransform) and (
        arrow.is_integer(values.type) or arrow.is_decimal(values.type)
    ):
        # The next multiple below the lowest values may be below the type's range: integers wrap round.
        too_low = pc.any(pc.greater(values, _transformed(rows, schema, field, IdentityTransform()))).as_py()
        if too_low or out_of_range(pa.table({field.name: values})):
            raise ValueError(f"{field.name}: {field.transform} of a value is below the lowest {values.type}")
    return values


def _transformed(
    rows: pa.Table, schema: Schema, field: PartitionField | SortField, other: Transform[Any, Any] | None = None
) -> pa.Array:
    """Return the values of a partition or sort field; `other` takes the place of the field's own transform."""
    transform: Transform[Any, Any] = other or field.transform
    if isinstance(transform, VoidTransform):
        # Its column may have been dropped.
        return pa.nulls(rows.num_rows, pa.int32())
    column, kind = _column(rows, schema, field.source_id)
    if isinstance(transform, BucketTransform) and isinstance(kind, TimeType):
        # As in Java, the count of microseconds is hashed; PyIceberg hashes no time.
        column = column.cast(pa.int64())
    return _stored(transform.pyarrow_transform(kind)(column))


def column_of(rows: pa.Table, schema: Schema, field_id: int) -> pa.Array:
    """Return the values of a column outside of lists and maps, in Arrow's own types."""
    return _stored(_column(rows, schema, field_id)[0])


def _column(rows: pa.Table, schema: Schema, field_id: int) -> tuple[pa.ChunkedArray, IcebergType]:
    """Return the values of a column outside of lists and maps, and the column's type in the table."""
    names, field = _find(schema.as_struct(), field_id)
    column = rows.column(names[0])
    return (pc.struct_field(column, names[1:]) if len(names) > 1 else column), field.field_type


def _stored(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the values as a single array, without Arrow's extension types."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def _find(struct: StructType, field_id: int) -> tuple[list[str], NestedField]:
    """Return the names on the way to a field, and the field; without names, the struct lacks the field."""
    for field in struct.fields:
        if field.field_id == field_id:
            return [field.name], field
        if isinstance(field.field_type, StructType):
            names, inner = _find(field.field_type, field_id)
            if names:
                return [field.name, *names], inner
    # Without names, the second value has no meaning.
    return [], struct.fields[0]


def value_codes(values: Sequence[pa.Array], length: int) -> pa.Array:
    """Return a number for each row, equal for equal combinations of values; nulls and NaNs are values, too."""
    codes = pa.repeat(pa.scalar(0, pa.int64()), length)
    for value in values:
        encoded = value.dictionary_encode(null_encoding="encode")
        wide = pc.multiply(codes, pa.scalar(len(encoded.dictionary), pa.int64()))
        codes = pc.add(wide, encoded.indices.cast(pa.int64())).dictionary_encode().indices.cast(pa.int64())
    return codes


def sort_keys(rows: pa.Table, schema: Schema, order: SortOrder) -> list[tuple[pa.Array, str]]:
    """Return columns that sort rows as the order does, each with its direction in Arrow."""
    return [key for field in order.fields for key in _sort_keys(rows, schema, field)]


def _sort_keys(rows: pa.Table, schema: Schema, field: SortField) -> Iterator[tuple[pa.Array, str]]:
    """Yield the keys of a sort field: ranks for nulls and NaNs, if there are any, and the values."""
    column = _transformed(rows, schema, field)
    descending = field.direction is SortDirection.DESC
    has_nan = arrow.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py()
    if column.null_count or has_nan:
        # Iceberg takes NaN for the greatest value, Arrow puts it next to the nulls, first or last.
        nan_rank, value_rank = (1, 2) if descending else (2, 1)
        rank = pa.repeat(pa.scalar(value_rank, pa.int8()), len(column))
        if has_nan:
            rank = pc.if_else(pc.fill_null(pc.is_nan(column), False), pa.scalar(nan_rank, pa.int8()), rank)
        null_rank = 0 if field.null_order is NullOrder.NULLS_FIRST else 3
        yield pc.if_else(column.is_null(), pa.scalar(null_rank, pa.int8()), rank), "ascending"
    yield column, "descending" if descending else "ascending"


def sorted_positions(keys: Sequence[tuple[pa.Array, str]]) -> pa.Array | None:
    """Return the positions of rows in the order of the keys, equal rows in their own order, or None without keys."""
    if not keys:
        return None
    names = [str(number) for number in range(len(keys))]
    table = pa.table([column for column, _ in keys], names=names)
    return pc.sort_indices(table, sort_keys=[(name, order) for name, (_, order) in zip(names, keys, strict=True)])


# Bytes of a folder's name. File systems allow 255; object stores allow some 1,000 for all folders of a path together.
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
        _FileWrite(metadata, io, file_rows, new_path(places, file_rows.partition, prefix, next(numbers)))
        for file_rows in rows_by_partition(metadata, conform(rows, metadata.schema()))
    ]
    if len(plans) == 1:
        return _write_alone(plans[0])
    return _write_side_by_side(plans)


def data_folder(metadata: TableMetadata, folder: str) -> str:
    """Return the location of files written below a folder of the table's data."""
    return f"{load_location_provider(metadata.location, metadata.properties).data_path}/{folder}"


def delete_files(io: FileIO, paths: Iterable[str]) -> list[str]:
    """Delete files if possible; return the paths possibly left. Never raises."""
    undeleted = []
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            continue
        except Exception:  # noqa: BLE001  Runs while another error is on its way, which must not be hidden.
            undeleted.append(path)
    return undeleted


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
        partition = piece.partition.partition if piece.partition else Record()
        sort_order_id = metadata.default_sort_order_id
        return described(output, statistics, partition, spec_id=metadata.default_spec_id, sort_order_id=sort_order_id)


def described(
    output: OutputFile, statistics: DataFileStatistics, partition: Record, *, spec_id: int, sort_order_id: int
) -> DataFile:
    """Return the description of a written data file for a manifest."""
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=output.location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=len(output),
        sort_order_id=sort_order_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    data_file.spec_id = spec_id
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


def new_path(locations: LocationProvider, key: PartitionKey | None, prefix: str, number: int) -> str:
    """Return the location of a new data file, in the partition's folder if its name is not too long."""
    # The writer overwrites without asking, and two processes may count from zero under one prefix.
    name = f"{prefix}-{number:05d}-{uuid.uuid4().hex[:12]}.parquet"
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
    """Write the files in threads; after an error, wait for all writes and delete all files."""
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


def list_files(io: FileIO, folder: str) -> Iterator[str]:
    """Yield the locations of all files below a folder; empty if the folder is missing. Raises CannotList."""
    yield from (file.location for file in stored_files(io, folder))


def referenced(table: Table, paths: Iterable[str], since: int = -1) -> set[str]:
    """Return the part of `paths` referenced by any snapshot, since a rollback to each snapshot is possible.

    :param since: sequence number above which snapshots are read; default: all snapshots.
    """
    remaining, referenced_paths = set(paths), set[str]()
    for manifest in _manifests(table, since):
        if not remaining:
            break
        paths_here = {entry.data_file.file_path for entry in live_entries_of(table.io, manifest)}
        referenced_paths |= remaining & paths_here
        remaining -= paths_here
    return referenced_paths


def delete_unreferenced(table: Table, folder: str) -> tuple[int, int]:
    """Delete the files below a folder without a reference in any snapshot of the table.

    For folders to which no process writes any more. Returns the numbers of deleted files and of files possibly left.
    Raises CannotList, and the file system's errors.
    """
    paths = set(list_files(table.io, folder))
    orphans = paths - referenced(table, paths)
    undeleted = delete_files(table.io, sorted(orphans))
    return len(orphans) - len(undeleted), len(undeleted)


def _manifests(table: Table, since: int) -> Iterator[ManifestFile]:
    """Yield each manifest written above a sequence number once, newest snapshots first."""
    yielded_paths = set[str]()
    snapshots = [s for s in table.snapshots() if (s.sequence_number or 0) > since]
    for snapshot in sorted(snapshots, key=lambda s: s.sequence_number or 0, reverse=True):
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in yielded_paths and (manifest.sequence_number or 0) > since:
                yielded_paths.add(manifest.manifest_path)
                yield manifest
