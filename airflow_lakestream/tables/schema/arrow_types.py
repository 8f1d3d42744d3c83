"""Arrow types to Iceberg types and back, lossless or refused by name.

PyIceberg's own conversion takes unsigned 64-bit integers for longs and unsigned 32-bit ones for ints.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pyarrow as pa
from pyarrow import types as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
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

_Test = Callable[[pa.DataType], bool]


def _is_view(name: str) -> _Test:
    """Test for a type that not every supported pyarrow has."""
    return getattr(arrow, f"is_{name}", lambda _: False)


def _any(*tests: _Test) -> _Test:
    return lambda kind: any(test(kind) for test in tests)


_PRIMITIVES: tuple[tuple[_Test, IcebergType], ...] = (
    (arrow.is_boolean, BooleanType()),
    (_any(arrow.is_int8, arrow.is_int16, arrow.is_int32, arrow.is_uint8, arrow.is_uint16), IntegerType()),
    (_any(arrow.is_int64, arrow.is_uint32), LongType()),
    (_any(arrow.is_float16, arrow.is_float32), FloatType()),
    (arrow.is_float64, DoubleType()),
    (_any(arrow.is_string, arrow.is_large_string, _is_view("string_view")), StringType()),
    (_any(arrow.is_binary, arrow.is_large_binary, _is_view("binary_view")), BinaryType()),
    (_any(arrow.is_date32, arrow.is_date64), DateType()),
    (lambda kind: arrow.is_time(kind) and kind.unit != "ns", TimeType()),
    (lambda kind: arrow.is_timestamp(kind) and kind.unit != "ns" and kind.tz is None, TimestampType()),
    (lambda kind: arrow.is_timestamp(kind) and kind.unit != "ns" and kind.tz is not None, TimestamptzType()),
    (lambda kind: isinstance(kind, pa.UuidType), UUIDType()),
)
_IS_LIST = _any(arrow.is_list, arrow.is_large_list, arrow.is_fixed_size_list, _is_view("list_view"))

_REMEDY = {
    arrow.is_uint64: "Use int64, or decimal128(20, 0) for the whole range.",
    lambda kind: arrow.is_timestamp(kind) or arrow.is_time(kind): "Use microseconds: timestamp('us') or time64('us').",
    arrow.is_decimal: "Use a precision of 1 to 38 and a scale of 0 to the precision.",
}


def fields_from_arrow(schema: pa.Schema, argument: str, first_id: int = 1) -> list[NestedField]:
    """Turn Arrow fields into Iceberg ones with ids of their own; what Iceberg has no place for is refused."""
    return _Converter(argument, first_id).fields(schema, "")


def arrow_schema(schema: Schema) -> pa.Schema:
    """Turn an Iceberg schema into a plain Arrow one: nullability kept, no field ids, 32-bit offsets.

    PyIceberg's own answer has large strings and lists. Its Parquet writer takes both alike, and the plain ones need
    half the offsets; a batch never comes near the 2 GiB that they can address.
    """
    return pa.schema([_plain(field).remove_metadata() for field in schema_to_pyarrow(schema, include_field_ids=False)])


def arrow_schema_with_ids(schema: Schema, *, large: bool = False) -> pa.Schema:
    """Turn an Iceberg schema into the Arrow schema of a data file, its fields marked with their ids."""
    full = schema_to_pyarrow(schema, include_field_ids=True)
    return full if large else pa.schema([_plain(field) for field in full])


class _Converter:
    def __init__(self, argument: str, first_id: int) -> None:
        self._argument = argument
        self._ids = itertools.count(first_id)

    def fields(self, fields: Iterable[pa.Field], path: str) -> list[NestedField]:
        return [self._field(field, path) for field in fields]

    def _field(self, field: pa.Field, path: str) -> NestedField:
        doc = (field.metadata or {}).get(b"doc")
        kind = self._type(field.type, path + field.name)
        return NestedField(
            next(self._ids), field.name, kind, required=not field.nullable, doc=doc.decode() if doc else None
        )

    def _type(self, kind: pa.DataType, path: str) -> IcebergType:
        if arrow.is_dictionary(kind):
            return self._type(kind.value_type, path)
        if arrow.is_struct(kind):
            return StructType(*self.fields(kind, f"{path}."))
        if _IS_LIST(kind):
            element = self._type(kind.value_type, f"{path}.element")
            return ListType(next(self._ids), element, element_required=not kind.value_field.nullable)
        if arrow.is_map(kind):
            key = self._type(kind.key_type, f"{path}.key")
            value = self._type(kind.item_type, f"{path}.value")
            required = not kind.item_field.nullable
            return MapType(next(self._ids), key, next(self._ids), value, value_required=required)
        return self._primitive(kind, path)

    def _primitive(self, kind: pa.DataType, path: str) -> IcebergType:
        for test, primitive in _PRIMITIVES:
            if test(kind):
                return primitive
        if arrow.is_fixed_size_binary(kind) and kind.byte_width > 0:
            return FixedType(kind.byte_width)
        if arrow.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
            return DecimalType(kind.precision, kind.scale)
        remedy = next((text for test, text in _REMEDY.items() if test(kind)), "")
        raise InvalidArgument(self._argument, f"column {path!r}: Iceberg has no type for Arrow's {kind}.", remedy)


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
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
