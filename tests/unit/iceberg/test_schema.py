from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.columns import (
    check_compatible,
    check_metadata,
    fits,
    payload_schema,
    to_schema,
    with_metadata,
)
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.tables.schema.types import arrow_schema, arrow_schema_with_ids, schema_text, type_text

HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))
)
METADATA = pa.schema(
    [
        pa.field("_kafka_topic", pa.string(), nullable=False),
        pa.field("_kafka_partition", pa.int32()),
        pa.field("_kafka_offset", pa.int64()),
        pa.field("_kafka_headers", HEADERS),
    ]
)
NO_METADATA = pa.schema([])

ARROW_TYPES = [
    (pa.bool_(), "boolean"),
    (pa.int8(), "int"),
    (pa.int16(), "int"),
    (pa.int32(), "int"),
    (pa.uint8(), "int"),
    (pa.uint16(), "int"),
    (pa.uint32(), "bigint"),
    (pa.int64(), "bigint"),
    (pa.float16(), "float"),
    (pa.float32(), "float"),
    (pa.float64(), "double"),
    (pa.decimal128(10, 2), "decimal(10, 2)"),
    (pa.decimal256(38, 0), "decimal(38, 0)"),
    (pa.string(), "string"),
    (pa.large_string(), "string"),
    (pa.string_view(), "string"),
    (pa.dictionary(pa.int32(), pa.string()), "string"),
    (pa.binary(), "binary"),
    (pa.large_binary(), "binary"),
    (pa.binary(5), "fixed[5]"),
    (pa.uuid(), "uuid"),
    (pa.date32(), "date"),
    (pa.date64(), "date"),
    (pa.time32("s"), "time"),
    (pa.time64("us"), "time"),
    (pa.timestamp("us"), "timestamp_ntz"),
    (pa.timestamp("s", "UTC"), "timestamp"),
    (pa.timestamp("ms", "Europe/Berlin"), "timestamp"),
    (pa.list_(pa.int64()), "array<bigint>"),
    (pa.large_list(pa.field("item", pa.int64(), nullable=False)), "array<bigint not null>"),
    (pa.list_(pa.int32(), 3), "array<int>"),
    (pa.map_(pa.string(), pa.float64()), "map<string, double>"),
    (pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False)), "map<string, int not null>"),
    (pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", HEADERS)]),
     "struct<a: int not null, b: array<struct<key: string not null, value: binary>>>"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), ARROW_TYPES, ids=str)
def test_each_arrow_type_has_one_iceberg_type(kind: pa.DataType, text: str) -> None:
    schema = to_schema(pa.schema([pa.field("first", pa.int32()), pa.field("c", kind)]))

    assert type_text(schema.find_type("c")) == text
    assert schema.find_field("first").field_id == 1
    assert schema.find_field("c").field_id == 2


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (pa.uint64(), "column 'c': Iceberg has no type for Arrow's uint64. Use int64"),
        (pa.timestamp("ns"), r"Arrow's timestamp\[ns\]. Use microseconds"),
        (pa.timestamp("ns", "UTC"), r"Arrow's timestamp\[ns, tz=UTC\]. Use microseconds"),
        (pa.time64("ns"), r"Arrow's time64\[ns\]. Use microseconds"),
        (pa.duration("us"), r"Arrow's duration\[us\]"),
        (pa.month_day_nano_interval(), "Arrow's month_day_nano_interval"),
        (pa.null(), "Arrow's null"),
        (pa.decimal256(39, 0), r"Arrow's decimal256\(39, 0\). Use a precision of 1 to 38"),
        (pa.decimal128(5, -2), r"Arrow's decimal128\(5, -2\). Use a precision"),
        (pa.binary(0), r"Arrow's fixed_size_binary\[0\]"),
        (pa.json_(), r"Arrow's extension<arrow.json>"),
        (pa.struct([pa.field("d", pa.list_(pa.uint64()))]), r"column 'c\.d\.element': .* uint64"),
        (pa.map_(pa.string(), pa.uint64()), r"column 'c\.value': .* uint64"),
    ],
    ids=str,
)
def test_what_iceberg_has_no_place_for_is_refused_by_name(kind: pa.DataType, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        to_schema(pa.schema([pa.field("c", kind)]))

    assert error.value.argument == "schema"


def test_all_three_ways_to_give_a_schema_say_the_same() -> None:
    text = "id bigint not null, l array<struct<k: string not null, v: binary>>, t timestamp comment 'when'"
    parsed = to_schema(text)

    assert to_schema(parsed) is parsed
    assert to_schema(schema_to_pyarrow(parsed, include_field_ids=False)) == parsed
    assert to_schema(schema_to_pyarrow(parsed)) == parsed


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (pa.schema([]), "it has no columns"),
        (Schema(), "it has no columns"),
        (pa.schema([("a", pa.int32()), ("A", pa.int32())]), "'A' is also there as 'a'"),
        (Schema(NestedField(1, "a", LongType()), NestedField(2, "A", LongType())), "'A' is also there as 'a'"),
        (["id bigint"], "it is a builtins.list. Give a DDL string"),
    ],
    ids=str,
)
def test_a_schema_that_cant_be_one_is_refused(value: object, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        to_schema(value)  # type: ignore[arg-type]  # only what is asked of it


def test_metadata_columns_come_last_optional_and_with_ids_of_their_own() -> None:
    payload = parse_schema("id bigint not null, s struct<a: int>")

    schema = with_metadata(payload, METADATA)

    assert schema.fields[:2] == payload.fields
    assert schema_text(Schema(*schema.fields[2:])) == (
        "_kafka_topic string, _kafka_partition int, _kafka_offset bigint, "
        "_kafka_headers array<struct<key: string not null, value: binary>>"
    )
    assert len(schema.field_ids) == len(set(schema.field_ids)) == 3 + 4 + 3
    assert with_metadata(payload, NO_METADATA) == payload


@pytest.mark.parametrize("name", ["_kafka_topic", "_kafka_mine"])
def test_a_payload_column_named_like_a_metadata_column_is_refused(name: str) -> None:
    payload = parse_schema(f"id bigint, {name} string")

    with pytest.raises(InvalidArgument, match=f"^schema: '{name}': names of metadata columns"):
        with_metadata(payload, METADATA)
    with pytest.raises(InvalidArgument, match=f"^schema: '{name}': names of metadata columns"):
        check_compatible(payload, payload, "db.t", METADATA)


def test_a_metadata_column_of_another_name_is_kept_from_the_payload_too() -> None:
    metadata = pa.schema([("src", pa.string())])

    with pytest.raises(InvalidArgument, match="'src': names of metadata"):
        with_metadata(parse_schema("src string"), metadata)
    assert payload_schema(with_metadata(parse_schema("id int"), metadata), metadata.names).names == ["id"]


def test_the_payload_is_the_table_without_metadata_in_plain_arrow_types() -> None:
    payload = parse_schema(
        "id bigint not null, name string comment 'n', tags array<string not null>, u uuid, f fixed[3], "
        "m map<string, struct<a: binary not null>>, d decimal(9, 2), t timestamp, n timestamp_ntz, x time"
    )
    table = with_metadata(payload, METADATA)

    # `_kafka_headers` is in the table though not asked for: a payload never fills it.
    schema = payload_schema(table, ["_kafka_topic", "_kafka_partition", "_kafka_offset"])

    expected = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
            pa.field("u", pa.uuid()),
            pa.field("f", pa.binary(3)),
            pa.field("m", pa.map_(pa.string(), pa.struct([pa.field("a", pa.binary(), nullable=False)]))),
            pa.field("d", pa.decimal128(9, 2)),
            pa.field("t", pa.timestamp("us", "UTC")),
            pa.field("n", pa.timestamp("us")),
            pa.field("x", pa.time64("us")),
        ]
    )
    assert schema.equals(expected)
    assert b"field_id" not in _metadata_of(schema)


def test_a_given_schema_narrows_the_payload_and_makes_it_stricter_but_types_are_the_tables() -> None:
    table = parse_schema(
        "a bigint, b string not null, c int, s struct<x: bigint, y: int not null>, l array<int>, m map<string, int>"
    )
    given_schema = parse_schema(
        "m map<string, int not null>, s struct<y: int not null, x: int not null>, a int not null, "
        "b string not null, l array<int not null>"
    )

    assert payload_schema(table, [], given_schema).equals(
        arrow_schema(
            parse_schema(
                "a bigint not null, b string not null, s struct<x: bigint not null, y: int not null>, "
                "l array<int not null>, m map<string, int not null>"
            )
        )
    )


def test_plain_and_large_types_carry_the_same_field_ids() -> None:
    schema = parse_schema("l array<struct<k: string, m: map<string, binary>>>")

    plain, large = arrow_schema_with_ids(schema), arrow_schema_with_ids(schema, large=True)

    assert plain.field("l").type.value_type.field("k").type == pa.string()
    assert large.field("l").type.value_type.field("k").type == pa.large_string()
    assert _ids_of(plain.field("l")) == _ids_of(large.field("l")) == sorted(schema.field_ids)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("int", "bigint"),
        ("int", "double"),
        ("float", "double"),
        ("decimal(5, 2)", "decimal(7, 4)"),
        ("decimal(5, 2)", "decimal(6, 2)"),
        ("int", "decimal(10, 0)"),
        ("bigint", "decimal(21, 2)"),
        ("fixed[3]", "binary"),
        ("array<int>", "array<bigint>"),
        ("map<string, float>", "map<string, double>"),
        ("struct<a: int>", "struct<a: bigint, b: string>"),
    ],
)
def test_a_wider_table_type_takes_a_given_one_and_never_the_other_way_round(narrow: str, wide: str) -> None:
    small, big = parse_schema(f"c {narrow}"), parse_schema(f"c {wide}")

    check_compatible(small, big, "db.t", NO_METADATA)
    with pytest.raises(InvalidArgument):
        check_compatible(big, small, "db.t", NO_METADATA)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("bigint", "double"),
        ("int", "float"),
        ("int", "string"),
        ("int", "decimal(10, 1)"),
        ("bigint", "decimal(18, 0)"),
        ("decimal(5, 2)", "decimal(6, 4)"),
        ("date", "timestamp_ntz"),
        ("timestamp_ntz", "timestamp"),
        ("uuid", "string"),
        ("fixed[3]", "fixed[4]"),
        ("struct<a: int>", "map<string, int>"),
        ("array<int>", "int"),
        ("struct<a: int, b: int>", "struct<a: int>"),
    ],
)
def test_types_that_lose_something_are_no_fit(narrow: str, wide: str) -> None:
    assert not fits(parse_schema(f"c {narrow}").find_type("c"), parse_schema(f"c {wide}").find_type("c"))
    with pytest.raises(InvalidArgument):
        check_compatible(parse_schema(f"c {narrow}"), parse_schema(f"c {wide}"), "db.t", NO_METADATA)


def test_every_contradiction_is_named_with_both_types_and_the_remedy() -> None:
    table = parse_schema(
        "id bigint not null, name string, n int, must date not null, s struct<a: int, r: int not null>"
    )
    given_schema = parse_schema("id bigint, nme string, n bigint, s struct<a: string>, zz boolean")

    with pytest.raises(InvalidArgument) as error:
        check_compatible(given_schema, table, "db.clicks", NO_METADATA)

    assert str(error.value) == (
        "schema: it contradicts the table db.clicks: "
        "'id' is given as bigint, optional, and is bigint not null in the table; "
        "'nme' (string) is not in the table, which has 'name'; "
        "'n' is given as bigint and is int in the table; "
        "'s.a' is given as string and is int in the table; "
        "'s.r' is required in the table (int) and not given; "
        "'zz' (boolean) is not in the table; "
        "'must' is required in the table (date) and not given. "
        "Leave the argument out to take the table's own schema, correct it, or let the table be changed: "
        'schema_evolution="add" adds columns, "widen" also widens types.'
    )


@pytest.mark.parametrize(
    ("given", "held", "remedy"),
    [
        ("string", "bigint", "or land in a new table: bigint can't be widened to string."),
        ("bigint", "int", 'schema_evolution="add" adds columns, "widen" also widens types.'),
        ("decimal(20, 2)", "decimal(9, 2)", 'schema_evolution="add" adds columns, "widen" also widens types.'),
        ("decimal(20, 2)", "bigint", "or land in a new table: bigint can't be widened to decimal(20, 2)."),
        ("timestamp", "bigint", "or land in a new table: bigint can't be widened to timestamp."),
    ],
)
def test_widening_is_a_remedy_only_where_it_works(given: str, held: str, remedy: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        check_compatible(parse_schema(f"id {given}"), parse_schema(f"id {held}"), "db.t", NO_METADATA)
    assert str(error.value).endswith(remedy)


def test_a_table_may_have_more_and_laxer_columns_than_given() -> None:
    table = with_metadata(parse_schema("id bigint, extra string, l array<int>"), METADATA)

    check_compatible(parse_schema("l array<int not null>, id bigint not null"), table, "db.t", METADATA)


def test_an_optional_element_has_no_place_in_a_list_of_required_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"'l\.element' is given as int, optional, and is int not null"):
        check_compatible(parse_schema("l array<int>"), parse_schema("l array<int not null>"), "db.t", NO_METADATA)


def test_metadata_columns_that_the_table_lacks_or_has_otherwise_are_named() -> None:
    table = parse_schema(
        "id bigint, _kafka_topic string, _kafka_partition string, _kafka_key binary not null, "
        "_kafka_headers array<struct<key: string not null, value: string>>"
    )

    with pytest.raises(InvalidArgument) as error:
        check_metadata(table, "db.t", METADATA)

    assert error.value.argument == "metadata_columns"
    assert "'_kafka_topic'" not in str(error.value)
    assert "'_kafka_partition' is int, in the table string" in str(error.value)
    assert "'_kafka_offset' (bigint) is not in the table" in str(error.value)
    assert "'_kafka_headers' is array<struct<key: string not null, value: binary>>, in the table" in str(error.value)
    assert "'_kafka_key' is required in the table and not asked for" in str(error.value)


def test_the_payload_check_looks_at_metadata_columns_as_well() -> None:
    with pytest.raises(InvalidArgument, match=r"^metadata_columns: they contradict the table db.t"):
        check_compatible(parse_schema("id int"), parse_schema("id int"), "db.t", METADATA)


def arrow_types(depth: int = 2) -> st.SearchStrategy[pa.DataType]:
    flat = st.sampled_from([kind for kind, _ in ARROW_TYPES if not pa.types.is_nested(kind)])
    if depth == 0:
        return flat
    inner = arrow_types(depth - 1)
    fields = st.builds(lambda n, t, o: pa.field(n, t, nullable=o), st.sampled_from("abcdef"), inner, st.booleans())
    return st.one_of(
        flat,
        st.builds(lambda t, o: pa.list_(pa.field("element", t, nullable=o)), inner, st.booleans()),
        st.builds(lambda t, o: pa.map_(pa.string(), pa.field("value", t, nullable=o)), inner, st.booleans()),
        st.lists(fields, min_size=1, max_size=3, unique_by=lambda field: field.name).map(pa.struct),
    )


@given(st.lists(st.tuples(arrow_types(), st.booleans()), min_size=1, max_size=4))
def test_arrow_to_iceberg_to_ddl_and_back_ends_where_it_began(columns: list[tuple[pa.DataType, bool]]) -> None:
    given_schema = pa.schema([pa.field(f"c{at}", kind, nullable=o) for at, (kind, o) in enumerate(columns)])

    schema = to_schema(given_schema)

    assert [field.required for field in schema.fields] == [not nullable for _, nullable in columns]
    assert parse_schema(schema_text(schema)) == schema
    assert to_schema(arrow_schema(schema)) == schema
    assert to_schema(schema_to_pyarrow(schema)) == schema
    for kind, field in zip(given_schema.types, arrow_schema(schema), strict=True):
        assert fits(
            to_schema(pa.schema([("c", kind)])).find_type("c"), to_schema(pa.schema([field])).fields[0].field_type
        )


def _metadata_of(schema: pa.Schema) -> bytes:
    return schema.serialize().to_pybytes()


def _ids_of(field: pa.Field) -> list[int]:
    own = [int((field.metadata or {})[b"PARQUET:field_id"])]
    kind = field.type
    if pa.types.is_map(kind):
        children = [kind.key_field, kind.item_field]
    else:
        children = [kind.field(at) for at in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return sorted(own + [found for child in children for found in _ids_of(child)])
