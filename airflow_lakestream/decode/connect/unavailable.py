"""Placeholders of Debezium for values left out of change events, by type.

PostgreSQL stores large values separately (TOAST), and does not send large values that an update did not touch; nor does
Oracle send such LOBs. In place of the value, the event has the connector's `unavailable.value.placeholder`, by default
`__debezium_unavailable_value`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.policies import UNAVAILABLE, UnavailableValues, octets_of
from airflow_lakestream.exceptions import InvalidArgument
from airflow_lakestream.tables.row_buffer import one_array

Mask = npt.NDArray[np.bool_]
# A number that is no signed byte, in place of a null in an array: it differs from each byte of a placeholder.
_NO_BYTE = 1 << 9


@dataclass(frozen=True)
class ValuePlaceholder:
    """Placeholder of a connector for a value left out of an event.

    :param setting: the connector's `unavailable.value.placeholder`; with `hex:` at its start, octets in hexadecimal.
    """

    setting: str = UNAVAILABLE

    @cached_property
    def octets(self) -> bytes:
        """Placeholder in a column of bytes."""
        return octets_of(self.setting)

    @cached_property
    def text(self) -> str:
        """Placeholder in a column of text; invalid UTF-8 is replaced, as in Java."""
        return self.octets.decode(errors="replace")

    @cached_property
    def uuid(self) -> uuid.UUID:
        """Placeholder in an array of UUIDs, by the rule of Java's UUID.nameUUIDFromBytes."""
        return uuid.UUID(bytes=hashlib.md5(self.octets, usedforsecurity=False).digest(), version=3)

    @cached_property
    def numbers(self) -> npt.NDArray[np.int8]:
        """Placeholder in an array of numbers: Java's bytes are signed."""
        return np.frombuffer(self.octets, np.int8)

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """All placeholders in a column of text: also an hstore's JSON, bytes as text (binary.handling.mode), a UUID."""
        return (
            self.text,
            json.dumps({self.text: self.text}, separators=(",", ":"), ensure_ascii=False),
            base64.b64encode(self.octets).decode(),
            base64.urlsafe_b64encode(self.octets).decode(),
            base64.urlsafe_b64encode(self.octets).decode().rstrip("="),
            self.octets.hex(),
            str(self.uuid),
        )

    def of(self, kind: pa.DataType) -> pa.Array:
        """Return the placeholder as an array of length 1.

        :param kind: a type accepted by `may_be_left_out`.
        """
        if t.is_map(kind):
            pairs = [pa.field("key", kind.key_type), pa.field("value", kind.item_type)]
            items = [self.of(pair.type) if may_be_left_out(pair.type) else pa.nulls(1, pair.type) for pair in pairs]
            return pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), *items).cast(kind)
        if t.is_list(kind) or t.is_large_list(kind):
            if _is_whole(kind.value_type):
                wide = np.int64 if t.is_int64(kind.value_type) else np.int32
                values = pa.array(self.numbers.astype(wide)).cast(kind.value_type)
            else:
                values = self.of(kind.value_type)
            ends = pa.array([0, len(values)], pa.int32() if t.is_list(kind) else pa.int64())
            make: Any = pa.ListArray if t.is_list(kind) else pa.LargeListArray
            return make.from_arrays(ends, values, type=kind)
        if isinstance(kind, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(kind, self.of(kind.storage_type))
        if _is_text(kind):
            return pa.array([self.text], kind)
        return pa.array([self.octets if _is_bytes(kind) else self.uuid.bytes], kind)


USUAL = ValuePlaceholder()


def may_be_left_out(kind: pa.DataType) -> bool:
    """Return whether a column of this type can have a placeholder that differs from all usual values."""
    if t.is_list(kind) or t.is_large_list(kind):
        return _is_whole(kind.value_type) or may_be_left_out(kind.value_type)
    return t.is_map(kind) or _is_text(kind) or _is_bytes(kind) or _is_uuid(kind)


def left_out(column: pa.Array | pa.ChunkedArray, placeholder: ValuePlaceholder = USUAL) -> Mask:
    """Return a mask of the left-out values of a column; no value of a type without a placeholder is left out."""
    array = one_array(column) if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return left_out(array.storage, placeholder)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind):
        return _left_out_of_many(array, placeholder)
    if _is_text(kind):
        return _is_in(array, pa.array(placeholder.texts, kind))
    if _is_bytes(kind):
        return _is_in(array, pa.array([placeholder.octets], kind))
    if _is_uuid(kind):
        return _is_in(array, pa.array([placeholder.uuid.bytes], kind))
    return np.zeros(len(array), np.bool_)


def _left_out_of_many(column: pa.Array, placeholder: ValuePlaceholder) -> Mask:
    """Return a mask of the left-out arrays or maps.

    A left-out array has the placeholder as its only element, or the placeholder's bytes as numbers. A left-out map has
    the placeholder as its only key.
    """
    has_numbers = not t.is_map(column.type) and _is_whole(column.type.value_type)
    lengths = np.where(column.is_valid().to_numpy(zero_copy_only=False), np.diff(column.offsets.to_numpy()), 0)
    mask = np.zeros(len(column), np.bool_)
    places = np.flatnonzero(lengths == (len(placeholder.octets) if has_numbers else 1))
    if not len(places):
        return mask
    candidates = column.take(pa.array(places))
    if has_numbers:
        values = candidates.flatten()
        numbers = (values.cast(pa.int32()) if t.is_date32(values.type) else values).cast(pa.int64())
        rows = pc.fill_null(numbers, _NO_BYTE).to_numpy().reshape(len(places), len(placeholder.octets))
        mask[places] = (rows == placeholder.numbers).all(axis=1)
    else:
        mask[places] = left_out(candidates.keys if t.is_map(column.type) else candidates.flatten(), placeholder)
    return mask


def _is_in(column: pa.Array, values: pa.Array) -> Mask:
    mask: Mask = pc.is_in(column, value_set=values).to_numpy(zero_copy_only=False)
    return mask


def _is_text(kind: pa.DataType) -> bool:
    return bool(t.is_string(kind) or t.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(t.is_binary(kind) or t.is_large_binary(kind))


def _is_uuid(kind: pa.DataType) -> bool:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(t.is_fixed_size_binary(storage) and storage.byte_width == 16)


def _is_whole(kind: pa.DataType) -> bool:
    return bool(t.is_int32(kind) or t.is_int64(kind) or t.is_date32(kind))


# The column with the names of the row's columns whose values were left out.
NOTE = "_unavailable"


@dataclass(frozen=True)
class UnavailablePolicy:
    """Policy for values left out of change events.

    :param placeholder: the text or bytes that the connector writes in place of a value.
    :param policy: REJECT: the event is bad. NULL: the value is null, and the column `NOTE` has its column's name. None:
        for a mirror, whose merge keeps the old value in place of the default placeholder.
    """

    placeholder: ValuePlaceholder = USUAL
    policy: UnavailableValues | None = UnavailableValues.REJECT

    def without_note(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns except `NOTE`, which no event has.

        For a mirror (`policy` is None), a column of this name is like any other, and stays. Raises InvalidArgument if
        `NOTE` is not a list of text.
        """
        if self.policy is None or NOTE not in schema.names:
            return schema
        kind = schema.field(NOTE).type
        if not ((t.is_list(kind) or t.is_large_list(kind)) and t.is_string(kind.value_type)):
            raise InvalidArgument("schema", f"{NOTE} can't be {kind}: it has names.", "Make it array<string>.")
        return pa.schema([field for field in schema if field.name != NOTE])

    def replace_left_out(
        self, schema: pa.Schema, columns: Sequence[pa.Array], parts: Mapping[str, str], reasons: dict[int, str]
    ) -> list[pa.Array]:
        """Return all columns of `schema`, with left-out values replaced; add the reasons of bad events to `reasons`.

        A left-out value becomes null, or the default placeholder for a mirror. The column `NOTE`, if the schema has it,
        gets the names of each event's columns with left-out values.

        An event with a left-out value is bad if the policy is REJECT; or if the policy is NULL and the schema lacks
        `NOTE`, except for a value in an image. For a mirror, an event is bad if a value is the default placeholder and
        the connector has another placeholder.

        :param columns: the columns of `without_note(schema)`.
        :param parts: columns for parts of the event, with the event's member for each part.
        :param reasons: the reasons of bad events, by row.
        """
        by_name: dict[str, pa.Array] = {}
        # By row: the names of the row's columns whose values were left out.
        notes: dict[int, list[str]] = {}
        for field, column in zip(self.without_note(schema), columns, strict=True):
            if (member := parts.get(field.name)) is None:
                column = self._replaced(field.name, column, notes, reasons)
            elif member in ("before", "after"):
                column = self._image(field.name, column, reasons)
            by_name[field.name] = column
        has_note = self.policy is not None and NOTE in schema.names
        if self.policy is UnavailableValues.NULL and not has_note:
            for row, names in notes.items():
                reason = f"{names[0]}: Debezium left the value out, and the table has no column {NOTE} to note it"
                reasons.setdefault(row, reason)
        if has_note:
            rows = len(columns[0]) if columns else 0
            by_name[NOTE] = pa.array([notes.get(row) for row in range(rows)], schema.field(NOTE).type)
        return [by_name[field.name] for field in schema]

    def _image(self, name: str, image: pa.Array, reasons: dict[int, str]) -> pa.Array:
        """Return an image of the row with left-out values replaced, as in columns; `NOTE` does not name the fields."""
        fields = zip(image.type, map(image.field, range(image.type.num_fields)), strict=True)
        columns = [self._replaced(f"{name}.{field.name}", column, {}, reasons) for field, column in fields]
        return pa.StructArray.from_arrays(columns, fields=list(image.type), mask=image.is_null())

    def _replaced(self, name: str, column: pa.Array, notes: dict[int, list[str]], reasons: dict[int, str]) -> pa.Array:
        """Return a column with left-out values replaced; add its name to `notes`, and the reasons to `reasons`."""
        if not may_be_left_out(column.type):
            return column
        if self.policy is None:
            return self._for_merge(name, column, reasons)
        mask = left_out(column, self.placeholder)
        for row in np.flatnonzero(mask).tolist():
            notes.setdefault(row, []).append(name)
            if self.policy is UnavailableValues.REJECT:
                reasons.setdefault(row, f"{name}: Debezium left the value out, since the update did not touch it")
        return column.take(pa.array(np.arange(len(column)), mask=mask)) if mask.any() else column

    def _for_merge(self, name: str, column: pa.Array, reasons: dict[int, str]) -> pa.Array:
        """Return a column with the default placeholder for left-out values: the merge knows no other placeholder."""
        if self.placeholder == USUAL:
            return column
        for row in np.flatnonzero(left_out(column)).tolist():
            reasons.setdefault(row, f"{name}: has {USUAL.text}, which is not the connector's placeholder")
        mask: Mask = left_out(column, self.placeholder)
        if not mask.any():
            return column
        both = pa.concat_arrays([column, USUAL.of(column.type)])
        return both.take(pa.array(np.where(mask, len(column), np.arange(len(column)))))


UNAVAILABLE_POLICY = UnavailablePolicy()
