"""Debezium's change events, flattened: the columns of the row, plus columns for operation and time of the change.

A row has its values from `after` the change; a deleted row has its values from `before`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.records import RawBatch
from airflow_lakestream.decode.connect.unavailable import NOTE, UNAVAILABLE_POLICY, UnavailablePolicy
from airflow_lakestream.decode.keys import ColumnDecoder
from airflow_lakestream.decode.values.outcome import DecoderResult
from airflow_lakestream.exceptions import InvalidArgument

Places = npt.NDArray[np.int64]

# Columns for parts of the event, each with the event's member. All other columns are the row's.
EVENT_COLUMNS = {
    "_op": "op",
    "_ts_ms": "ts_ms",
    "_ts_us": "ts_us",
    "_ts_ns": "ts_ns",
    "_source": "source",
    "_before": "before",
    "_after": "after",
    "_transaction": "transaction",
}
# Members with the row, called images here.
IMAGES = ("before", "after")
# Columns for parts of the event that a new table gets, if the events have the members.
_DEFAULT = ("_op", "_ts_ms", "_source", "_before")
# Members that an event may have without a column, and that are not unknown fields.
KNOWN_MEMBERS = tuple(EVENT_COLUMNS.values())

# Only events of MongoDB's connector have this member.
_MONGO = "updateDescription"
NO_EVENT = "op: null or missing, so the value is not a change event of Debezium"
FLATTENED = (
    "Has the transform ExtractNewRecordState flattened them? A mirror needs whole events, with their place in the "
    "log and the deleted row: take the transform out of the connector, and begin a new topic. Without a "
    "mirror, KafkaExtractOperator lands flattened ones as they are."
)
_MESSAGE = "op: 'm', so the value is a message and no change of a row"
# The operations with the row in `after`. Not an Arrow array, which would import pandas at the import of this module.
_HAS_ROW = ("c", "u", "r")


@dataclass(frozen=True)
class EventNaming:
    """Names of the row's columns, and of the columns for parts of the event.

    :param parts: columns for parts of the event, with the event's member for each part.
    :param renamed: new names of the row's renamed columns, by their names in the database.
    """

    parts: Mapping[str, str] = dataclasses.field(default_factory=lambda: EVENT_COLUMNS)
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def source(self, column: str) -> str:
        """Return the name in the database for a column of the row."""
        return self._sources.get(column, column)

    def in_source(self, columns: Iterable[pa.Field]) -> list[pa.Field]:
        """Return columns of the row under the database's names."""
        return [field.with_name(self.source(field.name)) for field in columns]

    @cached_property
    def _sources(self) -> Mapping[str, str]:
        return {column: name for name, column in self.renamed.items()}


USUAL = EventNaming()


def is_event(record: pa.Schema) -> bool:
    """Return whether records with these columns are change events, with an operation and an image of the row."""
    return "op" in record.names and bool(_images(record))


def row_of(event: pa.Schema) -> list[pa.Field]:
    """Return the columns of the row in events with these columns, all nullable.

    Raises InvalidArgument if the records are not events or are MongoDB's, or if a column has another type in each
    image.
    """
    if _MONGO in event.names and "op" in event.names:
        problem = "the change events are MongoDB's: their documents are text, and no rows with columns."
        remedy = "Let Debezium's transform ExtractNewDocumentState send documents as records, and leave envelope out."
        raise InvalidArgument("envelope", problem, remedy)
    if not is_event(event):
        problem = f"records with the fields {', '.join(event.names)} are not change events of Debezium."
        raise InvalidArgument("envelope", problem, f"{FLATTENED} Or leave envelope out, or give the columns as schema.")
    return _merged([list(field.type) for field in _images(event)])


def _images(record: pa.Schema) -> list[pa.Field]:
    images = [record.field(name) for name in ("after", "before") if name in record.names]
    return [field for field in images if t.is_struct(field.type)]


def flattened(event: pa.Schema, notes: bool = False) -> pa.Schema:
    """Return the columns of a new table for events with these columns. Raises the errors of `row_of`.

    :param notes: whether to add a column for the names of values that an event leaves out.
    """
    row = row_of(event)
    if taken := [field.name for field in row if field.name in EVENT_COLUMNS or (notes and field.name == NOTE)]:
        raise InvalidArgument(
            "envelope",
            f"the database's table has a column {', '.join(taken)}, a name that a part of the change event has here.",
            "Give the columns as schema, without it; or let the connector leave it out (column.exclude.list).",
        )
    parts = []
    for name in _DEFAULT:
        member = EVENT_COLUMNS[name]
        if member == "before":
            parts.append(pa.field(name, pa.struct(row)))
        elif member in event.names:
            parts.append(pa.field(name, event.field(member).type))
    if notes:
        parts.append(pa.field(NOTE, pa.list_(pa.string())))
    return pa.schema([*row, *parts])


def _merged(groups: Sequence[Sequence[pa.Field]]) -> list[pa.Field]:
    """Return each field of the groups once, and nullable: a delete may have only the key.

    Raises InvalidArgument if a field has several types.
    """
    fields: dict[str, pa.Field] = {}
    for group in groups:
        for field in group:
            first = fields.setdefault(field.name, field.with_nullable(True))
            if first.type != field.type:
                problem = f"{field.name} is {first.type} in one image of the row, and {field.type} in another."
                raise InvalidArgument("schema", problem, "Give the row's column and those of _before one type.")
    return list(fields.values())


def event_schema(schema: pa.Schema, naming: EventNaming = USUAL) -> pa.Schema:
    """Return the columns of the events' members, for a table with the columns `schema`.

    Raises InvalidArgument if an image's column is not a struct, or if a field has several types.
    """
    images = [naming.in_source(field for field in schema if field.name not in naming.parts)]
    for field in schema:
        if naming.parts.get(field.name) in IMAGES:
            if not t.is_struct(field.type):
                problem = f"{field.name} can't be {field.type}: it is the row."
                raise InvalidArgument("schema", problem, "Make it a struct.")
            images.append(naming.in_source(field.type))
    image = pa.struct(_merged(images))
    members = {
        "before": pa.field("before", image),
        "after": pa.field("after", image),
        "op": pa.field("op", pa.string()),
    }
    for field in schema:
        member = naming.parts.get(field.name)
        if member is not None and member not in members:
            members[member] = pa.field(member, field.type)
    return pa.schema(list(members.values()))


class DebeziumDecoder:
    """Decoder of change events into rows, with the columns of `EventNaming.parts`.

    :param schema: the table's columns.
    :param make: returns a decoder of events into their members; see `event_schema`.
    :param unavailable: treatment of values that events leave out.
    """

    def __init__(
        self,
        schema: pa.Schema,
        make: Callable[[pa.Schema], ColumnDecoder],
        naming: EventNaming = USUAL,
        unavailable: UnavailablePolicy = UNAVAILABLE_POLICY,
    ) -> None:
        self.schema = schema
        self._make = make
        self._naming = naming
        self._unavailable = unavailable
        self._events = make(event_schema(unavailable.without_note(schema), naming))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schema, self._make, self._naming, self._unavailable)

    def decode(self, batch: RawBatch) -> DecoderResult:
        """Return the rows and the bad records of a batch.

        A tombstone becomes a row of nulls, and is bad if the table has a required column.
        """
        decoded = self._events.decode(batch)
        events = decoded.rows.combine_chunks()
        places = np.delete(np.arange(len(batch)), [row.index for row in decoded.bad])
        # The reasons of bad events, by row.
        reasons: dict[int, str] = {}
        self._find_bad_events(batch, events, places, reasons)
        columns = [self._column(field, events) for field in self._unavailable.without_note(self.schema)]
        columns = self._unavailable.replace_left_out(self.schema, columns, self._naming.parts, reasons)
        for field, column in zip(self.schema, columns, strict=True):
            for row in () if field.nullable else _true_rows(column.is_null()):
                reasons.setdefault(row, f"{field.name}: null, and the column is required")
        return decoded.refined(places, reasons, columns, self.schema)

    def _find_bad_events(self, batch: RawBatch, events: pa.Table, places: Places, reasons: dict[int, str]) -> None:
        """Add the reasons of bad events to `reasons`, by row.

        A document without an operation is bad, and so are a message, a change without the row after it, and a delete
        without an image of the row. A tombstone has no operation either, but is not bad.
        """
        op = _member(events, "op")
        for row in _true_rows(pc.and_(op.is_null(), batch.values.take(pa.array(places)).is_valid())):
            reasons[row] = NO_EVENT
        for row in _true_rows(pc.fill_null(pc.equal(op, "m"), False)):
            reasons[row] = _MESSAGE
        is_change = pc.fill_null(pc.is_in(op, pa.array(_HAS_ROW)), False)
        for row in _true_rows(pc.and_(is_change, _member(events, "after").is_null())):
            reasons[row] = f"after: null, in an event whose op is {op[row].as_py()!r}"
        lacks_row = pc.and_(_member(events, "before").is_null(), _member(events, "after").is_null())
        for row in _true_rows(pc.and_(pc.fill_null(pc.equal(op, "d"), False), lacks_row)):
            reasons[row] = "before: null, in an event whose op is 'd', so it does not show which row was deleted"

    def _column(self, field: pa.Field, events: pa.Table) -> pa.Array:
        member = self._naming.parts.get(field.name)
        if member is None:
            return _row_column(events, self._naming.source(field.name))
        column = _member(events, member)
        return _narrowed(column, field.type, self._naming) if member in IMAGES else column


def _row_column(events: pa.Table, name: str) -> pa.Array:
    """Return a column of the row: from the image `after`, or from `before` if the row was deleted."""
    before, after = _member(events, "before"), _member(events, "after")
    deleted = pc.and_(after.is_null(), before.is_valid()).to_numpy(zero_copy_only=False)
    column = _field(after, name)
    if not deleted.any():
        return column
    numbers = np.arange(len(after))
    both = pa.concat_arrays([column, _field(before, name)])
    return both.take(pa.array(np.where(deleted, numbers + len(after), numbers)))


def _narrowed(image: pa.Array, kind: pa.DataType, naming: EventNaming) -> pa.Array:
    """Return the image with only the fields of `kind`, under the table's names."""
    if image.type == kind:
        return image
    children = [_field(image, naming.source(field.name)) for field in kind]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=image.is_null())


def _field(image: pa.Array, name: str) -> pa.Array:
    # By index: Arrow treats a name that begins with a dot as a path.
    return pc.struct_field(image, [image.type.get_field_index(name)])


def _member(events: pa.Table, name: str) -> pa.Array:
    column = events.column(name)
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)


def _true_rows(mask: pa.Array) -> list[int]:
    rows: list[int] = np.flatnonzero(mask.to_numpy(zero_copy_only=False)).tolist()
    return rows
