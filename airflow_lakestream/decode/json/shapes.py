"""Many JSON documents of a few layouts: their scalars are cut out, and proven to be all there is.

A document is taken only when it equals, byte for byte, the literals of a layout with its own scalars between them.
Whoever takes the scalars checks that a text among them holds no quote, no backslash, no control character and nothing
but UTF-8, and that another one is a number, true, false or null. Then the document is valid, no key stands twice, and
none goes unseen; how the places were found does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from airflow_lakestream.decode.json.layout import Layout, layout_of
from airflow_lakestream.decode.lanes.lanes import Integers, Mask
from airflow_lakestream.decode.lanes.spans import Texts

_QUOTE = ord('"')
# What a scalar that is no text may begin with.
_BEGINS = np.zeros(256, np.bool_)
_BEGINS[list(b"-0123456789tfn")] = True
# Documents of other layouts than so many, or of one that fewer share than one of so many, are left to others.
_MOST_LAYOUTS = 16
_SHARE = 64
_MISSES = 8
_SAMPLE = 32
# From so many bytes on, it is faster to look for all quotes of all documents at once.
_LONG = 64


@dataclass(frozen=True, slots=True)
class Shaped:
    """Documents of one layout: which rows they are, and where the scalars of each slot begin and end.

    The quotes of a string are no part of it. `is_plain` says that all texts are known to be as they have to be.
    """

    layout: Layout
    rows: Integers
    spans: Sequence[tuple[Integers, Integers]]
    text: Texts
    is_plain: bool = False

    def texts(self, slot: int, which: Mask | None = None) -> pa.Array:
        """Return the scalars of one slot as they are written, of all documents or some."""
        starts, stops = self.spans[slot]
        return self.text.cut(starts, stops) if which is None else self.text.cut(starts[which], stops[which])


@dataclass(frozen=True, slots=True)
class Known:
    """A layout, and what the scalars of some documents are like: guesses that save time where they are right.

    :param sizes: of each slot, in bytes, where all were of one size.
    :param means: of each slot, in bytes.
    """

    layout: Layout
    sizes: tuple[int | None, ...]
    means: tuple[float, ...]

    @property
    def pivot(self) -> int:
        """The slot that is left when all others are found from both ends: the longest, which nobody then looks into."""
        return self.means.index(max(self.means))


@dataclass(frozen=True, slots=True)
class _Group:
    """Some documents: row numbers, and where each begins and ends."""

    rows: Integers
    starts: Integers
    stops: Integers

    def pick(self, which: Mask | slice) -> _Group:
        """Return some of them."""
        return _Group(self.rows[which], self.starts[which], self.stops[which])


class Shapes:
    """Sorts documents by their layouts; used by several threads, and keeps the layouts that it has seen last."""

    def __init__(self) -> None:
        self._known: tuple[Known, ...] = ()

    def sort(self, values: pa.Array) -> list[Shaped]:
        """Return what fits a layout of an array of documents in binary, each document once or not at all."""
        count = len(values)
        known = self._known
        if not count:
            return []
        if not known and all(layout_of(values[i].as_py() or b"") is None for i in (0, count // 2, count - 1)):
            return []
        text = Texts(values)
        group = _Group(np.arange(count), text.starts, text.stops)
        if values.null_count:
            group = group.pick(values.is_valid().to_numpy(zero_copy_only=False))
        candidates, misses = list(known), 0
        found: list[Known] = []
        sorted_out: list[Shaped] = []
        left = np.ones(count, np.bool_)
        while misses < _MISSES and len(group.rows) > count // _SHARE and len(found) < _MOST_LAYOUTS:
            one = candidates.pop(0) if candidates else _learn(text, group)
            if one is None:
                misses += 1
                group = group.pick(slice(1, None))
                continue
            shaped = _Matching(text, group, one).run()
            if not len(shaped.rows):
                continue
            found.append(one)
            sorted_out.append(shaped)
            left[shaped.rows] = False
            group = group.pick(left[group.rows])
        # Common ones first: what they take is not looked at for the others.
        order = sorted(range(len(found)), key=lambda place: -len(sorted_out[place].rows))
        self._known = tuple(found[place] for place in order)
        if text.is_plain and _hold_no_quotes(text, sorted_out, left):
            return [replace(shaped, is_plain=True) for shaped in sorted_out]
        return sorted_out


def _hold_no_quotes(text: Texts, parts: list[Shaped], left: Mask) -> bool:
    """Whether all quotes are either in the literals of layouts or in documents that have none."""
    if np.count_nonzero(left) > len(left) // _SHARE:
        return False
    quotes = sum(len(part.rows) * sum(literal.count(b'"') for literal in part.layout.literals) for part in parts)
    for row in np.flatnonzero(left):
        quotes += int(np.count_nonzero(text.bytes[text.starts[row] : text.stops[row]] == _QUOTE))
    return quotes == text.quotes


def _learn(text: Texts, group: _Group) -> Known | None:
    """Return the layout of the first document; None if it has none, or too few share it."""
    layout = layout_of(text.bytes[group.starts[0] : group.stops[0]].tobytes())
    if layout is None:
        return None
    unknown = Known(layout, (None,) * len(layout.slots), (0.0,) * len(layout.slots))
    sample = group.pick(slice(None, None, 1 + len(group.rows) // _SAMPLE))
    shaped = _Matching(text, sample, unknown).run()
    if len(shaped.rows) * _SAMPLE < len(sample.rows):
        return None
    sizes = [stops - starts for starts, stops in shaped.spans]
    same = [int(some[0]) if (some == some[0]).all() else None for some in sizes]
    return Known(layout, tuple(same), tuple(float(some.mean()) for some in sizes))


class _Matching:
    """The way of documents through a layout, from both ends to the longest scalar; what does not fit is dropped."""

    def __init__(self, text: Texts, group: _Group, known: Known) -> None:
        self._text = text
        self._known = known
        self._layout = known.layout
        self._rows, self._front, self._back = group.rows, group.starts, group.stops
        self._spans: list[tuple[Integers, Integers] | None] = [None] * len(known.layout.slots)

    def run(self) -> Shaped:
        """Return the documents that are left, with their scalars; there may be none."""
        layout, pivot = self._layout, self._known.pivot
        first, last = layout.literals[0], layout.literals[-1]
        self._keep(self._stands(self._front, first))
        self._front = self._front + len(first)
        fits = self._stands(self._back - len(last), last)
        self._back = self._back - len(last)
        self._keep(fits)
        self._keep(self._front <= self._back)
        for slot in (*range(pivot), *range(len(layout.slots) - 1, pivot, -1)):
            if not len(self._rows):
                break
            (self._forward if slot < pivot else self._backward)(slot)
        self._take(pivot, self._front, self._back, None)
        return Shaped(layout, self._rows, [span for span in self._spans if span is not None], self._text)

    def _forward(self, slot: int) -> None:
        """Take the scalar that begins at the front, and the literal behind it."""
        literal = self._layout.literals[slot + 1]
        size = self._known.sizes[slot]
        stops = self._front + size if size is not None else self._end(slot, self._front, self._back)
        fits = self._stands(stops, literal)
        if size is not None and fits is not None:
            rest = np.flatnonzero(~fits)
            stops[rest] = self._end(slot, self._front[rest], self._back[rest])
            fits = self._stands(stops, literal)
        starts, self._front = self._front, stops + len(literal)
        self._take(slot, starts, stops, fits)

    def _end(self, slot: int, starts: Integers, limit: Integers) -> Integers:
        if self._layout.slots[slot].is_text and self._known.means[slot] > _LONG:
            return self._text.next_quote(starts)
        return self._text.next_place(starts, limit, self._layout.literals[slot + 1][0])

    def _backward(self, slot: int) -> None:
        """Take the scalar that ends at the back, and the literal ahead of it."""
        literal = self._layout.literals[slot]
        size = self._known.sizes[slot]
        starts = self._back - size if size is not None else self._begin(slot, self._back, self._front)
        fits = self._stands(starts - len(literal), literal)
        if size is not None and fits is not None:
            rest = np.flatnonzero(~fits)
            starts[rest] = self._begin(slot, self._back[rest], self._front[rest])
            fits = self._stands(starts - len(literal), literal)
        stops, self._back = self._back, starts - len(literal)
        self._take(slot, starts, stops, fits)

    def _begin(self, slot: int, stops: Integers, limit: Integers) -> Integers:
        return self._text.behind_last(stops, limit, self._layout.literals[slot][-1])

    def _stands(self, at: Integers, literal: bytes) -> Mask | None:
        """Whether the literal stands at each place; None: at all of them."""
        try:
            return self._text.equal(at, literal)
        except IndexError:
            fits: Mask = (at >= self._front) & (at + len(literal) <= self._back)
            same = self._text.equal(at[fits], literal)
            fits[fits] = True if same is None else same
            return fits

    def _take(self, slot: int, starts: Integers, stops: Integers, fits: Mask | None) -> None:
        self._spans[slot] = (starts, stops)
        self._keep(fits)
        # What has run into another document is dropped: whatever was found there proves nothing.
        self._keep(self._front <= self._back)
        if not self._layout.slots[slot].is_text and (span := self._spans[slot]) is not None:
            # A text, an object or an array where the layout has a number or the like: it is of another layout.
            self._keep(_BEGINS[self._text.bytes[span[0]]])

    def _keep(self, which: Mask | None) -> None:
        if which is not None and not np.logical_and.reduce(which):
            self._rows, self._front, self._back = self._rows[which], self._front[which], self._back[which]
            self._spans = [span and (span[0][which], span[1][which]) for span in self._spans]
