"""Rows conformed to the Arrow schema of a table's data files, field ids included, without loss."""

from __future__ import annotations

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.columns import fits
from airflow_lakestream.tables.schema.required import all_optional, with_required
from airflow_lakestream.tables.schema.types import arrow_schema_with_ids, fields_from_arrow, type_text


def conform(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return rows with the table's columns in order: cast if lossless, NULL if missing. Raises InvalidArgument.

    InvalidArgument also refuses rows with a column that the table lacks. A column in the types of `arrow_schema` is
    not copied. Any other column is cast to PyIceberg's large types, which hold all strings of other engines.
    """
    names = {field.name for field in schema.fields}
    strangers = [name for name in rows.column_names if name not in names]
    if strangers:
        raise InvalidArgument("rows", f"the table has no column {', '.join(map(repr, strangers))}.")
    given_fields = {field.name: field for field in fields_from_arrow(rows.schema, "rows")}
    plain, large = arrow_schema_with_ids(schema), arrow_schema_with_ids(schema, large=True)
    columns, fields = [], []
    for position, field in enumerate(schema.fields):
        if field.name not in given_fields:
            target = plain.field(position)
            column = pa.chunked_array([pa.nulls(rows.num_rows, target.type)])
        else:
            targets = plain.field(position), large.field(position)
            column, target = _cast(rows.column(field.name), given_fields[field.name], field, *targets)
        columns.append(with_required(column, target))
        fields.append(target)
    # The ids come with the schema, not with a cast: to Arrow, types that differ in metadata only are equal.
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _cast(
    column: pa.ChunkedArray, source: NestedField, target: NestedField, plain: pa.Field, large: pa.Field
) -> tuple[pa.ChunkedArray, pa.Field]:
    """Return a column in a type of the table's field, with the Arrow field of that type. Raises InvalidArgument.

    :param source: the column's field in the rows.
    :param target: the column's field in the table.
    :param plain: the field in a type of `arrow_schema`; a column of this type is returned unchanged.
    :param large: the field in PyIceberg's large type, to which any other column is cast.
    """
    if column.type == plain.type:
        return column, plain
    # Arrow's cast alone would parse strings, and drop members of a struct that the target lacks.
    if not fits(source.field_type, target.field_type):
        problem = (
            f"column {target.name!r} is {type_text(source.field_type)}, in the table {type_text(target.field_type)}."
        )
        raise InvalidArgument("rows", problem)
    try:
        return column.cast(all_optional(large.type)), large
    except pa.ArrowInvalid as error:
        raise InvalidArgument("rows", f"column {target.name!r}: {error}") from error
