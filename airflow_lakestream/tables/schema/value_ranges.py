"""Ranges of the values of each column type, the same for decoders, SQL and writers; decimals of any scale.

Times of any kind end with the year 9999 and begin with the year 1, in UTC: Python, SQL engines and readers of Iceberg
and Delta can all show these. Arrow accepts any number as a time, and decimals of more digits than the type has; values
out of range are found here, by whole columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow

# Days, microseconds and milliseconds count from 1970-01-01; _EPOCH is this day's number in Python's calendar.
MICROS_PER_DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()
MIN_DAY = date.min.toordinal() - _EPOCH
MAX_DAY = date.max.toordinal() - _EPOCH
MIN_MICROS = MIN_DAY * MICROS_PER_DAY
MAX_MICROS = (MAX_DAY + 1) * MICROS_PER_DAY - 1
MIN_MILLIS = MIN_MICROS // 1000
MAX_MILLIS = MAX_MICROS // 1000

NOT_A_YEAR = "not in the years 1 to 9999"
NOT_A_TIME_OF_DAY = "not a time of day"
TOO_MANY_DIGITS = "more digits than the column has"
FINER = 'finer than microseconds: timestamps_finer="truncate" cuts it'
FINER_TEXT = f"{FINER}, and a column of string keeps it"
FINER_NUMBER = f"{FINER}, and a column of bigint keeps the number"
FINER_MESSAGE = f"{FINER}, and a column of struct<seconds: bigint, nanos: int> keeps it"

_Rows = npt.NDArray[np.int64]


def out_of_range(rows: pa.Table) -> dict[int, str]:
    """Return the numbers of the rows with a value out of range, each with the column's path and the problem.

    Of several problems in a row, the first is returned.
    """
    reasons: dict[int, str] = {}
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not _is_bounded(field.type):
            continue
        first = 0
        for chunk in column.chunks:
            for path, problem, places in _outside(chunk, field.name):
                for place in places.tolist():
                    reasons.setdefault(first + place, f"{path}: {problem}")
            first += len(chunk)
    return reasons


def is_time_out_of_range(reason: str) -> bool:
    """Return whether the reason of a bad record is a date or time out of the column's range."""
    return NOT_A_YEAR in reason or NOT_A_TIME_OF_DAY in reason


def is_of_range(reason: str) -> bool:
    """Return whether a record is bad because of a value out of the range of the column's type."""
    return is_time_out_of_range(reason) or TOO_MANY_DIGITS in reason or "out of range for" in reason


@lru_cache(maxsize=1024)
def _is_bounded(kind: pa.DataType) -> bool:
    """Return whether values of this type can be out of range."""
    if arrow.is_nested(kind):
        return any(_is_bounded(kind.field(number).type) for number in range(kind.num_fields))
    return any(matches(kind) for matches, *_ in _BOUNDS)


def _outside(array: pa.Array, path: str) -> Iterator[tuple[str, str, _Rows]]:
    """Yield path, problem and row numbers of the array's values out of range."""
    kind = array.type
    if arrow.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            if _is_bounded(field.type):
                yield from _outside(child, f"{path}.{field.name}")
    elif arrow.is_map(kind):
        # The map is read as a list of pairs: a map's keys and items would include values below a NULL.
        pairs = pa.struct([kind.key_field, kind.item_field])
        entries = array.cast(pa.list_(pa.field("entries", pairs, nullable=False)))
        yield from _items(entries, path)
    elif arrow.is_nested(kind):
        yield from _items(array, f"{path}.element")
    elif (bad := _wrong(array)) is not None:
        yield path, *bad


def _items(lists: pa.Array, path: str) -> Iterator[tuple[str, str, _Rows]]:
    """Yield path, problem and row numbers of the lists' items out of range."""
    owners = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    for inner, problem, places in _outside(lists.flatten(), path):
        yield inner, problem, owners[places]


def _wrong(array: pa.Array) -> tuple[str, _Rows] | None:
    """Return the problem and the row numbers of values out of range; None without such values."""
    for matches, storage, low, high, problem in _BOUNDS:
        if matches(array.type):
            values = array if storage is None else array.view(storage)
            lowest, highest = (pa.scalar(bound(array.type), values.type) for bound in (low, high))
            low_end, high_end = pc.min_max(values).as_py().values()
            if low_end is None or lowest.as_py() <= low_end <= high_end <= highest.as_py():
                return None
            wrong = pc.or_(pc.less(values, lowest), pc.greater(values, highest)).fill_null(False)
            return problem, np.flatnonzero(wrong.to_numpy(zero_copy_only=False))
    return None


_Bound = Callable[[pa.DataType], int | Decimal]


def _largest(kind: pa.DataType) -> Decimal:
    return Decimal((0, (9,) * kind.precision, -kind.scale))


def _smallest(kind: pa.DataType) -> Decimal:
    return _largest(kind).copy_negate()


# Test of a type, the integer type of its values (None: the type itself), the least and greatest value, and the problem.
_BOUNDS: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType | None, _Bound, _Bound, str], ...] = (
    (arrow.is_timestamp, pa.int64(), lambda kind: MIN_MICROS, lambda kind: MAX_MICROS, NOT_A_YEAR),
    (arrow.is_date32, pa.int32(), lambda kind: MIN_DAY, lambda kind: MAX_DAY, NOT_A_YEAR),
    (arrow.is_time64, pa.int64(), lambda kind: 0, lambda kind: MICROS_PER_DAY - 1, NOT_A_TIME_OF_DAY),
    (arrow.is_decimal128, None, _smallest, _largest, TOO_MANY_DIGITS),
)


# Most digits that a decimal column holds.
DECIMAL_DIGITS = 38

# No database has a larger scale; PostgreSQL has this scale. The text of an unlimited scale would fill the memory.
MOST_SCALE = 16_383

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
# The largest scale of a declared type of PostgreSQL. Debezium writes a scale of -n as 2048 - n, with as many zeros.
_MOST_DECLARED = 1000


def column_type(precision: int, scale: int) -> pa.DataType:
    """Return the type of a column for decimals of this precision and scale, or text if no decimal column fits.

    With a scale below 0, numbers end in zeros, which need digits of the column, too: the result has a scale of 0. If
    the scale is above the precision, the column has as many digits as the scale.
    """
    if -DECIMAL_DIGITS < scale < 0:
        return pa.decimal128(min(DECIMAL_DIGITS, precision - scale), 0)
    width = max(precision, scale)
    return pa.decimal128(width, scale) if scale >= 0 and width <= DECIMAL_DIGITS else pa.string()


def decimal_text(unscaled: bytes | None, scale: int | None) -> str | None:
    """Return a decimal's digits, without an exponent; None counts as 0, and a scale of None as 0."""
    number = Decimal(int.from_bytes(unscaled or b"\0", "big", signed=True))
    exact = number.scaleb(-(scale or 0), _EXACT)
    text = f"{exact:f}"
    return text.rstrip("0").rstrip(".") if (scale or 0) > _MOST_DECLARED and "." in text else text


def fitting_decimal(unscaled: bytes, scale: int, most_digits: int, most_fraction: int) -> Decimal | None:
    """Return a decimal for a column, or None without bytes, or if the column has too few digits.

    :param unscaled: the digits as a number, big-endian in two's complement.
    :param most_digits: precision of the column.
    :param most_fraction: scale of the column.
    """
    exact = Decimal(int.from_bytes(unscaled, "big", signed=True)).scaleb(-scale, _EXACT)
    units = exact.scaleb(most_fraction, _EXACT)
    unscaled_value = int(units)
    fits = unscaled and unscaled_value == units and abs(unscaled_value) < 10**most_digits
    return Decimal(unscaled_value).scaleb(-most_fraction, _EXACT) if fits else None
