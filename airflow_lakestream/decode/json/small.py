"""Numbers so small that their nearest double or float is 0: looked for in the text of many documents at once.

Arrow's reader makes 0 of them, and what it read does not tell these from true zeros.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.decode.lanes.lanes import Bytes, Integers, Mask

# How many digits are looked at ahead of an exponent. A number with more is taken for a small one.
_LONGEST = 24
_E, _DIGIT, _POINT, _MINUS, _LOWER = ord("e"), ord("0"), ord("."), ord("-"), 0x20
# Bytes that are looked at together: what is made of them stays in the cache.
_PIECE = 1 << 16
# What stands ahead of a number.
_AHEAD = np.zeros(256, np.bool_)
_AHEAD[list(b":,[ \t\r\n")] = True


@dataclass(frozen=True)
class SmallNumbers:
    """Finds numbers with an exponent of so many digits, or so many zeros in a row.

    All others are at least 1e-199, or 1e-39 for 32 bits; and small is what has such an exponent, whatever its digits.
    """

    digits: int
    zeros: int

    def may_be_in(self, joined: pa.Buffer) -> bool:
        """Whether there may be one in documents."""
        text, zeros = np.frombuffer(joined, np.uint8), b"0" * self.zeros
        found = []
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE + self.zeros]
            if zeros in piece.tobytes():
                return True
            found.append(np.flatnonzero((piece[1:] == _MINUS) & ((piece[:-1] | _LOWER) == _E)) + 1 + start)
        return self._end_numbers(text, np.concatenate(found))

    def _end_numbers(self, text: Bytes, minus: Integers) -> bool:
        """Whether a number with so large an exponent stands ahead of one of these; a UUID has letters there, too."""
        first, second, third = (text[np.minimum(minus + ahead, len(text) - 1)] for ahead in (1, 2, 3))
        large = _is_digit(second) & ((first != _DIGIT) & (self.digits == 2) | _is_digit(third))
        last = minus[_is_digit(text[minus - 2]) & _is_digit(first) & large] - 2
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


def small_numbers(types: Iterable[pa.DataType]) -> SmallNumbers | None:
    """Return what finds numbers too small for columns of these types; None where none is too small."""
    leaves = [leaf for kind in types for leaf in _leaves(kind)]
    if any(map(t.is_float32, leaves)):
        return _SINGLES
    return _DOUBLES if any(map(t.is_float64, leaves)) else None


def _leaves(kind: pa.DataType) -> list[pa.DataType]:
    if not kind.num_fields:
        return [kind]
    return [leaf for at in range(kind.num_fields) for leaf in _leaves(kind.field(at).type)]
