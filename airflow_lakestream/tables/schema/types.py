"""Types of columns: lossless conversion between Arrow and Iceberg, or a refusal by name; text and sources of times.

PyIceberg's own conversion takes unsigned 64-bit integers for longs and unsigned 32-bit ones for ints. `ddl` reads the
text that is written here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import pyarrow as pa
from pyarrow import types as arrow
from pyiceberg import types as iceberg
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from airflow_lakestream.core.printable import nearest
from airflow_lakestream.exceptions import InvalidArgument

# A path goes from a column's name inwards: names of fields, and ELEMENT inside a list.
Path: TypeAlias = tuple[str, ...]
ELEMENT = "element"
# Inside a map no times are made from a source.
MAP_STEP = "entries"


class EpochUnit(StrEnum):
    """Unit of a number since 1970-01-01T00:00Z."""

    SECONDS = "epoch_s"
    MILLISECONDS = "epoch_ms"
    MICROSECONDS = "epoch_us"
    NANOSECONDS = "epoch_ns"

    @property
    def words(self) -> str:
        """The unit in words."""
        return f"{self.name.lower()} since the epoch"

    @property
    def per_second(self) -> int:
        """The number of units in a second."""
        return {self.SECONDS: 1, self.MILLISECONDS: 10**3, self.MICROSECONDS: 10**6, self.NANOSECONDS: 10**9}[self]


@dataclass(frozen=True, slots=True)
class TimeSource:
    """Source of an instant in records: a number (`unit`), or a time without a zone, read as in `zone`.

    Its text follows the type in a schema.
    """

    unit: EpochUnit | None = None
    zone: str = ""

    def __str__(self) -> str:
        if self.unit is not None:
            return f"from {self.unit}"
        return "at time zone '" + self.zone.replace("\\", "\\\\").replace("'", "''") + "'"


# Texts and errors use the first name of each type.
PLAIN_TYPES: dict[str, iceberg.IcebergType] = {
    **dict.fromkeys(("boolean", "bool"), iceberg.BooleanType()),
    **dict.fromkeys(("int", "integer", "tinyint", "smallint", "byte", "short"), iceberg.IntegerType()),
    **dict.fromkeys(("bigint", "long"), iceberg.LongType()),
    **dict.fromkeys(("float", "real"), iceberg.FloatType()),
    "double": iceberg.DoubleType(),
    "date": iceberg.DateType(),
    "time": iceberg.TimeType(),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ltz"), iceberg.TimestamptzType()),
    "timestamp_ntz": iceberg.TimestampType(),
    **dict.fromkeys(("string", "text"), iceberg.StringType()),
    "uuid": iceberg.UUIDType(),
    **dict.fromkeys(("binary", "bytes"), iceberg.BinaryType()),
}
_NO_TIMES: Mapping[Path, TimeSource] = {}
_FIRST_NAME = {kind: name for name, kind in reversed(PLAIN_TYPES.items())}


def build_schema(fields: Iterable[iceberg.NestedField], argument: str = "schema") -> Schema:
    """Return a schema of these fields with fresh field ids; the given ids must differ.

    Raises InvalidArgument for an empty schema, for names equal except in case, and for two columns with the same path.
    """
    struct = iceberg.StructType(*fields)
    _refuse_empty_and_twins(struct, argument)
    try:
        return assign_fresh_schema_ids(Schema(*struct.fields))
    except ValueError as error:
        raise InvalidArgument(argument, f"two columns have one path: {error}.", "Rename the one with a dot.") from error


def checked(schema: Schema, argument: str = "schema") -> Schema:
    """Return `schema` itself. Raises InvalidArgument if empty, or if names of columns are equal except in case."""
    _refuse_empty_and_twins(schema.as_struct(), argument)
    return schema


def schema_text(schema: Schema, times: Mapping[Path, TimeSource] = _NO_TIMES) -> str:
    """Return a schema, with the sources of columns' times by path, as a DDL string for `parse_timed_schema`."""
    return ", ".join(f"{_quote(field.name)} {_column_text(field, times, (field.name,))}" for field in schema.fields)


def type_text(kind: iceberg.IcebergType, times: Mapping[Path, TimeSource] = _NO_TIMES, path: Path = ()) -> str:
    """Return the text of a type, as in a DDL string.

    :param times: the sources of times, by path.
    :param path: the path of the type itself.
    """
    match kind:
        case iceberg.StructType():
            fields = (f"{_quote(f.name)}: {_column_text(f, times, (*path, f.name))}" for f in kind.fields)
            return f"struct<{', '.join(fields)}>"
        case iceberg.ListType():
            return f"array<{_item_text(kind.element_field, times, (*path, ELEMENT))}>"
        case iceberg.MapType():
            return f"map<{type_text(kind.key_type)}, {_item_text(kind.value_field, times, (*path, MAP_STEP))}>"
        case iceberg.DecimalType():
            return f"decimal({kind.precision}, {kind.scale})"
        case _:
            source = f" {times[path]}" if path in times else ""
            return _FIRST_NAME.get(kind, str(kind)) + source


# Usual names of columns for partitions, and the unit of time meant.
UNITS = {
    **dict.fromkeys(("date", "day", "dt", "ds", "event_date"), "day"),
    **{unit: unit for unit in ("hour", "month", "year")},
}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` for the nearest known word, or a list of all known words if no word is near."""
    known = tuple(known)
    near = nearest(word, known)
    return f"Known are {', '.join(known)}." if near is None else f"Did you mean {near!r}?"


def _item_text(field: iceberg.NestedField, times: Mapping[Path, TimeSource], path: Path) -> str:
    return type_text(field.field_type, times, path) + (" not null" if field.required else "")


def _column_text(field: iceberg.NestedField, times: Mapping[Path, TimeSource], path: Path) -> str:
    comment = "" if field.doc is None else " comment '{}'".format(field.doc.replace("\\", "\\\\").replace("'", "''"))
    return _item_text(field, times, path) + comment


def _quote(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else '"{}"'.format(name.replace('"', '""'))


def _refuse_empty_and_twins(struct: iceberg.StructType, argument: str) -> None:
    if not struct.fields:
        raise InvalidArgument(argument, "it has no columns.", "Write at least one, such as 'id bigint not null'.")
    _refuse_twins(struct, argument, "")


def _refuse_twins(kind: iceberg.IcebergType, argument: str, path: str) -> None:
    """Refuse fields of a struct whose names are equal except in case. Raises InvalidArgument."""
    match kind:
        case iceberg.StructType():
            name_by_lower_case: dict[str, str] = {}
            for field in kind.fields:
                name, twin = field.name, name_by_lower_case.get(field.name.lower())
                if twin is not None:
                    problem = "there twice" if twin == name else f"also there as {path + twin!r}, in another case only"
                    raise InvalidArgument(argument, f"column {path + name!r} is {problem}.", "Rename or remove one.")
                name_by_lower_case[name.lower()] = name
                _refuse_twins(field.field_type, argument, f"{path}{name}.")
        case iceberg.ListType():
            _refuse_twins(kind.element_type, argument, f"{path}element.")
        case iceberg.MapType():
            _refuse_twins(kind.key_type, argument, f"{path}key.")
            _refuse_twins(kind.value_type, argument, f"{path}value.")


_Test = Callable[[pa.DataType], bool]


def _is_view(name: str) -> _Test:
    """Return the test for a type unknown to older versions of pyarrow."""
    return getattr(arrow, f"is_{name}", lambda _: False)


def _any(*tests: _Test) -> _Test:
    return lambda kind: any(test(kind) for test in tests)


_PRIMITIVES: tuple[tuple[_Test, iceberg.IcebergType], ...] = (
    (arrow.is_boolean, iceberg.BooleanType()),
    (_any(arrow.is_int8, arrow.is_int16, arrow.is_int32, arrow.is_uint8, arrow.is_uint16), iceberg.IntegerType()),
    (_any(arrow.is_int64, arrow.is_uint32), iceberg.LongType()),
    (_any(arrow.is_float16, arrow.is_float32), iceberg.FloatType()),
    (arrow.is_float64, iceberg.DoubleType()),
    (_any(arrow.is_string, arrow.is_large_string, _is_view("string_view")), iceberg.StringType()),
    (_any(arrow.is_binary, arrow.is_large_binary, _is_view("binary_view")), iceberg.BinaryType()),
    (_any(arrow.is_date32, arrow.is_date64), iceberg.DateType()),
    (lambda kind: arrow.is_time(kind) and kind.unit != "ns", iceberg.TimeType()),
    (lambda kind: arrow.is_timestamp(kind) and kind.unit != "ns" and kind.tz is None, iceberg.TimestampType()),
    (lambda kind: arrow.is_timestamp(kind) and kind.unit != "ns" and kind.tz is not None, iceberg.TimestamptzType()),
    (lambda kind: isinstance(kind, pa.UuidType), iceberg.UUIDType()),
)
_IS_LIST = _any(arrow.is_list, arrow.is_large_list, arrow.is_fixed_size_list, _is_view("list_view"))

_REMEDY = {
    arrow.is_null: "Give it a type that has values.",
    arrow.is_uint64: "Use int64, or decimal128(20, 0) for the whole range.",
    lambda kind: arrow.is_timestamp(kind) or arrow.is_time(kind): "Use microseconds: timestamp('us') or time64('us').",
    arrow.is_decimal: "Use a precision of 1 to 38 and a scale of 0 to the precision.",
}


def fields_from_arrow(schema: pa.Schema, argument: str, first_id: int = 1) -> list[iceberg.NestedField]:
    """Return Arrow fields as Iceberg fields with new ids. Raises InvalidArgument for a type unknown to Iceberg."""
    return _ArrowConverter(argument, first_id).fields(schema, "")


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return an Iceberg schema as a plain Arrow schema: nullability kept, no field ids, 32-bit offsets.

    PyIceberg's own conversion makes large strings and lists. Its Parquet writer takes both alike, and the plain ones
    need half the offsets; a batch never comes near the 2 GiB that they can address.
    """
    return pa.schema([_plain(field).remove_metadata() for field in schema_to_pyarrow(schema, include_field_ids=False)])


def arrow_schema_with_ids(schema: Schema, *, large: bool = False) -> pa.Schema:
    """Return the Arrow schema of a data file, with field ids; `large`: with 64-bit offsets, as PyIceberg makes it."""
    full = schema_to_pyarrow(schema, include_field_ids=True)
    return full if large else pa.schema([_plain(field) for field in full])


class _ArrowConverter:
    def __init__(self, argument: str, first_id: int) -> None:
        self._argument = argument
        self._ids = itertools.count(first_id)

    def fields(self, fields: Iterable[pa.Field], path: str) -> list[iceberg.NestedField]:
        return [self._field(field, path) for field in fields]

    def _field(self, field: pa.Field, path: str) -> iceberg.NestedField:
        doc = (field.metadata or {}).get(b"doc")
        kind = self._type(field.type, path + field.name)
        return iceberg.NestedField(
            next(self._ids), field.name, kind, required=not field.nullable, doc=doc.decode() if doc else None
        )

    def _type(self, kind: pa.DataType, path: str) -> iceberg.IcebergType:
        if arrow.is_dictionary(kind):
            return self._type(kind.value_type, path)
        if arrow.is_struct(kind):
            return iceberg.StructType(*self.fields(kind, f"{path}."))
        if _IS_LIST(kind):
            element = self._type(kind.value_type, f"{path}.element")
            return iceberg.ListType(next(self._ids), element, element_required=not kind.value_field.nullable)
        if arrow.is_map(kind):
            key = self._type(kind.key_type, f"{path}.key")
            value = self._type(kind.item_type, f"{path}.value")
            required = not kind.item_field.nullable
            return iceberg.MapType(next(self._ids), key, next(self._ids), value, value_required=required)
        return self._primitive(kind, path)

    def _primitive(self, kind: pa.DataType, path: str) -> iceberg.IcebergType:
        for test, primitive in _PRIMITIVES:
            if test(kind):
                return primitive
        if arrow.is_fixed_size_binary(kind) and kind.byte_width > 0:
            return iceberg.FixedType(kind.byte_width)
        if arrow.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
            return iceberg.DecimalType(kind.precision, kind.scale)
        remedy = next((text for test, text in _REMEDY.items() if test(kind)), "")
        raise InvalidArgument(self._argument, f"column {path!r}: Iceberg has no type for Arrow's {kind}.", remedy)


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return Arrow's type with 32-bit offsets in place of 64-bit offsets."""
    if arrow.is_large_string(kind):
        return pa.string()
    if arrow.is_large_binary(kind):
        return pa.binary()
    if arrow.is_large_list(kind):
        return pa.list_(_plain(kind.value_field))
    if arrow.is_map(kind):
        return pa.map_(_plain(kind.key_field), _plain(kind.item_field))
    if arrow.is_struct(kind):
        return pa.struct([_plain(field) for field in kind])
    return kind


def all_optional(kind: iceberg.IcebergType) -> iceberg.IcebergType:
    """Return the type with all fields optional: PyIceberg can't read lists of structs without a required field."""
    match kind:
        case iceberg.StructType():
            fields = (
                item.model_copy(update={"required": False, "field_type": all_optional(item.field_type)})
                for item in kind.fields
            )
            return iceberg.StructType(*fields)
        case iceberg.ListType():
            return iceberg.ListType(kind.element_id, all_optional(kind.element_type), element_required=False)
        case iceberg.MapType():
            value = all_optional(kind.value_type)
            return iceberg.MapType(kind.key_id, all_optional(kind.key_type), kind.value_id, value, value_required=False)
        case _:
            return kind


def least_version(kind: iceberg.IcebergType) -> int:
    """Return the least format version of Iceberg with the type."""
    match kind:
        case iceberg.StructType():
            inside = [item.field_type for item in kind.fields]
        case iceberg.ListType():
            inside = [kind.element_type]
        case iceberg.MapType():
            inside = [kind.key_type, kind.value_type]
        case _:
            inside = []
    return max([int(kind.minimum_format_version()), *map(least_version, inside)])
