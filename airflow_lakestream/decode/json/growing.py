"""Decoders of JSON with a growing schema: a field without a column gets a column of a fitting type.

Rows of later batches have more columns than rows of earlier batches, and types never change: a value that does not
fit the type from the first values of its column is bad.
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
from airflow_lakestream.decode.json.column_names import USUAL, NameRules, NewColumnNames
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.document import Json
from airflow_lakestream.decode.json.infer import ValueSamples
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, Misfit


@dataclass(frozen=True)
class SchemaGrowth:
    """A larger schema, and the reasons against further columns, by path."""

    schema: pa.Schema
    refused: dict[str, str] = field(default_factory=dict)


class MissingFields:
    """Fields of documents missing from a schema: the facts for a decision on columns, not the values.

    `new` has the fields without a column, `inside` the missing fields inside known fields, by name. The object can be
    pickled; the objects of several workers can be united.
    """

    def __init__(self, cuts: bool = False) -> None:
        self.new = ValueSamples(cuts)
        self.inside: dict[str, MissingFields] = {}
        # For a list's items, and for a map's values.
        self.item: MissingFields | None = None

    @classmethod
    def of(cls, schema: pa.Schema, leftovers: Iterable[Json], rules: NameRules) -> MissingFields:
        """Return the missing fields, from the results of `leftovers_of` for documents and this schema."""
        found = cls(rules.cuts)
        for value in leftovers:
            found._add_object(list(schema), value)
        return found

    @property
    def size(self) -> int:
        """Number of characters in all names of fields."""
        inner = sum(len(name) + one.size for name, one in self.inside.items())
        return self.new.size + inner + (0 if self.item is None else self.item.size)

    def condense(self) -> MissingFields:
        """Forget the values without effect on types, and return this object."""
        self.new.condense()
        for one in (*self.inside.values(), *([] if self.item is None else [self.item])):
            one.condense()
        return self

    def unite(self, other: MissingFields) -> None:
        """Add the missing fields found by another worker, for the same schema, in later documents."""
        self.new.unite(other.new)
        for name, one in other.inside.items():
            self.inside.setdefault(name, MissingFields(self.new.cuts)).unite(one)
        if other.item is not None:
            self.item = self.item or MissingFields(self.new.cuts)
            self.item.unite(other.item)

    def _add_object(self, fields: Sequence[pa.Field], value: Mapping[str, Json]) -> None:
        known = {one.name: one.type for one in fields}
        self.new.add({name: item for name, item in value.items() if name not in known})
        for name, item in value.items():
            if name in known:
                self.inside.setdefault(name, MissingFields(self.new.cuts))._add(known[name], item)

    def _add(self, kind: pa.DataType, value: Json) -> None:
        """Add the leftovers of a known field."""
        if t.is_struct(kind):
            self._add_object(list(kind), value)
            return
        items, inner = (value.values(), kind.item_type) if t.is_map(kind) else (value, kind.value_type)
        self.item = self.item or MissingFields(self.new.cuts)
        for item in items:
            if item is not None:
                self.item._add(inner, item)


def grow(schema: pa.Schema, leftovers: Iterable[Json], rules: NameRules = USUAL) -> SchemaGrowth:
    """Return the schema with a column for each field of the leftovers, as far as the rules for inferred types allow.

    :param leftovers: results of `leftovers_of` for documents and this schema.
    """
    return grow_by(schema, MissingFields.of(schema, leftovers, rules), rules)


def grow_by(schema: pa.Schema, lacking: MissingFields, rules: NameRules = USUAL) -> SchemaGrowth:
    """Return the schema with a column for each missing field, as far as possible, and the reasons for other fields."""
    names = NewColumnNames.of(rules, schema)
    return SchemaGrowth(pa.schema(_fields(list(schema), lacking, (), names)), names.refused)


def _fields(
    fields: list[pa.Field], lacking: MissingFields, path: tuple[str, ...], names: NewColumnNames
) -> list[pa.Field]:
    """Return the fields, with missing inner fields added, and the new fields.

    :param path: path to the fields; `names` collects the names and the reasons against fields.
    """
    inside = lacking.inside
    known = {one.name for one in fields}
    fields = [
        one.with_type(_type(one.type, inside[one.name], (*path, one.name), names)) if one.name in inside else one
        for one in fields
    ]
    return [*fields, *lacking.new.struct(names, path, known)]


def _type(kind: pa.DataType, lacking: MissingFields, path: tuple[str, ...], names: NewColumnNames) -> pa.DataType:
    """Return the type of a known field, with unknown inner fields added."""
    if t.is_struct(kind):
        return pa.struct(_fields(list(kind), lacking, path, names))
    item = lacking.item or MissingFields()
    if t.is_map(kind):
        return pa.map_(kind.key_type, _item(kind.item_field, item, (*path, "value"), names))
    make = pa.large_list if t.is_large_list(kind) else pa.list_
    return make(_item(kind.value_field, item, (*path, "element"), names))


def _item(item: pa.Field, lacking: MissingFields, path: tuple[str, ...], names: NewColumnNames) -> pa.Field:
    return item.with_type(_type(item.type, lacking, path, names))


log = logging.getLogger(__name__)


class GrowingJsonDecoder:
    """Decoder of JSON documents with a growing schema, shared by several threads.

    :param schema: columns at the start, and their types.
    :param rules: rules for the names of new columns.
    """

    def __init__(self, schema: pa.Schema, rules: NameRules = USUAL) -> None:
        self._rules = rules
        self._decoder = JsonDecoder(schema, UnknownFields.EVOLVE, finer=rules.finer)
        self._lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema:
        """The current columns."""
        return self._decoder.schema

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, self._rules)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch, after new columns for its unknown fields.

        A record with a field that can't become a column is bad.
        """
        # The whole batch is decoded again after each growth, also a growth by another thread.
        while True:
            decoder = self._decoder
            decoded, unknown = decoder.decode_and_find(batch)
            if not unknown:
                return decoded
            refused = self._grow(decoder, unknown)
            if refused is not None:
                return _explained(decoded, unknown, refused)

    def _grow(self, used: JsonDecoder, unknown: Mapping[int, Json]) -> Mapping[str, str] | None:
        """Replace the decoder by one with more columns; return None if the batch is to be decoded again.

        That is so if the schema has grown, in this call or in another thread since `used` was read. If no unknown field
        can become a column, return the reasons against columns, by path.
        """
        with self._lock:
            # Another thread has replaced the decoder, perhaps with columns for these very fields.
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
    """Decoder of JSON documents for one of several workers; another process decides on new columns.

    :param schema: columns and their types.
    :param rules: rules for the names of new columns.
    :param decided: no field gets a column any more: a record with an unknown field is bad.
    """

    def __init__(self, schema: pa.Schema, rules: NameRules, *, decided: bool) -> None:
        self.schema, self._rules, self._decided = schema, rules, decided
        self._documents = JsonDecoder(schema, UnknownFields.EVOLVE, finer=rules.finer)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch. Raises Undecided with the missing fields if not decided."""
        decoded, unknown = self._documents.decode_and_find(batch)
        if not unknown:
            return decoded
        lacking = MissingFields.of(self.schema, unknown.values(), self._rules)
        if not self._decided:
            raise Undecided({lacking.condense(): lacking.size})
        return _explained(decoded, unknown, grow_by(self.schema, lacking, self._rules).refused)


def _explained(decoded: DecoderResult, unknown: Mapping[int, Json], refused: Mapping[str, str]) -> DecoderResult:
    # For records with unknown fields, the reason names the first field that can't become a column.
    def reason(row: BadRow) -> BadRow:
        if row.index not in unknown:
            return row
        problem = _first_refused(unknown[row.index], "", refused)
        return replace(row, reason=problem or row.reason)

    return replace(decoded, bad=[reason(row) for row in decoded.bad])


def _first_refused(value: Json, path: str, refused: Mapping[str, str]) -> str | None:
    """Return the reason of the first refused field in a value, or None.

    :param path: of the value, with a dot at the end.
    :param refused: reasons by the path of a field.
    """
    if isinstance(value, list):
        items = [(f"{path}element.", item) for item in value]
    elif isinstance(value, dict):
        for name in value:
            if (problem := refused.get(path + name)) is not None:
                return Misfit(f"no column can be added for it: {problem}").inside(path + name).reason
        items = [(f"{path}{name}.", item) for name, item in value.items()]
        # The names of a map's entries are not part of a path.
        items += [(f"{path}value.", item) for item in value.values()]
    else:
        return None
    return next((found for where, item in items if (found := _first_refused(item, where, refused)) is not None), None)
