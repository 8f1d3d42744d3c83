"""Checks a batch's guards against the rows of a table's head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, DELETED, POSITION
from airflow_lakestream.cdc.events.unavailable import Mask
from airflow_lakestream.cdc.keys.guards import Guarded, Judge
from airflow_lakestream.cdc.keys.identity import Numbers
from airflow_lakestream.cdc.keys.images import Image, images
from airflow_lakestream.cdc.merge.head import File, Head
from airflow_lakestream.cdc.merge.memory import Memory
from airflow_lakestream.cdc.merge.newest import Newest, is_before, is_gone


@dataclass
class Judged:
    """The rows that stay although their key has a deletion."""

    batch: Newest
    judge: Judge

    def stay(self, head: Head, file: File, rows: pa.Table, at: Numbers) -> Mask:
        """Tell which rows of a file stay. Raises MirrorStopped.

        :param rows: their keys, versions and marks; `at` gives the event of each row's key.
        """
        stays = self._is_repeated(rows, at)
        guarded = np.isin(at, np.array(list(self.batch.guards), np.int64))
        live = self._is_live(rows)
        for number in np.flatnonzero(guarded).tolist():
            guards = self.batch.guards[int(at[number])]
            where = (rows[COMMIT][number].as_py(), rows[POSITION][number].as_py())
            if not live[number]:
                self.judge.is_gone(guards, where)
                continue
            needed = {name for guard in guards for name in guard.image}
            values = self._values(head, file, number, needed) if needed else {}
            stays[number] |= self.judge.keeps(guards, where, values)
        return stays

    def check_others(self, memory: Memory) -> None:
        """Check the guards that no row has answered. Raises MirrorStopped."""
        for place, guards in self.batch.guards.items():
            for guard in guards:
                if guard.kind is not Guarded.SENT or id(guard) in self.judge.done:
                    continue
                row = self.batch.rows.slice(place, 1)
                for name, value in zip((COMMIT, POSITION), guard.since, strict=True):
                    row = row.set_column(row.column_names.index(name), name, pa.array([value], pa.int64()))
                if not memory.has_seen(row):
                    raise self.judge.not_sent(guard)

    def _is_live(self, rows: pa.Table) -> Mask:
        live = np.ones(len(rows), np.bool_)
        if DELETED in rows.column_names:
            # A marked row has had its deletion: a second copy of it is at the same place.
            live = ~pc.fill_null(rows[DELETED], False).to_numpy()
        return live if self.batch.truncated is None else live & ~is_before(rows, self.batch.truncated)

    def _is_repeated(self, rows: pa.Table, at: Numbers) -> Mask:
        """Tell which rows were settled with a deletion at their own place that was sent twice, see `order`."""
        stays, hit = np.zeros(len(rows), np.bool_), np.flatnonzero(at >= 0)
        events = self.batch.rows.take(pa.array(at[hit]))
        same = is_gone(events)
        if not same.any():
            return stays
        for name in (COMMIT, POSITION):
            same &= events[name].to_numpy() == rows[name].to_numpy()[hit]
        # Without places in the log, events of the same time are at one place.
        stays[hit] = same & (events[POSITION].to_numpy() != 0) & self._is_live(rows)[hit]
        return stays

    def _values(self, head: Head, file: File, number: int, names: set[str]) -> Image:
        start = 0
        for part in head.read(file):
            if number < start + len(part):
                columns = [name for name in part.column_names if name in names]
                return images(part.slice(number - start, 1), columns)[0]
            start += len(part)
        raise AssertionError("it was read before")
