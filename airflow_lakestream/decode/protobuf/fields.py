"""Columns from the fields of Protobuf messages, also from fields that are messages, lists or maps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.lanes import (
    ByteLanes,
    Integers,
    Mask,
    last_of_each_key,
    list_array,
    map_array,
    merged,
)
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.protobuf.schema import JSON_TYPES, TIMESTAMP, WRAPPERS, is_map
from airflow_lakestream.decode.protobuf.values import (
    DELIMITED,
    FIXED32,
    FIXED64,
    VARINT,
    packed_varints,
    scalar,
    span,
    wire_type,
)
from airflow_lakestream.tables.schema import value_ranges

# Reads a message in each lane, at a depth of nesting, and returns the messages as a column.
ReadMessage = Callable[[ByteLanes, int], pa.Array]

_NANOS = 1_000_000_000


def inside(reader: MessageReader, lanes: ByteLanes, depth: int, path: str) -> list[pa.Array]:
    """Read a message in each lane, behind the message's length; return the columns, and fail the lanes of bad messages.

    :param depth: number of messages around these.
    """
    starts, lengths = span(lanes, path)
    part = lanes.inside(starts, lengths)
    columns = reader.read(part, depth + 1)
    lanes.fail_with(part)
    return columns


def reader(descriptor: Any, kind: pa.DataType, path: str, compiler: ReaderCompiler) -> ReadMessage:
    """Return the reader of a message as a value of this type.

    A struct has a field for each column inside; a timestamp, a wrapper and JSON may be a single value. Raises Unfit.
    """
    name = descriptor.full_name
    if t.is_struct(kind):
        return _struct(descriptor, kind, path, compiler)
    if name == TIMESTAMP and t.is_timestamp(kind):
        return _timestamp(descriptor, kind, path, compiler)
    if name in WRAPPERS:
        # The value is null only if the wrapper is missing, not if it is the default.
        inner = compiler.message(descriptor, [pa.field("value", kind)], path)
        return lambda lanes, depth: inside(inner, lanes, depth, path)[0]
    if name in JSON_TYPES and (t.is_string(kind) or t.is_large_string(kind)):
        return _json(name, kind, path)
    raise Unfit(f"{path}: a message of type {name} can't become {kind}")


def _struct(descriptor: Any, kind: pa.DataType, path: str, compiler: ReaderCompiler) -> ReadMessage:
    inner, fields = compiler.message(descriptor, list(kind), path), list(leaves.plain(kind))
    return lambda lanes, depth: pa.StructArray.from_arrays(inside(inner, lanes, depth, path), fields=fields)


def _timestamp(descriptor: Any, kind: pa.DataType, path: str, compiler: ReaderCompiler) -> ReadMessage:
    if kind.unit != "us" or kind.tz is None:
        raise Unfit(f"{path}: an instant can't become {kind}")
    inner = compiler.message(descriptor, [pa.field("seconds", pa.int64()), pa.field("nanos", pa.int32())], path)
    low, high = value_ranges.MIN_MICROS // 1_000_000, value_ranges.MAX_MICROS // 1_000_000

    def read(lanes: ByteLanes, depth: int) -> pa.Array:
        columns = inside(inner, lanes, depth, path)
        # A missing part is the default, not null; nulls come from failed lanes.
        filled = (column.fill_null(0) if column.null_count else column for column in columns)
        seconds, nanos = (column.to_numpy().astype(np.int64, copy=False) for column in filled)
        lanes.fail((seconds < low) | (seconds > high), f"{path}: {value_ranges.NOT_A_YEAR}")
        lanes.fail((nanos < 0) | (nanos >= _NANOS), f"{path}: a timestamp with nanos out of range")
        if compiler.finer is TimestampsFiner.REJECT:
            lanes.fail(nanos % 1000 != 0, f"{path}: {value_ranges.FINER_MESSAGE}")
        return pa.array(seconds * 1_000_000 + nanos // 1000).view(pa.timestamp("us", kind.tz))

    return read


def _json(name: str, kind: pa.DataType, path: str) -> ReadMessage:
    """Return the reader of Protobuf's JSON types as text; a value that JSON can't express fails the lane."""
    from google.protobuf import json_format, struct_pb2
    from google.protobuf.message import DecodeError

    message = getattr(struct_pb2, name.rpartition(".")[2])

    def text(value: bytes) -> str | None:
        try:
            return str(json_format.MessageToJson(message.FromString(value), indent=None, sort_keys=True))
        except (DecodeError, json_format.Error, ValueError, RecursionError):
            return None

    def read(lanes: ByteLanes, depth: int) -> pa.Array:
        starts, lengths = span(lanes, path)
        # One by one: such values contain values of their own type, and are rare.
        texts = pa.array([text(value) for value in lanes.binary(starts, lengths).to_pylist()], kind)
        if texts.null_count:
            lanes.fail(texts.is_null().to_numpy(zero_copy_only=False), f"{path}: no value that JSON can show")
        return texts

    return read


class MessageReader(Protocol):
    """Reader of messages of the same type; see `protobuf.columns`."""

    def read(self, lanes: ByteLanes, depth: int = 0) -> list[pa.Array]:
        """Read the lanes to the ends; return the columns."""


class ReaderCompiler(Protocol):
    """Compiler of readers of columns; see `protobuf.columns`."""

    finer: TimestampsFiner

    def message(self, descriptor: Any, fields: list[pa.Field], path: str = "") -> MessageReader:
        """Return the reader of a message's fields. Raises Unfit."""

    def checker(self, descriptor: Any) -> MessageReader:
        """Return a reader of the message without any column, for validation."""


Read = Callable[[ByteLanes, int], pa.Array | None]

_WIDTHS = {FIXED64: 8, FIXED32: 4}


class FieldValues:
    """State of a reading of messages: the values so far, and the last member of each oneof in each message.

    `values` has, by field number, for each step of the reading, the messages' numbers and the values (None for a
    skipped field). `chosen` has, by oneof, the last field number in each message.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        # The numbers of all messages; a step for all messages uses this array itself, which `whole` checks.
        self.everyone = np.arange(count)
        self.values: dict[int, list[tuple[Integers, pa.Array | None]]] = {}
        self.chosen: dict[str, Integers] = {}

    def add(self, number: int, rows: Integers, values: pa.Array | None, oneof: str | None) -> None:
        """Add values of a field, with the row of each value; the field becomes the chosen member of its oneof."""
        self.values.setdefault(number, []).append((rows, values))
        if oneof is not None:
            if oneof not in self.chosen:
                self.chosen[oneof] = np.zeros(self.count, np.int64)
            self.chosen[oneof][rows] = number

    def whole(self, number: int) -> pa.Array | None:
        """Return the values of a field that all messages have exactly once, or None for another field.

        The values are then in the order of the messages.
        """
        steps = self.values.get(number, ())
        return steps[0][1] if len(steps) == 1 and steps[0][0] is self.everyone else None

    def seen(self, number: int) -> Mask:
        """Return a mask of the messages with the field."""
        mask = np.zeros(self.count, np.bool_)
        for rows, _ in self.values.get(number, ()):
            mask[rows] = True
        return mask


class MessageColumn(ABC):
    """A field of a message: the reader of values, and the conversion of the values to a column."""

    def __init__(self, field: Any, read: Read, path: str) -> None:
        self.number = field.number
        self.path = path
        self.wire = DELIMITED if field.type == field.TYPE_MESSAGE else wire_type(field)
        self.packable = field.is_repeated and self.wire != DELIMITED
        self.required = field.is_required
        self._read = read
        oneof = field.containing_oneof
        # An `optional` field is the only member of a oneof that the compiler makes.
        self._oneof = oneof.name if oneof is not None and len(oneof.fields) > 1 else None

    def take(self, part: ByteLanes, rows: Integers, run: FieldValues, depth: int) -> None:
        """Read a value in each lane.

        :param rows: the message of each lane.
        :param run: the state that gets the values.
        """
        run.add(self.number, rows, self._read(part, depth), self._oneof)

    def take_packed(self, part: ByteLanes, rows: Integers, run: FieldValues, depth: int) -> None:
        """Read any number of values in each lane, packed; see `take`."""
        starts, lengths = span(part, self.path)
        width = _WIDTHS.get(self.wire)
        if width is None:
            places, owners = packed_varints(part, starts, lengths, self.path)
        else:
            part.fail(lengths % width != 0, f"{self.path}: packed values that end early")
            counts = lengths // width
            owners = np.repeat(np.arange(len(part)), counts)
            first = np.repeat(np.cumsum(counts) - counts, counts)
            places = starts[owners] + (np.arange(len(owners)) - first) * width
        items = part.take(owners)
        items.pos, items.end = places, (starts + lengths)[owners]
        run.add(self.number, rows[owners], self._read(items, depth), self._oneof)
        failed = items.failure != 0
        part.failure[owners[failed]] = items.failure[failed]
        part.pos[owners[failed]] = part.end[owners[failed]] = 0

    @abstractmethod
    def finish(self, run: FieldValues, lanes: ByteLanes) -> pa.Array:
        """Return the column, with an entry for each of `lanes`; fail the lanes with an unfit message."""

    def _places(self, run: FieldValues) -> tuple[list[pa.Array], Integers, bool]:
        """Return (parts, places, has_several): the values, the place of each message's last value, and a flag.

        Places count across the parts; -1 for a message without a value, or with a later member of the oneof.
        `has_several` is true if a message has several values.
        """
        parts, places, count, has_several = [], np.full(run.count, -1, np.int64), 0, False
        for rows, values in run.values.get(self.number, ()):
            has_several = has_several or bool((places[rows] >= 0).any()) or len(rows) > run.count
            places[rows] = np.arange(count, count + len(rows))
            count += len(rows)
            parts.append(values)
        if self._oneof is not None and self._oneof in run.chosen:
            places[run.chosen[self._oneof] != self.number] = -1
        return parts, places, has_several


class SingleColumn(MessageColumn):
    """Field with a single value at most; the last value counts.

    A message in several parts fails the lane: Protobuf would merge the parts.
    """

    def __init__(self, field: Any, read: Read, path: str, column: pa.Field, default: pa.Array | None) -> None:
        super().__init__(field, read, path)
        self._kind = leaves.plain(column.type)
        self._nullable = column.nullable
        self._merges = field.type == field.TYPE_MESSAGE
        self._default = default
        self._presence = field.has_presence

    def finish(self, run: FieldValues, lanes: ByteLanes) -> pa.Array:
        """Return the column; a missing field becomes null if the field has presence, or else the default.

        A message's lane fails if a required field is missing, if a required column would get null, or if the default
        does not fit the column.
        """
        if self._oneof is None and (whole := run.whole(self.number)) is not None:
            return whole
        parts, places, has_several = self._places(run)
        if has_several and self._merges:
            self._refuse_parts(run, lanes)
        is_missing = places < 0
        if not is_missing.any() and len(parts) == 1 and len(parts[0]) == run.count:
            return parts[0]
        if self.required:
            lanes.fail(is_missing, f"{self.path}: the required field is missing")
        elif self._presence:
            if not self._nullable:
                lanes.fail(is_missing, f"{self.path}: null, and the column is required")
        elif self._default is None:
            lanes.fail(is_missing, f"{self.path}: its default does not fit the column")
        else:
            places = np.where(is_missing, sum(map(len, parts)), places)
            parts = [*parts, self._default]
        if not parts:
            return pa.nulls(run.count, self._kind)
        values = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return values.take(pa.array(places, mask=places < 0))

    def _refuse_parts(self, run: FieldValues, lanes: ByteLanes) -> None:
        counts = np.zeros(run.count, np.int64)
        for rows, _ in run.values[self.number]:
            np.add.at(counts, rows, 1)
        lanes.fail(counts > 1, f"{self.path}: a message in several parts")


class RepeatedColumn(MessageColumn):
    """Field with any number of values."""

    def __init__(self, field: Any, read: Read, path: str, column: pa.Field) -> None:
        super().__init__(field, read, path)
        self._kind = leaves.plain(column.type)

    def _all(self, run: FieldValues, kind: pa.DataType) -> tuple[pa.Array, Integers]:
        """Return the values, sorted by message, and the number of values in each message."""
        steps = run.values.get(self.number, [])
        owners = np.concatenate([rows for rows, _ in steps]) if steps else np.zeros(0, np.int64)
        parts = [values for _, values in steps]
        order = np.argsort(owners, kind="stable")
        values = merged(parts, order, kind)
        if len(parts) == 1 and np.any(owners[1:] < owners[:-1]):
            values = values.take(pa.array(order))
        return values, np.bincount(owners, minlength=run.count)

    def finish(self, run: FieldValues, lanes: ByteLanes) -> pa.Array:
        """Return the lists; a missing field is an empty list."""
        values, lengths = self._all(run, self._kind.value_type)
        return list_array(values, lengths, self._kind)


class MapColumn(RepeatedColumn):
    """A map: on the wire a list of entries."""

    def __init__(self, field: Any, read: Read, path: str, column: pa.Field) -> None:
        super().__init__(field, read, path, column)
        self._entry = pa.struct([("key", self._kind.key_type), ("value", self._kind.item_type)])

    def finish(self, run: FieldValues, lanes: ByteLanes) -> pa.Array:
        """Return the maps; of several entries with the same key the last counts."""
        entries, lengths = last_of_each_key(*self._all(run, self._entry))
        return map_array(entries, lengths, self._kind)


class SkippedField(MessageColumn):
    """Field without a column."""

    def finish(self, run: FieldValues, lanes: ByteLanes) -> pa.Array:
        """Refuse a call: the field has no column."""
        raise AssertionError("a field without a column")


def column(field: Any, column: pa.Field, path: str, compiler: ReaderCompiler) -> MessageColumn:
    """Return the reader of a field into a column. Raises Unfit."""
    if field.type == field.TYPE_GROUP:
        raise Unfit(f"{path}: a group can't become a column")
    if is_map(field):
        return MapColumn(field, _entry(field, column.type, path, compiler), path, column)
    if field.is_repeated:
        if not (t.is_list(column.type) or t.is_large_list(column.type)):
            raise Unfit(f"{path}: a repeated field can't become {column.type}")
        read, _ = value(field, column.type.value_type, f"{path}[]", compiler)
        return RepeatedColumn(field, read, path, column)
    read, default = value(field, column.type, path, compiler)
    return SingleColumn(field, read, path, column, default)


def value(field: Any, kind: pa.DataType, path: str, compiler: ReaderCompiler) -> tuple[Read, pa.Array | None]:
    """Return the reader of a field's single values, and the default of a missing field as `scalar` does.

    The default of a message is None: a missing message is null. Raises Unfit.
    """
    if field.type == field.TYPE_MESSAGE:
        return reader(field.message_type, kind, path, compiler), None
    read, default = scalar(field, leaves.plain(kind), path)
    # Only messages nest: a scalar has no depth.
    return (lambda lanes, depth: read(lanes)), default


def _entry(field: Any, kind: pa.DataType, path: str, compiler: ReaderCompiler) -> Read:
    if not t.is_map(kind):
        raise Unfit(f"{path}: a map can't become {kind}")
    # An entry without its value means an empty message if values are messages. It fails here, for a second reading.
    entry = [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type, nullable=False)]
    inner = compiler.message(field.message_type, entry, f"{path}{{}}")
    _, key = scalar(field.message_type.fields_by_name["key"], leaves.plain(kind.key_type), path)
    if key is None:
        raise Unfit(f"{path}: keys can't become {kind.key_type}")
    fields = [pa.field("key", leaves.plain(kind.key_type)), pa.field("value", leaves.plain(kind.item_type))]

    def read(lanes: ByteLanes, depth: int) -> pa.Array:
        keys, items = inside(inner, lanes, depth, path)
        # Only failed lanes have null keys, but Arrow can't make maps with null keys at all.
        return pa.StructArray.from_arrays([keys.fill_null(key[0]), items], fields=fields)

    return read


def unwanted(field: Any, path: str, compiler: ReaderCompiler) -> MessageColumn:
    """Return a reader for skipping a field, with the checks of the official package."""
    if field.type == field.TYPE_GROUP:
        return SkippedField(field, _failing(path), path)
    if field.type == field.TYPE_MESSAGE:

        def message(lanes: ByteLanes, depth: int) -> None:
            # The checker is made at its first use: a message may contain itself.
            inside(compiler.checker(field.message_type), lanes, depth, path)

        return SkippedField(field, message, path)
    if wire_type(field) == DELIMITED:
        kind = pa.string() if field.type == field.TYPE_STRING else pa.binary()
        return SkippedField(field, value(field, kind, path, compiler)[0], path)
    return SkippedField(field, _moving(wire_type(field), path), path)


def _failing(path: str) -> Read:
    def fail(lanes: ByteLanes, depth: int) -> None:
        lanes.fail(np.ones(len(lanes), np.bool_), f"{path}: a group")

    return fail


def _moving(wire: int, path: str) -> Read:
    def move(lanes: ByteLanes, depth: int) -> None:
        if wire == VARINT:
            lanes.varints(path)
        else:
            lanes.skip(_WIDTHS[wire], path)

    return move
