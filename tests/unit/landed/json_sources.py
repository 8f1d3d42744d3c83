"""JSON in its shapes: plain, framed, as change events, and through SQL. The oracle is built on `json.loads`."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import pyarrow as pa

from tests.unit.decode import oracle
from tests.unit.landed import json_texts
from tests.unit.landed.landing import Source

FRAME = b"\0\0\0\0\7"
REGISTRY = {7: ("JSON", '{"type": "object", "properties": {"id": {"type": "integer"}}}')}


def _required(kind: pa.DataType) -> pa.Field:
    return pa.field("element", kind, nullable=False)


INNER = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("t", pa.timestamp("us", "UTC"))])
COLUMNS = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("bo", pa.bool_()),
    pa.field("i", pa.int32()),
    pa.field("l", pa.int64()),
    pa.field("f", pa.float32()),
    pa.field("d", pa.float64()),
    pa.field("s", pa.string()),
    pa.field("ts", pa.timestamp("us", "UTC")),
    pa.field("tn", pa.timestamp("us")),
    pa.field("da", pa.date32()),
    pa.field("de", pa.decimal128(38, 10)),
    pa.field("ds", pa.decimal128(5, 2)),
    pa.field("dw", pa.decimal128(38, 38)),
    pa.field("by", pa.binary()),
    pa.field("st", INNER),
    pa.field("li", pa.list_(pa.field("element", INNER))),
    pa.field("lr", pa.list_(_required(pa.decimal128(18, 0)))),
    pa.field("mp", pa.map_(pa.string(), pa.field("value", pa.struct([pa.field("x", pa.float64(), nullable=False)])))),
]
# Delta has none of them.
OTHERS = [pa.field("ti", pa.time64("us")), pa.field("fx", pa.binary(3)), pa.field("u", pa.uuid())]
LAYOUTS: list[Mapping[str, Any]] = [
    {},
    {"partition_by": ["day(ts)"]},
    {"partition_by": ["hour(tn)"], "sort_order": ["d desc", "s"]},
    {"partition_by": ["month(da)", "bucket(3, s)"]},
    {"partition_by": ["year(ts)", "truncate(10, l)"]},
    {"partition_by": ["truncate(7, i)"], "sort_order": ["ts"]},
    {"partition_by": ["bucket(4, de)", "bucket(2, by)", "bucket(2, ts)"]},
    {"partition_by": ["truncate(3, s)"]},
    {"partition_by": ["truncate(100, ds)", "bo"]},
    {"partition_by": ["da"], "sort_order": ["de", "f desc nulls first"]},
    {"partition_by": ["s"]},
    {"partition_by": ["year(st.t)", "bucket(3, id)"]},
    {"partition_by": ["truncate(2, by)"]},
]


def columns(table_format: str) -> pa.Schema:
    """Return the columns that such a table can have."""
    return pa.schema([*COLUMNS, *(OTHERS if table_format == "iceberg" else [])])


def _document(schema: pa.Schema, rng: Random) -> bytes | None:
    choice = rng.random()
    if choice < 0.01:
        return rng.choice(
            [None, b"", b"null", b"{}", b"[]", b"\xff", b'{"id":1}{"id":2}', b'{"id":1', b"\xef\xbb\xbf{}"]
        )
    text = json_texts.members(list(schema), rng)
    if choice < 0.05:
        # A second time, or something that no column is for.
        more = rng.choice(
            [b'"id":7', b'"l":1', b'"unknown":{"a":[1e999,"\\ud83d"]}', b'"unknown":-1e-999', b'"\\ud800":1']
        )
        text = text[:-1] + b"," + more + b"}" if len(text) > 2 else text
    return text


def json(table_format: str, unknown_fields: str = "ignore") -> Source:
    """Return plain documents."""
    schema = columns(table_format)
    return Source(
        "json",
        schema,
        lambda rng: _document(schema, rng),
        lambda value: oracle.row(schema, value),
        (oracle.Rejected,),
        {"schema": schema},
        layouts=LAYOUTS,
    )


def json_schema(table_format: str) -> Source:
    """Return documents in a frame."""
    schema = columns(table_format)

    def row(value: bytes | None) -> dict[str, Any]:
        if value is not None and (len(value) < len(FRAME) or value[0] != 0):
            raise oracle.Rejected("frame")
        return oracle.row(schema, value and value[len(FRAME) :])

    def payload(rng: Random) -> bytes | None:
        document = _document(schema, rng)
        frame = rng.choice([b"", b"\0", b"\1\0\0\0\7", b"\0\0\0\0"]) if rng.random() < 0.01 else FRAME
        return document and frame + document

    config = {"schema": schema, "format": "json_schema"}
    return Source("json_schema", schema, payload, row, (oracle.Rejected,), config, REGISTRY, LAYOUTS)


def sql(table_format: str) -> Source:
    """Return plain documents whose columns go through SQL as they are."""
    plain = json(table_format)
    names = ", ".join(f'"{name}"' for name in plain.columns.names)
    config = {
        "schema": plain.columns,
        "sql": f"SELECT {names} FROM {{{{ input }}}}",
        "sql_input": "decoded",
        "tombstones": "keep",
    }
    return Source("sql", plain.columns, plain.payload, plain.row, plain.bad, config, layouts=LAYOUTS)


def debezium(table_format: str) -> Source:
    """Return change events without a schema beside them."""
    image = pa.struct([one.with_nullable(True) for one in columns(table_format)])
    event = pa.schema([("before", image), ("after", image), ("op", pa.string()), ("ts_ms", pa.int64())])
    schema = pa.schema(
        [*image, pa.field("_op", pa.string()), pa.field("_ts_ms", pa.int64()), pa.field("_before", image)]
    )

    def payload(rng: Random) -> bytes | None:
        if rng.random() < 0.02:
            return rng.choice([None, b"{}", b'{"op":"t"}', b'{"op":"x","after":{}}', b'{"op":"u","after":null}', b"1"])
        op = rng.choice([b"c", b"u", b"d", b"r", b"t", b"u", b"d"])
        there = {b"t": (0.0, 0.0), b"d": (1.0, 0.0), b"u": (0.7, 0.95)}.get(op, (0.0, 0.95))
        images = [json_texts.members(list(image), rng, 0.01) if rng.random() < p else b"null" for p in there]
        return b'{"before":%b,"after":%b,"op":"%b","ts_ms":%d}' % (*images, op, json_texts.whole(64, rng, beyond=False))

    def row(value: bytes | None) -> dict[str, Any]:
        if value is None:
            return dict.fromkeys(schema.names)
        found = oracle.row(event, value, unsent=("before",))
        op, beside = found["op"], {"_op": found["op"], "_ts_ms": found["ts_ms"], "_before": found["before"]}
        if op is None:
            raise oracle.Rejected("no event")
        held = found["before"] if op == "d" else found["after"] if op in ("c", "u", "r") else {}
        if held is None:
            raise oracle.Rejected("no row")
        return {**dict.fromkeys(image_names, None), **held, **beside}

    image_names = [one.name for one in image]
    config = {"schema": schema, "envelope": "debezium"}
    layouts = [{}, {"partition_by": ["day(ts)"]}, {"partition_by": ["bucket(3, s)"], "sort_order": ["l"]}]
    return Source("debezium", schema, payload, row, (oracle.Rejected,), config, layouts=layouts)
