"""Columns of a schema from JSON documents of the same layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from airflow_lakestream.core.names import RESCUED
from airflow_lakestream.core.policies import TimestampsFiner, UnknownFields
from airflow_lakestream.decode.json.bulk import NotInBulk
from airflow_lakestream.decode.json.scalars import OddRows, from_literals, from_texts, mask_of, odd_texts, without
from airflow_lakestream.decode.json.shapes import LayoutDocuments, LayoutSorter, Path
from airflow_lakestream.decode.lanes.lanes import Integers, Mask, Words
from airflow_lakestream.decode.lanes.spans import TextBuffer, leading
from airflow_lakestream.decode.values.outcome import Misfit

# The most digits of a fast number: an integer of 15 digits, divided by a power of 10 up to 10**15, is rounded only
# once, so that the result is the same as of any parser.
_MOST_DIGITS = 15
_POWERS = 10 ** np.arange(_MOST_DIGITS + 1, dtype=np.int64)
# The texts whose length is looked at.
_SAMPLE = 32

_MINUS, _POINT, _ZERO = b"-.0"
_ZEROS = np.uint64(0x3030303030303030)
_ABOVE_NINE = np.uint64(0x7676767676767676)
_HIGH = np.uint64(0x8080808080808080)
_EIGHT, _BYTE, _ONES = np.uint64(8), np.uint64(0xFF), np.uint64(0xFFFFFFFFFFFFFFFF)
# Mask, factor and shift of each step from eight digits in a word to their number: pairs of digits become numbers below
# 100, pairs of these numbers below 10,000, and so on.
_STEPS = (
    (np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(2561), np.uint64(8)),
    (np.uint64(0x00FF00FF00FF00FF), np.uint64(6553601), np.uint64(16)),
    (np.uint64(0x0000FFFF0000FFFF), np.uint64(42949672960001), np.uint64(32)),
)


def integers(
    texts: TextBuffer, starts: Integers, stops: Integers, kind: type[np.signedinteger[Any]]
) -> tuple[npt.NDArray[Any], Mask]:
    """Return integers of up to 18 digits, and a mask of the texts with such an integer, in range for the type.

    Values outside the mask have no meaning.
    """
    starts, negative = _behind_sign(texts, starts)
    sizes = stops - starts
    values, good = _digits(texts, stops, sizes, 18)
    good &= (sizes == 1) | ((sizes > 1) & (texts.bytes[starts] != _ZERO))
    if negative is not None:
        values = np.where(negative, -values, values)
    if kind is np.int64:
        return values, good
    limits = np.iinfo(kind)
    return values.astype(kind), good & (values >= limits.min) & (values <= limits.max)


def doubles(texts: TextBuffer, starts: Integers, stops: Integers) -> tuple[npt.NDArray[np.float64], Mask]:
    """Return numbers of up to 15 digits without an exponent, and a mask of the texts with such a number.

    Values outside the mask have no meaning. If most texts of a sample are longer, no text is in the mask.
    """
    sample = slice(None, None, 1 + len(starts) // _SAMPLE)
    if np.median(stops[sample] - starts[sample]) > _MOST_DIGITS + 2:
        # Most numbers have too many digits, as computed numbers have: the fast path would be for few of them.
        return np.zeros(len(starts)), np.zeros(len(starts), np.bool_)
    starts, negative = _behind_sign(texts, starts)
    if np.maximum.reduce(stops - starts) > 8:
        values, good = _doubles(texts, starts, stops)
    else:
        values, good = _short_doubles(texts.words[starts], stops - starts)
    return (np.where(negative, -values, values) if negative is not None else values), good


def _short_doubles(words: Words, sizes: Integers) -> tuple[npt.NDArray[np.float64], Mask]:
    """Return numbers of up to 8 bytes without a sign, and a mask of the valid numbers.

    :param words: the 8 bytes at the start of each number.
    :param sizes: number of bytes of each number.
    """
    points = np.minimum(leading(words, _POINT), sizes)
    behind: Words = np.left_shift(_ONES, (points << 3).astype(np.uint64))
    # Remove the point: the digits behind it move by a byte.
    words = (words & ~behind) | ((words >> _EIGHT) & behind)
    counts = sizes - (points < sizes)
    digits = (words ^ _ZEROS) << ((8 - counts) << 3).astype(np.uint64)
    good: Mask = (((digits + _ABOVE_NINE) | digits) & _HIGH) == 0
    good &= (points == 1) | ((points > 1) & ((words & _BYTE) != _ZERO))
    # A point needs a digit behind it.
    good &= sizes - points != 1
    return _number_of_eight(digits) / _POWERS[counts - points], good


def _doubles(texts: TextBuffer, starts: Integers, stops: Integers) -> tuple[npt.NDArray[np.float64], Mask]:
    """Return numbers without a sign, and a mask of the valid numbers of up to 15 digits."""
    points = np.minimum(texts.next_place(starts, np.minimum(stops, starts + _MOST_DIGITS), _POINT), stops)
    wholes, sizes = points - starts, stops - points - 1
    # The size of a fraction is -1 if the number has no point.
    has_point = sizes >= 0
    sizes = np.maximum(sizes, 0)
    integer_part, good = _digits(texts, points, wholes, _MOST_DIGITS)
    good &= (wholes == 1) | ((wholes > 1) & (texts.bytes[starts] != _ZERO))
    fraction, is_fraction = _digits(texts, stops, sizes, _MOST_DIGITS)
    good &= is_fraction & (has_point == (sizes > 0)) & (wholes + sizes <= _MOST_DIGITS)
    powers = _POWERS[np.where(good, sizes, 0)]
    return (integer_part * powers + fraction) / powers, good


def _behind_sign(texts: TextBuffer, starts: Integers) -> tuple[Integers, Mask | None]:
    """Return the starts behind a minus sign, and a mask of the negative numbers, or None if all are positive."""
    negative: Mask = texts.bytes[starts] == _MINUS
    return (starts + negative, negative) if negative.any() else (starts, None)


def _digits(texts: TextBuffer, stops: Integers, sizes: Integers, most: int) -> tuple[Integers, Mask]:
    """Return the numbers of the texts that end at `stops` and have `sizes` digits, and a mask of the valid texts.

    A text without a digit is 0. A text of more than `most` digits is not valid.
    """
    good: Mask = sizes <= most
    values = np.zeros(len(stops), np.uint64)
    for place in range(0, min(int(np.maximum.reduce(sizes)), most), 8):
        # Eight digits at a time, from the end; bytes ahead of the text's digits become zeros.
        ahead = ((8 - np.minimum(np.maximum(sizes - place, 0), 8)) << 3).astype(np.uint64)
        digits = ((texts.words[stops - 8 - place] ^ _ZEROS) >> ahead) << ahead
        good &= (((digits + _ABOVE_NINE) | digits) & _HIGH) == 0
        values += _number_of_eight(digits) * np.uint64(10**place)
    return values.view(np.int64), good


def _number_of_eight(digits: Words) -> Words:
    """Return the number of the eight digits in each word, a byte for each digit, the first digit first."""
    for mask, factor, shift in _STEPS:
        digits = ((digits & mask) * factor) >> shift
    return digits


# The most attempts to convert a column: each removes the texts that prevented the attempt before.
_MOST_ATTEMPTS = 4
# Fast conversions of numbers, by the column's type.
_READERS: Mapping[pa.DataType, Callable[[TextBuffer, Integers, Integers], tuple[npt.NDArray[Any], Mask]]] = {
    pa.int32(): partial(integers, kind=np.int32),
    pa.int64(): partial(integers, kind=np.int64),
    pa.float64(): doubles,
}
# Documents per step: few enough to stay in the processor's cache with the results, which saves a third of the time; and
# enough that the calls from Python, some 50 for each column, take little of the time.
_ROWS = 12_500


class LayoutParser:
    """Parser of the documents of a batch that share a layout.

    :param within: the members in which fields without a column are unknown fields; empty for the whole document.
    :param finer: treatment of times finer than microseconds.
    """

    def __init__(
        self,
        schema: pa.Schema,
        unknown_fields: UnknownFields,
        within: Collection[str] = (),
        finer: TimestampsFiner = TimestampsFiner.REJECT,
    ) -> None:
        self._schema = schema
        self._unknown_fields = unknown_fields
        self._within = within
        self._finer = finer
        self._sorter = LayoutSorter()

    def parse(self, values: pa.Array) -> tuple[list[pa.Table], list[Integers]]:
        """Return tables, and for each table the positions of its records.

        Records outside of the tables could not be proven right: another parser must decode these records.
        """
        tables, rows = [], []
        for first in range(0, len(values), _ROWS):
            for part in self._sorter.sort(values[first : first + _ROWS]):
                parsed = self._parse(part)
                if parsed is not None and len(parsed[1]):
                    tables.append(parsed[0])
                    rows.append(parsed[1] + first)
        return tables, rows

    def _parse(self, part: LayoutDocuments) -> tuple[pa.Table, Integers] | None:
        """Return a table and the positions of its records, without odd records; None if the layout is unfit."""
        columns = _LayoutColumns(part, self._unknown_fields, self._within, self._finer)
        try:
            table = columns.table(self._schema)
        except (NotInBulk, Misfit, pa.ArrowException):
            return None
        if columns.odd is None:
            return table, part.rows
        return table.filter(pa.array(~columns.odd)), part.rows[~columns.odd]


class _LayoutColumns:
    """Columns of documents of the same layout. The methods raise NotInBulk, Misfit and pyarrow's errors.

    `odd` is a mask of the rows that do not fit the columns, or None.
    """

    def __init__(
        self, part: LayoutDocuments, unknown_fields: UnknownFields, within: Collection[str], finer: TimestampsFiner
    ) -> None:
        self._part = part
        self._from_texts = partial(from_texts, finer=finer)
        self._unknown_fields = unknown_fields
        self._roots = {(name,) for name in within}
        self.odd: Mask | None = None
        # The paths of unknown fields; an object's path stands for all its fields.
        self._unknown: list[Path] = []
        # The numbers of the layout's scalars (slots) by path; and the slots without a column.
        self._slots = {slot.path: index for index, slot in enumerate(part.layout.slots)}
        self._unused = set(self._slots)

    def table(self, schema: pa.Schema) -> pa.Table:
        columns = self._members(list(schema), ())
        # A document with an invalid scalar is odd, even if the scalar has no column.
        for path in self._unused:
            self._check_scalar(path)
        table = pa.Table.from_arrays(columns, schema=schema)
        if self._unknown_fields is UnknownFields.RESCUE:
            return table.append_column(pa.field(RESCUED, pa.string()), self._rescued())
        if self._unknown_fields is UnknownFields.EVOLVE:
            for path in self._unknown:
                self._require_null(path)
        return table

    def _members(self, fields: list[pa.Field], path: Path) -> list[pa.Array]:
        """Return the columns of an object's known fields; note unknown fields, or raise NotInBulk for them."""
        if self._unknown_fields is not UnknownFields.IGNORE and (not self._roots or path[:1] in self._roots):
            names = {field.name for field in fields}
            depth = len(path)
            members = {p for p in (*self._slots, *self._part.layout.objects) if len(p) == depth + 1}
            unknown = [p for p in members if p[:depth] == path and p[depth] not in names]
            if unknown and self._unknown_fields is UnknownFields.FAIL:
                raise NotInBulk("unknown fields")
            self._unknown += unknown
        return [self._column(field, (*path, field.name)) for field in fields]

    def _column(self, field: pa.Field, path: Path) -> pa.Array:
        array = self._values(field.type, path)
        if array.null_count and not field.nullable:
            self._leave_out(mask_of(array.is_null()))
        return array

    def _values(self, kind: pa.DataType, path: Path) -> pa.Array:
        """Return the values at a path: objects, scalars, or null if the layout lacks the path."""
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
            return self._converted(self._from_texts, self._strings(index), kind)
        if kind in _READERS:
            return self._numbers(index, kind)
        return self._converted(from_literals, self._part.texts(index), kind)

    def _strings(self, index: int) -> pa.Array:
        """Return the texts of a slot, with null for texts not allowed between quotes; their rows are left out."""
        texts = self._part.texts(index)
        odd = None if self._part.is_plain else odd_texts(texts)
        if odd is None:
            return texts
        self._leave_out(odd)
        return without(texts, odd)

    def _numbers(self, index: int, kind: pa.DataType) -> pa.Array:
        """Return numbers: the usual forms by a fast path, other forms by Arrow's cast."""
        values, good = _READERS[kind](self._part.text, *self._part.spans[index])
        if good.all():
            return pa.array(values)
        # For few numbers in the usual forms, Arrow's cast of all texts is faster than two passes.
        if good.sum() * 2 < len(good):
            return self._converted(from_literals, self._part.texts(index), kind)
        other_numbers = self._converted(from_literals, self._part.texts(index, ~good), kind, np.flatnonzero(~good))
        return pc.replace_with_mask(pa.array(values), pa.array(~good), other_numbers)

    def _converted(
        self,
        convert: Callable[[pa.Array, pa.DataType], pa.Array],
        texts: pa.Array,
        kind: pa.DataType,
        rows: Integers | None = None,
    ) -> pa.Array:
        """Return texts in a column's type, with null for misfits, whose rows are left out.

        :param convert: raises OddRows for texts that prevent the conversion of all texts.
        :param rows: the rows of the texts; by default all rows.
        """
        for _ in range(_MOST_ATTEMPTS):
            try:
                return convert(texts, kind)
            except OddRows as signal:
                texts = without(texts, signal.odd)
                self._leave_out(signal.odd, rows)
        raise NotInBulk("each attempt found further odd rows")

    def _leave_out(self, odd: Mask, rows: Integers | None = None) -> None:
        """Mark rows as odd, for another parser; `odd` is a mask of `rows`, or of all rows by default."""
        if self.odd is None:
            self.odd = np.zeros(len(self._part.rows), np.bool_)
        if rows is None:
            self.odd |= odd
        else:
            self.odd[rows[odd]] = True

    def _require_null(self, path: Path) -> None:
        """Leave out the rows in which an unknown field is not null. Raises NotInBulk for texts and objects."""
        if path not in self._slots or self._part.layout.slots[self._slots[path]].is_text:
            raise NotInBulk("unknown fields")
        self._leave_out(~mask_of(pc.equal(self._part.texts(self._slots[path]), "null")))

    def _rescued(self) -> pa.Array:
        """Return the fields without a column as the text of an object, or null if all fields have columns.

        Scalars are as written in the document.
        """
        if not self._unknown:
            return pa.nulls(len(self._part.rows), pa.string())
        tree: dict[str, Any] = {}
        # The scalars in the layout's order, then the objects, for empty objects.
        for path in (*self._slots, *sorted(self._part.layout.objects)):
            if any(path[: len(unknown)] == unknown for unknown in self._unknown):
                parent = tree
                for name in path[:-1]:
                    parent = parent.setdefault(name, {})
                parent.setdefault(path[-1], path if path in self._slots else {})
        texts = _ObjectTexts(self._part, self._slots)
        texts.add(tree)
        return texts.joined()

    def _check_scalar(self, path: Path) -> None:
        """Leave out the rows with an invalid scalar at a path without a column."""
        index = self._slots[path]
        if not self._part.layout.slots[index].is_text:
            self._converted(from_literals, self._part.texts(index), pa.string())
        elif not self._part.is_plain:
            self._strings(index)


class _ObjectTexts:
    """Text of an object for each document, made of literals, which are the same for all, and the documents' scalars."""

    def __init__(self, part: LayoutDocuments, slots: Mapping[Path, int]) -> None:
        self._part = part
        self._slots = slots
        self._pieces: list[pa.Array] = []
        self._literal = ""

    def add(self, value: Any) -> None:
        """Add the text of an object, a tree of mappings with paths of scalars as leaves; or of a single scalar."""
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
        """Return the text of the object for each document."""
        count = len(self._part.rows)
        if not self._pieces:
            return pa.repeat(pa.scalar(self._literal), count)
        return pc.binary_join_element_wise(*self._pieces, pa.scalar(self._literal), "")
