"""Conversion of the texts of JSON's scalars to columns, all at once; OddRows has the rows that prevent this."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.json.bulk import NotInBulk, exact_up_to, fit
from airflow_lakestream.decode.json.values import texts_for
from airflow_lakestream.decode.lanes.lanes import Mask

_NUMBER = r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\z"
_INTEGER = r"\A-?(?:0|[1-9][0-9]*)\z"
_ZERO = r"\A-?0(?:\.0+)?(?:[eE]|\z)"
# Texts that Arrow accepts as date-times, unless the day or the time is impossible.
_DATE_TIME = r"\A[0-9]{4}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?Z?\z"
_QUOTE, _BACKSLASH, _SPACE = b'"\\ '


class OddRows(Exception):
    """The rows of the mask `odd` prevent the conversion of all rows at once."""

    def __init__(self, odd: Mask) -> None:
        super().__init__()
        self.odd = odd


def odd_texts(texts: pa.Array) -> Mask | None:
    """Return a mask of the texts not allowed between the quotes of a JSON document, or None if all are allowed.

    These texts have a quote, a backslash, a control character or invalid UTF-8.
    """
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = np.frombuffer(data, np.uint8)[: ends[-1]] if data is not None else np.zeros(0, np.uint8)
    is_odd = (text == _QUOTE) | (text == _BACKSLASH) | (text < _SPACE)
    odd = np.zeros(len(texts), np.bool_)
    odd[np.searchsorted(ends, np.flatnonzero(is_odd), side="right") - 1] = True
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        odd |= [not _is_utf8(value) for value in texts.cast(pa.binary()).to_pylist()]
    return odd if odd.any() else None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def without(texts: pa.Array, odd: Mask) -> pa.Array:
    """Return the texts, with null for the odd texts."""
    if not odd.any():
        return texts
    return pc.if_else(pa.array(odd), pa.scalar(None, texts.type), texts)


def from_texts(texts: pa.Array, kind: pa.DataType, finer: TimestampsFiner) -> pa.Array:
    """Return a column from the texts of JSON's strings, without quotes.

    Raises OddRows with the rows that prevent the conversion, or NotInBulk, Misfit and pyarrow's errors if the rows are
    unknown.

    :param finer: policy for times finer than microseconds.
    """
    texts = texts_for(finer, texts, kind)
    if t.is_decimal(kind):
        return _decimals(texts, kind)
    try:
        return fit(texts, kind)
    except pa.ArrowInvalid:
        if t.is_timestamp(kind):
            _require(pc.match_substring_regex(texts, _DATE_TIME))
        raise


def from_literals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column from the texts of numbers, true, false and null; raises the errors of `from_texts`."""
    missing = pc.equal(texts, "null")
    if missing.true_count:
        if missing.true_count == len(texts):
            return pa.nulls(len(texts), kind)
        texts = pc.if_else(missing, pa.scalar(None, texts.type), texts)
    if t.is_boolean(kind):
        true = pc.equal(texts, "true")
        _require(pc.or_(true, pc.equal(texts, "false")))
        return true
    if t.is_string(kind) or t.is_large_string(kind):
        _require(pc.or_(pc.is_in(texts, pa.array(["true", "false"])), pc.match_substring_regex(texts, _NUMBER)))
        return texts.cast(kind)
    if t.is_signed_integer(kind):
        return _integers(texts, kind)
    if t.is_decimal(kind):
        return _decimals(texts, kind)
    if t.is_floating(kind):
        _require_numbers(texts, _NUMBER)
        numbers = texts.cast(kind)
        # Larger numbers may be integers that the type can't represent exactly.
        _require(pc.less(pc.abs(numbers), pa.scalar(exact_up_to(kind), kind)))
        zero = pc.equal(numbers, pa.scalar(0.0, kind))
        if zero.true_count:
            _require(pc.if_else(zero, pc.match_substring_regex(texts, _ZERO), True))
        return fit(numbers, kind)
    raise NotInBulk("numbers for a column of another type")


def _integers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    _require_numbers(texts, _INTEGER)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        # Rows with more digits than surely fit are odd. If there are none, the cast's error is raised.
        digits = len(str((1 << (kind.bit_width - 1)) - 1)) - 1
        _require(pc.match_substring_regex(texts, rf"\A-?[0-9]{{1,{digits}}}\z"))
        raise


def _decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals with at most the digits of the type. Raises OddRows for other texts.

    Arrow's cast alone would make 0 of a number with 300 zeros behind the point.
    """
    integer_part = f"|[1-9][0-9]{{0,{kind.precision - kind.scale - 1}}}" if kind.precision > kind.scale else ""
    fraction = rf"(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale > 0 else ""
    _require(pc.match_substring_regex(texts, rf"\A-?(?:0{integer_part}){fraction}\z"))
    return fit(texts.cast(kind), kind)


def _require_numbers(texts: pa.Array, grammar: str) -> None:
    """Raise OddRows unless all texts are numbers. A text with two points may pass: the caller's cast fails for it."""
    if texts.null_count or not _all_plain(texts):
        _require(pc.match_substring_regex(texts, grammar))


def _all_plain(texts: pa.Array) -> bool:
    """Return whether all texts are digits, perhaps with points between the digits, without a needless leading zero.

    False may also mean a valid number, such as a negative one. The check is faster than a regular expression.
    """
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = np.frombuffer(data, np.uint8)
    starts, sizes = ends[:-1], np.diff(ends)
    if sizes.min() < 1 or (text - ord(".") > ord("9") - ord(".")).any() or (text == ord("/")).any():
        return False
    first, second = text[starts], text[np.minimum(starts + 1, len(text) - 1)]
    if (first == ord(".")).any() or (text[ends[1:] - 1] == ord(".")).any():
        return False
    return bool(((first != ord("0")) | (sizes == 1) | (second == ord("."))).all())


def _require(good: pa.Array) -> None:
    """Raise OddRows for the false values; null counts as good."""
    if good.false_count:
        raise OddRows(~mask_of(good.fill_null(True)))


def mask_of(array: pa.Array) -> Mask:
    """Return booleans as a numpy mask; no value may be null."""
    mask: Mask = np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)
    return mask
