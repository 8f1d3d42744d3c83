"""Handover of data files between workers: metadata of the files as JSON, with the state of the target table.

A value of a partition is written with the Python type that the writer gave it, so the reader gives PyIceberg the same
value as within one process. The version is in the handed object around it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.utils.concurrent import ExecutorFactory

from airflow_lakestream.iceberg.write.files import delete_files
from airflow_lakestream.tables.schema.change import metadata_of
from airflow_lakestream.tables.schema.columns import to_schema

# Attributes of a data file: values of JSON, numbers by column, and bytes by column.
_PLAIN = ("file_path", "record_count", "file_size_in_bytes", "split_offsets", "sort_order_id")
_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")
_READERS: dict[str, Callable[[str], Any]] = {"bytes": base64.b64decode, "float": float.fromhex, "decimal": Decimal}


@dataclass(frozen=True)
class IcebergOutline:
    """Outline of a table for another process; also a catalog with this table only."""

    name: str
    metadata: TableMetadata
    io: FileIO

    def load_table(self, name: str) -> Table:
        """Return the table. Raises NoSuchTableError for another table."""
        if name != self.name:
            raise NoSuchTableError(f"{name}: only {self.name} is known here")
        return Table(tuple(name.split(".")), self.metadata, "", self.io, NoopCatalog("outline"))

    def without_history(self) -> IcebergOutline:
        """Return the outline with the metadata needed for writing only, since many outlines may be sent at once."""
        properties = {key: text for key, text in self.metadata.properties.items() if not key.startswith("lakestream.")}
        bare: dict[str, Any] = {"properties": properties, "refs": {}, "current_snapshot_id": None}
        bare |= {"snapshots": [], "snapshot_log": [], "metadata_log": []}
        return replace(self, metadata=self.metadata.model_copy(update=bare))


def staging_outline(table: Table, columns: pa.Schema) -> IcebergOutline:
    """Return the outline of a staging table with these columns, and with files at the location of `table`."""
    own = {key: value for key, value in table.metadata.properties.items() if not key.startswith("lakestream.")}
    # No reader chooses such files by statistics.
    plain = {**own, TableProperties.DEFAULT_WRITE_METRICS_MODE: "none"}
    metadata = metadata_of(to_schema(columns), table.metadata.location, plain)
    return IcebergOutline(".".join(table.name()), metadata, table.io)


def open_file(outline: IcebergOutline, file: Mapping[str, Any]) -> Any:
    """Open a handed file of a staging table for reading."""
    return outline.io.new_input(file["file_path"]).open()


def uri(outline: IcebergOutline, file: Mapping[str, Any]) -> str:
    """Return the URI of a handed file of a staging table."""
    return str(file["file_path"])


def rows_in(file: Mapping[str, Any]) -> int:
    """Return the number of rows in a handed file of a staging table."""
    return int(file["record_count"])


def delete(outline: IcebergOutline, files: Iterable[Mapping[str, Any]]) -> list[str]:
    """Delete handed files of a staging table if possible; return the paths possibly left. Never raises."""
    return delete_files(outline.io, [file["file_path"] for file in files])


def encode_files(metadata: TableMetadata, files: Iterable[DataFile]) -> dict[str, Any]:
    """Return files written for the table as JSON, with the data for `misfit`."""
    return {
        "table_uuid": str(metadata.table_uuid),
        "schema": _fingerprint(metadata.schema()),
        "spec_id": metadata.default_spec_id,
        "files": [_encode(file) for file in files],
    }


def decode_files(handed: Mapping[str, Any]) -> list[DataFile]:
    """Return the files as PyIceberg's data files."""
    return [_decode(item, handed["spec_id"]) for item in handed["files"]]


def misfit(metadata: TableMetadata, io: FileIO, handed: Mapping[str, Any]) -> str | None:
    """Return the reason why handed files do not fit the table, or None."""
    if handed["table_uuid"] != str(metadata.table_uuid):
        return "the table was dropped and created again since they were written"
    if handed["schema"] != _fingerprint(metadata.schema()):
        return "the table's schema was changed since they were written"
    if handed["spec_id"] != metadata.default_spec_id:
        return "the table's partition spec was changed since they were written"
    missing = _gone(io, [item["file_path"] for item in handed["files"]])
    return f"they are gone, such as {missing[0]}" if missing else None


def _fingerprint(schema: Schema) -> str:
    # The schema's id does not count: a schema that the commit is to add may get another id, and another schema may get
    # this one.
    return hashlib.sha256(schema.as_struct().model_dump_json().encode()).hexdigest()[:16]


def _gone(io: FileIO, paths: Sequence[str]) -> list[str]:
    """Return the paths of missing files: an earlier try of the commit may have swept these."""
    answers = ExecutorFactory.get_or_create().map(lambda path: io.new_input(path).exists(), paths)
    return [path for path, exists in zip(paths, answers, strict=True) if not exists]


def _encode(file: DataFile) -> dict[str, Any]:
    return {
        "partition": [_value_to_json(file.partition[position]) for position in range(len(file.partition))],
        **{name: getattr(file, name) for name in _PLAIN},
        **{name: _by_column(getattr(file, name), int) for name in _COUNTS},
        **{name: _by_column(getattr(file, name), _text) for name in _BOUNDS},
    }


def _decode(item: Mapping[str, Any], spec_id: int) -> DataFile:
    values: dict[str, Any] = {
        **{name: item[name] for name in _PLAIN},
        **{name: _from_columns(item[name], int) for name in _COUNTS},
        **{name: _from_columns(item[name], base64.b64decode) for name in _BOUNDS},
    }
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_format=FileFormat.PARQUET,
        partition=Record(*map(_value_from_json, item["partition"])),
        equality_ids=None,
        key_metadata=None,
        **values,
    )
    file.spec_id = spec_id
    return file


def _by_column(values: Mapping[int, Any] | None, write: Any) -> dict[str, Any] | None:
    return None if values is None else {str(column): write(value) for column, value in values.items()}


def _from_columns(values: Mapping[str, Any] | None, read: Any) -> dict[int, Any] | None:
    return None if values is None else {int(column): read(value) for column, value in values.items()}


def _value_to_json(value: Any) -> Any:
    # JSON has no bytes and no NaN, and Airflow's databases refuse what is not JSON.
    if isinstance(value, bytes):
        return {"bytes": _text(value)}
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{value!r} of type {type(value).__name__} is not a value of a partition")


def _value_from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return _READERS[kind](text)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
