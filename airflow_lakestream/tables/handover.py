"""What workers tell each other beside files: offsets of records that became no row, as half-open intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_lakestream.core.ranges import PartitionKey

PassedOver = tuple[PartitionKey, pa.Array]
_PASSED_OVER = "passed_over"


def encode_passed_over(passed_over: Sequence[PassedOver]) -> dict[str, Any]:
    """Return rising offsets by partition as JSON; nothing without any.

    Most of many records that become no row are neighbours.
    """
    return {_PASSED_OVER: [[*key, *_intervals(offsets)] for key, offsets in passed_over]} if passed_over else {}


def decode_passed_over(handed: Mapping[str, Any]) -> list[PassedOver]:
    """Return the offsets of records that became no row, by partition."""
    return [
        ((topic, partition), pa.array([at for start, end in intervals for at in range(start, end)], pa.int64()))
        for topic, partition, *intervals in handed.get(_PASSED_OVER, ())
    ]


def _intervals(offsets: pa.Array) -> list[list[int]]:
    numbers = offsets.to_numpy()
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1) if len(numbers) else []
    return [[int(part[0]), int(part[-1]) + 1] for part in parts]
