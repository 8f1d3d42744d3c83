"""Search in many texts of a shared buffer at once: positions of bytes, and comparison with literals."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_lakestream.decode.lanes.lanes import Bytes, Integers, Mask, Words

# Bytes at both ends of a buffer: eight bytes are read at once, from a little ahead of a text to a little behind it.
PADDING = 64

# The bytes of a piece, few enough for the processor's cache.
_PIECE = 1 << 18
_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
_ONE = np.uint64(1)
_THREE = np.uint8(3)
_LOW = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)


class TextBuffer:
    """The bytes of all values of an array, concatenated, with padding at both ends.

    :param values: binary or string, perhaps a part of a longer array.
    """

    def __init__(self, values: pa.Array) -> None:
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        first, size = int(ends[0]), int(ends[-1] - ends[0])
        self.bytes: Bytes = np.empty(size + 2 * PADDING, np.uint8)
        self.bytes[:PADDING] = self.bytes[PADDING + size :] = 0
        # Special bytes are backslashes and control characters.
        self.quotes, self._is_ascii, self._has_special = 0, True, False
        if size:
            self._fill(np.frombuffer(data, np.uint8, size, first))
        # Eight bytes at every position, aligned or not, without a copy.
        self.words: Words = np.ndarray((len(self.bytes) - 8,), np.dtype("<u8"), self.bytes, strides=(1,))
        ends += PADDING - first
        self.starts: Integers = ends[:-1]
        self.stops: Integers = ends[1:]

    def _fill(self, source: Bytes) -> None:
        """Copy the bytes, count quotes, and note special bytes, in pieces small enough for the cache."""
        mask = np.empty(min(len(source), _PIECE), np.bool_)
        for start in range(0, len(source), _PIECE):
            piece = self.bytes[PADDING + start : PADDING + min(start + _PIECE, len(source))]
            piece[:] = source[start : start + _PIECE]
            mask = mask[: len(piece)]
            self.quotes += int(np.count_nonzero(np.equal(piece, _QUOTE, out=mask)))
            self._is_ascii &= bool(np.maximum.reduce(piece) < 0x80)
            self._has_special |= bool(np.minimum.reduce(piece) < _SPACE)
            self._has_special |= bool(np.logical_or.reduce(np.equal(piece, _BACKSLASH, out=mask)))

    @cached_property
    def is_plain(self) -> bool:
        """Whether all bytes are UTF-8 without a backslash or a control character."""
        if self._has_special or self._is_ascii:
            return not self._has_special
        # All bytes are validated as a single text.
        ends = pa.py_buffer(np.array([PADDING, len(self.bytes) - PADDING], np.int32))
        try:
            pa.StringArray.from_buffers(1, ends, self.buffer).validate(full=True)
        except pa.ArrowInvalid:
            return False
        return True

    @cached_property
    def buffer(self) -> pa.Buffer:
        """The bytes as a buffer of Arrow."""
        return pa.py_buffer(self.bytes)

    @cached_property
    def _quotes(self) -> Integers:
        return np.append(np.flatnonzero(self.bytes == _QUOTE), len(self.bytes))

    def next_quote(self, positions: Integers) -> Integers:
        """Return the position of the first quote at or behind each of these ascending positions.

        The first call finds all quotes of the buffer, which is worthwhile for long texts.
        """
        return self._quotes[np.searchsorted(self._quotes, positions)]

    def next_place(self, positions: Integers, limit: Integers, byte: int) -> Integers:
        """Return the position of the first `byte` at or behind each position, or a position from `limit` on."""
        ends = positions + leading(self.words[positions], byte)
        rows = np.flatnonzero(ends - positions == 8)
        while len(rows):
            rows = rows[ends[rows] < limit[rows]]
            steps = leading(self.words[ends[rows]], byte)
            ends[rows] += steps
            rows = rows[steps == 8]
        return ends

    def behind_last(self, positions: Integers, limit: Integers, byte: int) -> Integers:
        """Return the position behind the last `byte` ahead of each position, or a position up to `limit`."""
        starts = positions - leading(self.words[positions - 8].byteswap(), byte)
        rows = np.flatnonzero(positions - starts == 8)
        while len(rows):
            rows = rows[starts[rows] > limit[rows]]
            steps = leading(self.words[starts[rows] - 8].byteswap(), byte)
            starts[rows] -= steps
            rows = rows[steps == 8]
        return starts

    def equal(self, positions: Integers, literal: bytes) -> Mask | None:
        """Return a mask of the positions with the literal, or None if all positions have the literal.

        Raises IndexError for a position too close to the end of all bytes.
        """
        count, size = len(positions), len(literal)
        windows: npt.NDArray[np.void] = np.ndarray((len(self.bytes) - size + 1,), f"V{size}", self.bytes, 0, (1,))
        texts = windows[positions]
        if texts.tobytes() == literal * count:
            return None
        is_equal: Mask = (texts.view(np.uint8).reshape(count, size) == np.frombuffer(literal, np.uint8)).all(axis=1)
        return is_equal

    def cut(self, starts: Integers, stops: Integers) -> pa.Array:
        """Return the bytes from each start to each stop, ascending, as strings; the UTF-8 is not checked."""
        bounds = np.empty((len(starts), 2), np.int32)
        bounds[:, 0], bounds[:, 1] = starts, stops
        # Every second string is a gap between two parts.
        parts = pa.StringArray.from_buffers(max(bounds.size - 1, 0), pa.py_buffer(bounds), self.buffer)
        return parts.take(_even_numbers(len(starts)))


@lru_cache(maxsize=8)
def _even_numbers(count: int) -> pa.Array:
    return pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def leading(words: Words, byte: int) -> npt.NDArray[np.uint8]:
    """Return the number of bytes ahead of the first `byte` in each word, or 8 if the word does not have the byte."""
    # Bytes equal to `byte` become 0; then the high bit of the first zero byte is set, and perhaps of bytes behind it.
    differences = words ^ (_LOW * np.uint64(byte))
    marks = (differences - _LOW) & ~differences & _HIGH
    return np.bitwise_count((marks - _ONE) & ~marks) >> _THREE
