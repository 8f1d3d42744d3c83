"""Dates, times and timestamps that Debezium sends as numbers, and that lie outside of what a column can hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import OutOfRange
from airflow_lakestream.decode.connect.schema import Logical
from airflow_lakestream.decode.lanes.lanes import Integers, Mask
from airflow_lakestream.tables.schema.value_ranges import MAX_DAY, MAX_MICROS, MICROS_PER_DAY, MIN_DAY, MIN_MICROS

# What Debezium 3.2 makes of PostgreSQL's infinite dates: read by a snapshot, and streamed; the numbers run over.
_DATES = ({-622191234, -2147472692}, {-625821272, -2147472691})
# PostgreSQL has no timestamp before that; a lower number is one above 2**63 that ran over.
_EARLIEST = -211_000_000_000_000_000
# Debezium's -infinity.
_MINUS = -9_223_372_036_832_400_000


def infinite(values: Integers, logical: Logical) -> tuple[Mask, Mask]:
    """Tell which numbers stand for infinity, or have run over on the way there; and which for -infinity."""
    if logical.what == "date":
        plus, minus = (np.isin(values, list(numbers)) for numbers in _DATES)
        return plus, minus
    if logical.what != "timestamp":
        nothing = np.zeros(len(values), np.bool_)
        return nothing, nothing
    scale = 1000 // max(logical.nanos // 1000, 1) if logical.nanos >= 1000 else 1000 * 1000
    earliest, minus_one, plus_one = (one // 1000 * scale for one in (_EARLIEST, _MINUS, -_MINUS - 7_200_000_000))
    minus = values == minus_one
    return ((values < earliest) & ~minus) | (values >= plus_one), minus


def settled(values: Integers, logical: Logical, policy: OutOfRange) -> Integers:
    """Return numbers that are in range, as far as the policy says so."""
    if policy is OutOfRange.REJECT:
        return values
    low, high = _bounds(logical)
    plus, minus = infinite(values, logical)
    return np.where(plus, high, np.where(minus, low, np.clip(values, low, high)))


def replaced(column: pa.Array, values: Integers, settled: Integers, logical: Logical, policy: OutOfRange) -> pa.Array:
    """Return the column of settled numbers with what the policy gives for those that were out of range."""
    moved = settled != values
    if policy is OutOfRange.NULL:
        return pc.if_else(pa.array(moved), pa.scalar(None, column.type), column)
    if policy is OutOfRange.REJECT or not (t.is_timestamp(column.type) or t.is_time(column.type)):
        return column
    # A number of milliseconds can't say the last microsecond that the column holds.
    last = MICROS_PER_DAY - 1 if logical.what == "time" else MAX_MICROS
    latest = moved & (settled == _bounds(logical)[1])
    return pc.if_else(pa.array(latest), pa.scalar(last).cast(column.type), column)


def _bounds(logical: Logical) -> tuple[int, int]:
    if logical.what == "date":
        return MIN_DAY, MAX_DAY
    low, high = (0, MICROS_PER_DAY - 1) if logical.what == "time" else (MIN_MICROS, MAX_MICROS)
    if logical.nanos == 1:
        return max(low * 1000, -(2**63)), min(high * 1000, 2**63 - 1)
    unit = logical.nanos // 1000
    return -(-low // unit), high // unit
