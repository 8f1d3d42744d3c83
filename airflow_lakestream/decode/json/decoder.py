"""Decoder of JSON messages, an object each, into rows: many at once if the result is surely right, else one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.core.policies import OutOfRange, TimestampsFiner, UnknownFields
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.json.bulk import BulkParser, NotInBulk
from airflow_lakestream.decode.json.columns import LayoutParser
from airflow_lakestream.decode.json.document import Json, JsonNumber, describe, parse_object, to_text
from airflow_lakestream.decode.json.values import Coerce, Scalars, fields_coercer, floating, is_uuid, scalars_for, uuid
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.values import iso8601
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, Misfit, SchemaDecoder, quoted
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.schema.value_ranges import MAX_DAY, MAX_MICROS, MIN_DAY, MIN_MICROS, NOT_A_YEAR

# Debezium's texts of floating point values that JSON's numbers lack, and patterns of dates before 0001 and after 9999.
_NO_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_EARLY = re.compile(r"-infinity|(?:-\d{4,}|0000)-\d\d-\d\d(?:T.*)?", re.ASCII)
_LATE = re.compile(r"infinity|\+?\d{5,}-\d\d-\d\d(?:T.*)?", re.ASCII)


def scalars_of(policy: OutOfRange | None, finer: TimestampsFiner) -> Scalars:
    """Return the coercions (functions from a JSON value to a column's value) of some types, for these policies.

    :param policy: policy for dates and timestamps out of range, as Debezium writes them; numbers may then be texts such
        as "NaN", too. None for JSON without such values.
    """
    if policy is None:
        return scalars_for(finer)
    return (
        (t.is_floating, _floating),
        (lambda kind: t.is_timestamp(kind) and kind.unit == "us", partial(_timestamp, policy, finer)),
        (t.is_date32, partial(_date, policy)),
        *scalars_for(finer),
    )


def scalars_before(policy: OutOfRange | None, finer: TimestampsFiner) -> Scalars:
    """Return the coercions for a row before a change; with a policy, an empty text in place of a UUID is null."""
    usual = scalars_of(policy, finer)
    return usual if policy is None else ((is_uuid, _uuid), *usual)


def _floating(kind: pa.DataType) -> Coerce:
    number = floating(kind)
    return lambda value: _NO_NUMBERS[value] if type(value) is str and value in _NO_NUMBERS else number(value)


def _uuid(kind: pa.DataType) -> Coerce:
    read = uuid(kind)
    return lambda value: None if value == "" else read(value)


def _timestamp(policy: OutOfRange, finer: TimestampsFiner, kind: pa.DataType) -> Coerce:
    read = partial(iso8601.micros, zoned=kind.tz is not None, cuts=finer is TimestampsFiner.TRUNCATE)
    return partial(_from_text, read, policy, (MIN_MICROS, MAX_MICROS))


def _date(policy: OutOfRange, kind: pa.DataType) -> Coerce:
    """Return the coercion of a date's text, or of a number of days, which Debezium writes, too."""
    from_text = partial(_from_text, iso8601.days, policy, (MIN_DAY, MAX_DAY))

    def coerce(value: Json) -> Any:
        if not (isinstance(value, JsonNumber) and value.is_integer_literal and len(value) < 12):
            return from_text(value)
        if MIN_DAY <= (days := int(value)) <= MAX_DAY:
            return days
        return _beyond(policy, MIN_DAY if days < 0 else MAX_DAY, f"day {value} since 1970")

    return coerce


def _from_text(read: Any, policy: OutOfRange, bounds: tuple[int, int], value: Json) -> Any:
    """Return the date or time of a text; a text out of range has one of the `bounds`, null or a Misfit, by policy."""
    if type(value) is not str:
        raise Misfit(f"is {describe(value)}, not a string with a date or a date-time")
    if _EARLY.fullmatch(value):
        return _beyond(policy, bounds[0], quoted(value))
    if _LATE.fullmatch(value):
        return _beyond(policy, bounds[1], quoted(value))
    return read(value)


def _beyond(policy: OutOfRange, bound: int, value: str) -> int | None:
    if policy is OutOfRange.REJECT:
        raise Misfit(f"{value} is {NOT_A_YEAR}")
    return bound if policy is OutOfRange.CLAMP else None


# Returns the unknown part of a value, or None if all is known; in a list, None stands for a fully known item.
Leftovers = Callable[[Json], Any]


def leftovers_of(fields: Iterable[pa.Field], *, keep_nulls: bool) -> Leftovers:
    """Return a function from an object to its part without a column in these fields, or None if all has columns.

    The nesting stays: objects and arrays with a column surround their unknown parts. In an array with unknown parts,
    each fully known item is null.

    :param keep_nulls: whether an unknown field that is null, and so has no value to lose, counts as a part.
    """
    parts = {field.name: _inside(field.type, keep_nulls) for field in fields}

    def leftovers(value: Json) -> Any:
        if not isinstance(value, dict):
            return None
        unknown = {}
        for name, item in value.items():
            if name not in parts:
                if item is not None or keep_nulls:
                    unknown[name] = item
            elif (of_part := parts[name]) is not None and (part := of_part(item)) is not None:
                unknown[name] = part
        return unknown or None

    return leftovers


def _inside(kind: pa.DataType, keep_nulls: bool) -> Leftovers | None:
    """Return the function for values of this type, or None if no value of the type has an unknown part."""
    if t.is_struct(kind):
        return leftovers_of(kind, keep_nulls=keep_nulls)
    if t.is_list(kind) or t.is_large_list(kind):
        of_item = _inside(kind.value_type, keep_nulls)
        return None if of_item is None else _of_items(of_item)
    if t.is_map(kind):
        of_value = _inside(kind.item_type, keep_nulls)
        return None if of_value is None else _of_values(of_value)
    return None


def _of_items(of_item: Leftovers) -> Leftovers:
    def leftovers(value: Json) -> Any:
        unknown = [of_item(item) for item in value] if isinstance(value, list) else []
        return unknown if any(item is not None for item in unknown) else None

    return leftovers


def _of_values(of_value: Leftovers) -> Leftovers:
    def leftovers(value: Json) -> Any:
        if not isinstance(value, dict):
            return None
        unknown = {name: part for name, item in value.items() if (part := of_value(item)) is not None}
        return unknown or None

    return leftovers


# The records in a piece for Arrow's reader: first a whole chunk, since threads wait for the interpreter at each call;
# then smaller pieces, if an odd record prevents the chunk as a whole. Still smaller pieces cost more than they save: a
# call takes as long as some forty records one by one.
_SIZES = (65536, 512)


class JsonDecoder(SchemaDecoder):
    """Decoder of JSON documents into tables of an Arrow schema; `nullable=False` makes a field required.

    :param schema: columns and their types.
    :param unknown_fields: "ignore" skips fields without a column, "fail" rejects the record, "rescue" puts the fields
        into the column RESCUED as the text of one object; "evolve" rejects the record and returns its unknown fields.
    :param out_of_range: treatment of values outside the range of a column's type, in the forms that Debezium
        writes; see `scalars_of`. None for JSON without these forms.
    :param finer: treatment of times finer than microseconds.
    :param is_event: documents are change events of Debezium, whose member `before` is a row before a change.
    :param within: with "evolve", the members of the document in which fields need a column; by default the whole
        document.
    """

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: UnknownFields | str = UnknownFields.IGNORE,
        *,
        within: Sequence[str] = (),
        out_of_range: OutOfRange | None = None,
        finer: TimestampsFiner = TimestampsFiner.REJECT,
        is_event: bool = False,
    ) -> None:
        super().__init__(schema, unknown_fields)
        self._rescues = self.unknown_fields is UnknownFields.RESCUE
        if self._rescues and RESCUED not in schema.names:
            raise InvalidArgument("schema", f"it has no column {RESCUED} for unknown_fields='rescue'.")
        known = [field for field in schema if not (self._rescues and field.name == RESCUED)]
        # The columns that documents fill.
        self._known = pa.schema(known)
        fails, scalars = self.unknown_fields is UnknownFields.FAIL, scalars_of(out_of_range, finer)
        special = {"before": scalars_before(out_of_range, finer)} if is_event else None
        self._coerce = fields_coercer(known, fail_unknown=fails, scalars=scalars, special=special)
        self._out_of_range, self._finer, self._is_event = out_of_range, finer, is_event
        watched = [field for field in known if field.name in within] if within else known
        self._leftovers = leftovers_of(watched, keep_nulls=self._rescues)
        self._within = tuple(within)
        self._plain = [leaves.plain(field.type) for field in schema]
        self._layouts: LayoutParser | None = LayoutParser(self._known, self.unknown_fields, self._within, finer)
        self._bulk: BulkParser | None
        try:
            self._bulk = BulkParser(
                self._known,
                ignore_unknown=self.unknown_fields is UnknownFields.IGNORE,
                within=self._within,
                finer=finer,
            )
        except NotInBulk:
            self._bulk = None

    def __reduce__(self) -> tuple[Any, ...]:
        make = partial(
            type(self), within=self._within, out_of_range=self._out_of_range, finer=self._finer, is_event=self._is_event
        )
        return (make, (self.schema, str(self.unknown_fields)))

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch."""
        return self.decode_and_find(batch)[0]

    def decode_and_find(self, batch: RawBatch) -> tuple[DecoderResult, Mapping[int, Json]]:
        """Return rows and bad records; and with "evolve", unknown fields by position in the batch.

        A record with unknown fields is a bad record, too. The unknown fields of a record that is bad for another reason
        are not returned.
        """
        # Layouts first: Arrow's reader takes more than twice their time.
        tables, rows = self._layouts.parse(batch.values) if self._layouts else ([], [])
        tables = [self._in_order(table) for table in tables]
        is_left = np.ones(len(batch), np.bool_)
        for decoded_rows in rows:
            is_left[decoded_rows] = False
        left = np.flatnonzero(is_left)
        bad = _BadDocuments()
        if len(left) == len(batch):
            # No layout fits any record: the batch is read without a copy.
            tables = list(self._pieces(batch.values, 0, len(batch), _SIZES, bad))
            return self._decoded(tables, bad.rows, batch), bad.unknown
        if len(left):
            tables += self._pieces(batch.values.take(pa.array(left)), 0, len(left), _SIZES, bad)
            is_good = np.ones(len(left), np.bool_)
            is_good[[row.index for row in bad.rows]] = False
            bad = bad.placed(left)
            rows = [*rows, left[is_good]]
        decoded = self._decoded(tables, bad.rows, batch)
        order = np.concatenate([*rows, left[:0]])
        if (order[1:] < order[:-1]).any():
            decoded = replace(decoded, rows=decoded.rows.take(pa.array(np.argsort(order))))
        return decoded, bad.unknown

    def _decoded(self, pieces: Sequence[pa.Table], bad: Sequence[BadRow], batch: RawBatch) -> DecoderResult:
        table = pa.concat_tables(pieces) if pieces else self._from_rows([])
        if table.num_rows + len(bad) != len(batch):
            raise AssertionError(f"{table.num_rows} rows and {len(bad)} bad records of {len(batch)}")
        return DecoderResult(table, bad)

    def _with_empty_rescued(self, table: pa.Table) -> pa.Table:
        """Return the table with an empty column for rescued fields, if the decoder rescues fields."""
        if not self._rescues:
            return table
        column = self.schema.field(RESCUED)
        return self._in_order(table.append_column(column, pa.nulls(len(table), column.type)))

    def _in_order(self, table: pa.Table) -> pa.Table:
        if not self._rescues:
            return table
        # Not by a cast, which refuses a null struct with a required field.
        return pa.Table.from_arrays([table[name] for name in self.schema.names], schema=self.schema)

    def _pieces(
        self, values: pa.Array, start: int, stop: int, sizes: tuple[int, ...], bad: _BadDocuments
    ) -> Iterator[pa.Table]:
        """Yield tables with the rows of values [start, stop), in order; add bad records to `bad`.

        :param sizes: sizes of pieces for Arrow's reader, the largest first; a piece that can't be proven right is tried
            again with the next size, and at last its records are decoded one by one.
        """
        if self._bulk is None or not sizes:
            yield from self._one_by_one(values, start, stop, bad)
            return
        for first in range(start, stop, sizes[0]):
            last = min(first + sizes[0], stop)
            try:
                yield self._with_empty_rescued(self._bulk.parse(values[first:last]))
            except NotInBulk:
                smaller = tuple(size for size in sizes[1:] if size < last - first)
                yield from self._pieces(values, first, last, smaller, bad)

    def _one_by_one(self, values: pa.Array, start: int, stop: int, bad: _BadDocuments) -> Iterator[pa.Table]:
        rows = []
        for index, value in enumerate(values[start:stop].to_pylist(), start):
            try:
                row, unknown = self._row(value)
            except Misfit as misfit:
                bad.rows.append(BadRow(index, misfit.reason))
                continue
            if unknown is None:
                rows.append(row)
            else:
                bad.rows.append(BadRow(index, "the schema has no column for a field of it"))
                bad.unknown[index] = unknown
        if rows:
            yield self._from_rows(rows)

    def _from_rows(self, rows: Sequence[dict[str, Any]]) -> pa.Table:
        columns = [
            pa.array([row[field.name] for row in rows], plain).cast(field.type)
            for field, plain in zip(self.schema, self._plain, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _watched(self, document: dict[str, Json]) -> dict[str, Json]:
        return {name: document[name] for name in self._within if name in document} if self._within else document

    def _row(self, value: bytes | None) -> tuple[dict[str, Any], Json]:
        """Return a row; and, with "evolve", the unknown fields, or None if all have columns. Raises Misfit."""
        if value is not None:
            document = parse_object(value)
            row: dict[str, Any] = self._coerce(document)
            if self.unknown_fields is UnknownFields.EVOLVE:
                return row, self._leftovers(self._watched(document))
            if self._rescues:
                unknown = self._leftovers(document)
                row[RESCUED] = None if unknown is None else to_text(unknown)
            return row, None
        required = [field.name for field in self.schema if not field.nullable]
        if required:
            raise Misfit(f"{required[0]}: the value is null (a tombstone), and the column is required")
        return dict.fromkeys(self.schema.names), None


@dataclass
class _BadDocuments:
    """Bad records with reasons, and unknown fields by position; see `JsonDecoder.decode_and_find`."""

    rows: list[BadRow] = field(default_factory=list)
    unknown: dict[int, Json] = field(default_factory=dict)

    def placed(self, positions: npt.NDArray[np.int64]) -> _BadDocuments:
        """Return a copy with positions in the batch: `positions` has the position of each decoded record."""
        return _BadDocuments(
            [BadRow(int(positions[row.index]), row.reason) for row in self.rows],
            {int(positions[index]): unknown for index, unknown in self.unknown.items()},
        )


class WithoutColumn(Exception):
    """Documents have fields without a column; `leftovers` has the results of `leftovers_of` by position."""

    def __init__(self, leftovers: Mapping[int, Json]) -> None:
        super().__init__("documents hold fields that have no column")
        self.leftovers = leftovers


class StrictEventDecoder:
    """Decoder of change events in JSON. `decode` raises WithoutColumn if a field without a column is not null.

    :param schema: columns and their types.
    :param within: the members of an event, such as `after`, in which each field needs a column.
    :param out_of_range: see `JsonDecoder`.
    :param finer: see `JsonDecoder`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        within: Sequence[str],
        *,
        out_of_range: OutOfRange | None = None,
        finer: TimestampsFiner = TimestampsFiner.REJECT,
    ) -> None:
        self.schema = schema
        self._within = tuple(within)
        self._make = partial(type(self), out_of_range=out_of_range, finer=finer)
        self._documents = JsonDecoder(
            *(schema, UnknownFields.EVOLVE), within=within, out_of_range=out_of_range, finer=finer, is_event=True
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return self._make, (self.schema, self._within)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch. Raises WithoutColumn."""
        decoded, unknown = self._documents.decode_and_find(batch)
        if unknown:
            raise WithoutColumn(unknown)
        return decoded
