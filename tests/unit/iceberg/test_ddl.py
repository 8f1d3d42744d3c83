from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.ddl import parse_schema, parse_timed_schema
from airflow_lakestream.tables.schema.types import schema_text, type_text

NAMES = {
    "boolean": BooleanType(),
    "BOOL": BooleanType(),
    "tinyint": IntegerType(),
    "smallint": IntegerType(),
    "int": IntegerType(),
    "Integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "double precision": DoubleType(),
    "decimal": DecimalType(10, 0),
    "decimal(7)": DecimalType(7, 0),
    "dec(10, 2)": DecimalType(10, 2),
    "numeric(38,38)": DecimalType(38, 38),
    "string": StringType(),
    "text": StringType(),
    "varchar(20)": StringType(),
    "char(2)": StringType(),
    "char": StringType(),
    "binary": BinaryType(),
    "fixed[16]": FixedType(16),
    "fixed(3)": FixedType(3),
    "uuid": UUIDType(),
    "date": DateType(),
    "time": TimeType(),
    "timestamp": TimestamptzType(),
    "timestamptz": TimestamptzType(),
    "timestamp_ltz": TimestamptzType(),
    "timestamp with time zone": TimestamptzType(),
    "timestamp with local time zone": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
    "timestamp without time zone": TimestampType(),
    "timestamp without zone": TimestampType(),
}


@pytest.mark.parametrize(("text", "kind"), NAMES.items())
def test_each_type_name_means_one_iceberg_type(text: str, kind: IcebergType) -> None:
    field = parse_schema(f"c {text}").find_field("c")

    assert field.field_type == kind
    assert field.optional


def test_a_schema_with_everything_keeps_names_nullability_and_comments() -> None:
    schema = parse_schema(
        "id bigint not null, tags array<string not null>, m map<string, decimal(10,2)>,\n"
        's struct<a: int not null, b struct<c string>>, "odd ""name" string, '
        "`x y` timestamp_ntz not null comment 'it''s a \\'text\\''"
    )

    assert [(field.name, field.required) for field in schema.fields] == [
        ("id", True),
        ("tags", False),
        ("m", False),
        ("s", False),
        ('odd "name', False),
        ("x y", True),
    ]
    assert schema.find_field("tags.element").required
    assert schema.find_field("m.value").field_type == DecimalType(10, 2)
    assert schema.find_field("m.value").optional
    assert schema.find_field("s.a").required
    assert schema.find_field("s.b.c").optional
    assert schema.find_field("x y").doc == "it's a 'text'"
    assert sorted(schema.field_ids) == list(range(1, len(schema.field_ids) + 1))


@pytest.mark.parametrize("text", ["a: int, b: array<string>", "struct<a:int,b:list<string>>", "a int,b array<string>"])
def test_colons_and_a_struct_around_all_columns_change_nothing(text: str) -> None:
    assert schema_text(parse_schema(text)) == "a int, b array<string>"


def test_words_of_the_grammar_are_names_too() -> None:
    schema = parse_schema("timestamp timestamp, comment string comment 'c', struct int, 2nd date, not boolean")

    assert schema.column_names == ["timestamp", "comment", "struct", "2nd", "not"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no columns"),
        ("  \n ", "it has no columns"),
        ("a", "expected a type at position 2, got the end"),
        ("a strng", r"expected a type at position 3, got 'strng' \(near 'a strng'\)\. Did you mean 'string'\?"),
        ("orderId bigint, shippedAt timestmp, b int", r"\(near 'orderId bigint, shippedAt timestmp, b int'\)"),
        ("id bigint, deliveredToAt timestmp", r"\(near 'bigint, deliveredToAt timestmp'\)"),
        ("a timestmp", r"Did you mean 'timestamp'\?"),
        ("a DATETIME", r"got 'DATETIME' .* Did you mean 'timestamp'\?"),
        ("a int64", r"Did you mean 'bigint'\?"),
        ("a blob", r"Did you mean 'binary'\?"),
        ("a int notnull", r"expected ',' or the end at position 7, got 'notnull' .*\. Write 'not null'\."),
        ("a struct<b: int NULL>", r"got 'NULL' .*Leave it out: a column without 'not null' may be null"),
        ("a int primary key", r"got 'primary' .*Leave it out"),
        ("a xyzzy", "Known are boolean, "),
        ("a int,", "expected a column name at position 7, got the end"),
        ("a int b", "expected ',' or the end at position 7, got 'b'"),
        ("a int; b int", "at position 6, got ';'"),
        ("a string(3)", r"expected ',' or the end at position 9, got '\('"),
        ("a decimal(39, 2)", "expected a precision of 1 to 38 and a scale no greater"),
        ("a decimal(4, 5)", "expected a precision of 1 to 38 and a scale no greater"),
        ("a decimal(0)", "expected a precision of 1 to 38 and a scale no greater"),
        ("a decimal(x)", "expected a whole number at position 11, got 'x'"),
        ("a array<int", "expected '>' at position 12, got the end"),
        ("a array", "expected '<' at position 8"),
        ("a map<string>", "expected ',' at position 13, got '>'"),
        ("a struct<>", "expected a column name at position 10, got '>'"),
        ("struct<a int> b", "expected ',' or the end at position 15, got 'b'"),
        ("a fixed[0]", "expected a length of 1 or more at position 9, got '0'"),
        ("a fixed", r"expected '\(' at position 8"),
        ("a int not", "expected 'null' after 'not'"),
        ("a int comment b", "expected a text in single quotes after 'comment' at position 15"),
        ("a int comment 'b", "at position 15"),
        ("a timestamp with lime", "expected 'time zone' at position 18, got 'lime'"),
        ('"" int', "expected a column name at position 1"),
        ("a int, a string", "column 'a' is there twice"),
        ("Id int, id string", "column 'id' is also there as 'Id', in another case only"),
        ("s struct<x: int, X: int>", r"column 's\.X' is also there as 's\.x'"),
        ("l array<struct<x: int, x: int>>", r"column 'l\.element\.x' is there twice"),
        ('a struct<b int>, "a.b" int', r"two columns have one path"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as error:
        parse_schema(text)

    assert error.value.argument == "schema"


def test_errors_name_the_argument_that_the_text_came_from() -> None:
    with pytest.raises(InvalidArgument, match=r"^value_schema: ") as error:
        parse_schema("a", argument="value_schema")

    assert error.value.argument == "value_schema"


def primitives() -> st.SearchStrategy[IcebergType]:
    decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s)))
    return st.one_of(st.sampled_from(sorted(set(NAMES.values()), key=str)), decimals, st.integers(1, 99).map(FixedType))


def names() -> st.SearchStrategy[str]:
    return st.text(st.characters(exclude_characters=".", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8).map(
        str.lower
    )


@st.composite
def structs(draw: st.DrawFn, depth: int = 2) -> StructType:
    fields = []
    for name in draw(st.lists(names(), min_size=1, max_size=4, unique_by=str.lower)):
        doc = draw(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=6))
        fields.append(NestedField(0, name, draw(types(depth)), required=draw(st.booleans()), doc=doc))
    return StructType(*fields)


def types(depth: int) -> st.SearchStrategy[IcebergType]:
    if depth == 0:
        return primitives()
    inner = types(depth - 1)
    return st.one_of(
        primitives(),
        st.builds(lambda e, r: ListType(0, e, element_required=r), inner, st.booleans()),
        st.builds(lambda k, v, r: MapType(0, k, 0, v, value_required=r), primitives(), inner, st.booleans()),
        structs(depth - 1),
    )


@given(structs())
def test_the_text_of_a_schema_parses_into_that_schema(struct: StructType) -> None:
    text = type_text(struct)

    parsed = parse_schema(text)

    assert type_text(parsed.as_struct()) == text
    assert _anonymous(parsed.as_struct()) == _anonymous(struct)
    assert parse_schema(schema_text(parsed)) == parsed


@given(st.text("aint<>(),:'\"` [1]decm\\not", max_size=30))
def test_any_text_is_a_schema_or_refused_politely(text: str) -> None:
    try:
        schema = parse_schema(text)
    except InvalidArgument:
        return
    assert isinstance(schema, Schema)
    assert parse_schema(schema_text(schema)) == schema


def _anonymous(kind: IcebergType) -> object:
    """A type as plain Python values, without field ids, and independent of the writer of DDL under test."""
    match kind:
        case StructType():
            return [(f.name, f.required, f.doc, _anonymous(f.field_type)) for f in kind.fields]
        case ListType():
            return ("list", kind.element_required, _anonymous(kind.element_type))
        case MapType():
            return ("map", kind.value_required, _anonymous(kind.key_type), _anonymous(kind.value_type))
        case _:
            return kind


@pytest.mark.parametrize(
    "text",
    [
        "id bigint, at timestamp from epoch_ms not null comment 'when'",
        "s struct<at: timestamp from epoch_s, l: array<timestamp at time zone 'Europe/Berlin' not null>>",
        'l array<struct<"a b": timestamp from epoch_ns>>',
    ],
)
def test_what_times_are_made_from_is_written_as_it_is_read(text: str) -> None:
    schema, times = parse_timed_schema(text)
    assert schema_text(schema, times) == text
    assert parse_timed_schema(text.replace("timestamp", "TimestampTZ").replace("from", "FROM")) == (schema, times)
    with pytest.raises(InvalidArgument, match=r"is made (from|at time zone)"):
        parse_schema(text)
