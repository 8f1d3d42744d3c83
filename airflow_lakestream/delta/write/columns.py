"""Arrow columns as Delta columns, and rows conformed to a table's columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types as arrow

from airflow_lakestream.core.names import REFUSED_CHARACTERS
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.required import all_optional, with_required

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
    fields, taken = [], dict[str, str]()
    for field in schema:
        if bad := sorted(set(REFUSED_CHARACTERS) & set(field.name)):
            raise InvalidArgument(
                argument, f"column {path + field.name!r}: Delta takes no {bad[0]!r} in a name.", "Rename."
            )
        if (twin := taken.setdefault(field.name.lower(), field.name)) != field.name:
            problem = f"columns {path + twin!r} and {path + field.name!r} are one name to Delta."
            raise InvalidArgument(argument, problem, "Rename one.")
        kind = _type(field.type, argument, path + field.name)
        fields.append({"name": field.name, "type": kind, "nullable": field.nullable, "metadata": {}})
    return fields


def merged(held: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return Delta's JSON of `held` followed by the further columns of `wanted`, also within structs."""
    new = {column["name"]: column for column in wanted}
    fields = [
        {**column, "type": _merged_type(column["type"], new.pop(column["name"], column)["type"])} for column in held
    ]
    return [*fields, *map(dict, new.values())]


def _merged_type(held: Any, wanted: Any) -> Any:
    if not isinstance(held, Mapping) or not isinstance(wanted, Mapping):
        return held
    if held["type"] == "struct":
        return {**held, "fields": merged(held["fields"], wanted["fields"])}
    inside = [key for key in ("elementType", "valueType") if key in held]
    return {**held, **{key: _merged_type(held[key], wanted[key]) for key in inside}}


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
    if strangers := [name for name in rows.column_names if name not in schema.names]:
        raise InvalidArgument("rows", f"the table has no column {', '.join(map(repr, strangers))}.")
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            column = pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        else:
            column = rows[field.name]
            if column.type != field.type:
                try:
                    column = column.cast(all_optional(field.type))
                # Cast safely: what does not fit is refused by the column's name, never rounded or made NULL.
                except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
                    raise InvalidArgument("rows", f"column {field.name!r}: {e}") from e
        columns.append(with_required(column, field))
    return pa.Table.from_arrays(columns, schema=schema)


def _type(kind: pa.DataType, argument: str, path: str) -> Any:
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
