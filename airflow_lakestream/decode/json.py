"""JSON messages, one object each, to rows of a schema: many at once where that is proven safe, else one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import UnknownFields, choose
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json_bulk import BulkParser, NotInBulk
from airflow_lakestream.decode.json_columns import ShapeParser
from airflow_lakestream.decode.json_document import parse_object
from airflow_lakestream.decode.json_values import fields_coercer, is_uuid
from airflow_lakestream.decode.misfit import Misfit
from airflow_lakestream.decode.outcome import BadRow, Decoded
from airflow_lakestream.exceptions import InvalidArgument

# Pieces for Arrow's reader: a whole chunk, since threads stand in line for the interpreter at each call.
_WHOLE = 65536
# Sizes of the pieces of what no layout fits; one odd record spoils 512 for good. A batch full of odd ones loses
# a sixth of its time. Smaller ones cost more than they save: a call takes as long as some forty records one by one.
_SIZES = (_WHOLE, 512)


class JsonDecoder:
    """Decodes JSON documents into tables of one Arrow schema; `nullable=False` makes a field required.

    :param schema: columns and their types.
    :param unknown_fields: "ignore" skips fields without a column, "fail" rejects the record.
    """

    def __init__(self, schema: pa.Schema, unknown_fields: UnknownFields | str = UnknownFields.IGNORE) -> None:
        if not len(schema):
            raise InvalidArgument("schema", "it has no columns.")
        self.schema = schema
        self.unknown_fields = choose(UnknownFields, "unknown_fields", unknown_fields)
        ignore = self.unknown_fields is UnknownFields.IGNORE
        self._coerce = fields_coercer(list(schema), fail_unknown=not ignore)
        self._plain = [_without_uuids(field.type) for field in schema]
        self._shapes: ShapeParser | None = ShapeParser(schema, ignore_unknown=ignore)
        # Whether the last chunk had no record without a layout: a guess at the next one, never a matter of truth.
        self._is_even = True
        self._bulk: BulkParser | None
        try:
            self._bulk = BulkParser(schema, ignore_unknown=ignore)
        except NotInBulk:
            self._bulk = None

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.schema, str(self.unknown_fields)))

    def decode(self, batch: RawBatch) -> Decoded:
        """Return the rows of a batch, and its bad records."""
        # Arrow's reader takes twice the time of the layouts, and is faster all the same: it lets go of the interpreter,
        # which the thread that reads from Kafka needs for most of its time.
        if self._bulk is not None and self._is_even:
            try:
                return self._decoded([self._bulk.parse(piece) for piece in _cut(batch.values)], [], batch)
            except NotInBulk:
                # One odd record spoils that for its whole chunk, and seldom comes alone.
                self._is_even = False
        return self._by_layouts(batch)

    def _decoded(self, pieces: Sequence[pa.Table], bad: Sequence[BadRow], batch: RawBatch) -> Decoded:
        table = pa.concat_tables(pieces) if pieces else self._from_rows([])
        if table.num_rows + len(bad) != len(batch):
            raise AssertionError(f"{table.num_rows} rows and {len(bad)} bad records of {len(batch)}")
        return Decoded(table, bad)

    def _by_layouts(self, batch: RawBatch) -> Decoded:
        """Decode record by record what fits the layouts, and the others in ever smaller pieces."""
        tables, rows = self._shapes.parse(batch.values) if self._shapes else ([], [])
        left = np.ones(len(batch), np.bool_)
        for taken in rows:
            left[taken] = False
        rest = np.flatnonzero(left)
        self._is_even = not len(rest)
        bad: list[BadRow] = []
        if len(rest) == len(batch):
            # No layout fits anything, so none of these is proven to be odd.
            return self._decoded(list(self._pieces(batch.values, 0, len(batch), _SIZES, bad)), bad, batch)
        if len(rest):
            tables += self._pieces(batch.values.take(pa.array(rest)), 0, len(rest), _SIZES, bad)
            good = np.ones(len(rest), np.bool_)
            good[[row.index for row in bad]] = False
            bad = [replace(row, index=int(rest[row.index])) for row in bad]
            rows = [*rows, rest[good]]
        decoded = self._decoded(tables, bad, batch)
        if len(rows) > 1:
            decoded = replace(decoded, rows=decoded.rows.take(pa.array(np.argsort(np.concatenate(rows)))))
        return decoded

    def _pieces(
        self, values: pa.Array, start: int, stop: int, sizes: tuple[int, ...], bad: list[BadRow]
    ) -> Iterator[pa.Table]:
        """Yield tables that together hold the rows of values [start, stop), from left to right; add the bad ones."""
        if self._bulk is None or not sizes:
            yield from self._one_by_one(values, start, stop, bad)
            return
        for first in range(start, stop, sizes[0]):
            last = min(first + sizes[0], stop)
            try:
                yield self._bulk.parse(values[first:last])
            except NotInBulk:
                yield from self._pieces(values, first, last, sizes[1:], bad)

    def _one_by_one(self, values: pa.Array, start: int, stop: int, bad: list[BadRow]) -> Iterator[pa.Table]:
        rows = []
        for index, value in enumerate(values[start:stop].to_pylist(), start):
            try:
                rows.append(self._row(value))
            except Misfit as misfit:
                bad.append(BadRow(index, misfit.reason))
        if rows:
            yield self._from_rows(rows)

    def _from_rows(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        columns = [
            pa.array([row[field.name] for row in rows], plain).cast(field.type)
            for field, plain in zip(self.schema, self._plain, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _row(self, value: bytes | None) -> dict[str, Any]:
        if value is not None:
            row: dict[str, Any] = self._coerce(parse_object(value))
            return row
        required = [field.name for field in self.schema if not field.nullable]
        if required:
            raise Misfit(f"{required[0]}: the value is null (a tombstone), and the column is required")
        return dict.fromkeys(self.schema.names)


def _cut(values: pa.Array) -> Iterator[pa.Array]:
    for first in range(0, len(values), _WHOLE):
        yield values[first : first + _WHOLE]


def _without_uuids(kind: pa.DataType) -> pa.DataType:
    """Return the type with plain bytes for UUIDs: Arrow can cast these, but not build them inside lists and maps."""
    if t.is_struct(kind):
        return pa.struct([field.with_type(_without_uuids(field.type)) for field in kind])
    if t.is_list(kind) or t.is_large_list(kind):
        make = pa.large_list if t.is_large_list(kind) else pa.list_
        return make(kind.value_field.with_type(_without_uuids(kind.value_type)))
    if t.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(_without_uuids(kind.item_type)))
    return pa.binary(16) if is_uuid(kind) else kind
