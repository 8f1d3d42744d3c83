"""Many JSON documents of a few layouts: their scalars are cut out where quotes stand, and proven to be all there is.

A document is taken only when it equals, byte for byte, the literals of a layout with its own scalars between them. A
text among these holds no quote, no backslash and no control character, and whoever takes another scalar checks that it
is one. So the document is valid, no key stands twice, and none goes unseen.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_lakestream.decode.json_layout import Layout, Slot, layout_of

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
# Bytes looked at in one go: few enough that what is in the making stays in the cache, many enough that threads seldom
# stand in line for the interpreter.
_BLOCK = 1 << 18
# Documents of other layouts than so many, or of one that fewer share than one of so many, are left to others.
_MOST_LAYOUTS = 16
_SHARE = 64
_MISSES = 3
_SAMPLE = 32


@dataclass(frozen=True, slots=True)
class Shaped:
    """Documents of one layout: which rows they are, and where their scalars begin and end in `data`."""

    layout: Layout
    rows: Integers
    bounds: npt.NDArray[np.int32]
    data: pa.Buffer

    def texts(self, slot: int) -> pa.Array:
        """Return the scalars of one slot as they are written, a string's without its quotes."""
        count = self.bounds.size
        # Every other of these is a scalar, the ones between them are literals.
        parts = pa.StringArray.from_buffers(count - 1, pa.py_buffer(self.bounds), self.data)
        return parts.take(pa.array(np.arange(2 * slot, count, self.bounds.shape[1], dtype=np.int32)))

    def without(self, odd: Mask) -> Shaped:
        """Return this without some of its documents."""
        return Shaped(self.layout, self.rows[~odd], self.bounds[~odd], self.data)


def shaped(values: pa.Array) -> Iterator[Shaped]:
    """Yield what could be proven of an array of documents in binary, each document once or not at all."""
    count = len(values)
    if not count or all(layout_of(values[i].as_py() or b"") is None for i in (0, count // 2, count - 1)):
        return
    documents = _Documents(values)
    layouts = 0
    for group in documents.by_quotes():
        for found in _peel(documents, group, count // _SHARE):
            yield found
            layouts += 1
            if layouts == _MOST_LAYOUTS:
                return


@dataclass(frozen=True, slots=True)
class _Group:
    """Documents with equally many quotes: row numbers, where each begins and ends, and where its quotes are."""

    rows: Integers
    starts: Integers
    stops: Integers
    quotes: Integers

    def pick(self, which: Mask | Integers | slice) -> _Group:
        return _Group(self.rows[which], self.starts[which], self.stops[which], self.quotes[which])


class _Documents:
    """The bytes of all documents, one behind the other."""

    def __init__(self, values: pa.Array) -> None:
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        self.data = (data or pa.py_buffer(b"")).slice(ends[0], ends[-1] - ends[0])
        self.bytes = np.frombuffer(self.data, np.uint8)
        self._ends = ends - ends[0]
        self._nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        self._quotes, self._odd = _scan(self.bytes)
        try:
            values.cast(pa.string())
        except pa.ArrowInvalid:
            self._odd = np.union1d(self._odd, _not_utf8(self.data, self._ends[1:]))

    def by_quotes(self) -> Iterator[_Group]:
        """Yield groups of documents, the largest first, without those in which quotes don't tell everything."""
        starts, stops = self._ends[:-1], self._ends[1:]
        rows = np.arange(len(starts))
        each, more = divmod(len(self._quotes), len(rows))
        if each and not more and not len(self._odd) and self._nulls is None:
            quotes = self._quotes.reshape(-1, each)
            if (quotes[:, 0] >= starts).all() and (quotes[:, -1] < stops).all():
                yield _Group(rows, starts, stops, quotes)
                return
        counts = np.diff(np.searchsorted(self._quotes, self._ends))
        eligible = counts.copy()
        eligible[np.searchsorted(stops, self._odd, side="right")] = 0
        if self._nulls is not None:
            eligible[self._nulls] = 0
        sizes = np.bincount(eligible)
        sizes[0] = 0
        for size in np.argsort(-sizes, kind="stable"):
            if not sizes[size]:
                return
            which = eligible == size
            quotes = self._quotes[np.repeat(which, counts)].reshape(-1, size)
            yield _Group(rows[which], starts[which], stops[which], quotes)

    def equal(self, at: Integers, literal: bytes) -> Mask:
        """Whether the literal stands at each of these positions, which are not too near to the end for that."""
        size = len(literal)
        windows: npt.NDArray[np.void] = np.ndarray((len(self.bytes) - size + 1,), f"V{size}", self.data, 0, (1,))
        found = windows[at]
        if found.tobytes() == literal * len(at):
            return np.ones(len(at), np.bool_)
        same: Mask = (found.view(np.uint8).reshape(len(at), size) == np.frombuffer(literal, np.uint8)).all(axis=1)
        return same


def _scan(text: npt.NDArray[np.uint8]) -> tuple[Integers, Integers]:
    """Return where the quotes are; and where is what keeps a quote from ending a text, or can't stand in one."""
    quotes, odd = [], []
    for first in range(0, len(text), _BLOCK):
        block = text[first : first + _BLOCK]
        quotes.append(np.flatnonzero(block == _QUOTE) + first)
        is_odd = block == _BACKSLASH
        if block.min() < _SPACE or is_odd.any():
            odd.append(np.flatnonzero(is_odd | (block < _SPACE)) + first)
    none = np.zeros(0, np.int64)
    return np.concatenate(quotes or [none]), np.concatenate(odd or [none])


def _not_utf8(data: pa.Buffer, stops: Integers) -> Integers:
    """Return one place in each document that is not UTF-8."""
    text, start, found = memoryview(data), 0, []
    while start < len(text):
        try:
            codecs.utf_8_decode(text[start:], "strict", True)
            break
        except UnicodeDecodeError as error:
            found.append(start + error.start)
            start = int(stops[np.searchsorted(stops, found[-1], side="right")])
    return np.array(found, np.int64)


def _peel(documents: _Documents, group: _Group, fewest: int) -> Iterator[Shaped]:
    """Take the first document's layout, yield all that share it, and go on with the others."""
    misses = 0
    while misses < _MISSES and len(group.rows) > fewest:
        layout = layout_of(documents.bytes[group.starts[0] : group.stops[0]].tobytes())
        sample = group.pick(slice(None, None, 1 + len(group.rows) // _SAMPLE))
        if layout is None or _cut(documents, sample, layout)[0].mean() < 1 / _SAMPLE:
            misses += 1
            group = group.pick(slice(1, None))
            continue
        same, bounds = _cut(documents, group, layout)
        if same.all():
            yield Shaped(layout, group.rows, bounds, documents.data)
            return
        yield Shaped(layout, group.rows[same], bounds[same], documents.data)
        group = group.pick(~same)


def _cut(documents: _Documents, group: _Group, layout: Layout) -> tuple[Mask, npt.NDArray[np.int32]]:
    """Return which documents are of the layout, and where their scalars begin and end: nowhere outside their quotes."""
    bounds = np.empty((len(group.rows), 2 * len(layout.slots)), np.int32)
    same = np.ones(len(group.rows), np.bool_)
    end = group.starts
    for index, slot in enumerate(layout.slots):
        start, stop = _between_quotes(group, slot)
        same &= _stands(documents, end, start, layout.literals[index])
        bounds[:, 2 * index], bounds[:, 2 * index + 1] = start, stop
        end = stop
    same &= _stands(documents, end, group.stops, layout.literals[-1])
    return same, bounds


def _between_quotes(group: _Group, slot: Slot) -> tuple[Integers, Integers]:
    quote, following = group.quotes[:, slot.quote] + 1, slot.quote + 1
    limit = group.quotes[:, following] if following < group.quotes.shape[1] else group.stops
    if slot.is_text:
        return quote, limit
    start = np.minimum(quote + slot.before, limit)
    return start, np.maximum(limit - slot.after, start)


def _stands(documents: _Documents, start: Integers, stop: Integers, literal: bytes) -> Mask:
    """Whether the literal, and nothing else, stands between two positions."""
    fits: Mask = stop - start == len(literal)
    if fits.all():
        return documents.equal(start, literal)
    fits[fits] = documents.equal(start[fits], literal)
    return fits
