"""Raw and decoded records, between a reader, a decoder and a sink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.column_use import ColumnUse
from airflow_lakestream.core.ledger import Counts
from airflow_lakestream.core.names import RecordPart

# Arrow arrays; the core only counts and cuts them.
Values = Any
Headers = Any
# Arrow tables; the core only hands them from the decoder to the sink.
Rows = Any


# By the number of a type in librdkafka: of a record without a timestamp, of the producer's time, and of the broker's.
TIMESTAMP_TYPES = (None, "create_time", "log_append_time")


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Consecutive records of a partition, in offset order; parallel sequences of equal length.

    `offsets` is strictly increasing and may have holes (markers, compaction); a `range` if it has none.
    `timestamps` are milliseconds since the epoch, -1 for a record without one. `values` and `keys` are binary Arrow
    arrays, null if the record's is null; `headers` is an Arrow array of `list<struct<key: string, value: binary>>`,
    null for a record without headers; `timestamp_types` is one of TIMESTAMP_TYPES. A field of a `RecordPart` is None if
    nobody asked for the part.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    values: Values
    keys: Values | None = None
    headers: Headers | None = None
    timestamp_types: Values | None = None

    def __len__(self) -> int:
        return len(self.values)

    def cut(self, places: slice) -> RawBatch:
        """Return the records at these places."""
        return self.selected(itemgetter(places), itemgetter(places))

    def selected(
        self, numbers: Callable[[Sequence[int]], Sequence[int]], column: Callable[[Values], Values]
    ) -> RawBatch:
        """Return some of the records.

        :param numbers: selects the records' items of a sequence of numbers, such as the offsets.
        :param column: selects the same items of an array, such as the values.
        """
        parts = {part: column(values) for part in RecordPart if (values := getattr(self, part)) is not None}
        offsets, timestamps = numbers(self.offsets), numbers(self.timestamps)
        return replace(self, offsets=offsets, timestamps=timestamps, values=column(self.values), **parts)


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """A decoded batch: rows to land, raw records to reject, and the counts of all records.

    `rejected` is None if there are none, with columns as in `decode.rejected`. `rowless` is an Arrow array with the
    offsets of all records that became no row; None if there are none. `bad` describes the records rejected or skipped
    as bad, `use` the columns of the rows.
    """

    rows: Rows
    counts: Counts
    rejected: Rows | None = None
    rowless: Any = None
    bad: BadRecords = BadRecords()
    use: ColumnUse = ColumnUse()
