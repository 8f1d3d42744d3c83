"""Which changes lead from a table's schema to the one wanted: never a drop, a rename or a narrowing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.exceptions import ResolveError
from pyiceberg.schema import Schema, assign_fresh_schema_ids, promote
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
)

from airflow_lakestream.core.policies import SchemaEvolution
from airflow_lakestream.tables.schema.change import EvolutionResult, evolve
from airflow_lakestream.tables.schema.columns import fits
from airflow_lakestream.tables.schema.ddl import parse_schema
from airflow_lakestream.tables.schema.types import schema_text

ADD, WIDEN = SchemaEvolution.ADD, SchemaEvolution.WIDEN


def evolved(
    held: Schema | str, wanted: Schema | str, policy: SchemaEvolution = WIDEN, version: int = 2
) -> EvolutionResult:
    table = parse_schema(held) if isinstance(held, str) else held
    fields = (parse_schema(wanted) if isinstance(wanted, str) else wanted).fields
    last = table.highest_field_id
    return evolve(table, fields, policy, last_column_id=last, schema_id=7, format_version=version)


@pytest.mark.parametrize(
    ("held", "wanted", "result", "changes"),
    [
        ("a int", "b string, a int", "a int, b string", ["add column b string"]),
        ("a int", "a int, b int not null", "a int, b int", ["add column b int"]),
        ("a int", "a bigint", "a bigint", ["widen column a from int to bigint"]),
        ("a float", "a double", "a double", ["widen column a from float to double"]),
        ("a float", "a int", "a double", ["widen column a from float to double"]),
        (
            "a decimal(10, 2)",
            "a decimal(12, 2)",
            "a decimal(12, 2)",
            ["widen column a from decimal(10, 2) to decimal(12, 2)"],
        ),
        (
            "a decimal(10, 4)",
            "a decimal(10, 2)",
            "a decimal(12, 4)",
            ["widen column a from decimal(10, 4) to decimal(12, 4)"],
        ),
        ("a int not null", "a int", "a int", ["make column a optional"]),
        (
            "s struct<x: int>",
            "s struct<x: bigint, y: array<int>>",
            "s struct<x: bigint, y: array<int>>",
            ["widen column s.x from int to bigint", "add column s.y array<int>"],
        ),
        (
            "l array<struct<x: int> not null>",
            "l array<struct<x: int, y: int not null>>",
            "l array<struct<x: int, y: int>>",
            ["make column l.element optional", "add column l.element.y int"],
        ),
        (
            "m map<string, int>",
            "m map<string, bigint>",
            "m map<string, bigint>",
            ["widen column m.value from int to bigint"],
        ),
        ("a bigint, b string", "a int", "a bigint, b string", []),
        ("a double", "a float", "a double", []),
        ("a decimal(12, 4)", "a decimal(10, 2)", "a decimal(12, 4)", []),
    ],
)
def test_what_becomes_of_a_schema(held: str, wanted: str, result: str, changes: list[str]) -> None:
    found = evolved(held, wanted)

    assert (schema_text(found.schema), list(found.changes), found.problems) == (result, changes, ())


@pytest.mark.parametrize(
    ("held", "wanted", "problem"),
    [
        ("a int", "a string", "'a' is int in the table and string is given: neither holds all values of the other"),
        ("a string", "a int", "'a' is string in the table and int is given: neither holds all values of the other"),
        (
            "a int",
            "a double",
            "'a' is int in the table and double is given: Iceberg does not widen the one to the other",
        ),
        (
            "a decimal(10, 2)",
            "a decimal(10, 3)",
            "Iceberg widens a decimal's precision, up to 38, and never its scale",
        ),
        ("a decimal(10, 2)", "a decimal(38, 0)", "never its scale"),
        ("a date", "a timestamp_ntz", "from format version 3 on"),
        ("m map<int, int>", "m map<bigint, int>", "'m.key' is int in the table and bigint is given"),
        ("s struct<x: int>", "s struct<x: string>", "'s.x' is int in the table and string is given"),
        ("s struct<x: int>", "s int", "'s' is struct<x: int> in the table and int is given"),
        ('"a" int', '"A" int', "'A' can't be added next to 'a'"),
        ("a struct<b: int>", '"a.b" int', "two columns would have one path"),
    ],
)
def test_what_can_not_be_had_is_said_with_both_types_and_changes_nothing(held: str, wanted: str, problem: str) -> None:
    found = evolved(held, wanted)

    assert len(found.problems) == 1
    assert problem in found.problems[0]
    assert (schema_text(found.schema), found.changes) == (schema_text(parse_schema(held)), ())


@pytest.mark.parametrize(
    ("held", "wanted", "remedy"),
    [
        ("a int", "a bigint", 'schema_evolution="widen" would make it bigint'),
        ("a int not null", "a int", 'schema_evolution="widen" would change it'),
    ],
)
def test_adding_does_not_widen_and_says_what_would(held: str, wanted: str, remedy: str) -> None:
    found = evolved(held, wanted, ADD)

    assert not found.changes
    assert remedy in found.problems[0]


def test_a_column_that_identifies_rows_stays_required() -> None:
    held = Schema(NestedField(1, "id", LongType(), required=True), identifier_field_ids=[1])

    assert "identifies the table's rows" in evolved(held, "id bigint").problems[0]


def test_a_type_of_a_later_format_version_is_refused() -> None:
    wanted = Schema(NestedField(1, "l", ListType(2, TimestampNanoType())))

    assert "needs format version 3 of Iceberg, and the table has 2" in evolved("a int", wanted).problems[0]


def test_pyiceberg_still_reads_no_date_as_a_timestamp() -> None:
    # Once it does, a date may become a timestamp in tables of format version 3.
    with pytest.raises(ResolveError):
        promote(DateType(), TimestampType())


scalars = st.one_of(
    st.sampled_from(
        (BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), StringType(), DateType(), TimestampType())
    ),
    st.sampled_from((TimestamptzType(), DecimalType(9, 2), DecimalType(12, 2), DecimalType(12, 4), DecimalType(38, 9))),
)


def _struct(fields: list[tuple[str, IcebergType, bool]]) -> StructType:
    return StructType(*(NestedField(n, name, kind, required=r) for n, (name, kind, r) in enumerate(fields, 1)))


def _fields(kinds: st.SearchStrategy[IcebergType]) -> st.SearchStrategy[list[tuple[str, IcebergType, bool]]]:
    field = st.tuples(st.sampled_from(("a", "b", "c", "d", "e")), kinds, st.booleans())
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda item: item[0])


kinds = st.recursive(
    scalars,
    lambda inner: st.one_of(
        _fields(inner).map(_struct),
        st.tuples(inner, st.booleans()).map(lambda item: ListType(1, item[0], element_required=item[1])),
        st.tuples(inner, st.booleans()).map(lambda item: MapType(1, StringType(), 2, item[0], value_required=item[1])),
    ),
    max_leaves=6,
)
schemas = _fields(kinds).map(lambda fields: _with_ids(_struct(fields)))


def _with_ids(struct: StructType) -> Schema:
    return assign_fresh_schema_ids(Schema(*struct.fields))


def _leaves(kind: IcebergType, visit: Callable[[NestedField], None]) -> None:
    children: tuple[NestedField, ...] = ()
    match kind:
        case StructType():
            children = kind.fields
        case ListType():
            children = (kind.element_field,)
        case MapType():
            children = (kind.key_field, kind.value_field)
    for child in children:
        visit(child)
        _leaves(child.field_type, visit)


def _by_id(schema: Schema) -> dict[int, NestedField]:
    found: dict[int, NestedField] = {}
    _leaves(schema.as_struct(), lambda field: found.update({field.field_id: field}))
    return found


@given(schemas, schemas, st.sampled_from((ADD, WIDEN)))
@settings(max_examples=60)
def test_whatever_is_wanted_old_files_read_the_same(held: Schema, wanted: Schema, policy: SchemaEvolution) -> None:
    after = evolved(held, wanted, policy).schema
    old, new = _by_id(held), _by_id(after)

    for field_id, field in old.items():
        # Each column is there by its id, under its name, takes null if it did, and reads what files hold.
        assert new[field_id].name == field.name
        assert field.required or not new[field_id].required
        if field.field_type.is_primitive:
            if field.field_type != new[field_id].field_type:
                promote(field.field_type, new[field_id].field_type)
            assert fits(field.field_type, new[field_id].field_type)
        else:
            assert type(new[field_id].field_type) is type(field.field_type)
    # Rows that are there have no value for what is new. Keys of maps are always there.
    keys: set[int] = set()
    _leaves(after.as_struct(), lambda field: keys.update(_key_ids(field.field_type)))
    fresh = [field for field_id, field in new.items() if field_id not in old]
    assert all(field.optional for field in fresh if field.field_id not in keys)
    assert all(field.field_id > held.highest_field_id for field in fresh)


def _key_ids(kind: IcebergType) -> set[int]:
    return {kind.key_id} if isinstance(kind, MapType) else set()


@given(schemas, schemas)
@settings(max_examples=60)
def test_without_a_problem_there_is_a_place_for_every_value_wanted(held: Schema, wanted: Schema) -> None:
    found = evolved(held, wanted)
    if found.problems:
        return

    by_name = {field.name: field for field in found.schema.fields}
    for field in wanted.fields:
        place = by_name[field.name]
        assert field.required or place.optional
        assert _lacks_required(field, place) or fits(field.field_type, place.field_type)
    assert evolved(found.schema, wanted).changes == ()


def _lacks_required(wanted: NestedField, held: NestedField) -> bool:
    """Whether the table requires a field in this column that is not given at all, as it did before."""
    match wanted.field_type, held.field_type:
        case StructType() as given_type, StructType() as table:
            names = {field.name: field for field in given_type.fields}
            return any(_lacks_required(names[f.name], f) if f.name in names else f.required for f in table.fields)
        case ListType() as given_type, ListType() as table:
            return _lacks_required(given_type.element_field, table.element_field)
        case MapType() as given_type, MapType() as table:
            return _lacks_required(given_type.value_field, table.value_field)
        case _:
            return False
