"""Inference of a schema from JSON documents: types that fit all sampled documents, and string in doubt."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.column_names import USUAL, FieldRefused, NameRules, NewColumnNames
from airflow_lakestream.decode.json.document import Json, JsonNumber, parse_document, parse_object
from airflow_lakestream.decode.json.values import field_coercer
from airflow_lakestream.decode.values import iso8601
from airflow_lakestream.decode.values.outcome import Misfit, quoted
from airflow_lakestream.exceptions import BadRecord, InvalidArgument

log = logging.getLogger(__name__)

# The most fields without a column that the warning names.
_REASONS_SHOWN = 5
_EMPTY = "nothing in it can be a column: "
_INT64 = pa.int64()
_FLOAT64 = pa.float64()
_ZONED = pa.timestamp("us", "UTC")
_NAIVE = pa.timestamp("us")
_STRING = pa.string()
# The types for numbers and for times, the preferred type first.
_NUMBERS = (_INT64, _FLOAT64)
_TIMES = (_ZONED, _NAIVE)

_as_int64 = field_coercer(pa.field("number", _INT64), fail_unknown=False)
_as_float64 = field_coercer(pa.field("number", _FLOAT64), fail_unknown=False)


def infer_schema(
    *batches: RawBatch, rules: NameRules = USUAL, alike: tuple[str, ...] = (), sample: int = 10_000
) -> pa.Schema:
    """Return a nullable schema for about `sample` documents, spread over the batches.

    A value that is not an object is ignored. A field that can't be a column is left out, with a warning: the policy for
    unknown fields then decides about its values.

    :param alike: fields that get the same type, which fits the values of all these fields.

    Raises BadRecord if all values are bad, InvalidArgument if no field can be a column.
    """
    samples, first_bad = ValueSamples(rules.cuts), None
    shared = ValueSamples(rules.cuts)
    for batch, index, value in _spread(batches, sample):
        try:
            document = parse_object(value)
        except Misfit as misfit:
            first_bad = first_bad or BadRecord(batch.topic, batch.partition, batch.offsets[index], misfit.reason)
            continue
        samples.fields.update({name: shared for name in alike if name in document})
        samples.add(document)
    if not samples.kinds and first_bad is not None:
        raise first_bad
    names = NewColumnNames(rules)
    fields = samples.struct(names, ())
    refused = "; ".join(f"{quoted(path)}: {reason}" for path, reason in list(names.refused.items())[:_REASONS_SHOWN])
    if not fields:
        problem = f"it can't be inferred: the first records hold no field{' but ' + refused if refused else ''}."
        raise InvalidArgument("schema", problem, "Give a schema.")
    if refused:
        log.warning("%s fields of the first records get no column: %s", len(names.refused), refused)
    return pa.schema(fields)


def infer_type(*batches: RawBatch, rules: NameRules = USUAL, sample: int = 10_000) -> pa.DataType:
    """Return a type for about `sample` JSON values of any kind; values that are not JSON are ignored.

    The type is string if the values have no other type in common, or can't be a column.
    """
    samples = ValueSamples(rules.cuts)
    for _, _, value in _spread(batches, sample):
        with suppress(Misfit):
            samples.add(parse_document(value))
    try:
        return samples.type(NewColumnNames(rules), ("",))
    except FieldRefused:
        return _STRING


def _spread(batches: tuple[RawBatch, ...], sample: int) -> Iterator[tuple[RawBatch, int, bytes]]:
    """Yield about `sample` values, evenly spread over the batches, as (batch, index in the batch, value)."""
    step = max(1, sum(map(len, batches)) // sample)
    for batch in batches:
        for index in range(0, len(batch), step):
            value = batch.values[index].as_py()
            if value is not None:
                yield batch, index, value


class ValueSamples:
    """Values at a path of the documents: the kinds of values, the distinct scalars, and samples of inner values.

    :param cuts: whether a text with a time finer than microseconds counts as a time.
    """

    def __init__(self, cuts: bool = False) -> None:
        self.cuts = cuts
        self.count = 0
        self.kinds: set[type] = set()
        self.numbers: set[JsonNumber] = set()
        self.texts: set[str] = set()
        self.fields: dict[str, ValueSamples] = {}
        self.items: ValueSamples | None = None

    def add(self, value: Json) -> None:
        """Add a value; null has no effect on the type, but counts."""
        self.count += 1
        if value is None:
            return
        kind = type(value)
        self.kinds.add(kind)
        if kind is JsonNumber:
            self.numbers.add(value)
        elif kind is str:
            self.texts.add(iso8601.cut_text(value) if self.cuts else value)
        elif kind is dict:
            for name, item in value.items():
                samples = self.fields.get(name)
                if samples is None:
                    samples = self.fields[name] = ValueSamples(self.cuts)
                samples.add(item)
        elif kind is list:
            self.items = self.items or ValueSamples(self.cuts)
            for item in value:
                self.items.add(item)

    @property
    def size(self) -> int:
        """Number of characters in all names of fields."""
        inner = sum(len(name) + samples.size for name, samples in self.fields.items())
        return inner + (0 if self.items is None else self.items.size)

    def unite(self, other: ValueSamples) -> None:
        """Add the values of another object, which has samples of later documents."""
        self.count += other.count
        self.kinds |= other.kinds
        self.numbers |= other.numbers
        self.texts |= other.texts
        for name, samples in other.fields.items():
            self.fields.setdefault(name, ValueSamples(self.cuts)).unite(samples)
        if other.items is not None:
            self.items = self.items or ValueSamples(self.cuts)
            self.items.unite(other.items)

    def condense(self) -> None:
        """Forget the scalars without effect on types: one value that excludes a type is enough."""
        self.numbers = set(_witnesses(_NUMBERS, _holds_number, self.numbers))
        self.texts = set(_witnesses(_TIMES, _holds_text, self.texts))
        for samples in (*self.fields.values(), *([] if self.items is None else [self.items])):
            samples.condense()

    def struct(self, names: NewColumnNames, path: tuple[str, ...], known: Iterable[str] = ()) -> list[pa.Field]:
        """Return a column for each field of the objects that can be a column, in order of first appearance.

        If the names of two fields exclude each other, such as `id` and `ID`, the field of more objects gets the column.
        `names.refused` gets the reasons against the fields without a column.

        :param path: path to these objects.
        :param known: names of existing columns next to the fields.
        """
        siblings = {name.lower(): name for name in known}
        columns: dict[str, pa.Field] = {}
        for name, samples in sorted(self.fields.items(), key=lambda item: -item[1].count):
            try:
                names.take(name, path, siblings)
                columns[name] = pa.field(name, samples.type(names, (*path, name)))
            except FieldRefused as refused:
                names.refused[".".join((*path, name))] = str(refused)
            else:
                siblings[name.lower()] = name
        return [columns[name] for name in self.fields if name in columns]

    def type(self, names: NewColumnNames, path: tuple[str, ...]) -> pa.DataType:
        """Return the preferred type that fits all values, or string if no other type fits.

        Raises FieldRefused if the values can't be a column: nested too deep, too many columns, or objects without a
        valid field.
        """
        if len(self.kinds) != 1:
            return _STRING
        (kind,) = self.kinds
        if kind is bool:
            return pa.bool_()
        if kind is dict:
            if not self.fields:
                return _STRING
            if not (fields := self.struct(names, path)):
                inner = names.refused[".".join((*path, next(iter(self.fields))))]
                raise FieldRefused(f"{_EMPTY}{inner.removeprefix(_EMPTY)}")
            return pa.struct(fields)
        if kind is list and self.items is not None:
            names.inside((*path, "element"))
            return pa.list_(pa.field("element", self.items.type(names, (*path, "element"))))
        if kind is JsonNumber:
            return next((t for t in _NUMBERS if all(_holds_number(t, n) for n in self.numbers)), _STRING)
        return next((t for t in _TIMES if all(_holds_text(t, text) for text in self.texts)), _STRING)


def _witnesses(kinds: Sequence[pa.DataType], holds: Callable[[pa.DataType, Any], bool], values: set[Any]) -> list[Any]:
    """Return, for each type that does not fit all values, a value that excludes the type."""
    witnesses = (next((value for value in values if not holds(kind, value)), None) for kind in kinds)
    return [value for value in witnesses if value is not None]


def _holds_number(kind: pa.DataType, value: JsonNumber) -> bool:
    try:
        if value.is_integer_literal:
            # An integer beyond int64 is no double either: it is rather an identifier than a measurement.
            _as_int64(value)
        elif kind is _INT64:
            return False
        if kind is _FLOAT64:
            _as_float64(value)
    except Misfit:
        return False
    return True


def _holds_text(kind: pa.DataType, value: str) -> bool:
    """Return whether a time type, with or without a zone, represents the text without loss."""
    if kind is _NAIVE and len(value) < len("2026-11-20T05:05"):
        return False
    try:
        iso8601.micros(value, zoned=kind is _ZONED)
    except Misfit:
        return False
    return True
