"""Orders in Avro whose fields have borders: numbers, times, texts, decimals, lists, maps, records, enums, unions."""

from __future__ import annotations

import random
from typing import Any

from tests.support.avro_records import record

COLUMNS = (
    "id bigint, n int, f float, d double, s string, b binary, ok boolean, amount decimal(12, 2), day date, "
    "at_ms timestamp, at_us timestamp, wall_ms timestamp_ntz, wall_us timestamp_ntz, clock bigint, wide bigint, "
    "day_no int, kind string, tags array<string>, scores map<string, double>, maybe double, note string, "
    "who struct<name: string, born: date, seen: timestamp, kind: string>, "
    "lines array<struct<sku: string, price: decimal(9, 2), kind: string>>"
)
KIND = {"type": "enum", "name": "Kind", "namespace": "shop", "symbols": ["NEW", "PAID"]}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


def logical(kind: str, name: str) -> dict[str, Any]:
    return {"type": kind, "logicalType": name}


ORDER = record(
    "shop.Order",
    id="long",
    n="int",
    f="float",
    d="double",
    s="string",
    b="bytes",
    ok="boolean",
    amount=["null", {**MONEY, "precision": 12}],
    day=logical("int", "date"),
    at_ms=logical("long", "timestamp-millis"),
    at_us=["null", logical("long", "timestamp-micros")],
    wall_ms=["null", logical("long", "local-timestamp-millis")],
    wall_us=logical("long", "local-timestamp-micros"),
    clock=logical("long", "time-micros"),
    wide="int",
    day_no=logical("int", "date"),
    kind=["null", KIND],
    no_column="string",
    tags={"type": "array", "items": ["null", "string"]},
    scores={"type": "map", "values": "double"},
    maybe=["null", "float"],
    who=[
        "null",
        record(
            "shop.Person",
            name="string",
            born=["null", logical("int", "date")],
            seen=["null", logical("long", "timestamp-micros")],
            kind="shop.Kind",
        ),
    ],
    lines={"type": "array", "items": record("shop.Line", sku="string", price=["null", MONEY], kind="shop.Kind")},
)
# Days, milliseconds and microseconds: 1970, before it, the first and the last ones that a table holds.
DAYS = (0, -1, 20_000, -719_162, 2_932_896)
MILLIS = (0, -1, 1_500, -62_135_596_800_000, 253_402_300_799_999, 1_763_615_100_123)
MICROS = (0, -1, 1_500, -62_135_596_800_000_000, 253_402_300_799_999_999, 1_763_615_100_123_456, -1_001)
TEXTS = ("", "é", "a'b\"c", "\U0001f600", "x" * 300)


def order(number: int) -> dict[str, Any]:
    """Return an order of numbers and texts that have borders."""
    some = random.Random(number)

    def pick(*values: Any) -> Any:
        return values[number % len(values)] if number < 40 else some.choice(values)

    def cents() -> bytes:
        return some.randint(-(10**9) + 1, 10**9 - 1).to_bytes(5, "big", signed=True)

    return {
        "id": pick(number, -(2**63), 2**63 - 1),
        "n": pick(0, -(2**31), 2**31 - 1),
        "f": pick(0.5, -0.0, 3.4028234663852886e38, float("inf")),
        "d": pick(0.1, -5e-324, 1.7976931348623157e308, float("-inf")),
        "s": pick(*TEXTS),
        "b": pick(b"", b"\x00\xff", bytes(range(256))),
        "ok": pick(True, False),
        "amount": pick(b"\x00", b"\x30\x39", b"\xff\xf6", (10**12 - 1).to_bytes(6, "big"), None),
        "day": pick(*DAYS),
        "at_ms": pick(*MILLIS),
        "at_us": pick(*MICROS, None),
        "wall_ms": pick(*MILLIS, None),
        "wall_us": pick(*MICROS),
        "clock": pick(0, 86_399_999_999),
        "wide": pick(-7, 2**31 - 1),
        "day_no": pick(*DAYS),
        "kind": pick("NEW", "PAID", None),
        "no_column": "left out",
        "tags": pick([], ["a"], ["a", None, "é"]),
        "scores": pick({}, {"a": 0.5}, {"a": 1.0, "": -1.0}),
        "maybe": pick(0.25, None),
        "who": pick(
            None,
            {"name": "Ann", "born": None, "seen": some.choice(MICROS), "kind": "NEW"},
            {"name": "", "born": some.choice(DAYS), "seen": None, "kind": "PAID"},
        ),
        "lines": pick([], [{"sku": "a", "price": None, "kind": "PAID"}, {"sku": "b", "price": cents(), "kind": "NEW"}]),
    }
