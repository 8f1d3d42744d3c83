"""Result of a statement for a batch: rows, filtered records, and failed records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Indices = npt.NDArray[np.int64]

# Prefix of names that no statement may use; and the column with the number of a row's record in the batch.
HIDDEN = "_lakestream_"
ROW = f"{HIDDEN}row"


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """Record with a failure of the statement: the number in the batch, and the reason."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Transformed:
    """The rows of a batch, and the record of each row.

    `kept[i]` is the record that row `i` was made from; `filtered` are the records for which the WHERE was not true. All
    indices count records of the batch, in ascending order. Every record is in exactly one of `kept`, `filtered` and
    `bad`.
    """

    rows: pa.Table
    kept: Indices
    filtered: Indices
    bad: Sequence[FailedRecord] = ()


def spans(offsets: Sequence[int], indices: Indices) -> list[tuple[int, int]]:
    """Return the offsets of these records as half-open ranges, joined for neighbours in the batch.

    :param offsets: offsets of all records of the batch.
    :param indices: positions of the records, ascending.

    Holes of the log between two neighbours are part of the range: no record can ever be there.
    """
    if not len(indices):
        return []
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    return [(offsets[int(run[0])], offsets[int(run[-1])] + 1) for run in np.split(indices, breaks)]
