"""Numbers of few digits in JSON text: eight digits at a time, for many numbers at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_lakestream.decode.lanes.lanes import Integers, Mask, Words
from airflow_lakestream.decode.lanes.spans import TextBuffer, leading

# Integers below 2**53, divided by such a power, are rounded once: any parser returns the same number.
_MOST_DIGITS = 15
_SAMPLE = 32
_POWERS = 10 ** np.arange(_MOST_DIGITS + 1, dtype=np.int64)

_MINUS, _POINT, _ZERO = b"-.0"
_ZEROS = np.uint64(0x3030303030303030)
_ABOVE_NINE = np.uint64(0x7676767676767676)
_HIGH = np.uint64(0x8080808080808080)
_EIGHT, _BYTE, _ONES = np.uint64(8), np.uint64(0xFF), np.uint64(0xFFFFFFFFFFFFFFFF)
_STEPS = (
    (np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(2561), np.uint64(8)),
    (np.uint64(0x00FF00FF00FF00FF), np.uint64(6553601), np.uint64(16)),
    (np.uint64(0x0000FFFF0000FFFF), np.uint64(42949672960001), np.uint64(32)),
)


def integers(
    texts: TextBuffer, starts: Integers, stops: Integers, kind: type[np.signedinteger[Any]]
) -> tuple[npt.NDArray[Any], Mask]:
    """Return integers of up to 18 digits, and a mask of the texts with such an integer, in range for the type.

    Values outside the mask have no meaning.
    """
    starts, negative = _behind_sign(texts, starts)
    sizes = stops - starts
    values, good = _digits(texts, stops, sizes, 18)
    good &= (sizes == 1) | ((sizes > 1) & (texts.bytes[starts] != _ZERO))
    if negative is not None:
        values = np.where(negative, -values, values)
    if kind is np.int64:
        return values, good
    limits = np.iinfo(kind)
    return values.astype(kind), good & (values >= limits.min) & (values <= limits.max)


def doubles(texts: TextBuffer, starts: Integers, stops: Integers) -> tuple[npt.NDArray[np.float64], Mask]:
    """Return numbers of up to 15 digits without an exponent, and a mask of the texts with such a number.

    Values outside the mask have no meaning. If most texts of a sample are longer, no text is in the mask.
    """
    sample = slice(None, None, 1 + len(starts) // _SAMPLE)
    if np.median(stops[sample] - starts[sample]) > _MOST_DIGITS + 2:
        # Random numbers are written this way: too many digits.
        return np.zeros(len(starts)), np.zeros(len(starts), np.bool_)
    starts, negative = _behind_sign(texts, starts)
    if np.maximum.reduce(stops - starts) > 8:
        values, good = _doubles(texts, starts, stops)
    else:
        values, good = _short_doubles(texts.words[starts], stops - starts)
    return (np.where(negative, -values, values) if negative is not None else values), good


def _short_doubles(words: Words, sizes: Integers) -> tuple[npt.NDArray[np.float64], Mask]:
    """Return numbers of up to 8 bytes without a sign, and a mask of the valid numbers.

    :param words: the 8 bytes at the start of each number.
    :param sizes: number of bytes of each number.
    """
    points = np.minimum(leading(words, _POINT), sizes)
    behind: Words = np.left_shift(_ONES, (points << 3).astype(np.uint64))
    # The digits behind the point move to its place.
    words = (words & ~behind) | ((words >> _EIGHT) & behind)
    counts = sizes - (points < sizes)
    digits = (words ^ _ZEROS) << ((8 - counts) << 3).astype(np.uint64)
    good: Mask = (((digits + _ABOVE_NINE) | digits) & _HIGH) == 0
    good &= (points == 1) | ((points > 1) & ((words & _BYTE) != _ZERO))
    # A point needs a digit behind it.
    good &= sizes - points != 1
    return _eight(digits) / _POWERS[counts - points], good


def _doubles(texts: TextBuffer, starts: Integers, stops: Integers) -> tuple[npt.NDArray[np.float64], Mask]:
    points = np.minimum(texts.next_place(starts, np.minimum(stops, starts + _MOST_DIGITS), _POINT), stops)
    wholes, sizes = points - starts, stops - points - 1
    # Sizes without a point are -1: then the number has no fraction.
    has_point = sizes >= 0
    sizes = np.maximum(sizes, 0)
    integer_part, good = _digits(texts, points, wholes, _MOST_DIGITS)
    good &= (wholes == 1) | ((wholes > 1) & (texts.bytes[starts] != _ZERO))
    fraction, is_fraction = _digits(texts, stops, sizes, _MOST_DIGITS)
    good &= is_fraction & (has_point == (sizes > 0)) & (wholes + sizes <= _MOST_DIGITS)
    powers = _POWERS[np.where(good, sizes, 0)]
    return (integer_part * powers + fraction) / powers, good


def _behind_sign(texts: TextBuffer, starts: Integers) -> tuple[Integers, Mask | None]:
    negative: Mask = texts.bytes[starts] == _MINUS
    return (starts + negative, negative) if negative.any() else (starts, None)


def _digits(texts: TextBuffer, stops: Integers, sizes: Integers, most: int) -> tuple[Integers, Mask]:
    """Return the numbers with the given ends and numbers of digits, and a mask of the texts of only digits.

    No digit makes 0. Texts of more than `most` digits are outside the mask.
    """
    good: Mask = sizes <= most
    values = np.zeros(len(stops), np.uint64)
    for at in range(0, min(int(np.maximum.reduce(sizes)), most), 8):
        # Digits from the end on; the bytes ahead of them are shifted out, and zeros in.
        ahead = ((8 - np.minimum(np.maximum(sizes - at, 0), 8)) << 3).astype(np.uint64)
        digits = ((texts.words[stops - 8 - at] ^ _ZEROS) >> ahead) << ahead
        good &= (((digits + _ABOVE_NINE) | digits) & _HIGH) == 0
        values += _eight(digits) * np.uint64(10**at)
    return values.view(np.int64), good


def _eight(digits: Words) -> Words:
    for mask, factor, shift in _STEPS:
        digits = ((digits & mask) * factor) >> shift
    return digits
