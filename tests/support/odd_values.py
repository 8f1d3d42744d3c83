"""JSON values of which engines make different things, and what is to hold of each: it is equal, or it is named."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types as arrow

from airflow_lakestream.core.publishing.branch import Proof, Written
from airflow_lakestream.core.ranges import RangeSet
from airflow_lakestream.exceptions import BadRecord
from airflow_lakestream.kafka.source import KafkaSource, StartAt
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

    text: str
    connect: bool = True
    flink: bool = True
    timestamp: int = 1_700_000_000_000


def _of(column: str, *texts: str, **by: bool) -> list[Odd]:
    return [Odd(f'{{"{column}":{text}}}', **by) for text in texts]


ODD = [
    *_of("i", "7", "-0", "1.0", "1.9", "1e2", "true", "2147483648", "3000000000", '"12"', '"+12"', '" 12"', "null"),
    *_of("l", "9223372036854775807", "9223372036854775808", "1.9", "9007199254740993.0", "1e3", '"9"', '"1.0"'),
    *_of("f", "0.1", "16777217", "1e39", '"0.5"', "-0.0"),
    *_of("d", "0.1", "1e400", "9007199254740993", "0.30000000000000004", '"1e3"', '"NaN"', "1E-400", "-0"),
    *_of("m", "1.01", "1.005", "1.10", "12345678.90", "123456789.00", '"1.005"', '"1.50"', "1e2", "0.1", "1e-3"),
    *_of("b", "true", '"true"', '"TRUE"', '"yes"', '"1"', "1", "0"),
    *_of("s", '"a"', '""', '"\\u0000"', '"\\ud83d\\ude00"', "1", "1.0", "1.50", "true", "null", "12345678901234567890"),
    *_of("s", '{"a": 1}', '{"a":1}', "[1, 2]", "[1,2]", '{"b":1.10}', '"e\\u0301"'),
    *_of("day", '"2020-02-29"', '"2020-02-30"', '"2020-2-9"', '"2020-02-29T00:00:00Z"', "18321", '"9999-12-31"'),
    *_of("at", '"2020-01-01T00:00:00Z"', '"2020-01-01 00:00:00Z"', '"2020-01-01T00:00:00+02:00"', "1577836800000"),
    *_of("at", '"2020-01-01T00:00:00.123456Z"', '"2020-01-01T00:00:00.1234567Z"', '"2020-01-01T00:00:00"', "1.5"),
    *_of("at", '"2020-02-30T00:00:00Z"', '"2020-01-01T24:00:00Z"'),
    *_of("wall", '"2020-01-01T00:00:00"', '"2020-01-01 00:00:00"', '"2020-01-01T00:00:00+02:00"', "1577836800000"),
    *_of("wall", '"2020-02-30T00:00:00"', '"2020-01-01T00:00"', '"2020-01-01T00:00:00.1234567"'),
    *_of("bin", '"AQI="', '"AQI"', '""', '"???"'),
    *_of("xs", "[]", "[1,null]", "[1.9]", '["2"]', "null", "[3000000000]"),
    *_of("st", "{}", '{"a":1}', '{"a":1.5,"b":2}', '{"b":{"c": 1}}', '{"a":1,"x":2}', "null"),
    *_of("mp", "{}", '{"k":1,"a":2}', '{"k":null}', '{"k":1.5}', '{"":1}'),
    Odd('{"i":1,"i":1,"i":1,"s":"kept"}'),
    Odd('{"s":"first","s":"second"}'),
    Odd('{"I":1}'),
    Odd('{"x":1}'),
    Odd("{}"),
    Odd(' {"i": 1 } '),
    Odd('{"s":"late"}', timestamp=253_402_300_800_000),
    Odd('{"s":"never"}', timestamp=2**62),
]


def cells(table: pa.Table, offset: int) -> list[dict[str, Any]]:
    """Return the rows of an offset, with times as the numbers that they are: Python has none for some of them."""
    found: dict[str, Any] = {}
    for name in (*_PAYLOAD, "_kafka_offset", "_kafka_timestamp"):
        column = table[name]
        if arrow.is_timestamp(column.type):
            column = column.cast(pa.int64())
        found[name] = column.cast(pa.int32()) if arrow.is_date32(column.type) else column
    rows = pa.table(found)
    picked = rows.filter(pa.compute.equal(rows["_kafka_offset"], offset)).to_pylist()
    for row in picked:
        # The entries of a map have no order.
        row["mp"] = None if row["mp"] is None else sorted(row["mp"])
    return picked


@dataclass
class Verdicts:
    """What the proof says of an engine's rows, record by record, and what is so."""

    lake: Lake
    topic: str
    rows: pa.Table
    proof: Proof

    def refused(self, offset: int) -> str:
        """Return why the proof refuses a record alone; empty where it does not."""
        state = KafkaSource(self.lake.kafka, self.topic, "verdicts", StartAt(), "the broker").look()
        alone = self.rows.filter(pa.compute.equal(self.rows["_kafka_offset"], offset))
        payload = pa.schema([one for one in arrow_schema(self.lake.table().schema()) if one.name in _PAYLOAD])
        wanted = RangeSet.of(self.topic, 0, offset, offset + 1)
        try:
            looked = self.proof.check(wanted, Written(lambda: iter([alone]), payload), state, threading.Event())
        except BadRecord as bad:
            return bad.reason
        return ", ".join(name for one in looked.named for name in one.columns)

    def check(self, texts: list[str]) -> dict[str, str]:
        """Assert that a record is refused exactly if the extract makes something else of it; return which are."""
        report = self.lake.land(self.topic, table=OTHER, consumer_group="other", schema=COLUMNS, tombstones="skip")
        assert report.counts.read == len(texts)
        ours = self.lake.table(OTHER).scan().to_arrow()
        found, wrong = {}, []
        for offset, text in enumerate(texts):
            why = self.refused(offset)
            mine, theirs = cells(ours, offset), cells(self.rows, offset)
            assert len(theirs) == 1, f"the engine has made {len(theirs)} rows of {text}"
            # By text: NaN is equal to itself there, and 0.0 to -0.0 where numbers are added to 0.
            is_equal = repr(mine).replace("-0.0", "0.0") == repr(theirs).replace("-0.0", "0.0")
            if is_equal == bool(why):
                wrong.append((text, why, mine, theirs))
            if why:
                found[text] = why
        assert wrong == []
        return found
