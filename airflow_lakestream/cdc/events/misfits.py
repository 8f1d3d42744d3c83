"""Explanation of events unfit for a mirror's columns: the change in the database, and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_lakestream.cdc.stops import ColumnTypeOrigin, MirrorStopped, StopReason, type_changed
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect.debezium import IMAGES
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.tables.schema.value_ranges import is_of_range, is_time_out_of_range

_REMEDY = (
    'Set out_of_range="clamp" to get the nearest value that the column can hold, or "null" to get NULL. Or make the '
    'column a string, with schema="{column} string": drop the mirror, and let Debezium read the table again.'
)
_NO_POLICY = (
    'Make the column a string, with schema="{column} string": drop the mirror, and let Debezium read the table again.'
)


@dataclass
class BadEventExplainer:
    """Decoder of events by `inner`, with an explanation if a bad record ends the run.

    :param columns: finds the columns of an event in its content.
    :param table: the mirror's name.
    :param policy: the value of the argument `out_of_range`, for the error.
    :param stops: whether a bad record ends the run.
    """

    inner: Any
    columns: Callable[[RawBatch], pa.Schema]
    table: str
    policy: str
    stops: bool

    @property
    def schema(self) -> pa.Schema:
        """The columns before the next batch."""
        held: pa.Schema = self.inner.schema
        return held

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch.

        If bad records end the run, and the first one shows a changed type or a value out of range, MirrorStopped is
        raised.
        """
        decoded: DecoderResult = self.inner.decode(batch)
        if self.stops and decoded.bad and (stop := self._stop(batch, decoded)) is not None:
            raise stop
        return decoded

    def _stop(self, batch: RawBatch, decoded: DecoderResult) -> MirrorStopped | None:
        # The error for the first bad record, or None if the record does not show a change of the database.
        bad = decoded.bad[0]
        name = _column(bad, decoded.rows.schema.names)
        # NULL has no type.
        if name is None or bad.reason.endswith(", and the column is required"):
            return None
        held, event_type = decoded.rows.schema.field(name).type, self._event_type(batch, bad.index, name)
        place = batch.partition, batch.offsets[bad.index]
        # A number may be too large because the database's column has become larger.
        is_of_type = is_time_out_of_range(bad.reason) or (
            is_of_range(bad.reason) and (event_type is None or event_type == held)
        )
        if event_type is not None and not is_of_type and event_type != held:
            return type_changed(
                self.table, name, ColumnTypeOrigin(held, "in the mirror"), ColumnTypeOrigin.at(event_type, *place)
            )
        if not is_of_range(bad.reason):
            return None
        problem = (
            f"the change event at partition {place[0]}, offset {place[1]} has a value that the column {name} "
            f'({held}) can\'t hold: {bad.reason.partition(".")[2]} (out_of_range="{self.policy}").'
        )
        remedy = _REMEDY if is_time_out_of_range(bad.reason) else _NO_POLICY
        return MirrorStopped(self.table, StopReason.VALUE_OUT_OF_RANGE, problem, remedy.format(column=name))

    def _event_type(self, batch: RawBatch, at: int, name: str) -> pa.DataType | None:
        # The column's type in the event itself, by a batch of this single record; None if unknown.
        try:
            columns = self.columns(batch.cut(slice(at, at + 1)))
        except LakestreamError:
            return None
        return columns.field(name).type if name in columns.names else None


def _column(bad: BadRow, names: Sequence[str]) -> str | None:
    """Return the column with the bad value, or None if the record is bad as a whole."""
    # The reason begins with the path of the value: the image, then the column, then maybe a field or an item. A
    # longer name of a column may begin with a shorter one.
    for image in IMAGES:
        path = bad.reason.removeprefix(f"{image}.")
        if path != bad.reason:
            found = [name for name in names if path.startswith(name) and path[len(name) : len(name) + 1] in (*":.[{",)]
            return max(found, key=len, default=None)
    return None
