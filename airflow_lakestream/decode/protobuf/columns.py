"""Readers of many Protobuf messages in lanes, compiled from a descriptor and a table's columns.

Fields come in any order, or not at all: each step takes the smallest next tag of all lanes, and reads this field in
all lanes with the tag. Writers keep to the order of numbers, so a step for each field is mostly enough. Lanes with
allowed but rare forms (such as a message in two parts) fail here; `protobuf.decoder` tries them again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.policies import TimestampsFiner
from airflow_lakestream.decode.lanes import leaves
from airflow_lakestream.decode.lanes.lanes import ByteLanes, Integers, Words
from airflow_lakestream.decode.lanes.leaves import Unfit
from airflow_lakestream.decode.other_names import FieldNaming, identity_of
from airflow_lakestream.decode.protobuf import fields as protobuf_fields
from airflow_lakestream.decode.protobuf import walk as protobuf_walk
from airflow_lakestream.decode.protobuf.fields import MessageColumn
from airflow_lakestream.decode.protobuf.values import DELIMITED
from airflow_lakestream.decode.values.outcome import no_such_field

_DONE = np.uint64(2**64 - 1)
_MOST_TAG = np.uint64(2**32)
# The limit of the official package.
_DEEPEST = 100

# Steps for few lanes each: messages that all have different unknown fields would take a step for each field.
_MOST_SMALL_STEPS = 500
_SMALL = 64
_ROUNDS = 16
_FEW = 256


class ProtobufMessageReader:
    """Reader of messages of the same type: all fields are checked, and the wanted fields become columns."""

    def __init__(self, descriptor: Any, fields: list[pa.Field], path: str, compiler: ProtobufCompiler) -> None:
        self._name = path or descriptor.full_name
        self._path = path
        self._compiler = compiler
        self._descriptor = descriptor
        names = [(field.name, identity_of(field)) for field in descriptor.fields]
        self._wanted = compiler.naming.places(descriptor.full_name, names, [field.name for field in fields], path)
        self._kinds = [leaves.plain(field.type) for field in fields]
        # For the official package, an entry with more than a key and a value is not an entry.
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
        """Return the reader of a field, or None if unknown.

        Fields without a column get a reader on first use, since a type may contain itself.
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
        tags, small, last, rounds = self._next_tags(lanes), 0, _DONE, 0
        while len(tags) and (tag := tags.min()) != _DONE:
            hit = tags == tag
            is_all = bool(hit.all())
            rows = run.everyone if is_all else np.flatnonzero(hit)
            rounds = rounds + 1 if tag == last else 0
            last = tag
            small += len(rows) < _SMALL
            if small > _MOST_SMALL_STEPS and not self._compiler.patient:
                lanes.fail(tags != _DONE, f"{self._name}: too many different fields")
                break
            part = lanes if is_all else lanes.take(rows)
            if rounds >= _ROUNDS and len(rows) < _FEW:
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
        more = lanes.pos < lanes.end
        if more.all():
            found = np.minimum(lanes.varints(self._name), _MOST_TAG)
            return found if not lanes.failure.any() else np.where(lanes.failure == 0, found, _DONE)
        tags = np.full(len(lanes), _DONE)
        rows = np.flatnonzero(more)
        if len(rows):
            part = lanes.take(rows)
            found = part.varints(self._name)
            # No tag is this large; a tag must not be taken for _DONE.
            tags[rows] = np.where(part.failure == 0, np.minimum(found, _MOST_TAG), _DONE)
            lanes.put(rows, part)
        return tags

    def _step(self, tag: int, part: ByteLanes, rows: Integers, run: protobuf_fields.FieldValues, depth: int) -> None:
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
        """Find all consecutive fields of this tag in each lane, and read the fields in a single step."""
        lanes, starts, behind = protobuf_walk.along(part, tag, self._name)
        items = part.take(lanes)
        items.pos = starts
        self._step(tag, items, rows[lanes], run, depth)
        failed = items.failure != 0
        part.pos = behind
        if failed.any():
            part.failure[lanes[failed]] = items.failure[failed]
            part.pos[lanes[failed]] = part.end[lanes[failed]] = 0

    def _finished(self, run: protobuf_fields.FieldValues, lanes: ByteLanes) -> list[pa.Array]:
        columns: list[pa.Array] = [None] * len(self._kinds)
        for field in self._descriptor.fields:
            place = self._wanted.get(field.name)
            if place is not None:
                columns[place] = self._columns[field.number].finish(run, lanes)
            elif field.is_required and not (self._compiler.patient and field.type == field.TYPE_GROUP):
                lanes.fail(~run.seen(field.number), f"{self._inner(field.name)}: the required field is missing")
        for place, kind in enumerate(self._kinds):
            if columns[place] is None:
                columns[place] = pa.nulls(len(lanes), kind)
        return columns


class ProtobufCompiler:
    """Compiler of readers of columns. All methods raise Unfit if no value of the field fits the column.

    :ivar patient: any number of steps is allowed, and messages come without their groups.
    """

    def __init__(self, naming: FieldNaming, *, ignore_unknown: bool, finer: TimestampsFiner) -> None:
        self.naming = naming
        self.finer = finer
        self.ignore_unknown = ignore_unknown
        self.patient = False
        self._checkers: dict[str, ProtobufMessageReader] = {}

    def message(self, descriptor: Any, fields: list[pa.Field], path: str = "") -> ProtobufMessageReader:
        """Return the reader of a message's fields."""
        return ProtobufMessageReader(descriptor, fields, path, self)

    def column(self, field: Any, column: pa.Field, path: str) -> MessageColumn:
        """Return the reader of a column."""
        return protobuf_fields.column(field, column, path, self)

    def unwanted(self, field: Any, path: str) -> MessageColumn:
        """Return a reader for a field without a column: validates and skips the values."""
        return protobuf_fields.unwanted(field, path, self)

    def checker(self, descriptor: Any) -> ProtobufMessageReader:
        """Return a reader of the message without any column, for validation."""
        if descriptor.full_name not in self._checkers:
            self._checkers[descriptor.full_name] = ProtobufMessageReader(descriptor, [], "", self)
        return self._checkers[descriptor.full_name]
