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
        # A code grows with the place, and at one place falls with the partition. So a key's greatest code is that of
        # the record at the last place with the lowest partition: a tie, if the key's last record has another code.
        width = int(partitions.max()) + 1
        codes = _ranks(rows) * width + (width - 1 - partitions)
        last, greatest = greatest_of_each(by_place(rows, self.key), np.arange(len(rows)), codes)
        tied = np.flatnonzero(codes[last] != greatest)
        if len(tied):
            newest = rows.slice(int(last[tied[0]]), 1)
            others = np.flatnonzero(codes == greatest[tied[0]])
            other_keys = by_place(rows.take(pa.array(others)), self.key).to_pylist()
            (newest_key,) = by_place(newest, self.key).to_pylist()
            raise self._stopped(newest, rows.slice(int(others[other_keys.index(newest_key)]), 1))

    def check(self, rows: pa.Table, others: pa.Table) -> None:
        """Refuse records in unknown order with their key's row in the table, or with its deletion in the memory.

        Raises MirrorStopped.

        :param rows: the records, with the key and the version.
        :param others: for each record, the version of the key's row or deletion.
        """
        tied = _numbers(rows, PARTITION) != _numbers(others, PARTITION)
        for name in _PLACE:
            tied &= _numbers(rows, name) == _numbers(others, name)
        if tied.any():
            first = int(np.flatnonzero(tied)[0])
            raise self._stopped(rows.slice(first, 1), others.slice(first, 1))

    def _stopped(self, row: pa.Table, other: pa.Table) -> MirrorStopped:
        """Return the error for two records, or a record and a row, of one key in unknown order."""
        key = ", ".join(f"{name}={row[name][0].as_py()!r}" for name in self.key)
        first, second = sorted((record[PARTITION][0].as_py(), record[OFFSET][0].as_py()) for record in (row, other))
        places = " and ".join(f"{self.topic}[{partition}] offset {offset}" for partition, offset in (first, second))
        sequence = ", ".join(self.sequence_by)
        problem = (
            f"{places} have the same {sequence}, and the same key ({key}): which of both is newer is unknown."
            if sequence
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
