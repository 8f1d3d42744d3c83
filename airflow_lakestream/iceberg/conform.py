"""Rows brought into the Arrow schema of a table's data files, field ids included, losing nothing on the way."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types as arrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.iceberg.arrow_types import arrow_schema_with_ids, fields_from_arrow
from airflow_lakestream.iceberg.schema import fits
from airflow_lakestream.iceberg.type_text import type_text


def conform(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return the table's columns in its order: cast where that is lossless, null where the rows have none.

    A column in the types of `arrow_schema` is taken as it is, without a copy; any other is cast to PyIceberg's large
    types, which hold all that strings of other engines can.
    """
    known = {field.name for field in schema.fields}
    strangers = [name for name in rows.column_names if name not in known]
    if strangers:
        raise InvalidArgument("rows", f"the table has no column {', '.join(map(repr, strangers))}.")
    given = {field.name: field for field in fields_from_arrow(rows.schema, "rows")}
    plain, large = arrow_schema_with_ids(schema), arrow_schema_with_ids(schema, large=True)
    columns, fields = [], []
    for at, field in enumerate(schema.fields):
        if field.name not in given:
            column, target = pa.chunked_array([pa.nulls(rows.num_rows, plain.field(at).type)]), plain.field(at)
        else:
            column, target = _cast(rows.column(field.name), given[field.name], field, plain.field(at), large.field(at))
        for chunk in column.chunks:
            _refuse_nulls(chunk, target, field.name)
        columns.append(column)
        fields.append(target)
    # The ids come with the schema, not with a cast: Arrow holds types equal that differ in metadata only.
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _cast(
    column: pa.ChunkedArray, given: NestedField, wanted: NestedField, plain: pa.Field, large: pa.Field
) -> tuple[pa.ChunkedArray, pa.Field]:
    if column.type == plain.type:
        return column, plain
    # Arrow's cast alone would parse strings, and drop members of a struct that the target lacks.
    if not fits(given.field_type, wanted.field_type):
        problem = (
            f"column {wanted.name!r} is {type_text(given.field_type)}, in the table {type_text(wanted.field_type)}."
        )
        raise InvalidArgument("rows", problem)
    try:
        return column.cast(large.type), large
    except pa.ArrowInvalid as error:
        raise InvalidArgument("rows", f"column {wanted.name!r}: {error}") from error


def _refuse_nulls(array: pa.Array, field: pa.Field, path: str) -> None:
    """Refuse nulls that the field, or a field in it, does not take; Parquet would make empty lists of some."""
    if not field.nullable and array.null_count:
        raise InvalidArgument("rows", f"column {path!r} is required and has {array.null_count} nulls.")
    if not _has_required(field.type):
        return
    present = array.drop_null()
    if arrow.is_struct(field.type):
        for at, child in enumerate(field.type):
            _refuse_nulls(present.flatten()[at], child, f"{path}.{child.name}")
    elif arrow.is_list(field.type) or arrow.is_large_list(field.type):
        _refuse_nulls(present.flatten(), field.type.value_field, f"{path}.element")
    elif arrow.is_map(field.type):
        first, last = (present.offsets[0].as_py(), present.offsets[-1].as_py())
        _refuse_nulls(present.items[first:last], field.type.item_field, f"{path}.value")


def _has_required(kind: pa.DataType) -> bool:
    if arrow.is_map(kind):
        return not kind.item_field.nullable or _has_required(kind.item_type)
    if arrow.is_nested(kind):
        children = (kind.field(at) for at in range(kind.num_fields))
        return any(not child.nullable or _has_required(child.type) for child in children)
    return False
