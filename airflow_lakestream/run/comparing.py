"""Comparison of an engine's rows with our rows of the same records, by hashes.

The hashes of a publication's rows are held, 20 bytes for each row, never the rows: the files are read again if a
column has to be named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.core.ledger import union
from airflow_lakestream.core.publishing.branch import ValueDifference
from airflow_lakestream.core.ranges import PartitionKey, RangeSet
from airflow_lakestream.tables.coordinates import COORDINATES, OFFSET, PARTITION, TOPIC, ranges_of
from airflow_lakestream.tables.row_hashes import Hashes, RowHashes

# The number of differing records whose columns are named; the offsets of all differing records are reported.
_MOST_NAMED = 5

Offsets = npt.NDArray[np.int64]
ReadRows = Callable[[], Iterator[pa.Table]]


class EngineRows:
    """An engine's rows of a topic's records, by position.

    :param read: reads the rows of its files, in the table's columns.
    :param columns: the columns to compare.
    """

    def __init__(self, read: ReadRows, topic: str, columns: Sequence[str]) -> None:
        self._read, self._topic, self._columns = read, topic, list(columns)
        self._hashes = RowHashes()
        self._parts: dict[int, tuple[Offsets, Hashes]] = {}
        # By position, our hashes of the first records that differ.
        self._ours: dict[tuple[int, int], Hashes] = {}
        self._different: list[tuple[PartitionKey, Offsets]] = []
        self._equal: list[tuple[PartitionKey, Offsets]] = []
        self._load()

    @property
    def positions(self) -> RangeSet:
        """The positions with rows."""
        return union(ranges_of((self._topic, p), offsets) for p, (offsets, _) in self._parts.items())

    @property
    def equal(self) -> RangeSet:
        """The compared positions with our values only."""
        return union(ranges_of(*one) for one in self._equal) - self.different

    @property
    def different(self) -> RangeSet:
        """The compared positions with different values."""
        return union(ranges_of(*one) for one in self._different)

    def compare(self, partition: int, offsets: Sequence[int], ours: pa.Table) -> None:
        """Compare the engine's rows of a partition with our rows, and note equal and different positions.

        Positions of only one side are not compared. A position with a doubled row is different if one of the rows
        differs.

        :param offsets: the rising offsets of `ours`, row by row.
        """
        if partition not in self._parts or not len(offsets):
            return
        at, their = self._parts[partition]
        mine = np.asarray(offsets, np.int64)
        # The engine's rows within our offsets.
        first, end = np.searchsorted(at, (mine[0], mine[-1] + 1))
        at, their = at[first:end], their[first:end]
        # By row of the engine, the row of ours at the same offset; `both` if there is such a row.
        places = np.searchsorted(mine, at)
        both = mine[places] == at
        at, their, places = at[both], their[both], places[both]
        columns = self._hashes.of_columns(ours.select(self._columns))
        differs = self._hashes.of_rows(columns)[places] != their
        key = self._topic, partition
        self._equal.append((key, at[~differs]))
        if differs.any():
            self._different.append((key, at[differs]))
            for place in np.unique(places[differs])[: max(0, _MOST_NAMED - len(self._ours))].tolist():
                self._ours[partition, int(mine[place])] = columns[:, place]

    def named(self) -> list[ValueDifference]:
        """Return the first `_MOST_NAMED` differing records, with their differing columns; reads the files again."""
        columns_by_place: dict[tuple[int, int], set[str]] = {}
        for partition, offsets, rows in self._by_partition():
            for offset in sorted({o for p, o in self._ours if p == partition} & set(offsets.tolist())):
                theirs = self._hashes.of_columns(rows.filter(pa.array(offsets == offset)).select(self._columns))
                differ = (theirs != self._ours[partition, offset][:, None]).any(axis=1)
                names = {name for name, is_other in zip(self._columns, differ, strict=True) if is_other}
                columns_by_place.setdefault((partition, offset), set()).update(names)
        return [
            ValueDifference(self._topic, p, o, tuple(name for name in self._columns if name in names))
            for (p, o), names in sorted(columns_by_place.items())
        ]

    def _load(self) -> None:
        parts: dict[int, list[tuple[Offsets, Hashes]]] = {}
        for partition, offsets, rows in self._by_partition():
            columns = self._hashes.of_columns(rows.select(self._columns))
            parts.setdefault(partition, []).append((offsets, self._hashes.of_rows(columns)))
        for partition, some in parts.items():
            offsets, hashes = (np.concatenate(one) for one in zip(*some, strict=True))
            order = np.argsort(offsets, kind="stable")
            self._parts[partition] = offsets[order], hashes[order]

    def _by_partition(self) -> Iterator[tuple[int, Offsets, pa.Table]]:
        """Yield the rows with a position in the topic, by partition; rows without such a position are left out.

        Another check refuses the rows left out: `core.publishing.reckoning.check_rows`.
        """
        for rows in self._read():
            # A table may lack a column for a known attribute of records.
            self._columns = [name for name in self._columns if name in rows.column_names]
            known = rows.filter(pc.equal(rows[TOPIC], self._topic))
            for name in COORDINATES[1:]:
                known = known.filter(known[name].is_valid())
            of: Any = known[PARTITION].to_numpy()
            for partition in np.unique(of).tolist():
                part = known.filter(pa.array(of == partition))
                yield partition, np.asarray(part[OFFSET].to_numpy(), np.int64), part
