"""A schema that grows by the fields that JSON documents bring and it has no column for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.decode.json.column_names import USUAL, NameRules, Names
from airflow_lakestream.decode.json.document import Json
from airflow_lakestream.decode.json.infer import Seen


@dataclass(frozen=True)
class Grown:
    """The larger schema, and why some fields could not become columns, by their paths."""

    schema: pa.Schema
    refused: dict[str, str] = field(default_factory=dict)


def grow(schema: pa.Schema, leftovers: Iterable[Json], rules: NameRules = USUAL) -> Grown:
    """Return the schema with a column for each field of the leftovers, by the rules for inferred types.

    :param leftovers: what `json_leftovers` gives for documents and this schema.
    """
    names = Names.of(rules, schema)
    return Grown(pa.schema(_fields(list(schema), list(leftovers), (), names)), names.refused)


def _fields(fields: list[pa.Field], objects: Sequence[Json], path: tuple[str, ...], names: Names) -> list[pa.Field]:
    """Return the fields, and those that come up in the objects behind them."""
    known, new = {one.name for one in fields}, Seen()
    inside: dict[str, list[Json]] = {}
    for value in objects:
        new.add({name: item for name, item in value.items() if name not in known})
        for name in known.intersection(value):
            inside.setdefault(name, []).append(value[name])
    fields = [
        one.with_type(_type(one.type, inside[one.name], (*path, one.name), names)) if one.name in inside else one
        for one in fields
    ]
    return [*fields, *new.struct(names, path, known)]


def _type(kind: pa.DataType, values: Sequence[Json], path: tuple[str, ...], names: Names) -> pa.DataType:
    """Return the type of a known field that has unknown ones in it, for its values' leftovers."""
    if t.is_struct(kind):
        return pa.struct(_fields(list(kind), values, path, names))
    if t.is_map(kind):
        items = [item for value in values for item in value.values()]
        return pa.map_(kind.key_type, _item(kind.item_field, items, (*path, "value"), names))
    items = [item for value in values for item in value if item is not None]
    make = pa.large_list if t.is_large_list(kind) else pa.list_
    return make(_item(kind.value_field, items, (*path, "element"), names))


def _item(item: pa.Field, values: Sequence[Json], path: tuple[str, ...], names: Names) -> pa.Field:
    return item.with_type(_type(item.type, values, path, names))
