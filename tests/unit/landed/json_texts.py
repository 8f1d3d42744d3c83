"""JSON texts for each type of column: at its bounds, one step inside, one step and far beyond."""

from __future__ import annotations

import base64
import json
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from random import Random

import pyarrow as pa
import pyarrow.types as t

# How often a column's text is one of those that most columns refuse.
BEYOND = 0.02
MICRO = timedelta(microseconds=1)

TEXTS = [
    "", "\0", "a\0b", "é", "😀", "\U0010ffff", "￿", "\ufeff", "\x7f", "\n\r\t\b\f", '"\\/', "null", "NaN", "x" * 300,
    "퟿" * 40,
    "\U0010ffff" * 40, "\uffff" * 20, " ", "'; --", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "0", "true", "{}", "\u2028", "﷽",
]  # fmt: skip
# Bytes that stand where a value should: no JSON, no UTF-8, no pair of surrogates.
BROKEN = [
    b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"', b'"a',
    b"NaN", b"-Infinity", b"01", b"+1", b".5", b"1.", b"0x10", b"1e", b"tru", b'"\x00"', b'"\\x"', b"", b"[", b"{",
    b"1,2",
]  # fmt: skip


def value(kind: pa.DataType, rng: Random, beyond: float = BEYOND) -> bytes:
    """Return the text of a value for a column."""
    if rng.random() < beyond / 8:
        return rng.choice(BROKEN)
    if t.is_struct(kind):
        return members(list(kind), rng, beyond)
    if t.is_list(kind):
        return b"[" + b",".join(item(kind.value_field, rng, beyond) for _ in range(rng.choice([0, 1, 3]))) + b"]"
    if t.is_map(kind):
        keys = rng.sample(TEXTS, rng.choice([0, 1, 3]))
        return b"{" + b",".join(quoted(key, rng) + b":" + item(kind.item_field, rng, beyond) for key in keys) + b"}"
    return next(make for matches, make in _MAKERS if matches(kind))(kind, rng, rng.random() < beyond)


def item(field: pa.Field, rng: Random, beyond: float) -> bytes:
    """Return the text of a value, or null."""
    return b"null" if rng.random() < (0.15 if field.nullable else beyond / 4) else value(field.type, rng, beyond)


def members(fields: list[pa.Field], rng: Random, beyond: float = BEYOND) -> bytes:
    """Return the text of an object with a member for most fields."""
    parts = []
    for field in fields:
        if rng.random() < (0.1 if field.nullable else beyond / 4):
            continue
        parts.append(quoted(field.name, rng) + b":" + item(field, rng, beyond))
    return b"{" + b",".join(parts) + b"}"


def quoted(text: str, rng: Random) -> bytes:
    """Return a string of JSON, escaped as much as possible or as little."""
    return json.dumps(text, ensure_ascii=rng.random() < 0.5).encode()


def _bool(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    return rng.choice([b"0", b'"true"', b"null "]) if beyond else rng.choice([b"true", b"false"])


def whole(bits: int, rng: Random, *, beyond: bool) -> int:
    """Return an integer at or near the bounds of a type of so many bits."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    if beyond:
        return rng.choice([low - 1, high + 1, 2 * low, 2**bits - 1, 2**bits, 10**18 * low, 2**200])
    return rng.choice([low, low + 1, -1, 0, 1, high - 1, high, rng.randint(low, high), rng.randint(-999, 999)])


def _integer(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    if beyond and rng.random() < 0.5:
        return rng.choice(
            [b"1.5", b"1e-1", b'"1"', b"1e400", b"1e999999999", b"0e999999999", b"-1e-999999999", b"0.1e0"]
        )
    number = whole(kind.bit_width, rng, beyond=beyond)
    return (str(number) + rng.choice(["", "", "", ".0", "e0", "0e-1", ".000E+00"])).encode()


DOUBLES = [
    0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 2.225073858507201e-308, 1.7976931348623157e308, 0.1, 1 / 3,
    1e23, -1.7976931348623157e308, 2.0**53, 2.0**53 - 1, -(2.0**53), 1e22, 1e-323, 123456.789, 2.0**63,
    -(2.0**63), 1e16,
]  # fmt: skip
SINGLES = [
    0.0, -0.0, 1.401298464324817e-45, 1.1754943508222875e-38, 3.4028234663852886e38, -3.4028234663852886e38, 0.5,
    2.0**24, 2.0**24 - 1, 16777218.0, 2.0**63,
]  # fmt: skip
_NO_DOUBLES = [
    "1e400", "-1e309", "1.8e308", "1e-400", "-1e-324", "2e-324", "9007199254740993", "9007199254740993.0",
    "-9007199254740993.000", "9223372036854775807", "1" + "0" * 320, "0." + "0" * 330 + "1", '"1.5"', "NaN", "Infinity",
]  # fmt: skip
_NO_SINGLES = [*_NO_DOUBLES, "3.5e38", "3.4028236e38", "7e-46", "-1e-60", "16777217", "16777217.0", "1e-400"]


def _double(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    single = t.is_float32(kind)
    if beyond:
        return rng.choice(_NO_SINGLES if single else _NO_DOUBLES).encode()
    if rng.random() < 0.3:
        return rng.choice(["0", "-0", "1", "0e5", "-0.0e-999", "0.30000000000000004", "1.50", "5e-45", "1e2"]).encode()
    number = rng.choice(SINGLES if single else [*DOUBLES, any_double(rng)])
    return repr(number).encode()


def any_double(rng: Random) -> float:
    """Return any finite double, each as likely as any other."""
    number: float = struct.unpack("<d", rng.randbytes(8))[0]
    return number if number - number == 0 else 1.5


def decimal(precision: int, rng: Random, *, beyond: bool) -> int:
    """Return an unscaled number at or near the bounds of a decimal."""
    limit = 10**precision
    if beyond:
        return rng.choice([limit, -limit, limit + 1, limit * 10, -(10**60)])
    return rng.choice([limit - 1, 1 - limit, limit - 2, 0, 1, -1, rng.randrange(1 - limit, limit)])


def _decimal(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    if beyond and rng.random() < 0.3:
        finer = f"0.{'0' * kind.scale}1"
        return rng.choice(
            [finer, f'"{finer}"', "1e999999999", "0e999999999", '"NaN"', '""', "true", '"1e400"', "1e-400"]
        ).encode()
    unscaled = decimal(kind.precision, rng, beyond=beyond)
    digits = str(abs(unscaled)).rjust(kind.scale + 1, "0")
    text = ("-" if unscaled < 0 else "") + (
        f"{digits[: -kind.scale]}.{digits[-kind.scale :]}" if kind.scale else digits
    )
    text = rng.choice([text, text, f"{unscaled}e-{kind.scale}"])
    return (f'"{text}"' if rng.random() < 0.5 else text).encode()


def _string(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    if beyond:
        return rng.choice([*BROKEN, b"1.50", b'{"a": [1e5, null]}', b"true"])
    return quoted(rng.choice([*TEXTS, f"k{rng.randrange(50)}"]), rng)


EPOCH = datetime(1970, 1, 1)
INSTANTS = [
    datetime.min, datetime.min + MICRO, datetime.max, datetime.max - MICRO, EPOCH, EPOCH - MICRO, EPOCH + MICRO,
    datetime(1582, 10, 15), datetime(1900, 2, 28, 23, 59, 59), datetime(2000, 2, 29, 12),
    datetime(2262, 4, 11, 23, 47, 16),
    datetime(1677, 9, 21), datetime(2038, 1, 19, 3, 14, 8), datetime(9999, 1, 1), datetime(1, 12, 31),
]  # fmt: skip
_NO_INSTANTS = [
    "0000-12-31T23:59:59.999999", "10000-01-01T00:00:00", "2023-02-29T00:00:00", "1900-02-29T00:00:00",
    "2026-01-01T24:00:00", "2026-12-31T23:59:60", "2026-01-01T00:00:00.0000001", "+12026-01-01T00:00:00",
    "2026-13-01T00:00:00",
]  # fmt: skip


def instant(rng: Random) -> datetime:
    """Return a time at or near the bounds, or any."""
    return rng.choice([*INSTANTS, EPOCH + timedelta(microseconds=rng.randrange(-(10**16), 10**17))])


def _timestamp(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    zone = "" if kind.tz is None else rng.choice(["Z", "Z", "+00:00"])
    if beyond:
        odd = ["0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59.999999-00:01", "2026-01-01T00:00:00", "x", ""]
        text = rng.choice([rng.choice(_NO_INSTANTS) + zone, rng.choice(odd)])
    else:
        text = instant(rng).isoformat() + zone
        if kind.tz is not None and rng.random() < 0.2:
            text = rng.choice(
                ["0001-01-01T00:00:00-00:01", "9999-12-31T23:59:59.999999+23:59", "0001-01-02T00:00:00+23:59"]
            )
    return quoted(text.replace("T", rng.choice("TTT ")), rng)


DAYS = [date.min, date.max, date(1, 1, 2), date(9999, 12, 30), date(1970, 1, 1), date(1969, 12, 31), date(2000, 2, 29)]


def _date(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    odd = ["0000-12-31", "10000-01-01", "2023-02-29", "1900-02-29", "2026-00-01", "2026-1-1", "2026-01-01T00:00:00", ""]
    return quoted(rng.choice(odd) if beyond else rng.choice(DAYS).isoformat(), rng)


def _time(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    odd = ["24:00:00", "23:59:60", "-00:00:01", "23:59:59.9999999", "00:60:00", "1:00:00", "00:00:00Z", "24:00"]
    fine = ["00:00:00", "00:00:00.000001", "23:59:59.999999", "23:59:59.9999990", "00:00", "12:30:00,5"]
    return quoted(rng.choice(odd if beyond else fine), rng)


def _bytes(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    size = kind.byte_width if t.is_fixed_size_binary(kind) else rng.choice([0, 1, 2, 3, 16, 40])
    if beyond:
        wrong = base64.b64encode(bytes(size + 1)).decode()
        return quoted(rng.choice(["YQ", "YR==", "Y Q==", "_-__", "====", "é", wrong]), rng)
    return quoted(base64.b64encode(rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])).decode(), rng)


def _uuid(kind: pa.DataType, rng: Random, beyond: bool) -> bytes:
    if beyond:
        return quoted(
            rng.choice(["", "0" * 32, "{" + str(uuid.UUID(int=1)) + "}", "g" + str(uuid.UUID(int=1))[1:]]), rng
        )
    text = str(uuid.UUID(int=rng.choice([0, 2**128 - 1, 1, 2**127, rng.getrandbits(128)])))
    return quoted(rng.choice([text, text.upper()]), rng)


def aware(when: datetime) -> datetime:
    """Return a time as one in UTC."""
    return when.replace(tzinfo=UTC)


_MAKERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Random, bool], bytes]]] = [
    (t.is_boolean, _bool),
    (t.is_integer, _integer),
    (t.is_floating, _double),
    (t.is_decimal, _decimal),
    (t.is_string, _string),
    (t.is_timestamp, _timestamp),
    (t.is_date, _date),
    (t.is_time, _time),
    (lambda kind: t.is_binary(kind) or t.is_fixed_size_binary(kind), _bytes),
    (lambda kind: isinstance(kind, pa.UuidType), _uuid),
]
