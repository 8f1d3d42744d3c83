"""Any schema, any value, any damage: each record is the row that the official package reads, or bad in both."""

from __future__ import annotations

import io
import itertools
import json
import struct
from collections.abc import Iterator
from typing import Any

import avro.io
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.decode.avro import schema as avro_schema
from airflow_lakestream.decode.avro.decoder import AvroDecoder
from tests.support.registry import FakeRegistry
from tests.unit.decode import avro_oracle
from tests.unit.decode.avro_oracle import Bad
from tests.unit.decode.binary_support import batch, damaged, normal

RECORDS = 24

SCALARS: list[Any] = [
    *("boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    *({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros", "nanos")),
    *({"type": "long", "logicalType": f"local-timestamp-{unit}"} for unit in ("millis", "micros")),
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
    {"type": "string", "logicalType": "uuid"},
]


def named() -> st.SearchStrategy[Any]:
    return st.sampled_from(
        [
            {"type": "enum", "name": "", "symbols": ["A", "B", "C"]},
            {"type": "fixed", "name": "", "size": 3},
            {"type": "fixed", "name": "", "size": 16, "logicalType": "uuid"},
            {"type": "fixed", "name": "", "size": 12, "logicalType": "duration"},
            {"type": "fixed", "name": "", "size": 5, "logicalType": "decimal", "precision": 11, "scale": 3},
        ]
    )


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> Any:
    shapes = ["scalar", "scalar", "named", "nullable"] + (["array", "map", "record"] if depth else [])
    shape = draw(st.sampled_from(shapes))
    if shape == "scalar":
        return draw(st.sampled_from(SCALARS))
    if shape == "named":
        return draw(named())
    if shape == "nullable":
        inner = draw(types(depth=depth).filter(lambda found: not isinstance(found, list)))
        return draw(st.sampled_from([["null", inner], [inner, "null"]]))
    if shape == "record":
        return draw(records(depth - 1))
    inner = draw(types(depth=depth - 1))
    return {"type": shape, "items" if shape == "array" else "values": inner}


@st.composite
def records(draw: st.DrawFn, depth: int = 2) -> Any:
    kinds = draw(st.lists(types(depth=depth), min_size=1, max_size=4))
    return {"type": "record", "name": "", "fields": [{"name": f"f{i}", "type": k} for i, k in enumerate(kinds)]}


def uniquely_named(schema: Any, numbers: Iterator[int]) -> Any:
    if isinstance(schema, list):
        return [uniquely_named(part, numbers) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: uniquely_named(part, numbers) for key, part in schema.items()}
    return {**parts, "name": f"N{next(numbers)}"} if parts.get("name") == "" else parts


def integer(bits: int) -> st.SearchStrategy[int]:
    edge = 1 << (bits - 1)
    return st.integers(-edge, edge - 1) | st.integers(-100, 100) | st.integers(0, 86_400_000)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": integer(32),
    "long": integer(64),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=20),
    "string": st.text(max_size=20) | st.uuids().map(str),
}


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([values(branch) for branch in schema])
    if isinstance(schema, str):
        return VALUES[schema]
    kind = schema["type"]
    if kind == "record":
        return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]})
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=4)
    if kind == "map":
        return st.dictionaries(st.text(max_size=4), values(schema["values"]), max_size=4)
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if kind == "fixed":
        return st.binary(min_size=schema["size"], max_size=schema["size"])
    return VALUES[kind]


def write(writer: avro.io.DatumWriter, value: Any) -> bytes:
    stream = io.BytesIO()
    writer.write(value, avro.io.BinaryEncoder(stream))
    return stream.getvalue()


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, list[bytes]]:
    schema = uniquely_named(draw(records()), itertools.count())
    writer = avro.io.DatumWriter(avro_oracle.official(schema))
    clean = draw(st.lists(values(schema).map(lambda value: write(writer, value)), min_size=1, max_size=RECORDS))
    return schema, [draw(damaged(payload)) if draw(st.booleans()) else payload for payload in clean]


def framed(payload: bytes, schema_id: int = 7) -> bytes:
    return struct.pack(">bI", 0, schema_id) + payload


def check(schema: Any, payloads: list[bytes]) -> None:
    text = json.dumps(schema)
    columns = avro_schema.arrow_schema(text)
    decoder = AvroDecoder(columns, registry=FakeRegistry({7: ("AVRO", text)}))
    decoded = decoder.decode(batch([framed(payload) for payload in payloads]))
    assert decoded.rows.schema == columns
    decoded.rows.validate(full=True)
    rows = iter(decoded.rows.to_pylist(maps_as_pydicts="strict"))
    bad = {row.index: row.reason for row in decoded.bad}
    for index, payload in enumerate(payloads):
        try:
            expected = normal(avro_oracle.decode(schema, payload, columns))
        except Bad:
            assert bad.get(index), f"a row: {payload!r}"
            continue
        assert index not in bad, f"{bad[index]}, but {expected}"
        assert normal(next(rows)) == expected


@given(cases())
def test_every_record_is_what_the_official_package_reads_or_bad(case: tuple[Any, list[bytes]]) -> None:
    check(*case)


def test_a_union_with_many_unfit_branches_reads_the_fit_one() -> None:
    unfit = [{"type": "record", "name": f"R{n}", "fields": [{"name": "x", "type": "int"}]} for n in range(70)]
    fit = {"type": "record", "name": "Fit", "fields": [{"name": "a", "type": "int"}]}
    text = json.dumps({"type": "record", "name": "M", "fields": [{"name": "u", "type": [*unfit, fit]}]})
    columns = pa.schema([("u", pa.struct([pa.field("a", pa.int32(), nullable=False)]))])
    decoder = AvroDecoder(columns, "ignore", FakeRegistry({7: ("AVRO", text)}))
    # The branch 70 as a varint, and the value 5.
    found = decoder.decode(batch([b"\x00\x00\x00\x00\x07" + b"\x8c\x01" + b"\x0a"]))
    assert (found.rows.to_pylist(), found.bad) == ([{"u": {"a": 5}}], [])
