"""Values of logical types in Connect's JSON, from numbers and base64 to the columns' types.

JSON is first decoded into the types that the converter writes (`written`), then exactly converted to the columns' types
(`fitted`).
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import OutOfRange, TimestampsFiner
from airflow_lakestream.decode.connect.schema import NUMBER, VARIABLE_DECIMAL, ConnectType, LogicalType
from airflow_lakestream.decode.json.values import field_coercer
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, Mask, list_array, map_array
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.values.outcome import Misfit, quoted
from airflow_lakestream.tables.schema.value_ranges import (
    MAX_DAY,
    MAX_MICROS,
    MICROS_PER_DAY,
    MIN_DAY,
    MIN_MICROS,
    decimal_text,
    is_time_out_of_range,
)

# Overflowed numbers of Debezium 3.2 for PostgreSQL's dates infinity and -infinity, each from a snapshot and the stream.
_DATES = ({-622191234, -2147472692}, {-625821272, -2147472691})
# A JSON number; with more digits of the exponent, the text without an exponent could have any length.
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,4})?")
# In microseconds: PostgreSQL has no earlier timestamp; a lower number is a number above 2**63 after an overflow.
_EARLIEST = -211_000_000_000_000_000
# Debezium's -infinity, and its +infinity, which is less far from 0.
_MINUS_INFINITY = -9_223_372_036_832_400_000
_PLUS_INFINITY = 9_223_372_036_825_200_000


def infinite(values: Integers, logical: LogicalType) -> tuple[Mask, Mask]:
    """Return masks of the dates or timestamps for infinity, even after an overflow, and for -infinity."""
    if logical.meaning == "date":
        plus, minus = (np.isin(values, list(numbers)) for numbers in _DATES)
        return plus, minus
    if logical.meaning != "timestamp":
        none = np.zeros(len(values), np.bool_)
        return none, none
    units_per_millisecond = 1_000_000 // logical.nanos
    bounds = (_EARLIEST, _MINUS_INFINITY, _PLUS_INFINITY)
    earliest, minus_infinity, plus_infinity = (micros // 1000 * units_per_millisecond for micros in bounds)
    minus = values == minus_infinity
    # A number before the earliest timestamp is +infinity after an overflow.
    return ((values < earliest) & ~minus) | (values >= plus_infinity), minus


def settled(values: Integers, logical: LogicalType, policy: OutOfRange) -> Integers:
    """Return the numbers moved into the range of dates or times, or unchanged if the policy is to reject.

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

    :param column: the column of the numbers in `settled`.
    :param values: the numbers as written.
    :param settled: the numbers moved into the range by the function `settled`.
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
    """Return the first and the last number in the range of a date, time or timestamp, in the type's unit."""
    if logical.meaning == "date":
        return MIN_DAY, MAX_DAY
    low, high = (0, MICROS_PER_DAY - 1) if logical.meaning == "time" else (MIN_MICROS, MAX_MICROS)
    if logical.nanos == 1:
        return max(low * 1000, -(2**63)), min(high * 1000, 2**63 - 1)
    unit = logical.nanos // 1000
    return -(-low // unit), high // unit


VARIABLE = pa.struct([("scale", pa.int32()), ("value", pa.binary())])


def fitted_text(
    values: pa.Array, shape: ConnectType, kind: pa.DataType, path: str, owners: Integers, reasons: dict[int, str]
) -> pa.Array:
    """Return values of a logical type as text; a decimal with a scale of its own may become a decimal instead.

    Raises Unfit if no value can fit. A value that does not fit is null, and its row gets a reason in `reasons`.
    """
    if shape.name == VARIABLE_DECIMAL:
        decimals = values.to_pylist()
        texts = [None if value is None else decimal_text(value["value"], value["scale"]) for value in decimals]
        return pa.array(texts, kind) if t.is_string(kind) else _decimals(texts, kind, path, owners, reasons)
    assert shape.logical is not None, "only values of logical types are written in another type"
    if shape.logical.meaning == "decimal":
        texts = [None if value is None else decimal_text(value, shape.scale) for value in values.to_pylist()]
        return pa.array(texts, kind)
    return pa.array(times(values, shape.logical), kind, mask=values.is_null().to_numpy(zero_copy_only=False))


def plain(numbers: pa.Array, kind: pa.DataType, path: str, owners: Integers, reasons: dict[int, str]) -> pa.Array:
    """Return JSON's numbers as decimal text: all digits, without an exponent.

    A text that is not a decimal, or has a huge exponent, is null; `reasons` gets the reason for its row.

    :param owners: the row of each number.
    """
    texts: list[str | None] = []
    for text, owner in zip(numbers.to_pylist(), owners.tolist(), strict=True):
        is_number = text is None or _NUMBER.fullmatch(text)
        texts.append(f"{Decimal(text):f}" if text is not None and is_number else None)
        if not is_number:
            reasons.setdefault(owner, f"{path}: {quoted(text)} is not a decimal")
    return pa.array(texts, kind)


def _decimals(
    texts: list[str | None], kind: pa.DataType, path: str, owners: Integers, reasons: dict[int, str]
) -> pa.Array:
    """Return texts as decimals; a text that the column can't represent exactly is null, and its row gets a reason."""
    if not t.is_decimal128(kind):
        raise Unfit(f"{path}: a decimal can't become {kind}")
    coerce, decimals = field_coercer(pa.field(path, kind), fail_unknown=False), list[Any]()
    for text, owner in zip(texts, owners.tolist(), strict=True):
        try:
            decimals.append(coerce(text))
        except Misfit as misfit:
            reasons.setdefault(owner, f"{path}: {misfit.problem}")
            decimals.append(None)
    return pa.array(decimals, kind)


def times(values: pa.Array, logical: LogicalType) -> Any:
    """Return dates, times or timestamps in ISO 8601; a time may be 24:00, a timestamp or a date infinite.

    The text for a null has no meaning.
    """
    numbers = values.fill_null(0).to_numpy()
    if logical.meaning == "date":
        texts = np.datetime_as_string(numbers.astype("M8[D]")).astype(object)
    else:
        unit = {1: "ns", 1_000: "us", 1_000_000: "ms"}[logical.nanos]
        moments = np.datetime_as_string(numbers.astype(f"M8[{unit}]")).astype(object)
        if logical.meaning == "timestamp":
            texts = np.array([f"{moment}Z" for moment in moments], object) if logical.zoned else moments
        else:
            end_of_day = MICROS_PER_DAY * 1000 // logical.nanos
            texts = np.array([moment.partition("T")[2] for moment in moments], object)
            late_texts = np.array([f"24:00:00{text[8:]}" for text in texts], object)
            texts = np.where(numbers == end_of_day, late_texts, texts)
    # numpy pads a year below 0 only to three digits.
    texts = np.array([f"-0{text[1:]}" if re.match(r"-\d{3}-", text) else text for text in texts], object)
    plus, minus = infinite(numbers, logical)
    return np.where(plus, "infinity", np.where(minus, "-infinity", texts))


# The bytes of lanes that only collect failures: the values are numbers already, and no bytes are read.
_NO_BYTES = np.zeros(64, np.uint8)
_SINGLE = ("float", "float32")


class BatchRows:
    """Rows of a batch: the `reasons` of bad rows by number, the numbers of `all` rows, and the policies for times."""

    def __init__(self, count: int, out_of_range: OutOfRange, finer: TimestampsFiner) -> None:
        self.out_of_range, self.finer = out_of_range, finer
        self.reasons: dict[int, str] = {}
        self.all = np.arange(count)


def written(shape: ConnectType | None, kind: pa.DataType) -> pa.DataType:
    """Return the type into which JSON is decoded for a column of type `kind`; `fitted` converts from this type.

    The type is `kind` itself if JSON has the column's values in the usual form.

    :param shape: the values' type in the record's schema; None if unknown.
    """
    if shape is None:
        return kind
    if (logical := shape.logical) is not None:
        return _written_as(logical, kind)
    if shape.kind == NUMBER and t.is_string(kind):
        # Another type than the column's, so that `fitted` converts the texts: digits may have an exponent.
        return pa.large_string()
    if shape.kind in _SINGLE and t.is_float64(kind):
        # The shortest digits of a float are not its exact value, which the double must have.
        return pa.float32()
    if shape.name == VARIABLE_DECIMAL and not t.is_struct(kind):
        return VARIABLE
    if shape.kind == "struct" and t.is_struct(kind):
        return pa.struct([written_field(shape.fields.get(field.name), field) for field in kind])
    if shape.kind == "array" and (t.is_list(kind) or t.is_large_list(kind)):
        make = pa.large_list if t.is_large_list(kind) else pa.list_
        return make(written_field(shape.items, kind.value_field))
    if shape.kind == "map" and t.is_map(kind):
        return pa.map_(kind.key_type, written_field(shape.items, kind.item_field))
    return kind


def written_field(shape: ConnectType | None, field: pa.Field) -> pa.Field:
    """Return a field with the type of `written`."""
    return field.with_type(written(shape, field.type))


def _written_as(logical: LogicalType, kind: pa.DataType) -> pa.DataType:
    """Return the type for base64 or numbers; or `kind` if the column's type is not the values' logical type."""
    if logical.meaning == "decimal" and (t.is_decimal128(kind) or t.is_string(kind)):
        return pa.binary()
    if t.is_string(kind):
        return pa.int64()
    is_type = {"date": t.is_date32, "time": t.is_time64, "timestamp": t.is_timestamp}.get(logical.meaning)
    return pa.int64() if is_type is not None and is_type(kind) else kind


def fitted(
    values: pa.Array, shape: ConnectType | None, kind: pa.DataType, path: str, owners: Integers, rows: BatchRows
) -> pa.Array:
    """Return values of the type `written(shape, kind)` as values of `kind`.

    A value that does not fit makes its row bad, unless the policy for values out of range replaces the value.

    :param path: the field's path, for the reasons.
    :param owners: the number of each value's row.
    :param rows: the policies; the reasons of bad rows are added.

    Raises Unfit if no value can fit.
    """
    if shape is None or values.type == kind:
        return values
    if shape.kind == NUMBER:
        return plain(values, kind, path, owners, rows.reasons)
    if t.is_string(kind) or shape.name == VARIABLE_DECIMAL:
        return fitted_text(values, shape, kind, path, owners, rows.reasons)
    if t.is_struct(kind):
        # flatten() makes the children of a null struct null: without it, any value may be there.
        children = [
            fitted(child, shape.fields.get(field.name), field.type, f"{path}.{field.name}", owners, rows)
            for child, field in zip(values.flatten(), kind, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        return _fitted_items(values, shape, kind, path, owners, rows)
    return _fitted_leaf(values, shape, kind, path, owners, rows)


def _fitted_items(
    values: pa.Array, shape: ConnectType, kind: pa.DataType, path: str, owners: Integers, rows: BatchRows
) -> pa.Array:
    """Return arrays or maps with their items converted; null has no items."""
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    dense = values.filter(pa.array(is_valid))
    lengths = np.diff(dense.offsets.to_numpy().astype(np.int64))
    first, last = dense.offsets[0].as_py(), dense.offsets[-1].as_py()
    item_owners = np.repeat(owners[is_valid], lengths)
    if t.is_map(kind):
        items = fitted(dense.items[first:last], shape.items, kind.item_type, f"{path}{{}}", item_owners, rows)
        pairs = pa.StructArray.from_arrays([dense.keys[first:last], items], names=["key", "value"])
        return _spread(map_array(pairs, lengths, kind), is_valid)
    items = fitted(dense.values[first:last], shape.items, kind.value_type, f"{path}[]", item_owners, rows)
    return _spread(list_array(items, lengths, kind), is_valid)


def _fitted_leaf(
    values: pa.Array, shape: ConnectType, kind: pa.DataType, path: str, owners: Integers, rows: BatchRows
) -> pa.Array:
    """Return scalars of a logical type, converted; numbers out of range are first moved into it, by the policy."""
    if (logical := shape.logical) is None:
        return values.cast(kind)
    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    dense, dense_owners = values.filter(pa.array(is_valid)), owners[is_valid]
    count = len(dense)
    lanes = ByteLanes(_NO_BYTES, np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64), [""])
    convert = _converter(logical, shape, kind, path, rows.finer)
    if logical.meaning == "decimal":
        converted = convert(lanes, dense)
    else:
        numbers = dense.to_numpy()
        in_range = settled(numbers, logical, rows.out_of_range)
        converted = replaced(convert(lanes, in_range), numbers, in_range, logical, rows.out_of_range)
    for lane in np.flatnonzero(lanes.failure).tolist():
        reason = lanes.reasons[lanes.failure[lane]]
        if is_time_out_of_range(reason):
            reason = f"{reason}: {times(dense.slice(lane, 1), logical)[0]}"
        rows.reasons.setdefault(int(dense_owners[lane]), reason)
    return _spread(converted, is_valid)


def _converter(
    logical: LogicalType, shape: ConnectType, kind: pa.DataType, path: str, finer: TimestampsFiner
) -> leaves.Converter:
    if logical.meaning == "decimal":
        return leaves.decimals(kind, path, shape.scale)
    if logical.meaning == "date":
        return leaves.dates(kind, path)
    if logical.meaning == "time":
        return leaves.times(kind, path, logical.nanos, finer=finer)
    return leaves.timestamps(kind, path, logical.nanos, zoned=logical.zoned, finer=finer)


def _spread(dense: pa.Array, is_valid: Mask) -> pa.Array:
    """Return the values of `dense` at the positions of the mask, and null elsewhere."""
    if is_valid.all():
        return dense
    return dense.take(pa.array(np.cumsum(is_valid) - 1, mask=~is_valid))
