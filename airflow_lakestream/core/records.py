"""Raw records on their way from a reader to a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_lakestream.core.bad_records import BadRecords
from airflow_lakestream.core.ledger import Counts

# Arrow arrays; the core only counts and cuts them.
Values = Any
Headers = Any
# Arrow tables; the core only hands them from the decoder to the sink.
Rows = Any


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Consecutive records of one partition, in offset order; parallel sequences of one length.

    `offsets` is strictly increasing and may have holes (markers, compaction); a `range` where it has none.
    `timestamps` are milliseconds since the epoch, or -1 where a record has none. `values` and `keys` are Arrow arrays
    of binary, null where the record's is; `headers` is one of `list<struct<key: string, value: binary>>`, null where a
    record has none. `keys` and `headers` are None when nobody asked for them.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    values: Values
    keys: Values | None = None
    headers: Headers | None = None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class DecodedBatch:
    """What became of the records of a batch: rows to land, raw records to reject, and the counts of all of them.

    `rejected` is None without any; its columns are those of `decode.rejected`. `rowless` are the offsets of all records
    that became no row, an Arrow array; None without any. `bad` tells of those that are rejected, or skipped as bad.
    """

    rows: Rows
    counts: Counts
    rejected: Rows | None = None
    rowless: Any = None
    bad: BadRecords = BadRecords()
