"""Required columns and fields: NULL is refused, but stays writable below a NULL parent.

A struct may be NULL though a field in it is required: `st struct<a: bigint not null>`. Parquet can store this, and
Arrow too, but most arrays then hold NULL for the field as well, which Arrow's writer of Parquet refuses. So such a
field is passed without its bitmap of NULLs: below a NULL no reader looks at the field's values.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as arrow

from airflow_lakestream.exceptions import InvalidArgument

_Mask = npt.NDArray[np.bool_]


def with_required(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Return a column in writable form, with the field's type; the old type may differ in required fields.

    Raises InvalidArgument if a required value is NULL and all its parents are not.
    """
    if column.type == field.type and field.nullable and not _requires(field.type):
        return column
    return pa.chunked_array([_settled(chunk, field, field.name, None) for chunk in column.chunks], field.type)


def cast_to(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Return a column with the field's type, even if Arrow's cast refuses a NULL struct around a required field.

    Raises InvalidArgument as `with_required` does, and ArrowInvalid for values that the type can't hold.
    """
    return column if column.type == field.type else with_required(column.cast(all_optional(field.type)), field)


def all_optional(kind: pa.DataType) -> pa.DataType:
    """Return the type with all fields optional: a cast to the new type does not check for NULL."""
    if arrow.is_struct(kind):
        return pa.struct([_optional(field) for field in kind])
    if arrow.is_list(kind):
        return pa.list_(_optional(kind.value_field))
    if arrow.is_large_list(kind):
        return pa.large_list(_optional(kind.value_field))
    if arrow.is_map(kind):
        return pa.map_(kind.key_field, _optional(kind.item_field))
    return kind


def _optional(field: pa.Field) -> pa.Field:
    return field.with_type(all_optional(field.type)).with_nullable(True)


def _requires(kind: pa.DataType) -> bool:
    """Return whether values of this type have required parts. Keys of maps don't count: Arrow lets no key be NULL."""
    if arrow.is_map(kind):
        return not kind.item_field.nullable or _requires(kind.item_type)
    if arrow.is_nested(kind):
        return any(not child.nullable or _requires(child.type) for child in _children(kind))
    return False


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _settled(array: pa.Array, field: pa.Field, path: str, around: _Mask | None) -> pa.Array:
    """Return an array of the field's type, without a bitmap of NULLs if the field is required.

    Raises InvalidArgument if a required value is NULL and all its parents are not.

    :param around: whether all parents of a value are not NULL, for each value; None: everywhere.
    """
    missing = array.null_count and not field.nullable
    if missing:
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        if count := int(np.count_nonzero(nulls if around is None else nulls & around)):
            raise InvalidArgument("rows", f"column {path!r} is required and has {count} nulls.")
    if not missing and array.type == field.type and not _requires(field.type):
        return array
    if isinstance(field.type, pa.BaseExtensionType):
        storage = _settled(array.storage, pa.field("", field.type.storage_type, field.nullable), path, around)
        return pa.ExtensionArray.from_storage(field.type, storage)
    if arrow.is_struct(field.type):
        return _settled_struct(array, field.type, path, around, None if missing else array.is_null())
    children = [_settled_items(array, field.type, path, around)] if arrow.is_nested(field.type) else None
    buffers = array.buffers()[: field.type.num_buffers]
    # The first buffer is the bitmap of NULLs.
    buffers[0] = None if missing else buffers[0]
    return pa.Array.from_buffers(field.type, len(array), buffers, offset=array.offset, children=children)


def _settled_struct(
    array: pa.Array, kind: pa.DataType, path: str, around: _Mask | None, nulls: pa.Array | None
) -> pa.Array:
    """Return a struct with its fields as `_settled` returns them; `nulls` masks the structs that are NULL."""
    parents = _there(array, around)
    children = [
        _settled(array.field(n), field, f"{path}.{field.name}", parents) for n, field in enumerate(_children(kind))
    ]
    return pa.StructArray.from_arrays(children, fields=_children(kind), mask=nulls)


def _settled_items(array: pa.Array, kind: pa.DataType, path: str, around: _Mask | None) -> pa.Array:
    """Return all items of the lists or maps, as many as the borders in the buffer count."""
    parents = _there(array, around)
    if arrow.is_map(kind):
        items = _settled(array.items, kind.item_field, f"{path}.value", _spread(array, parents, len(array.items)))
        return pa.StructArray.from_arrays([array.keys, items], fields=[kind.key_field, kind.item_field])
    return _settled(array.values, kind.value_field, f"{path}.element", _spread(array, parents, len(array.values)))


def _there(array: pa.Array, around: _Mask | None) -> _Mask | None:
    """Return whether each value, and all its parents, are not NULL; None: everywhere. `around` is of the parents."""
    if not array.null_count:
        return around
    valid: _Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return valid if around is None else valid & around


def _spread(array: pa.Array, parents: _Mask | None, count: int) -> _Mask | None:
    """Return for each item whether the list around the item is not NULL; False for items outside of all lists.

    The result is None, for all items, if all lists are there and cover all items.
    """
    borders = array.offsets.to_numpy()
    if parents is None and borders[0] == 0 and borders[-1] == count:
        return None
    inside = np.zeros(count, np.bool_)
    lists = np.ones(len(array), np.bool_) if parents is None else parents
    inside[borders[0] : borders[-1]] = np.repeat(lists, np.diff(borders))
    return inside
