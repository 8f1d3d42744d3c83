"""Columns and layout of Delta tables: Arrow columns as Delta's, the partition of each row, and the order in files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as arrow

from airflow_lakestream.core.names import REFUSED_CHARACTERS
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.required import all_optional, with_required
from airflow_lakestream.tables.schema.types import UNITS, did_you_mean

# Tests of Arrow types, and the types' names in Delta.
_PRIMITIVES = (
    (arrow.is_boolean, "boolean"),
    (arrow.is_int8, "byte"),
    (arrow.is_int16, "short"),
    (arrow.is_int32, "integer"),
    (arrow.is_int64, "long"),
    (arrow.is_float32, "float"),
    (arrow.is_float64, "double"),
    (arrow.is_string, "string"),
    (arrow.is_binary, "binary"),
    (arrow.is_date32, "date"),
)


def delta_fields(schema: Iterable[pa.Field], argument: str = "schema", path: str = "") -> list[dict[str, Any]]:
    """Return columns as Delta's JSON. Raises InvalidArgument for a name or type unknown to Delta."""
    fields, names = [], dict[str, str]()
    for field in schema:
        if bad := sorted(set(REFUSED_CHARACTERS) & set(field.name)):
            raise InvalidArgument(
                argument, f"column {path + field.name!r}: Delta takes no {bad[0]!r} in a name.", "Rename."
            )
        if (twin := names.setdefault(field.name.lower(), field.name)) != field.name:
            problem = f"columns {path + twin!r} and {path + field.name!r} are one name to Delta."
            raise InvalidArgument(argument, problem, "Rename one.")
        kind = _type(field.type, argument, path + field.name)
        fields.append({"name": field.name, "type": kind, "nullable": field.nullable, "metadata": {}})
    return fields


def merged(held: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the columns `held` as Delta's JSON, followed by the further columns of `wanted`, also within structs."""
    further = {column["name"]: column for column in wanted}
    fields = [
        {**column, "type": _merged_type(column["type"], further.pop(column["name"], column)["type"])} for column in held
    ]
    return [*fields, *map(dict, further.values())]


def _merged_type(held: Any, wanted: Any) -> Any:
    """Return a type as Delta's JSON, with the further struct fields of `wanted`."""
    if not isinstance(held, Mapping) or not isinstance(wanted, Mapping):
        return held
    if held["type"] == "struct":
        return {**held, "fields": merged(held["fields"], wanted["fields"])}
    parts = [key for key in ("elementType", "valueType") if key in held]
    return {**held, **{key: _merged_type(held[key], wanted[key]) for key in parts}}


def uses_ntz(fields: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a column or nested field is a timestamp without zone: a table feature."""
    return '"timestamp_ntz"' in json.dumps(list(fields))


def narrow_integers(fields: pa.Schema | pa.DataType, path: str = "") -> Iterator[str]:
    """Yield the columns and struct fields of Delta's types byte and short."""
    for field in fields:
        if arrow.is_int8(field.type) or arrow.is_int16(field.type):
            yield path + field.name
        elif arrow.is_struct(field.type):
            yield from narrow_integers(field.type, f"{path}{field.name}.")


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the table's columns in the table's order; missing columns are NULL.

    Raises InvalidArgument for a column that the table lacks, for a value that does not fit, and for NULL in a
    required column.
    """
    if unknown := [name for name in rows.column_names if name not in schema.names]:
        raise InvalidArgument("rows", f"the table has no column {', '.join(map(repr, unknown))}.")
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            column = pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        else:
            column = rows[field.name]
            if column.type != field.type:
                try:
                    # A safe cast: no value is rounded or made NULL. The error names the column with the unfit value.
                    column = column.cast(all_optional(field.type))
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:  # no value, or no pair of types, fits
                    raise InvalidArgument("rows", f"column {field.name!r}: {e}") from e
        columns.append(with_required(column, field))
    return pa.Table.from_arrays(columns, schema=schema)


def _type(kind: pa.DataType, argument: str, path: str) -> Any:
    """Return a type as Delta's JSON. Raises InvalidArgument for a type unknown to Delta."""
    if arrow.is_struct(kind):
        return {"type": "struct", "fields": delta_fields(kind, argument, f"{path}.")}
    if arrow.is_list(kind):
        element = _type(kind.value_type, argument, f"{path}.element")
        return {"type": "array", "elementType": element, "containsNull": kind.value_field.nullable}
    if arrow.is_map(kind):
        key, value = _type(kind.key_type, argument, f"{path}.key"), _type(kind.item_type, argument, f"{path}.value")
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": kind.item_field.nullable}
    if arrow.is_timestamp(kind) and kind.unit == "us":
        return "timestamp" if kind.tz else "timestamp_ntz"
    if arrow.is_decimal(kind) and kind.precision <= 38:
        return f"decimal({kind.precision},{kind.scale})"
    for test, name in _PRIMITIVES:
        if test(kind):
            return name
    raise InvalidArgument(argument, f"column {path!r}: Delta has no type for {kind}.", "Make it a string, or binary.")


_TERM = re.compile(r"(?P<column>.*?)(?:\s+(?P<way>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?", re.I | re.S)
_PARTITION_TYPES = (
    *(arrow.is_string, arrow.is_int8, arrow.is_int16, arrow.is_int32, arrow.is_int64),
    *(arrow.is_boolean, arrow.is_date32),
)


def check_partitions(schema: pa.Schema | None, partition_by: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns to partition by. Raises InvalidArgument; without a schema only the form is checked."""
    columns = tuple(partition_by or ())
    for column in columns:
        if "(" in column:
            raise InvalidArgument(
                "partition_by",
                f"{column!r}: Delta partitions by columns, not by a transform of one.",
                'Make a column of it with sql, such as CAST(ts AS DATE) AS day, and partition by that: ["day"].',
            )
        if schema is None:
            continue
        if column not in schema.names:
            times = [
                field.name for field in schema if arrow.is_timestamp(field.type) and UNITS.get(column.lower()) == "day"
            ]
            hint = f'With sql, make it of a time: CAST({times[0]} AS DATE) AS "{column}".' if times else ""
            problem = f"there is no column {column!r}; it has {', '.join(schema.names)}."
            raise InvalidArgument("partition_by", problem, hint)
        if not any(test(kind := schema.field(column).type) for test in _PARTITION_TYPES):
            raise InvalidArgument(
                "partition_by", f"{column!r} is {kind}.", "Strings, integers, booleans and dates make partitions here."
            )
    if len(set(columns)) < len(columns):
        raise InvalidArgument("partition_by", f"{', '.join(columns)}: one is there twice.", "Remove one.")
    if schema is not None and columns and len(columns) == len(schema.names):
        raise InvalidArgument("partition_by", "names all columns: none would be left for the files.")
    return columns


def check_layout(schema: pa.Schema, held: Sequence[str], table: str, partition_by: Sequence[str] | None) -> None:
    """Refuse a table with partitions different from `partition_by`, or unsupported here. Raises InvalidArgument.

    :param held: the table's partition columns.
    :param partition_by: None accepts the table's own partitions.
    """
    if partition_by is not None and check_partitions(schema, partition_by) != tuple(held):
        wanted, current = (", ".join(names) or "nothing" for names in (partition_by, held))
        raise InvalidArgument(
            "partition_by",
            f"{wanted} asked for; {table} is partitioned by {current}.",
            "Leave the argument out to keep the table's own.",
        )
    check_partitions(schema, held)


def check_order(schema: pa.Schema | None, sort_order: Sequence[str] | None) -> list[tuple[str, bool, bool]]:
    """Return the terms of an order as tuples: column, whether descending, whether nulls come first.

    Raises InvalidArgument. Without a schema, only the form is checked.
    """
    terms = []
    for text in sort_order or ():
        match = _TERM.fullmatch(text.strip())
        assert match is not None
        column, descending = match["column"].strip(), (match["way"] or "").lower() == "desc"
        if "(" in column:
            raise InvalidArgument("sort_order", f"{text!r}: files of a Delta table are sorted by columns here.")
        if schema is not None and column not in schema.names:
            hint = did_you_mean(column, schema.names)
            raise InvalidArgument("sort_order", f"{text!r}: there is no column {column!r}.", hint)
        if schema is not None and arrow.is_nested(schema.field(column).type):
            raise InvalidArgument("sort_order", f"{text!r}: {schema.field(column).type} has no order.")
        first = (match["nulls"] or "").lower() == "first" or (not match["nulls"] and not descending)
        terms.append((column, descending, first))
    return terms


def rows_by_partition(
    rows: pa.Table, partitions: Sequence[str], order: Sequence[tuple[str, bool, bool]]
) -> Iterator[tuple[Mapping[str, str | None], pa.Table]]:
    """Yield each partition: its values by column, and its rows, sorted and without the partition columns.

    Values are in Delta's text form, None for NULL. An unpartitioned table has a single partition with an empty mapping.
    Raises InvalidArgument for an empty string in a partition column.
    """
    rows = _sorted(rows, order)
    if not partitions:
        yield {}, rows
        return
    for values in rows.select(list(partitions)).group_by(list(partitions)).aggregate([]).to_pylist():
        is_in_partition = None
        for name in partitions:
            value = values[name]
            is_equal = pc.is_null(rows[name]) if value is None else pc.fill_null(pc.equal(rows[name], value), False)
            is_in_partition = is_equal if is_in_partition is None else pc.and_(is_in_partition, is_equal)
        yield (
            {name: _text(name, values[name]) for name in partitions},
            rows.filter(is_in_partition).drop_columns(list(partitions)),
        )


def _sorted(rows: pa.Table, order: Sequence[tuple[str, bool, bool]]) -> pa.Table:
    """Return rows sorted by the terms of `check_order`."""
    if not order:
        return rows
    keys, table = [], dict[str, pa.Array]()
    for number, (column, descending, nulls_first) in enumerate(order):
        # A column of flags before each column decides the place of NULLs.
        table |= {f"n{number}": pc.is_null(rows[column]).cast(pa.int8()), f"v{number}": rows[column]}
        keys.append((f"n{number}", "descending" if nulls_first else "ascending"))
        keys.append((f"v{number}", "descending" if descending else "ascending"))
    return rows.take(pc.sort_indices(pa.table(table), sort_keys=keys))


def _text(column: str, value: object) -> str | None:
    """Return a value of a partition column in Delta's text form. Raises InvalidArgument for an empty string."""
    if value == "":
        raise InvalidArgument(
            "partition_by",
            f"{column!r} has an empty string, which a Delta table reads as NULL in a partition.",
            "Partition by another column, or make it NULL with sql: NULLIF(column, '').",
        )
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else None if value is None else str(value)
