"""Leftovers of a JSON document: the document without the parts with a column."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.decode.json.document import Json

# None: no leftovers; inside an array, no leftovers of the item at this position.
Leftovers = Callable[[Json], Any]


def leftovers_of(fields: Iterable[pa.Field], *, keep_nulls: bool) -> Leftovers:
    """Return a function for the part of an object without a place in these fields.

    The nesting stays: objects and arrays with a column surround their unknown parts. In an array with partly known
    items, each fully known item is null. An unknown field that is null matters little: it is kept only by `keep_nulls`.
    """
    parts = {field.name: _inside(field.type, keep_nulls) for field in fields}

    def leftovers(value: Json) -> Any:
        if not isinstance(value, dict):
            return None
        rest = {}
        for name, item in value.items():
            if name not in parts:
                if item is not None or keep_nulls:
                    rest[name] = item
            elif (look := parts[name]) is not None and (left := look(item)) is not None:
                rest[name] = left
        return rest or None

    return leftovers


def _inside(kind: pa.DataType, keep_nulls: bool) -> Leftovers | None:
    """Return the function for a value of this type, or None if the type has a place for any value."""
    if t.is_struct(kind):
        return leftovers_of(kind, keep_nulls=keep_nulls)
    if t.is_list(kind) or t.is_large_list(kind):
        of_item = _inside(kind.value_type, keep_nulls)
        return None if of_item is None else _of_items(of_item)
    if t.is_map(kind):
        of_value = _inside(kind.item_type, keep_nulls)
        return None if of_value is None else _of_values(of_value)
    return None


def _of_items(of_item: Leftovers) -> Leftovers:
    def leftovers(value: Json) -> Any:
        rest = [of_item(item) for item in value] if isinstance(value, list) else []
        return rest if any(item is not None for item in rest) else None

    return leftovers


def _of_values(of_value: Leftovers) -> Leftovers:
    def leftovers(value: Json) -> Any:
        if not isinstance(value, dict):
            return None
        rest = {name: left for name, item in value.items() if (left := of_value(item)) is not None}
        return rest or None

    return leftovers
