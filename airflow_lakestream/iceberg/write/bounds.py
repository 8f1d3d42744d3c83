"""Bounds of a data file's columns: bounds missing in a Parquet footer, and too narrow bounds in manifests.

A row group has no minimum and maximum of a column if one of the two is longer than 4096 bytes. Bounds joined from the
other row groups alone leave such values out, and every engine's filter skips their rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import parquet_path_to_id_mapping, pyarrow_to_schema
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, FileFormat
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import BinaryType, FixedType, StringType

# Types whose bounds have the bytes, and the order, of the values themselves.
_BY_BYTES = (StringType, BinaryType, FixedType)
# The struct of a data file in a manifest of format version 2.
_DATA_FILE = DATA_FILE_TYPE[2]


def unbounded(footer: pq.FileMetaData) -> dict[int, list[int]]:
    """Return by column the row groups that have values of the column and no minimum and maximum, all by number."""
    groups_by_column: dict[int, list[int]] = {}
    for group in range(footer.num_row_groups):
        for column in range(footer.num_columns):
            chunk = footer.row_group(group).column(column)
            statistics = chunk.statistics if chunk.is_stats_set else None
            if statistics is not None and statistics.has_min_max:
                continue
            if statistics is None or not statistics.has_null_count or statistics.null_count < chunk.num_values:
                groups_by_column.setdefault(column, []).append(group)
    return groups_by_column


def too_narrow(io: FileIO, file: DataFile, names: NameMapping | None) -> frozenset[int]:
    """Return the ids of columns with values in a data file beyond the bounds in the manifest.

    Only files of several row groups are opened. Raises the store's errors.
    """
    bounds = {**(file.lower_bounds or {}), **(file.upper_bounds or {})}
    if file.file_format != FileFormat.PARQUET or not bounds or len(file.split_offsets or ()) == 1:
        return frozenset()
    with io.new_input(file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        lacking = unbounded(parquet.metadata)
        if not lacking:
            return frozenset()
        schema = pyarrow_to_schema(parquet.schema_arrow, names, downcast_ns_timestamp_to_us=True)
        ids = parquet_path_to_id_mapping(schema)
        narrow = set()
        for column, groups in lacking.items():
            field_id = ids.get(parquet.schema.column(column).path)
            if field_id in bounds and isinstance(schema.find_type(field_id), _BY_BYTES):
                low, high = (ends.get(field_id) for ends in (file.lower_bounds or {}, file.upper_bounds or {}))
                if any(_is_beyond(parquet, column, group, low, high) for group in groups):
                    narrow.add(field_id)
        return frozenset(narrow)


def _is_beyond(parquet: pq.ParquetFile, column: int, group: int, low: bytes | None, high: bytes | None) -> bool:
    """Return whether a row group has a value of the column outside of the bounds."""
    # The column is read by its number: a name with a dot may be the name of a nested column, too.
    values = parquet.reader.read_row_group(group, column_indices=[column]).column(0)
    # Of the structs around the column, only this field was read.
    while pa.types.is_struct(values.type):
        values = pc.struct_field(values, [0])
    if pa.types.is_nested(values.type):
        # No filter uses bounds of lists and maps.
        return False
    ends = pc.min_max(values.cast(pa.large_binary()))
    least, most = ends["min"].as_py(), ends["max"].as_py()
    return (low is not None and least is not None and least < low) or (
        high is not None and most is not None and most > high
    )


def without_bounds(file: DataFile, columns: frozenset[int]) -> DataFile:
    """Return a copy of the data file without bounds of these columns."""
    values = {field.name: getattr(file, field.name) for field in _DATA_FILE.fields}
    for name in ("lower_bounds", "upper_bounds"):
        values[name] = _without(values[name], columns)
    copy = DataFile.from_args(**values)
    copy.spec_id = file.spec_id
    return copy


def _without(bounds: Mapping[int, bytes] | None, columns: frozenset[int]) -> dict[int, bytes] | None:
    return None if bounds is None else {column: bound for column, bound in bounds.items() if column not in columns}
