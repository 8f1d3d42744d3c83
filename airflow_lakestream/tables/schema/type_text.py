"""The names that types go by, schemas written as text, and what no schema may have.

`ddl` reads what this module writes. Imports pyiceberg only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    BinaryType,
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
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from airflow_lakestream.exceptions import InvalidArgument

# The first name of each type is the one that texts and errors are written in.
PLAIN_TYPES: dict[str, IcebergType] = {
    **dict.fromkeys(("boolean", "bool"), BooleanType()),
    **dict.fromkeys(("int", "integer", "tinyint", "smallint", "byte", "short"), IntegerType()),
    **dict.fromkeys(("bigint", "long"), LongType()),
    **dict.fromkeys(("float", "real"), FloatType()),
    "double": DoubleType(),
    "date": DateType(),
    "time": TimeType(),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ltz"), TimestamptzType()),
    "timestamp_ntz": TimestampType(),
    **dict.fromkeys(("string", "text"), StringType()),
    "uuid": UUIDType(),
    **dict.fromkeys(("binary", "bytes"), BinaryType()),
}
_FIRST_NAME = {kind: name for name, kind in reversed(PLAIN_TYPES.items())}


def build_schema(fields: Iterable[NestedField], argument: str = "schema") -> Schema:
    """Make a schema with fresh field ids out of fields whose ids are all different."""
    struct = StructType(*fields)
    _refuse_empty_and_twins(struct, argument)
    try:
        return assign_fresh_schema_ids(Schema(*struct.fields))
    except ValueError as error:
        raise InvalidArgument(argument, f"two columns have one path: {error}.", "Rename the one with a dot.") from error


def checked(schema: Schema, argument: str = "schema") -> Schema:
    """Return `schema`, or refuse one that is empty or has two columns that some engine takes for the same."""
    _refuse_empty_and_twins(schema.as_struct(), argument)
    return schema


def schema_text(schema: Schema) -> str:
    """Write a schema as the DDL string that parses into it."""
    return ", ".join(f"{_quote(field.name)} {_column_text(field)}" for field in schema.fields)


def type_text(kind: IcebergType) -> str:
    """Write a type as it stands in a DDL string."""
    match kind:
        case StructType():
            return "struct<" + ", ".join(f"{_quote(f.name)}: {_column_text(f)}" for f in kind.fields) + ">"
        case ListType():
            return f"array<{_item_text(kind.element_field)}>"
        case MapType():
            return f"map<{type_text(kind.key_type)}, {_item_text(kind.value_field)}>"
        case DecimalType():
            return f"decimal({kind.precision}, {kind.scale})"
        case _:
            return _FIRST_NAME.get(kind, str(kind))


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the nearest of the known words, or None where none is near."""
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` for the nearest of the known words, or all of them where none is near."""
    known = tuple(known)
    near = nearest(word, known)
    return f"Known are {', '.join(known)}." if near is None else f"Did you mean {near!r}?"


def _item_text(field: NestedField) -> str:
    return type_text(field.field_type) + (" not null" if field.required else "")


def _column_text(field: NestedField) -> str:
    comment = "" if field.doc is None else " comment '{}'".format(field.doc.replace("\\", "\\\\").replace("'", "''"))
    return _item_text(field) + comment


def _quote(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else '"{}"'.format(name.replace('"', '""'))


def _refuse_empty_and_twins(struct: StructType, argument: str) -> None:
    if not struct.fields:
        raise InvalidArgument(argument, "it has no columns.", "Write at least one, such as 'id bigint not null'.")
    _refuse_twins(struct, argument, "")


def _refuse_twins(kind: IcebergType, argument: str, path: str) -> None:
    match kind:
        case StructType():
            seen: dict[str, str] = {}
            for field in kind.fields:
                name, twin = field.name, seen.get(field.name.lower())
                if twin is not None:
                    how = "there twice" if twin == name else f"also there as {path + twin!r}, in another case only"
                    raise InvalidArgument(argument, f"column {path + name!r} is {how}.", "Rename or remove one.")
                seen[name.lower()] = name
                _refuse_twins(field.field_type, argument, f"{path}{name}.")
        case ListType():
            _refuse_twins(kind.element_type, argument, f"{path}element.")
        case MapType():
            _refuse_twins(kind.key_type, argument, f"{path}key.")
            _refuse_twins(kind.value_type, argument, f"{path}value.")
