"""JSON of Kafka Connect's converter: each record contains a schema and a payload, {"schema": ..., "payload": ...}.

Records with the same schema mostly begin with the same bytes, up to the payload. These bytes, a prefix, are found once
and then searched for in further records, and cut off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.policies import OutOfRange, TimestampsFiner
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect import schema as connect_schema
from airflow_lakestream.decode.connect.schema import ConnectType
from airflow_lakestream.decode.connect.values import BatchRows, fitted, written_field
from airflow_lakestream.decode.json.column_names import NameRules
from airflow_lakestream.decode.json.decoder import JsonDecoder
from airflow_lakestream.decode.json.infer import infer_schema, infer_type
from airflow_lakestream.decode.lanes.lanes import Integers, cut
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult
from airflow_lakestream.tables.row_buffer import no_rows, one_array

_MEMBERS = {"schema", "payload"}
_BEGINS_WRAPPED = r'^\s*\{\s*"(schema|payload)"\s*:'
# The most schemas and prefixes that are kept. A topic has a few schemas at a time; further ones are the same schemas,
# written with other bytes.
_MOST_SCHEMAS = 256


@dataclass(frozen=True)
class PayloadPart:
    """Records with the same schema: positions in the batch, and payloads. `schema` is None for plain records."""

    schema: str | None
    places: Integers
    _cut_out: Callable[[], pa.Array]

    @cached_property
    def payloads(self) -> pa.Array:
        """Payloads, cut out of the values on first use."""
        return self._cut_out()

    def take(self, indices: Integers) -> PayloadPart:
        """Return a part with only the payloads at these indices of this part."""
        return PayloadPart(self.schema, self.places[indices], lambda: self.payloads.take(pa.array(indices)))


def unwrapped(values: pa.Array, prefixes: dict[bytes, str] | None = None) -> Iterator[PayloadPart]:
    """Yield the payloads of the values by schema; a value without a wrapper, or null, is a payload without a schema.

    A schema may be yielded several times, for values with different prefixes.

    :param prefixes: the known prefixes, each with its schema; new prefixes are added, up to a limit.
    """
    prefixes = {} if prefixes is None else prefixes
    looks_wrapped = pc.fill_null(pc.match_substring_regex(values, _BEGINS_WRAPPED), False)
    todo = np.flatnonzero(looks_wrapped.to_numpy(zero_copy_only=False))
    plain = np.ones(len(values), np.bool_)
    for prefix, schema in list(prefixes.items()):
        places, cut_out = _with_prefix(values, prefix, todo)
        if len(places):
            plain[places] = False
            yield PayloadPart(schema, places, cut_out)
            todo = np.setdiff1d(todo, places, assume_unique=True)
    # By schema: position and payload of values whose payload is not the last member, or whose prefix is over the limit.
    single: dict[str | None, list[tuple[int, bytes | None]]] = {}
    while len(todo):
        first = int(todo[0])
        split = _split(values[first].as_py())
        # All values with this prefix are found at once, this one included.
        if split is not None and split.is_last and len(prefixes) < _MOST_SCHEMAS:
            prefixes[split.prefix] = split.schema
            places, cut_out = _with_prefix(values, split.prefix, todo)
            plain[places] = False
            yield PayloadPart(split.schema, places, cut_out)
            todo = np.setdiff1d(todo, places, assume_unique=True)
            continue
        todo = todo[1:]
        if split is not None:
            plain[first] = False
            single.setdefault(split.schema, []).append((first, split.payload))
    for single_schema, records in single.items():
        places = np.array([place for place, _ in records], np.int64)
        payloads = pa.array([payload for _, payload in records], values.type)
        yield PayloadPart(single_schema, places, partial(_without_null, payloads))
    if plain.any():
        yield PayloadPart(None, np.flatnonzero(plain), partial(values.filter, pa.array(plain)))


def _with_prefix(values: pa.Array, prefix: bytes, among: Integers) -> tuple[Integers, Callable[[], pa.Array]]:
    """Return the positions of values with this prefix, and a function that cuts out the payloads.

    Behind its payload such a value has only the closing brace.

    :param among: positions of the values to search.
    """
    searched = values if len(among) == len(values) else values.take(pa.array(among))
    fits = pc.and_(pc.starts_with(searched, prefix), pc.ends_with(searched, b"}"))
    # The brace must not be the prefix's own.
    fits = pc.and_(fits, pc.greater(pc.binary_length(searched), len(prefix)))
    places = among[fits.to_numpy(zero_copy_only=False)]
    return places, lambda: _without_null(cut(searched.filter(fits), len(prefix), 1))


def _without_null(payloads: pa.Array) -> pa.Array:
    """Return payloads with null for the word null: a tombstone inside a schema's wrapper."""
    is_null = pc.equal(payloads, pa.scalar(b"null", payloads.type))
    return pc.if_else(is_null, pa.scalar(None, payloads.type), payloads)


@dataclass(frozen=True)
class _WrappedValue:
    """A value with a schema; `is_last`: behind the payload is only the closing brace."""

    schema: str
    payload: bytes
    prefix: bytes
    is_last: bool


_SCAN = json.JSONDecoder().raw_decode
_SPACE = re.compile(r"[ \t\n\r]*")


def _split(value: bytes) -> _WrappedValue | None:
    """Return the parts of a wrapped value, or None for an invalid document or a value without a wrapper."""
    try:
        text = value.decode()
        spans = dict(_members(text))
    except (ValueError, RecursionError, IndexError):
        return None
    if set(spans) != _MEMBERS:
        return None
    start, end = spans["payload"]
    schema = text[slice(*spans["schema"])]
    is_last = text[end:] == "}" and spans["schema"][0] < start
    return _WrappedValue(schema, text[start:end].encode(), text[:start].encode(), is_last)


def _members(text: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield an object's member names with the positions of the values.

    Raises ValueError or IndexError for another text, also for an empty object.
    """
    pos = _after_space(text, 0)
    while text[pos] in "{,":
        name, pos = _SCAN(text, _after_space(text, pos + 1))
        pos = _after_space(text, pos)
        if not isinstance(name, str) or text[pos] != ":":
            raise ValueError("no object")
        start = _after_space(text, pos + 1)
        _, end = _SCAN(text, start)
        yield name, (start, end)
        pos = _after_space(text, end)
    if text[pos] != "}" or _after_space(text, pos + 1) != len(text):
        raise ValueError("no object")


def _after_space(text: str, pos: int) -> int:
    match = _SPACE.match(text, pos)
    assert match is not None, "the pattern matches an empty text, too"
    return match.end()


def columns_of_connect(first: RawBatch, rules: NameRules, alike: tuple[str, ...] = ()) -> pa.Schema:
    """Return the columns for records of the converter, from the last schema in the records.

    The columns are inferred if no record has a valid schema of a struct.

    :param alike: fields of the same type, see `infer_schema`.

    Raises SchemaRefused, and the errors of `infer_schema`.
    """
    shape, payloads = _of_batch(first)
    if shape is not None and shape.fields:
        return pa.schema([connect_schema.arrow_field(name, inner, name) for name, inner in shape.fields.items()])
    return infer_schema(payloads, rules=rules, alike=alike)


def key_type(first: RawBatch, rules: NameRules, *, wrapped: bool) -> pa.DataType:
    """Return the type of a column for JSON keys, from the last schema in the keys; inferred if no key has a schema.

    :param first: a batch whose values are the keys.
    :param wrapped: whether keys may contain a schema.

    Raises SchemaRefused.
    """
    shape, keys = _of_batch(first) if wrapped else (None, first)
    if shape is not None:
        return connect_schema.arrow_type(shape, "the key")
    return infer_type(keys, rules=rules)


def _of_batch(batch: RawBatch) -> tuple[ConnectType | None, RawBatch]:
    """Return the last valid schema in the records, or None, and a batch of the payloads without schemas."""
    parts = list(unwrapped(batch.values))
    places = np.concatenate([part.places for part in parts])
    payloads = pa.concat_arrays([part.payloads for part in parts]).take(pa.array(np.argsort(places)))
    shapes = {int(part.places[-1]): connect_schema.parse(part.schema) for part in parts if part.schema}
    last = max((place for place, shape in shapes.items() if shape is not None), default=None)
    return None if last is None else shapes[last], replace(batch, values=payloads)


class ConnectJsonDecoder:
    """Decoder of JSON with or without a schema in each record; the schema defines the meaning of numbers and base64.

    :param schema: the table's columns.
    :param unknown_fields: see `JsonDecoder`.
    :param out_of_range: treatment of dates and times outside a column's range.
    :param bare: returns a decoder for payloads without a schema, given columns and a policy for unknown fields; by
        default a `JsonDecoder`.
    :param is_event: see `JsonDecoder`.
    :param finer: see `JsonDecoder`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: str,
        out_of_range: OutOfRange = OutOfRange.REJECT,
        bare: Callable[[pa.Schema, str], Any] | None = None,
        is_event: bool = False,
        finer: TimestampsFiner = TimestampsFiner.REJECT,
    ) -> None:
        self.schema = schema
        self._unknown_fields = unknown_fields
        self._out_of_range = out_of_range
        self._bare = bare
        self._is_event = is_event
        self._finer = finer
        self._prefixes: dict[bytes, str] = {}
        documents = self._documents(schema) if bare is None else bare(schema, unknown_fields)
        plain = _PayloadReader(schema, None, documents, out_of_range, finer)
        self._readers: dict[str | None, Sequence[_PayloadReader]] = {None: [plain]}

    def __reduce__(self) -> tuple[Any, ...]:
        settings = (self._out_of_range, self._bare, self._is_event, self._finer)
        return type(self), (self.schema, self._unknown_fields, *settings)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        tables, places, bad = [], list[Integers](), list[BadRow]()
        for part in unwrapped(batch.values, self._prefixes):
            # The reasons of the part's bad records, by position in the batch.
            reasons: dict[int, str] = {}
            for reader in self._readers_of(part.schema):
                decoded = reader.decode(batch, part)
                failed = np.array([row.index for row in decoded.bad], np.int64)
                new_reasons = {int(part.places[row.index]): row.reason for row in decoded.bad}
                # If a reader decodes no record, it does not fit: then the reasons of the reader before are kept.
                is_fit = decoded.rows.num_rows or not reasons
                reasons = new_reasons if is_fit else {place: reasons[place] for place in new_reasons}
                tables.append(decoded.rows)
                places.append(np.delete(part.places, failed))
                if not new_reasons:
                    break
                part = part.take(failed)
            bad += [BadRow(place, reason) for place, reason in reasons.items()]
        if not tables:
            return DecoderResult(no_rows(self.schema))
        table, order = pa.concat_tables(tables), np.concatenate(places)
        if np.any(order[1:] < order[:-1]):
            table = table.take(pa.array(np.argsort(order)))
        return DecoderResult(table, sorted(bad, key=lambda row: row.index))

    def _readers_of(self, schema: str | None) -> Sequence[_PayloadReader]:
        """Return the readers of payloads of a schema: each decodes the payloads for which the reader before failed.

        The first reader is for decimals in base64, the second for decimals as numbers: base64 is never a number in
        JSON. A schema that is null or invalid has the reader of plain records.
        """
        readers = self._readers.get(schema)
        if readers is None:
            shape = None if schema is None else connect_schema.parse(schema)
            if shape is None:
                readers = self._readers[None]
            else:
                shapes = [shape] if shape == shape.with_numbers else [shape, shape.with_numbers]
                readers = list(map(self._reader, shapes))
            if len(self._readers) < _MOST_SCHEMAS:
                self._readers[schema] = readers
        return readers

    def _reader(self, shape: ConnectType) -> _PayloadReader:
        documents = self._documents(_written_by(shape, self.schema))
        return _PayloadReader(self.schema, shape, documents, self._out_of_range, self._finer)

    def _documents(self, schema: pa.Schema) -> JsonDecoder:
        return JsonDecoder(
            *(schema, self._unknown_fields), out_of_range=self._out_of_range, finer=self._finer, is_event=self._is_event
        )


def _written_by(shape: ConnectType, schema: pa.Schema) -> pa.Schema:
    """Return the columns in the types that JSON has for payloads of this shape, for the columns `schema`."""
    return pa.schema([written_field(shape.fields.get(field.name), field) for field in schema])


class _PayloadReader:
    """Reader of payloads of a schema: first into the types that JSON has, then into the columns' types.

    :param shape: the schema; None for payloads without a schema, which are decoded to the columns at once.
    :param documents: the decoder for the first step, with the columns of `_written_by`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        shape: ConnectType | None,
        documents: Any,
        out_of_range: OutOfRange,
        finer: TimestampsFiner,
    ) -> None:
        self._schema = schema
        self._shape = shape
        self._documents = documents
        self._out_of_range, self._finer = out_of_range, finer

    def decode(self, batch: RawBatch, part: PayloadPart) -> DecoderResult:
        count = len(part.places)
        inner = RawBatch(batch.topic, batch.partition, range(count), [-1] * count, part.payloads)
        # The decoder of documents needs no timestamps.
        decoded: DecoderResult = self._documents.decode(inner)
        if self._shape is None or self._documents.schema == self._schema:
            return DecoderResult(decoded.rows, decoded.bad)
        rows = BatchRows(decoded.rows.num_rows, self._out_of_range, self._finer)
        columns = [self._column(decoded.rows, field, rows) for field in self._schema]
        places = np.delete(np.arange(count), [row.index for row in decoded.bad])
        return decoded.refined(places, rows.reasons, columns, self._schema)

    def _column(self, table: pa.Table, field: pa.Field, rows: BatchRows) -> pa.Array:
        values = one_array(table.column(field.name))
        shape = self._shape.fields.get(field.name) if self._shape is not None else None
        try:
            return fitted(values, shape, field.type, field.name, rows.all, rows)
        except Unfit as unfit:
            # No value of the field fits the column: all rows are bad.
            for row in rows.all.tolist():
                rows.reasons.setdefault(row, str(unfit))
            return pa.nulls(len(values), field.type)
