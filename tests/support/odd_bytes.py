"""Random records in Avro and of no format, good ones and bad ones, for the engines that read them."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.avro_orders import KIND, ORDER, order
from tests.support.avro_records import written
from tests.support.odd_values import Odd, key, stamp

_MARK = "\x01\x02mark\x02\x01"
_NO_UTF_8 = (b"\xff", b"a\xffb", b"\xed\xa0\x80", b"\xc3", b"\xf4\x90\x80\x80", b"\xc0\x80")
# Beyond what a table takes: a millisecond, a microsecond, a day after the year 9999; before the year 1; far away.
_BEYOND: Mapping[str, tuple[int, ...]] = {
    "at_ms": (253_402_300_800_000, -62_135_596_800_001, 2**53),
    "at_us": (253_402_300_800_000_000, -62_135_596_800_000_001, 2**62),
    "wall_ms": (253_402_300_800_000, -62_135_596_800_001, 2**53),
    "wall_us": (253_402_300_800_000_000, -62_135_596_800_000_001, 2**62),
    "day": (2_932_897, -719_163, 2**31 - 1, -(2**31)),
}
_NEWER = {**KIND, "symbols": [*KIND["symbols"], "NONE_KNOWS"]}
_OF_NEWER = {
    **ORDER,
    "fields": [{**one, "type": ["null", _NEWER]} if one["name"] == "kind" else one for one in ORDER["fields"]],
}


def _marked(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    """Return an order whose text is no UTF-8."""
    bad = some.choice(_NO_UTF_8)
    found = written(ORDER, schema_id, value | {"s": "x" * len(bad) + _MARK})
    return found.replace(b"x" * len(bad) + _MARK.encode(), bad + _MARK.encode())


def _beyond(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    name = some.choice(sorted(_BEYOND))
    return written(ORDER, schema_id, value | {name: some.choice(_BEYOND[name])})


def _long(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    """Return an order with a decimal of more digits than its column has, or with bytes that say nothing."""
    amount = some.choice(((10**12).to_bytes(6, "big"), (-(10**12)).to_bytes(6, "big", signed=True), b"\x7f" * 20))
    return written(ORDER, schema_id, value | {"amount": some.choice((amount, b"\x00" * 30 + b"\x07", b"\xff" * 30))})


def _repeated(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    """Return an order whose map has a key twice."""
    found = written(ORDER, schema_id, value | {"scores": {"k-one": 1.0, "k-two": some.uniform(-9, 9)}})
    return found.replace(b"k-two", b"k-one")


def _nan(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    return written(ORDER, schema_id, value | {some.choice(("f", "d", "maybe")): float("nan")})


def _empty(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    return written(ORDER, schema_id, value | {"amount": b""})


def _unknown(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    good = written(ORDER, schema_id, value)
    return some.choice(
        (good[:1] + struct.pack(">I", 2**31 - 1) + good[5:], b"\x07" + good[1:], good[5:], good[:3], b"")
    )


def _newer(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    """Return an order with a symbol that its schema lacks."""
    return written(_OF_NEWER, schema_id, value | {"kind": "NONE_KNOWS"})


def _cut(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    good = written(ORDER, schema_id, value)
    return good[: some.randrange(5, len(good))]


def _behind(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    return written(ORDER, schema_id, value, behind=some.randbytes(some.randint(1, 9)))


def _flipped(some: random.Random, value: dict[str, Any], schema_id: int) -> bytes:
    good = bytearray(written(ORDER, schema_id, value))
    for _ in range(some.randint(1, 3)):
        good[some.randrange(5, len(good))] ^= 1 << some.randrange(8)
    return bytes(good)


_Way = Callable[[random.Random, dict[str, Any], int], bytes]
# Flink makes something of these. Its job fails at the others, or takes what they leave over for the next record's.
_TAKEN: tuple[_Way, ...] = (_marked, _beyond, _long, _repeated, _nan)
_NOT_TAKEN: tuple[_Way, ...] = (_empty, _unknown, _newer, _cut, _behind, _flipped)


def avro(some: random.Random, count: int, schema_id: int, *, flink: bool) -> list[Odd]:
    """Return random orders. Each way to spoil one is there, as long as the count allows.

    :param flink: only such as Flink's job takes, and nine in ten are good; else half of them.
    """
    ways = _TAKEN if flink else (*_TAKEN, *_NOT_TAKEN)

    def value(number: int) -> bytes | None:
        made = order(some.randrange(2**40))
        if number < len(ways):
            return ways[number](some, made, schema_id)
        if some.random() < 0.03:
            return None
        if some.random() < (0.1 if flink else 0.5):
            return some.choice(ways)(some, made, schema_id)
        return written(ORDER, schema_id, made)

    return [Odd(value(n), timestamp=stamp(some), key=key(some)) for n in range(count)]


def raw(some: random.Random, count: int, schema_id: int, *, flink: bool) -> list[Odd]:
    """Return random texts and bytes, for keys and values alike."""

    def text() -> bytes | None:
        texts = (None, b"", b"\0", "a é \U0001f600\n".encode(), b"x" * some.randint(1, 300), *_NO_UTF_8)
        return some.choice(texts[:5]) if some.random() < 0.95 else some.choice((*texts, some.randbytes(9)))

    return [Odd(text(), timestamp=stamp(some), key=text()) for _ in range(count)]
