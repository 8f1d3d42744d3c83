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

# Integers below 2**53, divided by such a power, are rounded once: any parser returns the same number.
_MOST_DIGITS = 15
_SAMPLE = 32
_POWERS = 10 ** np.arange(_MOST_DIGITS + 1, dtype=np.int64)

_MINUS, _POINT, _ZERO = b"-.0"
_ZEROS = np.uint64(0x3030303030303030)
_ABOVE_NINE = np.uint64(0x7676767676767676)
_HIGH = np.uint64(0x8080808080808080)
_EIGHT, _BYTE, _ONES = np.uint64(8), np.uint64(0xFF), np.uint64(0xFFFFFFFFFFFFFFFF)
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
        # Random numbers are written this way: too many digits.
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
    # The digits behind the point move to its place.
    words = (words & ~behind) | ((words >> _EIGHT) & behind)
    counts = sizes - (points < sizes)
    digits = (words ^ _ZEROS) << ((8 - counts) << 3).astype(np.uint64)
    good: Mask = (((digits + _ABOVE_NINE) | digits) & _HIGH) == 0
    good &= (points == 1) | ((points > 1) & ((words & _BYTE) != _ZERO))
    # A point needs a digit behind it.
    good &= sizes - points != 1
    return _eight(digits) / _POWERS[counts - points], good


def _doubles(texts: TextBuffer, starts: Integers, stops: Integers) -> tuple[npt.NDArray[np.float64], Mask]:
    points = np.minimum(texts.next_place(starts, np.minimum(stops, starts + _MOST_DIGITS), _POINT), stops)
    wholes, sizes = points - starts, stops - points - 1
    # Sizes without a point are -1: then the number has no fraction.
    has_point = sizes >= 0
    sizes = np.maximum(sizes, 0)
    integer_part, good = _digits(texts, points, wholes, _MOST_DIGITS)
    good &= (wholes == 1) | ((wholes > 1) & (texts.bytes[starts] != _ZERO))
    fraction, is_fraction = _digits(texts, stops, sizes, _MOST_DIGITS)
    good &= is_fraction & (has_point == (sizes > 0)) & (wholes + sizes <= _MOST_DIGITS)
    powers = _POWERS[np.where(good, sizes, 0)]
    return (integer_part * powers + fraction) / powers, good


def _behind_sign(texts: TextBuffer, starts: Integers) -> tuple[Integers, Mask | None]:
    negative: Mask = texts.bytes[starts] == _MINUS
    return (starts + negative, negative) if negative.any() else (starts, None)


def _digits(texts: TextBuffer, stops: Integers, sizes: Integers, most: int) -> tuple[Integers, Mask]:
    """Return the numbers with the given ends and numbers of digits, and a mask of the texts of only digits.

    No digit makes 0. Texts of more than `most` digits are outside the mask.
    """
    good: Mask = sizes <= most
    values = np.zeros(len(stops), np.uint64)
    for at in range(0, min(int(np.maximum.reduce(sizes)), most), 8):
        # Digits from the end on; the bytes ahead of them are shifted out, and zeros in.
        ahead = ((8 - np.minimum(np.maximum(sizes - at, 0), 8)) << 3).astype(np.uint64)
        digits = ((texts.words[stops - 8 - at] ^ _ZEROS) >> ahead) << ahead
        good &= (((digits + _ABOVE_NINE) | digits) & _HIGH) == 0
        values += _eight(digits) * np.uint64(10**at)
    return values.view(np.int64), good


def _eight(digits: Words) -> Words:
    for mask, factor, shift in _STEPS:
        digits = ((digits & mask) * factor) >> shift
    return digits


_MOST_REPAIRS = 4
_READERS: Mapping[pa.DataType, Callable[[TextBuffer, Integers, Integers], tuple[npt.NDArray[Any], Mask]]] = {
    pa.int32(): partial(integers, kind=np.int32),
    pa.int64(): partial(integers, kind=np.int64),
    pa.float64(): doubles,
}
# Documents per step: few enough to stay in the cache with the results, which saves a third of the time; many enough
# that the calls from Python, some 50 for each column, take little of the time.
_ROWS = 12_500


class LayoutParser:
    """Parser of the documents of a batch that share a layout.

    :param within: the members in which fields count as unknown; empty for the whole document.
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
        self._shapes = LayoutSorter()

    def parse(self, values: pa.Array) -> tuple[list[pa.Table], list[Integers]]:
        """Return tables, and for each table the positions of its records.

        A record in no table could not be proven right: another parser decodes it.
        """
        tables, rows = [], []
        for first in range(0, len(values), _ROWS):
            for part in self._shapes.sort(values[first : first + _ROWS]):
                parsed = self._parse(part)
                if parsed is not None and len(parsed[1]):
                    tables.append(parsed[0])
                    rows.append(parsed[1] + first)
        return tables, rows

    def _parse(self, part: LayoutDocuments) -> tuple[pa.Table, Integers] | None:
        # None if the columns as a whole do not fit the layout; single rows that do not fit are left out.
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
        # Paths without a column, each for everything below the path.
        self._unknown: list[Path] = []
        self._slots = {slot.path: index for index, slot in enumerate(part.layout.slots)}
        self._unused = set(self._slots)

    def table(self, schema: pa.Schema) -> pa.Table:
        # Slots without a column are checked, too: a document with an invalid scalar is left out.
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
        # Notes the unknown fields of an object, or refuses them, and returns the columns of the known fields.
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
        array = self._any(field.type, path)
        if array.null_count and not field.nullable:
            self._leave_out(mask_of(array.is_null()))
        return array

    def _any(self, kind: pa.DataType, path: Path) -> pa.Array:
        # Returns the values at a path: of an object, of a slot, or null if the layout lacks the path.
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
        """Return numbers: the usual forms by a fast path, the rest by Arrow's cast."""
        values, good = _READERS[kind](self._part.text, *self._part.spans[index])
        if good.all():
            return pa.array(values)
        # Two passes take longer than the cast of all texts.
        if good.sum() * 2 < len(good):
            return self._converted(from_literals, self._part.texts(index), kind)
        rest = self._converted(from_literals, self._part.texts(index, ~good), kind, np.flatnonzero(~good))
        return pc.replace_with_mask(pa.array(values), pa.array(~good), rest)

    def _converted(
        self,
        convert: Callable[[pa.Array, pa.DataType], pa.Array],
        texts: pa.Array,
        kind: pa.DataType,
        rows: Integers | None = None,
    ) -> pa.Array:
        """Return texts in a column's type, with null for misfits; their rows are left out.

        :param convert: raises OddRows for texts that prevent the conversion of all.
        :param rows: the rows of the texts; by default the texts of all rows.
        """
        for _ in range(_MOST_REPAIRS):
            try:
                return convert(texts, kind)
            except OddRows as found:
                texts = without(texts, found.odd)
                self._leave_out(found.odd, rows)
        # Each try found further misfits.
        raise NotInBulk("ever more that is odd")

    def _leave_out(self, odd: Mask, rows: Integers | None = None) -> None:
        """Mark records as odd: another decoder reads them.

        :param odd: a mask of `rows`, or of all records without `rows`.
        """
        if self.odd is None:
            self.odd = np.zeros(len(self._part.rows), np.bool_)
        if rows is None:
            self.odd |= odd
        else:
            self.odd[rows[odd]] = True

    def _require_null(self, path: Path) -> None:
        """Leave out the rows with a value for a field without a column. Raises NotInBulk for texts and objects."""
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
        # Slots in order, then objects, for the objects without a slot.
        for path in (*self._slots, *sorted(self._part.layout.objects)):
            if any(path[: len(unknown)] == unknown for unknown in self._unknown):
                at = tree
                for name in path[:-1]:
                    at = at.setdefault(name, {})
                at.setdefault(path[-1], path if path in self._slots else {})
        texts = _ObjectTexts(self._part, self._slots)
        texts.add(tree)
        return texts.joined()

    def _skip(self, path: Path) -> None:
        """Leave out the rows with an invalid scalar in a slot without a column."""
        index = self._slots[path]
        if not self._part.layout.slots[index].is_text:
            self._converted(from_literals, self._part.texts(index), pa.string())
        elif not self._part.is_plain:
            self._strings(index)


class _ObjectTexts:
    """Texts of an object for each document, in pieces: literals, and scalars of the documents."""

    def __init__(self, part: LayoutDocuments, slots: Mapping[Path, int]) -> None:
        self._part = part
        self._slots = slots
        self._pieces: list[pa.Array] = []
        self._literal = ""

    def add(self, value: Any) -> None:
        """Add the text of an object.

        :param value: a tree of objects; a leaf is the path of a slot.
        """
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
