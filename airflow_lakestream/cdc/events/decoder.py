"""Decoder of change events for a mirror: the row's columns, the operation, and the event's log position.

A column added in the database becomes a column of the rows from the first batch that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, OP, POSITION, READ, READ_LAST, SOURCE, TIME, is_kept
from airflow_lakestream.cdc.events.log_state import BINLOG_FIELDS, binlog_places, binlog_rows, first_without_position
from airflow_lakestream.cdc.events.names import ColumnNames
from airflow_lakestream.cdc.events.notes import with_notes
from airflow_lakestream.cdc.events.provenance import with_image, with_origin
from airflow_lakestream.cdc.events.record_keys import names_in
from airflow_lakestream.cdc.events.schemas import RecordSchemas, refuse_documents
from airflow_lakestream.cdc.events.widening import grown
from airflow_lakestream.cdc.stops import (
    ColumnTypeOrigin,
    MirrorStopped,
    StopReason,
    name_not_free,
    place_unknown,
    time_unknown,
    type_changed,
)
from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.policies import OutOfRange, ValueEnvelope
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect.debezium import FLATTENED, IMAGES, NO_EVENT, EventNaming, row_of
from airflow_lakestream.decode.connect.debezium_own import op_in_json, own_record
from airflow_lakestream.decode.connect.unavailable import UnavailablePolicy, ValuePlaceholder
from airflow_lakestream.decode.formats import PayloadFormats
from airflow_lakestream.decode.header_ids import KEY, VALUE
from airflow_lakestream.decode.json.decoder import StrictEventDecoder, WithoutColumn
from airflow_lakestream.decode.json.document import Json
from airflow_lakestream.decode.json.growing import grow
from airflow_lakestream.decode.keys import ColumnDecoder
from airflow_lakestream.decode.values.outcome import BadRow, DecoderResult, pick
from airflow_lakestream.exceptions import LakestreamError
from airflow_lakestream.tables.row_buffer import one_array
from airflow_lakestream.tables.schema.value_ranges import is_of_range, is_time_out_of_range

# The fields of an event's source with its position: in PostgreSQL's log, and in MySQL's and MariaDB's.
_SOURCE_TYPE = pa.struct(
    [
        *(("sequence", pa.string()), ("lsn", pa.int64()), ("ts_ms", pa.int64()), ("snapshot", pa.string())),
        *(("db", pa.string()), ("schema", pa.string()), ("table", pa.string()), ("txId", pa.int64())),
        *BINLOG_FIELDS,
    ]
)
_SEQUENCE = r'^\[(?:null|"(?P<commit>\d+)"), *(?:null|"(?P<lsn>\d+)")\]$'
# Debezium's mark of the last row of a table in a snapshot; all the snapshot's rows have one place in the log.
_LAST_OF_TABLE = pa.array(["last", "last_in_data_collection"])


@dataclass(frozen=True)
class EventPayload(PayloadFormats):
    """Payloads of change events, decoded into a mirror's columns.

    :param names: the names of the mirror's columns.
    :param key: the columns of the mirror's key, if the user names them.
    :param stops: whether a bad record ends the run.
    """

    names: ColumnNames = field(default_factory=ColumnNames)
    key: tuple[str, ...] = ()
    stops: bool = False

    @property
    def parts(self) -> frozenset[RecordPart]:
        """The parts of records that decoding reads; always keys, since keys show changes of the database's key."""
        return super().parts | {RecordPart.KEY}

    def remedy(self, reason: str) -> str:
        """Return the remedy for a bad record at the end of a run, given the reason."""
        remedy = FLATTENED if reason == NO_EVENT else "Correct what writes the records, or the schema."
        return f"Nothing of this batch was landed: without this change a row of the mirror would be wrong. {remedy}"

    @property
    def named_sides(self) -> tuple[str, ...]:
        """Sides of a record with a schema id: with a registry also keys, for the columns of the mirror's key."""
        return (KEY, VALUE) if self.registry is not None else super().named_sides

    @property
    def gets_columns(self) -> bool:
        """Whether each field of the row gets a column."""
        return True

    @property
    def place_column(self) -> str | None:
        """Column of an event's position in the log of the source."""
        return COMMIT

    def own_columns(self, names: Sequence[str]) -> list[str]:
        """Return the row's own columns among the columns of events."""
        own: list[str] = _own(pa.schema([(name, pa.null()) for name in names])).names
        return own

    def defines_columns(self, first: RawBatch) -> bool:
        """Return whether first records may have a row, unlike tombstones, truncations and Debezium's own records."""
        keyless = self._possible_truncations(first)
        return keyless is None or (bool(keyless) and not self._are_truncations(first, keyless))

    def keeps_for_later(self, first: RawBatch) -> bool:
        """Return whether first records without a row must wait for a row: a truncation may remove an older row."""
        return bool(self._possible_truncations(first))

    def _possible_truncations(self, first: RawBatch) -> list[int] | None:
        """Return the indices of the records that may be truncations, or None if an event has a key.

        A truncation is an event without a key. Tombstones and Debezium's own records are no events.
        """
        has_key = [False] * len(first) if first.keys is None else first.keys.is_valid().to_pylist()
        found = []
        for place, value in enumerate(first.values.to_pylist()):
            if value is not None and own_record(value) is None:
                if has_key[place]:
                    return None
                found.append(place)
        return found

    def _are_truncations(self, first: RawBatch, places: Sequence[int]) -> bool:
        """Return whether the events at these indices are truncations only. Raises the errors of decoding."""
        for place in places:
            op = op_in_json(first.values[place].as_py())
            if op is None:
                # Not in JSON: decode with the columns of its schema. Decoding has its own errors.
                events = pick(first, places)
                return set(self.decoder(self.columns(events)).decode(events).rows[OP].to_pylist()) == {"t"}
            if op != "t":
                return False
        return True

    def decoder(self, schema: pa.Schema) -> Any:
        """Return the decoder of events for the columns of a row.

        :param schema: the columns of a row, with or without the further columns of events.
        """
        events = _EventDecoder(self, event_columns(schema))
        return BadEventExplainer(events, self.columns, self.names.table, self.out_of_range, self.stops)

    def of_columns(self, schema: pa.Schema) -> ColumnDecoder:
        """Return the decoder for exactly these columns; see `_EventDecoder`."""
        return super().decoder(schema)

    def record_schemas(self) -> RecordSchemas:
        """Return the finder of columns in the records' schemas."""
        return RecordSchemas(self.format, self.finder, self.names.table)

    def value_columns(self, first: RawBatch) -> pa.Schema:
        """Return the columns of events for the columns of the records' rows."""
        row = self.record_schemas().row(first)
        if ValueEnvelope.CONNECT in self.format_row.envelopes and row:
            return self._of_row(row)
        # Take the records' columns: the registry's newest schema may have more, and bare JSON has no schema.
        return grown(super().value_columns(first), self._of_row(row))

    def row_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of events for the row in the columns of values."""
        return self._of_row(row_of(columns))

    def _of_row(self, row: Sequence[pa.Field]) -> pa.Schema:
        return event_columns(pa.schema(self.names.columns(row)))

    @property
    def unavailable(self) -> UnavailablePolicy:
        """Policy for values left out of events."""
        # The merge recognizes the default placeholder.
        return UnavailablePolicy(ValuePlaceholder(self.unavailable_placeholder), None)

    @property
    def naming(self) -> EventNaming:
        """Names of the columns of a row, and of the columns for parts of the event."""
        return self.names.naming

    def documents(self, schema: pa.Schema, unknown_fields: str) -> ColumnDecoder:
        """Return the decoder of plain JSON. While decoding, WithoutColumn is raised for an unknown field.

        `unknown_fields` is not used: in a mirror, each field of the row gets a column.
        """
        policy = OutOfRange(self.out_of_range)
        return StrictEventDecoder(schema, IMAGES, out_of_range=policy, finer=self.finer)


class _EventDecoder:
    """Decoder of events with log positions. New columns of the database are added while decoding.

    Each thread and process decodes with its own columns. Columns and rows of all are joined for the commit.
    """

    def __init__(self, payload: EventPayload, schema: pa.Schema) -> None:
        self._payload, self._schema = payload, schema
        self._schemas = payload.record_schemas()
        # The decoder for the last batch's columns: the next batch mostly has the same columns.
        self._decoder = payload.of_columns(with_image(schema, payload.key))
        # Cache of the schemas next to keys.
        self._prefixes: dict[bytes, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._payload, self._schema)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch.

        A column of the database that the mirror lacks becomes a column of the rows. Raises MirrorStopped for
        columns that the mirror can't have, SchemaRefused, and the registry's errors.
        """
        schema = self._with(self._schema, self._schemas.row(batch))
        # Decode again with more columns, until each field of the rows has a column.
        while True:
            decoder, columns = self._decoder, with_image(schema, self._payload.key)
            if decoder.schema != columns:
                self._decoder = decoder = self._payload.of_columns(columns)
            try:
                decoded = decoder.decode(batch)
            except WithoutColumn as found:
                schema = self._with_fields(schema, list(found.leftovers.values()))
                continue
            # A column keeps its first type: the rows of one process go into one file.
            self._schema = schema
            self._check_places(batch, decoded)
            names = self._key_names(batch, decoded)
            key = self._payload.key
            rows = with_origin(decoded.rows, key, names)
            if self._payload.names.rows.keeps_versions:
                rows = self._with_times(batch, decoded, rows)
            return replace(decoded, rows=with_notes(with_log_positions(rows), key))

    def _check_places(self, batch: RawBatch, decoded: DecoderResult) -> None:
        """Refuse events of a binary log without a position. Raises MirrorStopped."""
        at = first_without_position(decoded.rows[SOURCE].combine_chunks())
        if at is not None:
            place = np.delete(np.arange(len(batch)), [row.index for row in decoded.bad])[at]
            raise place_unknown(self._payload.names.table, batch.topic, batch.partition, batch.offsets[place])

    def _with_times(self, batch: RawBatch, decoded: DecoderResult, rows: pa.Table) -> pa.Table:
        """Return events with the times of their commits, in microseconds. Raises MirrorStopped for a missing time."""
        times = pc.multiply(_member(one_array(rows[SOURCE]), "ts_ms").cast(pa.int64()), 1000)
        if times.null_count:
            kept = np.delete(np.arange(len(batch)), [row.index for row in decoded.bad])
            offset = batch.offsets[kept[pc.index(times.is_valid(), False).as_py()]]
            raise time_unknown(self._payload.names.table, batch.topic, batch.partition, offset)
        return rows.append_column(TIME, times)

    def _key_names(self, batch: RawBatch, decoded: DecoderResult) -> pa.Array:
        """Return the columns of each good record's key, see `record_keys.names_in`."""
        keys = pa.nulls(len(batch), pa.binary()) if batch.keys is None else batch.keys
        if decoded.bad:
            keys = keys.take(pa.array(np.delete(np.arange(len(batch)), [row.index for row in decoded.bad])))
        return self._payload.names.in_keys(names_in(keys, self._payload.registry_client, self._prefixes))

    def _with(self, schema: pa.Schema, row: Sequence[pa.Field]) -> pa.Schema:
        """Return the schema with these columns of the database's table. Raises MirrorStopped."""
        return grown(schema, pa.schema(self._payload.names.columns(row, _own(schema).names)))

    def _with_fields(self, schema: pa.Schema, leftovers: Sequence[Json]) -> pa.Schema:
        """Return the schema with columns for unknown fields of JSON without schemas.

        Raises MirrorStopped for a name that the mirror can't have.

        :param leftovers: the unknown fields of each event, by image.
        """
        names = self._payload.names
        row = [one.with_name(names.naming.source(one.name)) for one in _own(schema)]
        images = [{"row": left[image]} for left in leftovers for image in IMAGES if image in left]
        found = grow(pa.schema([("row", pa.struct(row))]), images, self._payload.name_rules)
        # `grow` sees the row as a column named "row": its path comes first in the path of a field.
        for path, reason in found.refused.items():
            raise name_not_free(names.table, path.removeprefix("row."), reason)
        wider = self._with(schema, list(found.schema.field("row").type))
        # Otherwise the caller would decode the same batch for ever.
        if wider == schema:
            raise AssertionError(f"no column came of {leftovers[0]}")
        return wider


def event_columns(row: pa.Schema) -> pa.Schema:
    """Return the columns of decoded events, for a mirror with the columns `row`."""
    own = [field.with_nullable(True) for field in _own(row)]
    return pa.schema([*own, pa.field(OP, pa.string()), pa.field(SOURCE, _SOURCE_TYPE)])


def _own(schema: pa.Schema) -> pa.Schema:
    """Return the row's own columns among the columns of an event."""
    return pa.schema([one for one in schema if one.name not in (OP, SOURCE) and not is_kept(one.name)])


def with_log_positions(rows: pa.Table) -> pa.Table:
    """Return decoded events with the columns of the log position in place of the column `SOURCE`.

    The last row of a table in a snapshot gets the operation `READ_LAST`, if the row has a log position.
    """
    source, ops = rows[SOURCE].combine_chunks(), rows[OP].combine_chunks()
    commit, position = _places(_member(source, "sequence"), _member(source, "lsn"), _member(source, "ts_ms"), ops)
    in_binlog = binlog_places(source)
    if in_binlog.null_count < len(in_binlog):
        there = in_binlog.is_valid()
        commit = pc.coalesce(in_binlog, commit)
        position = pc.if_else(pc.and_(there, is_streamed(ops)), binlog_rows(source), position)
    is_last = pc.and_(pc.is_in(_member(source, "snapshot"), _LAST_OF_TABLE), pc.equal(ops, READ))
    # `READ_LAST` removes rows older than the snapshot; without a log position, these rows can't be recognized.
    has_place = pc.or_(_member(source, "lsn").is_valid(), in_binlog.is_valid())
    is_last = pc.fill_null(pc.and_(is_last, has_place), False)
    columns = {name: rows[name] for name in rows.column_names if name != SOURCE}
    columns[OP] = pc.if_else(is_last, READ_LAST, ops)
    return pa.table({**columns, COMMIT: commit, POSITION: position})


def _places(sequence: pa.Array, lsn: pa.Array, millis: pa.Array, ops: pa.Array) -> Sequence[pa.Array]:
    """Return for each event the commit before the event's transaction, and the position after this commit.

    The place in the log alone is not enough: of two concurrent transactions, the one that commits later may have begun
    earlier. A snapshot's rows come before all later events of the stream.

    :param sequence: of Debezium's source: last commit and position, as text in JSON.
    :param lsn: the position in the log; null for a log of another kind.
    :param millis: the time of the change, used in place of a missing position.
    :param ops: the operations.
    """
    parts = pc.extract_regex(sequence, _SEQUENCE)
    after, own = (_integers(parts, name) for name in ("commit", "lsn"))
    own = pc.coalesce(lsn, own)
    commit = pc.coalesce(after, own, pc.multiply(millis, 1000), pa.scalar(0, pa.int64()))
    streamed = pc.coalesce(own, pa.scalar(0, pa.int64()))
    return commit, pc.if_else(is_streamed(ops), streamed, pa.scalar(0, pa.int64()))


def log_places(sequence: pa.Array, lsn: pa.Array, ops: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the commit before each event's transaction, null if unknown, and the position after the commit.

    See `_places`.
    """
    commit, position = _places(sequence, lsn, pa.nulls(len(ops), pa.int64()), ops)
    parts = pc.extract_regex(sequence, _SEQUENCE)
    known = pc.or_(pc.coalesce(lsn, _integers(parts, "lsn")).is_valid(), _integers(parts, "commit").is_valid())
    return pc.if_else(known, commit, pa.scalar(None, pa.int64())), position


def is_streamed(ops: pa.Array) -> pa.Array:
    """Return a mask of the events from the database's log, in contrast to rows that a snapshot has read."""
    return pc.fill_null(pc.not_equal(ops, READ), True)


def _integers(parts: pa.Array, name: str) -> pa.Array:
    """Return a group of a regular expression's matches as integers; null for an empty or missing group."""
    text = pc.struct_field(parts, name)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text).cast(pa.int64())


def _member(source: pa.Array, name: str) -> pa.Array:
    """Return a field of events' sources; nulls if the sources lack the field."""
    if source.type.get_field_index(name) < 0:
        return pa.nulls(len(source), pa.string())
    return pc.struct_field(source, name)


_REMEDY = (
    'Set out_of_range="clamp" to get the nearest value that the column can hold, or "null" to get NULL. Or make the '
    'column a string, with schema="{column} string": drop the mirror, and let Debezium read the table again.'
)
_NO_POLICY = (
    'Make the column a string, with schema="{column} string": drop the mirror, and let Debezium read the table again.'
)


@dataclass
class BadEventExplainer:
    """Decoder of events by `inner`, with an explanation if a bad record ends the run.

    :param columns: finds the columns of an event in its content.
    :param policy: the value of the argument `out_of_range`, for the error.
    :param stops: whether a bad record ends the run.
    """

    inner: Any
    columns: Callable[[RawBatch], pa.Schema]
    table: str
    policy: str
    stops: bool

    @property
    def schema(self) -> pa.Schema:
        """The columns before the next batch."""
        held: pa.Schema = self.inner.schema
        return held

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch.

        If bad records end the run, and the first one shows a changed type or a value out of range, MirrorStopped is
        raised.
        """
        decoded: DecoderResult = self.inner.decode(batch)
        refuse_documents(self.table, batch, decoded.bad)
        if self.stops and decoded.bad and (stop := self._stop(batch, decoded)) is not None:
            raise stop
        return decoded

    def _stop(self, batch: RawBatch, decoded: DecoderResult) -> MirrorStopped | None:
        """Return the error for the first bad record, or None if the record does not show a change of the database."""
        bad = decoded.bad[0]
        name = _column(bad, decoded.rows.schema.names)
        # NULL has no type.
        if name is None or bad.reason.endswith(", and the column is required"):
            return None
        held, event_type = decoded.rows.schema.field(name).type, self._event_type(batch, bad.index, name)
        place = batch.partition, batch.offsets[bad.index]
        # A number may be too large because the database's column has become larger.
        is_of_type = is_time_out_of_range(bad.reason) or (
            is_of_range(bad.reason) and (event_type is None or event_type == held)
        )
        if event_type is not None and not is_of_type and event_type != held:
            return type_changed(
                self.table, name, ColumnTypeOrigin(held, "in the mirror"), ColumnTypeOrigin.at(event_type, *place)
            )
        if not is_of_range(bad.reason):
            return None
        problem = (
            f"the change event at partition {place[0]}, offset {place[1]} has a value that the column {name} "
            f'({held}) can\'t hold: {bad.reason.partition(".")[2]} (out_of_range="{self.policy}").'
        )
        remedy = _REMEDY if is_time_out_of_range(bad.reason) else _NO_POLICY
        return MirrorStopped(self.table, StopReason.VALUE_OUT_OF_RANGE, problem, remedy.format(column=name))

    def _event_type(self, batch: RawBatch, at: int, name: str) -> pa.DataType | None:
        """Return a column's type in the event at an index, by a batch of this single record; None if unknown."""
        try:
            columns = self.columns(batch.cut(slice(at, at + 1)))
        except LakestreamError:
            return None
        return columns.field(name).type if name in columns.names else None


def _column(bad: BadRow, names: Sequence[str]) -> str | None:
    """Return the column with the bad value, or None if the record is bad as a whole."""
    # The reason begins with the path of the value: the image, then the column, then maybe a field or an item. A
    # column's name may begin with another column's name.
    for image in IMAGES:
        path = bad.reason.removeprefix(f"{image}.")
        if path != bad.reason:
            found = [name for name in names if path.startswith(name) and path[len(name) : len(name) + 1] in (*":.[{",)]
            return max(found, key=len, default=None)
    return None
