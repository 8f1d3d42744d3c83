"""Repeated records: they change nothing, since the table has a row of their key already."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_lakestream.cdc.columns import COMMIT
from airflow_lakestream.cdc.keys.identity import by_place, greatest_of_each, places
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.lookup import LookupResult, may_hold
from airflow_lakestream.decode.connect.unavailable import Mask


@dataclass(frozen=True)
class RepeatedRecords:
    """Search for records whose key has a row already, in the table or by an earlier record of the batch.

    :param key: the columns of the mirror's key.
    :param within: the greatest distance of a repeated record from the row, in microseconds of `COMMIT`; None for any.
    """

    key: tuple[str, ...]
    within: int | None = None

    def reached(self, head: MirrorHead, files: Sequence[File], rows: pa.Table) -> Sequence[File]:
        """Return the files that may have rows within the time of any record.

        :param rows: the batch's records.
        """
        if self.within is None:
            return files
        times, reached = np.unique(rows[COMMIT].to_numpy()).tolist(), []
        for file in files:
            bounds = head.bounds(file, COMMIT)
            wide = None if bounds is None else (bounds[0] - self.within, bounds[1] + self.within)
            if may_hold(wide, times):
                reached.append(file)
        return reached

    def mask(self, rows: pa.Table, results: Sequence[LookupResult]) -> Mask:
        """Return a mask of the batch's records that change nothing.

        :param rows: the batch's records; of two records of a key, the first in this order stays.
        :param results: of the lookup in the table's files.
        """
        mask = np.zeros(len(rows), np.bool_)
        if self.within is None:
            for result in results:
                mask[result.at] = True
            return mask
        # 1. Number the keys: the lookup has found rows for one record of each key.
        (negated,) = greatest_of_each(by_place(rows, self.key), -np.arange(len(rows)))
        numbers = places(rows, rows.take(pa.array(-negated)), self.key)
        # 2. Collect the times of each key's rows; rows that the lookup leaves out are older than any window.
        times = defaultdict[int, list[int]](list)
        for result in results:
            if result.rows is not None:
                for number, time in zip(numbers[result.at].tolist(), result.rows[COMMIT].to_pylist(), strict=True):
                    insort(times[number], time)
        # 3. Take the records one after the other; a record alone of its key, without rows, is a new row.
        is_alone = np.bincount(numbers, minlength=1)[numbers] == 1
        todo = np.flatnonzero(~is_alone | np.isin(numbers, list(times)))
        commits = rows[COMMIT].to_numpy()[todo].tolist()
        for index, number, time in zip(todo.tolist(), numbers[todo].tolist(), commits, strict=True):
            row_times = times[number]
            nearest = bisect_left(row_times, time - self.within)
            if nearest < len(row_times) and row_times[nearest] <= time + self.within:
                mask[index] = True
            else:
                insort(row_times, time)
        return mask
