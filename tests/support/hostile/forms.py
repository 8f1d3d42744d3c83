"""How a value is said: by PostgreSQL in its own text, by a mirror as Arrow has it, and what both come to.

Nothing of the package is used here: an oracle that shares code with what it judges finds little.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

Read = Callable[[Any], Any]


@dataclass(frozen=True)
class Form:
    """`sql` is what PostgreSQL is asked, with {} for the column; its text and the mirror's value are read alike.

    :param theirs: reads PostgreSQL's text.
    :param ours: reads the mirror's value; dates and times are integers by then (days, microseconds).
    :param nearest: returns what comes nearest to a value, read alike, of those that a column of the lake can hold.
    """

    sql: str
    theirs: Read
    ours: Read
    nearest: Read = lambda value: value

    def of_array(self) -> Form:
        """Return the form of an array of these: PostgreSQL says its elements one by one."""
        inner = self.sql.format("e.v")
        sql = f"(select coalesce(json_agg({inner} order by e.n), '[]') from unnest({{}}) with ordinality e(v, n))::text"

        def theirs(text: str) -> Any:
            return [None if one is None else self.theirs(one) for one in json.loads(text)]

        def nearest(values: Any) -> Any:
            return [None if one is None else self.nearest(one) for one in values]

        def ours(values: Any) -> Any:
            return [None if one is None else self.ours(one) for one in values]

        return replace(
            self,
            sql=f"case when {{0}} is not null then {sql.replace('{}', '{0}')} end",
            theirs=theirs,
            ours=ours,
            nearest=nearest,
        )


# What PostgreSQL itself writes for a value; a cast to text says other things of `inet` and `char`.
OUTPUT = "case when {0} is not null then format('%s', {0}) end"
MICROS = "case when isfinite({0}) then trunc(extract(epoch from {0}) * 1000000)::text else {0}::text end"


def real(value: Any) -> str:
    return repr(struct.unpack("f", struct.pack("f", double_of(value)))[0])


def double(value: Any) -> str:
    return repr(double_of(value))


def double_of(value: Any) -> float:
    return math.nan if str(value).lower() == "nan" else float(value)


def number(value: Any) -> str:
    """Read a decimal: as it is, as text, or as Debezium's scale and digits."""
    if isinstance(value, dict):
        digits = int.from_bytes(value["value"], "big", signed=True)
        value = Decimal(digits).scaleb(-value["scale"]) if digits else Decimal(0)
    found = Decimal(str(value))
    if not found.is_finite():
        return str(found)
    text = format(found, "f")
    return (
        (text.rstrip("0").rstrip(".") if "." in text else text).replace("-0", "0")
        if not found
        else (text.rstrip("0").rstrip(".") if "." in text else text)
    )


def octets(value: Any) -> str:
    return bytes(value).hex()


def bits(value: Any) -> int:
    """Debezium sends bits as bytes, the lowest first, and one bit as a boolean."""
    return int(value) if isinstance(value, bool) else int.from_bytes(value, "little")


def zoned_time(text: str) -> int:
    """Read a time with a zone as microseconds of a day in UTC."""
    match = re.fullmatch(r"(\d+):(\d+)(?::(\d+)(?:\.(\d+))?)?(Z|[+-][\d:]+)?", text)
    assert match, text
    hours, minutes, seconds = (int(match[n] or 0) for n in (1, 2, 3))
    micros = int((match[4] or "").ljust(6, "0")[:6])
    zone = match[5] or "Z"
    shift = 0
    if zone != "Z":
        parts = [int(part) for part in zone[1:].split(":")]
        shift = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False)) * (
            -1 if zone[0] == "-" else 1
        )
    return (((hours * 60 + minutes) * 60 + seconds - shift) * 1_000_000 + micros) % 86_400_000_000


def interval(text: str) -> tuple[int, int, int]:
    """Read ISO 8601 as months, days and microseconds."""
    match = re.fullmatch(
        r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?(?:T(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?)?", text
    )
    assert match, text
    years, months, days, hours, minutes = (int(match[n] or 0) for n in range(1, 6))
    micros = (hours * 60 + minutes) * 60_000_000 + int(Decimal(match[6] or 0) * 1_000_000)
    return years * 12 + months, days, micros


def within(least: int, most: int) -> Read:
    """Return what brings an integer, or an infinity, between two others."""
    ends = {"infinity": most, "-infinity": least}
    return lambda text: str(ends[text] if text in ends else min(max(int(text), least), most))


def point(value: Any) -> tuple[float, float]:
    if isinstance(value, dict):
        return value["x"], value["y"]
    x, y = value.strip("()").split(",")
    return float(x), float(y)


def pairs(value: Any) -> Any:
    return dict(json.loads(value) if isinstance(value, str) else value)


def encoded(value: Any) -> str:
    return octets(base64.b64decode(value) if isinstance(value, str) else value)


INTEGER = Form("{0}::text", int, int)
BOOLEAN = Form("{0}::text", str, lambda value: str(value).lower())
TEXT = Form(OUTPUT, str, str)
PADDED = Form(OUTPUT, str.rstrip, lambda value: str(value).rstrip())
REAL = Form("{0}::text", real, real)
DOUBLE = Form("{0}::text", double, double)
NUMBER = Form("{0}::numeric::text", number, number)
BYTES = Form("encode({0}, 'hex')", str, encoded)
DAYS = "case when isfinite({0}) then ({0} - date '1970-01-01')::text else {0}::text end"
# The years 1 to 9999.
DATE = Form(DAYS, str, str, within(-719_162, 2_932_896))
MOMENT = Form(MICROS, str, str, within(-62_135_596_800_000_000, 253_402_300_799_999_999))
TIME = Form("trunc(extract(epoch from {0}) * 1000000)::text", str, str, within(0, 86_399_999_999))
ZONED_TIME = Form("{0}::text", zoned_time, zoned_time)
INTERVAL = Form("{0}::text", interval, interval)
BITS = Form("{0}::text", lambda text: int(text or "0", 2), bits)
POINT = Form("{0}::text", point, point)
HSTORE = Form("hstore_to_json({0})::text", pairs, pairs)
# Debezium has no type for it, and leaves the column out.
NOT_SENT = Form("null", str, str)
