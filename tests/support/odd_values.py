"""JSON values of which engines make different things, and random records of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

COLUMNS = (
    "i int, l bigint, f float, d double, m decimal(10,2), b boolean, s string, day date, at timestamp, "
    "wall timestamp_ntz, bin binary, xs array<bigint>, st struct<a: bigint, b: string>, mp map<string, bigint>"
)
_PAYLOAD = ["i", "l", "f", "d", "m", "b", "s", "day", "at", "wall", "bin", "xs", "st", "mp"]


@dataclass(frozen=True)
class Odd:
    """A record. By which engines it is taken at all; a task fails at any other."""

    value: str | bytes | None
    connect: bool = True
    flink: bool = True
    timestamp: int = 1_700_000_000_000
    key: bytes | None = None


def _of(column: str, *texts: str, **by: bool) -> list[Odd]:
    return [Odd(f'{{"{column}":{text}}}', **by) for text in texts]


# As often as the table has columns: Flink counts those that it has filled, and takes no more.
REPEATED = "{" + '"i":1,' * 14 + '"s":"kept"}'
NEITHER: dict[str, bool] = {"connect": False, "flink": False}
ODD = [
    *_of("i", "7", "-0", "1.0", "1.9", "1e2", '"12"', '"+12"', "null"),
    *_of("i", "2147483648", "3000000000", flink=False),
    *_of("i", '" 12"', connect=False),
    *_of("i", "true", **NEITHER),
    *_of("l", "9223372036854775807", "1.9", "9007199254740993.0", "1e3", '"9"'),
    *_of("l", "9223372036854775808", flink=False),
    *_of("l", '"1.0"', **NEITHER),
    *_of("f", "0.1", "16777217", "1e39", '"0.5"', "-0.0"),
    *_of("d", "0.1", "1e400", "9007199254740993", "0.30000000000000004", '"1e3"', '"NaN"', "1E-400", "-0"),
    *_of("m", "1.01", "1.005", "1.10", "12345678.90", '"1.005"', '"1.50"', "1e2", "0.1", "1e-3"),
    *_of("m", "123456789.00", connect=False),
    *_of("b", "true", '"true"', '"TRUE"', '"yes"', '"1"'),
    *_of("b", "1", "0", connect=False),
    *_of("s", '"a"', '""', '"\\u0000"', '"\\ud83d\\ude00"', "1", "1.0", "1.50", "true", "12345678901234567890"),
    *_of("s", "null", '{"a": 1}', '{"a":1}', "[1, 2]", "[1,2]", '{"b":1.10}', '"e\\u0301"'),
    *_of("day", '"2020-02-29"', '"9999-12-31"'),
    *_of("day", "18321", flink=False),
    *_of("day", '"2020-02-30"', '"2020-2-9"', '"2020-02-29T00:00:00Z"', **NEITHER),
    *_of("at", '"2020-01-01T00:00:00Z"', '"2020-01-01T00:00:00.123456Z"', '"2020-01-01T00:00:00.1234567Z"'),
    *_of("at", '"2020-02-30T00:00:00Z"', '"2020-01-01T24:00:00Z"'),
    *_of("at", '"2020-01-01 00:00:00Z"', '"2020-01-01T00:00:00+02:00"', "1577836800000", flink=False),
    *_of("at", '"2020-01-01T00:00:00"', "1.5", flink=False),
    *_of("wall", '"2020-01-01T00:00:00"', '"2020-01-01T00:00"'),
    *_of("wall", '"2020-02-30T00:00:00"', **NEITHER),
    *_of("wall", '"2020-01-01T00:00:00.1234567"'),
    *_of("wall", '"2020-01-01 00:00:00"', '"2020-01-01T00:00:00+02:00"', "1577836800000", flink=False),
    *_of("bin", '"AQI="', '""'),
    *_of("bin", '"AQI"', flink=False),
    *_of("bin", '"???"', **NEITHER),
    *_of("xs", "[]", "[1,null]", "[1.9]", '["2"]', "null", "[3000000000]"),
    *_of("st", "{}", '{"a":1}', '{"a":1.5,"b":2}', '{"b":{"c": 1}}', '{"a":1,"x":2}', "null"),
    *_of("mp", "{}", '{"k":1,"a":2}', '{"k":null}', '{"k":1.5}', '{"":1}'),
    Odd(REPEATED),
    Odd('{"s":"first","s":"second"}'),
    Odd('{"I":1}'),
    Odd('{"x":1}'),
    Odd("{}"),
    Odd(' {"i": 1 } '),
    Odd('{"s":"late"}', timestamp=253_402_300_800_000),
    Odd('{"s":"never"}', timestamp=2**62, connect=False),
]


def key(some: random.Random) -> bytes | None:
    """Return a random key."""
    return some.choice([None, b"", b"\0", b"k", b"\xff\xfe", "é".encode() * 100])


def stamp(some: random.Random) -> int:
    """Return a random time of Kafka's: of this century, or one at the borders of what a table takes."""
    return 1_700_000_000_000 if some.random() < 0.8 else some.choice([0, 1, 253_402_300_799_999, 253_402_300_800_000])


def by_engines(*, connect: bool, flink: bool) -> list[Odd]:
    """Return the odd records that these engines take, and the others don't."""
    return [one for one in ODD if (one.connect, one.flink) == (connect, flink)]


def randomly(some: random.Random, count: int, odd: Sequence[Odd]) -> list[Odd]:
    """Return random records of the values of these, and of others."""
    by_column: dict[str, list[str]] = {}
    for one in odd:
        if found := re.fullmatch(r'\{"(\w+)":(.*)\}', str(one.value)):
            by_column.setdefault(found[1], []).append(found[2])
    by_column = {name: texts for name, texts in by_column.items() if name in _PAYLOAD}

    def value(column: str) -> str:
        made = {
            "i": lambda: str(some.randint(-(2**31), 2**31 - 1)),
            "l": lambda: some.choice(["%d", "%d.0"]) % some.randint(-(2**62), 2**62),
            "d": lambda: repr(some.uniform(-1, 1) * 10.0 ** some.randint(-30, 30)),
            "m": lambda: f"{some.randint(-(10**7), 10**7)}.{some.randint(0, 10 ** some.randint(1, 4))}",
            "s": lambda: json.dumps(
                "".join(some.choices('aé\0\n"\\\U0001f600', k=4)), ensure_ascii=some.random() < 0.5
            ),
            "xs": lambda: json.dumps(some.choices([0, 1, None, 2**53 + 1], k=some.randint(0, 3))),
            "at": lambda: f'"20{some.randint(10, 99)}-0{some.randint(1, 9)}-17T23:59:59.{some.randint(0, 10**7)}Z"',
        }
        if column in made and some.random() < 0.5:
            return made[column]()
        return some.choice(by_column[column])

    def record() -> Odd:
        names = some.sample(sorted(by_column), some.randint(0, 6))
        space = some.choice(["", " "])
        text = "{" + f",{space}".join(f'"{name}":{space}{value(name)}' for name in names) + "}"
        return Odd(text if some.random() < 0.97 else None, timestamp=stamp(some), key=key(some))

    return [record() for _ in range(count)]


def broken(some: random.Random, records: Sequence[Odd]) -> list[Odd]:
    """Return the records with a byte that is another, or cut, or with something behind them."""

    def made(value: str) -> bytes:
        data = bytearray(value.encode())
        at = some.randrange(len(data))
        data[at] ^= 1 << some.randrange(8)
        return some.choice((bytes(data), bytes(data[:at]), value.encode() + some.choice((b"x", b" {}", b"\0"))))

    return [Odd(made(str(one.value)), timestamp=one.timestamp, key=one.key) for one in records if one.value]
