"""Records of a result's rows: positions collected by the writing tasks, and joined on the driver.

Offsets go from task to driver as intervals, so that neighbours cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ranges import PartitionKey
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC

_Numbers: TypeAlias = npt.NDArray[np.int64]
# Starts and ends, half open, by partition.
Intervals = Mapping[PartitionKey, tuple[_Numbers, _Numbers]]


class NotOnce(ValueError):
    """Error of a row without a position, or of a record with several rows."""


@dataclass
class ResultPositions:
    """The positions of a task's rows."""

    _offsets: dict[PartitionKey, list[_Numbers]] = field(default_factory=dict)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add the positions of rows. Raises NotOnce for a row with a NULL in its position."""
        there = pa.table([rows.column(name) for name in COORDINATES], COORDINATES)
        if any(column.null_count for column in there.columns):
            raise NotOnce(f"it returned rows with NULL in {' or '.join(COORDINATES)}")
        for topic in pc.unique(there[TOPIC]).to_pylist():
            of_topic = there.filter(pc.equal(there[TOPIC], topic))
            for partition in pc.unique(of_topic[PARTITION]).to_pylist():
                mine = of_topic.filter(pc.equal(of_topic[PARTITION], partition))[OFFSET]
                self._offsets.setdefault((topic, partition), []).append(mine.to_numpy())

    def intervals(self) -> Intervals:
        """Return the offsets as intervals. Raises NotOnce for a repeated offset."""
        return {key: _intervals(key, np.sort(np.concatenate(parts))) for key, parts in self._offsets.items()}


def joined(parts: Iterable[Intervals]) -> Intervals:
    """Return the intervals of all tasks, by partition, in the order of offsets.

    Raises NotOnce for an offset of two tasks.
    """
    by_key: dict[PartitionKey, list[tuple[_Numbers, _Numbers]]] = {}
    for part in parts:
        for key, found in part.items():
            by_key.setdefault(key, []).append(found)
    complete = {}
    for key, several in by_key.items():
        starts, ends = (np.concatenate([one[side] for one in several]) for side in (0, 1))
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], ends[order]
        again = np.flatnonzero(starts[1:] < ends[:-1])
        if len(again):
            raise _several_rows_error(key, int(starts[1:][again[0]]))
        complete[key] = (starts, ends)
    return complete


def count(found: tuple[Any, Any] | None) -> int:
    """Return the number of offsets in intervals."""
    return 0 if found is None else int((found[1] - found[0]).sum())


def offsets_of(found: tuple[_Numbers, _Numbers] | None) -> _Numbers:
    """Return the offsets in intervals, rising."""
    if found is None or not len(found[0]):
        return np.empty(0, np.int64)
    return np.concatenate([np.arange(start, end) for start, end in zip(*found, strict=True)])


def _intervals(key: PartitionKey, offsets: _Numbers) -> tuple[_Numbers, _Numbers]:
    steps = np.diff(offsets)
    if len(again := np.flatnonzero(steps == 0)):
        raise _several_rows_error(key, int(offsets[again[0]]))
    cuts = np.flatnonzero(steps != 1) + 1
    starts = offsets[np.concatenate([[0], cuts])]
    ends = offsets[np.concatenate([cuts - 1, [len(offsets) - 1]])] + 1
    return starts, ends


def _several_rows_error(key: PartitionKey, offset: int) -> NotOnce:
    return NotOnce(f"it returned several rows for the record {key[0]}[{key[1]}] offset {offset}")
