"""JSON values of which engines make different things, and what is to hold of each: it is equal, or it is named."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import types as arrow

from airflow_lakestream.core.publishing.branch import Looked, Proof, Written
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.kafka.source import KafkaSource, StartAt
from airflow_lakestream.tables.coordinates import ranges_of
from airflow_lakestream.tables.schema.types import arrow_schema
from tests.support.lake import Lake

COLUMNS = (
    "i int, l bigint, f float, d double, m decimal(10,2), b boolean, s string, day date, at timestamp, "
    "wall timestamp_ntz, bin binary, xs array<bigint>, st struct<a: bigint, b: string>, mp map<string, bigint>"
)
OTHER = "lake.by_the_extract"
_PAYLOAD = ["i", "l", "f", "d", "m", "b", "s", "day", "at", "wall", "bin", "xs", "st", "mp"]


@dataclass(frozen=True)
class Odd:
    """A record. By which engines it is taken at all; a task fails at any other."""

    text: str | None
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


def records(seed: int, count: int, engine: str) -> list[Odd]:
    """Return the odd records that an engine takes, and random ones of their values, of others, and of none."""
    some, taken = random.Random(seed), [one for one in ODD if getattr(one, engine)]
    by_column: dict[str, list[str]] = {}
    for one in taken:
        if found := re.fullmatch(r'\{"(\w+)":(.*)\}', one.text or ""):
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
        stamp = some.choice([0, 1, 1_700_000_000_000, 253_402_300_799_999, 253_402_300_800_000])
        key = some.choice([None, b"", b"\0", b"k"])
        return Odd(text if some.random() < 0.97 else None, timestamp=stamp, key=key)

    return [*taken, *(record() for _ in range(count))]


def _numbers(table: pa.Table) -> dict[int, dict[str, str]]:
    """Return rows by offset, each value as text: times are numbers, of which Python has none for some."""
    found: dict[str, list[Any]] = {}
    for name in (*_PAYLOAD, "_kafka_timestamp"):
        column = table[name]
        if arrow.is_timestamp(column.type):
            column = column.cast(pa.int64())
        found[name] = (column.cast(pa.int32()) if arrow.is_date32(column.type) else column).to_pylist()
    # The entries of a map have no order.
    found["mp"] = [one if one is None else sorted(one) for one in found["mp"]]
    rows = [dict(zip(found, map(_text, row), strict=True)) for row in zip(*found.values(), strict=True)]
    offsets = table["_kafka_offset"].to_pylist()
    assert len(set(offsets)) == len(offsets)
    return dict(zip(offsets, rows, strict=True))


def _text(value: Any) -> str:
    # NaN is equal to itself so, and 0.0 to -0.0.
    return repr(value + 0.0 if isinstance(value, float) else value)


@dataclass
class Verdicts:
    """What the proof says of an engine's rows, and what is so."""

    lake: Lake
    topic: str
    rows: pa.Table
    proof: Proof

    def check(self, records: list[Odd]) -> dict[str, str]:
        """Assert that a record is refused exactly if the extract makes something else of it; return which are."""
        report = self.lake.land(
            self.topic, table=OTHER, consumer_group="other", schema=COLUMNS, tombstones="skip", max_rejected="1.0"
        )
        assert report.counts.read == len(records)
        ours, theirs = _numbers(self.lake.table(OTHER).scan().to_arrow()), _numbers(self.rows)
        assert sorted(theirs) == [offset for offset, one in enumerate(records) if one.text is not None]
        different = {
            offset: [name for name in row if row[name] != theirs[offset][name]]
            for offset, row in ours.items()
            if row != theirs[offset]
        }
        found = {str(records[offset].text): ", ".join(names) for offset, names in different.items()}
        for offset in [offset for offset in theirs if offset not in ours][:500]:
            with pytest.raises(BadRecord, match=rf"\[0\] offset {offset}: ") as bad:
                self._look([offset])
            found[str(records[offset].text)] = bad.value.reason
        looked = self._look(sorted(ours))
        assert looked.different == ranges_of((self.topic, 0), _array(different))
        assert looked.equal == ranges_of((self.topic, 0), _array(set(ours) - set(different)))
        named = {one.offset: list(one.columns) for one in looked.named}
        assert named == {offset: different[offset] for offset in sorted(different)[:5]}
        return found

    def _look(self, offsets: list[int]) -> Looked:
        state = KafkaSource(self.lake.kafka, self.topic, "verdicts", StartAt(), "the broker").look()
        of_these = pc.is_in(self.rows["_kafka_offset"], value_set=pa.array(offsets, pa.int64()))
        written = Written(lambda: iter([self.rows.filter(of_these)]), arrow_schema(self.lake.table().schema()))
        return self.proof.check(ranges_of((self.topic, 0), _array(offsets)), written, state, threading.Event())


def _array(offsets: Iterable[int]) -> Any:
    return np.array(sorted(offsets), np.int64)
