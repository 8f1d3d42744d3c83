"""Debezium's JSON for database values outside the range of JSON or of a column's type.

Floats that are not numbers are text. Instants outside of the years 1 to 9999 have a sign before the year, or are
`infinity`. Dates are numbers of days. In a row before a change, a UUID that PostgreSQL did not send is an empty text.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import OutOfRange, TimestampsFiner
from airflow_lakestream.decode.json.document import Json, JsonNumber, describe
from airflow_lakestream.decode.json.finer import scalars_for
from airflow_lakestream.decode.json.values import Coerce, Scalars, floating, is_uuid, uuid
from airflow_lakestream.decode.values import iso8601
from airflow_lakestream.decode.values.outcome import Misfit, quoted
from airflow_lakestream.tables.schema.value_ranges import MAX_DAY, MAX_MICROS, MIN_DAY, MIN_MICROS, NOT_A_YEAR

_NO_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_EARLY = re.compile(r"-infinity|(?:-\d{4,}|0000)-\d\d-\d\d(?:T.*)?", re.ASCII)
_LATE = re.compile(r"infinity|\+?\d{5,}-\d\d-\d\d(?:T.*)?", re.ASCII)


def scalars_of(policy: OutOfRange | None, finer: TimestampsFiner) -> Scalars:
    """Return the coercions of types with special values, for these policies."""
    if policy is None:
        return scalars_for(finer)
    return (
        (t.is_floating, _floating),
        (lambda kind: t.is_timestamp(kind) and kind.unit == "us", partial(_timestamp, policy, finer)),
        (t.is_date32, partial(_date, policy)),
        *scalars_for(finer),
    )


def scalars_before(policy: OutOfRange | None, finer: TimestampsFiner) -> Scalars:
    """Return the coercions for a row before a change, for these policies."""
    usual = scalars_of(policy, finer)
    return usual if policy is None else ((is_uuid, _uuid), *usual)


def _floating(kind: pa.DataType) -> Coerce:
    number = floating(kind)
    return lambda value: _NO_NUMBERS[value] if type(value) is str and value in _NO_NUMBERS else number(value)


def _uuid(kind: pa.DataType) -> Coerce:
    read = uuid(kind)
    return lambda value: None if value == "" else read(value)


def _timestamp(policy: OutOfRange, finer: TimestampsFiner, kind: pa.DataType) -> Coerce:
    read = partial(iso8601.micros, zoned=kind.tz is not None, cuts=finer is TimestampsFiner.TRUNCATE)
    return partial(_from_text, read, policy, (MIN_MICROS, MAX_MICROS))


def _date(policy: OutOfRange, kind: pa.DataType) -> Coerce:
    from_text = partial(_from_text, iso8601.days, policy, (MIN_DAY, MAX_DAY))

    def coerce(value: Json) -> Any:
        if not (isinstance(value, JsonNumber) and value.is_integer_literal and len(value) < 12):
            return from_text(value)
        if MIN_DAY <= (days := int(value)) <= MAX_DAY:
            return days
        return _beyond(policy, MIN_DAY if days < 0 else MAX_DAY, f"day {value} since 1970")

    return coerce


def _from_text(read: Any, policy: OutOfRange, bounds: tuple[int, int], value: Json) -> Any:
    if type(value) is not str:
        raise Misfit(f"is {describe(value)}, not a string with a date or a date-time")
    if _EARLY.fullmatch(value):
        return _beyond(policy, bounds[0], quoted(value))
    if _LATE.fullmatch(value):
        return _beyond(policy, bounds[1], quoted(value))
    return read(value)


def _beyond(policy: OutOfRange, bound: int, value: str) -> int | None:
    if policy is OutOfRange.REJECT:
        raise Misfit(f"{value} is {NOT_A_YEAR}")
    return bound if policy is OutOfRange.CLAMP else None
