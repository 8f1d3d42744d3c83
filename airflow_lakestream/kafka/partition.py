"""A partition's way through the planned range: messages become Arrow columns, and columns become chunks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import compress, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Message

from airflow_lakestream.core.names import RecordPart
from airflow_lakestream.core.ports import RecordChunk
from airflow_lakestream.core.ranges import OffsetRange
from airflow_lakestream.core.records import TIMESTAMP_TYPES, RawBatch


def is_rising(offsets: Sequence[int]) -> bool:
    """Return whether each offset is higher than the previous offset."""
    return isinstance(offsets, range) or all(offset < following for offset, following in pairwise(offsets))


def misplaced(offsets: Sequence[int], start: int) -> tuple[int, int] | None:
    """Return the true offsets [first, end) of the first batch whose records have wrong offsets.

    A wrong batch shows by a break, where an offset is not higher than the offset before: either the batch before the
    break has too high offsets, or the batch after the break too low offsets. None without a break. The range is empty
    if the read began behind the batch's true offsets.

    :param offsets: of records in the order of the log, from a single answer of the broker.
    :param start: the first offset of the read.
    """
    at = next((n for n, (offset, following) in enumerate(pairwise(offsets), 1) if following <= offset), None)
    if at is None:
        return None
    before, after = offsets[at - 1], offsets[at]
    # Too high offsets before the break: the records behind some good offset fill exactly the room up to `after`.
    good_offsets = [start - 1, *offsets]
    too_high = next((good_offsets[n] + 1 for n in range(at, -1, -1) if good_offsets[n] + at + 1 - n == after), None)
    if too_high is not None:
        return too_high, after
    if offsets[0] != start:
        return after, after
    # Too low offsets after the break: the records up to some good offset fill exactly the room behind `before`.
    for n in range(at + 1, len(offsets)):
        if offsets[n] == before + 1 + n - at:
            return before + 1, offsets[n]
    # Compaction has left holes, so that no room is filled exactly: take the first place with enough room.
    lower = next((offset for offset in reversed(offsets[:at]) if offset < after), start - 1)
    if lower + 1 < after:
        return lower + 1, after
    has_no_holes = offsets[-1] - after == len(offsets) - 1 - at
    higher = None if has_no_holes else next((offset for offset in offsets[at:] if offset > before), None)
    return before + 1, before + 1 + len(offsets) - at if higher is None else higher


# A chunk is yielded at this size or count: large enough for Arrow, small enough for memory and the processor's cache.
# With 8 MiB a run took 5% longer and 50 MiB more: jemalloc does not keep blocks of that size.
CHUNK_BYTES = 4 * 2**20
# The number of 200-byte records in a chunk: decoding 34,000 Protobuf messages at once took 1.5% more CPU time.
CHUNK_RECORDS = 20_000
HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))


class PartitionBuffer:
    """Records of a partition on their way from messages to chunks, within the planned range [position, end).

    `position` is the beginning of the next chunk, and `next_offset` follows the last record in the columns. All offsets
    below `seen` are passed: by a record, an end-of-partition, or the consumer's position. `heard_at` is the reader's
    waiting time in seconds at the last sign of the partition. `size` counts the bytes in the columns.
    """

    def __init__(self, topic: str, partition: int, position: int, end: int) -> None:
        self.topic, self.partition = topic, partition
        self.position, self.end = position, end
        self.next_offset = self.seen = position
        self._messages: list[Any] = []
        self._stamps: list[npt.NDArray[np.int64]] = []
        # The offsets of `_messages`, since the last `is_in_order`.
        self._delivered_offsets: Sequence[int] = ()
        self.heard_at = 0.0
        self._clear()

    def _clear(self) -> None:
        self._offsets: list[Sequence[int]] = []
        self._timestamps = array("q")
        self._values: list[pa.Array] = []
        self._count = 0
        self._parts: dict[RecordPart, list[pa.Array]] = {}
        self.size = 0

    @property
    def at_end(self) -> bool:
        """Whether the whole range was passed."""
        return self.seen >= self.end

    @property
    def reached(self) -> int:
        """The end of the offsets that are in columns or known to be empty."""
        return max(self.next_offset, self.seen)

    @property
    def is_full(self) -> bool:
        """Whether the columns have enough records for a chunk."""
        return self.size >= CHUNK_BYTES or self._count >= CHUNK_RECORDS

    def add(self, messages: list[Any], stamps: npt.NDArray[np.int64]) -> None:
        """Add delivered messages, with their timestamps in milliseconds."""
        self._messages += messages
        self._stamps.append(stamps)

    def is_in_order(self, high: Callable[[], int]) -> bool:
        """Return whether the delivered messages are in order, behind earlier messages and below the log's end.

        True without messages. The messages' offsets are kept for `take_messages`.

        :param high: returns the log's end; called only if the last message is behind the range.
        """
        if not self._messages:
            return True
        self._delivered_offsets = offsets = _offsets(self._messages)
        first, last = offsets[0], offsets[-1]
        return first >= self.next_offset and is_rising(offsets) and (last < self.end or last < high())

    def drop_disordered(self, high: int) -> None:
        """Drop delivered messages with wrong offsets: offsets of other records, or offsets beyond the log's end.

        After a damaged batch with too high offsets, the next batch begins at a lower offset. So messages before the
        first step back are dropped if their offsets are not below the offset after the step.

        :param high: the log's end.
        """
        offsets: list[Any] = list(map(Message.offset, self._messages))
        step = next((n for n in range(1, len(offsets)) if offsets[n] <= offsets[n - 1]), len(offsets))
        bound = offsets[step] if step < len(offsets) else high
        is_right = [offset < bound for offset in offsets[:step]] + [offset < high for offset in offsets[step:]]
        self._messages = list(compress(self._messages, is_right))
        self._stamps = [np.concatenate(self._stamps)[np.array(is_right, bool)]]

    def take_messages(self, parts: frozenset[RecordPart]) -> int:
        """Move the delivered messages into columns, except messages behind the range; return the bytes added.

        Call `is_in_order` before: the messages must be in order, and that call has kept their offsets.

        :param parts: the parts of records to keep, in addition to offsets, timestamps and values.
        """
        if not self._messages:
            return 0
        messages, self._messages = self._messages, []
        stamps, self._stamps = np.concatenate(self._stamps), []
        offsets = self._delivered_offsets
        if offsets[-1] >= self.end:
            self.seen = max(self.seen, offsets[-1])
            in_range = [offset < self.end for offset in offsets]
            messages, stamps = list(compress(messages, in_range)), stamps[np.array(in_range)]
            offsets = list(compress(offsets, in_range))
            if not messages:
                return 0
        before = self.size
        # Build the Arrow array now, while the values are in the processor's cache.
        values = pa.array(list(map(Message.value, messages)), pa.binary())
        self._values.append(values)
        self._count += len(values)
        self.size += values.total_values_length
        self._offsets.append(offsets)
        self._timestamps.frombytes(stamps.tobytes())
        for part in parts:
            column, size = _COLUMNS[part](messages)
            self._parts.setdefault(part, []).append(column)
            self.size += size
        self.next_offset = self._offsets[-1][-1] + 1
        self.seen = max(self.seen, self.next_offset)
        return self.size - before

    def chunk(self, until: int) -> RecordChunk:
        """Return the records in the columns as a chunk up to the offset `until`, and begin the next chunk there."""
        batch = RawBatch(
            self.topic,
            self.partition,
            _joined(self._offsets, self._count),
            self._timestamps,
            _one_array(self._values) if self._values else pa.array([], pa.binary()),
            **{part: _one_array(pieces) for part, pieces in self._parts.items()},
        )
        covers = OffsetRange(self.topic, self.partition, self.position, until)
        chunk = RecordChunk(covers, batch, self.size)
        self.position = until
        self._clear()
        return chunk


def _offsets(messages: Sequence[Any]) -> Sequence[int]:
    """Return the messages' offsets, in the messages' order.

    If the first and the last offset fit the number of messages, a range is returned, without a call for each message.
    """
    first, last = messages[0].offset(), messages[-1].offset()
    if last - first + 1 == len(messages):
        return range(first, last + 1)
    offsets: list[Any] = list(map(Message.offset, messages))
    return offsets


def _keys(messages: Sequence[Any]) -> tuple[pa.Array, int]:
    keys = pa.array(list(map(Message.key, messages)), pa.binary())
    return keys, keys.total_values_length


def _headers(messages: Sequence[Any]) -> tuple[pa.Array, int]:
    if not any(map(Message.headers, messages)):
        return pa.nulls(len(messages), HEADERS), 0
    headers = pa.array(list(map(Message.headers, messages)), HEADERS)
    return headers, headers.nbytes


def _timestamp_types(messages: Sequence[Any]) -> tuple[pa.Array, int]:
    types = np.fromiter(map(itemgetter(0), map(Message.timestamp, messages)), np.int8, len(messages))
    column = pa.array(TIMESTAMP_TYPES).take(pa.array(types))
    return column, column.nbytes


# The column of a part, and its size in bytes.
_COLUMNS: Mapping[RecordPart, Callable[[Sequence[Any]], tuple[pa.Array, int]]] = {
    RecordPart.KEY: _keys,
    RecordPart.HEADERS: _headers,
    RecordPart.TIMESTAMP_TYPE: _timestamp_types,
}


def _one_array(pieces: Sequence[pa.Array]) -> pa.Array:
    # Arrow would copy even a single array.
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def _joined(pieces: Sequence[Sequence[int]], count: int) -> Sequence[int]:
    """Return all offsets of the pieces, as a range if `count` offsets have no holes."""
    if count and pieces[-1][-1] - pieces[0][0] + 1 == count:
        return range(pieces[0][0], pieces[-1][-1] + 1)
    return [offset for piece in pieces for offset in piece]
