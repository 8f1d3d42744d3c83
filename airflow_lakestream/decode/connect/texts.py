"""Connect's logical types as text, where a column is text: decimals of any length, dates and times beyond any column.

Also decimals whose scale each value tells, in a column of text or of decimals.
"""

from __future__ import annotations

import re
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.decode.connect.beyond import infinite
from airflow_lakestream.decode.connect.schema import VARIABLE_DECIMAL, Logical, Shape
from airflow_lakestream.decode.json.values import field_coercer
from airflow_lakestream.decode.lanes.lanes import Integers
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.values.misfit import Misfit
from airflow_lakestream.tables.schema.value_ranges import MICROS_PER_DAY

VARIABLE = pa.struct([("scale", pa.int32()), ("value", pa.binary())])

_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
# PostgreSQL's largest scale. Debezium writes one below 0 as 2048 less it, with as many zeros.
_MOST_SCALE = 1000


def fitted(
    values: pa.Array, shape: Shape, kind: pa.DataType, path: str, owners: Integers, reasons: dict[int, str]
) -> pa.Array:
    """Return values of a logical type as text, or as decimals. Raises Unfit where nothing can fit."""
    if shape.name == VARIABLE_DECIMAL:
        texts = [None if one is None else decimal_text(one["value"], one["scale"]) for one in values.to_pylist()]
        return pa.array(texts, kind) if t.is_string(kind) else _decimals(texts, kind, path, owners, reasons)
    assert shape.logical is not None, "only values of logical types are written otherwise"
    if shape.logical.what == "decimal":
        texts = [None if one is None else decimal_text(one, shape.scale) for one in values.to_pylist()]
        return pa.array(texts, kind)
    return pa.array(times(values, shape.logical), kind, mask=values.is_null().to_numpy(zero_copy_only=False))


def decimal_text(unscaled: bytes | None, scale: int | None) -> str | None:
    """Return a decimal's digits, without an exponent."""
    number = Decimal(int.from_bytes(unscaled or b"\0", "big", signed=True))
    exact = number.scaleb(-(scale or 0), _EXACT)
    text = f"{exact:f}"
    return text.rstrip("0").rstrip(".") if (scale or 0) > _MOST_SCALE and "." in text else text


def _decimals(
    texts: list[str | None], kind: pa.DataType, path: str, owners: Integers, reasons: dict[int, str]
) -> pa.Array:
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


def times(values: pa.Array, logical: Logical) -> Any:
    """Return dates, times or timestamps as ISO 8601 has them; a time may be 24:00, and a timestamp infinite."""
    numbers = values.fill_null(0).to_numpy()
    if logical.what == "date":
        texts = np.datetime_as_string(numbers.astype("M8[D]")).astype(object)
    else:
        unit = {1: "ns", 1_000: "us", 1_000_000: "ms"}[logical.nanos]
        moments = np.datetime_as_string(numbers.astype(f"M8[{unit}]")).astype(object)
        if logical.what == "timestamp":
            texts = np.array([f"{one}Z" for one in moments], object) if logical.zoned else moments
        else:
            end = MICROS_PER_DAY * 1000 // logical.nanos
            texts = np.array([one.partition("T")[2] for one in moments], object)
            texts = np.where(numbers == end, np.array([f"24:00:00{one[8:]}" for one in texts], object), texts)
    # numpy pads a year below 0 to three digits.
    texts = np.array([f"-0{one[1:]}" if re.match(r"-\d{3}-", one) else one for one in texts], object)
    plus, minus = infinite(numbers, logical)
    return np.where(plus, "infinity", np.where(minus, "-infinity", texts))
