"""Change events and Connect's wrapping: against `json.loads` however they are written, and what each part becomes."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.decode.connect import debezium
from airflow_lakestream.decode.connect.debezium import event_schema, flattened
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.exceptions import InvalidArgument
from tests.unit.decode import oracle
from tests.unit.decode.binary_support import damaged
from tests.unit.decode.support import batch, shown

ROW = pa.struct([("id", pa.int64()), ("name", pa.string()), ("tags", pa.list_(pa.int32()))])
TABLE = pa.schema([*ROW, ("_op", pa.string()), ("_ts_ms", pa.int64()), ("_before", ROW)])
EVENT = pa.schema([("before", ROW), ("after", ROW), ("op", pa.string()), ("ts_ms", pa.int64())])
SCHEMAS = [
    None,
    {"type": "struct", "optional": False, "fields": [{"field": "op", "type": "string", "optional": False}]},
    {"type": "struct", "fields": [], "name": "x"},
    {"not": "a schema of Connect's"},
    [],
]

images = st.none() | st.fixed_dictionaries(
    {
        "id": st.integers(-5, 2**63),
        "name": st.none() | st.text(max_size=5),
        "tags": st.none() | st.lists(st.integers(0, 9)),
    }
)
events = st.fixed_dictionaries(
    {"before": images, "after": images, "op": st.sampled_from(["c", "u", "d", "r", "t", None])},
    optional={"ts_ms": st.integers(0, 10**13), "source": st.just({"schema": "public"})},
)


@st.composite
def values(draw: st.DrawFn) -> bytes | None:
    if draw(st.integers(0, 20)) == 0:
        return None
    event: Any = draw(events)
    if draw(st.integers(0, 3)):
        members = {"schema": draw(st.sampled_from(SCHEMAS)), "payload": draw(st.sampled_from([event] * 9 + [None]))}
        names = draw(st.permutations(list(members))) if draw(st.integers(0, 4)) == 0 else list(members)
        event = {name: members[name] for name in names}
        if draw(st.integers(0, 20)) == 0:
            event["more"] = 1
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (",\n", " :  ")]))
    value = json.dumps(event, separators=separators, ensure_ascii=draw(st.booleans())).encode()
    return draw(damaged(value)) if draw(st.integers(0, 3)) == 0 else value


def expected(value: bytes | None) -> dict[str, Any]:
    """Return the row by `json.loads`. Raises oracle.Rejected."""
    nothing = dict.fromkeys(TABLE.names)
    if value is None:
        return nothing
    document = oracle._load(value)
    if set(document) == {"schema", "payload"}:
        document = document["payload"]
        if document is None:
            # A tombstone inside a wrapping is none that Debezium writes.
            raise oracle.Rejected("no event")
    event = oracle._struct(list(EVENT), document, False)
    if event["op"] is None or (event["op"] in ("c", "u", "r") and event["after"] is None):
        raise oracle.Rejected("no event")
    if event["op"] == "d" and event["after"] is None and event["before"] is None:
        raise oracle.Rejected("no row")
    row = event["after"] or event["before"] or {}
    return {**nothing, **row, "_op": event["op"], "_ts_ms": event["ts_ms"], "_before": event["before"]}


def is_twice(value: bytes) -> bool:
    """Whether an object of the value has two members of one name: the last counts, or the record is bad."""
    found = []
    json.loads(value, object_pairs_hook=lambda pairs: found.append(len({k for k, _ in pairs}) < len(pairs)))
    return any(found)


@given(st.lists(values(), min_size=1, max_size=12))
def test_every_event_is_the_row_that_json_loads_says_or_bad(given_values: list[bytes | None]) -> None:
    decoder = pickle.loads(pickle.dumps(PayloadFormats(envelope="debezium").decoder(TABLE)))
    # Twice: what was learnt of the first batch is used in the second.
    for _ in range(2):
        out = decoder.decode(batch(given_values))
        out.rows.validate(full=True)
        rows = iter(out.rows.to_pylist())
        bad = {row.index: row.reason for row in out.bad}
        for index, value in enumerate(given_values):
            try:
                row = shown(expected(value))
            except oracle.Rejected:
                assert bad.get(index), f"a row: {value!r}"
                continue
            if index in bad:
                assert value is not None
                assert is_twice(value), f"{bad[index]}: {value!r}"
                continue
            assert shown(next(rows)) == row


def test_columns_of_a_new_table() -> None:
    member = pa.struct([("lsn", pa.int64())])
    found = flattened(pa.schema([*EVENT, ("source", member), ("transaction", pa.string())]))
    row = [pa.field(field.name, field.type) for field in ROW]
    assert found == pa.schema(
        [*row, ("_op", pa.string()), ("_ts_ms", pa.int64()), ("_source", member), ("_before", ROW)]
    )
    # A delete may know its key only: nothing of the row is required, whatever the event's schema says.
    strict = pa.struct([pa.field("id", pa.int64(), nullable=False)])
    assert flattened(pa.schema([("after", strict), ("op", pa.string())])).field("id").nullable
    with pytest.raises(InvalidArgument, match=r"envelope: records with the fields id, op are not change events"):
        flattened(pa.schema([("id", pa.int64()), ("op", pa.string())]))


def test_a_column_of_an_event_has_one_type() -> None:
    with pytest.raises(InvalidArgument, match="id is int64 in one image of the row, and int32 in another"):
        event_schema(pa.schema([("id", pa.int64()), ("_before", pa.struct([("id", pa.int32())]))]))
    with pytest.raises(InvalidArgument, match="_before can't be string"):
        event_schema(pa.schema([("id", pa.int64()), ("_before", pa.string())]))


def test_fewer_columns_and_required_ones() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("_after", pa.struct([("name", pa.string())]))])
    records = [
        {"before": None, "after": {"id": 1, "name": "x"}, "op": "c"},
        {"before": None, "after": None, "op": "d"},
        {"before": {"id": 2}, "after": None, "op": "d"},
    ]
    out = PayloadFormats(envelope="debezium").decoder(schema).decode(batch([json.dumps(r).encode() for r in records]))
    assert out.rows.to_pylist() == [{"id": 1, "_after": {"name": "x"}}, {"id": 2, "_after": None}]
    assert [(row.index, row.reason) for row in out.bad] == [
        (1, "before: null, in an event whose op is 'd', so it does not show which row was deleted")
    ]


def test_unknown_fields_are_the_rows_not_the_events() -> None:
    decoder = PayloadFormats(envelope="debezium", unknown_fields="fail").decoder(TABLE)
    event = {"before": None, "after": {"id": 1}, "op": "c", "source": {"lsn": 5}, "transaction": None, "ts_us": 1}
    odd = {**event, "after": {"id": 1, "colour": "red"}}
    out = decoder.decode(batch([json.dumps(e).encode() for e in (event, odd)]))
    assert [row["id"] for row in out.rows.to_pylist()] == [1]
    assert [row.index for row in out.bad] == [1]
    assert "colour" in out.bad[0].reason


def test_every_member_of_an_event_has_a_column_name_of_its_own() -> None:
    assert all(name == f"_{member}" for name, member in debezium.EVENT_COLUMNS.items())


def test_what_a_row_requires_is_not_asked_of_a_row_that_is_null() -> None:
    decimal = {"type": "bytes", "optional": False, "name": "org.apache.kafka.connect.data.Decimal", "field": "total"}
    decimal["parameters"] = {"scale": "2", "connect.decimal.precision": "12"}
    real = {"type": "float", "optional": True, "field": "weight"}
    images = [{"type": "struct", "optional": True, "fields": [decimal, real], "field": n} for n in ("before", "after")]
    source = {"type": "struct", "fields": [{"type": "string", "field": "sequence"}], "field": "source"}
    shape = {"type": "struct", "fields": [*images, source, {"type": "string", "field": "op"}]}
    # The second number is read by another way than the first.
    rows = [{"total": "MDk=", "weight": weight} for weight in (499.6167, 1e-30)]
    payloads = [{"before": None, "after": row, "source": {"sequence": '[null,"1"]'}, "op": "c"} for row in rows]
    events = batch([json.dumps({"schema": shape, "payload": one}, separators=(",", ":")).encode() for one in payloads])
    payload = PayloadFormats(envelope="debezium")
    out = payload.decoder(payload.columns(events)).decode(events)
    assert not out.bad
    assert [str(total) for total in out.rows["total"].to_pylist()] == ["123.45", "123.45"]


def test_a_float_in_a_column_of_doubles_is_the_number_that_the_float_is() -> None:
    numbers = ["-9.845015e+27", "0.1", "3.4028235e38", "1e-45", "-0.0", "null"]
    real = {"type": "float", "optional": True}
    fields = [{**real, "field": "w"}, {"type": "array", "optional": True, "items": real, "field": "many"}]
    shape = json.dumps({"type": "struct", "fields": fields})
    texts = [f'{{"schema":{shape},"payload":{{"w":{number},"many":[{number}]}}}}' for number in numbers]
    kind = pa.schema([("w", pa.float64()), ("many", pa.list_(pa.float64()))])
    out = PayloadFormats(envelope="connect").decoder(kind).decode(batch([text.encode() for text in texts]))
    singles = [None if number == "null" else float(np.float32(number)) for number in numbers]
    assert repr(out.rows["w"].to_pylist()) == repr(singles)
    assert repr(out.rows["many"].to_pylist()) == repr([[single] for single in singles])


def test_an_empty_text_is_no_uuid_but_in_a_row_before_a_change() -> None:
    schema = pa.schema([("u", pa.uuid()), ("_op", pa.string()), ("_before", pa.struct([("u", pa.uuid())]))])
    images = [{"before": {"u": ""}, "after": None, "op": "d"}, {"before": None, "after": {"u": ""}, "op": "c"}]
    out = (
        PayloadFormats(envelope="debezium").decoder(schema).decode(batch([json.dumps(one).encode() for one in images]))
    )
    assert out.rows.select(["u", "_before"]).to_pylist() == [{"u": None, "_before": {"u": None}}]
    assert [(one.index, "uuid" in one.reason.lower()) for one in out.bad] == [(1, True)]
    fields = [{"type": "string", "name": "io.debezium.data.Uuid", "field": "u", "optional": True}]
    text = json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": {"u": ""}})
    columns = pa.schema([("u", pa.uuid())])
    assert len(PayloadFormats(envelope="connect").decoder(columns).decode(batch([text.encode(), b'{"u":""}'])).bad) == 2


def test_an_empty_text_is_no_value_of_a_required_uuid() -> None:
    row = pa.struct([pa.field("u", pa.uuid(), nullable=False)])
    schema = pa.schema([*row, ("_op", pa.string()), ("_before", pa.struct([("u", pa.uuid())]))])
    images = [{"before": None, "after": {"u": ""}, "op": "c"}, {"before": {"u": ""}, "after": None, "op": "d"}]
    out = (
        PayloadFormats(envelope="debezium").decoder(schema).decode(batch([json.dumps(one).encode() for one in images]))
    )
    assert ["required" in one.reason for one in out.bad] == [False, True]
