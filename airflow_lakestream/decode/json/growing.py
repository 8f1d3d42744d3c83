"""Decoders of JSON with a growing schema: a field without a column gets a column of a fitting type.

Types never change: a value that does not fit its column, whose type results from the column's first values, is bad.
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
    """Fields of documents that a schema lacks, with samples of their values for the types of columns.

    `new` has the fields without a column, `inside` the missing fields inside known fields, by name, and `item` the
    missing fields in a list's items or a map's values. The object can be pickled; the objects of several workers can be
    united.

    :param cuts: whether a text with a time finer than microseconds counts as a time.
    """

    def __init__(self, cuts: bool = False) -> None:
        self.new = ValueSamples(cuts)
        self.inside: dict[str, MissingFields] = {}
        self.item: MissingFields | None = None

    @classmethod
    def of(cls, schema: pa.Schema, leftovers: Iterable[Json], rules: NameRules) -> MissingFields:
        """Return the missing fields, from the results of `leftovers_of` for documents and this schema."""
        missing = cls(rules.cuts)
        for value in leftovers:
            missing._add_object(list(schema), value)
        return missing

    @property
    def size(self) -> int:
        """Number of characters in all names of fields."""
        inner = sum(len(name) + missing.size for name, missing in self.inside.items())
        return self.new.size + inner + (0 if self.item is None else self.item.size)

    def condense(self) -> MissingFields:
        """Forget the values without effect on types, and return this object."""
        self.new.condense()
        for missing in (*self.inside.values(), *([] if self.item is None else [self.item])):
            missing.condense()
        return self

    def unite(self, other: MissingFields) -> None:
        """Add the missing fields found by another worker, for the same schema, in later documents."""
        self.new.unite(other.new)
        for name, missing in other.inside.items():
            self.inside.setdefault(name, MissingFields(self.new.cuts)).unite(missing)
        if other.item is not None:
            self.item = self.item or MissingFields(self.new.cuts)
            self.item.unite(other.item)

    def _add_object(self, fields: Sequence[pa.Field], value: Mapping[str, Json]) -> None:
        known = {field.name: field.type for field in fields}
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


def grow_by(schema: pa.Schema, missing: MissingFields, rules: NameRules = USUAL) -> SchemaGrowth:
    """Return the schema with a column for each missing field that can be a column, and the reasons against others."""
    names = NewColumnNames.of(rules, schema)
    return SchemaGrowth(pa.schema(_fields(list(schema), missing, (), names)), names.refused)


def _fields(
    fields: list[pa.Field], missing: MissingFields, path: tuple[str, ...], names: NewColumnNames
) -> list[pa.Field]:
    """Return the fields, with missing inner fields added, and the new fields.

    :param path: path to the fields; `names` collects the names and the reasons against fields.
    """
    grown = []
    for known in fields:
        if known.name in missing.inside:
            known = _grown(known, missing.inside[known.name], (*path, known.name), names)
        grown.append(known)
    return [*grown, *missing.new.struct(names, path, [known.name for known in fields])]


def _grown(known: pa.Field, missing: MissingFields, path: tuple[str, ...], names: NewColumnNames) -> pa.Field:
    """Return a known field, with missing inner fields added."""
    kind, item = known.type, missing.item or MissingFields()
    if t.is_struct(kind):
        return known.with_type(pa.struct(_fields(list(kind), missing, path, names)))
    if t.is_map(kind):
        return known.with_type(pa.map_(kind.key_type, _grown(kind.item_field, item, (*path, "value"), names)))
    make = pa.large_list if t.is_large_list(kind) else pa.list_
    return known.with_type(make(_grown(kind.value_field, item, (*path, "element"), names)))


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
        """Return the rows and the bad records of a batch, with new columns for its unknown fields.

        A record with a field that can't become a column is bad.
        """
        # The whole batch is decoded again after each growth, by this or another thread.
        while True:
            decoder = self._decoder
            decoded, unknown = decoder.decode_and_find(batch)
            if not unknown:
                return decoded
            refused = self._grow(decoder, unknown)
            if refused is not None:
                return _explained(decoded, unknown, refused)

    def _grow(self, used: JsonDecoder, unknown: Mapping[int, Json]) -> Mapping[str, str] | None:
        """Replace the decoder by a decoder with more columns, and return None: the batch must be decoded again.

        If no unknown field can become a column, return the reasons against columns, by path.

        :param used: the decoder that found the unknown fields.
        """
        with self._lock:
            # Another thread has replaced the decoder, perhaps by a decoder with columns for these fields.
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
    :param decided: whether all new columns are decided: a record with an unknown field is bad then.
    """

    def __init__(self, schema: pa.Schema, rules: NameRules, *, decided: bool) -> None:
        self.schema, self._rules, self._decided = schema, rules, decided
        self._documents = JsonDecoder(schema, UnknownFields.EVOLVE, finer=rules.finer)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch. Raises Undecided with the missing fields if not decided."""
        decoded, unknown = self._documents.decode_and_find(batch)
        if not unknown:
            return decoded
        missing = MissingFields.of(self.schema, unknown.values(), self._rules)
        if not self._decided:
            raise Undecided({missing.condense(): missing.size})
        return _explained(decoded, unknown, grow_by(self.schema, missing, self._rules).refused)


def _explained(decoded: DecoderResult, unknown: Mapping[int, Json], refused: Mapping[str, str]) -> DecoderResult:
    """Return the result with the first field that can't become a column in the reasons of records."""

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
    reasons = (_first_refused(item, item_path, refused) for item_path, item in items)
    return next((reason for reason in reasons if reason is not None), None)
