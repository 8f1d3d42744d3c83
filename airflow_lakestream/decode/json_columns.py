"""Scalars of JSON documents of one layout, as they are written, to columns of a schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.core.policies import UnknownFields
from airflow_lakestream.decode import json_numbers
from airflow_lakestream.decode.json_bulk import NotInBulk, exact_up_to, fit
from airflow_lakestream.decode.json_layout import Path
from airflow_lakestream.decode.json_shapes import Shaped, Shapes
from airflow_lakestream.decode.misfit import Misfit
from airflow_lakestream.decode.spans import Integers, Mask, Texts

_NUMBER = r"\A-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\z"
_INTEGER = r"\A-?(?:0|[1-9][0-9]*)\z"
# What Arrow takes, but for days that no calendar has, and the like.
_DATE_TIME = r"\A[0-9]{4}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?Z?\z"
_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
_MOST_REPAIRS = 4
_READERS: Mapping[pa.DataType, Callable[[Texts, Integers, Integers], tuple[npt.NDArray[Any], Mask]]] = {
    pa.int32(): partial(json_numbers.integers, kind=np.int32),
    pa.int64(): partial(json_numbers.integers, kind=np.int64),
    pa.float64(): json_numbers.doubles,
}
# Documents taken at once: few enough that they and what is made of them stay in the cache, which is worth a third of
# the time; many enough that the calls from Python, some 50 for each column, take little of it.
_ROWS = 12_500


class OddRows(Exception):
    """Some rows keep the others from being converted at once."""

    def __init__(self, odd: Mask) -> None:
        super().__init__()
        self.odd = odd


class ShapeParser:
    """Parses those documents of a batch that share a layout with many others."""

    def __init__(self, schema: pa.Schema, unknown_fields: UnknownFields) -> None:
        self._schema = schema
        self._unknown_fields = unknown_fields
        self._shapes = Shapes()

    def parse(self, values: pa.Array) -> tuple[list[pa.Table], list[Integers]]:
        """Return tables, and for each one the rows that it holds; what is in no table could not be proven right."""
        tables, rows = [], []
        for first in range(0, len(values), _ROWS):
            for part in self._shapes.sort(values[first : first + _ROWS]):
                parsed = self._parse(part)
                if parsed is not None and len(parsed[1]):
                    tables.append(parsed[0])
                    rows.append(parsed[1] + first)
        return tables, rows

    def _parse(self, part: Shaped) -> tuple[pa.Table, Integers] | None:
        columns = _Columns(part, self._unknown_fields)
        try:
            table = columns.table(self._schema)
        except (NotInBulk, Misfit, pa.ArrowException):
            return None
        if columns.odd is None:
            return table, part.rows
        return table.filter(pa.array(~columns.odd)), part.rows[~columns.odd]


class _Columns:
    """The columns of documents of one layout. Its methods raise NotInBulk, Misfit and pyarrow's errors.

    `odd` are the rows that are not as their columns say, None without any.
    """

    def __init__(self, part: Shaped, unknown_fields: UnknownFields) -> None:
        self._part = part
        self._unknown_fields = unknown_fields
        self.odd: Mask | None = None
        # What has no column, each with all that is in it.
        self._unknown: list[Path] = []
        self._slots = {slot.path: index for index, slot in enumerate(part.layout.slots)}
        self._unused = set(self._slots)

    def table(self, schema: pa.Schema) -> pa.Table:
        columns = self._members(list(schema), ())
        for path in self._unused:
            self._skip(path)
        table = pa.Table.from_arrays(columns, schema=schema)
        if self._unknown_fields is UnknownFields.RESCUE:
            return table.append_column(pa.field(RESCUED, pa.string()), self._rescued())
        if self._unknown_fields is UnknownFields.EVOLVE:
            for path in self._unknown:
                self._require_null(path)
        return table

    def _members(self, fields: list[pa.Field], path: Path) -> list[pa.Array]:
        if self._unknown_fields is not UnknownFields.IGNORE:
            names = {field.name for field in fields}
            depth = len(path)
            members = {p for p in (*self._slots, *self._part.layout.objects) if len(p) == depth + 1}
            unknown = [p for p in members if p[:depth] == path and p[depth] not in names]
            if unknown and self._unknown_fields is UnknownFields.FAIL:
                raise NotInBulk("unknown fields")
            self._unknown += unknown
        return [self._column(field, (*path, field.name)) for field in fields]

    def _column(self, field: pa.Field, path: Path) -> pa.Array:
        array = self._any(field.type, path)
        if array.null_count and not field.nullable:
            self._leave_out(_mask(array.is_null()))
        return array

    def _any(self, kind: pa.DataType, path: Path) -> pa.Array:
        if path in self._part.layout.objects:
            if not t.is_struct(kind):
                raise NotInBulk("an object for a column that is none")
            return pa.StructArray.from_arrays(self._members(list(kind), path), fields=list(kind))
        if path not in self._slots:
            return pa.nulls(len(self._part.rows), kind)
        self._unused.discard(path)
        index = self._slots[path]
        if self._part.layout.slots[index].is_text:
            if t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_nested(kind):
                raise NotInBulk("strings for a column of another type")
            return self._converted(_from_texts, self._strings(index), kind)
        if kind in _READERS:
            return self._numbers(index, kind)
        return self._converted(_from_literals, self._part.texts(index), kind)

    def _strings(self, index: int) -> pa.Array:
        """Return the texts of a slot; null instead of what can't stand between quotes as it is."""
        texts = self._part.texts(index)
        odd = None if self._part.is_plain else odd_texts(texts)
        if odd is None:
            return texts
        self._leave_out(odd)
        return _without(texts, odd)

    def _numbers(self, index: int, kind: pa.DataType) -> pa.Array:
        """Return numbers, those of a usual form fast, the others as Arrow reads them."""
        values, good = _READERS[kind](self._part.text, *self._part.spans[index])
        if good.all():
            return pa.array(values)
        if good.sum() * 2 < len(good):
            return self._converted(_from_literals, self._part.texts(index), kind)
        rest = self._converted(_from_literals, self._part.texts(index, ~good), kind, np.flatnonzero(~good))
        return pc.replace_with_mask(pa.array(values), pa.array(~good), rest)

    def _converted(
        self,
        convert: Callable[[pa.Array, pa.DataType], pa.Array],
        texts: pa.Array,
        kind: pa.DataType,
        rows: Integers | None = None,
    ) -> pa.Array:
        """Return the texts of all rows, or of some, in a column's type; null instead of those that are none of it."""
        for _ in range(_MOST_REPAIRS):
            try:
                return convert(texts, kind)
            except OddRows as found:
                texts = _without(texts, found.odd)
                self._leave_out(found.odd, rows)
        raise NotInBulk("ever more that is odd")

    def _leave_out(self, odd: Mask, rows: Integers | None = None) -> None:
        if self.odd is None:
            self.odd = np.zeros(len(self._part.rows), np.bool_)
        if rows is None:
            self.odd |= odd
        else:
            self.odd[rows[odd]] = True

    def _require_null(self, path: Path) -> None:
        """Make sure that a field for which there is no column needs none."""
        if path not in self._slots or self._part.layout.slots[self._slots[path]].is_text:
            raise NotInBulk("unknown fields")
        self._leave_out(~_mask(pc.equal(self._part.texts(self._slots[path]), "null")))

    def _rescued(self) -> pa.Array:
        """Return what has no column as the text of an object, the scalars as they are written; null where all has."""
        if not self._unknown:
            return pa.nulls(len(self._part.rows), pa.string())
        tree: dict[str, Any] = {}
        # Slots in their order, then objects: those that hold no slot are still lacking.
        for path in (*self._slots, *sorted(self._part.layout.objects)):
            if any(path[: len(unknown)] == unknown for unknown in self._unknown):
                at = tree
                for name in path[:-1]:
                    at = at.setdefault(name, {})
                at.setdefault(path[-1], path if path in self._slots else {})
        texts = _Objects(self._part, self._slots)
        texts.add(tree)
        return texts.joined()

    def _skip(self, path: Path) -> None:
        """Make sure that a scalar for which there is no column is one."""
        index = self._slots[path]
        if not self._part.layout.slots[index].is_text:
            self._converted(_from_literals, self._part.texts(index), pa.string())
        elif not self._part.is_plain:
            self._strings(index)


class _Objects:
    """Texts of one object each, in pieces: literal ones, and scalars of the documents."""

    def __init__(self, part: Shaped, slots: Mapping[Path, int]) -> None:
        self._part = part
        self._slots = slots
        self._pieces: list[pa.Array] = []
        self._literal = ""

    def add(self, value: Any) -> None:
        """Add an object of objects and the paths of slots."""
        if isinstance(value, dict):
            for index, (name, item) in enumerate(value.items()):
                self._literal += ("," if index else "{") + json.dumps(name, ensure_ascii=False) + ":"
                self.add(item)
            self._literal += "}" if value else "{}"
            return
        slot = self._slots[value]
        quote = '"' if self._part.layout.slots[slot].is_text else ""
        self._pieces += [pa.scalar(self._literal + quote), self._part.texts(slot)]
        self._literal = quote

    def joined(self) -> pa.Array:
        """Return one text for each document."""
        count = len(self._part.rows)
        if not self._pieces:
            return pa.repeat(pa.scalar(self._literal), count)
        return pc.binary_join_element_wise(*self._pieces, pa.scalar(self._literal), "")


def odd_texts(texts: pa.Array) -> Mask | None:
    """Return which texts can't stand between the quotes of a JSON document as they are; None if all can."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = np.frombuffer(data, np.uint8)[: ends[-1]] if data is not None else np.zeros(0, np.uint8)
    is_odd = (text == _QUOTE) | (text == _BACKSLASH) | (text < _SPACE)
    odd = np.zeros(len(texts), np.bool_)
    odd[np.searchsorted(ends, np.flatnonzero(is_odd), side="right") - 1] = True
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        odd |= [not _is_utf8(value) for value in texts.cast(pa.binary()).to_pylist()]
    return odd if odd.any() else None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _without(texts: pa.Array, odd: Mask) -> pa.Array:
    return pc.if_else(pa.array(odd), pa.scalar(None, texts.type), texts)


def _from_texts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of what was written as strings."""
    if t.is_decimal(kind):
        return _decimals(texts, kind)
    try:
        return fit(texts, kind)
    except pa.ArrowInvalid:
        if t.is_timestamp(kind):
            _require(pc.match_substring_regex(texts, _DATE_TIME))
        raise


def _from_literals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of what is no string: numbers, true, false and null."""
    missing = pc.equal(texts, "null")
    if missing.true_count:
        if missing.true_count == len(texts):
            return pa.nulls(len(texts), kind)
        texts = pc.if_else(missing, pa.scalar(None, texts.type), texts)
    if t.is_boolean(kind):
        true = pc.equal(texts, "true")
        _require(pc.or_(true, pc.equal(texts, "false")))
        return true
    if t.is_string(kind) or t.is_large_string(kind):
        _require(pc.or_(pc.is_in(texts, pa.array(["true", "false"])), pc.match_substring_regex(texts, _NUMBER)))
        return texts.cast(kind)
    if t.is_signed_integer(kind):
        return _integers(texts, kind)
    if t.is_decimal(kind):
        return _decimals(texts, kind)
    if t.is_floating(kind):
        _require_numbers(texts, _NUMBER)
        numbers = texts.cast(kind)
        # Larger ones may be integers that are not held exactly.
        _require(pc.less(pc.abs(numbers), pa.scalar(exact_up_to(kind), kind)))
        return fit(numbers, kind)
    raise NotInBulk("numbers for a column of another type")


def _integers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    _require_numbers(texts, _INTEGER)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        # The digits that surely fit. Those that may not are looked at by others.
        digits = len(str((1 << (kind.bit_width - 1)) - 1)) - 1
        _require(pc.match_substring_regex(texts, rf"\A-?[0-9]{{1,{digits}}}\z"))
        raise


def _decimals(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals with no more digits than the type has; Arrow's cast makes 0 of a one with 300 zeros."""
    whole = f"|[1-9][0-9]{{0,{kind.precision - kind.scale - 1}}}" if kind.precision > kind.scale else ""
    fraction = rf"(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale > 0 else ""
    _require(pc.match_substring_regex(texts, rf"\A-?(?:0{whole}){fraction}\z"))
    return fit(texts.cast(kind), kind)


def _require_numbers(texts: pa.Array, grammar: str) -> None:
    """Raise OddRows unless all are numbers, but for a second point, which no cast takes."""
    if texts.null_count or not _all_plain(texts):
        _require(pc.match_substring_regex(texts, grammar))


def _all_plain(texts: pa.Array) -> bool:
    """Whether all are digits, perhaps with points between them, and no needless zero ahead; a regex takes longer."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    text = np.frombuffer(data, np.uint8)
    starts, sizes = ends[:-1], np.diff(ends)
    if sizes.min() < 1 or (text - ord(".") > ord("9") - ord(".")).any() or (text == ord("/")).any():
        return False
    first, second = text[starts], text[np.minimum(starts + 1, len(text) - 1)]
    if (first == ord(".")).any() or (text[ends[1:] - 1] == ord(".")).any():
        return False
    return bool(((first != ord("0")) | (sizes == 1) | (second == ord("."))).all())


def _require(good: pa.Array) -> None:
    """Raise OddRows for those that are false; a null is fine."""
    if good.false_count:
        raise OddRows(~_mask(good.fill_null(True)))


def _mask(array: pa.Array) -> Mask:
    mask: Mask = np.asarray(array.to_numpy(zero_copy_only=False), np.bool_)
    return mask
