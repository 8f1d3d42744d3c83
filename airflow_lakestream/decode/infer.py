"""A schema for JSON that comes without one: types that hold for every document looked at, and string when in doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import pyarrow as pa

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode import iso8601
from airflow_lakestream.decode.json_document import Json, Number, parse_document, parse_object
from airflow_lakestream.decode.json_values import field_coercer
from airflow_lakestream.decode.misfit import Misfit
from airflow_lakestream.exceptions import BadRecord, InvalidArgument

_INT64 = pa.int64()
_FLOAT64 = pa.float64()
_ZONED = pa.timestamp("us", "UTC")
_NAIVE = pa.timestamp("us")
_STRING = pa.string()

_as_int64 = field_coercer(pa.field("number", _INT64), fail_unknown=False)
_as_float64 = field_coercer(pa.field("number", _FLOAT64), fail_unknown=False)


def infer_schema(*batches: RawBatch, sample: int = 10_000) -> pa.Schema:
    """Return a schema, all of it nullable, that about `sample` documents spread over the batches fit into.

    What is no object says nothing. Raises BadRecord when there is nothing else, InvalidArgument when there is no field.
    """
    seen, first_bad = _Seen(), None
    for batch, index, value in _spread(batches, sample):
        try:
            seen.add(parse_object(value))
        except Misfit as misfit:
            first_bad = first_bad or BadRecord(batch.topic, batch.partition, batch.offsets[index], misfit.reason)
    if not seen.kinds and first_bad is not None:
        raise first_bad
    if not seen.fields:
        raise InvalidArgument("schema", "it can't be inferred: the first records hold no field.", "Give a schema.")
    return pa.schema(seen.struct())


def infer_type(*batches: RawBatch, sample: int = 10_000) -> pa.DataType:
    """Return a type that about `sample` JSON values of any kind fit into; what is no JSON says nothing."""
    seen = _Seen()
    for _, _, value in _spread(batches, sample):
        with suppress(Misfit):
            seen.add(parse_document(value))
    return seen.type()


def type_of(values: Iterable[Json]) -> pa.DataType:
    """Return the type that all of these values fit into, by the same rules."""
    seen = _Seen()
    for value in values:
        seen.add(value)
    return seen.type()


def _spread(batches: tuple[RawBatch, ...], sample: int) -> Iterator[tuple[RawBatch, int, bytes]]:
    step = max(1, sum(map(len, batches)) // sample)
    for batch in batches:
        for index in range(0, len(batch), step):
            value = batch.values[index].as_py()
            if value is not None:
                yield batch, index, value


class _Seen:
    """What was seen in one place of the documents: the kinds of values, and of scalars each one once."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        self.numbers: set[Number] = set()
        self.texts: set[str] = set()
        self.fields: dict[str, _Seen] = {}
        self.items: _Seen | None = None

    def add(self, value: Json) -> None:
        """Take one more value into account; null says nothing."""
        if value is None:
            return
        kind = type(value)
        self.kinds.add(kind)
        if kind is Number:
            self.numbers.add(value)
        elif kind is str:
            self.texts.add(value)
        elif kind is dict:
            for name, item in value.items():
                seen = self.fields.get(name)
                if seen is None:
                    seen = self.fields[name] = _Seen()
                seen.add(item)
        elif kind is list:
            self.items = self.items or _Seen()
            for item in value:
                self.items.add(item)

    def struct(self) -> list[pa.Field]:
        """Return the fields seen in objects, in order of first appearance."""
        return [pa.field(name, seen.type()) for name, seen in self.fields.items()]

    def type(self) -> pa.DataType:
        """Return the first type, best first, that holds all values seen; string where none does."""
        if len(self.kinds) != 1:
            return _STRING
        (kind,) = self.kinds
        if kind is bool:
            return pa.bool_()
        if kind is dict:
            return pa.struct(self.struct()) if self.fields else _STRING
        if kind is list and self.items is not None:
            return pa.list_(pa.field("element", self.items.type()))
        if kind is Number:
            return next((t for t in (_INT64, _FLOAT64) if all(_holds_number(t, n) for n in self.numbers)), _STRING)
        return next((t for t in (_ZONED, _NAIVE) if all(_holds_text(t, text) for text in self.texts)), _STRING)


def _holds_number(kind: pa.DataType, value: Number) -> bool:
    try:
        if value.is_integer_literal:
            # Beyond int64 an integer is an identifier rather than a measurement: no double either.
            _as_int64(value)
        elif kind is _INT64:
            return False
        if kind is _FLOAT64:
            _as_float64(value)
    except Misfit:
        return False
    return True


def _holds_text(kind: pa.DataType, value: str) -> bool:
    if kind is _NAIVE and len(value) < len("2026-11-20T05:05"):
        return False
    try:
        iso8601.micros(value, zoned=kind is _ZONED)
    except Misfit:
        return False
    return True
