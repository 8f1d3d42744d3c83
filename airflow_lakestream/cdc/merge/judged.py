"""Check of a batch's guards against the rows of a table's head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_lakestream.cdc.columns import COMMIT, DELETED, POSITION
from airflow_lakestream.cdc.keys.guards import GuardCheck, GuardKind
from airflow_lakestream.cdc.keys.images import Image, images
from airflow_lakestream.cdc.merge.head import File, MirrorHead
from airflow_lakestream.cdc.merge.lookup import LookupResult, with_numbers
from airflow_lakestream.cdc.merge.memory import MirrorMemory
from airflow_lakestream.cdc.merge.newest import NewestEvents
from airflow_lakestream.cdc.merge.snapshots import is_before, is_gone
from airflow_lakestream.decode.connect.unavailable import Mask
from airflow_lakestream.tables.rising import Numbers


@dataclass
class GuardedRowCheck:
    """Check for rows to keep in spite of a deletion of the key.

    :param batch: the newest events, with the guards.
    :param judge: decides about a row by its guards.
    """

    batch: NewestEvents
    judge: GuardCheck

    def stay(self, head: MirrorHead, file: File, result: LookupResult) -> Mask:
        """Return a mask of a file's hits to keep. Raises MirrorStopped if the events can't decide about a row.

        A hit is a row whose key has an event in the batch. The row stays if an earlier batch kept the row in spite of
        the same deletion, or if a guard of the key's last event keeps it; see `DeletionGuard`.
        """
        rows, events = result.rows, result.at
        if rows is None:
            # All rows are older than the events, and no event has a guard.
            return np.zeros(len(events), np.bool_)
        stays = self._repeated_mask(rows, events)
        guarded = np.isin(events, np.array(list(self.batch.guards), np.int64))
        live = self._live_mask(rows)
        for number in np.flatnonzero(guarded).tolist():
            guards = self.batch.guards[int(events[number])]
            place = (rows[COMMIT][number].as_py(), rows[POSITION][number].as_py())
            if not live[number]:
                self.judge.note_deleted(guards, place)
                continue
            needed = {name for guard in guards for name in guard.image}
            values = self.values_of(head, file, int(result.hits[number]), needed) if needed else {}
            stays[number] |= self.judge.keeps(guards, place, values)
        return stays

    def check_unanswered(self, memory: MirrorMemory) -> None:
        """Refuse deletions of unknown rows: the table has no row of the key, and the memory no deletion.

        Only guards of the kind `SENT` are checked, after `stay` was called for all files. Raises MirrorStopped.
        """
        for event, guards in self.batch.guards.items():
            for guard in guards:
                if guard.kind is not GuardKind.SENT or id(guard) in self.judge.done:
                    continue
                # The key's row, as if its event were at the deletion's place.
                row = self.batch.rows.slice(event, 1)
                for name, value in zip((COMMIT, POSITION), guard.since, strict=True):
                    row = row.set_column(row.column_names.index(name), name, pa.array([value], pa.int64()))
                if not memory.knows_deletion(row):
                    raise self.judge.not_sent(guard)

    @cached_property
    def _gone(self) -> Mask:
        """A mask of the batch's deletions and truncations."""
        return is_gone(self.batch.rows)

    @cached_property
    def _places(self) -> Mapping[str, Numbers]:
        """The places of the batch's events in the source, by column."""
        return {name: self.batch.rows[name].to_numpy() for name in (COMMIT, POSITION)}

    def _live_mask(self, rows: pa.Table) -> Mask:
        """Return a mask of the rows that neither a mark nor the batch's truncation deletes."""
        live = np.ones(len(rows), np.bool_)
        if DELETED in rows.column_names:
            # A marked row has had its deletion: a copy of the deletion has the same place.
            live = ~pc.fill_null(rows[DELETED], False).to_numpy()
        return live if self.batch.truncated is None else live & ~is_before(rows, self.batch.truncated)

    def _repeated_mask(self, rows: pa.Table, indices: Numbers) -> Mask:
        """Return a mask of the rows whose last event has the place of the deletion: an earlier batch has kept them.

        The earlier batch has decided that the row remains after its transaction, and has given the row the deletion's
        version; see `cdc.keys.order`.

        :param indices: for each row the index of its key's event in the batch.
        """
        is_same = self._gone[indices]
        if self.batch.ties is not None:
            # Plain records have no transactions: at the same place, the offset decides.
            return np.zeros(len(indices), np.bool_)
        if not is_same.any():
            return is_same
        for name, places in self._places.items():
            is_same &= places[indices] == rows[name].to_numpy()
        # Without places in the log, events of the same time are at one place.
        stays: Mask = is_same & (self._places[POSITION][indices] != 0) & self._live_mask(rows)
        return stays

    def values_of(self, head: MirrorHead, file: File, number: int, names: set[str]) -> Image:
        """Return the values of a row in a file, by the row's number, for some columns."""
        for part, numbers in with_numbers(head.read(file)):
            if number < numbers.stop:
                columns = [name for name in part.column_names if name in names]
                return images(part.slice(number - numbers.start, 1), columns)[0]
        raise AssertionError("the lookup has found the row in this file")
