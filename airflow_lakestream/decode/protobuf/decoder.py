"""Decoder of Protobuf messages in Confluent's wire format."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.policies import TimestampsFiner, UnknownFields
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.framed import FramedDecoder, Read, groups, is_framed, schema_ids
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, Words
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.other_names import FieldNaming, identity_of, proto_of, protobuf_names
from airflow_lakestream.decode.protobuf import fields as protobuf_fields
from airflow_lakestream.decode.protobuf import values as protobuf_walk
from airflow_lakestream.decode.protobuf.fields import MessageColumn
from airflow_lakestream.decode.protobuf.schema import is_map
from airflow_lakestream.decode.protobuf.values import DELIMITED
from airflow_lakestream.decode.values.outcome import SchemaRefused, no_such_field

# The tag of a message that is at its end or has failed, and a number above all tags.
_DONE = np.uint64(2**64 - 1)
_MOST_TAG = np.uint64(2**32)
# The deepest level of nested messages, the same as in the official package.
_DEEPEST = 100

# The most steps with fewer lanes than _SMALL: messages that all have different unknown fields would take a step for
# each field.
_MOST_SMALL_STEPS = 500
_SMALL = 64
# After this number of steps for the same tag, with fewer lanes than this, a walk finds all further fields of the tag.
_MOST_ROUNDS = 16
_FEW_LANES = 256
# Whether this thread reads messages that the official package has rewritten: without groups, and in any number of
# steps. Other threads may use the same reader for a first reading at the same time.
_IS_SECOND_READING = ContextVar("lakestream_protobuf_second_reading", default=False)


class ProtobufMessageReader:
    """Reader of messages of the same type: all fields are checked, and fields with a column are read into it."""

    def __init__(self, descriptor: Any, fields: list[pa.Field], path: str, compiler: ProtobufCompiler) -> None:
        self._name = path or descriptor.full_name
        self._path = path
        self._compiler = compiler
        self._descriptor = descriptor
        names = [(field.name, identity_of(field)) for field in descriptor.fields]
        self._wanted = compiler.naming.places(descriptor.full_name, names, [field.name for field in fields], path)
        self._kinds = [leaves.plain(field.type) for field in fields]
        # The official package accepts no map entry with more than a key and a value.
        self._ignore_unknown = compiler.ignore_unknown and not descriptor.GetOptions().map_entry
        self._columns: dict[int, MessageColumn] = {}
        known = {field.name for field in descriptor.fields}
        placed = set(self._wanted.values())
        for place, field in enumerate(fields):
            if place not in placed and not field.nullable:
                raise Unfit(f"{self._inner(field.name)}: {no_such_field(field.name, known, 'message')}")
        for field in descriptor.fields:
            if field.name in self._wanted:
                column = fields[self._wanted[field.name]]
                self._columns[field.number] = compiler.column(field, column, self._inner(field.name))
            elif not compiler.ignore_unknown and fields:
                raise Unfit(f"{self._inner(field.name)}: there is no column for this field")

    def _inner(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _column_of(self, number: int) -> MessageColumn | None:
        """Return the reader of a field, or None for an unknown field.

        The reader of a field without a column is made at its first use, since a type may contain itself.
        """
        if number not in self._columns:
            field = self._descriptor.fields_by_number.get(number)
            if field is None:
                return None
            self._columns[number] = self._compiler.unwanted(field, self._inner(field.name))
        return self._columns[number]

    def read(self, lanes: ByteLanes, depth: int = 0) -> list[pa.Array]:
        """Read the lanes to the ends; return the columns."""
        if depth > _DEEPEST:
            lanes.fail(np.ones(len(lanes), np.bool_), f"{self._name}: nested deeper than {_DEEPEST} levels")
        run = protobuf_fields.FieldValues(len(lanes))
        tags, small_steps, last_tag, rounds = self._next_tags(lanes), 0, _DONE, 0
        # Each step reads the field with the lowest tag, in all messages whose next tag it is.
        while len(tags) and (tag := tags.min()) != _DONE:
            is_next = tags == tag
            is_all = bool(is_next.all())
            rows = run.everyone if is_all else np.flatnonzero(is_next)
            rounds = rounds + 1 if tag == last_tag else 0
            last_tag = tag
            small_steps += len(rows) < _SMALL
            if small_steps > _MOST_SMALL_STEPS and not _IS_SECOND_READING.get():
                lanes.fail(tags != _DONE, f"{self._name}: too many different fields")
                break
            part = lanes if is_all else lanes.take(rows)
            if rounds >= _MOST_ROUNDS and len(rows) < _FEW_LANES:
                self._walk(int(tag), part, rows, run, depth)
            else:
                self._step(int(tag), part, rows, run, depth)
            if is_all:
                tags = self._next_tags(part)
            else:
                tags[rows] = self._next_tags(part)
                lanes.put(rows, part)
        return self._finished(run, lanes)

    def _next_tags(self, lanes: ByteLanes) -> Words:
        """Read the next tag of each message; `_DONE` at the end of a message, and after a failure."""
        has_more = lanes.pos < lanes.end
        if has_more.all():
            # An invalid tag that is too large becomes _MOST_TAG, so that it differs from _DONE.
            tags = np.minimum(lanes.varints(self._name), _MOST_TAG)
            return tags if not lanes.failure.any() else np.where(lanes.failure == 0, tags, _DONE)
        tags = np.full(len(lanes), _DONE)
        rows = np.flatnonzero(has_more)
        if len(rows):
            part = lanes.take(rows)
            tags[rows] = self._next_tags(part)
            lanes.put(rows, part)
        return tags

    def _step(self, tag: int, part: ByteLanes, rows: Integers, run: protobuf_fields.FieldValues, depth: int) -> None:
        """Read the field of a tag in all these messages into its column, or skip the field."""
        number, wire = tag >> 3, tag & 7
        if tag >= _MOST_TAG or not number or wire not in (0, 1, 2, 5):
            part.fail(np.ones(len(part), np.bool_), f"{self._name}: no field begins like this")
            return
        column = self._column_of(number)
        if column is not None and wire == column.wire:
            column.take(part, rows, run, depth)
        elif column is not None and wire == DELIMITED and column.packable:
            column.take_packed(part, rows, run, depth)
        elif self._ignore_unknown:
            protobuf_walk.skip(wire, part, self._name)
        else:
            part.fail(np.ones(len(part), np.bool_), f"{self._name}: an unknown field, number {number}")

    def _walk(self, tag: int, part: ByteLanes, rows: Integers, run: protobuf_fields.FieldValues, depth: int) -> None:
        """Find all consecutive fields of this tag in each lane, and read all of them in a single step."""
        lanes, starts, ends = protobuf_walk.along(part, tag, self._name)
        items = part.take(lanes)
        items.pos = starts
        self._step(tag, items, rows[lanes], run, depth)
        failed = items.failure != 0
        part.pos = ends
        if failed.any():
            part.failure[lanes[failed]] = items.failure[failed]
            part.pos[lanes[failed]] = part.end[lanes[failed]] = 0

    def _finished(self, run: protobuf_fields.FieldValues, lanes: ByteLanes) -> list[pa.Array]:
        """Return the columns; a column without a field is null. Messages without a required field fail."""
        columns: list[pa.Array] = [None] * len(self._kinds)
        for field in self._descriptor.fields:
            place = self._wanted.get(field.name)
            if place is not None:
                columns[place] = self._columns[field.number].finish(run, lanes)
            elif field.is_required and not (_IS_SECOND_READING.get() and field.type == field.TYPE_GROUP):
                lanes.fail(~run.seen(field.number), f"{self._inner(field.name)}: the required field is missing")
        for place, kind in enumerate(self._kinds):
            if columns[place] is None:
                columns[place] = pa.nulls(len(lanes), kind)
        return columns


class ProtobufCompiler:
    """Compiler of readers of columns. All methods raise Unfit if no value of the field fits the column."""

    def __init__(self, naming: FieldNaming, *, ignore_unknown: bool, finer: TimestampsFiner) -> None:
        self.naming = naming
        self.finer = finer
        self.ignore_unknown = ignore_unknown
        self._checkers: dict[str, ProtobufMessageReader] = {}

    def message(self, descriptor: Any, fields: list[pa.Field], path: str = "") -> ProtobufMessageReader:
        """Return the reader of a message's fields."""
        return ProtobufMessageReader(descriptor, fields, path, self)

    def column(self, field: Any, column: pa.Field, path: str) -> MessageColumn:
        """Return the reader of a column."""
        return protobuf_fields.column(field, column, path, self)

    def unwanted(self, field: Any, path: str) -> MessageColumn:
        """Return a reader that checks and skips the values of a field without a column."""
        return protobuf_fields.unwanted(field, path, self)

    def checker(self, descriptor: Any) -> ProtobufMessageReader:
        """Return a reader of the message without any column, for validation."""
        if descriptor.full_name not in self._checkers:
            self._checkers[descriptor.full_name] = ProtobufMessageReader(descriptor, [], "", self)
        return self._checkers[descriptor.full_name]


# The most indexes in the path of a message.
_MOST_INDEXES = 32


class ProtobufDecoder(FramedDecoder):
    """Decoder of Protobuf; each value names the writer's schema and the message in the schema."""

    kind = "PROTOBUF"

    def _split(self, lanes: ByteLanes) -> Iterator[tuple[Hashable, int | None, Integers]]:
        framed = is_framed(lanes)
        lanes.fail(~framed, "the value does not begin as Confluent's wire format does, with a zero")
        ids = schema_ids(lanes, framed)
        for schema_id, rows in groups(ids, lanes.failure == 0):
            part = lanes.take(rows)
            messages = _messages(part)
            lanes.put(rows, part)
            for path, numbers in messages:
                yield (schema_id, path), schema_id, rows[numbers]

    def _compile(self, topic: str, key: Hashable) -> Read:
        assert isinstance(key, tuple)
        schema_id, path = key
        schema = self._registered(schema_id)
        try:
            descriptor = proto_of(schema).descriptor(path)
        except SchemaRefused as refused:
            raise Unfit(str(refused)) from None

        def read_by(naming: FieldNaming) -> Read:
            compiler = ProtobufCompiler(
                naming, ignore_unknown=self.unknown_fields is UnknownFields.IGNORE, finer=self.finer
            )
            reader = compiler.message(descriptor, list(self.schema))
            return _RetryingReader(descriptor, reader, compiler).read

        return self._by_names(topic, read_by, protobuf_names)


def _messages(lanes: ByteLanes) -> list[tuple[tuple[int, ...], Integers]]:
    """Move the lanes behind the message indexes; return each message's index path with the numbers of its lanes."""
    counts = lanes.zigzags("message indexes")
    lanes.fail((counts < 0) | (counts > _MOST_INDEXES), "message indexes: too many")
    live = lanes.failure == 0
    if live.all() and not counts.any():
        return [((0,), np.arange(len(lanes)))]
    # The first message, by far the most common, is written without any index.
    by_path: dict[tuple[int, ...], list[int]] = {(0,): np.flatnonzero(live & (counts == 0)).tolist()}
    rows = np.flatnonzero(live & (counts > 0))
    if len(rows):
        part, left = lanes.take(rows), counts[rows]
        paths: list[list[int]] = [[] for _ in rows]
        while (unfinished := np.flatnonzero((left > 0) & (part.failure == 0))).size:
            reading = part.take(unfinished)
            for number, index in zip(unfinished.tolist(), reading.zigzags("message indexes").tolist(), strict=True):
                paths[number].append(index)
            part.put(unfinished, reading)
            left[unfinished] -= 1
        lanes.put(rows, part)
        for number in np.flatnonzero(part.failure == 0).tolist():
            by_path.setdefault(tuple(paths[number]), []).append(int(rows[number]))
    return [(path, np.array(sorted(numbers), np.int64)) for path, numbers in by_path.items() if numbers]


class _RetryingReader:
    """Reader of messages in lanes; the official package rewrites failed messages for a second reading.

    The reader does not know rare forms (a message in several parts, groups, numbers of closed enums without a name),
    which the official package writes in the usual form. The package also decides whether the bytes are a message.
    """

    def __init__(self, descriptor: Any, reader: ProtobufMessageReader, compiler: ProtobufCompiler) -> None:
        from google.protobuf import message_factory

        self._message = message_factory.GetMessageClass(descriptor)
        self._reader = reader
        self._compiler = compiler

    def read(self, lanes: ByteLanes) -> list[pa.Array]:
        starts, ends = lanes.pos.copy(), lanes.end.copy()
        columns = self._reader.read(lanes)
        failed = np.flatnonzero(lanes.failure)
        if not len(failed):
            return columns
        rewritten: dict[int, bytes] = {}
        for lane in failed.tolist():
            message = self._rewritten(lanes.data[starts[lane] : ends[lane]].tobytes())
            if isinstance(message, str):
                lanes.replace_reason(lane, message)
            else:
                rewritten[lane] = message
        if not rewritten:
            return columns
        second_lanes = ByteLanes.over(pa.array(rewritten.values(), pa.binary()))
        token = _IS_SECOND_READING.set(True)
        try:
            second_columns = self._reader.read(second_lanes)
        finally:
            _IS_SECOND_READING.reset(token)
        # The place of each lane's values in the columns of both readings together.
        places = np.arange(len(lanes))
        for place, lane in enumerate(rewritten):
            # The reason is empty, which removes the failure, if the second reading succeeded.
            lanes.replace_reason(lane, second_lanes.reasons[second_lanes.failure[place]])
            places[lane] = len(lanes) + place
        both = [pa.concat_arrays([first, second]) for first, second in zip(columns, second_columns, strict=True)]
        return [column.take(pa.array(places)) for column in both]

    def _rewritten(self, value: bytes) -> bytes | str:
        """Return the message's bytes in the usual form, or the error's text."""
        from google.protobuf.message import DecodeError, EncodeError

        try:
            message = self._message.FromString(value)
            if self._compiler.ignore_unknown:
                message.DiscardUnknownFields()
            # Raises EncodeError with the missing fields.
            written: bytes = message.SerializeToString(deterministic=True)
            if self._compiler.ignore_unknown:
                # No column is lost: a schema with a column for a group is refused.
                _drop_groups(message)
                written = message.SerializePartialToString(deterministic=True)
        except (DecodeError, EncodeError, RecursionError) as error:
            return str(error).splitlines()[0]
        return written


def _drop_groups(message: Any) -> None:
    """Remove groups at any depth."""
    for field, value in message.ListFields():
        items = value if field.is_repeated else [value]
        if field.type == field.TYPE_GROUP:
            message.ClearField(field.name)
            continue
        if is_map(field):
            field, items = field.message_type.fields_by_name["value"], value.values()
        for item in items if field.message_type is not None else ():
            _drop_groups(item)
