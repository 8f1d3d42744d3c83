"""Fields that have another name in another version of their schema: Avro's aliases, and Protobuf's numbers."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.decode.avro.decoder import AvroDecoder
from airflow_lakestream.decode.avro.schema import fingerprint
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.protobuf.decoder import ProtobufDecoder
from airflow_lakestream.decode.protobuf.schema import compile_proto
from airflow_lakestream.registry.client import RegisteredSchema
from airflow_lakestream.registry.config import RegistryConfig
from tests.support.avro_records import written
from tests.support.registry import FakeRegistry
from tests.unit.decode.support import batch


def field(name: str, kind: Any, *aliases: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "aliases": list(aliases)}


def named(name: str, *fields: dict[str, Any], aliases: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"type": "record", "name": name, "aliases": list(aliases), "fields": list(fields)}


def registry(*texts: str, kind: str = "AVRO") -> FakeRegistry:
    numbers = range(1, 1 + len(texts))
    return FakeRegistry(
        dict(zip(numbers, [(kind, text) for text in texts], strict=True)), {"orders-value": list(numbers)}
    )


def avro_rows(versions: list[Any], columns: pa.Schema, values: list[tuple[int, Any]], **given: Any) -> Any:
    """Return the rows of values, each written with the version of this number."""
    decoder = AvroDecoder(columns, registry=registry(*map(json.dumps, versions)), **given)
    return decoder.decode(batch([written(versions[number - 1], number, value) for number, value in values]))


ONE = named("R", field("id", "long"), field("name", "string"))
TWO = named("R", field("id", "long"), field("user_name", "string", "name"))
THREE = named("R", field("id", "long"), field("login", "string", "name", "user_name"))
PEOPLE = [(1, {"id": 1, "name": "a"}), (2, {"id": 2, "user_name": "b"}), (3, {"id": 3, "login": "c"})]


@pytest.mark.parametrize("column", ["name", "user_name", "login"])
@pytest.mark.parametrize("unknown", ["ignore", "fail"])
def test_all_versions_fill_the_column_whichever_of_the_names_it_has(
    column: str, unknown: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    schema = pa.schema([("id", pa.int64()), pa.field(column, pa.string(), nullable=False)])
    decoded = avro_rows([ONE, TWO, THREE], schema, PEOPLE * 3, unknown_fields=unknown)
    assert not decoded.bad
    assert decoded.rows[column].to_pylist() == ["a", "b", "c"] * 3
    said = [message for message in caplog.messages if f"goes into the column {column}" in message]
    assert len(said) == len(set(said)) == 2


def test_a_columns_own_name_comes_before_other_names() -> None:
    both = pa.schema([("name", pa.string()), ("user_name", pa.string())])
    decoded = avro_rows([ONE, TWO], both, PEOPLE[:2])
    assert decoded.rows.to_pylist() == [{"name": "a", "user_name": None}, {"name": None, "user_name": "b"}]
    # A field of the old name that is another one now stays what it is.
    swapped = named("R", field("name", "long"), field("user_name", "string", "name"))
    decoded = avro_rows([ONE, swapped], pa.schema([("name", pa.string())]), [(2, {"name": 5, "user_name": "b"})])
    assert decoded.rows["name"].to_pylist() == ["5"] or decoded.bad


def test_fields_inside_records_lists_and_maps_and_of_records_with_another_name() -> None:
    old = named("a.Old", field("first", "string"))
    new = named("a.New", field("given", "string", "first"), aliases=("Old",))

    def around(inner: Any) -> dict[str, Any]:
        name = inner["name"]
        fields = (field("one", inner), field("some", {"type": "array", "items": name}))
        return named("R", *fields, field("by", {"type": "map", "values": ["null", name]}))

    for column in ("first", "given"):
        kind = pa.struct([(column, pa.string())])
        schema = pa.schema([("one", kind), ("some", pa.list_(kind)), ("by", pa.map_(pa.string(), kind))])
        values = []
        for number, name in ((1, "first"), (2, "given")):
            one = {name: "x"}
            values.append((number, {"one": one, "some": [one, one], "by": {"k": one}}))
        decoded = avro_rows([around(old), around(new)], schema, values)
        assert not decoded.bad
        expected = {"one": {column: "x"}, "some": [{column: "x"}] * 2, "by": [("k", {column: "x"})]}
        assert decoded.rows.to_pylist() == [expected] * 2


def test_branches_of_a_union_by_the_other_names_of_their_records_and_enums() -> None:
    def version(card: str, kind: str, *aliases: str) -> dict[str, Any]:
        enum = {"type": "enum", "name": kind, "symbols": ["A", "B"], "aliases": ["Kind"] if aliases else []}
        return named("R", field("what", ["null", named(card, field("n", "long"), aliases=aliases), enum]))

    versions = [version("Card", "Kind"), version("Payment", "Sort", "Card")]
    for card, kind in (("Card", "Kind"), ("Payment", "Sort")):
        schema = pa.schema([("what", pa.struct([(card, pa.struct([("n", pa.int64())])), (kind, pa.string())]))])
        values: list[tuple[int, Any]] = [(n, {"what": what}) for n in (1, 2) for what in ({"n": 1}, "B", None)]
        decoded = avro_rows(versions, schema, values)
        assert not decoded.bad
        filled = [{card: {"n": 1}, kind: None}, {card: None, kind: "B"}, None]
        assert decoded.rows["what"].to_pylist() == filled * 2


def test_single_object_encoding_knows_the_names_of_all_schemas_that_are_given() -> None:
    texts = [json.dumps(ONE), json.dumps(TWO)]
    values = []
    for number, (schema, value) in enumerate(((ONE, PEOPLE[0][1]), (TWO, PEOPLE[1][1]))):
        head = b"\xc3\x01" + fingerprint(texts[number]).to_bytes(8, "little")
        values.append(head + written(schema, 1, value)[5:])
    for column in ("name", "user_name"):
        decoded = AvroDecoder(pa.schema([(column, pa.string())]), schemas=texts).decode(batch(values))
        assert decoded.rows[column].to_pylist() == ["a", "b"]


def test_a_registry_without_the_subject_leaves_a_fields_own_aliases() -> None:
    known = FakeRegistry({1: ("AVRO", json.dumps(ONE)), 2: ("AVRO", json.dumps(TWO))})
    values = [written(ONE, 1, PEOPLE[0][1]), written(TWO, 2, PEOPLE[1][1])]
    assert AvroDecoder(pa.schema([("name", pa.string())]), registry=known).decode(batch(values)).rows[
        "name"
    ].to_pylist() == ["a", "b"]


PROTOS = [
    "message In {string a = 1;} message R {int64 id = 1; string name = 2; In inner = 3; repeated In many = 4; "
    "map<string, In> by = 5; map<string, int64> counts = 6;}",
    "message In {string b = 1;} message R {int64 id = 1; string user_name = 2; In inside = 3; repeated In all = 4; "
    "map<string, In> by_key = 5; map<string, int64> numbers = 6;}",
]
FILES = [f'syntax = "proto3"; package p; {text}' for text in PROTOS]
NAMES = [("name", "inner", "many", "by", "counts", "a"), ("user_name", "inside", "all", "by_key", "numbers", "b")]


@pytest.mark.parametrize("wanted", [0, 1])
def test_protobufs_fields_are_known_by_their_numbers(wanted: int) -> None:
    values = []
    for number, (text, (name, inner, many, by, counts, leaf)) in enumerate(zip(FILES, NAMES, strict=True), 1):
        message = message_factory.GetMessageClass(compile_proto(text).descriptor((1,)))
        row = {"id": number, name: "x", inner: {leaf: "y"}, many: [{leaf: "z"}]}
        row |= {by: {"k": {leaf: "m"}}, counts: {"k": 7}}
        values.append(b"\0" + number.to_bytes(4, "big") + b"\2\2" + message(**row).SerializeToString())
    name, inner, many, by, counts, leaf = NAMES[wanted]
    kind = pa.struct([(leaf, pa.string())])
    maps = [(by, pa.map_(pa.string(), kind)), (counts, pa.map_(pa.string(), pa.int64()))]
    schema = pa.schema([(name, pa.string()), (inner, kind), (many, pa.list_(kind)), *maps])
    decoded = ProtobufDecoder(schema, registry=registry(*FILES, kind="PROTOBUF")).decode(batch(values))
    assert not decoded.bad
    row = {name: "x", inner: {leaf: "y"}, many: [{leaf: "z"}], by: [("k", {leaf: "m"})], counts: [("k", 7)]}
    assert decoded.rows.to_pylist() == [row] * 2


@pytest.mark.parametrize(
    ("fields", "given", "column"),
    [
        (("string note", "int64 count"), 5, pa.string()),
        (("map<string, string> note", "map<string, int64> count"), {"k": 5}, pa.map_(pa.string(), pa.string())),
    ],
)
def test_a_number_that_is_used_again_for_another_type_is_another_field(
    fields: tuple[str, str], given: Any, column: pa.DataType
) -> None:
    texts = [f'syntax = "proto3"; message R {{int64 id = 1; {text} = 2;}}' for text in fields]
    message = message_factory.GetMessageClass(compile_proto(texts[1]).descriptor((0,)))
    value = b"\0\0\0\0\2\0" + message(id=1, count=given).SerializeToString()
    schema = pa.schema([("id", pa.int64()), ("note", column)])
    decoded = ProtobufDecoder(schema, registry=registry(*texts, kind="PROTOBUF")).decode(batch([value]))
    assert not decoded.bad
    assert decoded.rows.to_pylist() == [{"id": 1, "note": None}]


def newest(kind: str, texts: list[str], held: pa.Schema) -> pa.Schema:
    payload = PayloadFormats(format=kind.lower(), registry=RegistryConfig.parse("http://registry"))
    payload.__dict__["registry_client"] = registry(*texts, kind=kind)
    columns = payload.newest_columns("orders", held)
    assert columns is not None
    return columns


def test_a_table_grows_by_no_column_that_it_has_by_another_name() -> None:
    inner = named("I", field("given", "string", "first"), field("more", "long"))
    text = json.dumps(named("R", field("login", "string", "name"), field("who", inner), field("new", "long")))
    held = pa.schema([("name", pa.string()), ("who", pa.struct([("first", pa.string())]))])
    who = pa.struct([pa.field("first", pa.string(), False), pa.field("more", pa.int64(), False)])
    found = newest("AVRO", [text], held)
    assert found.names == ["name", "who", "new"]
    assert found.field("who").type == who
    texts = [f'syntax = "proto3"; message R {{int64 id = 1; string {name} = 2;}}' for name in ("name", "user_name")]
    assert newest("PROTOBUF", texts, held).names == ["id", "name"]
    texts = [f'syntax = "proto3"; message R {{map<string, int64> {name} = 2;}}' for name in ("counts", "numbers")]
    held = pa.schema([("counts", pa.map_(pa.string(), pa.int64()))])
    assert newest("PROTOBUF", texts, held).names == ["counts"]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """Return versions of a record whose fields get new names, and the names of each field in each version."""
    count = draw(st.integers(1, 4))
    names = [[f"f{number}"] for number in range(count)]
    fresh = iter(range(100))
    for _ in range(draw(st.integers(0, 3))):
        for each in names:
            each.append(f"g{next(fresh)}" if draw(st.booleans()) else each[-1])
    versions = []
    for at in range(len(names[0])):
        fields = [
            field(each[at], ["null", "long"], *dict.fromkeys(n for n in each[:at] if n != each[at])) for each in names
        ]
        versions.append(named("R", *fields))
    return versions, names


@given(histories(), st.data())
def test_no_value_is_lost_whatever_was_renamed_and_whenever_the_table_was_made(
    history: tuple[list[dict[str, Any]], list[list[str]]], data: st.DataObject
) -> None:
    versions, names = history
    made = [data.draw(st.sampled_from(each)) for each in names]
    values = [
        (at + 1, {each[at]: 10 * at + number for number, each in enumerate(names)}) for at in range(len(versions))
    ]
    decoded = avro_rows(versions, pa.schema([(name, pa.int64()) for name in made]), values)
    assert not decoded.bad
    expected = [{name: 10 * at + number for number, name in enumerate(made)} for at in range(len(versions))]
    assert decoded.rows.to_pylist() == expected


def of_topic(topic: str) -> Any:
    return replace(batch([written(ONE, 1, {"id": 1, "name": "a"})]), topic=topic)


@dataclass(frozen=True)
class SlowRegistry(FakeRegistry):
    """Answers for a schema once it is released."""

    asked: threading.Event = dataclass_field(default_factory=threading.Event)
    release: threading.Event = dataclass_field(default_factory=threading.Event)

    def schema(self, schema_id: int) -> RegisteredSchema:
        if schema_id == 1:
            self.asked.set()
            assert self.release.wait(30)
        return super().schema(schema_id)


LOGINS = pa.schema([("id", pa.int64()), ("login", pa.string())])


def test_each_topic_has_the_names_of_its_own_versions() -> None:
    decoder = AvroDecoder(LOGINS, registry=registry(*map(json.dumps, (ONE, TWO, THREE))))
    assert decoder.decode(of_topic("people")).rows["login"].to_pylist() == [None]
    assert decoder.decode(of_topic("orders")).rows["login"].to_pylist() == ["a"]


def test_a_thread_with_another_topic_does_not_change_whose_versions_are_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    known = registry(*map(json.dumps, (ONE, TWO, THREE)))
    slow = SlowRegistry(known.schemas, known.subjects)
    decoder = AvroDecoder(LOGINS, registry=slow)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(decoder.decode, of_topic("orders"))
        assert slow.asked.wait(30)
        other = replace(batch([written(TWO, 2, {"id": 2, "user_name": "b"})]), topic="people")
        assert decoder.decode(other).rows["login"].to_pylist() == [None]
        slow.release.set()
        assert first.result().rows["login"].to_pylist() == ["a"]
    assert [text for text in caplog.messages if text.startswith("orders: the field name goes into the column login")]
