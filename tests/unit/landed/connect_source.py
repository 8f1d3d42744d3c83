"""Records as Connect's JSON converter writes them, their schema beside them; numbers and base64 mean what it says."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from random import Random
from typing import Any

import pyarrow as pa

from tests.unit.decode import oracle
from tests.unit.landed import json_texts
from tests.unit.landed.landing import Source

_EPOCH = datetime(1970, 1, 1)
_DAY = 86_400_000_000
_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data", "io.debezium.time"


def _days(value: int) -> Any:
    return (_EPOCH + timedelta(days=value)).date()


def _time(unit: int) -> Callable[[int], Any]:
    def read(value: int) -> Any:
        nanos = value * unit
        if nanos % 1000 or not 0 <= nanos // 1000 < _DAY:
            raise oracle.Rejected("no time of day")
        return (_EPOCH + timedelta(microseconds=nanos // 1000)).time()

    return read


def _instant(unit: int, zone: Any) -> Callable[[int], Any]:
    def read(value: int) -> Any:
        if value * unit % 1000:
            raise oracle.Rejected("too fine")
        return (_EPOCH + timedelta(microseconds=value * unit // 1000)).replace(tzinfo=zone)

    return read


def _decimal(data: bytes) -> Any:
    unscaled = int.from_bytes(data, "big", signed=True)
    if not data or abs(unscaled) >= 10**20:
        raise oracle.Rejected("decimal")
    return Decimal(unscaled).scaleb(-2, Context(prec=90))


# Names: type, its name and parameters; what JSON has; what a value means; the column.
_INT64, _TEXT = pa.int64(), pa.string()
FIELDS: dict[str, tuple[str, str | None, pa.DataType, Callable[[Any], Any] | None, pa.DataType]] = {
    "id": ("int64", None, _INT64, None, _INT64),
    "d": ("double", None, pa.float64(), None, pa.float64()),
    "s": ("string", None, _TEXT, None, _TEXT),
    "de": ("bytes", f"{_CONNECT}.Decimal", pa.binary(), _decimal, pa.decimal128(20, 2)),
    "da": ("int32", f"{_CONNECT}.Date", _INT64, _days, pa.date32()),
    "db": ("int32", f"{_DEBEZIUM}.Date", _INT64, _days, pa.date32()),
    "ts": ("int64", f"{_CONNECT}.Timestamp", _INT64, _instant(1_000_000, UTC), pa.timestamp("us", "UTC")),
    "tm": ("int64", f"{_DEBEZIUM}.Timestamp", _INT64, _instant(1_000_000, None), pa.timestamp("us")),
    "tu": ("int64", f"{_DEBEZIUM}.MicroTimestamp", _INT64, _instant(1_000, None), pa.timestamp("us")),
    "tn": ("int64", f"{_DEBEZIUM}.NanoTimestamp", _INT64, _instant(1, None), pa.timestamp("us")),
    "tz": ("string", f"{_DEBEZIUM}.ZonedTimestamp", pa.timestamp("us", "UTC"), None, pa.timestamp("us", "UTC")),
}
OTHERS: dict[str, tuple[str, str | None, pa.DataType, Callable[[Any], Any] | None, pa.DataType]] = {
    "ti": ("int32", f"{_CONNECT}.Time", _INT64, _time(1_000_000), pa.time64("us")),
    "tc": ("int64", f"{_DEBEZIUM}.MicroTime", _INT64, _time(1_000), pa.time64("us")),
    "tf": ("int64", f"{_DEBEZIUM}.NanoTime", _INT64, _time(1), pa.time64("us")),
    "u": ("string", "io.debezium.data.Uuid", pa.uuid(), None, pa.uuid()),
}
# A decimal by the converter's `decimal.format=NUMERIC`.
_NUMERIC = re.compile(rb'"de":-?[0-9]')
# How many of a column's units a second has.
_UNITS = {"ts": 1000, "tm": 1000, "tu": 10**6, "tn": 10**9, "ti": 1000, "tc": 10**6, "tf": 10**9}


def source(table_format: str) -> Source:
    """Return records for a kind of table."""
    fields = {**FIELDS, **(OTHERS if table_format == "iceberg" else {})}
    columns = pa.schema([pa.field(name, one[4], nullable=name != "id") for name, one in fields.items()])
    written = pa.schema([pa.field(name, one[2], nullable=name != "id") for name, one in fields.items()])
    with_numbers = written.set(written.get_field_index("de"), columns.field("de"))
    parameters = {"version": 1, "parameters": {"scale": "2", "connect.decimal.precision": "20"}}
    schema = {"type": "struct", "fields": [
        {"field": name, "type": kind, "optional": name != "id"}
        | ({"name": logical} if logical else {}) | (parameters if name == "de" else {})
        for name, (kind, logical, *_) in fields.items()
    ]}  # fmt: skip
    before = b'{"schema":%b,"payload":' % json.dumps(schema).encode()

    def payload(rng: Random) -> bytes | None:
        if rng.random() < 0.01:
            return rng.choice([None, b"{}", before + b"null}", before + b"}", before + b"1}", b'{"id":1}'])
        members = []
        for name, (*_, means, _kind) in fields.items():
            if rng.random() < 0.1:
                continue
            text = json_texts.value(written.field(name).type, rng) if means is None else _number(name, rng)
            members.append(b'"%b":%b' % (name.encode(), text))
        return before + b"{" + b",".join(members) + b"}}"

    def row(value: bytes | None) -> dict[str, Any]:
        if value is not None and value.startswith(before) and value.endswith(b"}"):
            inner = value[len(before) : -1]
            numeric = _NUMERIC.search(inner) is not None
            found = oracle.row(with_numbers if numeric else written, None if inner == b"null" else inner)
            try:
                return {
                    name: one if numeric and name == "de" else _meant(fields[name][3], one)
                    for name, one in found.items()
                }
            except OverflowError:
                raise oracle.Rejected("out of range") from None
        return oracle.row(columns, value)

    layouts: list[Mapping[str, Any]] = [{}, {"partition_by": ["day(ts)"]}, {"partition_by": ["hour(tu)"]}]
    config = {"schema": columns, "envelope": "connect"}
    return Source("connect", columns, payload, row, (oracle.Rejected,), config, layouts=layouts)


def _meant(means: Callable[[Any], Any] | None, value: Any) -> Any:
    return value if means is None or value is None else means(value)


def _number(name: str, rng: Random) -> bytes:
    """Return what stands for a value of a logical type."""
    beyond = rng.random() < json_texts.BEYOND
    if beyond and rng.random() < 0.2:
        return rng.choice([b"1.5", b'"x"', b"true", b"9223372036854775808", b"null", b'"AA"'])
    if name == "de":
        number = json_texts.decimal(20, rng, beyond=beyond)
        return b'"' + base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)) + b'"'
    if name in ("da", "db"):
        days = [one.toordinal() - 719_163 for one in json_texts.DAYS]
        return str(rng.choice([min(days) - 1, max(days) + 1, 2**31 - 1, -(2**31)] if beyond else days)).encode()
    unit = _UNITS[name]
    if name in ("ti", "tc", "tf"):
        return str(rng.choice([86_400 * unit, -1, 2**62] if beyond else [0, unit, 86_399 * unit])).encode()
    low, high = -62_135_596_800 * unit, 253_402_300_799 * unit
    if name == "tn":
        # Of its range only some centuries have a place in 64 bits.
        low, high = -(2**63 // 1000 * 1000 - 1000), 2**63 // 1000 * 1000 - 1000
    return str(
        rng.choice([low - 1000, high + unit, 2**63 - 1, -(2**63)] if beyond else [low, high, 0, unit, -unit])
    ).encode()
