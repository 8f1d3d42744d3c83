"""Places of plain records: the columns that order records of a key, as numbers in a mirror's version, or as bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.cdc.columns import COMMIT, SEQUENCE
from airflow_lakestream.cdc.keys.identity import comparable
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import one_array

# The greatest number of columns: the second decides between records with equal values in the first.
MOST = 2


def check_sequence(names: Sequence[str]) -> None:
    """Refuse more than `MOST` columns, or a column named twice. Raises InvalidArgument."""
    if len(names) > MOST or len(set(names)) < len(names):
        raise InvalidArgument("sequence_by", f"{', '.join(names)}: one or two columns order records.")


def check_type(column: pa.Field, *, needs_timestamp: bool = False, is_number: bool = False) -> None:
    """Refuse a column whose values have no order. Raises InvalidArgument.

    :param needs_timestamp: whether the column has to be a timestamp.
    :param is_number: whether `has_numbers` has to accept the type.
    """
    kind = column.type
    if needs_timestamp and not t.is_timestamp(kind):
        remedy = f'Name a column of timestamps; or give it that type, with schema="{column.name} timestamptz".'
        raise InvalidArgument("sequence_by", f"{column.name} is {kind}, and within goes by a timestamp.", remedy)
    if t.is_nested(kind) or t.is_null(kind):
        remedy = f'Name another column; or give it such a type, with schema="{column.name} bigint" for a new table.'
        raise InvalidArgument("sequence_by", f"{column.name} is {kind}, whose values have no order.", remedy)
    if is_number and not has_numbers(kind):
        remedy = "Name a column of integers, floats, dates, times, timestamps or booleans."
        raise InvalidArgument("sequence_by", f"{column.name} is {kind}, and a history goes by numbers.", remedy)


def has_numbers(kind: pa.DataType) -> bool:
    """Return whether 64-bit integers have the order of a type's values."""
    is_time = t.is_date(kind) or t.is_time(kind) or t.is_timestamp(kind)
    is_number = t.is_integer(kind) or t.is_boolean(kind) or t.is_floating(kind)
    return bool(kind != pa.uint64() and (is_number or is_time))


def place_numbers(column: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return a column's values as 64-bit integers in the same order, and a mask of the values that have no integer.

    :param column: of a type that `has_numbers` accepts; a null stays null.
    """
    kind = column.type
    if t.is_floating(kind):
        is_nan = pc.fill_null(pc.is_nan(column), False).to_numpy(zero_copy_only=False)
        return one_array(comparable(pa.table({"number": column}))[0]), is_nan
    if t.is_timestamp(kind) or t.is_time(kind):
        # One unit for all batches: a schema may change the unit.
        return _micros(column, {"s": 10**6, "ms": 10**3, "us": 1, "ns": None}[kind.unit])
    if t.is_date64(kind):
        column = column.cast(pa.date32())
    if t.is_date(kind):
        column = column.cast(pa.int32())
    return column.cast(pa.int64()), np.zeros(len(column), np.bool_)


def place_bytes(columns: Sequence[pa.Array]) -> pa.Array:
    """Return for each record bytes in the order of its values in one or two columns; null if a value is null."""
    parts = [_bytes(column) for column in columns]
    if len(parts) == 1:
        return parts[0]
    # Two zero bytes end the first text, so that they must not be in the text.
    first = pc.replace_substring(parts[0], b"\x00", b"\x00\xff")
    return pc.binary_join_element_wise(first, parts[1], b"\x00\x00")


def _bytes(column: pa.Array) -> pa.Array:
    """Return the values as bytes in the same order, of the same width for all batches."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        column = column.storage
    elif has_numbers(kind):
        column, _ = place_numbers(column)
        numbers = column.fill_null(0).to_numpy().view(np.uint64) ^ np.uint64(1 << 63)
        return _of_width(numbers.astype(">u8"), column)
    elif kind == pa.uint64():
        return _of_width(column.fill_null(0).to_numpy().astype(">u8"), column)
    elif t.is_decimal(kind):
        # One scale and one width for all batches: a schema may change both.
        wide = column.cast(pa.decimal256(76, 38))
        words = np.frombuffer(wide.fill_null(0).buffers()[1], "<u8", len(wide) * 4).reshape(-1, 4)
        words = words[:, ::-1].astype(">u8")
        words[:, 0] ^= np.uint64(1 << 63)
        return _of_width(words, column)
    return column.cast(pa.binary())


def _of_width(numbers: np.ndarray, column: pa.Array) -> pa.Array:
    """Return numbers as bytes; null if the number's item in `column` is null."""
    count = len(column)
    width = numbers.nbytes // count if count else 8
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(numbers.tobytes())])
    return pc.if_else(column.is_valid(), fixed.cast(pa.binary()), pa.scalar(None, pa.binary()))


def with_ranks(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return tables with the rank of `SEQUENCE` among all tables in `COMMIT`; equal bytes have equal ranks."""
    if not tables:
        return []
    sequences = pa.chunked_array(
        [chunk for table in tables for chunk in table[SEQUENCE].cast(pa.binary()).chunks], pa.binary()
    )
    ranks = pc.rank(sequences, tiebreaker="dense").cast(pa.int64())
    ranked, start = [], 0
    for table in tables:
        ranked.append(with_commits(table, ranks.slice(start, len(table))))
        start += len(table)
    return ranked


def with_commits(rows: pa.Table, commits: pa.Array) -> pa.Table:
    """Return rows with other values in `COMMIT`."""
    return rows.set_column(rows.column_names.index(COMMIT), rows.schema.field(COMMIT), commits)


def _micros(column: pa.Array, factor: int | None) -> tuple[pa.Array, np.ndarray]:
    """Return times in microseconds, and a mask of the times out of range.

    :param factor: microseconds of the column's unit; None for nanoseconds.
    """
    integers = column.cast(pa.int32()) if t.is_time32(column.type) else column
    numbers = integers.cast(pa.int64())
    if factor is None:
        # The table's column has microseconds.
        return pc.divide(numbers, 1000), np.zeros(len(column), np.bool_)
    most = (2**63 - 1) // factor
    beyond = pc.or_(pc.greater(numbers, most), pc.less(numbers, -most)).fill_null(False).to_numpy(zero_copy_only=False)
    inside = pc.if_else(pa.array(beyond), pa.scalar(0, pa.int64()), numbers)
    return pc.multiply(inside, factor), beyond
