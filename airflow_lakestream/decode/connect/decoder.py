"""JSON of Kafka Connect's converter: each record contains a schema and a payload, {"schema": ..., "payload": ...}.

Records with the same schema begin with the same bytes, up to the payload: once found, these bytes are a prefix to
search for and to cut off.
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
# A topic has a few schemas at a time; more schemas differ only in their bytes.
_MOST_SCHEMAS = 256


@dataclass(frozen=True)
class PayloadPart:
    """Records of the same schema: positions in the batch, and payloads. `schema` is None for plain records."""

    schema: str | None
    places: Integers
    _cut_out: Callable[[], pa.Array]

    @cached_property
    def payloads(self) -> pa.Array:
        """Payloads, cut out of the values on first use."""
        return self._cut_out()

    def take(self, indices: Integers) -> PayloadPart:
        """Return a part with a selection of the payloads.

        :param indices: numbers of the payloads in this part.
        """
        return PayloadPart(self.schema, self.places[indices], lambda: self.payloads.take(pa.array(indices)))


def unwrapped(values: pa.Array, prefixes: dict[bytes, str] | None = None) -> Iterator[PayloadPart]:
    """Yield the payloads of the values by schema; a value without a wrapper, or null, is a payload without a schema.

    A schema may be yielded several times, for values that begin differently.

    :param prefixes: for each known prefix of a value, the schema in it; new prefixes are added, up to a limit.
    """
    prefixes = {} if prefixes is None else prefixes
    looks_wrapped = pc.fill_null(pc.match_substring_regex(values, _BEGINS_WRAPPED), False)
    todo = np.flatnonzero(looks_wrapped.to_numpy(zero_copy_only=False))
    plain = np.ones(len(values), np.bool_)
    for prefix, schema in list(prefixes.items()):
        found, cut_out = _behind(values, prefix, todo)
        if len(found):
            plain[found] = False
            yield PayloadPart(schema, found, cut_out)
            todo = np.setdiff1d(todo, found, assume_unique=True)
    # Values whose payload is not the last member, or whose prefix is beyond the limit: by schema, position and payload.
    odd: dict[str | None, list[tuple[int, bytes | None]]] = {}
    while len(todo):
        first = int(todo[0])
        split = _split(values[first].as_py())
        # All values with this prefix are found at once, this one included.
        if split is not None and split.is_last and len(prefixes) < _MOST_SCHEMAS:
            prefixes[split.before] = split.schema
            found, cut_out = _behind(values, split.before, todo)
            plain[found] = False
            yield PayloadPart(split.schema, found, cut_out)
            todo = np.setdiff1d(todo, found, assume_unique=True)
            continue
        todo = todo[1:]
        if split is not None:
            plain[first] = False
            odd.setdefault(split.schema, []).append((first, split.payload))
    for of_schema, ones in odd.items():
        payloads = pa.array([payload for _, payload in ones], values.type)
        yield PayloadPart(of_schema, np.array([place for place, _ in ones], np.int64), partial(_without_null, payloads))
    if plain.any():
        yield PayloadPart(None, np.flatnonzero(plain), partial(values.filter, pa.array(plain)))


def _behind(values: pa.Array, prefix: bytes, among: Integers) -> tuple[Integers, Callable[[], pa.Array]]:
    """Return the positions of values with this prefix, and a function for cutting out the payloads.

    Behind its payload such a value has only the closing brace.

    :param among: positions of the values to search.
    """
    some = values if len(among) == len(values) else values.take(pa.array(among))
    fits = pc.and_(pc.starts_with(some, prefix), pc.ends_with(some, b"}"))
    # The brace must not be the prefix's own.
    fits = pc.and_(fits, pc.greater(pc.binary_length(some), len(prefix)))
    hit = fits.to_numpy(zero_copy_only=False)
    return among[hit], lambda: _without_null(cut(some.filter(fits), len(prefix), 1))


def _without_null(payloads: pa.Array) -> pa.Array:
    """Return payloads with null for the word null: a tombstone inside a schema's wrapper."""
    is_null = pc.equal(payloads, pa.scalar(b"null", payloads.type))
    return pc.if_else(is_null, pa.scalar(None, payloads.type), payloads)


@dataclass(frozen=True)
class _WrappedValue:
    # `before` has the bytes ahead of the payload; `is_last`: behind the payload is nothing except the closing brace.
    schema: str
    payload: bytes
    before: bytes
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
    at = _after_space(text, 0)
    while True:
        if text[at] not in "{,":
            break
        name, at = _SCAN(text, _after_space(text, at + 1))
        at = _after_space(text, at)
        if not isinstance(name, str) or text[at] != ":":
            raise ValueError("no object")
        start = _after_space(text, at + 1)
        _, end = _SCAN(text, start)
        yield name, (start, end)
        at = _after_space(text, end)
    if text[at] != "}" or _after_space(text, at + 1) != len(text):
        raise ValueError("no object")


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def columns_of_connect(first: RawBatch, rules: NameRules, alike: tuple[str, ...] = ()) -> pa.Schema:
    """Return the columns for records of the converter: of the last schema in the records, or else inferred.

    The columns are inferred if no record has a valid schema of a struct.

    :param alike: fields of the same type, see `infer_schema`.

    Raises SchemaRefused, and the errors of `infer_schema`.
    """
    shape, payloads = _of_batch(first)
    if shape is not None and shape.fields:
        return pa.schema([connect_schema.arrow_field(name, inner, name) for name, inner in shape.fields.items()])
    return infer_schema(payloads, rules=rules, alike=alike)


def key_type(first: RawBatch, rules: NameRules, *, wrapped: bool) -> pa.DataType:
    """Return the type of a column for JSON keys, by the last schema in the keys, or else inferred.

    :param first: a batch whose values are the keys.
    :param wrapped: keys may contain a schema.

    Raises SchemaRefused.
    """
    shape, keys = _of_batch(first) if wrapped else (None, first)
    if shape is not None:
        return connect_schema.arrow_type(shape, "the key")
    return infer_type(keys, rules=rules)


def _of_batch(batch: RawBatch) -> tuple[ConnectType | None, RawBatch]:
    """Return the shape of the last record with a valid schema, or None, and a batch of the payloads without schemas."""
    parts = list(unwrapped(batch.values))
    places = np.concatenate([part.places for part in parts])
    payloads = pa.concat_arrays([part.payloads for part in parts]).take(pa.array(np.argsort(places)))
    shapes = {int(part.places[-1]): connect_schema.parse(part.schema) for part in parts if part.schema}
    last = max((place for place, shape in shapes.items() if shape is not None), default=None)
    return None if last is None else shapes[last], replace(batch, values=payloads)


class ConnectJsonDecoder:
    """Decoder of JSON with or without a schema in each record; the schema defines the meaning of numbers and base64.

    :param schema: columns and their types.
    :param unknown_fields: see `JsonDecoder`.
    :param out_of_range: treatment of values outside a column's range.
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
            left: dict[int, str] = {}
            for reader in self._readers_of(part.schema):
                decoded = reader.decode(batch, part)
                failed = np.array([row.index for row in decoded.bad], np.int64)
                reasons = {int(part.places[row.index]): row.reason for row in decoded.bad}
                # A reader without any row does not fit the records: then the reasons of the reader before it are kept.
                left = reasons if decoded.rows.num_rows or not left else {at: left[at] for at in reasons}
                tables.append(decoded.rows)
                places.append(np.delete(part.places, failed))
                if not reasons:
                    break
                part = part.take(failed)
            bad += [BadRow(at, reason) for at, reason in left.items()]
        if not tables:
            return DecoderResult(no_rows(self.schema))
        table, order = pa.concat_tables(tables), np.concatenate(places)
        if np.any(order[1:] < order[:-1]):
            table = table.take(pa.array(np.argsort(order)))
        return DecoderResult(table, sorted(bad, key=lambda row: row.index))

    def _readers_of(self, schema: str | None) -> Sequence[_PayloadReader]:
        """Return the readers of payloads of a schema, to be tried in this order.

        The second reader, for decimals written as numbers, decodes the payloads refused by the first. A schema that is
        null or invalid has the reader of plain records.
        """
        readers = self._readers.get(schema)
        if readers is None:
            shape = None if schema is None else connect_schema.parse(schema)
            if shape is None:
                readers = self._readers[None]
            else:
                # Base64 first: base64 is never a number in JSON.
                readers = [
                    self._reader(one)
                    for one in ([shape] if shape == shape.with_numbers else [shape, shape.with_numbers])
                ]
            if len(self._readers) < _MOST_SCHEMAS:
                self._readers[schema] = readers
        return readers

    def _reader(self, shape: ConnectType) -> _PayloadReader:
        documents = self._documents(_written_by(shape, self.schema))
        return _PayloadReader(self.schema, shape, documents, self._out_of_range, self._finer)

    def _documents(self, schema: pa.Schema) -> JsonDecoder:
        return JsonDecoder(
            *(schema, self._unknown_fields),
            out_of_range=self._out_of_range,
            finer=self._finer,
            is_event=self._is_event,
        )


def _written_by(shape: ConnectType, schema: pa.Schema) -> pa.Schema:
    """Return the columns for decoding payloads of this shape, for a table with the columns `schema`; see `written`."""
    return pa.schema([written_field(shape.fields.get(field.name), field) for field in schema])


class _PayloadReader:
    """Reader of payloads of a schema; `documents` returns columns of the written types, see `_written_by`.

    Without a shape, the documents are decoded to the columns at once.
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
        # No value of the field fits the column: all rows are bad.
        except Unfit as unfit:
            for row in rows.all.tolist():
                rows.reasons.setdefault(row, str(unfit))
            return pa.nulls(len(values), field.type)
