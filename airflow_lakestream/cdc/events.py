"""Change events decoded for a mirror: the row's columns, what happened, and where it stands in the source.

A column that the database got meanwhile comes up as a column of the rows, from the batch on in which it is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.cdc.columns import COMMIT, OF_EVENTS, OP, POSITION, SOURCE
from airflow_lakestream.core.formats import Format
from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.debezium import EVENT_COLUMNS
from airflow_lakestream.decode.formats import Payload
from airflow_lakestream.decode.outcome import Decoded

# What of an event's source says where it stands; PostgreSQL's connector has all of them.
_SOURCE_TYPE = pa.struct([("sequence", pa.string()), ("lsn", pa.int64()), ("ts_ms", pa.int64())])
_SEQUENCE = r'^\[(?:null|"(?P<commit>\d+)"), *(?:null|"(?P<lsn>\d+)")\]$'
# How far back from a batch's end an event is looked for that has the row as it is now.
_LOOK_BACK = 1_000


class EventPayload(Payload):
    """Payloads with change events in them, whose columns are those that a mirror needs."""

    def columns(self, first: RawBatch) -> pa.Schema:
        """Return the columns for these records; see `Payload.columns`."""
        return event_columns(super().columns(first))

    def decoder(self, schema: pa.Schema) -> Any:
        """Return the decoder of events for these columns, with where they stand in the source or with what tells it."""
        return _GrowingEvents(self, event_columns(schema))

    def of_columns(self, schema: pa.Schema) -> Any:
        """Return the decoder for exactly these columns."""
        return super().decoder(schema)


@dataclass
class _GrowingEvents:
    """Decodes events, with a column more when one has come up; they come with where they stand in the source."""

    payload: EventPayload
    schema: pa.Schema

    def decode(self, batch: RawBatch) -> Decoded:
        """Return the rows of a batch, and its bad records."""
        # Several threads decode with it: each works out its columns for itself.
        schema, tells = self.schema, _newest_event(batch)
        if tells is None:
            return self._decode(schema, batch)
        schema = grown(schema, self.payload.columns(tells))
        new = [name for name in schema.names if name not in self.schema.names]
        if not new or not _is_bare(self.payload, tells):
            return self._decode(schema, batch)
        # Nothing but the values tells the types: all of them, and nothing does where there are none.
        decoded = self._decode(grown(self.schema, self.payload.columns(batch)), batch)
        empty = [name for name in new if decoded.rows[name].null_count == len(decoded.rows)]
        return replace(decoded, rows=decoded.rows.drop_columns(empty))

    def _decode(self, schema: pa.Schema, batch: RawBatch) -> Decoded:
        decoded: Decoded = self.payload.of_columns(schema).decode(batch)
        return replace(decoded, rows=placed(decoded.rows))


def event_columns(row: pa.Schema) -> pa.Schema:
    """Return the columns that events are decoded into, for a mirror with these, or for what they were flattened to."""
    beside = (*EVENT_COLUMNS, COMMIT, POSITION)
    own = [field.with_nullable(True) for field in row if field.name not in beside]
    return pa.schema([*own, pa.field(OP, pa.string()), pa.field(SOURCE, _SOURCE_TYPE)])


def grown(schema: pa.Schema, seen: pa.Schema) -> pa.Schema:
    """Return the schema with the columns that it lacks, and wider types where they have become wider."""
    fields = [
        field.with_type(seen.field(field.name).type)
        if field.name in seen.names and _is_wider(seen.field(field.name).type, field.type)
        else field
        for field in schema
    ]
    new = [field for field in seen if field.name not in schema.names and field.name not in OF_EVENTS]
    return pa.schema([*fields, *new])


def _is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    if t.is_decimal(new) and t.is_decimal(old):
        return bool(new.scale == old.scale and new.precision > old.precision)
    return (old, new) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def _newest_event(batch: RawBatch) -> RawBatch | None:
    """Return the last record with a row after the change, alone; None without one near the end."""
    # Its columns are those that the database's table has by then: one that came and went before has no row left.
    for at in range(len(batch) - 1, max(-1, len(batch) - 1 - _LOOK_BACK), -1):
        value = batch.values[at]
        if value.is_valid and (b'"op":"d"' not in (text := value.as_py()) and b'"op":"t"' not in text):
            return _one(batch, at)
    return None


def _is_bare(payload: Payload, record: RawBatch) -> bool:
    """Tell whether a record comes without any schema."""
    return payload.format == Format.JSON and b'"schema"' not in record.values[0].as_py()[:20]


def _one(batch: RawBatch, at: int) -> RawBatch:
    cut = slice(at, at + 1)
    return replace(
        batch,
        offsets=batch.offsets[cut],
        timestamps=batch.timestamps[cut],
        values=batch.values[cut],
        keys=None if batch.keys is None else batch.keys[cut],
        headers=None if batch.headers is None else batch.headers[cut],
    )


def placed(rows: pa.Table) -> pa.Table:
    """Return decoded events with where they stand in the source, in place of what tells it."""
    source, ops = rows[SOURCE].combine_chunks(), rows[OP].combine_chunks()
    commit, position = _places(_member(source, "sequence"), _member(source, "lsn"), _member(source, "ts_ms"), ops)
    columns = {name: rows[name] for name in rows.column_names if name != SOURCE}
    return pa.table({**columns, COMMIT: commit, POSITION: position})


def _places(sequence: pa.Array, lsn: pa.Array, millis: pa.Array, ops: pa.Array) -> Sequence[pa.Array]:
    """Return for each event the commit that it came after, and its place behind that.

    Not the place in the log alone: of two transactions at once, the one that commits later may have begun earlier.
    What a snapshot read stands before all that was streamed since.
    """
    parts = pc.extract_regex(sequence, _SEQUENCE)
    after, own = (_integers(parts, name) for name in ("commit", "lsn"))
    own = pc.coalesce(lsn, own)
    commit = pc.coalesce(after, own, pc.multiply(millis, 1000), pa.scalar(0, pa.int64()))
    read = pc.fill_null(pc.equal(ops, "r"), False)
    position = pc.if_else(read, pa.scalar(0, pa.int64()), pc.coalesce(own, pa.scalar(0, pa.int64())))
    return commit, position


def _integers(parts: pa.Array, name: str) -> pa.Array:
    text = pc.struct_field(parts, name)
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text).cast(pa.int64())


def _member(source: pa.Array, name: str) -> pa.Array:
    return pc.struct_field(source, name)
