from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.decode.json.column_names import MOST_COLUMNS, NameRules
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.growing import GrowingJsonDecoder
from airflow_lakestream.decode.json.infer import infer_schema, infer_type
from airflow_lakestream.exceptions import BadRecord, InvalidArgument
from airflow_lakestream.tables.schema.columns import to_schema
from tests.unit.decode.support import batch, decoded

ELEMENT = pa.field("element", pa.int64())


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "null", "-2"], pa.int64()),
        (["1", "1.5"], pa.float64()),
        (["1.0", "2.0"], pa.float64()),
        (["9007199254740993", "1.5"], pa.string()),
        (["9223372036854775808"], pa.string()),
        (["1", "9223372036854775808"], pa.string()),
        (["1e400"], pa.string()),
        (["true", "null"], pa.bool_()),
        (["true", "1"], pa.string()),
        (['"x"', "1"], pa.string()),
        (["null"], pa.string()),
        (['"2026-11-20T05:06:07Z"', '"2026-11-20T05:06:07.1+02:00"'], pa.timestamp("us", "UTC")),
        (['"2026-11-20T05:06:07"', "null"], pa.timestamp("us")),
        (['"2026-11-20T05:06:07"', '"2026-11-20T05:06:07Z"'], pa.string()),
        (['"2026-11-20T05:06:07.1234567Z"'], pa.string()),
        (['"2026-11-20"'], pa.string()),
        (['"2026-11-20T05"'], pa.string()),
        (['"2026-11-20T05:06:07Z"', '""'], pa.string()),
        (["[1]", "[null, 2]", "[]"], pa.list_(ELEMENT)),
        (["[]"], pa.list_(ELEMENT.with_type(pa.string()))),
        (["[1]", '["x"]'], pa.list_(ELEMENT.with_type(pa.string()))),
        (["[1]", "1"], pa.string()),
        (["{}"], pa.string()),
        (['{"a":1}', '{"b":[{"c":true}]}', '{"a":0.5}'], pa.struct([
            ("a", pa.float64()), ("b", pa.list_(ELEMENT.with_type(pa.struct([("c", pa.bool_())])))),
        ])),
    ],
)  # fmt: skip
def test_types(values: list[str], kind: pa.DataType) -> None:
    documents = [f'{{"v":{value}}}'.encode() for value in values]
    schema = infer_schema(batch([None, *documents, b"{}"]))
    assert schema == pa.schema([("v", kind)])
    assert decoded(JsonDecoder(schema), batch(documents)).num_rows == len(documents)


def test_fields_stand_in_order_of_first_appearance() -> None:
    assert infer_schema(batch([b'{"b":1,"a":1}']), batch([b'{"c":1,"a":1}'])).names == ["b", "a", "c"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.sampled_from(
        ["", "x", "2026-11-20T05:06:07Z", "2026-11-20T05:06:07", "2026-11-20"]
    ).filter(bool),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), min_size=1, max_size=5))
def test_types_hold_for_the_sample(documents: list[dict[str, object]]) -> None:
    values: list[bytes | None] = [
        json.dumps(document).replace("-Infinity", "-1e999").replace("Infinity", "1e999").encode()
        for document in documents
    ]
    try:
        schema = infer_schema(batch(values))
    except InvalidArgument:
        assert not any(documents)
        return
    assert decoded(JsonDecoder(schema, "fail"), batch(values)).num_rows == len(values)


def test_the_sample_is_spread_over_all_batches() -> None:
    values: list[bytes | None] = [b'{"v":1}'] * 500
    late: list[bytes | None] = [b'{"v":1}'] * 499 + [b'{"v":"x"}']
    assert infer_schema(batch(values), batch(values), sample=100).field("v").type == pa.int64()
    assert infer_schema(batch(values), batch(late), sample=1000).field("v").type == pa.string()
    assert infer_schema(batch(values), batch([b'{"w":1}'] * 500), sample=10).names == ["v", "w"]


def test_what_is_no_object_says_nothing_and_is_named_where_there_is_nothing_else() -> None:
    assert infer_schema(batch([b"null", b'{"v":1}', b"{", b"7"])).names == ["v"]
    with pytest.raises(BadRecord, match="offset 1003: the document is null"):
        infer_schema(batch([None, b"null", b"{"]))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([b"1", b"2", None, b"{"], pa.int64()),
        ([b'"a"'], pa.string()),
        ([b'{"a":1}', b'{"b":"x"}'], pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([None], pa.string()),
    ],
)
def test_single_values_have_a_type_of_their_own(values: list[bytes | None], kind: pa.DataType) -> None:
    assert infer_type(batch(values)) == kind


def test_nothing_to_infer_from() -> None:
    with pytest.raises(InvalidArgument, match="Give a schema"):
        infer_schema(batch([None, b"{}"]))


# Documents that most share, one that is odd, and the columns; the odd ones can be no columns beside them.
ODD = [
    (b'{"id":%d}', b'{"Id":1}', [("id", pa.int64())]),
    (b'{"a":{"b":%d}}', b'{"a.b":1}', [("a", pa.struct([("b", pa.int64())]))]),
    (b'{"a.b":%d}', b'{"a":{"b":1,"c":1}}', [("a.b", pa.int64()), ("a", pa.struct([("c", pa.int64())]))]),
    (b'{"id":%d}', b'{"":1}', [("id", pa.int64())]),
    (b'{"id":%d}', b'{"x\\u0000":1}', [("id", pa.int64())]),
    (b'{"id":%d}', b'{"_kafka_offset":1}', [("id", pa.int64())]),
    (b'{"id":%d}', b'{"_KAFKA_OFFSET":1}', [("id", pa.int64())]),
    (b'{"id":%d}', b'{"' + b"n" * 300 + b'":1}', [("id", pa.int64())]),
    (b'{"id":%d}', b'{"d":' * 30 + b"1" + b"}" * 30, [("id", pa.int64())]),
    (b'{"id":%d}', b'{"l":' + b"[" * 30 + b"1" + b"]" * 30 + b"}", [("id", pa.int64())]),
    (b'{"s":{"id":%d}}', b'{"s":{"ID":1,"":2}}', [("s", pa.struct([("id", pa.int64())]))]),
    (b'{"l":[{"id":%d}]}', b'{"l":[{"ID":1}]}', [("l", pa.list_(ELEMENT.with_type(pa.struct([("id", pa.int64())]))))]),
]  # fmt: skip


@pytest.mark.parametrize(("usual", "odd", "columns"), ODD)
@pytest.mark.parametrize("place", [0, 3])
def test_one_odd_record_ends_nothing_and_takes_no_column_from_others(
    usual: bytes, odd: bytes, columns: list[tuple[str, pa.DataType]], place: int
) -> None:
    values: list[bytes | None] = [usual % n for n in range(3)]
    values.insert(place, odd)

    schema = infer_schema(batch(values))

    assert {field.name: field.type for field in schema} == dict(columns)
    assert len(to_schema(schema).fields) == len(columns)
    # What they say is kept all the same, where the run is told to, and a record is bad where it is told that.
    rescuing = pa.schema([*schema, (RESCUED, pa.string())])
    rows = decoded(JsonDecoder(rescuing, "rescue"), batch(values))
    assert [row[RESCUED] is not None for row in rows.to_pylist()] == [n == place for n in range(4)]
    assert [row.index for row in JsonDecoder(schema, "fail").decode(batch(values)).bad] == [place]
    # A table that grows from nothing comes to the same columns, and rejects the same record.
    growing = GrowingJsonDecoder(pa.schema([("_", pa.int64())]))
    assert [row.index for row in growing.decode(batch(values)).bad] == [place]
    assert growing.schema.names[1:] == schema.names


def test_keys_that_are_data_make_no_columns_without_end() -> None:
    document = json.dumps({f"user{n}": n for n in range(3_000)}).encode()
    assert len(infer_schema(batch([document])).names) == MOST_COLUMNS


def test_names_that_only_some_tables_take_or_that_are_filled_otherwise() -> None:
    values: list[bytes | None] = [b'{"id":1,"a b":2,"c;d":3,"_Key":4,"_rescued":5,"s":{"x y":1,"_key":2}}']
    names = infer_schema(batch(values), rules=NameRules(frozenset({"_key", "_rescued"}), " ;"))
    assert names == pa.schema([("id", pa.int64()), ("s", pa.struct([("_key", pa.int64())]))])
    assert infer_schema(batch(values)).names == ["id", "a b", "c;d", "_Key", "_rescued", "s"]


def test_fields_that_are_alike_have_one_type() -> None:
    values: list[bytes | None] = [b'{"before":null,"after":{"x":1}}', b'{"before":{"x":null,"y":1.5},"after":null}']
    image = pa.struct([("x", pa.int64()), ("y", pa.float64())])
    assert infer_schema(batch(values), alike=("before", "after")) == pa.schema([("before", image), ("after", image)])
    with pytest.raises(InvalidArgument, match="no field but '': it has no name"):
        infer_schema(batch([b'{"":1}']))
