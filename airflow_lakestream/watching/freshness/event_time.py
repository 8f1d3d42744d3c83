"""The newest event of a table, by a column's bounds in the manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import (
    DateType,
    IcebergType,
    PrimitiveType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.replace.takeout import added_files

_ARGUMENT = "event_time_column"
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class EventTimes:
    """A column of a table, read by bounds. Times are milliseconds since the epoch; times without zone are UTC."""

    table: Table
    column: str
    field_id: int
    type: PrimitiveType

    @classmethod
    def of(cls, table: Table, column: str) -> EventTimes:
        """Find the column. Raises InvalidArgument if the column does not exist or has no time."""
        try:
            field = table.schema().find_field(column)
        except ValueError as e:
            names = ", ".join(one.name for one in table.schema().fields)
            raise InvalidArgument(_ARGUMENT, f"{column!r} is not a column of {_name(table)}; it has {names}.") from e
        if not isinstance(field.field_type, PrimitiveType) or _milliseconds(field.field_type, 0) is None:
            raise InvalidArgument(_ARGUMENT, f"{column!r} is of type {field.field_type}, not a timestamp or a date.")
        return cls(table, column, field.field_id, field.field_type)

    def newest(self, snapshot_ids: Iterable[int], until_ms: int) -> int | None:
        """Return the newest event in the files added by the given snapshots.

        Returns None without an event up to `until_ms`. Times are milliseconds since the epoch. A file with an event
        dated after `until_ms` is skipped: its bound does not show the newest past event. Raises InvalidArgument if the
        manifests keep no bounds of the column.
        """
        newest: int | None = None
        for file in self._files(set(snapshot_ids)):
            bound = (file.upper_bounds or {}).get(self.field_id)
            if bound is None:
                self._check_empty(file)
                continue
            at = _milliseconds(self.type, int(from_bytes(self.type, bound)))
            if at is not None and at > until_ms - _DAY_MS and isinstance(self.type, DateType):
                # A date column's day reaches to its end, which for today is in the future.
                at = min(at, until_ms) if at - _DAY_MS < until_ms else at
            if at is not None and at <= until_ms and (newest is None or at > newest):
                newest = at
        return newest

    def _files(self, snapshot_ids: set[int]) -> Iterator[DataFile]:
        for snapshot in self.table.metadata.snapshots:
            if snapshot.snapshot_id in snapshot_ids:
                yield from added_files(self.table, snapshot)

    def _check_empty(self, file: DataFile) -> None:
        nulls = (file.null_value_counts or {}).get(self.field_id)
        # A file without rows, or with only nulls, has no bounds for a good reason.
        if file.record_count and nulls != file.record_count:
            raise InvalidArgument(
                _ARGUMENT,
                f"the manifests of {_name(self.table)} keep no bounds of {self.column!r}.",
                f"Set the table property write.metadata.metrics.column.{self.column} to full; files that land from "
                "then on have them.",
            )


def _milliseconds(kind: IcebergType, value: int) -> int | None:
    """Return a bound as milliseconds since the epoch, or None for a type without time."""
    if isinstance(kind, TimestampType | TimestamptzType):
        return value // 1000
    if isinstance(kind, TimestampNanoType | TimestamptzNanoType):
        return value // 1_000_000
    # A date means events up to the day's end.
    return (value + 1) * _DAY_MS - 1 if isinstance(kind, DateType) else None


def _name(table: Table) -> str:
    return ".".join(table.name())
