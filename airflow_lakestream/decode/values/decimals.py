"""Decimals of any precision and scale: the column's type, and the text."""

from __future__ import annotations

from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal

import pyarrow as pa

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
