"""Writer of a Parquet data file, like PyIceberg with the same table properties, except for two encodings.

PyIceberg's own writer takes neither a choice of columns for dictionaries nor a limit of rows to fit large values.
A file can also be written on trial, without being kept.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.types import UUIDType

from airflow_lakestream.iceberg.table_properties import codec_of, number, with_known_modes
from airflow_lakestream.iceberg.write.bounds import unbounded
from airflow_lakestream.tables.coordinates import OFFSET


class TrialFileIO(FileIO):
    """FileIO for trials, without any stored file."""

    def new_output(self, location: str) -> OutputFile:
        """Return a file for counting bytes only."""
        return _CountOnlyFile(location)

    def new_input(self, location: str) -> InputFile:
        """Raise FileNotFoundError: a trial stores no file."""
        raise FileNotFoundError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Ignore the call: a trial stores no file."""


class _CountOnlyFile(OutputFile):
    def __init__(self, location: str) -> None:
        super().__init__(location)
        self._stream = pa.MockOutputStream()

    def __len__(self) -> int:
        return int(self._stream.size())

    def exists(self) -> bool:
        return False

    def create(self, overwrite: bool = False) -> Any:
        return self._stream

    def to_input_file(self) -> InputFile:
        raise FileNotFoundError(self.location)


_NO_METRICS = MetricsMode(MetricModeTypes.NONE)
# The first of UTF-16's surrogates, which are not characters, and the first character behind them.
_SURROGATES, _BEHIND_SURROGATES = 0xD800, 0xE000
# Prefixes of table properties that are ignored here.
_NOT_DONE = (
    TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES,
    TableProperties.PARQUET_BLOOM_FILTER_MAX_BYTES,
    TableProperties.PARQUET_BLOOM_FILTER_COLUMN_ENABLED_PREFIX,
)


class ParquetDataFile:
    """Writer of a data file in the types of the first rows, row group by row group.

    :param first: the first rows, conforming; they are not written by this.
    """

    def __init__(self, output: OutputFile, schema: Schema, properties: Mapping[str, str], first: pa.Table) -> None:
        if ignored := [name for name in properties if name.startswith(_NOT_DONE)]:
            warnings.warn(f"Parquet files are written without what {', '.join(ignored)} asks for.", stacklevel=2)
        self._schema, self._properties, self._paths = schema, dict(properties), parquet_path_to_id_mapping(schema)
        # Paths of columns without statistics: see `_options`.
        self._without = {path for path, number in self._paths.items() if isinstance(schema.find_type(number), UUIDType)}
        self.most_rows = row_group_rows(properties)
        self.types = first.schema
        self._stream = output.create(overwrite=True)
        try:
            options = _options(self._properties, first, self._paths, self._without)
            self._writer = pq.ParquetWriter(self._stream, self.types, **options)
        except BaseException:
            self._stream.close()
            raise

    def write(self, rows: pa.Table) -> None:
        """Write rows as row groups of at most `most_rows` rows."""
        self._writer.write_table(rows, row_group_size=self.most_rows)

    def __enter__(self) -> ParquetDataFile:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._writer.close()
        finally:
            self._stream.close()

    def statistics(self) -> DataFileStatistics:
        """Return the closed file's statistics for a manifest."""
        footer = self._writer.writer.metadata
        plan = compute_statistics_plan(self._schema, with_known_modes(self._properties))
        for path in self._without:
            field_id = self._paths[path]
            plan[field_id] = replace(plan[field_id], mode=_NO_METRICS)
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer, stats_columns=plan, parquet_column_mapping=self._paths
        )
        for column in unbounded(footer):
            # PyIceberg takes the bounds of the other row groups for those of the whole column.
            statistics.column_aggregates.pop(self._paths[footer.schema.column(column).path], None)
        for bounds in statistics.column_aggregates.values():
            if isinstance(bounds.current_max, str) and bounds.trunc_length:
                bounds.current_max = upper_bound(bounds.current_max, bounds.trunc_length)
        return statistics


def row_group_rows(properties: Mapping[str, str]) -> int:
    """Return the greatest number of rows of a row group."""
    return _number(dict(properties), "PARQUET_ROW_GROUP_LIMIT", TableProperties.PARQUET_ROW_GROUP_LIMIT_DEFAULT)


def write_parquet(
    output: OutputFile, schema: Schema, properties: Mapping[str, str], rows: pa.Table
) -> DataFileStatistics:
    """Write conforming rows as a file; return the statistics for a manifest."""
    with ParquetDataFile(output, schema, properties, rows) as file:
        file.write(rows)
    return file.statistics()


def upper_bound(text: str, length: int) -> str | None:
    """Return an upper bound for a text, of at most `length` characters, or None if there is none.

    PyIceberg's own function turns U+D7FF, the last character before the surrogates, into a surrogate without its other
    half, which can't be written.
    """
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        following = ord(text[end - 1]) + 1
        if following <= sys.maxunicode:
            return text[: end - 1] + chr(_BEHIND_SURROGATES if following == _SURROGATES else following)
    return None


def _options(
    properties: dict[str, str], rows: pa.Table, paths: Iterable[str], without: Collection[str]
) -> dict[str, Any]:
    """Return the options of Arrow's writer for rows like these; columns at the paths `without` get no statistics."""
    codec, level = codec_of(properties)
    page_size = _number(properties, "PARQUET_PAGE_SIZE_BYTES", TableProperties.PARQUET_PAGE_SIZE_BYTES_DEFAULT)
    # The size of a page is checked after this many rows: 20,000 values of 1 MiB would be one page of 20 GiB.
    fitting = max(1, page_size * rows.num_rows // max(1, rows.nbytes))
    page_rows = min(TableProperties.PARQUET_PAGE_ROW_LIMIT_DEFAULT, fitting)
    return {
        "store_decimal_as_integer": True,
        "compression": codec,
        "compression_level": level,
        "data_page_size": page_size,
        "dictionary_pagesize_limit": _number(
            properties, "PARQUET_DICT_SIZE_BYTES", TableProperties.PARQUET_DICT_SIZE_BYTES_DEFAULT
        ),
        "write_batch_size": _number(properties, "PARQUET_PAGE_ROW_LIMIT", page_rows),
        # No two offsets are alike: a dictionary took a third of the time of writing clickstream events of 200 bytes,
        # and made the files a third larger.
        "use_dictionary": [path for path in paths if path != OFFSET],
        # Engines disagree on the order of UUIDs, so that filters would skip rows: Iceberg's Java up to 1.11 compares
        # signed halves, ClickHouse the second half first (apache/iceberg#14216, ClickHouse/ClickHouse#118366).
        "write_statistics": [path for path in paths if path not in without],
    }


def _number(properties: dict[str, str], name: str, default: int) -> int:
    return number(properties, getattr(TableProperties, name), default)
