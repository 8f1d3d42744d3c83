"""Decoded keys, in a column `_key` next to the value's columns; a key that is a record becomes a struct."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.document import parse_document
from airflow_lakestream.decode.json.scalars import without
from airflow_lakestream.decode.json.values import field_coercer, scalars_for
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, Misfit, good_mask
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import one_array

KEY_COLUMN = "_key"

_NULL = f"{KEY_COLUMN}: null, and the column is required"


class ColumnDecoder(Protocol):
    """Decoder of values into the columns of a schema."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""


@dataclass(frozen=True)
class KeyedDecoder:
    """Decoder of keys and values; a bad key or a bad value makes the record bad.

    :param values: decodes the value's columns.
    :param keys: decodes keys, passed as values, into the single column `_key`.
    :param schema: all columns, in the table's order.
    """

    values: ColumnDecoder
    keys: ColumnDecoder
    schema: pa.Schema

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        if batch.keys is None:
            raise AssertionError("the records were read without their keys")
        values = self.values.decode(batch)
        keys = self.keys.decode(replace(batch, values=batch.keys, keys=None, headers=None))
        rows, column = values.rows, keys.rows.column(0)
        if values.bad or keys.bad:
            good_values, good_keys = (good_mask(len(batch), [row.index for row in side.bad]) for side in (values, keys))
            rows = rows.filter(pa.array(good_keys[good_values]))
            column = column.filter(pa.array(good_values[good_keys]))
        rows = rows.append_column(self.schema.field(KEY_COLUMN), column)
        return DecoderResult(rows.select(self.schema.names), _merged(values.bad, keys.bad))


def _merged(values: Sequence[BadRow], keys: Sequence[BadRow]) -> list[BadRow]:
    bad = {row.index: BadRow(row.index, f"the key: {row.reason}", row.schema_id) for row in keys}
    # If both are bad, the value's reason counts: it has the schema id that a replay looks for.
    bad.update((row.index, row) for row in values)
    return [bad[index] for index in sorted(bad)]


class BytesKeyDecoder:
    """Decoder of keys without a format, passed as values, into a column of bytes or of text.

    Raises InvalidArgument for a column of another type.
    """

    def __init__(self, schema: pa.Schema) -> None:
        kind = schema.field(0).type
        if not any(is_kind(kind) for is_kind in (t.is_binary, t.is_large_binary, t.is_string, t.is_large_string)):
            raise InvalidArgument("schema", f"{KEY_COLUMN} can't be {kind}.", "Make it string, or binary.")
        self.schema = schema

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        keys, bad = batch.values, {}
        field = self.schema.field(0)
        if not field.nullable and keys.null_count:
            bad = dict.fromkeys(np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False)).tolist(), _NULL)
        try:
            column = keys.cast(field.type)
        except pa.ArrowInvalid:
            is_invalid = np.array([leaves.not_utf8(key) for key in keys.to_pylist()])
            bad |= dict.fromkeys(np.flatnonzero(is_invalid).tolist(), f"{KEY_COLUMN}: invalid UTF-8")
            column = without(keys, is_invalid).cast(field.type)
        return DecoderResult.without(bad, [column], self.schema)


class RecordKeyDecoder:
    """Decoder of keys with records of any format, passed as values, into a struct.

    A record without a key has null, and is bad if the column is required.

    :param make: returns the decoder of the struct's fields.

    Raises InvalidArgument if the column is not a struct.
    """

    def __init__(self, schema: pa.Schema, make: Callable[[pa.Schema], ColumnDecoder]) -> None:
        kind = schema.field(0).type
        if not t.is_struct(kind):
            raise InvalidArgument("schema", f"{KEY_COLUMN} can't be {kind}: keys are records.", "Make it a struct.")
        self.schema = schema
        self._make = make
        self._records = make(pa.schema(list(kind)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, self._make)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        field = self.schema.field(0)
        has_key = batch.values.is_valid().to_numpy(zero_copy_only=False)
        places = np.flatnonzero(has_key)
        values = batch.values.filter(pa.array(has_key))
        inner = RawBatch(batch.topic, batch.partition, places.tolist(), [-1] * len(places), values)
        decoded = self._records.decode(inner)
        bad = {int(places[row.index]): row.reason for row in decoded.bad}
        ids = {int(places[row.index]): row.schema_id for row in decoded.bad}
        if not field.nullable:
            bad |= dict.fromkeys(np.flatnonzero(~has_key).tolist(), _NULL)
        columns = [one_array(column) for column in decoded.rows.columns]
        structs = pa.StructArray.from_arrays(columns, fields=list(field.type))
        good = good_mask(len(batch), bad)
        # The number of each good key among the decoded keys; null for a record without a key.
        numbers = np.cumsum(has_key & good) - 1
        column = structs.take(pa.array(numbers[good], mask=~has_key[good]))
        rows = [BadRow(index, bad[index], ids.get(index)) for index in sorted(bad)]
        return DecoderResult(pa.Table.from_arrays([column], schema=self.schema), rows)


class JsonKeyDecoder:
    """Decoder of keys with any JSON value, such as a string, a number or an array, passed as values.

    :param wrapped: whether keys may contain their schema, in Kafka Connect's form.
    :param finer: treatment of times finer than microseconds.
    """

    def __init__(
        self, schema: pa.Schema, *, wrapped: bool = False, finer: TimestampsFiner = TimestampsFiner.REJECT
    ) -> None:
        self.schema = schema
        self._wrapped, self._finer = wrapped, finer
        self._coerce = field_coercer(schema.field(0), fail_unknown=False, scalars=scalars_for(finer))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.schema, wrapped=self._wrapped, finer=self._finer), ()

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        field, decoded, bad = self.schema.field(0), [], {}
        for index, key in enumerate(batch.values.to_pylist()):
            try:
                document = None if key is None else parse_document(key)
                if self._wrapped and isinstance(document, dict) and set(document) == {"schema", "payload"}:
                    document = document["payload"]
                decoded.append(self._coerce(document))
            except Misfit as misfit:
                bad[index] = misfit.inside(KEY_COLUMN).reason
        column = pa.array(decoded, leaves.plain(field.type)).cast(field.type)
        rows = [BadRow(index, reason) for index, reason in bad.items()]
        return DecoderResult(pa.Table.from_arrays([column], schema=self.schema), rows)
