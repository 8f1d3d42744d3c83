"""Columns of a table, columns filled by the payload, and checks of a given schema against the table.

Names that begin with `_kafka_` are the metadata columns'; a payload may not use them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from airflow_lakestream.core.names import ICEBERG_COLUMNS, RESCUED
from airflow_lakestream.core.printable import nearest
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.ddl import MAX_PRECISION, parse_schema, parse_timed_schema
from airflow_lakestream.tables.schema.types import (
    Path,
    TimeSource,
    arrow_schema,
    build_schema,
    checked,
    fields_from_arrow,
    type_text,
)

METADATA_PREFIX = "_kafka_"

# Pairs of types: each value of the first type fits into the second unchanged.
_LOSSLESS = {
    (iceberg.IntegerType(), iceberg.LongType()),
    (iceberg.IntegerType(), iceberg.DoubleType()),
    (iceberg.FloatType(), iceberg.DoubleType()),
}
TAKEN = "readers of Iceberg keep the name for themselves, and Spark reads no table with such a column"
_CORRECT_SQL = "Correct the statement (CAST, AS), or specify with schema which columns are not null"
# The digits of the greatest value.
_INTEGER_DIGITS = {iceberg.IntegerType(): 10, iceberg.LongType(): 19}


def to_schema(value: str | Schema | pa.Schema, argument: str = "schema") -> Schema:
    """Return the schema of a DDL string, a PyIceberg schema or an Arrow schema (with fresh ids).

    Raises InvalidArgument for any other type, and for a schema that can't be a table's.

    :param argument: the operator's argument with the value, for errors.
    """
    match value:
        case str():
            return parse_schema(value, argument)
        case Schema():
            return checked(value, argument)
        case pa.Schema():
            return build_schema(fields_from_arrow(value, argument), argument)
        case _:
            got = f"{type(value).__module__}.{type(value).__qualname__}"
            raise InvalidArgument(
                argument, f"it is a {got}.", "Give a DDL string, a PyIceberg schema or a pyarrow one."
            )


def to_timed_schema(value: str | Schema | pa.Schema) -> tuple[Schema, Mapping[Path, TimeSource]]:
    """Return the schema of records as `to_schema` does, and the sources of times by path.

    Only a DDL string can have sources of times.
    """
    return parse_timed_schema(value) if isinstance(value, str) else (to_schema(value), {})


def with_metadata(payload: Schema, metadata: pa.Schema) -> Schema:
    """Append the metadata columns, all optional, with ids above the payload's ids.

    Raises InvalidArgument if the payload uses one of their names.
    """
    _refuse_reserved(payload, metadata.names)
    extra = fields_from_arrow(metadata, "metadata_columns", first_id=payload.highest_field_id + 1)
    optional = [field.model_copy(update={"required": False}) for field in extra]
    return Schema(*payload.fields, *optional, identifier_field_ids=payload.identifier_field_ids)


def refuse_taken(schema: Schema, argument: str) -> None:
    """Refuse columns of an Iceberg table with names reserved by readers. Raises InvalidArgument."""
    if clashes := [field.name for field in schema.fields if field.name.lower() in ICEBERG_COLUMNS]:
        raise InvalidArgument(
            argument,
            f"{', '.join(map(repr, clashes))}: {TAKEN}.",
            f'Give the column another name: rename_columns={{"{clashes[0]}": "..."}}, or AS in a statement.',
        )


def with_rescued(payload: Schema) -> Schema:
    """Append the column for unknown fields, unless present. Raises InvalidArgument for a column of another type."""
    present = next((field for field in payload.fields if field.name == RESCUED), None)
    if present is None:
        extra = iceberg.NestedField(payload.highest_field_id + 1, RESCUED, iceberg.StringType(), required=False)
        return Schema(*payload.fields, extra, identifier_field_ids=payload.identifier_field_ids)
    if present.required or present.field_type != iceberg.StringType():
        raise InvalidArgument(
            "schema", f'{RESCUED!r} is {_text(present)}; unknown_fields="rescue" fills a string.', "Leave it out."
        )
    return payload


def payload_schema(
    table: Schema, metadata_names: Collection[str], given: Schema | None = None, *, all_fields: bool = False
) -> pa.Schema:
    """Return the Arrow schema for the decoder of a table: columns to decode, in the table's types.

    Metadata columns are left out. A column is required if the table or `given` requires it. The writer fills columns
    left out with NULL.

    :param given: the user's schema: only its columns and nested fields are decoded; None for all columns of the table.
    :param all_fields: decode the table's columns and nested fields missing in `given`, too.
    """
    wanted = {} if given is None else {field.name: field for field in given.fields}
    fields = []
    for field in table.fields:
        if _is_metadata(field.name, metadata_names):
            continue
        if field.name in wanted:
            fields.append(_stricter(field, wanted[field.name], all_fields=all_fields))
        elif given is None or all_fields:
            fields.append(field)
    return arrow_schema(Schema(*fields))


def check_compatible(
    given: Schema, table: Schema, table_name: str, metadata: pa.Schema, argument: str = "schema"
) -> None:
    """Refuse a given payload schema, or metadata columns, in contradiction to an existing table.

    A table may have more optional columns, and wider types as long as each value of the given type fits without loss.
    A column given as optional contradicts a required one: its nulls would have no place. Raises InvalidArgument.

    :param given: the payload schema, without metadata columns.
    :param metadata: the metadata columns.
    :param argument: the operator's argument that gave the schema, for the error.
    """
    _refuse_reserved(given, metadata.names)
    columns = {field.name: field for field in table.fields if not _is_metadata(field.name, metadata.names)}
    problems = list(_struct_problems(given.as_struct(), iceberg.StructType(*columns.values()), ""))
    if problems:
        first = (
            _CORRECT_SQL if argument == "sql" else "Leave the argument out to take the table's own schema, correct it"
        )
        change = 'or let the table be changed: schema_evolution="add" adds columns, "widen" also widens types.'
        stuck = [f.name for f in given.fields if f.name in columns and _is_stuck(f, columns[f.name])]
        if stuck:
            table_type, given_type = columns[stuck[0]].field_type, given.find_field(stuck[0]).field_type
            change = f"or land in a new table: {type_text(table_type)} can't be widened to {type_text(given_type)}."
        problem = f"it contradicts the table {table_name}: {'; '.join(problems)}."
        raise InvalidArgument(argument, problem, f"{first}, {change}")
    check_metadata(table, table_name, metadata)


def check_made(made: pa.Schema, given: Schema) -> None:
    """Refuse a given payload schema with different columns or narrower types than a statement makes.

    The given schema decides which columns may not be null; a record for which the statement makes NULL there is bad.
    Raises InvalidArgument.

    :param made: the columns that the statement makes.
    """
    unmade = {field.name: field for field in given.fields}
    problems = []
    for field in fields_from_arrow(made, "sql"):
        wanted = unmade.pop(field.name, None)
        if wanted is None:
            near = nearest(field.name, unmade)
            hint = "" if near is None else f"; the schema has {near!r}"
            problems.append(f"the statement makes {field.name!r} ({type_text(field.field_type)}){hint}")
        else:
            # The problems are worded for a table; here the two sides are the statement and the schema.
            problems += [
                text.replace(" in the table", " in the schema").replace("is given as", "is made as")
                for text in _type_problems(field.field_type, wanted.field_type, field.name, nulls=True)
            ]
    problems += [f"the statement does not make {name!r}" for name in unmade]
    if problems:
        raise InvalidArgument(
            "schema",
            f"it contradicts sql: {'; '.join(problems)}.",
            "Leave it out to take the columns that the statement makes, or CAST and name them (AS) as it says.",
        )


def check_metadata(table: Schema, table_name: str, metadata: pa.Schema) -> None:
    """Refuse metadata columns missing or of another type in a table, and unrequested columns required by the table.

    Raises InvalidArgument.
    """
    by_name = {field.name: field for field in table.fields}
    problems = []
    for field in fields_from_arrow(metadata, "metadata_columns"):
        present = by_name.get(field.name)
        if present is None:
            problems.append(f"{field.name!r} ({type_text(field.field_type)}) is not in the table")
        elif not fits(field.field_type, present.field_type):
            problems.append(f"{field.name!r} is {type_text(field.field_type)}, in the table {_text(present)}")
    for name, present in by_name.items():
        if name.startswith(METADATA_PREFIX) and name not in metadata.names and present.required:
            problems.append(f"{name!r} is required in the table and not asked for")
    if problems:
        raise InvalidArgument(
            "metadata_columns",
            f"they contradict the table {table_name}: {'; '.join(problems)}.",
            'Ask for the columns that the table has, or set schema_evolution="add" to add the missing ones.',
        )


def fits(given: iceberg.IcebergType, table: iceberg.IcebergType) -> bool:
    """Return whether every value of the type `given`, nulls aside, fits into `table` unchanged."""
    return not any(_type_problems(given, table, "", nulls=False))


def wider_types(kind: iceberg.IcebergType) -> Iterator[iceberg.IcebergType]:
    """Yield the wider types for a column; each type holds all values of the type before."""
    match kind:
        case iceberg.IntegerType():
            yield iceberg.LongType()
        case iceberg.FloatType():
            yield iceberg.DoubleType()
        case iceberg.DecimalType():
            # The scale stays: files contain the digits alone, and the scale sets the point.
            for precision in range(kind.precision + 1, MAX_PRECISION + 1):
                yield iceberg.DecimalType(precision, kind.scale)
        case _:
            return


def _is_metadata(name: str, metadata_names: Collection[str]) -> bool:
    return name in metadata_names or name.startswith(METADATA_PREFIX)


def _refuse_reserved(payload: Schema, metadata_names: Collection[str]) -> None:
    clashes = [field.name for field in payload.fields if _is_metadata(field.name, metadata_names)]
    if clashes:
        raise InvalidArgument(
            "schema",
            f"{', '.join(map(repr, clashes))}: names of metadata columns, or kept free for them.",
            "Rename the columns, or leave them out and ask for them in metadata_columns.",
        )


def _stricter(field: iceberg.NestedField, given: iceberg.NestedField, *, all_fields: bool) -> iceberg.NestedField:
    """Return a table's field, required also if `given` is, with the fields of `given` only unless `all_fields`."""
    return iceberg.NestedField(
        field.field_id,
        field.name,
        _stricter_type(field.field_type, given.field_type, all_fields=all_fields),
        required=field.required or given.required,
        doc=field.doc,
    )


def _stricter_type(table: iceberg.IcebergType, given: iceberg.IcebergType, *, all_fields: bool) -> iceberg.IcebergType:
    """Return a table's type with nested fields as `_stricter` returns them; `all_fields` as for `_stricter`."""
    stricter = partial(_stricter, all_fields=all_fields)
    match table, given:
        case iceberg.StructType(), iceberg.StructType():
            wanted = {field.name: field for field in given.fields}
            # Fields that the given schema lacks are not decoded, unless all fields are.
            fields = (f for f in table.fields if all_fields or f.name in wanted)
            return iceberg.StructType(*(stricter(f, wanted[f.name]) if f.name in wanted else f for f in fields))
        case iceberg.ListType(), iceberg.ListType():
            element = stricter(table.element_field, given.element_field)
            return iceberg.ListType(element.field_id, element.field_type, element_required=element.required)
        case iceberg.MapType(), iceberg.MapType():
            key = stricter(table.key_field, given.key_field)
            value = stricter(table.value_field, given.value_field)
            return iceberg.MapType(
                key.field_id, key.field_type, value.field_id, value.field_type, value_required=value.required
            )
        case _:
            return table


def _struct_problems(
    given: iceberg.StructType, table: iceberg.StructType, path: str, *, nulls: bool = True
) -> Iterator[str]:
    """Yield the contradictions of a given struct to the table's, in words; `path` ends in a dot, or is empty.

    :param nulls: whether an optional field contradicts a required field of the table.
    """
    by_name = {field.name: field for field in table.fields}
    for field in given.fields:
        present = by_name.pop(field.name, None)
        if present is None:
            near = nearest(field.name, by_name)
            hint = "" if near is None else f", which has {path + near!r}"
            yield f"{path + field.name!r} ({type_text(field.field_type)}) is not in the table{hint}"
        else:
            yield from _field_problems(field, present, path + field.name, nulls=nulls)
    for field in by_name.values():
        if field.required:
            yield f"{path + field.name!r} is required in the table ({type_text(field.field_type)}) and not given"


def _field_problems(given: iceberg.NestedField, table: iceberg.NestedField, path: str, *, nulls: bool) -> Iterator[str]:
    """Yield the contradictions of a given field to the table's, in words; `nulls` as for `_struct_problems`."""
    if nulls and given.optional and table.required:
        yield f"{path!r} is given as {_text(given)}, optional, and is {_text(table)} in the table"
    else:
        yield from _type_problems(given.field_type, table.field_type, path, nulls=nulls)


def _type_problems(given: iceberg.IcebergType, table: iceberg.IcebergType, path: str, *, nulls: bool) -> Iterator[str]:
    """Yield the contradictions of a given type to the table's, in words; `nulls` as for `_struct_problems`."""
    match given, table:
        case iceberg.StructType(), iceberg.StructType():
            yield from _struct_problems(given, table, f"{path}.", nulls=nulls)
        case iceberg.ListType(), iceberg.ListType():
            yield from _field_problems(given.element_field, table.element_field, f"{path}.element", nulls=nulls)
        case iceberg.MapType(), iceberg.MapType():
            yield from _field_problems(given.key_field, table.key_field, f"{path}.key", nulls=nulls)
            yield from _field_problems(given.value_field, table.value_field, f"{path}.value", nulls=nulls)
        case _ if not _primitive_fits(given, table):
            yield f"{path!r} is given as {type_text(given)} and is {type_text(table)} in the table"


def _is_stuck(given: iceberg.NestedField, table: iceberg.NestedField) -> bool:
    """Return whether a table's column can neither hold the values of a given type, nor be widened to it."""
    pair = given.field_type, table.field_type
    if not all(isinstance(side, iceberg.PrimitiveType) for side in pair):
        return False
    return not any(_primitive_fits(pair[0], kind) for kind in (pair[1], *wider_types(pair[1])))


def _primitive_fits(given: iceberg.IcebergType, table: iceberg.IcebergType) -> bool:
    """Return whether each value of a given type fits into the table's type unchanged; types without fields."""
    match given, table:
        case iceberg.DecimalType(), iceberg.DecimalType():
            # The digits before and behind the point must both have room.
            return table.scale >= given.scale and table.precision - table.scale >= given.precision - given.scale
        case ((iceberg.IntegerType() | iceberg.LongType()), iceberg.DecimalType()):
            return table.precision - table.scale >= _INTEGER_DIGITS[given]
        case iceberg.FixedType(), iceberg.BinaryType():
            return True
        case _:
            return given == table or (given, table) in _LOSSLESS


def _text(field: iceberg.NestedField) -> str:
    return type_text(field.field_type) + (" not null" if field.required else "")
