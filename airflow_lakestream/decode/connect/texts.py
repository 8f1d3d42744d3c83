"""Connect's logical types as text, for columns of text: decimals of any length, dates and times beyond any column.

Also decimals with a scale in each value, as text or decimals; and the policy for dates and times of Debezium that
are numbers outside a column's range.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import OutOfRange
from airflow_lakestream.decode.connect.schema import VARIABLE_DECIMAL, ConnectType, LogicalType
from airflow_lakestream.decode.json.values import field_coercer
from airflow_lakestream.decode.lanes.lanes import Integers, Mask
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.values.decimals import decimal_text
from airflow_lakestream.decode.values.outcome import Misfit, quoted
from airflow_lakestream.tables.schema.value_ranges import MAX_DAY, MAX_MICROS, MICROS_PER_DAY, MIN_DAY, MIN_MICROS

# Numbers of Debezium 3.2 for PostgreSQL's infinite dates, from a snapshot and from the stream; the numbers overflow.
_DATES = ({-622191234, -2147472692}, {-625821272, -2147472691})
# More digits of an exponent would make a text of any length.
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")
# PostgreSQL has no earlier timestamp; a lower number is a number above 2**63 after an overflow.
_EARLIEST = -211_000_000_000_000_000
# Debezium's -infinity.
_MINUS = -9_223_372_036_832_400_000


def infinite(values: Integers, logical: LogicalType) -> tuple[Mask, Mask]:
    """Return masks of the numbers for infinity (also after an overflow), and of the numbers for -infinity.

    Only dates and timestamps have such numbers.
    """
    if logical.meaning == "date":
        plus, minus = (np.isin(values, list(numbers)) for numbers in _DATES)
        return plus, minus
    if logical.meaning != "timestamp":
        nothing = np.zeros(len(values), np.bool_)
        return nothing, nothing
    # The constants are microseconds; the scale is the number of the type's units in a millisecond.
    scale = 1000 // max(logical.nanos // 1000, 1) if logical.nanos >= 1000 else 1000 * 1000
    earliest, minus_one, plus_one = (one // 1000 * scale for one in (_EARLIEST, _MINUS, -_MINUS - 7_200_000_000))
    minus = values == minus_one
    return ((values < earliest) & ~minus) | (values >= plus_one), minus


def settled(values: Integers, logical: LogicalType, policy: OutOfRange) -> Integers:
    """Return numbers moved into the range of dates or times, or unchanged numbers if the policy is to reject.

    Infinity becomes the last value of the range, -infinity the first.
    """
    if policy is OutOfRange.REJECT:
        return values
    low, high = _bounds(logical)
    plus, minus = infinite(values, logical)
    return np.where(plus, high, np.where(minus, low, np.clip(values, low, high)))


def replaced(
    column: pa.Array, values: Integers, settled: Integers, logical: LogicalType, policy: OutOfRange
) -> pa.Array:
    """Return a column with the policy's values for the numbers that were out of range.

    :param column: made of the numbers in `settled`.
    :param values: the numbers as written.
    :param settled: the numbers moved into the range, see the function `settled`.
    """
    moved = settled != values
    if policy is OutOfRange.NULL:
        return pc.if_else(pa.array(moved), pa.scalar(None, column.type), column)
    if policy is OutOfRange.REJECT or not (t.is_timestamp(column.type) or t.is_time(column.type)):
        return column
    # A number of milliseconds can't express the last microsecond of the column's range.
    last = MICROS_PER_DAY - 1 if logical.meaning == "time" else MAX_MICROS
    latest = moved & (settled == _bounds(logical)[1])
    return pc.if_else(pa.array(latest), pa.scalar(last).cast(column.type), column)


def _bounds(logical: LogicalType) -> tuple[int, int]:
    if logical.meaning == "date":
        return MIN_DAY, MAX_DAY
    low, high = (0, MICROS_PER_DAY - 1) if logical.meaning == "time" else (MIN_MICROS, MAX_MICROS)
    if logical.nanos == 1:
        return max(low * 1000, -(2**63)), min(high * 1000, 2**63 - 1)
    unit = logical.nanos // 1000
    return -(-low // unit), high // unit


VARIABLE = pa.struct([("scale", pa.int32()), ("value", pa.binary())])


def fitted(
    values: pa.Array, shape: ConnectType, kind: pa.DataType, path: str, owners: Integers, reasons: dict[int, str]
) -> pa.Array:
    """Return values of a logical type as text; a decimal with a scale of its own may become a decimal instead."""
    # Raises Unfit if no value can fit; a value that does not fit is null, and `reasons` gets the reason for its row.
    if shape.name == VARIABLE_DECIMAL:
        texts = [None if one is None else decimal_text(one["value"], one["scale"]) for one in values.to_pylist()]
        return pa.array(texts, kind) if t.is_string(kind) else _decimals(texts, kind, path, owners, reasons)
    assert shape.logical is not None, "only values of logical types are written otherwise"
    if shape.logical.meaning == "decimal":
        texts = [None if one is None else decimal_text(one, shape.scale) for one in values.to_pylist()]
        return pa.array(texts, kind)
    return pa.array(times(values, shape.logical), kind, mask=values.is_null().to_numpy(zero_copy_only=False))


def plain(numbers: pa.Array, kind: pa.DataType, path: str, owners: Integers, reasons: dict[int, str]) -> pa.Array:
    """Return JSON's numbers as decimal text: all digits, without an exponent.

    A text that is not a decimal, or has a huge exponent, is null; `reasons` gets the reason for its row.

    :param owners: the row of each number.
    """
    made: list[str | None] = []
    for text, owner in zip(numbers.to_pylist(), owners.tolist(), strict=True):
        is_number = text is None or _NUMBER.fullmatch(text)
        made.append(f"{Decimal(text):f}" if text is not None and is_number else None)
        if not is_number:
            reasons.setdefault(owner, f"{path}: {quoted(text)} is not a decimal")
    return pa.array(made, kind)


def _decimals(
    texts: list[str | None], kind: pa.DataType, path: str, owners: Integers, reasons: dict[int, str]
) -> pa.Array:
    # A text that the column can't represent exactly is null, and its row gets a reason.
    if not t.is_decimal128(kind):
        raise Unfit(f"{path}: a decimal can't become {kind}")
    coerce, made = field_coercer(pa.field(path, kind), fail_unknown=False), list[Any]()
    for text, owner in zip(texts, owners.tolist(), strict=True):
        try:
            made.append(coerce(text))
        except Misfit as misfit:
            reasons.setdefault(owner, f"{path}: {misfit.problem}")
            made.append(None)
    return pa.array(made, kind)


def times(values: pa.Array, logical: LogicalType) -> Any:
    """Return dates, times or timestamps in ISO 8601; a time may be 24:00, and a timestamp or a date infinite.

    The text for a null has no meaning.
    """
    numbers = values.fill_null(0).to_numpy()
    if logical.meaning == "date":
        texts = np.datetime_as_string(numbers.astype("M8[D]")).astype(object)
    else:
        unit = {1: "ns", 1_000: "us", 1_000_000: "ms"}[logical.nanos]
        moments = np.datetime_as_string(numbers.astype(f"M8[{unit}]")).astype(object)
        if logical.meaning == "timestamp":
            texts = np.array([f"{one}Z" for one in moments], object) if logical.zoned else moments
        else:
            end = MICROS_PER_DAY * 1000 // logical.nanos
            texts = np.array([one.partition("T")[2] for one in moments], object)
            texts = np.where(numbers == end, np.array([f"24:00:00{one[8:]}" for one in texts], object), texts)
    # numpy pads a year below 0 to three digits.
    texts = np.array([f"-0{one[1:]}" if re.match(r"-\d{3}-", one) else one for one in texts], object)
    plus, minus = infinite(numbers, logical)
    return np.where(plus, "infinity", np.where(minus, "-infinity", texts))
