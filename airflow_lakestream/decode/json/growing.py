"""JSON messages to rows of a schema that grows: a field without a column gets one of a type that holds what was seen.

Rows of later batches have more columns than those of earlier ones, and never fewer types: a value that does not fit
the type which the first ones gave its column is bad.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import UnknownFields
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.core.sharing.rounds import Undecided
from airflow_lakestream.decode.json.column_names import USUAL, NameRules, Names
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.document import Json
from airflow_lakestream.decode.json.infer import Seen
from airflow_lakestream.decode.values.outcome import BadRow, Decoded, Misfit


@dataclass(frozen=True)
class Grown:
    """The larger schema, and why some fields could not become columns, by their paths."""

    schema: pa.Schema
    refused: dict[str, str] = field(default_factory=dict)


class Lacking:
    """What documents hold that a schema has no place for: as much of it as decides on columns, not the values.

    It can be pickled; what several workers found can be united.
    """

    def __init__(self, cuts: bool = False) -> None:
        self.new = Seen(cuts)
        self.inside: dict[str, Lacking] = {}
        # Of a list's items, and of a map's values.
        self.item: Lacking | None = None

    @classmethod
    def of(cls, schema: pa.Schema, leftovers: Iterable[Json], rules: NameRules) -> Lacking:
        """Return what `leftovers_of` gives for documents and this schema."""
        found = cls(rules.cuts)
        for value in leftovers:
            found._add_object(list(schema), value)
        return found

    @property
    def size(self) -> int:
        """How many characters the names in it have."""
        inner = sum(len(name) + one.size for name, one in self.inside.items())
        return self.new.size + inner + (0 if self.item is None else self.item.size)

    def condense(self) -> Lacking:
        """Forget the values that decide nothing, and return it."""
        self.new.condense()
        for one in (*self.inside.values(), *([] if self.item is None else [self.item])):
            one.condense()
        return self

    def unite(self, other: Lacking) -> None:
        """Take what another worker found, for the same schema, in later documents."""
        self.new.unite(other.new)
        for name, one in other.inside.items():
            self.inside.setdefault(name, Lacking(self.new.cuts)).unite(one)
        if other.item is not None:
            self.item = self.item or Lacking(self.new.cuts)
            self.item.unite(other.item)

    def _add_object(self, fields: Sequence[pa.Field], value: Mapping[str, Json]) -> None:
        known = {one.name: one.type for one in fields}
        self.new.add({name: item for name, item in value.items() if name not in known})
        for name, item in value.items():
            if name in known:
                self.inside.setdefault(name, Lacking(self.new.cuts))._add(known[name], item)

    def _add(self, kind: pa.DataType, value: Json) -> None:
        """Take the leftovers in a known field."""
        if t.is_struct(kind):
            self._add_object(list(kind), value)
            return
        items, inner = (value.values(), kind.item_type) if t.is_map(kind) else (value, kind.value_type)
        self.item = self.item or Lacking(self.new.cuts)
        for item in items:
            if item is not None:
                self.item._add(inner, item)


def grow(schema: pa.Schema, leftovers: Iterable[Json], rules: NameRules = USUAL) -> Grown:
    """Return the schema with a column for each field of the leftovers, by the rules for inferred types.

    :param leftovers: what `leftovers_of` gives for documents and this schema.
    """
    return grow_by(schema, Lacking.of(schema, leftovers, rules), rules)


def grow_by(schema: pa.Schema, lacking: Lacking, rules: NameRules = USUAL) -> Grown:
    """Return the schema with a column for each field that it lacks."""
    names = Names.of(rules, schema)
    return Grown(pa.schema(_fields(list(schema), lacking, (), names)), names.refused)


def _fields(fields: list[pa.Field], lacking: Lacking, path: tuple[str, ...], names: Names) -> list[pa.Field]:
    """Return the fields, and those that come up in the objects behind them."""
    inside = lacking.inside
    known = {one.name for one in fields}
    fields = [
        one.with_type(_type(one.type, inside[one.name], (*path, one.name), names)) if one.name in inside else one
        for one in fields
    ]
    return [*fields, *lacking.new.struct(names, path, known)]


def _type(kind: pa.DataType, lacking: Lacking, path: tuple[str, ...], names: Names) -> pa.DataType:
    """Return the type of a known field that has unknown ones in it."""
    if t.is_struct(kind):
        return pa.struct(_fields(list(kind), lacking, path, names))
    item = lacking.item or Lacking()
    if t.is_map(kind):
        return pa.map_(kind.key_type, _item(kind.item_field, item, (*path, "value"), names))
    make = pa.large_list if t.is_large_list(kind) else pa.list_
    return make(_item(kind.value_field, item, (*path, "element"), names))


def _item(item: pa.Field, lacking: Lacking, path: tuple[str, ...], names: Names) -> pa.Field:
    return item.with_type(_type(item.type, lacking, path, names))


log = logging.getLogger(__name__)


class GrowingJsonDecoder:
    """Decodes JSON documents; used by several threads, which grow one schema.

    :param schema: columns to begin with, and their types.
    :param rules: what the table has no place for.
    """

    def __init__(self, schema: pa.Schema, rules: NameRules = USUAL) -> None:
        self._rules = rules
        self._decoder = JsonDecoder(schema, UnknownFields.EVOLVE, finer=rules.finer)
        self._lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema:
        """The columns so far."""
        return self._decoder.schema

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, self._rules)

    def decode(self, batch: RawBatch) -> Decoded:
        """Return the rows of a batch, and its bad records."""
        while True:
            decoder = self._decoder
            decoded, unknown = decoder.decode_and_find(batch)
            if not unknown:
                return decoded
            refused = self._grow(decoder, unknown)
            if refused is not None:
                return _explained(decoded, unknown, refused)

    def _grow(self, used: JsonDecoder, unknown: Mapping[int, Json]) -> Mapping[str, str] | None:
        """Grow the schema; None if it has grown, else why it does not."""
        with self._lock:
            if self._decoder is not used:
                return None
            grown = grow(used.schema, unknown.values(), self._rules)
            if grown.schema.equals(used.schema):
                return grown.refused
            new = [field.name for field in grown.schema if field not in used.schema]
            log.info("Columns for fields that had none: %s", ", ".join(new))
            self._decoder = JsonDecoder(grown.schema, UnknownFields.EVOLVE, finer=self._rules.finer)
            return None


class SharedJsonDecoder:
    """Decodes JSON documents for one of several workers, for which another process decides on new columns.

    :param schema: columns and their types.
    :param rules: what the table has no place for.
    :param decided: whatever has no column is to have none: such a record is bad.
    """

    def __init__(self, schema: pa.Schema, rules: NameRules, *, decided: bool) -> None:
        self.schema, self._rules, self._decided = schema, rules, decided
        self._documents = JsonDecoder(schema, UnknownFields.EVOLVE, finer=rules.finer)

    def decode(self, batch: RawBatch) -> Decoded:
        """Return the rows of a batch, and its bad records. Raises Undecided where a field might get a column."""
        decoded, unknown = self._documents.decode_and_find(batch)
        if not unknown:
            return decoded
        lacking = Lacking.of(self.schema, unknown.values(), self._rules)
        if not self._decided:
            raise Undecided({lacking.condense(): lacking.size})
        return _explained(decoded, unknown, grow_by(self.schema, lacking, self._rules).refused)


def _explained(decoded: Decoded, unknown: Mapping[int, Json], refused: Mapping[str, str]) -> Decoded:
    def reason(row: BadRow) -> BadRow:
        if row.index not in unknown:
            return row
        problem = _first_refused(unknown[row.index], "", refused)
        return replace(row, reason=problem or row.reason)

    return replace(decoded, bad=[reason(row) for row in decoded.bad])


def _first_refused(value: Json, path: str, refused: Mapping[str, str]) -> str | None:
    if isinstance(value, list):
        items = [(f"{path}element.", item) for item in value]
    elif isinstance(value, dict):
        for name in value:
            if (problem := refused.get(path + name)) is not None:
                return Misfit(f"no column can be added for it: {problem}").inside(path + name).reason
        items = [(f"{path}{name}.", item) for name, item in value.items()]
        # The names of a map's entries are no part of a path.
        items += [(f"{path}value.", item) for item in value.values()]
    else:
        return None
    return next((found for where, item in items if (found := _first_refused(item, where, refused)) is not None), None)
