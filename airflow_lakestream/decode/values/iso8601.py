"""Conversion of ISO 8601 text to Arrow's integers: microseconds and days since the epoch.

No value is rounded. A value finer than a microsecond is refused, or cut on request: the result is the microsecond
before, even before 1970.
"""

from __future__ import annotations

import re
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.decode.values.outcome import Misfit, quoted
from airflow_lakestream.tables.schema.types import EpochUnit
from airflow_lakestream.tables.schema.value_ranges import FINER_TEXT, MAX_MICROS, MICROS_PER_DAY, MIN_MICROS

MICROS_PER_SECOND = 1_000_000
_EPOCH = date(1970, 1, 1).toordinal()

_DAY = r"(\d{4})-(\d\d)-(\d\d)"
_CLOCK = r"(\d\d)(?::(\d\d)(?::(\d\d)(?:[.,](\d+))?)?)?"
_ZONE = r"(Z|([+-])(\d\d)(?::?(\d\d))?)"
_DATE = re.compile(_DAY, re.ASCII)
_TIME = re.compile(_CLOCK, re.ASCII)
_DATE_TIME = re.compile(f"{_DAY}(?:[T ]{_CLOCK}{_ZONE}?)?", re.ASCII)
# The digits behind microseconds; only times have such a part, and a time without it is still a time.
_FINER = r"(:[0-9]{2}[.,][0-9]{6})[0-9]+"


_WITH_EXPONENT = re.compile(r"\d(?:\.\d+)?[eE]\+?\d\d?", re.ASCII)
# The seconds since the epoch from September 2001, the first with ten digits, to the end of 2099; and by the number of
# digits, the unit of a time in these years.
_EPOCH_S = range(10**9, 4_102_444_800)
_UNITS = {10: EpochUnit.SECONDS, 13: EpochUnit.MILLISECONDS, 16: EpochUnit.MICROSECONDS, 19: EpochUnit.NANOSECONDS}


def epoch_unit(text: str) -> EpochUnit | None:
    """Return the likely unit of a number as a time since the epoch, or None if no unit is likely.

    The unit is likely if the number's integer part then means a time from September 2001 to the end of 2099.
    """
    # Java writes large doubles with an exponent.
    digits = (f"{Decimal(text):f}" if _WITH_EXPONENT.fullmatch(text) else text).partition(".")[0]
    unit = _UNITS.get(len(digits))
    if unit is None or not (digits.isascii() and digits.isdecimal()):
        return None
    return unit if int(digits) // unit.per_second in _EPOCH_S else None


def epoch_hint(text: str) -> str:
    """Return a hint about a number in place of a date-time: likely unit and remedy; empty if no unit is likely."""
    unit = epoch_unit(text)
    return f' (likely {unit.words}: in schema, "timestamp from {unit}" makes times of such numbers)' if unit else ""


def cut_text(text: str) -> str:
    """Return a date-time or a time without the digits behind the microseconds."""
    return re.sub(_FINER, r"\1", text, count=1)


def cut(texts: pa.Array) -> pa.Array:
    """Return texts without the digits behind the microseconds."""
    return pc.replace_substring_regex(texts, _FINER, r"\1", max_replacements=1)


def days(text: str) -> int:
    """Return the days since the epoch of a date like 2026-11-20. Raises Misfit."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise Misfit(f"{quoted(text)} is not a date (YYYY-MM-DD)")
    return _days(text, *match.groups())


def micros_of_day(text: str, *, cuts: bool = False) -> int:
    """Return the microseconds since midnight of a time like 05:05:00.123; hours and minutes are required.

    :param cuts: see `micros`.

    Raises Misfit.
    """
    match = _TIME.fullmatch(text)
    if match is None or match[2] is None:
        raise Misfit(f"{quoted(text)} is not a time (HH:MM:SS.ffffff)")
    return _clock(text, *match.groups(), cuts=cuts)


def micros(text: str, *, zoned: bool, cuts: bool = False) -> int:
    """Return the microseconds since the epoch of a date-time.

    :param zoned: whether the text needs an offset or Z. Otherwise the text must have neither, and may be a date alone
        (midnight).
    :param cuts: whether digits behind microseconds are left out; otherwise they are a misfit, unless they are zeros.

    Raises Misfit.
    """
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        raise Misfit(f"{quoted(text)} is not an ISO 8601 date-time{epoch_hint(text)}")
    year, month, day, hour, minute, second, fraction, zone, *offset = match.groups()
    if zoned and zone is None:
        remedy = "in schema, \"timestamp at time zone 'UTC'\" or another specifies which one is meant"
        raise Misfit(f"{quoted(text)} has no zone, and the column needs an offset or Z ({remedy})")
    if zone is not None and not zoned:
        raise Misfit(f"{quoted(text)} has a zone, and the column has none")
    instant = _days(text, year, month, day) * MICROS_PER_DAY
    if hour is not None:
        instant += _clock(text, hour, minute, second, fraction, cuts=cuts)
    if offset[0] is not None:
        instant -= _offset(text, *offset)
    if not MIN_MICROS <= instant <= MAX_MICROS:
        raise Misfit(f"{quoted(text)} is outside the years 1 to 9999 in UTC")
    return instant


def _days(text: str, year: str, month: str, day: str) -> int:
    try:
        return date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:
        raise Misfit(f"{quoted(text)} is not a day of the calendar (years 1 to 9999)") from None


def _clock(text: str, hour: str, minute: str | None, second: str | None, fraction: str | None, *, cuts: bool) -> int:
    hours, minutes, seconds = int(hour), int(minute or 0), int(second or 0)
    if hours > 23 or minutes > 59 or seconds > 59:
        raise Misfit(f"{quoted(text)} is not between 00:00:00 and 23:59:59 (no leap seconds, no 24:00)")
    micros_of_seconds = ((hours * 60 + minutes) * 60 + seconds) * MICROS_PER_SECOND
    if fraction is None:
        return micros_of_seconds
    if fraction[6:].strip("0") and not cuts:
        raise Misfit(f"{quoted(text)} is {FINER_TEXT}")
    return micros_of_seconds + int(fraction[:6].ljust(6, "0"))


def _offset(text: str, sign: str, hour: str, minute: str | None) -> int:
    hours, minutes = int(hour), int(minute or 0)
    if hours > 23 or minutes > 59:
        raise Misfit(f"{quoted(text)} has an impossible offset")
    return (-1 if sign == "-" else 1) * (hours * 60 + minutes) * 60 * MICROS_PER_SECOND
