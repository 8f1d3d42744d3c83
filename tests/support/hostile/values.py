"""Random values of PostgreSQL's types, as its own text."""

from __future__ import annotations

import json
import string
import uuid
from collections.abc import Callable
from datetime import date, timedelta
from random import Random

Make = Callable[[Random], str]


def whole(bits: int) -> Make:
    return lambda random: str(random.getrandbits(random.randint(1, bits)) - random.getrandbits(random.randint(1, bits)))


def words(most: int = 12) -> Make:
    letters = string.ascii_letters + string.digits + " äßé漢😀'\"\\{},\t\n$%;-"
    return lambda random: "".join(random.choice(letters) for _ in range(random.randint(0, most)))


def plain(most: int = 8) -> Make:
    return lambda random: "".join(random.choice(string.ascii_lowercase) for _ in range(random.randint(1, most)))


def digits(precision: int, scale: int) -> Make:
    def make(random: Random) -> str:
        text = str(random.randrange(10 ** random.randint(1, precision))).rjust(scale + 1, "0")
        return random.choice(["", "-"]) + (f"{text[:-scale]}.{text[-scale:]}" if scale else text)

    return make


def floating(random: Random) -> str:
    return repr(random.choice([random.uniform(-1e3, 1e3), random.gauss(0, 1) * 10 ** random.randint(-30, 30)]))


def day(random: Random) -> str:
    return (date(1900, 1, 1) + timedelta(days=random.randint(0, 90_000))).isoformat()


def clock(digits: int = 6) -> Make:
    def make(random: Random) -> str:
        part = f".{random.randrange(10**digits):0{digits}}" if digits else ""
        return f"{random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59):02}{part}"

    return make


def moment(zone: str = "", digits: int = 6) -> Make:
    at = clock(digits)
    return lambda random: f"{day(random)} {at(random)}{zone}"


def binary(random: Random) -> str:
    return "\\x" + random.randbytes(random.randint(0, 12)).hex()


def document(random: Random) -> str:
    value = {plain()(random): random.choice([None, 1.5, words()(random), [1, {"op": "d"}], {"before": None}])}
    return json.dumps(value, ensure_ascii=random.random() < 0.5)


def identity(random: Random) -> str:
    return str(uuid.UUID(int=random.getrandbits(128)))


def octet(random: Random) -> str:
    return str(random.randint(0, 255))


def address(random: Random) -> str:
    return ".".join(octet(random) for _ in range(4))


def between(make: Make, sort: Callable[[str], object] = str) -> Make:
    def bounds(random: Random) -> str:
        low, high = sorted((make(random), make(random)), key=sort)
        return f"{random.choice('[(')}{low},{high}{random.choice('])')}"

    return bounds


def listed(make: Make, most: int = 4, *, nulls: bool = True) -> Make:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def make_list(random: Random) -> str:
        values = [
            random.choices(["NULL", quoted(make(random))], [int(nulls), 4])[0] for _ in range(random.randint(0, most))
        ]
        return "{" + ",".join(values) + "}"

    return make_list


def long_text(random: Random) -> str:
    return f"{random.getrandbits(64)}-" + "x" * random.choice([2_500, 9_000])


def long_words(random: Random) -> str:
    return "{" + ",".join(identity(random) for _ in range(200)) + "}"


def long_numbers(random: Random) -> str:
    return "{" + ",".join(str(random.getrandbits(30)) for _ in range(1_500)) + "}"
