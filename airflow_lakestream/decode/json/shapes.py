"""Many JSON documents of a few layouts: the scalars are cut out, and proven to be the whole content.

A layout is the text of a document without its scalars. A document has a layout only if it equals, byte for byte, the
layout's literals with scalars between them. The caller checks that a text has no quote, no backslash, no control
character and only valid UTF-8, and that another scalar is a number, true, false or null. Then the document is valid, no
key is repeated, and no member is missing, however the positions were found.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from airflow_lakestream.decode.json.document import parse_object
from airflow_lakestream.decode.lanes.lanes import Integers, Mask
from airflow_lakestream.decode.lanes.spans import TextBuffer
from airflow_lakestream.decode.values.outcome import Misfit

Path = tuple[str, ...]

# The most bytes of a document whose layout is found: this is done in Python, which pays if thousands of documents share
# the layout.
_MOST_BYTES = 1 << 16

_TOKEN = re.compile(rb'"[^"]*"|[{}\[\]:,]|[^ \t\r\n"{}\[\]:,]+')


@dataclass(frozen=True, slots=True)
class LayoutSlot:
    """A scalar's place in a layout: the path in the document, and whether the scalar is a text."""

    path: Path
    is_text: bool


@dataclass(frozen=True, slots=True)
class JsonLayout:
    """Layout of documents: `literals`, with a scalar of `slots` between each two.

    The quotes of a text belong to the literals. `objects` are the paths of all objects, () for the document itself. No
    path is listed twice.
    """

    slots: tuple[LayoutSlot, ...]
    literals: tuple[bytes, ...]
    objects: frozenset[Path]


def layout_of(document: bytes) -> JsonLayout | None:
    """Return the layout of a document, or None.

    No layout has an invalid or very long document, or one with an array, a backslash, a repeated key, or no scalar.
    """
    if len(document) > _MOST_BYTES or b"\\" in document:
        return None
    try:
        parse_object(document)
        walk = _LayoutWalk(document)
        walk.object(())
    except (Misfit, _NoLayout):
        return None
    return walk.layout() if walk.slots else None


class _NoLayout(Exception):
    """The document has an array or a repeated key."""


class _LayoutWalk:
    """A pass over the tokens of a valid object."""

    def __init__(self, document: bytes) -> None:
        self._document = document
        self._tokens = _TOKEN.finditer(document)
        self._seen: set[Path] = set()
        self._objects: set[Path] = set()
        self._literals: list[bytes] = []
        self._end = 0
        self.slots: list[LayoutSlot] = []
        next(self._tokens)

    def layout(self) -> JsonLayout:
        literals = (*self._literals, self._document[self._end :])
        return JsonLayout(tuple(self.slots), literals, frozenset(self._objects))

    def object(self, path: Path) -> None:
        """Walk to the end of the object last opened."""
        self._objects.add(path)
        for token in self._tokens:
            if token[0] == b"}":
                return
            if token[0] != b",":
                self._member((*path, token[0][1:-1].decode()))

    def _member(self, path: Path) -> None:
        """Read a member of an object after its name. Raises _NoLayout for a repeated name or a list."""
        if path in self._seen:
            raise _NoLayout
        self._seen.add(path)
        next(self._tokens)  # the colon
        value = next(self._tokens)
        if value[0] == b"[":
            raise _NoLayout
        if value[0] == b"{":
            self.object(path)
        else:
            self._slot(path, *value.span())

    def _slot(self, path: Path, start: int, end: int) -> None:
        is_text = self._document.startswith(b'"', start)
        if is_text:
            start, end = start + 1, end - 1
        self.slots.append(LayoutSlot(path, is_text))
        self._literals.append(self._document[self._end : start])
        self._end = end


_QUOTE = ord('"')
# The possible first bytes of a scalar that is not a text.
_BEGINS = np.zeros(256, np.bool_)
_BEGINS[list(b"-0123456789tfn")] = True
# The search ends after this number of layouts, with less than one in _SHARE documents left, or after this number of
# documents without a common layout; another parser decodes the documents that are left.
_MOST_LAYOUTS = 16
_SHARE = 64
_MOST_MISSES = 8
# The documents that are compared with a new layout.
_SAMPLE = 32
# From this mean size of a text in bytes on, a search for all quotes of all documents at once is faster.
_LONG_TEXT = 64


@dataclass(frozen=True, slots=True)
class LayoutDocuments:
    """Documents of a layout: row numbers, and the starts and ends of the scalars of each slot.

    The quotes of a text are not part of the scalar. `is_plain`: all texts are surely valid between quotes.
    """

    layout: JsonLayout
    rows: Integers
    spans: Sequence[tuple[Integers, Integers]]
    text: TextBuffer
    is_plain: bool = False

    def texts(self, slot: int, mask: Mask | None = None) -> pa.Array:
        """Return the scalars of a slot as written, of all documents or of the documents in `mask`."""
        starts, stops = self.spans[slot]
        return self.text.cut(starts, stops) if mask is None else self.text.cut(starts[mask], stops[mask])


@dataclass(frozen=True, slots=True)
class LayoutSample:
    """A layout, and the sizes of scalars in a sample of documents: guesses for saving time.

    :param sizes: size of each slot in bytes, or None if it varies.
    :param means: mean size of each slot in bytes.
    """

    layout: JsonLayout
    sizes: tuple[int | None, ...]
    means: tuple[float, ...]

    @property
    def pivot(self) -> int:
        """The slot with the longest scalars on average, where the searches from both ends meet: it needs no search."""
        return self.means.index(max(self.means))


@dataclass(frozen=True, slots=True)
class _DocumentGroup:
    """Some of the documents: row numbers, starts and ends."""

    rows: Integers
    starts: Integers
    stops: Integers

    def pick(self, selection: Mask | slice) -> _DocumentGroup:
        """Return the documents of a selection."""
        return _DocumentGroup(self.rows[selection], self.starts[selection], self.stops[selection])


class LayoutSorter:
    """Sorter of documents by layout, for several threads; keeps the layouts of the last batch for the next batch."""

    def __init__(self) -> None:
        self._known: tuple[LayoutSample, ...] = ()

    def sort(self, values: pa.Array) -> list[LayoutDocuments]:
        """Return the documents of each layout, without documents that have no layout or a rare layout.

        :param values: a binary array.
        """
        count = len(values)
        known = self._known
        if not count:
            return []
        # Without known layouts, three samples without a layout end the search.
        if not known and all(layout_of(values[i].as_py() or b"") is None for i in (0, count // 2, count - 1)):
            return []
        text = TextBuffer(values)
        group = _DocumentGroup(np.arange(count), text.starts, text.stops)
        if values.null_count:
            group = group.pick(values.is_valid().to_numpy(zero_copy_only=False))
        candidates, misses = list(known), 0
        layouts: list[LayoutSample] = []
        parts: list[LayoutDocuments] = []
        is_left = np.ones(count, np.bool_)
        while misses < _MOST_MISSES and len(group.rows) > count // _SHARE and len(layouts) < _MOST_LAYOUTS:
            layout = candidates.pop(0) if candidates else _learn(text, group)
            if layout is None:
                # The first document has no layout, or a rare layout: the next document is tried.
                misses += 1
                group = group.pick(slice(1, None))
                continue
            part = _LayoutMatch(text, group, layout).run()
            if not len(part.rows):
                continue
            layouts.append(layout)
            parts.append(part)
            is_left[part.rows] = False
            group = group.pick(is_left[group.rows])
        # Common layouts first: later layouts then search fewer documents.
        order = sorted(range(len(layouts)), key=lambda place: -len(parts[place].rows))
        self._known = tuple(layouts[place] for place in order)
        if text.is_plain and _texts_have_no_quotes(text, parts, is_left):
            return [replace(part, is_plain=True) for part in parts]
        return parts


def _texts_have_no_quotes(text: TextBuffer, parts: list[LayoutDocuments], is_left: Mask) -> bool:
    """Return whether all quotes are in the literals of layouts, or in documents without a layout (`is_left`).

    False, too, if many documents have no layout, since counting their quotes takes time.
    """
    if np.count_nonzero(is_left) > len(is_left) // _SHARE:
        return False
    quotes = sum(len(part.rows) * sum(literal.count(b'"') for literal in part.layout.literals) for part in parts)
    for row in np.flatnonzero(is_left):
        quotes += int(np.count_nonzero(text.bytes[text.starts[row] : text.stops[row]] == _QUOTE))
    return quotes == text.quotes


def _learn(text: TextBuffer, group: _DocumentGroup) -> LayoutSample | None:
    """Return the layout of the first document, or None if too few documents of a sample share it, or without layout."""
    layout = layout_of(text.bytes[group.starts[0] : group.stops[0]].tobytes())
    if layout is None:
        return None
    unknown = LayoutSample(layout, (None,) * len(layout.slots), (0.0,) * len(layout.slots))
    sample = group.pick(slice(None, None, 1 + len(group.rows) // _SAMPLE))
    matches = _LayoutMatch(text, sample, unknown).run()
    if len(matches.rows) * _SAMPLE < len(sample.rows):
        return None
    by_slot = [stops - starts for starts, stops in matches.spans]
    fixed_sizes = [int(sizes[0]) if (sizes == sizes[0]).all() else None for sizes in by_slot]
    return LayoutSample(layout, tuple(fixed_sizes), tuple(float(sizes.mean()) for sizes in by_slot))


class _LayoutMatch:
    """Match of documents with a layout, from both ends to the pivot; documents that do not match are dropped."""

    def __init__(self, text: TextBuffer, group: _DocumentGroup, known: LayoutSample) -> None:
        self._text = text
        self._known = known
        self._layout = known.layout
        self._rows, self._front, self._back = group.rows, group.starts, group.stops
        self._spans: list[tuple[Integers, Integers] | None] = [None] * len(known.layout.slots)

    def run(self) -> LayoutDocuments:
        """Return the matching documents with the scalars; the result may be empty."""
        layout, pivot = self._layout, self._known.pivot
        first, last = layout.literals[0], layout.literals[-1]
        self._keep(self._is_at(self._front, first))
        self._front = self._front + len(first)
        fits = self._is_at(self._back - len(last), last)
        self._back = self._back - len(last)
        self._keep(fits)
        self._keep(self._front <= self._back)
        for slot in (*range(pivot), *range(len(layout.slots) - 1, pivot, -1)):
            if not len(self._rows):
                break
            (self._forward if slot < pivot else self._backward)(slot)
        self._take(pivot, self._front, self._back, None)
        return LayoutDocuments(layout, self._rows, [span for span in self._spans if span is not None], self._text)

    def _forward(self, slot: int) -> None:
        """Take the scalar at the front, and the literal behind the scalar.

        If all scalars of the sample had the same size, this size is tried first, and then a search.
        """
        literal = self._layout.literals[slot + 1]
        size = self._known.sizes[slot]
        stops = self._front + size if size is not None else self._end(slot, self._front, self._back)
        fits = self._is_at(stops, literal)
        if size is not None and fits is not None:
            misses = np.flatnonzero(~fits)
            stops[misses] = self._end(slot, self._front[misses], self._back[misses])
            fits = self._is_at(stops, literal)
        starts, self._front = self._front, stops + len(literal)
        self._take(slot, starts, stops, fits)

    def _end(self, slot: int, starts: Integers, limit: Integers) -> Integers:
        if self._layout.slots[slot].is_text and self._known.means[slot] > _LONG_TEXT:
            return self._text.next_quote(starts)
        return self._text.next_place(starts, limit, self._layout.literals[slot + 1][0])

    def _backward(self, slot: int) -> None:
        """Take the scalar at the back, and the literal ahead of the scalar; see `_forward`."""
        literal = self._layout.literals[slot]
        size = self._known.sizes[slot]
        starts = self._back - size if size is not None else self._begin(slot, self._back, self._front)
        fits = self._is_at(starts - len(literal), literal)
        if size is not None and fits is not None:
            misses = np.flatnonzero(~fits)
            starts[misses] = self._begin(slot, self._back[misses], self._front[misses])
            fits = self._is_at(starts - len(literal), literal)
        stops, self._back = self._back, starts - len(literal)
        self._take(slot, starts, stops, fits)

    def _begin(self, slot: int, stops: Integers, limit: Integers) -> Integers:
        return self._text.behind_last(stops, limit, self._layout.literals[slot][-1])

    def _is_at(self, positions: Integers, literal: bytes) -> Mask | None:
        """Return a mask of the positions with the literal, or None if all positions have the literal."""
        try:
            return self._text.equal(positions, literal)
        except IndexError:
            # A position too close to the end of all documents: compare only positions inside of their document.
            fits: Mask = (positions >= self._front) & (positions + len(literal) <= self._back)
            is_equal = self._text.equal(positions[fits], literal)
            fits[fits] = True if is_equal is None else is_equal
            return fits

    def _take(self, slot: int, starts: Integers, stops: Integers, fits: Mask | None) -> None:
        """Set the scalars of a slot, and drop documents that do not match."""
        self._spans[slot] = (starts, stops)
        self._keep(fits)
        # A document whose match ran into another document is dropped: the match proves nothing.
        self._keep(self._front <= self._back)
        if not self._layout.slots[slot].is_text and (span := self._spans[slot]) is not None:
            # A document with a text, an object or an array in place of the scalar has another layout.
            self._keep(_BEGINS[self._text.bytes[span[0]]])

    def _keep(self, fits: Mask | None) -> None:
        """Drop the documents outside of the mask; None keeps all."""
        if fits is not None and not np.logical_and.reduce(fits):
            self._rows, self._front, self._back = self._rows[fits], self._front[fits], self._back[fits]
            self._spans = [span and (span[0][fits], span[1][fits]) for span in self._spans]
