"""Some of the records of a batch."""

from __future__ import annotations

from array import array
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
    taken = pa.array(places)
    return replace(
        batch,
        offsets=_picked(batch.offsets, places),
        timestamps=_picked(batch.timestamps, places),
        values=batch.values.take(taken),
        keys=None if batch.keys is None else batch.keys.take(taken),
        headers=None if batch.headers is None else batch.headers.take(taken),
    )


def _picked(numbers: Sequence[int], places: Indices) -> Sequence[int]:
    # As numbers of Python again: those of NumPy are none for JSON.
    return array("q", np.asarray(numbers, np.int64)[places].tobytes())


def all_but(count: int, indices: Sequence[int] | Indices) -> Indices:
    """Return the places of `count` records without these."""
    return np.delete(np.arange(count, dtype=np.int64), indices)
