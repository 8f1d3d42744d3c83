"""Conversion of a binary format's values to columns: each converter is exact, or fails the lane.

The argument `path` is the field's path, for the reason of a failure; `kind` is the type of the column.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Bytes, Integers, Mask
from airflow_lakestream.decode.values import iso8601
from airflow_lakestream.decode.values.outcome import Misfit
from airflow_lakestream.tables.schema import value_ranges
from airflow_lakestream.tables.schema.value_ranges import DECIMAL_DIGITS, decimal_text, fitting_decimal

Converter = Callable[[ByteLanes, Any], pa.Array]
"""Returns a column for the values just read in all lanes: integers, floats, or bytes (an Arrow array of binary)."""


class Unfit(Exception):
    """No value of a field can become a value of the column; the text has the reason."""


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type with bytes in place of UUIDs, since Arrow can't build UUIDs inside lists or maps."""
    if t.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if t.is_list(kind) or t.is_large_list(kind):
        make = pa.large_list if t.is_large_list(kind) else pa.list_
        return make(kind.value_field.with_type(plain(kind.value_type)))
    if t.is_map(kind):
        return pa.map_(plain(kind.key_type), kind.item_field.with_type(plain(kind.item_type)))
    return pa.binary(16) if isinstance(kind, pa.UuidType) else kind


def integers(kind: pa.DataType, path: str) -> Converter:
    """Return the converter of signed or unsigned 64-bit integers into integers, floats or decimals. Raises Unfit."""
    out_of_range = f"{path}: out of range for {kind}"
    if t.is_signed_integer(kind):
        limit = 1 << (kind.bit_width - 1)

        def fit(lanes: ByteLanes, values: Any) -> pa.Array:
            if values.dtype == np.uint64:
                lanes.fail(values >= np.uint64(limit), out_of_range)
            elif kind.bit_width < 64:
                lanes.fail((values < -limit) | (values >= limit), out_of_range)
            # `to_pandas_dtype` needs pandas in older versions of PyArrow.
            return pa.array(values.astype(f"int{kind.bit_width}"))

        return fit
    if t.is_float32(kind) or t.is_float64(kind):
        return _integers_as_floats(kind, path)
    if t.is_decimal128(kind):
        return _integers_as_decimals(kind, out_of_range)
    hint = ': in schema, "timestamp from epoch_ms" (or _s, _us, _ns) makes times of integers'
    raise Unfit(f"{path}: an integer can't become {kind}{hint if t.is_timestamp(kind) else ''}")


def _integers_as_floats(kind: pa.DataType, path: str) -> Converter:
    exact = np.uint64(1 << (53 if t.is_float64(kind) else 24))

    def fit(lanes: ByteLanes, values: Any) -> pa.Array:
        absolute = values if values.dtype == np.uint64 else np.abs(values).view(np.uint64)
        floats = values.astype(f"float{kind.bit_width}")
        is_lossy = absolute > exact
        if is_lossy.any():
            # Larger integers are exact if they end in enough zeros.
            rows = np.flatnonzero(is_lossy)
            is_lossy[rows] = [int(float(floats[row])) != int(values[row]) for row in rows]
        lanes.fail(is_lossy, f"{path}: an integer that {kind} can't hold exactly")
        return pa.array(floats)

    return fit


def _integers_as_decimals(kind: pa.DataType, out_of_range: str) -> Converter:
    def fit(lanes: ByteLanes, values: Any) -> pa.Array:
        # A limit beyond the integers' 64 bits excludes no number.
        limit = 10 ** (kind.precision - kind.scale) if kind.scale <= kind.precision else 1
        if values.dtype == np.uint64 and limit < 2**64:
            lanes.fail(values >= np.uint64(limit), out_of_range)
        elif values.dtype != np.uint64 and limit < 2**63:
            lanes.fail((values <= -limit) | (values >= limit), out_of_range)
        values = np.where(lanes.failure == 0, values, values.dtype.type(0))
        low = values.view(np.int64)
        sign = np.zeros_like(low) if values.dtype == np.uint64 else low >> 63
        exact = _decimals(low, sign, pa.decimal128(38, 0))
        return exact if kind == pa.decimal128(38, 0) else exact.cast(kind)

    return fit


def _decimals(low: Integers, high: Integers, kind: pa.DataType) -> pa.Array:
    """Return decimals from the lower and the upper 64 bits of their unscaled numbers."""
    pairs = np.stack([low, high], axis=1)
    return pa.Array.from_buffers(kind, len(low), [None, pa.py_buffer(np.ascontiguousarray(pairs))])


def floats(kind: pa.DataType, path: str) -> Converter:
    """Return the converter of floats or doubles into a column of floats or doubles. Raises Unfit."""
    if t.is_float64(kind):
        return lambda lanes, values: pa.array(values.astype(np.float64))
    if not t.is_float32(kind):
        raise Unfit(f"{path}: a floating-point number can't become {kind}")

    def fit(lanes: ByteLanes, values: Any) -> pa.Array:
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        lanes.fail((single != values) & ~np.isnan(values), f"{path}: a number that {kind} can't hold exactly")
        return pa.array(single)

    return fit


def booleans(kind: pa.DataType, path: str) -> Converter:
    """Return the converter of truth values into a column of booleans. Raises Unfit."""
    if not t.is_boolean(kind):
        raise Unfit(f"{path}: a boolean can't become {kind}")
    return lambda lanes, values: pa.array(values.astype(np.bool_))


def dates(kind: pa.DataType, path: str) -> Converter:
    """Return the converter of days since 1970 into a column of dates, or of integers, see `integers`. Raises Unfit."""
    if not t.is_date32(kind):
        return integers(kind, path)

    def fit(lanes: ByteLanes, values: Integers) -> pa.Array:
        lanes.fail(
            (values < value_ranges.MIN_DAY) | (values > value_ranges.MAX_DAY), f"{path}: {value_ranges.NOT_A_YEAR}"
        )
        return pa.array(values.astype(np.int32)).view(kind)

    return fit


def times(kind: pa.DataType, path: str, nanos: int, *, finer: TimestampsFiner) -> Converter:
    """Return the converter of times of day into a column of times in microseconds, or of integers, see `integers`.

    :param nanos: unit of the values, in nanoseconds.

    Raises Unfit.
    """
    if not (t.is_time64(kind) and kind.unit == "us"):
        return integers(kind, path)

    def fit(lanes: ByteLanes, values: Integers) -> pa.Array:
        if nanos == 1:
            values = _in_micros(lanes, values, path, finer)
        scale = max(nanos // 1000, 1)
        lanes.fail(
            (values < 0) | (values >= value_ranges.MICROS_PER_DAY // scale), f"{path}: {value_ranges.NOT_A_TIME_OF_DAY}"
        )
        return pa.array(values * scale).view(kind)

    return fit


def _in_micros(lanes: ByteLanes, nanos: Integers, path: str, finer: TimestampsFiner) -> Integers:
    """Return nanoseconds as microseconds, rounded down, even before 1970; fail lanes with a remainder, by policy."""
    if finer is TimestampsFiner.REJECT:
        lanes.fail(nanos % 1000 != 0, f"{path}: {value_ranges.FINER_NUMBER}")
    return nanos // 1000


def timestamps(kind: pa.DataType, path: str, nanos: int, *, zoned: bool, finer: TimestampsFiner) -> Converter:
    """Return the converter of timestamps into a column of timestamps in microseconds, or of integers, see `integers`.

    :param nanos: unit of the values, in nanoseconds.
    :param zoned: whether the values are instants, which need a column with a zone, or local times, which need a column
        without a zone.

    Raises Unfit.
    """
    if not (t.is_timestamp(kind) and kind.unit == "us"):
        return integers(kind, path)
    if zoned != (kind.tz is not None):
        has = "an instant, and the column has no zone" if zoned else "a local time, and the column has a zone"
        raise Unfit(f"{path}: {has}")

    def fit(lanes: ByteLanes, values: Integers) -> pa.Array:
        if nanos == 1:
            values = _in_micros(lanes, values, path, finer)
        scale = max(nanos // 1000, 1)
        low, high = -(-value_ranges.MIN_MICROS // scale), value_ranges.MAX_MICROS // scale
        lanes.fail((values < low) | (values > high), f"{path}: {value_ranges.NOT_A_YEAR}")
        # Failed lanes may overflow here.
        return pa.array(values * scale).view(pa.timestamp("us", kind.tz))

    return fit


_NO_INSTANT = "not an ISO 8601 date-time with a zone"


def instants(kind: pa.DataType, path: str, finer: TimestampsFiner) -> Converter:
    """Return the converter of ISO 8601 text (bytes, with a zone) into timestamps with a zone. Raises Unfit."""
    if not (t.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None):
        raise Unfit(f"{path}: an instant can't become {kind}")

    def fit(lanes: ByteLanes, values: pa.Array) -> pa.Array:
        micros = np.zeros(len(values), np.int64)
        for row, value in enumerate(values.to_pylist()):
            if lanes.failure[row]:
                continue
            try:
                micros[row] = iso8601.micros(value.decode(), zoned=True, cuts=finer is TimestampsFiner.TRUNCATE)
            except (Misfit, UnicodeDecodeError) as error:
                mask = np.zeros(len(values), np.bool_)
                mask[row] = True
                # The reason does not quote the text: each text would be a reason of its own.
                problem = value_ranges.FINER_TEXT if value_ranges.FINER in str(error) else _NO_INSTANT
                lanes.fail(mask, f"{path}: {problem}")
        return pa.array(micros).view(kind)

    return fit


def blobs(kind: pa.DataType, path: str) -> Converter:
    """Return the converter of bytes into a column of bytes, or of text if the bytes are UTF-8. Raises Unfit."""
    if t.is_binary(kind):
        return lambda lanes, values: values
    if t.is_large_binary(kind):
        return lambda lanes, values: values.cast(kind)
    if t.is_fixed_size_binary(kind):
        return _sized(kind, path)
    if t.is_string(kind) or t.is_large_string(kind):
        return texts(kind, path)
    raise Unfit(f"{path}: bytes can't become {kind}")


def _sized(kind: pa.DataType, path: str) -> Converter:
    """Return the converter of bytes into a column of fixed-size bytes; a value of another size fails its lane."""
    size = kind.byte_width

    def fit(lanes: ByteLanes, values: pa.Array) -> pa.Array:
        wrong = pc.not_equal(pc.binary_length(values), size).to_numpy(zero_copy_only=False)
        if wrong.any():
            lanes.fail(wrong, f"{path}: not the {size} bytes of the column")
            values = pc.if_else(pa.array(wrong), b"\0" * size, values)
        return values.cast(kind)

    return fit


def texts(kind: pa.DataType, path: str) -> Converter:
    """Return the converter of text in UTF-8, as bytes, into a column of text, of bytes or of UUIDs. Raises Unfit."""
    if t.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return _uuids(path)
    if t.is_binary(kind) or t.is_large_binary(kind):
        target = pa.string()
    elif t.is_string(kind) or t.is_large_string(kind):
        target = kind
    else:
        raise Unfit(f"{path}: text can't become {kind}")

    def fit(lanes: ByteLanes, values: pa.Array) -> pa.Array:
        try:
            text = values.cast(target)
        except pa.ArrowInvalid:
            is_invalid = _invalid_texts(values)
            lanes.fail(is_invalid, f"{path}: invalid UTF-8")
            text = pc.if_else(pa.array(is_invalid), b"", values).cast(target)
        return text if target == kind else text.cast(kind)

    return fit


_UNCHECKED = pc.CastOptions(pa.string(), allow_invalid_utf8=True)


def _invalid_texts(values: pa.Array) -> Mask:
    """Return a mask of the values with invalid UTF-8; only values beyond ASCII are checked individually."""
    ascii_only = pc.string_is_ascii(pc.cast(values, options=_UNCHECKED)).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(~ascii_only)
    is_invalid = np.zeros(len(values), np.bool_)
    is_invalid[rows] = [not_utf8(value) for value in values.take(pa.array(rows)).to_pylist()]
    return is_invalid


def not_utf8(value: bytes | None) -> bool:
    """Return whether the bytes are invalid UTF-8."""
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return True
    return False


# The places of dashes and digits in a UUID's text, and the number of each hexadecimal digit; 255 for other characters.
_DASHES = (8, 13, 18, 23)
_DIGITS = np.array([place for place in range(36) if place not in _DASHES])
_NIBBLES = np.full(256, 255, np.uint8)
for _value, _digit in enumerate("0123456789abcdef"):
    _NIBBLES[[ord(_digit), ord(_digit.upper())]] = _value


def _uuids(path: str) -> Converter:
    """Return the converter of UUIDs in the usual text form into 16 bytes."""

    def fit(lanes: ByteLanes, values: pa.Array) -> pa.Array:
        sized = _sized(pa.binary(36), path)(lanes, values)
        text = np.frombuffer(sized.buffers()[1], np.uint8)[sized.offset * 36 :][: 36 * len(values)].reshape(-1, 36)
        nibbles = _NIBBLES[text[:, _DIGITS]]
        wrong = (nibbles == 255).any(axis=1) | (text[:, _DASHES] != ord("-")).any(axis=1)
        lanes.fail(wrong, f"{path}: not a UUID")
        return fixed_binary((nibbles[:, ::2] * np.uint8(16)) | nibbles[:, 1::2])

    return fit


def fixed_binary(rows: Bytes) -> pa.Array:
    """Return a table of bytes as an array of the rows."""
    kind = pa.binary(rows.shape[1])
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])


def decimals(kind: pa.DataType, path: str, scale: int) -> Converter:
    """Return the converter of decimals' unscaled numbers into a column of decimals or of text. Raises Unfit.

    The numbers are bytes in big-endian two's complement.

    :param scale: scale of the decimals, which may be below 0.
    """
    if t.is_string(kind) or t.is_large_string(kind):
        return _decimal_texts(kind, path, scale)
    if not t.is_decimal128(kind):
        raise Unfit(f"{path}: a decimal can't become {kind}")
    if not 0 <= scale <= DECIMAL_DIGITS:
        return _odd_decimals(kind, path, scale)
    # A column with more fraction digits than the numbers can represent all fractions; whole digits are checked below.
    integer_digits = kind.precision - kind.scale
    out_of_range = f"{path}: out of range for {kind}"

    def fit(lanes: ByteLanes, values: pa.Array) -> pa.Array:
        lengths = pc.binary_length(values).to_numpy().astype(np.int64)
        lanes.fail(lengths == 0, f"{path}: a decimal of no bytes")
        long = lengths > 16
        if long.any():
            values = pa.array([_shortened(value) for value in values.to_pylist()], pa.binary())
            lengths = pc.binary_length(values).to_numpy().astype(np.int64)
            lanes.fail(lengths > 16, out_of_range)
        low, high = _twos_complement(values, np.minimum(lengths, 16))
        too_large = _beyond(low, high, min(kind.precision - kind.scale + scale, 38))
        lanes.fail(too_large, out_of_range)
        low, high = np.where(lanes.failure == 0, low, 0), np.where(lanes.failure == 0, high, 0)
        if scale == kind.scale:
            return _decimals(low, high, kind)
        if scale > kind.scale:
            lost = _remainders(low, high, scale - kind.scale)
            lanes.fail(lost, f"{path}: more than {kind.scale} fraction digits")
            low, high = np.where(lost, 0, low), np.where(lost, 0, high)
        return _decimals(low, high, pa.decimal128(38, scale)).cast(kind)

    if integer_digits + scale < 0:
        raise Unfit(out_of_range)
    return fit


def _odd_decimals(kind: pa.DataType, path: str, scale: int) -> Converter:
    """Return the converter of numbers with a scale outside Arrow's range, converted one by one."""

    def fit(lanes: ByteLanes, values: pa.Array) -> pa.Array:
        decimals = [fitting_decimal(value, scale, kind.precision, kind.scale) for value in values.to_pylist()]
        is_unfit = np.fromiter((decimal is None for decimal in decimals), np.bool_, len(decimals))
        lanes.fail(is_unfit, f"{path}: out of range for {kind}, or of more fraction digits")
        return pa.array([Decimal(0) if decimal is None else decimal for decimal in decimals], kind)

    return fit


def _decimal_texts(kind: pa.DataType, path: str, scale: int) -> Converter:
    def fit(lanes: ByteLanes, values: pa.Array) -> pa.Array:
        lanes.fail(
            pc.equal(pc.binary_length(values), 0).to_numpy(zero_copy_only=False), f"{path}: a decimal of no bytes"
        )
        return pa.array([decimal_text(value, scale) for value in values.to_pylist()], kind)

    return fit


def _shortened(value: bytes) -> bytes:
    """Return 16 bytes, or more if the number needs more: leading bytes that only repeat the sign are removed."""
    number = int.from_bytes(value, "big", signed=True)
    return number.to_bytes(max(16, number.bit_length() // 8 + 1), "big", signed=True)


def _twos_complement(values: pa.Array, lengths: Integers) -> tuple[Integers, Integers]:
    """Return the lower and the upper 64 bits of numbers of up to 16 bytes; an empty value is 0."""
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    padded = np.concatenate([data, np.zeros(1, np.uint8)])
    first = padded[np.minimum(offsets[:-1], len(padded) - 1)]
    # Bytes ahead of a number repeat its sign.
    sign_bytes = np.where((first >= 0x80) & (lengths > 0), np.uint8(255), np.uint8(0))
    table = np.empty((len(values), 16), np.uint8)
    for place in range(16):
        has_byte = lengths > place
        table[:, place] = np.where(has_byte, padded[np.where(has_byte, offsets[1:] - 1 - place, 0)], sign_bytes)
    words = table.view("<i8")
    return words[:, 0].copy(), words[:, 1].copy()


def _beyond(low: Integers, high: Integers, digits: int) -> Mask:
    """Return a mask of the numbers with more than `digits` digits.

    :param low: lower 64 bits of the numbers.
    :param high: upper 64 bits of the numbers.
    """
    limit = 10**digits
    top, bottom = np.int64(limit >> 64), np.uint64(limit & (2**64 - 1))
    unsigned = low.view(np.uint64)
    too_high: Mask = (high > top) | ((high == top) & (unsigned >= bottom))
    lowest = -limit
    top, bottom = np.int64(lowest >> 64), np.uint64(lowest & (2**64 - 1))
    too_low: Mask = (high < top) | ((high == top) & (unsigned <= bottom))
    return too_high | too_low


def _remainders(low: Integers, high: Integers, digits: int) -> Mask:
    """Return a mask of the numbers that do not end in `digits` zeros; see `_beyond` for `low` and `high`."""
    unit = 10**digits
    small = high == low >> 63
    if unit < 2**63 and small.all():
        has_remainder: Mask = low % unit != 0
        return has_remainder
    wide = zip(low.view(np.uint64).tolist(), high.tolist(), strict=True)
    return np.fromiter(((top * 2**64 + bottom) % unit != 0 for bottom, top in wide), np.bool_, len(low))
