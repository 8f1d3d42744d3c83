"""Comparison of an engine's rows with our rows of the same records, by hashes.

Only the hashes of a publication's rows are kept in memory, 20 bytes for each row; the files are read again if the
columns of a difference have to be named.
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

    :param read: reads the rows of the engine's files, in the table's columns.
    :param columns: the columns to compare.
    """

    def __init__(self, read: ReadRows, topic: str, columns: Sequence[str]) -> None:
        self._read, self._topic, self._columns = read, topic, list(columns)
        self._hashes = RowHashes()
        # By partition, the sorted offsets of the engine's rows, and the rows' hashes.
        self._engine_rows: dict[int, tuple[Offsets, Hashes]] = {}
        # By partition and offset, the hash of each column in our row, for the first records that differ.
        self._our_columns: dict[tuple[int, int], Hashes] = {}
        self._different: list[tuple[PartitionKey, Offsets]] = []
        self._equal: list[tuple[PartitionKey, Offsets]] = []
        self._load()

    @property
    def positions(self) -> RangeSet:
        """The positions with rows."""
        return union(ranges_of((self._topic, p), offsets) for p, (offsets, _) in self._engine_rows.items())

    @property
    def equal(self) -> RangeSet:
        """The compared positions whose rows all have our values."""
        return union(ranges_of(key, offsets) for key, offsets in self._equal) - self.different

    @property
    def different(self) -> RangeSet:
        """The compared positions with different values."""
        return union(ranges_of(key, offsets) for key, offsets in self._different)

    def compare(self, partition: int, offsets: Sequence[int], ours: pa.Table) -> None:
        """Compare the engine's rows of a partition with our rows, and note equal and different positions.

        Positions for which only the engine or only we have a row are not compared. A position with a doubled row is
        different if one of the rows differs.

        :param offsets: the rising offsets of `ours`, row by row.
        :param ours: our rows.
        """
        if partition not in self._engine_rows or not len(offsets):
            return
        engine_offsets, engine_hashes = self._engine_rows[partition]
        our_offsets = np.asarray(offsets, np.int64)
        # The engine's rows between our first and our last offset.
        first, end = np.searchsorted(engine_offsets, (our_offsets[0], our_offsets[-1] + 1))
        engine_offsets, engine_hashes = engine_offsets[first:end], engine_hashes[first:end]
        # For each row of the engine, the number of our row at the same offset; rows without such a row are dropped.
        row_numbers = np.searchsorted(our_offsets, engine_offsets)
        has_ours = our_offsets[row_numbers] == engine_offsets
        engine_offsets, engine_hashes = engine_offsets[has_ours], engine_hashes[has_ours]
        row_numbers = row_numbers[has_ours]
        columns = self._hashes.of_columns(ours.select(self._columns))
        differs = self._hashes.of_rows(columns)[row_numbers] != engine_hashes
        key = self._topic, partition
        self._equal.append((key, engine_offsets[~differs]))
        if differs.any():
            self._different.append((key, engine_offsets[differs]))
            still_named = max(0, _MOST_NAMED - len(self._our_columns))
            for row_number in np.unique(row_numbers[differs])[:still_named].tolist():
                self._our_columns[partition, int(our_offsets[row_number])] = columns[:, row_number]

    def named(self) -> list[ValueDifference]:
        """Return the first `_MOST_NAMED` differing records, with their differing columns; reads the files again."""
        columns_by_position: dict[tuple[int, int], set[str]] = {}
        for partition, offsets, rows in self._by_partition():
            to_name = {o for p, o in self._our_columns if p == partition}
            for offset in sorted(to_name & set(offsets.tolist())):
                engine_columns = self._hashes.of_columns(rows.filter(pa.array(offsets == offset)).select(self._columns))
                differs = (engine_columns != self._our_columns[partition, offset][:, None]).any(axis=1)
                names = {name for name, is_different in zip(self._columns, differs, strict=True) if is_different}
                columns_by_position.setdefault((partition, offset), set()).update(names)
        return [
            ValueDifference(self._topic, p, o, tuple(name for name in self._columns if name in names))
            for (p, o), names in sorted(columns_by_position.items())
        ]

    def _load(self) -> None:
        """Read the hashes of the engine's rows."""
        parts: dict[int, list[tuple[Offsets, Hashes]]] = {}
        for partition, offsets, rows in self._by_partition():
            columns = self._hashes.of_columns(rows.select(self._columns))
            parts.setdefault(partition, []).append((offsets, self._hashes.of_rows(columns)))
        for partition, arrays in parts.items():
            offsets = np.concatenate([part_offsets for part_offsets, _ in arrays])
            hashes = np.concatenate([part_hashes for _, part_hashes in arrays])
            order = np.argsort(offsets, kind="stable")
            self._engine_rows[partition] = offsets[order], hashes[order]

    def _by_partition(self) -> Iterator[tuple[int, Offsets, pa.Table]]:
        """Yield partition, offsets and rows of the topic, file by file, without rows that lack a position.

        Rows without a position are refused by another check: `core.publishing.reckoning.check_rows`.
        """
        for rows in self._read():
            # A table may lack a column, such as the timestamp's.
            self._columns = [name for name in self._columns if name in rows.column_names]
            positioned = rows.filter(pc.equal(rows[TOPIC], self._topic))
            for name in COORDINATES[1:]:
                positioned = positioned.filter(positioned[name].is_valid())
            partitions: Any = positioned[PARTITION].to_numpy()
            for partition in np.unique(partitions).tolist():
                part = positioned.filter(pa.array(partitions == partition))
                yield partition, np.asarray(part[OFFSET].to_numpy(), np.int64), part
