"""A schema that grows by the fields that JSON documents bring and it has no column for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.decode.infer import type_of
from airflow_lakestream.decode.json_document import Json
from airflow_lakestream.decode.misfit import quoted

# More columns than anybody reads, from keys that are data: names of users, ids, dates.
MOST_COLUMNS = 1_000
DEEPEST = 16
_RESERVED = "_kafka_"


@dataclass(frozen=True)
class Grown:
    """The larger schema, and why some fields could not become columns, by their paths."""

    schema: pa.Schema
    refused: dict[str, str] = field(default_factory=dict)


def grow(schema: pa.Schema, leftovers: Iterable[Json]) -> Grown:
    """Return the schema with a column for each field of the leftovers, by the rules for inferred types.

    :param leftovers: what `json_leftovers` gives for documents and this schema.
    """
    work = _Growth(_paths(list(schema), ""))
    return Grown(pa.schema(work.fields(list(schema), list(leftovers), "")), work.refused)


class _Growth:
    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self.refused: dict[str, str] = {}

    def fields(self, fields: list[pa.Field], objects: Sequence[Json], path: str) -> list[pa.Field]:
        """Return the fields, and those that come up in the objects behind them."""
        items: dict[str, list[Json]] = {}
        for value in objects:
            for name, item in value.items():
                items.setdefault(name, []).append(item)
        fields = [
            one.with_type(self._type(one.type, items.pop(one.name), f"{path}{one.name}.")) if one.name in items else one
            for one in fields
        ]
        known = {one.name.lower(): one.name for one in fields}
        for name, values in items.items():
            new = pa.field(name, type_of(values))
            # One path after another: two new ones may clash as well.
            problem = self._problem(new, known, path)
            if problem is not None:
                self.refused[path + name] = problem
                continue
            known[name.lower()] = name
            self._taken |= _paths([new], path)
            fields.append(new)
        return fields

    def _type(self, kind: pa.DataType, values: Sequence[Json], path: str) -> pa.DataType:
        """Return the type of a known field that has unknown ones in it, for its values' leftovers."""
        if t.is_struct(kind):
            return pa.struct(self.fields(list(kind), values, path))
        if t.is_map(kind):
            inside = [item for value in values for item in value.values()]
            return pa.map_(kind.key_type, self._of_item(kind.item_field, inside, f"{path}value."))
        inside = [item for value in values for item in value if item is not None]
        make = pa.large_list if t.is_large_list(kind) else pa.list_
        return make(self._of_item(kind.value_field, inside, f"{path}element."))

    def _of_item(self, item: pa.Field, values: Sequence[Json], path: str) -> pa.Field:
        return item.with_type(self._type(item.type, values, path))

    def _problem(self, new: pa.Field, known: dict[str, str], path: str) -> str | None:
        """Return why a field can't be a column; None if it can."""
        if not new.name:
            return "it has no name"
        if not path and new.name.startswith(_RESERVED):
            return f"names that begin with {_RESERVED} are kept for metadata columns"
        if new.name.lower() in known:
            return f"{quoted(known[new.name.lower()])} is there, and some engines take the two for one"
        paths = _paths([new], path)
        if paths & self._taken:
            return "its name is the path of another column"
        if len(paths) + len(self._taken) > MOST_COLUMNS:
            return f'the table would have more than {MOST_COLUMNS} columns; unknown_fields="rescue" needs only one'
        if path.count(".") + _depth(new.type) > DEEPEST:
            return f"it would be nested deeper than {DEEPEST} levels"
        return _problem_inside(new.type)


def _problem_inside(kind: pa.DataType) -> str | None:
    """Return what keeps an inferred type, all of it new, from being a column's."""
    if t.is_list(kind):
        return _problem_inside(kind.value_type)
    if not t.is_struct(kind):
        return None
    seen: dict[str, str] = {}
    for one in kind:
        twin = seen.setdefault(one.name.lower(), one.name)
        if not one.name:
            return "a field in it has no name"
        if twin != one.name:
            return f"it has {quoted(twin)} and {quoted(one.name)}, which some engines take for one"
        if (problem := _problem_inside(one.type)) is not None:
            return problem
    return None


def _depth(kind: pa.DataType) -> int:
    children = [kind.field(at).type for at in range(kind.num_fields)]
    return 1 + max(map(_depth, children), default=0)


def _paths(fields: Iterable[pa.Field], path: str) -> set[str]:
    """Return the paths of the fields and of all that is in them, as Iceberg writes them."""
    found = set()
    for one in fields:
        kind, own = one.type, path + one.name
        found.add(own)
        if t.is_struct(kind):
            found |= _paths(kind, f"{own}.")
        elif t.is_list(kind) or t.is_large_list(kind):
            found |= _paths([pa.field("element", kind.value_type)], f"{own}.")
        elif t.is_map(kind):
            found |= _paths([pa.field("key", kind.key_type), pa.field("value", kind.item_type)], f"{own}.")
    return found
