"""Values from the record itself: metadata columns of each row, and routes, which name the table of each row."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.names import METADATA_NAMES as METADATA_NAMES
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.core.routing import (
    ROUTE_COLUMNS,
    SEPARATOR,
    NamePlaceholder,
    PlaceholderOrigin,
    TableTemplate,
    Unroutable,
)
from airflow_lakestream.decode.values.outcome import BadRow, quoted
from airflow_lakestream.exceptions import InvalidArgument, UnknownValue
from airflow_lakestream.tables.schema.value_ranges import MAX_MILLIS, MIN_MILLIS

NO_TIMESTAMP = -1


def metadata_schema(names: Iterable[str], payload: pa.Schema | None = None) -> pa.Schema:
    """Return the metadata columns of these names, in this order.

    Raises UnknownValue for an unknown name, InvalidArgument for a repeated name or a column that `payload` has, too.
    """
    fields = []
    for name in names:
        if name not in _COLUMNS:
            raise UnknownValue("metadata_columns", name, _COLUMNS)
        field = _COLUMNS[name][0]
        if field in fields:
            raise InvalidArgument("metadata_columns", f"{name!r} is listed twice.")
        if payload is not None and field.name in payload.names:
            remedy = f"Rename the field, or leave {name!r} out."
            raise InvalidArgument("metadata_columns", f"the payload has a column {field.name}, too.", remedy)
        fields.append(field)
    return pa.schema(fields)


def metadata_columns(batch: RawBatch, names: Iterable[str]) -> list[pa.Array]:
    """Return an array for each name, with an entry for each record; no timestamp may be out of range.

    A record without a timestamp has null. Raises InvalidArgument if a part of the records was not read.
    """
    names = list(names)
    metadata_schema(names)
    return [_COLUMNS[name][1](batch) for name in names]


def _topic(batch: RawBatch) -> pa.Array:
    return pa.repeat(batch.topic, len(batch))


def _partition(batch: RawBatch) -> pa.Array:
    return pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch))


def _offset(batch: RawBatch) -> pa.Array:
    return _integers(batch.offsets)


def _integers(values: Sequence[int]) -> pa.Array:
    if isinstance(values, range) and len(values):
        # A cumulative sum needs no Python object for each number.
        steps = pa.repeat(pa.scalar(values.step, pa.int64()), len(values))
        return pc.cumulative_sum(steps, start=pa.scalar(values.start - values.step, pa.int64()))
    # An array of machine integers first: Arrow takes five times as long for Python's own integers.
    numbers = values if isinstance(values, array) else array("q", values)
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def bad_timestamps(batch: RawBatch) -> list[BadRow]:
    """Return the records with timestamps outside a column's range, since producers may write any 64 bits."""
    millis = np.asarray(batch.timestamps, np.int64)
    if not len(millis) or MIN_MILLIS <= millis.min() <= millis.max() <= MAX_MILLIS:
        return []
    places = np.flatnonzero((millis < MIN_MILLIS) | (millis > MAX_MILLIS))
    return [BadRow(int(place), f"the record's timestamp {millis[place]} ms is out of range") for place in places]


def _timestamp(batch: RawBatch) -> pa.Array:
    millis = _integers(batch.timestamps)
    millis = pc.if_else(pc.equal(millis, NO_TIMESTAMP), pa.scalar(None, pa.int64()), millis)
    return pc.multiply_checked(millis, 1000).cast(pa.timestamp("us", "UTC"))


def _read(part: RecordPart, batch: RawBatch) -> pa.Array:
    if (column := getattr(batch, part)) is None:
        raise InvalidArgument("metadata_columns", f"the records were read without their {part}.")
    return column


def last_header(headers: pa.Array, name: str) -> pa.Array:
    """Return the value of each record's last header of a name, like Kafka's lastHeader(), or null."""
    pairs = pc.list_flatten(headers)
    owners = pc.list_parent_indices(headers).to_numpy()
    named = np.flatnonzero(pc.equal(pairs.field("key"), name))
    # If a record has several such headers, the last of these assignments stays.
    places = np.full(len(headers), -1, np.int64)
    places[owners[named]] = named
    return pairs.field("value").take(pa.array(places, mask=places < 0))


HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

_COLUMNS: dict[str, tuple[pa.Field, Callable[[RawBatch], pa.Array]]] = {
    "topic": (pa.field("_kafka_topic", pa.string()), _topic),
    "partition": (pa.field("_kafka_partition", pa.int32()), _partition),
    "offset": (pa.field("_kafka_offset", pa.int64()), _offset),
    "timestamp": (pa.field("_kafka_timestamp", pa.timestamp("us", "UTC")), _timestamp),
    "key": (pa.field("_kafka_key", pa.binary()), partial(_read, RecordPart.KEY)),
    "headers": (pa.field("_kafka_headers", HEADERS), partial(_read, RecordPart.HEADERS)),
    "timestamp_type": (pa.field("_kafka_timestamp_type", pa.string()), partial(_read, RecordPart.TIMESTAMP_TYPE)),
}
# The metadata column of each part.
PART_FIELDS = {part: _COLUMNS[part.name.lower()][0] for part in RecordPart}


# Returns the reasons against some of the given routes, by route; the second argument is the rows' schema.
Refusals = Callable[[Sequence[str], pa.Schema], Mapping[str, str]]
_PARTS = {PlaceholderOrigin.KEY: RecordPart.KEY, PlaceholderOrigin.HEADER: RecordPart.HEADERS}


@dataclass(frozen=True)
class RecordRouter:
    """Finder of routes: a route is a record's values for the placeholders in the template of the table's name."""

    template: TableTemplate
    refusals: Refusals

    @property
    def parts(self) -> frozenset[RecordPart]:
        """The parts of records by which rows are routed."""
        return frozenset(_PARTS[p.origin] for p in self.template.by_record if p.origin in _PARTS)

    def check(self, schema: pa.Schema) -> None:
        """Refuse a payload without the fields for routing, or of types unfit for tables. Raises InvalidArgument."""
        for placeholder in self.template.by_record:
            if placeholder.origin is not PlaceholderOrigin.FIELD:
                continue
            if placeholder.name not in schema.names:
                columns = ", ".join(schema.names)
                raise InvalidArgument(
                    "table",
                    f"{self.template.text!r}: the schema has no column {placeholder.name!r}; it has {columns}.",
                    "Route by one of those, or add the column to the schema.",
                )
            kind = schema.field(placeholder.name).type
            if not _names_tables(kind):
                raise InvalidArgument(
                    "table",
                    f"{self.template.text!r}: the column {placeholder.name!r} is {kind}, by which no table is named.",
                    "Route by a string, an integer, a boolean, a decimal or a date.",
                )

    def routes(self, batch: RawBatch, rows: pa.Table) -> tuple[pa.Array, Sequence[BadRow]]:
        """Return the route of each row, and the records without a possible route as bad rows.

        The route of such a record is null. A route is impossible if a value is missing or can't be part of a table's
        name, or if `refusals` has a reason.
        """
        bad: dict[int, str] = {}
        parts = [self._values(placeholder, batch, rows, bad) for placeholder in self.template.by_record]
        encoded = pc.dictionary_encode(parts[0] if len(parts) == 1 else _joined(parts))
        routes = encoded.dictionary.to_pylist()
        problems = {route: problem for route in routes if (problem := self._problem(route)) is not None}
        problems |= self.refusals([route for route in routes if route not in problems], rows.schema)
        if problems:
            # All rows at once, since there may be a route for each record.
            refused = pa.array([route in problems for route in routes]).take(encoded.indices)
            for index in np.flatnonzero(refused.fill_null(False)):
                bad.setdefault(int(index), problems[routes[encoded.indices[int(index)].as_py()]])
            encoded = pc.if_else(refused, pa.scalar(None, encoded.type), encoded)
        return encoded, [BadRow(index, bad[index]) for index in sorted(bad)]

    def _problem(self, route: str) -> str | None:
        """Return the reason against a route, or None. No name may have the separator, a control character."""
        values = route.split(SEPARATOR)
        try:
            if len(values) != len(self.template.by_record):
                raise Unroutable("holds a control character")
            self.template.table(values)
        except Unroutable as e:
            pairs = zip(self.template.by_record, values, strict=False)
            return f"its {' and '.join(f'{p} {quoted(v)}' for p, v in pairs)} {e}"
        return None

    def _values(self, placeholder: NamePlaceholder, batch: RawBatch, rows: pa.Table, bad: dict[int, str]) -> pa.Array:
        """Return the values for a placeholder as texts; null, with a reason in `bad`, for a record without a value."""
        if placeholder.origin is PlaceholderOrigin.FIELD:
            values = rows[placeholder.name].combine_chunks().cast(pa.string())
            # A column of text may have the text of an object or array.
            is_nested = pc.match_substring_regex(values, r"^\s*[\[{]")
            for index in np.flatnonzero(is_nested.fill_null(False)):
                text = quoted(values[int(index)].as_py())
                bad.setdefault(int(index), f"its {placeholder} is {text}, not a single value")
            values = pc.if_else(is_nested, pa.scalar(None, pa.string()), values)
        else:
            is_key = placeholder.origin is PlaceholderOrigin.KEY
            raw = batch.keys if is_key else batch.headers
            if raw is None:
                raise AssertionError(f"the records were read without {'keys' if is_key else 'headers'}")
            values = _text(raw if is_key else last_header(raw, placeholder.name), placeholder, bad)
        for index in np.flatnonzero(values.is_null()):
            bad.setdefault(int(index), f"it has no {placeholder} to route by")
        return values


def route_columns(batch: RawBatch, routes: pa.Array) -> list[tuple[str, pa.Array]]:
    """Return route, partition and offset of each row, with the names of these columns."""
    return list(zip(ROUTE_COLUMNS, [routes, *metadata_columns(batch, ("partition", "offset"))], strict=True))


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return pc.binary_join_element_wise(*parts, SEPARATOR)


def _names_tables(kind: pa.DataType) -> bool:
    checks = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean)
    return any(check(kind) for check in (*checks, pa.types.is_decimal, pa.types.is_date))


def _text(raw: pa.Array, placeholder: NamePlaceholder, bad: dict[int, str]) -> pa.Array:
    """Return bytes as text; null, with the reason in `bad`, for invalid UTF-8."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for index, value in enumerate(raw.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                bad.setdefault(index, f"its {placeholder} {value[:80]!r} is not UTF-8 text")
                texts.append(None)
        return pa.array(texts, pa.string())
