"""Places of plain records: columns that order records of a key, as numbers of a mirror's version."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.exceptions import InvalidArgument

# The first orders, the second decides between records with equal values in the first.
MOST = 2
_FIT = "integers, dates, times, timestamps and booleans have an order"


def check_sequence(names: Sequence[str]) -> None:
    """Refuse more columns than a version has places for. Raises InvalidArgument."""
    if len(names) > MOST or len(set(names)) < len(names):
        raise InvalidArgument("sequence_by", f"{', '.join(names)}: one or two columns order records.")


def check_type(column: pa.Field, *, is_timed: bool = False) -> None:
    """Refuse a column whose values have no order as integers. Raises InvalidArgument.

    :param is_timed: whether the column has to be a timestamp.
    """
    kind = column.type
    if is_timed and not t.is_timestamp(kind):
        remedy = f'Name a column of timestamps; or give it that type, with schema="{column.name} timestamptz".'
        raise InvalidArgument("sequence_by", f"{column.name} is {kind}, and within goes by a timestamp.", remedy)
    is_fit = t.is_integer(kind) or t.is_date(kind) or t.is_time(kind) or t.is_timestamp(kind) or t.is_boolean(kind)
    if not is_fit or kind == pa.uint64():
        remedy = f'Name another column; or give it such a type, with schema="{column.name} bigint" for a new table.'
        raise InvalidArgument("sequence_by", f"{column.name} is {kind}; {_FIT}.", remedy)


def place_numbers(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return a column's values as 64-bit integers in the same order, and a mask of values outside of their range.

    :param column: of a type that `check_type` accepts; a null stays null.
    """
    kind = column.type
    if t.is_timestamp(kind) or t.is_time(kind):
        # One unit for all batches: a schema may change the unit.
        return _micros(column, {"s": 10**6, "ms": 10**3, "us": 1, "ns": None}[kind.unit])
    if t.is_date64(kind):
        column = column.cast(pa.date32())
    if t.is_date(kind):
        column = column.cast(pa.int32())
    return column.cast(pa.int64()), np.zeros(len(column), np.bool_)


def _micros(column: pa.Array, factor: int | None) -> tuple[pa.Array, np.ndarray]:
    plain = column.cast(pa.int32()) if t.is_time32(column.type) else column
    numbers = plain.cast(pa.int64())
    if factor is None:
        # The column's table has microseconds.
        return pc.divide(numbers, 1000), np.zeros(len(column), np.bool_)
    most = (2**63 - 1) // factor
    beyond = pc.or_(pc.greater(numbers, most), pc.less(numbers, -most)).fill_null(False).to_numpy(zero_copy_only=False)
    inside = pc.if_else(pa.array(beyond), pa.scalar(0, pa.int64()), numbers)
    return pc.multiply(inside, factor), beyond
