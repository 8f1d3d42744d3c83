"""Ties between partitions: two records of a key at the same place in different partitions have no known order.

Within a partition the offset decides. Without a sequence in the records, all records are at the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_lakestream.cdc.columns import COMMIT, OFFSET, PARTITION, POSITION
from airflow_lakestream.cdc.keys.identity import by_place, greatest_of_each
from airflow_lakestream.cdc.stops import MirrorStopped, StopReason
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.rising import Numbers

_PLACE = (COMMIT, POSITION)


@dataclass(frozen=True)
class PartitionTies:
    """Check for records of a key in unknown order.

    :param table: the mirror's name, and `topic` the topic's, for errors.
    :param key: the columns of the mirror's key.
    :param sequence_by: the columns that order records; empty if offsets alone do.
    :param remedy: the remedy, if the records are not plain ones.
    """

    table: str
    topic: str
    key: tuple[str, ...]
    sequence_by: tuple[str, ...] = ()
    remedy: str = ""

    def check_batch(self, rows: pa.Table) -> None:
        """Refuse a batch with a tie of a key's newest record. Raises MirrorStopped.

        :param rows: in the order of their versions.
        """
        partitions = _numbers(rows, PARTITION)
        if not len(rows) or (partitions == partitions[0]).all():
            return
        # For each key, the last record, and the record at the last record's place with the lowest partition: as a
        # number that grows with the place, and falls with the partition.
        width = int(partitions.max()) + 1
        lowest = _ranks(rows) * width + (width - 1 - partitions)
        last, first = greatest_of_each(by_place(rows, self.key), np.arange(len(rows)), lowest)
        tied = np.flatnonzero(lowest[last] != first)
        if len(tied):
            newest = rows.slice(int(last[tied[0]]), 1)
            others = np.flatnonzero(lowest == first[tied[0]])
            same = by_place(rows.take(pa.array(others)), self.key), by_place(newest, self.key)
            at = same[0].to_pylist().index(same[1].to_pylist()[0])
            raise self._stopped(newest, rows.slice(int(others[at]), 1))

    def check(self, rows: pa.Table, others: pa.Table) -> None:
        """Refuse records in unknown order with the state of their key in the table or in the memory.

        Raises MirrorStopped.

        :param rows: the records, with the key and the version.
        :param others: for each record, the version of the key's row or deletion.
        """
        tied = _numbers(rows, PARTITION) != _numbers(others, PARTITION)
        for name in _PLACE:
            tied &= _numbers(rows, name) == _numbers(others, name)
        if tied.any():
            at = int(np.flatnonzero(tied)[0])
            raise self._stopped(rows.slice(at, 1), others.slice(at, 1))

    def _stopped(self, row: pa.Table, other: pa.Table) -> MirrorStopped:
        key = ", ".join(f"{name}={row[name][0].as_py()!r}" for name in self.key)
        first, second = sorted((one[PARTITION][0].as_py(), one[OFFSET][0].as_py()) for one in (row, other))
        places = " and ".join(f"{self.topic}[{partition}] offset {offset}" for partition, offset in (first, second))
        by = ", ".join(self.sequence_by)
        problem = (
            f"{places} have the same {by}, and the same key ({key}): which of both is newer is unknown."
            if by
            else f"{places} have the same key ({key}): records of two partitions have no order."
        )
        return MirrorStopped(self.table, StopReason.ORDER_UNKNOWN, problem, self.remedy or _remedy(self.sequence_by))


def _remedy(sequence_by: Sequence[str]) -> str:
    if sequence_by:
        return (
            "Make a new table, with a further column in sequence_by that distinguishes them; or let the producer write "
            "each key to one partition of a new topic."
        )
    return (
        "Make a new table with sequence_by, the column that rises with each change of a row; or let the producer write "
        "each key to one partition of a new topic. Adding partitions to a topic moves keys."
    )


def _ranks(rows: pa.Table) -> Numbers:
    """Return a number for each row, rising with the place; rows at the same place have the same number."""
    is_new: Mask = np.zeros(len(rows), np.bool_)
    for name in _PLACE:
        numbers = _numbers(rows, name)
        is_new[1:] |= numbers[1:] != numbers[:-1]
    ranks: Numbers = np.cumsum(is_new).astype(np.int64)
    return ranks


def _numbers(rows: pa.Table, name: str) -> Numbers:
    numbers: Numbers = rows[name].to_numpy().astype(np.int64, copy=False)
    return numbers
