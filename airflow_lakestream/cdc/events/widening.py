"""Common types for a column whose type has changed in the database."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as t

_WIDER = {(pa.int32(), pa.int64()): pa.int64(), (pa.float32(), pa.float64()): pa.float64()}


def joined_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the common type of two types, or None without a common type.

    A common type holds all values of both types. The common type of int32 and int64 is int64, of float32 and float64
    float64, and of two decimals with the same scale the type with the greater precision. A struct gets the fields of
    both structs. Lists, and maps with the same type of keys, are joined by their items. All other types have a common
    type only if they are equal.
    """
    if first == second:
        return first
    if t.is_decimal(first) and t.is_decimal(second):
        return max(first, second, key=lambda kind: kind.precision) if first.scale == second.scale else None
    if t.is_struct(first) and t.is_struct(second):
        fields = joined_fields(first, second)
        return None if fields is None else pa.struct(fields)
    if t.is_list(first) and t.is_list(second):
        item = _joined_field(first.value_field, second.value_field)
        return None if item is None else pa.list_(item)
    if t.is_map(first) and t.is_map(second) and first.key_type == second.key_type:
        item = _joined_field(first.item_field, second.item_field)
        return None if item is None else pa.map_(first.key_type, item)
    return _WIDER.get((first, second)) or _WIDER.get((second, first))


def joined_fields(first: Iterable[pa.Field], second: Iterable[pa.Field]) -> list[pa.Field] | None:
    """Return the fields of two structs, in the order of the first; None if a field of both has no common type."""
    fields = {field.name: field for field in first}
    for new in second:
        old = fields.get(new.name)
        joined = new if old is None else _joined_field(old, new)
        if joined is None:
            return None
        fields[new.name] = joined
    return list(fields.values())


def _joined_field(first: pa.Field, second: pa.Field) -> pa.Field | None:
    kind = joined_type(first.type, second.type)
    return None if kind is None else pa.field(first.name, kind, first.nullable or second.nullable)


def grown(schema: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema with the columns of `new` added, and with types wide enough for both schemas.

    A column, or a field in it, whose types have no common type keeps its type in `schema`.

    :param new: the columns to add.
    """
    fields = [
        field.with_type(_grown_type(field.type, new.field(field.name).type)) if field.name in new.names else field
        for field in schema
    ]
    return pa.schema([*fields, *(field for field in new if field.name not in schema.names)])


def _grown_type(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    """Return the type with missing fields added; fields without a common type keep the old type."""
    if t.is_struct(old) and t.is_struct(new):
        return pa.struct(list(grown(pa.schema(list(old)), pa.schema(list(new)))))
    if t.is_list(old) and t.is_list(new):
        return pa.list_(old.value_field.with_type(_grown_type(old.value_type, new.value_type)))
    if t.is_map(old) and t.is_map(new):
        return pa.map_(old.key_type, old.item_field.with_type(_grown_type(old.item_type, new.item_type)))
    return joined_type(old, new) or old
