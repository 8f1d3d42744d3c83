"""Records that change nothing, since the table has a row of their key already: messages that were sent twice."""

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
    """Records whose key has a row, in the table or by an earlier record of the batch.

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
        times, found = np.unique(rows[COMMIT].to_numpy()).tolist(), []
        for file in files:
            bounds = head.bounds(file, COMMIT)
            wide = None if bounds is None else (bounds[0] - self.within, bounds[1] + self.within)
            if may_hold(wide, times):
                found.append(file)
        return found

    def mask(self, rows: pa.Table, results: Sequence[LookupResult]) -> Mask:
        """Return a mask of the batch's records that change nothing.

        :param rows: the batch's records, in the order in which the first one stays.
        :param results: of the lookup in the table's files.
        """
        mask = np.zeros(len(rows), np.bool_)
        if self.within is None:
            for one in results:
                mask[one.at] = True
            return mask
        # 1. Number the keys: the lookup has found rows for one record of each key.
        (first,) = greatest_of_each(by_place(rows, self.key), -np.arange(len(rows)))
        numbers = places(rows, rows.take(pa.array(-first)), self.key)
        # 2. Collect the times of each key's rows; rows that the lookup leaves out are older than any window.
        times = defaultdict[int, list[int]](list)
        for one in results:
            if one.rows is not None:
                for number, time in zip(numbers[one.at].tolist(), one.rows[COMMIT].to_pylist(), strict=True):
                    insort(times[number], time)
        # 3. Take the records one after the other; a record alone of its key, without rows, is a new row.
        is_alone = np.bincount(numbers, minlength=1)[numbers] == 1
        todo = np.flatnonzero(~is_alone | np.isin(numbers, list(times)))
        commits = rows[COMMIT].to_numpy()[todo].tolist()
        for at, number, time in zip(todo.tolist(), numbers[todo].tolist(), commits, strict=True):
            own = times[number]
            nearest = bisect_left(own, time - self.within)
            if nearest < len(own) and own[nearest] <= time + self.within:
                mask[at] = True
            else:
                insort(own, time)
        return mask
