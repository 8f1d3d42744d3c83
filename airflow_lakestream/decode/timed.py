"""Instants from numbers since the epoch, and from times without a zone, for columns such as `timestamp from epoch_ms`.

Decoders return columns of numbers, or of times without a zone, which are converted to the table's columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.keys import ColumnDecoder
from airflow_lakestream.decode.values.outcome import DecoderResult, all_but
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.types import ELEMENT, EpochUnit, Path, TimeSource
from airflow_lakestream.tables.schema.value_ranges import FINER, MAX_MICROS, MIN_MICROS, NOT_A_YEAR

INSTANT = pa.timestamp("us", tz="UTC")
# A number with a fraction: nine digits behind the point are nanoseconds of seconds, and the 19 digits before the point
# represent any 64-bit number.
EXACT = pa.decimal128(28, 9)
_LOCAL = pa.timestamp("us")

# The sources of time columns, by the column's path.
Sources: TypeAlias = tuple[tuple[Path, TimeSource], ...]
# Returns the type of the number that becomes a time, by the column's path.
Numbers: TypeAlias = Callable[[Path], pa.DataType]
_Rows = npt.NDArray[np.int64]
# Numbers of bad rows, each with the reason.
_Bad = list[tuple[_Rows, str]]


@dataclass(frozen=True)
class TimeColumns:
    """Sources of time columns, by path; the columns of decoders differ from the table's in these columns.

    :param finer: treatment of times finer than microseconds.
    """

    sources: Sources = ()
    finer: TimestampsFiner = TimestampsFiner.REJECT

    def check(self) -> None:
        """Refuse unknown time zones. Raises InvalidArgument."""
        for path, source in self.sources:
            try:
                pc.assume_timezone(pa.array([0], _LOCAL), source.zone or "UTC")
            except pa.ArrowInvalid:
                problem = f"column {'.'.join(path)!r}: there is no time zone {source.zone!r}."
                raise InvalidArgument("schema", problem, "Name one such as 'Europe/Berlin', or 'UTC'.") from None

    def fields(self, columns: pa.Schema, number: Numbers) -> pa.Schema:
        """Return the decoders' columns for the table's columns.

        Raises InvalidArgument for a column that has a source, but is not of instants.
        """
        if not self.sources:
            return columns
        by_path = {path: number(path) if source.unit else _LOCAL for path, source in self.sources}
        return pa.schema([_replaced(column, (column.name,), by_path) for column in columns])

    def columns(self, fields: pa.Schema) -> pa.Schema:
        """Return the table's columns for the decoders' columns."""
        if not self.sources:
            return fields
        by_path = {path: INSTANT for path, _ in self.sources}
        return pa.schema([_replaced(field, (field.name,), by_path, checked=False) for field in fields])

    def converted(self, array: pa.Array, path: Path) -> tuple[pa.Array, _Bad]:
        """Return a table's column for a decoder's column, and the rows without a valid instant, each with the reason.

        :param path: path of the column; inner fields may have sources, too.
        """
        source = dict(self.sources).get(path)
        if source is not None:
            unit, name = source.unit, ".".join(path)
            instants, bad = _of_zone(array, source.zone) if unit is None else _of_number(array, unit, self.finer)
            return instants, [(rows, f"{name}: {reason}") for rows, reason in bad]
        if not any(inner[: len(path)] == path for inner, _ in self.sources):
            return array, []
        if t.is_struct(array.type):
            return self._struct(array, path)
        return self._list(array, path)

    def plain_reason(self, reason: str) -> str:
        """Return the reason for a bad record in the words of the user's schema.

        Decoders read a time column as decimal numbers, so their reason for a text is "is not a decimal number",
        although the user wrote, for example, `timestamp from epoch_ms`. Other reasons are returned unchanged.
        """
        for path, source in self.sources:
            steps = "".join(r"\[\d+\]" if step == ELEMENT else rf"\.{re.escape(step)}" for step in path)
            match = re.fullmatch(rf"({steps[2:]}: .*) is not a decimal number", reason, re.DOTALL)
            if match and source.unit:
                return f"{match[1]} is a text that is no number; the column is given as {source.unit.words}"
        return reason

    def _struct(self, array: pa.Array, path: Path) -> tuple[pa.Array, _Bad]:
        columns, fields, bad = [], [], list[tuple[_Rows, str]]()
        for field, child in zip(array.type, array.flatten(), strict=True):
            column, bad_in_child = self.converted(child, (*path, field.name))
            columns.append(column)
            fields.append(field.with_type(column.type))
            bad += bad_in_child
        return pa.StructArray.from_arrays(columns, fields=fields, mask=array.is_null()), bad

    def _list(self, array: pa.Array, path: Path) -> tuple[pa.Array, _Bad]:
        items, bad = self.converted(array.flatten(), (*path, ELEMENT))
        offsets = np.concatenate([[0], np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy())])
        kind = pa.list_(array.type.value_field.with_type(items.type))
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, type=kind, mask=array.is_null())
        parents = pc.list_parent_indices(array).to_numpy()
        return lists, [(parents[rows], reason) for rows, reason in bad]


@dataclass(frozen=True)
class TimedDecoder:
    """Decoder of fields of records into columns, with times converted from numbers or local times."""

    decoder: ColumnDecoder
    times: TimeColumns

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self.times.columns(self.decoder.schema)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        decoded = self.decoder.decode(batch)
        plain = [replace(row, reason=self.times.plain_reason(row.reason)) for row in decoded.bad]
        decoded = replace(decoded, bad=plain)
        rows, reasons, columns = decoded.rows, dict[int, str](), []
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            converted, bad = self.times.converted(_one_chunk(column), (name,))
            columns.append(converted)
            for bad_rows, reason in bad:
                for row in bad_rows.tolist():
                    reasons.setdefault(row, reason)
        places = all_but(len(batch), [row.index for row in decoded.bad])
        return decoded.refined(places, reasons, columns, self.times.columns(rows.schema))


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _replaced(field: pa.Field, path: Path, by_path: Mapping[Path, pa.DataType], *, checked: bool = True) -> pa.Field:
    """Return a field with other types at some paths; if `checked`, refuse a path whose type is not of instants."""
    if path in by_path:
        if checked and field.type != INSTANT:
            problem = f"column {'.'.join(path)!r} is made of times, and the table has {field.type} there."
            raise InvalidArgument("schema", problem, "Declare the column as the table has it.")
        return field.with_type(by_path[path])
    if t.is_struct(field.type):
        inner = [_replaced(child, (*path, child.name), by_path, checked=checked) for child in field.type]
        return field.with_type(pa.struct(inner))
    if t.is_list(field.type):
        return field.with_type(pa.list_(_replaced(field.type.value_field, (*path, ELEMENT), by_path, checked=checked)))
    return field


def _of_number(array: pa.Array, unit: EpochUnit, finer: TimestampsFiner) -> tuple[pa.Array, _Bad]:
    """Return instants for numbers since the epoch, and the bad rows.

    Digits behind a microsecond are cut, and make the row bad unless `finer` is to truncate.
    """
    scale = Decimal(10**6) / unit.per_second
    exact = array if t.is_decimal(array.type) else array.cast(EXACT)
    micros = pc.multiply(exact, pa.scalar(scale))
    floor = pc.floor(micros)
    low, high = (pa.scalar(Decimal(bound)).cast(floor.type) for bound in (MIN_MICROS, MAX_MICROS))
    outside = pc.or_(pc.less(floor, low), pc.greater(floor, high))
    bad = _bad_values(exact, outside, f"{unit.words}: {NOT_A_YEAR}")
    if finer is TimestampsFiner.REJECT:
        bad += _bad_values(exact, pc.not_equal(floor, micros), f"{unit.words}: {FINER}")
    kept = pc.if_else(outside, pa.scalar(None, floor.type), floor)
    return kept.cast(pa.int64()).cast(INSTANT), bad


def _of_zone(array: pa.Array, zone: str) -> tuple[pa.Array, _Bad]:
    """Return instants for local times, and the bad rows: times that a change of clocks skips or repeats."""
    try:
        return _bounded(array, pc.assume_timezone(array, zone).cast(INSTANT), zone, [])
    except pa.ArrowInvalid:
        first, last = (
            pc.assume_timezone(array, zone, ambiguous=choice, nonexistent=choice) for choice in ("earliest", "latest")
        )
    is_unclear = pc.not_equal(first, last)
    is_skipped = pc.and_(is_unclear, pc.not_equal(pc.local_timestamp(first), array))
    bad = _bad_values(array, is_skipped, f"no time of {zone}: the clocks were put forward")
    bad += _bad_values(array, pc.and_not(is_unclear, is_skipped), f"twice in {zone}: the clocks were put back")
    return _bounded(array, first.cast(INSTANT), zone, bad)


def _bounded(array: pa.Array, instants: pa.Array, zone: str, bad: _Bad) -> tuple[pa.Array, _Bad]:
    """Return the instants, and the bad rows with the rows outside the years 1 to 9999."""
    micros = instants.cast(pa.int64())
    outside = pc.or_(pc.less(micros, MIN_MICROS), pc.greater(micros, MAX_MICROS))
    return instants, bad + _bad_values(array, outside, f"of {zone}: {NOT_A_YEAR}")


def _bad_values(array: pa.Array, chosen: pa.Array, reason: str) -> _Bad:
    """Return the rows where `chosen` is true, not null, each with a reason that begins with the value."""
    if not pc.any(chosen).as_py():
        return []
    places = np.flatnonzero(pc.fill_null(chosen, fill_value=False).to_numpy(zero_copy_only=False))
    return [(np.array([place]), f"{_text(array[place])} {reason}") for place in places.tolist()]


def _text(value: pa.Scalar) -> str:
    if t.is_decimal(value.type):
        text = f"{value.as_py():f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return str(value.cast(pa.string()).as_py())
