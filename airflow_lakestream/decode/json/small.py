"""Search for numbers misread by Arrow's JSON reader, in the text of many documents at once.

The reader returns 0 for a number whose nearest double or float is 0, so documents with a 0 in the result are searched.
Decimals with more digits, or a smaller exponent, than the reader has powers of ten for become 0 or any number, so all
documents with decimals are searched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.decode.lanes.lanes import Bytes, Integers, Mask

# Digits searched ahead of an exponent. A number with more digits counts as small.
_LONGEST = 24
_E, _DIGIT, _POINT, _MINUS, _PLUS, _LOWER = ord("e"), ord("0"), ord("."), ord("-"), ord("+"), 0x20
# Bytes that are searched together: they stay in the cache with the results.
_PIECE = 1 << 16
_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
# Bytes that may be ahead of a number.
_AHEAD = np.zeros(256, np.bool_)
_AHEAD[list(b":,[ \t\r\n")] = True


@dataclass(frozen=True)
class SmallNumbers:
    """Search for numbers with a negative exponent of `digits` digits, or with `zeros` zeros in a row.

    Other numbers are at least 1e-199, or 1e-39 for 32 bits; any number with such an exponent counts as small.

    :param any_digits: all digits count as zeros, and all exponents as negative exponents.
    """

    digits: int
    zeros: int
    any_digits: bool = False

    def may_be_in(self, joined: pa.Buffer) -> bool:
        """Return whether documents may contain a small number."""
        text, zeros = np.frombuffer(joined, np.uint8), b"0" * self.zeros
        found = []
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE + self.zeros]
            if zeros in (piece.tobytes().translate(_AS_ZEROS) if self.any_digits else piece.tobytes()):
                return True
            found.append(np.flatnonzero(((piece[:-1] | _LOWER) == _E) & self._may_follow(piece[1:])) + start)
        return self._end_numbers(text, np.concatenate(found))

    def _may_follow(self, some: Bytes) -> Mask:
        is_minus: Mask = some == _MINUS
        return is_minus | (some == _PLUS) | _is_digit(some) if self.any_digits else is_minus

    def _end_numbers(self, text: Bytes, letter: Integers) -> bool:
        """Return whether a letter is the `e` of a number with a large exponent; UUIDs have the letter, too."""
        digits = letter + np.where(_is_digit(text[letter + 1]), 1, 2)
        first, second, third = (text[np.minimum(digits + ahead, len(text) - 1)] for ahead in (0, 1, 2))
        large = _is_digit(second) & ((first != _DIGIT) & (self.digits == 2) | _is_digit(third))
        last = letter[_is_digit(text[letter - 1]) & _is_digit(first) & large] - 1
        for _ in range(_LONGEST):
            if not len(last):
                return False
            here = text[last]
            inside = _is_digit(here) | (here == _POINT)
            first = last[~inside]
            if (_AHEAD[text[first]] | ((text[first] == _MINUS) & _AHEAD[text[first - 1]])).any():
                return True
            last = last[inside] - 1
        return bool(len(last))


def _is_digit(some: Bytes) -> Mask:
    return some - np.uint8(_DIGIT) <= 9


_DOUBLES = SmallNumbers(3, 100)
_SINGLES = SmallNumbers(2, 20)
# With 29 digits on either side of the point, and an exponent of one, 76 digits hold the number in each scale up to 38.
_DECIMALS = SmallNumbers(2, 30, any_digits=True)
_DECIMALS_AND_SINGLES = SmallNumbers(2, 20, any_digits=True)


def small_numbers(types: Iterable[pa.DataType]) -> SmallNumbers | None:
    """Return the search for numbers too small for columns of these types, or None if no number is too small."""
    leaves = [leaf for kind in types for leaf in _leaves(kind)]
    has_singles = any(map(t.is_float32, leaves))
    if any(map(t.is_decimal128, leaves)):
        return _DECIMALS_AND_SINGLES if has_singles else _DECIMALS
    if has_singles:
        return _SINGLES
    return _DOUBLES if any(map(t.is_float64, leaves)) else None


def _leaves(kind: pa.DataType) -> list[pa.DataType]:
    if not kind.num_fields:
        return [kind]
    return [leaf for at in range(kind.num_fields) for leaf in _leaves(kind.field(at).type)]
