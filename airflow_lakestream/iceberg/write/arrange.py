"""Arrangement of rows in data files: by partition, then by the table's sort order.

One stable sort arranges all rows, so the cost does not grow with the number of partitions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, StructType, TimeType

from airflow_lakestream.iceberg.table_properties import number
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


def arrange(metadata: TableMetadata, rows: pa.Table) -> Iterator[DataFileRows]:
    """Yield the pieces of conforming rows for the table's spec and order: at least a piece, each with rows."""
    schema, spec = metadata.schema(), metadata.spec()
    values = [_partition_values(rows, schema, field) for field in spec.fields]
    codes = _codes(values, rows.num_rows)
    counts = sorted((run["values"], run["counts"]) for run in pc.value_counts(codes).to_pylist())
    keys = [key for field in metadata.sort_order().fields for key in _sort_keys(rows, schema, field)]
    positions = _positions([(codes, "ascending"), *keys] if len(counts) > 1 else keys)
    if positions is not None:
        rows = rows.combine_chunks()
    target = _target_size(metadata) * rows.num_rows // max(1, rows.nbytes)
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


def _target_size(metadata: TableMetadata) -> int:
    """Return the target size of a file; like in PyIceberg, the size in memory counts."""
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
        return Record(*(one.value for one in self.field_values))


def _partition_key(metadata: TableMetadata, values: Sequence[pa.Scalar]) -> PartitionKey:
    spec = metadata.spec()
    return _FilePartition(
        [PartitionFieldValue(field, _in_manifest(value)) for field, value in zip(spec.fields, values, strict=True)],
        spec,
        metadata.schema(),
    )


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
    transform: Transform[Any, Any] = other or field.transform
    if isinstance(transform, VoidTransform):
        # Its column may have been dropped.
        return pa.nulls(rows.num_rows, pa.int32())
    names, source = _find(schema.as_struct(), field.source_id)
    column = rows.column(names[0])
    if len(names) > 1:
        column = pc.struct_field(column, names[1:])
    if isinstance(transform, BucketTransform) and isinstance(source.field_type, TimeType):
        # As in Java, the count of microseconds is hashed; PyIceberg hashes no time.
        column = column.cast(pa.int64())
    result = transform.pyarrow_transform(source.field_type)(column)
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    return result.storage if isinstance(result, pa.ExtensionArray) else result


def _find(struct: StructType, field_id: int) -> tuple[list[str], NestedField]:
    for field in struct.fields:
        if field.field_id == field_id:
            return [field.name], field
        if isinstance(field.field_type, StructType):
            names, found = _find(field.field_type, field_id)
            if names:
                return [field.name, *names], found
    return [], struct.fields[0]


def _codes(values: Sequence[pa.Array], length: int) -> pa.Array:
    """Return a number for each row, equal for equal combinations of values; nulls and NaNs are values, too."""
    codes = pa.repeat(pa.scalar(0, pa.int64()), length)
    for value in values:
        encoded = value.dictionary_encode(null_encoding="encode")
        wide = pc.multiply(codes, pa.scalar(len(encoded.dictionary), pa.int64()))
        codes = pc.add(wide, encoded.indices.cast(pa.int64())).dictionary_encode().indices.cast(pa.int64())
    return codes


def _sort_keys(rows: pa.Table, schema: Schema, field: SortField) -> Iterator[tuple[pa.Array, str]]:
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


def _positions(keys: Sequence[tuple[pa.Array, str]]) -> pa.Array | None:
    if not keys:
        return None
    names = [str(at) for at in range(len(keys))]
    table = pa.table([column for column, _ in keys], names=names)
    return pc.sort_indices(table, sort_keys=[(name, order) for name, (_, order) in zip(names, keys, strict=True)])
