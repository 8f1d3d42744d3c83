"""Random records of a format, landed in a table and read back: each is the row that an oracle has, or rejected.

The oracle is Python's own arithmetic and the official packages, never the package's code. A seed says all of a landing.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Context
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as t
from deltalake import DeltaTable

from tests.support.given_records import TOPIC, GivenLake, Record
from tests.unit.decode.support import shown

ROWS = 800
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
METADATA = ("topic", "partition", "offset", "timestamp", "key", "headers")
_MILLIS = [
    -1, 0, 1, -2, -3, 253402300799999, 253402300800000, -62135596800000, -62135596800001, 2**63 - 1, -(2**63),
    9223372036854775, 9223372036854776, 1_800_000_000_000, 1_800_000_000_001, -62135596799999, 253402300799998,
]  # fmt: skip
# Most records have a timestamp like this; one in fifty of these lists is one that no column takes.
_USUAL_MILLIS = [-1, 0, 253402300799999, -62135596800000, 1_800_000_000_000]


@dataclass(frozen=True)
class Source:
    """Payloads of a format. `row` is the oracle: the row that a payload stands for, or an error of `bad`.

    `config` are the arguments that go with the format, `layouts` some that lay out its Iceberg tables.
    """

    name: str
    columns: pa.Schema
    payload: Callable[[Random], bytes | None]
    row: Callable[[bytes | None], Mapping[str, Any]]
    bad: tuple[type[Exception], ...]
    config: Mapping[str, Any]
    schemas: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    layouts: Sequence[Mapping[str, Any]] = ({},)


class Wrong(AssertionError):
    """What landed is not what had to; the text has the record, and how to play it again."""


def land_and_compare(source: Source, table_format: str, seed: str, count: int = ROWS) -> tuple[int, int]:
    """Land so many records that the seed says, compare, and return how many became rows and how many were rejected."""
    rng = Random(f"{source.name} {table_format} {seed}")
    records = [_record(source, rng) for _ in range(count)]
    layout = rng.choice(source.layouts) if table_format == "iceberg" else {}
    told = f"{source.name} into {table_format}, seed {seed}, {count} records, {layout or 'no layout'}"
    folder = Path(tempfile.mkdtemp(prefix="landed-"))
    try:
        lake = GivenLake(folder, table_format, source.schemas)
        config = {**source.config, **layout, "metadata_columns": METADATA, "max_rejected": 1.0}
        try:
            report = lake.land(records, **config)
            rows, rejected = _read(lake, _lists(source.columns)), lake.rejected()
        except Exception as error:
            raise Wrong(f"{told}: {type(error).__name__}: {error}") from error
        wanted, bad = _expected(source, records, layout)
        _compare(told, source.columns, records, (wanted, bad), (rows, rejected))
        assert (report.counts.written, report.counts.rejected) == (len(wanted), len(bad)), told
        return len(wanted), len(bad)
    finally:
        shutil.rmtree(folder)


def _record(source: Source, rng: Random) -> Record:
    key = rng.choice([None, b"", b"\0", b"\xff\xfe", b"k", rng.randbytes(20)])
    names = ["", "h", "\0", "😀", "\U0010ffff"]
    headers = rng.choice(
        [None, None, [], [(rng.choice(names), rng.choice([None, b"", b"\xff"])) for _ in range(rng.randint(1, 3))]]
    )
    at_ms = rng.choice(_MILLIS if rng.random() < 0.05 else _USUAL_MILLIS)
    return Record(source.payload(rng), key, headers, at_ms)


def _expected(
    source: Source, records: Sequence[Record], layout: Mapping[str, Any]
) -> tuple[dict[int, Mapping[str, Any]], set[int]]:
    wanted, bad = {}, set()
    for offset, record in enumerate(records):
        try:
            metadata = _metadata(record, offset)
            row = source.row(record.value)
            for term in layout.get("partition_by", ()):
                _check_place(source.columns, row, term)
            wanted[offset] = {**row, **metadata}
        except (OverflowError, *source.bad):
            bad.add(offset)
    return wanted, bad


def _check_place(columns: pa.Schema, row: Mapping[str, Any], term: str) -> None:
    """Raise OverflowError for a row whose partition is one below the lowest value of its type."""
    match = re.fullmatch(r"truncate\((\d+), (\w+)\)", term)
    if match is None or row[match[2]] is None:
        return
    width, kind, value = int(match[1]), columns.field(match[2]).type, row[match[2]]
    if t.is_decimal(kind):
        unscaled = int(value.scaleb(kind.scale, Context(prec=80)))
        too_low = unscaled // width * width <= -(10**kind.precision)
    else:
        too_low = t.is_integer(kind) and value // width * width < -(2 ** (kind.bit_width - 1))
    if too_low:
        raise OverflowError(term)


def _metadata(record: Record, offset: int) -> dict[str, Any]:
    """Return a row's metadata columns. Raises OverflowError for a timestamp that no column takes."""
    at = None if record.at_ms == -1 else EPOCH + timedelta(milliseconds=record.at_ms)
    headers = record.headers
    return {
        "_kafka_topic": TOPIC.topic,
        "_kafka_partition": 0,
        "_kafka_offset": offset,
        "_kafka_timestamp": at,
        "_kafka_key": record.key,
        "_kafka_headers": None if headers is None else [{"key": key, "value": value} for key, value in headers],
    }


def _read(lake: GivenLake, lists: Sequence[str]) -> list[dict[str, Any]]:
    if lake.table_format == "iceberg":
        # PyIceberg 0.12 reads a NULL list or map of structs as an empty one: these as they stand in the files.
        held = pq.ParquetDataset(lake.files(), partitioning=None).read().to_pylist() if lake.files() else []
        nested = {row["_kafka_offset"]: {name: row[name] for name in lists} for row in held}
        return [{**row, **nested[row["_kafka_offset"]]} for row in lake.rows()]
    rows: list[dict[str, Any]] = DeltaTable(lake.name).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["_kafka_offset"])


def _lists(columns: pa.Schema) -> list[str]:
    return ["_kafka_headers", *(one.name for one in columns if _holds_list(one.type))]


def _holds_list(kind: pa.DataType) -> bool:
    if t.is_struct(kind):
        return any(_holds_list(one.type) for one in kind)
    return bool(t.is_list(kind) or t.is_map(kind))


def _compare(
    told: str,
    columns: pa.Schema,
    records: Sequence[Record],
    wanted: tuple[Mapping[int, Mapping[str, Any]], set[int]],
    found: tuple[Sequence[Mapping[str, Any]], Mapping[int, Mapping[str, Any]]],
) -> None:
    rows = {row["_kafka_offset"]: row for row in found[0]}
    if len(rows) != len(found[0]):
        raise Wrong(f"{told}: offsets come twice")
    for offset, record in enumerate(records):
        where = f"{told}: offset {offset}"
        if offset in wanted[1]:
            if offset in rows:
                raise Wrong(f"{where} had to be rejected, and is a row: {record}\n{rows[offset]}")
            kept = found[1].get(offset)
            if kept is None:
                raise Wrong(f"{where} had to be rejected, and is gone: {record}")
            if (kept["value"], kept["_kafka_key"]) != (record.value, record.key):
                raise Wrong(f"{where}: {record} is kept as {kept}")
            continue
        if offset not in rows:
            error = found[1].get(offset, {}).get("error", "gone")
            raise Wrong(f"{where} had to be a row, and is not: {error}\n{record}")
        for name, value in wanted[0][offset].items():
            kind = columns.field(name).type if name in columns.names else None
            if plain(rows[offset][name], kind) != plain(value, kind):
                raise Wrong(f"{where}: {name} had to be {value!r}, and is {rows[offset][name]!r}\n{record}")


def plain(value: Any, kind: pa.DataType | None) -> str:
    """Return a value as text that tells all but the order of a map's entries."""
    return shown(_plain(value, kind))


def _plain(value: Any, kind: pa.DataType | None) -> Any:
    if value is None or kind is None:
        return value
    if t.is_struct(kind):
        return {one.name: _plain(value[one.name], one.type) for one in kind}
    if t.is_list(kind):
        return [_plain(one, kind.value_type) for one in value]
    if t.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return sorted((repr(key), _plain(one, kind.item_type)) for key, one in pairs)
    return bytes(value) if isinstance(value, (bytes, bytearray)) else value
