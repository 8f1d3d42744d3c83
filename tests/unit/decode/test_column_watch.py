"""Columns that get no value, in each format: the fields that may be meant for them are named, and empty rows seen."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.column_use import ColumnUse, NoFieldHasColumn, check_use, in_both
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.metadata import HEADERS
from airflow_lakestream.decode.protobuf.schema import compile_proto
from airflow_lakestream.decode.rows import RowDecoder, RowDecoderFactory
from airflow_lakestream.registry.config import RegistryConfig
from tests.support.avro_records import record, written
from tests.support.registry import FakeRegistry

FLAT = record("R", orderId="long", name="string")
NESTED = record("N", who=record("W", firstName="string", age="int"))
EVENTS = record("E", before=["null", FLAT], after=["null", "R"], op="string")
PROTO = 'syntax = "proto3"; message Other {int64 x = 1;} message R {int64 orderId = 1; string name = 2;}'
REGISTRY = FakeRegistry(
    {
        1: ("AVRO", json.dumps(FLAT)),
        2: ("AVRO", json.dumps(NESTED)),
        3: ("AVRO", json.dumps(EVENTS)),
        4: ("PROTOBUF", PROTO),
        5: ("JSON", '{"type": "object"}'),
    }
)
ROW = {"orderId": 7, "name": "x"}
DOCUMENT = json.dumps(ROW).encode()
EVENT = {"before": None, "after": ROW, "op": "c"}
CONNECT = {"schema": {"type": "struct", "fields": [{"field": "orderId", "type": "int64"}]}, "payload": ROW}


def proto_value() -> bytes:
    from google.protobuf import message_factory

    found = compile_proto(PROTO).descriptor((1,))
    # Two numbers behind the header say which message it is.
    return b"\0\0\0\0\4\2\2" + message_factory.GetMessageClass(found)(**ROW).SerializeToString()


def watching(columns: pa.Schema, **given: Any) -> RowDecoder:
    payload = PayloadFormats(registry=RegistryConfig.parse("http://registry"), **given)
    payload.__dict__["registry_client"] = REGISTRY
    decoder = RowDecoderFactory(payload, ("offset",))(columns, None)
    assert isinstance(decoder, RowDecoder)
    return decoder


def records(values: list[bytes | None], keys: list[bytes | None] | None = None) -> RawBatch:
    count = len(values)
    given_keys = pa.array(keys or [None] * count, pa.binary())
    headers = pa.nulls(count, HEADERS)
    return RawBatch("t", 3, range(100, 100 + count), [0] * count, pa.array(values, pa.binary()), given_keys, headers)


def use_of(values: list[bytes | None], columns: pa.Schema, keys: list[bytes | None] | None = None, **given: Any) -> Any:
    return watching(columns, **given).decode(records(values, keys)).use


FORMATS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "json": (DOCUMENT, {}),
    "json_schema": (b"\0\0\0\0\5" + DOCUMENT, {"format": "json_schema"}),
    "avro": (written(FLAT, 1, ROW), {"format": "avro"}),
    "protobuf": (proto_value(), {"format": "protobuf"}),
    "connect": (json.dumps(CONNECT).encode(), {"envelope": "connect"}),
    "debezium": (json.dumps(EVENT).encode(), {"envelope": "debezium"}),
    "debezium in connect": (json.dumps({"schema": None, "payload": EVENT}).encode(), {"envelope": "debezium"}),
    "debezium in avro": (written(EVENTS, 3, EVENT), {"format": "avro", "envelope": "debezium"}),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("column", ["orderid", "order_id", "ORDER_ID", "Order-Id"])
def test_a_field_without_a_column_is_named_beside_the_column_that_gets_nothing(name: str, column: str) -> None:
    value, given = FORMATS[name]
    beside = [("_op", pa.string())] if "debezium" in name else []
    use = use_of([value] * 20, pa.schema([(column, pa.int64()), ("name", pa.string()), *beside]), **given)
    assert use.silent(known=()) == {column: "orderId"}
    assert not use.foreign
    check_use("lake.t", use, is_first=True)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("columns", [["orderid"], ["orderid", "total"], ["something", "else"]])
def test_records_of_which_no_field_has_a_column_are_refused(name: str, columns: list[str]) -> None:
    value, given = FORMATS[name]
    beside = [("_op", pa.string())] if "debezium" in name else []
    schema = pa.schema([*((one, pa.int64()) for one in columns), *beside])
    use = use_of([value] * 12, schema, **given)
    with pytest.raises(NoFieldHasColumn, match=r"lake.t: no field of 12 records from t\[3\] offset 100 on") as caught:
        check_use("lake.t", use, is_first=False)
    assert {"orderId", "name"} <= set(caught.value.foreign.fields)
    assert ("'orderid' is almost called as the field 'orderId'" in str(caught.value)) is ("orderid" in columns)
    # A few in a stream that has landed before may have been sent by hand; at the beginning one says enough.
    few = use_of([value] * 3, schema, **given)
    check_use("lake.t", few, is_first=False)
    with pytest.raises(NoFieldHasColumn):
        check_use("lake.t", few, is_first=True)


@pytest.mark.parametrize(
    "values",
    [
        [b"{}"] * 20,
        [None] * 20,
        # One field with a column is enough, though it is null, wherever it comes.
        [b'{"orderId": 1}'] * 19 + [b'{"orderid": null}'],
        [b'{"orderId": 1}'] * 19 + [b'{"orderid": 2}'],
    ],
)
def test_records_without_fields_and_columns_that_are_sent_null_are_no_reason_to_refuse(
    values: list[bytes | None],
) -> None:
    check_use("lake.t", use_of(values, pa.schema([("orderid", pa.int64())])), is_first=True)


@pytest.mark.parametrize("unknown", ["rescue", "fail"])
def test_fields_that_are_not_left_out_are_no_reason_to_refuse(unknown: str) -> None:
    rescued = [("_rescued", pa.string())] if unknown == "rescue" else []
    schema = pa.schema([("orderid", pa.int64()), *rescued])
    check_use("lake.t", use_of([DOCUMENT] * 20, schema, unknown_fields=unknown), is_first=True)


@pytest.mark.parametrize(
    ("value", "given"),
    [
        (json.dumps({"who": {"firstName": "A", "age": 3}}).encode(), {}),
        (json.dumps({"who": [{"firstName": "A", "age": 3}]}).encode(), {}),
        (written(NESTED, 2, {"who": {"firstName": "A", "age": 3}}), {"format": "avro"}),
    ],
    ids=["json", "list", "avro"],
)
def test_a_field_inside_a_record_is_named_by_its_path(value: bytes, given: dict[str, Any]) -> None:
    who: pa.DataType = pa.struct([("first_name", pa.string()), ("age", pa.int32())])
    who = pa.list_(who) if b"[" in value else who
    use = use_of([value] * 20, pa.schema([("who", who)]), **given)
    assert use.silent(known=()) == {"who.first_name": "who.firstName"}


def test_a_keys_fields_are_named_and_refused() -> None:
    keys: list[bytes | None] = [b'{"orderId": 1, "name": "x"}'] * 12
    key = pa.struct([("orderid", pa.int64()), ("name", pa.string())])
    values: list[bytes | None] = [b'{"v": 1}'] * 12
    use = use_of(values, pa.schema([("v", pa.int64()), ("_key", key)]), keys, key_format="json")
    assert use.silent(known=()) == {"_key.orderid": "_key.orderId"}
    check_use("lake.t", use, is_first=True)
    key = pa.struct([("orderid", pa.int64())])
    use = use_of(values, pa.schema([("v", pa.int64()), ("_key", key)]), keys, key_format="json")
    with pytest.raises(NoFieldHasColumn, match="no field of 12 keys"):
        check_use("lake.t", use, is_first=True)


def test_a_column_that_got_values_before_or_is_the_only_one_without_is_silent() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])
    use = use_of([b'{"a": 1}'], schema)
    assert use.silent(known=()) == {}
    assert use.silent(known=("b", "gone")) == {"b": ""}
    both = use + use_of([b'{"b": 1}'], schema)
    assert both.silent(known=()) == {"c": ""}
    assert in_both({"a": "", "b": ""}, {"b": "B"}) == {"b": "B"}
    assert in_both(None, {"b": ""}) == {"b": ""}


def test_a_near_name_counts_only_while_the_column_stays_empty_and_the_field_has_none_of_its_own() -> None:
    schema = pa.schema([("orderid", pa.int64()), ("name", pa.string())])
    use = use_of([DOCUMENT], schema)
    assert (use + use_of([b'{"orderid": 1}'], schema)).silent(known=()) == {}
    both = pa.schema([("orderid", pa.int64()), ("orderId", pa.int64()), ("name", pa.string()), ("b", pa.int64())])
    assert use_of([DOCUMENT], both).silent(known=()) == {}


def test_bad_records_are_not_looked_at_and_what_is_seen_can_be_handed_on() -> None:
    values: list[bytes | None] = [b"no JSON", *[DOCUMENT] * 12]
    decoder = pickle.loads(pickle.dumps(watching(pa.schema([("orderid", pa.int64())]))))
    use = decoder.decode(records(values)).use
    assert use.foreign["value"].at == "t[3] offset 101"
    assert ColumnUse.from_dict(json.loads(json.dumps(use.to_dict()))) == use
    assert use + ColumnUse() == ColumnUse() + use == use


names = st.text("abAB_", min_size=1, max_size=4)


@given(st.lists(names, min_size=1, max_size=4, unique=True), st.lists(st.lists(names, max_size=4), min_size=1))
def test_every_field_that_is_lost_for_its_spelling_is_told(columns: list[str], rows: list[list[str]]) -> None:
    def folded(name: str) -> str:
        return name.replace("_", "").lower() or name

    rows = rows[:16]
    values = [json.dumps(dict.fromkeys(row, 1)).encode() for row in rows]
    use = use_of(list(values), pa.schema([(one, pa.int64()) for one in columns]))
    sent = {name for row in rows for name in row}
    silent = use.silent(known=())
    for column in set(columns) - sent:
        near = {name for name in sent - set(columns) if folded(name) == folded(column)}
        if near:
            assert silent[column] in near
    placed = any(set(row) & set(columns) for row in rows)
    refused = False
    try:
        check_use("lake.t", use, is_first=True)
    except NoFieldHasColumn:
        refused = True
    assert refused is (bool(sent) and not placed)
    assert replace(use, near={}).silent(known=columns).keys() == set(columns) - sent


@pytest.mark.parametrize("form", [name for name in FORMATS if name != "connect"])
def test_a_field_whose_column_has_another_name_has_a_column(form: str) -> None:
    value, settings = FORMATS[form]
    columns = pa.schema([("order_number", pa.int64()), ("title", pa.string())])
    renamed = (("orderId", "order_number"), ("name", "title"))
    use = use_of([value], columns, renamed=renamed, **settings)
    assert use.filled == {"order_number", "title"}
    # Fields without a value have their columns, too.
    nothing = use_of([b'{"orderId": null, "name": null}'], columns, renamed=renamed)
    assert (nothing.filled, nothing.foreign, nothing.near) == (frozenset(), {}, {})
