"""Common types for a column with a changed type in the database."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.types as t

_WIDER = {(pa.int32(), pa.int64()): pa.int64(), (pa.float32(), pa.float64()): pa.float64()}


def joined_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the common type of two types, or None without a common type.

    A common type holds all values of both. The common type of int32 and int64 is int64, of float32 and float64 it is
    float64, of two decimals with the same scale it is the one with the greater precision. A struct gets the fields of
    both. Lists, and maps with the same type of keys, are joined by their items. All other types have a common type only
    if they are equal.
    """
    if one == other:
        return one
    if t.is_decimal(one) and t.is_decimal(other):
        return max(one, other, key=lambda kind: kind.precision) if one.scale == other.scale else None
    if t.is_struct(one) and t.is_struct(other):
        fields = joined_fields(one, other)
        return None if fields is None else pa.struct(fields)
    if t.is_list(one) and t.is_list(other):
        item = _joined_field(one.value_field, other.value_field)
        return None if item is None else pa.list_(item)
    if t.is_map(one) and t.is_map(other) and one.key_type == other.key_type:
        item = _joined_field(one.item_field, other.item_field)
        return None if item is None else pa.map_(one.key_type, item)
    return _WIDER.get((one, other)) or _WIDER.get((other, one))


def joined_fields(one: Iterable[pa.Field], other: Iterable[pa.Field]) -> list[pa.Field] | None:
    """Return the fields of two structs, in the order of the first; None if a field of both has no common type."""
    fields = {field.name: field for field in one}
    for field in other:
        there = fields.get(field.name)
        joined = field if there is None else _joined_field(there, field)
        if joined is None:
            return None
        fields[field.name] = joined
    return list(fields.values())


def _joined_field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    kind = joined_type(one.type, other.type)
    return None if kind is None else pa.field(one.name, kind, one.nullable or other.nullable)


def grown(schema: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return the schema with missing columns added, and with wider types.

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
