"""Raw records on their way from a reader to a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Headers = list[tuple[str, bytes | None]]
# An Arrow array of binary; the core only counts and cuts it.
Values = Any


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Consecutive records of one partition, in offset order; parallel sequences of one length.

    `offsets` is strictly increasing and may have holes (markers, compaction); a `range` where it has none.
    `timestamps` are milliseconds since the epoch, or -1 where a record has none. `values` and `keys` hold null where
    the record does. `keys` and `headers` are None when nobody asked for them.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    values: Values
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[Headers | None] | None = None

    def __len__(self) -> int:
        return len(self.values)
