"""Random statements of the common subset, and random records for them; the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.avro_records import record

_TEXTS = ("", "a", "Abc def", " x ", "a-b-c", "Zoë", "12", "-7.50", "true", "\U0001f600", "it's", "1e3", "%_\\")
_NUMBERS = (0, 1, -1, 7, 2**31, 2**63, -(2**31), 1.5, 0.1, 1e21, "42", "007", "1.005", "-0", " 5", "1_000", "0x1f")
_TIMES = (
    *("2026-01-02T03:04:05Z", "2026-01-02 03:04:05.123456", "2026-02-29T00:00:00Z", "1969-12-31T23:59:59.999Z"),
    *("2026-01-02T03:04:05+02:00", "2026-01-02", "0001-01-01 00:00:00", "9999-12-31T23:59:59Z", "noon", 1767225600),
)
_DATES = ("2026-01-02", "2024-02-29", "2023-02-29", "1970-01-01", "1582-10-10", "0001-01-01", "2026-1-2", "today")
_POOLS: Mapping[str, tuple[object, ...]] = {
    **{"s": _TEXTS, "n": _NUMBERS, "p": _NUMBERS, "f": _NUMBERS, "t": _TIMES, "d": _DATES},
    "b": (True, False, "true", "FALSE", 1, "yes"),
}
# The fields of a document as columns of a decoded record, and the schema that writes them.
DECODED = "s string, n bigint, p decimal(10, 2), f double, t timestamp, d date, b boolean"
ROW = record(
    "Row",
    s=["null", "string"],
    n=["null", "long"],
    p=["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
    f=["null", "double"],
    t=["null", {"type": "long", "logicalType": "timestamp-micros"}],
    d=["null", {"type": "int", "logicalType": "date"}],
    b=["null", "boolean"],
)
_BORDERS: Mapping[str, tuple[object, ...]] = {
    "s": _TEXTS,
    "n": (0, -1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63), 2**53 + 1),
    "p": (0, -1, 105, -250, 9_999_999_999, -9_999_999_999),
    "f": (0.0, -0.0, 0.1, 2.5, -2.5, 1e15 + 0.5, 5e-324, 1.7976931348623157e308),
    "t": (0, -1, 1_709_164_800_000_000, -62_135_596_800_000_000, 253_402_300_799_999_999),
    # The first day of 1970, days of 1582, 1 and 9999, and a 29th of February.
    "d": (0, -141_418, -719_162, 2_932_896, 19_782),
    "b": (True, False),
}
_BROKEN = ("", "no document", '{"s": "cut', "[]", '{"s": "a"} {"s": "b"}', '{"n": 01}', "7")


class Statements:
    """Makes expressions of one type each, nested two deep at most.

    :param seed: two with the same make the same.
    :param decoded: they read the columns of `DECODED`, and not texts.
    """

    def __init__(self, seed: int, *, decoded: bool = False) -> None:
        self._random = random.Random(seed)
        self._decoded = decoded
        self._kinds: Mapping[str, Callable[[int], str]] = {
            **{"text": self._text, "whole": self._whole, "decimal": self._decimal, "double": self._double},
            **{"time": self._time, "date": self._date, "condition": self._condition},
        }

    def statement(self, columns: int) -> str:
        """Return a SELECT with so many random columns, and a condition for half of them."""
        kinds = [self._random.choice(list(self._kinds)) for _ in range(columns)]
        listed = ", ".join(f"{self._kinds[kind](2)} AS c{n}" for n, kind in enumerate(kinds))
        where = f" WHERE {self._condition(1)}" if self._random.random() < 0.5 else ""
        return f"SELECT {listed}, _kafka_offset AS at FROM {{{{ input }}}}{where}"

    def value(self) -> str | None:
        """Return a record's value: a document mostly, with values that fit most of the time."""
        if self._random.random() < 0.1:
            return self._random.choice((*_BROKEN, None))
        found: dict[str, object] = {"s": f"text {self._random.randrange(50)}", "n": self._random.randrange(-99, 99)}
        found |= {"p": f"{self._random.randrange(999)}.25", "f": self._random.randrange(99) / 4, "b": "true"}
        found |= {"t": "2026-01-02T03:04:05Z", "d": "2026-01-02"}
        for name in self._random.sample(sorted(found), self._random.choice((0, 0, 1, 2))):
            found[name] = self._random.choice((*_POOLS[name], None))
        return json.dumps(found, ensure_ascii=self._random.random() < 0.5)

    def row(self) -> dict[str, Any] | None:
        """Return a record's columns of `DECODED`, as Avro writes them: hundredths, microseconds, and days."""
        if self._random.random() < 0.05:
            return None
        found: dict[str, Any] = {"s": f"text {self._random.randrange(50)}", "n": self._random.randrange(-99, 99)}
        found |= {"p": self._random.randrange(-9999, 9999), "f": self._random.randrange(99) / 4}
        found |= {
            "t": 1_767_323_045_000_000 + self._random.randrange(10**7),
            "d": 20_455,
            "b": self._random.random() < 0.5,
        }
        for name in self._random.sample(sorted(found), self._random.choice((0, 0, 1, 2))):
            found[name] = self._random.choice((*_BORDERS[name], None))
        if found["p"] is not None:
            found["p"] = found["p"].to_bytes(6, "big", signed=True)
        return found

    def key(self) -> str | None:
        """Return a record's key."""
        return self._random.choice((*_TEXTS, None))

    def _one(self, *ways: Callable[[], str]) -> str:
        return self._random.choice(ways)()

    def _cast(self, field: str, kind: str) -> str:
        how = "TRY_CAST" if self._random.random() < 0.8 else "CAST"
        if self._decoded:
            return "t AT TIME ZONE 'UTC'" if kind == "TIMESTAMP" else f"{how}({field} AS {kind})"
        return f"{how}(json_value(value, '$.{field}') AS {kind})"

    def _text(self, depth: int) -> str:
        if not depth:
            if self._decoded:
                return self._one(lambda: "s", lambda: "'ab'")
            return self._one(lambda: "key", lambda: "json_value(value, '$.s')", lambda: "'ab'")
        inner, r = self._text(depth - 1), self._random
        return self._one(
            lambda: inner,
            lambda: f"{r.choice(('lower', 'upper', 'trim', 'ltrim', 'rtrim', 'md5', 'sha256'))}({inner})",
            lambda: f"substr({inner}, {r.randrange(1, 4)}, {r.randrange(1, 4)})",
            lambda: f"{r.choice(('left', 'right'))}({inner}, {r.randrange(1, 4)})",
            lambda: f"replace({inner}, 'a', 'bb')",
            lambda: f"split_part({inner}, '-', {r.randrange(1, 4)})",
            lambda: f"{inner} || {self._text(0)}",
            lambda: f"concat({inner}, {self._text(0)}, 'x')",
            lambda: f"coalesce({inner}, 'none')",
            lambda: f"nullif({inner}, 'a')",
            lambda: f"CAST({self._whole(0)} AS VARCHAR)",
            lambda: f"CAST({self._date(0)} AS VARCHAR)",
            lambda: f"CASE WHEN {self._condition(0)} THEN {inner} ELSE 'other' END",
            lambda: f"strftime({self._time(0)}, '%Y/%m/%d %H')",
        )

    def _whole(self, depth: int) -> str:
        r = self._random
        if not depth:
            return self._one(
                lambda: self._cast("n", r.choice(("BIGINT", "INTEGER"))), lambda: "_kafka_offset", lambda: "3"
            )
        return self._one(
            lambda: f"{self._whole(0)} {r.choice('+-*')} {self._whole(0)}",
            lambda: f"{self._whole(0)} {r.choice(('%', '//'))} {r.choice((self._whole(0), '0', '7'))}",
            lambda: f"length({self._text(1)})",
            lambda: f"{r.choice(('year', 'month', 'day', 'hour', 'minute', 'second', 'quarter'))}({self._time(0)})",
            lambda: f"abs({self._whole(0)})",
            lambda: f"coalesce({self._whole(0)}, -1)",
            lambda: f"CAST({self._decimal(0)} AS BIGINT)",
        )

    def _decimal(self, depth: int) -> str:
        if not depth:
            return self._cast("p", self._random.choice(("DECIMAL(10, 2)", "DECIMAL(5, 1)", "DECIMAL(20, 6)")))
        return self._one(
            lambda: f"{self._decimal(0)} {self._random.choice('+-')} {self._decimal(0)}",
            lambda: f"{self._cast('p', 'DECIMAL(8, 2)')} * 3",
            lambda: f"CAST({self._decimal(0)} AS DECIMAL(12, 1))",
            lambda: f"{self._random.choice(('floor', 'ceil', 'abs'))}({self._decimal(0)})",
        )

    def _double(self, depth: int) -> str:
        return self._one(
            lambda: self._cast("f", "DOUBLE"),
            lambda: f"{self._cast('f', 'DOUBLE')} {self._random.choice('+-*/')} {self._whole(0)}",
            lambda: f"{self._whole(0)} / {self._whole(0)}",
        )

    def _time(self, depth: int) -> str:
        unit = self._random.choice(("second", "minute", "hour", "day", "month", "quarter", "year"))
        of_record = "_kafka_timestamp" if self._decoded else "event_timestamp"
        ways = [lambda: of_record, lambda: self._cast("t", "TIMESTAMP"), lambda: self._cast("t", "TIMESTAMPTZ")]
        if depth:
            ways.append(lambda: f"date_trunc('{unit}', {self._time(0)})")
            ways.append(lambda: f"to_timestamp({self._whole(0)})")
            ways.append(lambda: f"epoch_ms({self._whole(0)})")
            ways.append(lambda: f"{of_record} AT TIME ZONE 'UTC'")
        return self._one(*ways)

    def _date(self, depth: int) -> str:
        return self._one(lambda: self._cast("d", "DATE"), lambda: f"CAST({self._time(0)} AS DATE)")

    def _condition(self, depth: int) -> str:
        r = self._random
        sign = r.choice(("=", "<>", "<", ">", "<=", ">=", "IS DISTINCT FROM"))
        ways = [
            lambda: f"{self._text(depth)} {sign} {self._text(0)}",
            lambda: f"{self._whole(depth)} {sign} {self._whole(0)}",
            lambda: f"{self._decimal(0)} {sign} 2.5",
            lambda: f"{self._text(depth)} LIKE '{r.choice(('a%', '%b%', 'text _'))}'",
            lambda: f"{self._text(depth)} IS {r.choice(('', 'NOT '))}NULL",
            lambda: f"{self._whole(0)} BETWEEN 0 AND 50",
            lambda: f"{self._text(0)} {r.choice(('', 'NOT '))}IN ('a', 'ab')",
            lambda: f"contains({self._text(0)}, 'b')",
            lambda: f"regexp_matches({self._text(0)}, '^[a-z]+ ?[0-9]*$')",
            lambda: f"{self._cast('b', 'BOOLEAN')}",
            lambda: f"{self._date(0)} > DATE '2026-01-01'",
        ]
        if depth:
            ways.append(lambda: f"({self._condition(0)} {r.choice(('AND', 'OR'))} NOT {self._condition(0)})")
        return self._one(*ways)
