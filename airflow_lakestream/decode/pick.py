"""Some of the records of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_lakestream.core.records import RawBatch

Indices = npt.NDArray[np.int64]


def pick(batch: RawBatch, indices: Sequence[int] | Indices) -> RawBatch:
    """Return the records at these places, which rise."""
    places = np.asarray(indices, np.int64)
    numbers = places.tolist()
    return replace(
        batch,
        offsets=[batch.offsets[i] for i in numbers],
        timestamps=[batch.timestamps[i] for i in numbers],
        values=batch.values.take(pa.array(places)),
        keys=None if batch.keys is None else [batch.keys[i] for i in numbers],
        headers=None if batch.headers is None else [batch.headers[i] for i in numbers],
    )


def all_but(count: int, indices: Sequence[int] | Indices) -> Indices:
    """Return the places of `count` records without these."""
    return np.delete(np.arange(count, dtype=np.int64), indices)
