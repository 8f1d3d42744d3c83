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
from airflow_lakestream.decode.json import numbers as json_numbers
from airflow_lakestream.decode.json.bulk import NotInBulk
from airflow_lakestream.decode.json.layout import Path
from airflow_lakestream.decode.json.scalars import OddRows, from_literals, from_texts, mask_of, odd_texts, without
from airflow_lakestream.decode.json.shapes import LayoutDocuments, LayoutSorter
from airflow_lakestream.decode.lanes.lanes import Integers, Mask
from airflow_lakestream.decode.lanes.spans import TextBuffer
from airflow_lakestream.decode.values.outcome import Misfit

_MOST_REPAIRS = 4
_READERS: Mapping[pa.DataType, Callable[[TextBuffer, Integers, Integers], tuple[npt.NDArray[Any], Mask]]] = {
    pa.int32(): partial(json_numbers.integers, kind=np.int32),
    pa.int64(): partial(json_numbers.integers, kind=np.int64),
    pa.float64(): json_numbers.doubles,
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
