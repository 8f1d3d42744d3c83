"""Any nesting, any nulls: what is written comes back, or is refused for a required part that is NULL by itself."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.required import all_optional, with_required

LEAVES = {
    pa.int64(): st.integers(-5, 5),
    pa.string(): st.text("ab", max_size=3),
    pa.bool_(): st.booleans(),
    pa.binary(2): st.binary(min_size=2, max_size=2),
}


@st.composite
def fields(draw: st.DrawFn, name: str = "c", depth: int = 3) -> pa.Field:
    shape = draw(st.sampled_from(["leaf"] + ["struct", "struct", "list", "large_list", "map"] * (depth > 0)))
    if shape == "leaf":
        kind = draw(st.sampled_from(list(LEAVES)))
    elif shape == "struct":
        kind = pa.struct([draw(fields(f"f{at}", depth - 1)) for at in range(draw(st.integers(1, 2)))])
    elif shape == "map":
        kind = pa.map_(pa.string(), draw(fields("value", depth - 1)))
    else:
        kind = (pa.list_ if shape == "list" else pa.large_list)(draw(fields("element", depth - 1)))
    return pa.field(name, kind, nullable=draw(st.booleans()))


def values_of(field: pa.Field, nulls: str) -> st.SearchStrategy[Any]:
    """Return values of a field; `nulls` are "allowed" ones, or "anywhere"."""
    kind = field.type
    if pa.types.is_struct(kind):
        inner: Any = st.fixed_dictionaries({child.name: values_of(child, nulls) for child in kind})
    elif pa.types.is_map(kind):
        inner = st.dictionaries(st.text("xyz", min_size=1, max_size=2), values_of(kind.item_field, nulls), max_size=2)
        inner = inner.map(lambda pairs: list(pairs.items()))
    elif pa.types.is_nested(kind):
        inner = st.lists(values_of(kind.value_field, nulls), max_size=2)
    else:
        inner = LEAVES[kind]
    return st.none() | inner if field.nullable or nulls == "anywhere" else inner


def lacks(value: Any, field: pa.Field) -> bool:
    """Tell whether something required is NULL though all around it is there."""
    kind = field.type
    if value is None:
        return not field.nullable
    if pa.types.is_struct(kind):
        return any(lacks(value[child.name], child) for child in kind)
    if pa.types.is_map(kind):
        return any(lacks(item, kind.item_field) for _, item in value)
    return pa.types.is_nested(kind) and any(lacks(item, kind.value_field) for item in value)


@st.composite
def columns(draw: st.DrawFn, nulls: str) -> tuple[pa.Field, list[Any], int, int]:
    field = draw(fields())
    values = draw(st.lists(values_of(field, nulls), max_size=5))
    start = draw(st.integers(0, len(values)))
    return field, values, start, draw(st.integers(start, len(values)))


def as_decoders_have_it(field: pa.Field, values: list[Any]) -> pa.ChunkedArray:
    # With NULL below NULL, which is how most arrays come.
    loose = pa.array(values, all_optional(field.type))
    return pa.chunked_array([_nulls_below(loose, field.type)])


def _nulls_below(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_struct(kind):
        children = [_nulls_below(child, field.type) for child, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(array.type), mask=array.is_null())
    return array


@given(columns("allowed"))
def test_what_is_allowed_comes_back_from_the_file(column: tuple[pa.Field, list[Any], int, int]) -> None:
    field, values, start, end = column
    given_values = as_decoders_have_it(field, values).slice(start, end - start)

    made = with_required(given_values, field)

    made.validate(full=True)
    assert made.type == field.type
    assert made.to_pylist() == values[start:end]
    file = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_arrays([made], schema=pa.schema([field])), file)
    read = pq.read_table(pa.BufferReader(file.getvalue()))
    assert read.schema.field(0).type == field.type
    assert read["c"].to_pylist() == values[start:end]
    # A file that is read is written anew, by a replace or a mirror.
    assert with_required(read["c"], field).to_pylist() == values[start:end]


@given(columns("anywhere"))
def test_what_is_required_and_null_by_itself_is_refused(column: tuple[pa.Field, list[Any], int, int]) -> None:
    field, values, start, end = column
    given_values = as_decoders_have_it(field, values).slice(start, end - start)

    if any(lacks(value, field) for value in values[start:end]):
        with pytest.raises(InvalidArgument, match="is required and has"):
            with_required(given_values, field)
    else:
        assert with_required(given_values, field).to_pylist() == values[start:end]


def test_a_column_without_anything_required_is_taken_as_it_is() -> None:
    column = pa.chunked_array([[{"a": 1}, None]])
    assert with_required(column, pa.field("c", column.type)) is column
